// How latencies are spread: a bar an octave, by uPlot.

import { colour } from "./charts.js";
import { count, duration, el, figure } from "./format.js";

const HEIGHT = 130;
// The least number of pixels between two times below the bars.
const SPACE = 54;

// Makes the charts of each group once: `groups` are {key, title, unit, rows: [{name, total, octaves}]}, where an octave
// is [time at its end in ms, how many].
export function showHistograms(box, groups) {
    if (box.children.length) return;
    for (const { key, title, unit, rows } of groups) {
        const charts = el("div", { class: "charts" });
        const heading = el("h2", { id: `${key}-spread-h` }, title);
        const hint = el("p", { class: "hint" }, `Each bar: ${unit} that took up to the time at its right edge.`);
        box.append(el("section", { "aria-labelledby": `${key}-spread-h` }, heading, hint, charts));
        for (const row of rows) addChart(charts, row, unit);
    }
}

function addChart(box, { name, total, octaves }, unit) {
    const [bound, most] = octaves.reduce((one, other) => (other[1] > one[1] ? other : one));
    const label = `${name}: ${count(total)} ${unit}, most of them, ${count(most)}, in up to ${duration(bound)}`;
    const plot = el("div", { class: "plot", role: "img", "aria-label": label });
    box.append(el("div", { class: "chart" }, el("h3", null, name), el("p", null, `${count(total)} ${unit}`), plot));
    let drawn = draw(plot, octaves);
    new ResizeObserver(() => drawn.setSize({ width: widthOf(plot), height: HEIGHT })).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
        drawn.destroy();
        drawn = draw(plot, octaves);
    });
}

function widthOf(plot) {
    return Math.max(200, plot.clientWidth);
}

// Bar n lies between n and n + 1, so that the time at its end stands at n + 1.
function draw(plot, octaves) {
    const axis = { stroke: colour("--dim"), ticks: { show: false }, font: "11px sans-serif" };
    const grid = { stroke: colour("--line"), width: 1 };
    const times = (_, edges) => edges.map((edge) => (octaves[edge - 1] ? duration(octaves[edge - 1][0]) : ""));
    return new uPlot(
        {
            width: widthOf(plot),
            height: HEIGHT,
            legend: { show: false },
            cursor: { show: false },
            scales: {
                x: { time: false, range: () => [0, octaves.length] },
                y: { range: (_, __, high) => [0, high * 1.1] },
            },
            axes: [
                { ...axis, size: 22, space: SPACE, grid: { show: false }, incrs: [1, 2, 5, 10], values: times },
                { ...axis, grid, size: 58, space: 28, values: (_, ticks) => ticks.map(figure) },
            ],
            series: [
                {},
                {
                    fill: colour("--line-1"),
                    stroke: colour("--line-1"),
                    points: { show: false },
                    paths: uPlot.paths.bars({ size: [0.86, 100] }),
                },
            ],
        },
        [octaves.map((_, place) => place + 0.5), octaves.map(([, held]) => held || null)],
        plot,
    );
}
