// The places of the components of a topology, and the ways of its edges.

import dagre from "./vendor/dagre.esm.js";

export function place(data) {
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ rankdir: data.direction, nodesep: 26, ranksep: 74, marginx: 12, marginy: 12 });
    graph.setDefaultEdgeLabel(() => ({}));
    for (const name of data.nodes) graph.setNode(name, { width: data.width, height: data.height });
    for (const [from, to] of data.edges) graph.setEdge(from, to, { width: 46, height: 16, labelpos: "c" });
    dagre.layout(graph);
    return {
        key: data.key,
        width: graph.graph().width,
        height: graph.graph().height,
        nodes: Object.fromEntries(data.nodes.map((name) => [name, { x: graph.node(name).x, y: graph.node(name).y }])),
        edges: data.edges.map(([from, to]) => {
            const edge = graph.edge(from, to);
            return { from, to, x: edge.x, y: edge.y, points: edge.points.map(({ x, y }) => [x, y]) };
        }),
    };
}
