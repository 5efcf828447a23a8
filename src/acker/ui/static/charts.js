// The charts of the last ten minutes, by uPlot.

import { bytes, clock, duration, el, figure, write } from "./format.js";

const AXES = { ms: duration, By: bytes };
const HEIGHT = 130;
const SPAN_SECS = 600;
const SPAN_LEAST_SECS = 60;
const POINTS_MAX = 600;

export function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function valueText(value, unit) {
    return unit === "ms" ? duration(value) : unit === "By" ? bytes(value) : `${figure(value)} ${unit}`;
}

// Seconds are shown only where the labels are less than a minute apart.
function times(_, ticks, __, ___, step) {
    return ticks.map((at) => (step < 60 ? clock(1000 * at) : clock(1000 * at).slice(0, 5)));
}

export class Charts {
    constructor(box) {
        this.box = box;
        this.charts = new Map();
        this.times = [];
        this.series = {};
        new ResizeObserver(() => this.resize()).observe(box);
        matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    }

    reset(history) {
        this.times = history.times_ms.map((at) => at / 1000);
        this.series = history.series;
    }

    show(view) {
        const at = view.at_ms / 1000;
        if (this.times.at(-1) !== at) {
            this.times.push(at);
            for (const chart of view.charts) {
                for (const line of chart.series) {
                    const values = (this.series[`${chart.key}.${line.key}`] ??= []);
                    while (values.length < this.times.length - 1) values.push(null);
                    values.push(line.value);
                }
            }
            while (this.times.length > POINTS_MAX) {
                this.times.shift();
                for (const values of Object.values(this.series)) values.shift();
            }
        }
        for (const chart of view.charts) this.showChart(chart);
    }

    showChart(chart) {
        let parts = this.charts.get(chart.key);
        if (!parts) {
            const plot = el("div", { class: "plot", role: "img" });
            const now = el("p");
            const keys = chart.series.map((line, place) => {
                const value = el("b");
                now.append(
                    el("span", { class: place ? "key second" : "key" }),
                    `${line.label} `,
                    value,
                    place < chart.series.length - 1 ? "   " : "",
                );
                return value;
            });
            const figureBox = el("div", { class: "chart" }, el("h3", null, chart.title), now, plot);
            this.box.append(figureBox);
            parts = { chart, plot, keys, drawn: null };
            this.charts.set(chart.key, parts);
            parts.drawn = this.make(parts);
        }
        chart.series.forEach((line, place) => write(parts.keys[place], valueText(line.value, chart.unit)));
        const shown = chart.series.map((line) => `${line.label} ${valueText(line.value, chart.unit)}`).join(", ");
        parts.plot.setAttribute("aria-label", `${chart.title}: ${shown}`);
        parts.drawn.setData(this.data(chart));
    }

    data(chart) {
        return [
            this.times,
            ...chart.series.map((line) => this.series[`${chart.key}.${line.key}`] ?? this.times.map(() => null)),
        ];
    }

    make({ chart, plot }) {
        const axis = {
            stroke: colour("--dim"),
            grid: { stroke: colour("--line"), width: 1 },
            ticks: { show: false },
            font: "11px sans-serif",
        };
        const values = (_, ticks) => ticks.map((tick) => AXES[chart.unit]?.(tick) ?? figure(tick));
        return new uPlot(
            {
                width: Math.max(200, plot.clientWidth),
                height: HEIGHT,
                legend: { show: false },
                cursor: { show: false },
                scales: {
                    x: { time: true, range: () => this.span() },
                    y: { range: (_, low, high) => [0, Math.max(high ?? 0, Number.MIN_VALUE) > 1e-9 ? high * 1.1 : 1] },
                },
                axes: [
                    {
                        ...axis,
                        size: 22,
                        space: 70,
                        values: times,
                    },
                    { ...axis, size: 58, space: 28, values },
                ],
                series: [
                    {},
                    ...chart.series.map((line, place) => ({
                        label: line.label,
                        stroke: colour(place ? "--line-2" : "--line-1"),
                        width: 1.6,
                        spanGaps: true, // A second without an ack has no latency; the line goes on behind it.
                        points: { show: false },
                    })),
                ],
            },
            this.data(chart),
            plot,
        );
    }

    // Ten minutes, or as much as there is, but at least one.
    span() {
        const last = this.times.at(-1) ?? SPAN_SECS;
        return [Math.max(last - SPAN_SECS, Math.min(this.times[0] ?? last, last - SPAN_LEAST_SECS)), last];
    }

    resize() {
        for (const { plot, drawn } of this.charts.values()) {
            drawn.setSize({ width: Math.max(200, plot.clientWidth), height: HEIGHT });
        }
    }

    redraw() {
        for (const parts of this.charts.values()) {
            parts.drawn.destroy();
            parts.drawn = this.make(parts);
        }
    }
}
