// The drawing of a topology: each component with its rate, its queue and its time; each edge with its rate.

import { count, duration, percent, rate, set, svg, write } from "./format.js";

const WIDTH = 184;
const HEIGHT = 74;
const BAR = 78;
const NAME_MAX = 22;
const NAME_WIDTH = WIDTH - 38;
const LABEL_MAX = 30;
const LABEL_WIDTH = 46;
const CHARACTER = 6.4;
const FIGURES_MAX = 27;
// A smaller drawing could not be read: from here on it scrolls.
const SCALE_LEAST = 0.72;

// How a component spends its time, as Flink shows it: with a colour, a sign and a word.
const LOADS = {
    idle: { sign: "\u25cb", about: "idle: it mostly waits for tuples" },
    busy: { sign: "\u25cf", about: "busy: at least half of its time is in user code" },
    pressed: { sign: "\u25a0", about: "back-pressured: a queue behind it is at least half full" },
};
const LOAD = 0.5;

export class Graph {
    // `place` takes what there is to place, and returns the layout or a promise of it.
    // `legend` and `hint` are shown where components know how busy they are, and where the drawing scrolls.
    constructor(box, place, legend, hint) {
        this.box = box;
        this.place = place;
        this.legend = legend;
        this.hint = hint;
        this.key = "";
        this.nodes = new Map();
        this.edges = new Map();
        this.size = null;
        new ResizeObserver(() => this.fit()).observe(box);
        this.narrow = matchMedia("(max-width: 40rem)");
        this.narrow.addEventListener("change", () => this.last && this.show(this.last));
    }

    async show(view) {
        this.last = view;
        const names = view.graph.nodes.map((node) => node.name);
        const edges = view.graph.edges.map((edge) => [edge.from, edge.to, widthOf(edge)]);
        const direction = this.narrow.matches ? "TB" : "LR";
        const key = JSON.stringify([direction, names, edges]);
        if (key !== this.key) {
            this.key = key;
            this.draw(await this.place({ key, direction, nodes: names, edges, width: WIDTH, height: HEIGHT }));
        } else {
            this.update();
        }
    }

    draw(layout) {
        if (layout.key !== this.key) return;
        const known = new Map(this.last.graph.nodes.map((node) => [node.name, node]));
        this.nodes.clear();
        this.edges.clear();
        const edges = layout.edges.map((edge) => this.drawEdge(edge));
        const nodes = Object.entries(layout.nodes).map(([name, place]) => this.drawNode(known.get(name), place));
        const arrow = svg(
            "marker",
            {
                id: "arrow",
                viewBox: "0 0 8 8",
                refX: 7,
                refY: 4,
                markerWidth: 11,
                markerHeight: 11,
                markerUnits: "userSpaceOnUse",
                orient: "auto",
            },
            svg("path", { d: "M0 0L8 4L0 8Z" }),
        );
        this.size = { width: Math.ceil(layout.width), height: Math.ceil(layout.height) };
        this.drawing = svg(
            "svg",
            { viewBox: `0 0 ${this.size.width} ${this.size.height}`, "aria-hidden": "true" },
            svg("defs", null, arrow),
            ...edges,
            ...nodes,
        );
        this.box.replaceChildren(this.drawing);
        this.fit();
        this.update();
        squeeze([...this.drawing.querySelectorAll("text.name")]);
    }

    // Scales the drawing to the width of its box, as long as it can be read.
    fit() {
        if (!this.size || !this.box.clientWidth) return;
        const scale = Math.min(1, Math.max(SCALE_LEAST, this.box.clientWidth / this.size.width));
        set(this.drawing, "width", Math.floor(scale * this.size.width));
        set(this.drawing, "height", Math.floor(scale * this.size.height));
        const { scrollWidth, clientWidth, scrollHeight, clientHeight } = this.box;
        const ways = [scrollWidth > clientWidth ? "sideways" : "", scrollHeight > clientHeight ? "down" : ""];
        const told = ways.filter(Boolean).join(" and ");
        write(this.hint, told && `The drawing goes on: scroll it ${told}.`);
        this.hint.hidden = !told;
    }

    drawEdge({ from, to, x, y, points }) {
        const text = svg("text", { x, y: y + 4, "text-anchor": "middle" });
        const title = svg("title");
        const group = svg(
            "g",
            { class: "edge" },
            title,
            svg("path", { d: curve(points), "marker-end": "url(#arrow)" }),
            text,
        );
        this.edges.set(JSON.stringify([from, to]), { group, text, title });
        return group;
    }

    drawNode(node, { x, y }) {
        const { name } = node;
        const left = 12;
        const right = WIDTH - 12 - BAR;
        const parts = {
            tag: svg("text", { class: "tag", x: WIDTH / 2, y: -5, "text-anchor": "middle" }),
            title: svg("title"),
            figures: svg("text", { class: "dim", x: left, y: 40 }),
            queue: svg("rect", { class: "fill queue", x: left, y: 50, width: 0, height: 6, rx: 3 }),
            time: svg("rect", { class: "fill time", x: right, y: 50, width: 0, height: 6, rx: 3 }),
            under: svg("text", { class: "dim", x: left, y: 68 }),
            share: svg("text", { class: "dim", x: right, y: 68 }),
            sign: svg("text", { class: "sign", x: WIDTH - 10, y: 21, "text-anchor": "end", "aria-hidden": "true" }),
        };
        const label = svg("text", { class: "name", x: left, y: 22 });
        label.textContent = shortened(name, NAME_MAX);
        const hasQueue = node.kind === "bolt" && node.queue !== undefined;
        const timed = hasTime(node);
        const group = svg(
            "g",
            { transform: `translate(${x - WIDTH / 2} ${y - HEIGHT / 2})` },
            parts.title,
            svg("rect", { class: "box", width: WIDTH, height: HEIGHT, rx: 8 }),
            parts.tag,
            label,
            parts.sign,
            parts.figures,
            hasQueue ? svg("rect", { class: "track", x: left, y: 50, width: BAR, height: 6, rx: 3 }) : null,
            timed ? svg("rect", { class: "track", x: right, y: 50, width: BAR, height: 6, rx: 3 }) : null,
            hasQueue ? parts.queue : null,
            parts.time,
            parts.under,
            parts.share,
        );
        this.nodes.set(name, { group, ...parts });
        return group;
    }

    update() {
        const stuck = stuckAt(this.last);
        const full = fullness(this.last.graph.nodes);
        const behind = new Map();
        for (const { from, to } of this.last.graph.edges) {
            if (from !== to) behind.set(from, Math.max(behind.get(from) ?? 0, full.get(to)));
        }
        this.legend.hidden = !this.last.graph.nodes.some(hasTime);
        for (const node of this.last.graph.nodes) {
            const parts = this.nodes.get(node.name);
            const load = loadOf(node, behind.get(node.name) ?? 0);
            if (parts) updateNode(parts, node, stuck.get(node.name) ?? 0, load, full.get(node.name));
        }
        for (const edge of this.last.graph.edges) {
            const parts = this.edges.get(JSON.stringify([edge.from, edge.to]));
            if (!parts) continue;
            write(parts.text, labelOf(edge));
            const pressed = full.get(edge.to) >= LOAD;
            const why = pressed ? `; the queue of ${edge.to} is ${percent(full.get(edge.to))} full` : "";
            write(parts.title, `${edge.from} to ${edge.to}: ${edge.streams.join("; ")}${why}`);
            const moves = edge.rate ? "edge" : edge.label ? `edge ${edge.kind}` : "edge still";
            set(parts.group, "class", pressed ? `${moves} pressed` : moves);
        }
    }
}

// An edge says how many tuples pass, or, in the drawing of a definition, how they are grouped.
function labelOf(edge) {
    if (edge.label) return shortened(edge.label, LABEL_MAX);
    return edge.rate === null ? "" : rate(edge.rate);
}

function widthOf(edge) {
    return edge.label ? Math.max(LABEL_WIDTH, CHARACTER * Math.min(LABEL_MAX, edge.label.length)) : LABEL_WIDTH;
}

function fullness(nodes) {
    return new Map(nodes.map((node) => [node.name, node.queue_capacity ? node.queue / node.queue_capacity : 0]));
}

// Whether a component works, waits for those behind it, or waits for tuples; null if its time is not known.
function loadOf(node, behind) {
    if (!hasTime(node) || node.busy === null) return null;
    if (node.busy >= LOAD && node.busy >= behind) return "busy";
    if (behind >= LOAD) return "pressed";
    return "idle";
}

// Signs of East Asia are twice as wide.
const widthOfSign = (sign) => (/[\u1100-\uffdc\u{1f000}-\u{3ffff}]/u.test(sign) ? 2 : 1);

function shortened(text, most) {
    let width = 0;
    let kept = "";
    for (const sign of text) {
        width += widthOfSign(sign);
        if (width > most) return `${kept.trimEnd()}…`;
        if (width < most) kept += sign;
    }
    return text;
}

function hasTime(node) {
    return node.busy !== undefined;
}

function stands(node) {
    if (node.about) return shortened(node.about, LABEL_MAX);
    if (node.kind === "spout") return `${count(node.pending ?? 0)} pending`;
    return node.queue === undefined ? "" : `queue ${count(node.queue)}`;
}

function updateNode(parts, node, stuck, load, queued) {
    const full = Math.min(1, queued);
    const busy = node.busy ?? 0;
    const classes = ["node", node.kind];
    if (load) classes.push(`load-${load}`);
    if (full >= 0.8) classes.push("full");
    else if (full >= 0.5) classes.push("warm");
    if (busy >= 0.8) classes.push("busy");
    if (node.bottleneck) classes.push("bottleneck");
    if (stuck) classes.push("stuck");
    set(parts.group, "class", classes.join(" "));
    const tags = [node.bottleneck ? "bottleneck" : "", stuck ? "stuck trees here" : ""];
    write(parts.tag, tags.filter(Boolean).join(", "));
    const tasks = `${node.tasks} ${node.tasks === 1 ? "task" : "tasks"}`;
    const p99 = node.latency?.p99_ms;
    const shown = [node.rate === undefined || node.rate === null ? "" : rate(node.rate), node.tasks ? tasks : ""];
    if (p99 !== null && p99 !== undefined) shown.push(duration(p99));
    write(parts.figures, fitting(shown.filter(Boolean)));
    write(parts.sign, load ? LOADS[load].sign : "");
    set(parts.queue, "width", Math.round(BAR * full));
    set(parts.time, "width", Math.round(BAR * busy));
    write(parts.under, stands(node));
    // A micro-batch tells the time of its bolts when it ends.
    write(parts.share, !hasTime(node) ? "" : node.busy === null ? "at work" : `busy ${percent(busy)}`);
    const about = node.about && `${node.name}: ${node.about}`;
    const queue = `${count(node.queue ?? 0)} of ${count(node.queue_capacity ?? 0)} in its queue`;
    write(parts.title, about || [`${node.name}: ${queue}`, load && LOADS[load].about].filter(Boolean).join("; "));
}

// Makes names fit beside the sign, whatever the font: all are measured before the first is changed.
function squeeze(names) {
    const long = names.filter((name) => name.getComputedTextLength() > NAME_WIDTH);
    for (const name of long) {
        set(name, "textLength", NAME_WIDTH);
        set(name, "lengthAdjust", "spacingAndGlyphs");
    }
}

// Figures that fit into a box: the last ones are left out, which the table of components has too.
function fitting(shown) {
    while (shown.length > 1 && shown.join(" · ").length > FIGURES_MAX) shown.pop();
    return shortened(shown.join(" · "), FIGURES_MAX);
}

// How many of the stuck trees each component surely holds.
export function stuckAt(view) {
    const found = new Map();
    for (const row of view.open_trees?.rows ?? []) {
        if (row.age_ms < view.timeout_ms / 2) continue;
        const sure = row.holders.filter((each) => each.how !== "maybe");
        const names = new Set((sure.length ? sure : row.holders).map((each) => each.component));
        if (!sure.length && names.size > 1) continue;
        for (const name of names) found.set(name, (found.get(name) ?? 0) + 1);
    }
    return found;
}

function curve(points) {
    const [first, ...rest] = points;
    let path = `M${first[0].toFixed(1)} ${first[1].toFixed(1)}`;
    for (let place = 0; place < rest.length - 1; place += 1) {
        const [x, y] = rest[place];
        const [nextX, nextY] = rest[place + 1];
        const last = place === rest.length - 2;
        const end = last ? [nextX, nextY] : [(x + nextX) / 2, (y + nextY) / 2];
        path += `Q${x.toFixed(1)} ${y.toFixed(1)} ${end[0].toFixed(1)} ${end[1].toFixed(1)}`;
    }
    return rest.length === 1 ? `${path}L${rest[0][0].toFixed(1)} ${rest[0][1].toFixed(1)}` : path;
}
