// One reading on the page. The live page shows one after the other, a frozen one shows its only one.

import { Charts } from "./charts.js";
import { bytes, clock, count, duration, el, plural, rate, set, write } from "./format.js";
import { showHistograms } from "./histograms.js";
import {
    List,
    aboutLetters,
    componentColumns,
    failureColumns,
    kindsOf,
    letterColumns,
    plainColumns,
    treeColumns,
} from "./lists.js";

export const $ = (id) => document.getElementById(id);
// The section that says more than a tile.
const MORE_IN = {
    Pending: "trees-h",
    "In this process": "trees-h",
    "Not acked": "failures-h",
    "Dead letters": "dead-h",
};

const charts = new Charts($("charts"));
let view = null;
let actions = null;
let graph = null;

const may = (name) => view !== null && view.actions.includes(name);

// Says what draws the topology, and what carries out actions: null where there are none.
export function begin(drawing, acting) {
    graph = drawing;
    actions = acting;
}

export function reset(history) {
    charts.reset(history);
}

function fail(row) {
    actions.run(
        "fail",
        { root_id: row.root_id },
        {
            title: ofConsumer() ? "Fail this message?" : "Fail this tree?",
            text: ofConsumer()
                ? `This attempt at ${row.id} fails; it is tried again, or becomes a dead letter.`
                : `The spout is told that ${row.id} failed; a reliable spout emits it again.`,
            yes: "Fail it",
        },
    );
}

const lists = {
    trees: new List(
        $("trees"),
        treeColumns(() => view.timeout_ms, fail),
        (row) => row.root_id ?? row.id,
    ),
    failures: new List($("failures"), failureColumns(), (row) => row.number),
    dead: new List(
        $("dead"),
        letterColumns((row) => actions.run("replay", { number: row.number })),
        (row) => row.number,
    ),
    components: new List($("components"), componentColumns(sample), (row) => row.name, "No components yet."),
};
const tables = new Map();
const flames = new Map();
let wantsFlame = false;
const calls = new Map();
const ofConsumer = () => view.kind === "consumer";

export function show(now) {
    view = now;
    document.title = `${now.name} · acker`;
    write($("name"), now.name);
    const state = now.paused && now.state === "running" ? "paused" : now.state;
    write($("state"), state);
    $("state").className = `pill ${state}`;
    if (now.uptime_secs !== null) write($("uptime"), `for ${duration(1000 * Math.floor(now.uptime_secs))}`);
    write($("headline"), now.headline.text);
    // Read aloud when it becomes better or worse, and not with each number that changes.
    if ($("headline").className !== `headline ${now.headline.tone}`) write($("said"), now.headline.text);
    $("headline").className = `headline ${now.headline.tone}`;
    if (actions !== null) showActions();
    $("graph").hidden = now.graph.nodes.length === 0;
    if (now.graph.hint) write($("graph-hint"), now.graph.hint);
    if (ofConsumer()) write($("graph-h"), "Messages");
    if (now.graph.nodes.length) graph.show(now);
    showCalls(now.calls ?? []);
    $("charts").parentElement.hidden = now.charts.length === 0;
    charts.show(now);
    showHistograms($("histograms"), now.histograms ?? []);
    showTexts(now.texts ?? []);
    showOr($("trees"), now.open_trees, showTrees);
    showOr($("failures"), now.failures, showFailures);
    showOr($("dead"), now.dead_letters, showLetters);
    $("components").parentElement.hidden = now.graph.nodes.length === 0 || now.kind === "graph" || ofConsumer();
    const sampled = may("sample") ? (now.flames?.of ?? []) : [];
    lists.components.show(now.graph.nodes.map((node) => ({ ...node, can_sample: sampled.includes(node.name) })));
    showFlames(now.flames ?? { of: [], note: "", taken: [] });
    showTiles(now);
    showTables(now.tables);
    $("events").parentElement.hidden = now.kind !== "topology" || now.events === null;
    showEvents(now.events ?? []);
}

// Calls stay the same elements, so that a stack that is open stays open while its seconds change.
function showCalls(wanted) {
    $("calls").hidden = wanted.length === 0;
    const seen = new Set();
    for (const call of wanted) {
        const key = `${call.who} ${call.what}`;
        seen.add(key);
        let made = calls.get(key);
        if (!made) {
            made = { summary: el("summary"), stack: el("pre", { tabindex: 0 }) };
            made.element = el("details", null, made.summary, made.stack);
            $("calls-list").append(made.element);
            calls.set(key, made);
        }
        const what = call.what === null ? "" : call.what.endsWith("()") ? ` in ${call.what}` : ` with ${call.what}`;
        const where = call.line === null ? "" : `, at ${call.line}`;
        const over = call.over === null ? "" : `, which ${call.over}`;
        write(made.summary, `${call.who}${what}${over}, for ${duration(call.for_ms)}${where}`);
        write(made.stack, call.stack.join("\n") || "Its stack is not known.");
    }
    for (const [key, made] of calls) {
        if (seen.has(key)) continue;
        made.element.remove();
        calls.delete(key);
    }
}

// ---- flame graphs ----

async function sample(of) {
    wantsFlame = true;
    actions.tell(`Sampling the calls of ${of} for some seconds.`);
    await actions.run("sample", { of });
}

// Each is drawn once; the library that draws is only loaded if there is one.
function showFlames({ of, note, taken }) {
    const canAsk = ofConsumer() && may("sample");
    $("flames").hidden = !(taken.length || note || canAsk);
    const about = "A frame is as wide as its share of the samples; what it called is below.";
    write($("flames-hint"), [note, taken.length || canAsk ? about : ""].join(" ").trim());
    if (actions !== null) {
        $("flames-sample").hidden = !canAsk;
        $("flames-sample").onclick = () => sample(of[0]);
    }
    const seen = new Set();
    for (const each of [...taken].reverse()) {
        const key = `${each.of} ${each.at_ms}`;
        seen.add(key);
        if (!flames.has(key)) flames.set(key, addFlame(each));
    }
    for (const [key, element] of flames) {
        if (seen.has(key)) continue;
        element.remove();
        flames.delete(key);
    }
}

function addFlame(taken) {
    const title = `${taken.of}: ${count(taken.samples)} samples in ${taken.secs} s, until ${clock(taken.at_ms)}`;
    const top = taken.top.map(([line, n]) => `${line}: ${plural(n, "time")}`).join("; ");
    const box = el("div", { class: "flame" });
    const lines = el("p", { class: "told" }, `The last lines of your code: ${top}.`);
    const element = el("div", null, el("h3", null, title), lines, box);
    $("flames-list").prepend(element);
    import("./flame.js").then(({ draw }) => {
        draw(box, taken);
        if (wantsFlame) $("flames-h").focus();
        wantsFlame = false;
    });
    return element;
}

// A page without such a list has no section for it either.
function showOr(box, value, showIt) {
    box.parentElement.hidden = value === null;
    if (value !== null) showIt(value);
}

function tile(name, value, more = "", bad = false) {
    return { name, value, more, bad };
}

function tilesOf(now) {
    if (now.tiles)
        return now.tiles.map((each) => tile(each.name, figureOf(each), moreOf(each), each.is_bad && each.value > 0));
    const { totals, rates, complete_latency: latency } = now;
    const lost = totals.failed + totals.timed_out + totals.rejected;
    const ends = [
        ["failed", totals.failed],
        ["timed out", totals.timed_out],
        ["rejected", totals.rejected],
    ];
    const side = [
        ["late", totals.late],
        ["duplicates", totals.duplicates],
        ["ended by a restart", totals.restarted],
        ["ended by the stop", totals.shut_down],
        ["ack() raised", totals.ack_errors],
    ];
    const told = [...ends, ...side]
        .filter(([, n]) => n)
        .map(([name, n]) => `${count(n)} ${name}`)
        .join(", ");
    return [
        tile("Acked", count(totals.acked), rate(rates.acked)),
        tile("Complete latency", duration(latency.p99_ms), `p99; p50 ${duration(latency.p50_ms)}`),
        tile(
            "Pending",
            count(totals.pending),
            totals.pending ? `oldest ${duration(totals.oldest_age_ms)}` : "nothing is open",
        ),
        tile("Not acked", count(lost), told || "none failed", lost > 0),
        tile(
            "Dead letters",
            count(totals.dead_letters),
            totals.dead_letters ? "messages given up" : "none",
            totals.dead_letters > 0,
        ),
        tile("Restarts", count(now.restarts), now.restarts ? "after exceptions" : "none", now.restarts > 0),
    ];
}

function figureOf({ value, unit }) {
    if (typeof value === "string") return value;
    return unit === "By" ? bytes(value) : unit === "ms" ? duration(value) : unit === "/s" ? rate(value) : count(value);
}

function moreOf({ value, more, more_unit: unit }) {
    // What is said of a figure is not true of none.
    if (value === null && typeof more === "string") return "nothing to measure lately";
    return typeof more === "string" ? more : more === null ? "" : figureOf({ value: more, unit });
}

function showTiles(now) {
    const wanted = tilesOf(now);
    const box = $("tiles");
    box.hidden = wanted.length === 0;
    write($("tiles-hint"), now.tiles_hint ?? "");
    $("tiles-hint").hidden = !now.tiles_hint;
    if (box.children.length !== wanted.length) {
        box.replaceChildren(
            ...wanted.map(() =>
                el(
                    "div",
                    { class: "tile" },
                    el("dt", null, el("a")),
                    el("dd", { class: "value" }),
                    el("dd", { class: "more" }),
                ),
            ),
        );
    }
    wanted.forEach((each, place) => {
        const element = box.children[place];
        element.className = each.bad ? "tile bad" : "tile";
        const [{ firstChild: name }, value, more] = element.children;
        const section = MORE_IN[each.name];
        if (section && !$(section).parentElement.hidden) set(name, "href", `#${section}`);
        write(name, each.name);
        write(value, each.value);
        write(more, each.more);
    });
}

function showTrees({ total, stuck, rows, over = 0, over_calls: overCalls = [] }) {
    if (ofConsumer()) $("trees-h").firstChild.data = "Oldest open messages ";
    write($("trees-n"), total > rows.length ? `${count(rows.length)} of ${count(total)}` : count(total));
    const half = duration(view.timeout_ms / 2);
    const calls = `Calls that still run for messages that are over (${count(over)}): ${overCalls.join("; ")}. `;
    write(
        $("trees-hint"),
        [
            over ? calls : "",
            stuck ? `${count(stuck)} stuck: ` : "",
            `a ${ofConsumer() ? "message" : "tree"} counts as stuck after half of the timeout, ${half}.`,
        ].join(""),
    );
    const canFail = may("fail");
    lists.trees.show(
        rows.map((row) => ({ ...row, can_fail: canFail && row.root_id !== null })),
        view.state === "stopped"
            ? "Nothing is open: it has stopped."
            : over
              ? "No message is open, but calls still run for some that are over: they stand above."
              : ofConsumer()
                ? "No message is open. Each stands here from when it is handed out until its last part is done."
                : "No tree is open. Each message stands here from its emit until its last tuple is acked.",
    );
}

function showFailures(failures) {
    const { rows } = failures;
    write($("failures-hint"), kindsOf(failures));
    write($("failures-n"), rows.length ? `the last ${count(rows.length)}` : "");
    lists.failures.show(rows, "Nothing has failed or timed out since the page is on.");
}

function showLetters(letters) {
    const { total, held, rows, can_replay: can, values } = letters;
    write($("dead-n"), total > rows.length ? `${count(rows.length)} of ${count(total)}` : count(total));
    write($("dead-hint"), aboutLetters(letters));
    $("dead").classList.toggle("no-values", !values);
    const canReplay = can && may("replay");
    if (actions !== null) $("replay-all").hidden = !canReplay || held === 0;
    lists.dead.show(
        rows.map((row) => ({ ...row, can_replay: canReplay && row.can_replay })),
        total
            ? "None is left here: what was given up has been replayed."
            : "No message was given up. One that fails too often stands here, with its last reason.",
    );
}

function showTables(wanted) {
    for (const table of wanted) {
        let list = tables.get(table.key);
        if (!list) {
            const heading = el("h2", { id: `${table.key}-h` }, table.title);
            const box = el("div", { class: "wide", tabindex: 0, role: "group", "aria-labelledby": `${table.key}-h` });
            $("tables").append(el("section", { "aria-labelledby": `${table.key}-h` }, heading, box));
            list = new List(box, plainColumns(table.columns), (row) => row[0], table.empty);
            tables.set(table.key, list);
        }
        list.show(table.rows);
    }
}

// Text in sections of its own: warnings, and what a program wrote, such as a traceback.
function showTexts(wanted) {
    $("texts").replaceChildren(
        ...wanted.map(({ title, lines, is_code: isCode }, place) =>
            el(
                "section",
                { "aria-labelledby": `text-${place}-h` },
                el("h2", { id: `text-${place}-h` }, title),
                ...lines.map((line) => (isCode ? el("pre", { tabindex: 0 }, line) : el("p", { class: "told" }, line))),
            ),
        ),
    );
}

function showEvents(events) {
    const key = JSON.stringify(events.slice(0, 2)) + events.length;
    if ($("events").dataset.key === key) return;
    $("events").dataset.key = key;
    $("events").replaceChildren(...events.map((each) => el("p", null, el("time", null, clock(each.at_ms)), each.text)));
}

function showActions() {
    const wanted = JSON.stringify([view.actions, view.paused]);
    const box = $("actions");
    if (box.dataset.key === wanted) {
        const select = box.querySelector("select");
        if (select && document.activeElement !== select && select.value !== view.log_level)
            select.value = view.log_level;
        return;
    }
    const hadFocus = box.contains(document.activeElement);
    box.dataset.key = wanted;
    const made = [];
    if (may("pause")) {
        const name = view.paused ? "resume" : "pause";
        made.push(el("button", { type: "button", click: () => actions.run(name) }, view.paused ? "Resume" : "Pause"));
    }
    if (may("log-level")) {
        const levels = ["DEBUG", "INFO", "WARNING", "ERROR"];
        const change = (event) => actions.run("log-level", { level: event.target.value });
        const select = el(
            "select",
            { id: "level", change },
            ...levels.map((level) => el("option", { value: level }, level)),
        );
        select.value = view.log_level;
        made.push(el("label", { for: "level" }, "Log level"), select);
    }
    box.replaceChildren(...made);
    if (hadFocus) box.querySelector("button, select")?.focus();
}
