// Tables whose rows stay the same elements while their values change, so that focus and scrolling stay too.

import { NOTHING, bytes, clock, count, duration, el, figure, plural, rate, set, write } from "./format.js";

// A table: `columns` are {name, class, cell}, where a cell makes its content once and returns how to update it.
export class List {
    constructor(box, columns, keyOf, empty) {
        this.columns = columns;
        this.keyOf = keyOf;
        this.rows = new Map();
        this.body = el("tbody");
        // Roles, since on a narrow screen rows are no longer displayed as rows of a table.
        const head = columns.map((column) =>
            column.name
                ? el("th", { class: column.class, scope: "col", role: "columnheader" }, column.name)
                : el("td", { class: column.class, role: "cell" }),
        );
        const heading = el("tr", { role: "row" }, ...head);
        this.body.setAttribute("role", "rowgroup");
        const top = el("thead", { role: "rowgroup" }, heading);
        this.table = el("table", { hidden: true, role: "table" }, top, this.body);
        this.empty = el("p", { class: "empty" });
        this.emptyText = empty;
        box.append(this.table, this.empty);
    }

    show(rows, empty = this.emptyText) {
        this.table.hidden = rows.length === 0;
        this.empty.hidden = rows.length > 0;
        write(this.empty, empty);
        const seen = new Set();
        let before = null;
        for (const row of rows) {
            const key = String(this.keyOf(row));
            if (seen.has(key)) continue;
            seen.add(key);
            let made = this.rows.get(key);
            if (!made) {
                const cells = this.columns.map((column) => column.cell(row));
                const element = el(
                    "tr",
                    { role: "row" },
                    ...cells.map((cell, place) => {
                        const { class: kind, name } = this.columns[place];
                        return el("td", { class: kind, role: "cell", "data-name": name }, cell.element);
                    }),
                );
                made = { element, cells };
                this.rows.set(key, made);
            }
            for (const cell of made.cells) cell.update?.(row);
            const place = before ? before.nextSibling : this.body.firstChild;
            if (place !== made.element) this.body.insertBefore(made.element, place);
            before = made.element;
        }
        for (const [key, made] of this.rows) {
            if (seen.has(key)) continue;
            made.element.remove();
            this.rows.delete(key);
        }
    }
}

export function text(read) {
    return () => {
        const element = el("span");
        return { element, update: (row) => write(element, read(row)) };
    };
}

// The server looks for the holders of older trees only.
const YOUNG_MS = 1000;

const HOW = {
    process: (each) => `in user code${each.for_ms === null ? "" : ` for ${duration(each.for_ms)}`}`,
    queue: () => "waits in its queue",
    outcome: (each) =>
        `${each.for_ms === null ? "" : `in user code for ${duration(each.for_ms)}, `}has not taken its outcome`,
    held: () => "processed it, and neither acked nor failed it",
    maybe: () => "keeps tuples, and may hold it",
};

export function holding(row) {
    if (row.waits) return `nobody: its next attempt is due at ${clock(row.due_at_ms)}`;
    if (row.holders.length === 0 && row.age_ms < YOUNG_MS) return "on its way";
    if (row.holders.length === 0) return "no task that is known; its outcome may be on the way";
    if (row.holders.every((each) => each.how === "maybe") && row.holders.length > 1) {
        return `one of ${row.holders.map((each) => `${each.component}[${each.task}]`).join(", ")}, which keep tuples`;
    }
    const told = row.holders.slice(0, 4).map((each) => {
        const where = each.task === null ? each.component : `${each.component}[${each.task}]`;
        const line = each.line ? `, at ${each.line}` : "";
        return `${where} ${each.text ?? HOW[each.how](each)}${line}`;
    });
    const more = row.holders.length - told.length;
    return more > 0 ? `${told.join("; ")}; and ${plural(more, "other task")}` : told.join("; ");
}

export function edges(row) {
    if (!row.edges.length) return "";
    const shown = row.edges
        .slice(0, 8)
        .map((edge) => `${edge.from} → ${edge.to}[${edge.task}] for ${duration(edge.held_ms)}`);
    return ` Open edges: ${shown.join("; ")}${row.edges.length > 8 ? "; …" : ""}`;
}

export function reason(row) {
    const where = row.component === null ? "" : ` in ${row.component}${row.task === null ? "" : `[${row.task}]`}`;
    const held = row.held_by?.length ? `: ${holding({ holders: row.held_by, age_ms: Infinity })}` : "";
    const bare = row.kind === "failed" && row.component !== null && !row.why;
    return `${row.kind}${where}${row.why ? `: ${row.why}` : bare ? ", by fail() without a reason" : held}`;
}

// All failures by reason, each with an example, so that a few messages that fail again and again hide no others.
export function kindsOf({ counted, reasons }) {
    if (!counted) return "";
    const kinds = reasons.map((each) => {
        const line = each.line ? `, ${each.line}` : "";
        return `${count(each.count)} × ${reason({ ...each, task: null })}${line}; the last one is ${each.id}`;
    });
    return `Of ${count(counted)} in all:\n${kinds.join("\n")}`;
}

export function aboutLetters({ rows, values, note }) {
    const how = "Values are not shown, since they may be secret: --ui-values or LivePage(values=True) shows them.";
    return [rows.length && !values ? how : "", note].filter(Boolean).join(" ");
}

function ageCell(timeout) {
    return () => {
        const label = el("span");
        const meter = el("meter", { min: 0, optimum: 0, "aria-label": "age against the timeout" });
        const update = (row) => {
            write(label, duration(row.age_ms));
            set(meter, "max", timeout());
            set(meter, "low", timeout() / 2);
            set(meter, "high", timeout() * 0.9);
            set(meter, "value", Math.min(row.age_ms, timeout()));
        };
        return { element: el("span", null, label, meter), update };
    };
}

export function treeColumns(timeout, fail) {
    const button = (row) => {
        const element = el("button", { type: "button", class: "quiet", click: () => fail(row) }, "Fail");
        element.setAttribute("aria-label", `Fail the tree of ${row.id}`);
        return { element, update: (now) => (element.hidden = !now.can_fail) };
    };
    return [
        { name: "Message", class: "id", cell: text((row) => row.id) },
        { name: "Age", class: "t", cell: ageCell(timeout) },
        { name: "Held by", class: "why", cell: text((row) => holding(row) + edges(row)) },
        { name: "Attempt", class: "n", cell: text((row) => count(row.attempt)) },
        { name: "Spout", class: "", cell: text((row) => row.spout) },
        { name: "", class: "n", cell: button },
    ];
}

export function failureColumns() {
    return [
        { name: "Time", class: "t", cell: text((row) => clock(row.at_ms)) },
        { name: "Message", class: "id", cell: text((row) => row.id) },
        { name: "Why", class: "why", cell: text(reason) },
        { name: "Attempt", class: "n", cell: text((row) => count(row.attempt)) },
        { name: "After", class: "n", cell: text((row) => duration(row.elapsed_ms)) },
    ];
}

export function letterColumns(replay) {
    const button = (row) => {
        const element = el("button", { type: "button", class: "quiet", click: () => replay(row) }, "Replay");
        element.setAttribute("aria-label", `Replay ${row.id}`);
        return { element, update: (now) => (element.hidden = !now.can_replay) };
    };
    return [
        { name: "Time", class: "t", cell: text((row) => clock(row.at_ms)) },
        { name: "Message", class: "id", cell: text((row) => row.id) },
        { name: "Why", class: "why", cell: text(reason) },
        { name: "Attempts", class: "n", cell: text((row) => count(row.attempt)) },
        { name: "Values", class: "id values", cell: text((row) => row.values ?? "") },
        { name: "", class: "n", cell: button },
    ];
}

export function componentColumns(sample) {
    const queue = (row) => (row.queue_capacity ? `${count(row.queue)} of ${count(row.queue_capacity)}` : NOTHING);
    const button = (row) => {
        const element = el("button", { type: "button", class: "quiet", click: () => sample(row.name) }, "Flame graph");
        element.setAttribute("aria-label", `Flame graph of ${row.name}`);
        return { element, update: (now) => (element.hidden = !now.can_sample) };
    };
    return [
        { name: "Component", class: "", cell: text((row) => (row.bottleneck ? `${row.name} (bottleneck)` : row.name)) },
        { name: "Kind", class: "", cell: text((row) => row.kind) },
        { name: "Tasks", class: "n", cell: text((row) => count(row.tasks)) },
        { name: "Rate", class: "n", cell: text((row) => rate(row.rate)) },
        { name: "Executed", class: "n", cell: text((row) => count(row.executed)) },
        { name: "Emitted", class: "n", cell: text((row) => count(row.emitted)) },
        { name: "Acked", class: "n", cell: text((row) => count(row.acked)) },
        { name: "Failed", class: "n", cell: text((row) => count(row.failed)) },
        { name: "Queue", class: "n", cell: text(queue) },
        {
            name: "Busy",
            class: "n",
            cell: text((row) => ((row.busy ?? null) === null ? NOTHING : `${Math.round(100 * row.busy)} %`)),
        },
        { name: "Execute p50", class: "n", cell: text((row) => duration(row.latency?.p50_ms)) },
        { name: "p99", class: "n", cell: text((row) => duration(row.latency?.p99_ms)) },
        { name: "", class: "n", cell: button },
    ];
}

// A value of a table that the server makes: its unit says how it is written.
const UNITS = { at: clock, ms: duration, By: bytes, "/s": rate, "": count, 1: figure };

export function plainColumns(columns) {
    return columns.map((column, place) => ({
        name: column.name,
        class: column.unit === undefined || column.unit === null ? "" : "n",
        cell: text((row) => {
            const value = row[place];
            if (column.unit === undefined || column.unit === null) return value === null ? NOTHING : String(value);
            return (UNITS[column.unit] ?? figure)(value);
        }),
    }));
}
