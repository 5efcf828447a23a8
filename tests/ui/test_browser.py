"""The live page in a real browser."""

from __future__ import annotations

import re
import threading
import time
from statistics import median

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from acker.connectors import Consumer
from acker.errors import PageError
from acker.local import LocalRuntime
from acker.testing.connectors import MemoryBroker, MemoryPublisher, MemorySource
from acker.topology import Bolt, ReliableSpout, Topology
from acker.ui import LivePage
from tests.marks import slow_after
from tests.ui.conftest import LOOKS
from tests.ui.fakes import ask, fake_edge, fake_node, fake_tree, fake_view

SCRIPT = "<script>document.title = 'stolen'</script><img src=x onerror=\"document.title = 'stolen'\">"
LONG_SECS = 60.0
expect.set_options(timeout=120_000)
# What browsers log themselves while the server is away.
AWAY = ("net::ERR_", "Failed to load resource")


class Lines(ReliableSpout):
    outputs = ["line"]
    attempts_max = 1

    def initialize(self, conf, context):
        self.rest = ["a", "b", "c", f"bad {SCRIPT}", "stuck"]
        self.open = False

    def next_tuple(self):
        if self.rest and not self.open:  # one after the other, so that no ack waits for the stuck one
            line = self.rest.pop(0)
            self.open = True
            self.emit([line], tup_id=line)

    def ack(self, tup_id):
        super().ack(tup_id)
        self.open = False

    def fail(self, tup_id, reason=None):
        super().fail(tup_id, reason)
        self.open = False


class Check(Bolt):
    outputs = ["line"]
    mended = threading.Event()

    def process(self, tup):
        if "bad" in tup.line and not self.mended.is_set():
            raise ValueError(f"cannot check {tup.line}")
        self.emit([tup.line])


class Bill(Bolt):
    """Stays with the line "stuck" until the test is over."""

    released = threading.Event()

    def process(self, tup):
        if tup.line == "stuck":
            self.released.wait(600)


class Shop(Topology):
    lines = Lines.spec()
    check = Check.spec(inputs=[lines])
    bill = Bill.spec(inputs=[check])


@pytest.fixture
def shop():
    """A runtime with a stuck tree and a dead letter."""
    Check.mended.clear()
    Bill.released.clear()
    # A tree is stuck after half of this, and would time out long after the test.
    conf = {"topology.message.timeout.secs": 600, "topology.drain.secs": 0}
    page = LivePage(port=0, interval_secs=0.2, values=True)
    runtime = LocalRuntime(Shop, conf, ui=page)
    with runtime:
        yield runtime
        Bill.released.set()


def has_text(text):
    return re.compile(re.escape(text))


# ---- a running topology ----


def test_a_running_topology_is_shown(visit, shop) -> None:
    page = visit(shop.page.url)
    expect(page.locator("h1")).to_have_text("Shop")
    expect(page.locator("#state")).to_have_text("running")
    expect(page.locator("#link")).to_have_text("Live")
    expect(page.locator("#drawing .node .name")).to_have_count(3)
    assert page.locator("#drawing .node .name").all_text_contents() == ["lines", "check", "bill"]
    expect(page.locator("#drawing .edge")).to_have_count(2)
    expect(page.locator("#charts canvas")).to_have_count(5)


def test_the_numbers_move_and_agree_with_stats(visit, shop) -> None:
    page = visit(shop.page.url)

    def tile(name):
        return page.locator(".tile", has=page.get_by_text(name, exact=True)).locator(".value")

    expect(tile("Not acked")).to_have_text("1")
    expect(tile("Pending")).to_have_text("1")  # the stuck one comes after that
    shop.run_until(3)
    totals = shop.stats().totals
    expect(tile("Acked")).to_have_text(str(totals.acked))
    expect(tile("Pending")).to_have_text(str(totals.pending))
    expect(tile("Dead letters")).to_have_text(str(totals.dead_letters))
    Bill.released.set()
    shop.run_until(4)
    expect(tile("Acked")).to_have_text("4")
    expect(tile("Pending")).to_have_text("0")
    assert shop.stats().totals.acked == 4


def test_the_holder_of_a_tree_is_named(visit, shop) -> None:
    page = visit(shop.page.url)
    row = page.locator("#trees tbody tr", has_text="stuck")
    expect(row).to_have_text(has_text("bill[3] in user code for"))


@pytest.mark.slow
def test_a_message_is_found_by_its_id(visit, shop) -> None:
    page = visit(shop.page.url)
    row = page.locator("#trees tbody tr", has_text="stuck")
    expect(row).to_have_text(has_text("bill[3] in user code for"))  # a search shows one moment
    page.get_by_label("Message id").fill("stuck")
    page.keyboard.press("Enter")
    expect(page.locator("#found-list")).to_have_text(has_text("stuck: open for"))
    expect(page.locator("#found-list")).to_have_text(has_text("Held by bill[3] in user code"))
    page.get_by_label("Message id").fill("nobody")
    page.keyboard.press("Enter")
    expect(page.locator("#found-list")).to_have_text(has_text("It is not open"))


def test_markup_in_ids_values_and_reasons_is_text(visit, shop) -> None:
    page = visit(shop.page.url)
    for name in ("failures", "dead"):
        expect(page.locator(f"#{name} tbody tr")).to_have_text(has_text(f"bad {SCRIPT}"))
    expect(page.locator("#dead tbody tr td").nth(4)).to_have_text(has_text("stolen"))
    page.get_by_label("Message id").fill(f"bad {SCRIPT}")
    page.keyboard.press("Enter")
    expect(page.locator("#found-list p")).to_have_count(2)
    assert page.locator("main script, main img").count() == 0
    assert page.title() == "Shop · acker"


def test_a_dead_letter_is_replayed(visit, shop) -> None:
    page = visit(shop.page.url_with_token)
    Check.mended.set()
    page.get_by_role("button", name="Replay bad").click()
    expect(page.locator("#did")).to_have_text(has_text("Done: replayed bad"))
    expect(page.locator("#dead tbody tr")).to_have_count(0)
    expect(page.locator("#dead .empty")).to_be_visible()
    Bill.released.set()
    shop.run_until(5)
    assert shop.stats().totals.acked == 5


@pytest.mark.slow
def test_a_dead_letter_is_replayed_on_a_narrow_screen(visit, shop) -> None:
    page = visit(shop.page.url_with_token, width=375)
    Check.mended.set()
    page.get_by_role("link", name="Dead letters").click()
    expect(page.locator("#dead-h")).to_be_in_viewport()
    button = page.get_by_role("button", name="Replay bad")
    expect(button).to_be_in_viewport(ratio=1)
    button.click()
    expect(page.locator("#did")).to_be_in_viewport()
    expect(page.locator("#did")).to_have_text(has_text("Done: replayed bad"))
    expect(page.locator("#dead .empty")).to_have_text(has_text("None is left here"))


@pytest.mark.slow
def test_failures_are_summed_up_by_kind(visit, shop) -> None:
    page = visit(shop.page.url)
    told = re.compile(r"Of 1 in all:\s1 . failed in check: ValueError: .*, test_browser\.py:\d+ in Check", re.DOTALL)
    expect(page.locator("#failures-hint")).to_have_text(told)


def test_a_failure_says_all_that_is_known(visit, source, server) -> None:
    holder = {"component": "b", "task": 2, "how": "held", "for_ms": None}
    late = {**failure(1), "kind": "timed out", "component": None, "task": None, "why": None, "held_by": [holder]}
    source.now = fake_view(failures={"rows": [late, {**failure(2), "why": None, "held_by": []}]})
    page = visit(server.url)
    rows = page.locator("#failures tbody tr")
    expect(rows.first).to_have_text(has_text("timed out: b[2] processed it, and neither acked nor failed it"))
    expect(rows.nth(1)).to_have_text(has_text("failed in b[2], by fail() without a reason"))


def test_a_tree_is_failed_after_a_question(visit, shop) -> None:
    page = visit(shop.page.url_with_token)
    page.get_by_role("button", name="Fail the tree of stuck").click()
    expect(page.get_by_role("dialog")).to_have_text(has_text("Fail this tree?"))
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="Fail the tree of stuck").click()
    page.get_by_role("button", name="Fail it").click()
    expect(page.locator("#did")).to_have_text("Done: failed the tree of stuck.")
    expect(page.locator("#failures tbody tr", has_text="failed by hand")).to_have_count(1)


@pytest.mark.slow
def test_pause_and_resume(visit, shop) -> None:
    page = visit(shop.page.url_with_token)
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#state")).to_have_text("paused")
    assert shop.lifecycle.is_paused
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#state")).to_have_text("running")
    assert not shop.lifecycle.is_paused


def test_the_token_leaves_the_address_and_stays_in_the_tab(visit, shop) -> None:
    page = visit(shop.page.url_with_token)
    expect(page.locator("#link")).to_have_text("Live")
    assert page.url == shop.page.url
    page.reload()
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#did")).to_have_text("Done: paused the spouts.")


def test_an_action_without_the_token_asks_for_it(visit, shop) -> None:
    page = visit(shop.page.url, allowed=("403",))
    token = page.get_by_role("textbox", name="Token")
    page.get_by_role("button", name="Pause").click()
    expect(token).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="Pause").click()
    token.fill("wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#did")).to_have_text(has_text("Not done: the header x-acker-token"))
    assert not shop.lifecycle.is_paused
    page.get_by_role("button", name="Pause").click()
    token.fill(shop.page.url_with_token)
    page.get_by_role("button", name="Use it").click()
    expect(page.locator("#did")).to_have_text("Done: paused the spouts.")


def test_a_stopped_runtime_is_shown_as_such(visit, shop) -> None:
    page = visit(shop.page.url)
    expect(page.locator("#link")).to_have_text("Live")
    Bill.released.set()
    shop.stop()
    expect(page.locator("#state")).to_have_text("stopped")
    expect(page.locator("#link")).to_have_text(has_text("Stopped at"))
    expect(page.locator("#headline")).to_have_text(
        has_text("1 dead letter; most often in check: ValueError: cannot check bad")
    )
    expect(page.locator("#actions button")).to_have_count(0)
    assert "stale" not in (page.locator("body").get_attribute("class") or "")


# ---- consumers and streams ----


def test_a_consumer_is_shown(visit) -> None:
    broker = MemoryBroker()
    broker.publish([b"one", b"two"])
    options = {"attempts_max": 1, "dead_letters": MemoryPublisher(broker), "drain_secs": 0}
    page_options = LivePage(port=0, interval_secs=0.2)
    with Consumer(MemorySource(broker), ui=page_options, **options) as consumer:
        first, second = (next(iter(consumer)) for _ in range(2))
        first.fail(f"no {SCRIPT}")
        page = visit(consumer.page.url)
        expect(page.locator("#drawing .node")).to_have_count(3)
        expect(page.locator("#failures tbody tr")).to_have_text(has_text(f"failed: no {SCRIPT}"))
        expect(page.locator("#dead tbody tr")).to_have_count(1)
        expect(page.locator("#trees tbody tr")).to_have_count(1)  # there are two in a reading from before
        expect(page.locator("#trees tbody tr")).to_have_text(has_text("MainThread in user code for "))
        expect(page.locator(".tile", has_text="Not acked").locator(".value")).to_have_text("1")
        expect(page.locator("#charts canvas")).to_have_count(4)
        second.ack()
        expect(page.locator(".tile", has_text="Acked").first.locator(".value")).to_have_text("1")
    expect(page.locator("#state")).to_have_text("stopped")


# ---- whatever it shows ----


def cut_off(server):
    """End a server without a last reading, as if its process had died."""
    server._server.force_exit = server._server.should_exit = True
    server._thread.join()


def serve_again(serve, source, port):
    """Serve at a port of before, which the connection of another program may have for some time."""
    deadline = time.monotonic() + LONG_SECS
    while True:
        try:
            return serve(source, port=port)
        except PageError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def test_a_lost_connection_is_told_and_found_again(visit, source, serve) -> None:
    first = serve(source)
    page = visit(first.url, allowed=AWAY)
    expect(page.locator("#link")).to_have_text("Live")
    cut_off(first)
    expect(page.locator("#link")).to_have_text(has_text("Connection lost at"))
    expect(page.locator("#age")).to_have_text(has_text("old"))
    expect(page.locator("body")).to_have_class("stale")
    serve_again(serve, source, first.port)
    expect(page.locator("#link")).to_have_text("Live")
    expect(page.locator("body")).not_to_have_class("stale")


def test_old_numbers_are_told(visit, source, server) -> None:
    page = visit(server.url)
    expect(page.locator("#link")).to_have_text("Live")
    source.fault = RuntimeError("no figures")
    expect(page.locator("#did")).to_have_text(has_text("cannot read its figures: RuntimeError: no figures"))
    expect(page.locator("#link")).to_have_text("No news from the program.")
    expect(page.locator("#age")).to_have_text(has_text("old"))
    source.fault = None
    expect(page.locator("#link")).to_have_text("Live")


@pytest.mark.slow
def test_empty_lists_explain_themselves(visit, server) -> None:
    page = visit(server.url)
    expect(page.locator("#trees .empty")).to_have_text(has_text("No tree is open. Each message stands here"))
    expect(page.locator("#failures .empty")).to_have_text(has_text("Nothing has failed"))
    expect(page.locator("#dead .empty")).to_have_text(has_text("No message was given up"))


def test_a_stuck_tree_is_the_headline_and_marked_in_the_drawing(visit, source, server) -> None:
    holder = {"component": "b", "task": 2, "how": "process", "for_ms": 42_000}
    trees = {"total": 1, "stuck": 1, "rows": [fake_tree("x", age_ms=42_000, holders=[holder])]}
    headline = {"tone": "bad", "text": "1 tree has been stuck at “b” for 42.0 s."}
    nodes = [fake_node("a", "spout"), fake_node("b", queue=100, busy=1.0, bottleneck=True)]
    graph = {"nodes": nodes, "edges": [fake_edge("a", "b")]}
    source.now = fake_view(headline=headline, open_trees=trees, timeout_ms=60_000, graph=graph)
    page = visit(server.url)
    expect(page.locator("#headline")).to_have_text(headline["text"])
    expect(page.locator("#headline")).to_have_class("headline bad")
    expect(page.locator("#drawing .node.stuck.bottleneck.full .tag")).to_have_text("bottleneck, stuck trees here")


@pytest.mark.slow
def test_nothing_jumps_when_numbers_grow(visit, source, server) -> None:
    source.now = fake_view(
        open_trees={"total": 1, "stuck": 0, "rows": [fake_tree("0")]}, failures={"rows": [failure(0)]}
    )
    page = visit(server.url)
    expect(page.locator("#drawing .node")).to_have_count(2)
    expect(page.locator("#failures tbody tr")).to_have_count(1)
    expect(page.locator("#charts canvas")).to_have_count(1)
    places = "[...document.querySelectorAll('main > *, h2')].map((each) => each.getBoundingClientRect().top)"
    before = page.evaluate(places)
    rows = [fake_tree(str(number), age_ms=number * 1000) for number in range(50)]
    failures = [failure(number) for number in range(50)]
    source.now = fake_view(open_trees={"total": 10_000, "stuck": 0, "rows": rows}, failures={"rows": failures})
    expect(page.locator("#trees tbody tr")).to_have_count(50)
    expect(page.locator("#failures tbody tr")).to_have_count(50)
    assert page.evaluate(places) == before


def failure(number):
    row = {"number": number, "at_ms": 1_000_000, "id": str(number), "spout": "a", "elapsed_ms": 5, "attempt": 1}
    return {**row, "kind": "failed", "component": "b", "task": 2, "why": "ValueError: no"}


@pytest.mark.slow
def test_rows_keep_the_focus_while_others_come(visit, source, server) -> None:
    def rows(*names):
        found = [fake_tree(name, age_ms=1_000) for name in names]
        return {"total": len(found), "stuck": 0, "rows": found}

    source.now = fake_view(open_trees=rows("one", "two"))
    page = visit(server.url)
    page.get_by_role("button", name="Fail the tree of two").focus()
    source.now = fake_view(open_trees=rows("zero", "one", "two", "three"))
    expect(page.locator("#trees tbody tr")).to_have_count(4)
    expect(page.get_by_role("button", name="Fail the tree of two")).to_be_focused()


@pytest.mark.slow
def test_it_works_by_keyboard(visit, server) -> None:
    page = visit(server.url)
    expect(page.locator("#actions button")).to_have_count(1)
    expect(page.locator("#drawing .node")).to_have_count(2)
    reached = []
    for _ in range(17):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    wanted = ["Skip to the page", "id", "Find", "Pause", "level", "drawing", "trees", "failures", "dead", "components"]
    assert [name for name in reached if name in wanted] == wanted


BIG = 200


def big_view(step=0):
    """200 components in ten layers, and as many rows as the server sends."""
    nodes = [fake_node("a", "spout"), *(fake_node(f"bolt-{n}", queue=(n + step) % 100) for n in range(BIG - 1))]
    edges = [fake_edge("a" if n < 20 else f"bolt-{n - 20}", f"bolt-{n}") for n in range(BIG - 1)]
    holders = [{"component": f"bolt-{n}", "task": n, "how": "queue", "for_ms": None} for n in range(8)]
    rows = [fake_tree(f"{step}-{n}", age_ms=n, holders=holders) for n in range(50)]
    trees = {"total": 10_000, "stuck": 10_000, "rows": rows}
    failures = {"rows": [failure(50 * step + n) for n in range(50)]}
    return fake_view(graph={"nodes": nodes, "edges": edges}, open_trees=trees, failures=failures)


ROUNDS = 10
# The longest task may take so many times as long as some work of the same browser; it takes once and a half as long.
LONG = 5
WORK = """() => {
    const start = performance.now();
    Array.from({ length: 200000 }, (_, index) => (index * 7919) % 200003).sort((one, other) => one - other);
    return performance.now() - start;
}"""


@pytest.mark.slow  # it takes long
def test_a_big_topology_does_not_freeze_it(visit, source, server) -> None:
    page = visit(server.url)
    expect(page.locator("#drawing .node")).to_have_count(2)
    page.evaluate(WORK)  # compiled from here on
    page.evaluate(
        "window.tasks = []; window.keep = (entries) => tasks.push(...entries.map((each) => each.duration));"
        " window.watch = new PerformanceObserver((list) => keep(list.getEntries()));"
        " watch.observe({ type: 'longtask' })"
    )
    ratios = []
    for step in range(1, ROUNDS + 1):
        source.now = big_view(step)
        expect(page.locator("#drawing .node")).to_have_count(BIG)
        expect(page.locator("#trees tbody tr").first).to_have_text(has_text(f"{step}-0"))
        tasks = page.evaluate("keep(watch.takeRecords()); window.tasks.splice(0)")
        ratios.append(max(tasks, default=0) / page.evaluate(WORK))
        page.evaluate("keep(watch.takeRecords()); window.tasks.splice(0)")  # that work
        if step < ROUNDS:
            source.now = fake_view()
            expect(page.locator("#drawing .node")).to_have_count(2)
    print(f"longest task of each round, by that work: {[round(each, 2) for each in ratios]}")
    assert median(ratios) < LONG
    # Some fifty for each component, its button for a flame graph among them.
    assert page.evaluate("document.querySelectorAll('*').length") < 11_000


@LOOKS
def test_axe_finds_nothing_serious(visit, shop, scheme, width) -> None:
    page = visit(shop.page.url_with_token, width=width, color_scheme=scheme, bypass_csp=True)
    expect(page.locator("#drawing .node")).to_have_count(3)
    expect(page.locator("#dead tbody tr")).to_have_count(1)
    found = Axe().run(page).response["violations"]
    serious = [
        (each["id"], node["target"], node["failureSummary"])
        for each in found
        if each["impact"] in {"serious", "critical"}
        for node in each["nodes"]
    ]
    assert serious == []


@pytest.mark.parametrize("big", slow_after(1, [False, True]), ids=["small", "big"])
def test_it_fits_a_narrow_screen(visit, source, server, big) -> None:
    if big:
        source.now = big_view()
    page = visit(server.url, width=375)
    expect(page.locator("#drawing .node").first).to_be_attached()
    assert page.evaluate("document.documentElement.scrollWidth") == 375


WORKER = ("layout_worker.js", "layout.js", "vendor/dagre.esm.js")


def test_the_page_weighs_little(visit, server) -> None:
    page = visit(server.url)
    expect(page.locator("#drawing .node")).to_have_count(2)
    sizes = page.evaluate("performance.getEntriesByType('resource').map((each) => [each.name, each.decodedBodySize])")
    document = page.evaluate("performance.getEntriesByType('navigation')[0].decodedBodySize")
    parts = {name.rpartition("/")[2]: size for name, size in sizes}
    assert {"page.js", "page.css", "uPlot.iife.min.js", "graph.js"} <= set(parts)
    static = sum(size for name, size in parts.items() if name != "events")
    worker = sum(len(ask(server, f"/static/{name}")[2]) for name in WORKER)
    assert document + static + worker <= 400_000


def test_the_policy_is_kept(visit, source, server) -> None:
    """No violation of the content security policy happens while the page works."""
    page = visit(server.url, allowed=("Content Security Policy",))
    page.evaluate("window.broken = []; addEventListener('securitypolicyviolation', (e) => broken.push(e.blockedURI))")
    source.now = big_view()
    expect(page.locator("#drawing .node")).to_have_count(BIG)
    assert page.evaluate("window.broken") == []
    refused = page.evaluate(
        "new Promise((done) => { addEventListener('securitypolicyviolation', () => done(true), { once: true });"
        " const script = document.createElement('script'); script.textContent = 'document.title = 1';"
        " document.body.append(script); setTimeout(() => done(false), 5000); })"
    )
    assert refused, "inline scripts are refused"
