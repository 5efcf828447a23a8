// The places of the components of a topology, and the ways of its edges.

import dagre from "./vendor/dagre.esm.js";

const LOOP = 14;

export function place(data) {
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ rankdir: data.direction, nodesep: 26, ranksep: 74, marginx: 12, marginy: 12 });
    graph.setDefaultEdgeLabel(() => ({}));
    for (const name of data.nodes) graph.setNode(name, { width: data.width, height: data.height });
    for (const [from, to, width] of data.edges) graph.setEdge(from, to, { width, height: 16, labelpos: "c" });
    dagre.layout(graph);
    return {
        key: data.key,
        width: graph.graph().width,
        height: graph.graph().height,
        nodes: Object.fromEntries(data.nodes.map((name) => [name, { x: graph.node(name).x, y: graph.node(name).y }])),
        edges: data.edges.map(([from, to]) => {
            const edge = graph.edge(from, to);
            const points = from === to ? loop(graph.node(from), edge, data) : edge.points.map(({ x, y }) => [x, y]);
            return { from, to, x: edge.x, y: edge.y, points };
        }),
    };
}

// The way of an edge from a component to itself, around its label: dagre leaves room for it below the component, or on
// its right if the drawing goes down.
function loop({ x, y }, label, { direction, width, height }) {
    if (direction === "LR") {
        const [left, right, side, end] = [x - width / 4, x + width / 4, y + height / 2, label.y + LOOP];
        return [
            [right, side],
            [right, end],
            [left, end],
            [left, side],
        ];
    }
    const [top, bottom, side, end] = [y - height / 4, y + height / 4, x + width / 2, label.x + LOOP];
    return [
        [side, bottom],
        [end, bottom],
        [end, top],
        [side, top],
    ];
}
