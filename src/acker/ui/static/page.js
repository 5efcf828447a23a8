// The live page: listens to the events of the server, and shows each reading.

import { Actions } from "./actions.js";
import { clock, duration, el, plural, write } from "./format.js";
import { Graph } from "./graph.js";
import { edges, holding, reason } from "./lists.js";
import { $, begin, reset, show } from "./show.js";

const TICK_MS = 500;
const AGAIN_MS = 2000;
const NOT_FOUND =
    "It is not open, and is not among the last failures and dead letters. " +
    "It may be acked, or may not have come yet.";

const actions = new Actions();
let view = null;
let stream = null;
let lostAt = null;

// A thread of its own places the components, since a large topology takes a second.
const worker = new Worker("/static/layout_worker.js", { type: "module" });
const place = (parts) =>
    new Promise((done) => {
        const take = ({ data }) => {
            if (data.key !== parts.key) return;
            worker.removeEventListener("message", take);
            done(data);
        };
        worker.addEventListener("message", take);
        worker.postMessage(parts);
    });

// ---- search ----

async function search(event) {
    event.preventDefault();
    const id = $("id").value.trim();
    if (!id) return;
    const list = $("found-list");
    try {
        const answer = await fetch(`/api/find?id=${encodeURIComponent(id)}`);
        const { found, error } = await answer.json();
        write($("found-h"), `Found for ${id}`);
        const lines = error ? [el("p", null, error)] : found.map(lineOf);
        list.replaceChildren(...(lines.length ? lines : [el("p", { class: "empty" }, NOT_FOUND)]));
    } catch {
        list.replaceChildren(el("p", { class: "empty" }, "The program does not answer."));
    }
    $("found").hidden = false;
    $("found-h").scrollIntoView({ block: "nearest" });
}

function lineOf(row) {
    const strong = el("b", null, `${row.id}: `);
    if (row.what === "open") {
        const state = row.waits ? "waits for its next attempt" : `open for ${duration(row.age_ms)}`;
        return el(
            "p",
            null,
            strong,
            `${state}, attempt ${row.attempt}, of ${row.spout}. Held by ${holding(row)}.${edges(row)}`,
        );
    }
    const what = row.what === "failure" ? "not acked" : "given up";
    return el(
        "p",
        null,
        strong,
        `${what} at ${clock(row.at_ms)}, attempt ${row.attempt}: ${reason(row)}`,
        row.values ? `; values ${row.values}` : "",
    );
}

$("search").addEventListener("submit", search);
$("found-close").addEventListener("click", () => {
    $("found").hidden = true;
    $("id").focus();
});
$("replay-all").addEventListener("click", () => {
    const n = view.dead_letters.held;
    actions.run(
        "replay",
        { all: true },
        {
            title: "Replay all dead letters?",
            text: `${plural(n, "message")} will be emitted again, as if new.`,
            yes: "Replay all",
        },
    );
});

// ---- the connection ----

function connect() {
    stream?.close();
    stream = new EventSource("/api/events");
    stream.addEventListener("history", (event) => {
        reset(JSON.parse(event.data));
    });
    stream.addEventListener("view", (event) => {
        lostAt = null;
        view = JSON.parse(event.data);
        show(view);
        $("search").hidden = view.kind === "stream";
        if (view.is_last) stream.close();
        tick();
    });
    stream.addEventListener("trouble", (event) => {
        actions.tell(`The program cannot read its figures: ${JSON.parse(event.data).text}. Its log has more.`, true);
    });
    stream.addEventListener("error", () => {
        if (view?.is_last) return;
        lostAt ??= Date.now();
        if (stream.readyState === EventSource.CLOSED) setTimeout(connect, AGAIN_MS);
        tick();
    });
}

function tick() {
    const box = $("connection");
    const ended = view?.is_last === true;
    const lost = lostAt !== null;
    const oldMs = view === null ? null : Math.max(0, Date.now() - view.at_ms);
    const late = !ended && oldMs !== null && oldMs > 3000 + 3 * 1000 * view.interval_secs;
    box.className = `connection ${ended ? "" : lost || late ? "lost" : view ? "live" : ""}`;
    document.body.classList.toggle("stale", lost || late);
    const old = oldMs === null ? "" : duration(1000 * Math.floor(oldMs / 1000));
    if (ended) {
        write($("link"), `Stopped at ${clock(view.at_ms)}: these are the last numbers.`);
        write($("age"), "");
    } else if (lost) {
        write($("link"), `Connection lost at ${clock(lostAt)}; trying again.`);
        write($("age"), view ? `The numbers are ${old} old.` : "");
    } else if (late) {
        write($("link"), "No news from the program.");
        write($("age"), `The numbers are ${old} old.`);
    } else if (view) {
        write($("link"), "Live");
        write($("age"), oldMs < 2000 ? "" : `numbers ${old} old`);
    }
}

begin(new Graph($("drawing"), place, $("graph-legend"), $("graph-goes-on")), actions);
setInterval(tick, TICK_MS);
connect();
