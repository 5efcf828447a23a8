// Flame graphs, drawn by d3-flame-graph: each frame is a button that keys reach, too.

import { el, plural, set } from "./format.js";
import { flamegraph, select } from "./vendor/d3-flame-graph.esm.js";

const ROW = 20;
// Widths that are smaller than this are no frames, since nobody could hit them.
const LEAST = 2;
const MOVES = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

// Draws what was sampled into a box. A frame is as wide as its share of the samples, and below it is what it called.
export function draw(box, { of, samples, tree }) {
    const said = (frame) => `${frame.data.name}: ${plural(frame.data.value, "sample")} of ${samples}`;
    const chart = flamegraph()
        .width(box.clientWidth)
        .cellHeight(ROW)
        .inverted(true)
        .minFrameSize(LEAST)
        .transitionDuration(0)
        .sort((one, other) => other.data.value - one.data.value)
        .setColorMapper((frame) => colour(frame.data.name))
        .setLabelHandler(said)
        .setDetailsElement(el("p"))
        .onClick(() => open(box, said));
    select(box).datum(structuredClone(tree)).call(chart);
    const svg = box.querySelector("svg");
    set(svg, "role", "group");
    set(svg, "aria-label", `Flame graph of ${of}: arrow keys move, Enter shows a frame in full width`);
    svg.addEventListener("keydown", (event) => move(svg, event));
    open(box, said);
    let width = box.clientWidth;
    new ResizeObserver(() => {
        if (box.clientWidth === width || box.clientWidth === 0) return;
        width = box.clientWidth;
        chart.width(width).update();
        open(box, said);
    }).observe(box);
}

// Makes the frames that are shown buttons, one of which can be reached by Tab.
function open(box, said) {
    box.querySelectorAll("g.frame").forEach((frame, place) => {
        const { datum } = { datum: select(frame).datum() };
        const isShown = datum.x1 > datum.x0;
        set(frame, "role", "button");
        set(frame, "aria-label", said(datum));
        set(frame, "tabindex", place === 0 ? 0 : -1);
        set(frame, "aria-hidden", !isShown);
    });
}

function move(svg, event) {
    const frames = [...svg.querySelectorAll('g.frame[aria-hidden="false"]')];
    const place = frames.indexOf(document.activeElement);
    if (place < 0) return;
    if (event.key === "Enter" || event.key === " ") {
        frames[place].dispatchEvent(new MouseEvent("click", { bubbles: true }));
        document.activeElement?.focus();
    } else if (event.key in MOVES) frames[place + MOVES[event.key]]?.focus();
    else return;
    event.preventDefault();
}

// Light in both colour schemes, below dark text; the same function always has the same one.
function colour(name) {
    let hash = 0;
    for (const letter of name) hash = (hash * 31 + letter.codePointAt(0)) % 997;
    return `hsl(${28 + (hash % 28)} 85% ${68 + (hash % 13)}%)`;
}
