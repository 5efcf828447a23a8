"""Frozen pages: one file, opened in a real browser without a server."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from acker.local import Abandoned, LocalRuntime, RunReport, run
from acker.local.page.report_view import report_view
from acker.topology import Bolt, ReliableSpout, Topology
from acker.ui import LivePage, frozen
from acker.ui.frozen import freeze
from tests.figures import Runtime
from tests.ui.conftest import LOOKS
from tests.ui.fakes import ask, fake_edge, fake_node, fake_tree, fake_view

SCRIPT = "</script><script>document.title = 'stolen'</script><img src=x onerror=\"document.title = 'stolen'\">"
expect.set_options(timeout=120_000)


class Lines(ReliableSpout):
    outputs = ["line"]
    attempts_max = 1

    def initialize(self, conf, context):
        self.rest = ["a", "b", "c", f"bad {SCRIPT}"]

    def next_tuple(self):
        if not self.rest:
            return self.finish()
        line = self.rest.pop()
        self.emit([line], tup_id=line)
        return None


class Check(Bolt):
    outputs = ["line"]

    def process(self, tup):
        if "bad" in tup.line:
            raise ValueError(tup.line)
        self.emit([tup.line])


class Bill(Bolt):
    def process(self, tup):
        self.report_metric(SCRIPT, 1)


class Shop(Topology):
    lines = Lines.spec()
    check = Check.spec(inputs=[lines])
    bill = Bill.spec(inputs=[check])


@pytest.fixture(scope="module")
def report() -> RunReport:
    return run(Shop, {"topology.max.restarts": 0}, until="drained")


@pytest.fixture
def show(visit, tmp_path):
    """Write a page to a file, and open that."""

    def open_page(text: str, **options: Any):
        path = tmp_path / "report.html"
        path.write_text(text, encoding="utf-8")
        page = visit(path.as_uri(), **options)
        page.evaluate(
            "window.broken = []; addEventListener('securitypolicyviolation', (e) => broken.push(e.blockedURI))"
        )
        return page

    return open_page


def tile(page, name: str):
    return page.locator(".tile", has=page.get_by_text(name, exact=True)).locator(".value")


def test_a_report_is_the_page_and_its_numbers_are_those_of_the_run(show, report) -> None:
    page = show(freeze(report_view(report, Shop.graph())))
    expect(page.locator("h1")).to_have_text("Shop")
    expect(page.locator("#headline")).to_have_text(re.compile(r"^Finished, with .*\. 1 failed, 1 dead letter\.$"))
    expect(page.locator("#link")).to_have_text(re.compile(r"^Frozen: it shows .*20\d\d.*, and does not change\.$"))
    totals = report.stats.totals
    for name, count in {
        "Acked": totals.acked,
        "Failed": totals.failed,
        "Dead letters": totals.dead_letters,
        "Tuples emitted": totals.emitted_total,
    }.items():
        expect(tile(page, name)).to_have_text(f"{count:,}")
    assert page.locator("#drawing .node .name").all_text_contents() == ["lines", "check", "bill"]
    expect(page.locator("#drawing .edge")).to_have_count(2)
    cells = page.locator("#components tbody tr", has_text="check").locator("td").all_text_contents()
    check = report.stats.components()["check"]
    assert cells[4:8] == [f"{n:,}" for n in (check.executed, check.emitted_total, check.acked, check.failed)]
    expect(page.locator("#histograms canvas")).to_have_count(3)


def test_what_a_run_recorded_is_in_its_report(show) -> None:
    page_options = LivePage(serve=False, interval_secs=0.01)
    with LocalRuntime(Shop, {"topology.max.restarts": 0}, ui=page_options) as runtime:
        runtime.run_until("drained")
    assert runtime.page is None
    last, history = runtime.live.recorded()
    page = show(freeze(report_view(runtime.report(), Shop.graph(), last=last), history))
    expect(page.locator("#failures tbody tr")).to_have_text(re.compile("failed in check.*ValueError"))
    expect(page.locator("#dead tbody tr")).to_have_text(re.compile(re.escape(f"bad {SCRIPT}")))
    expect(page.locator("#events")).to_have_text(re.compile("stopped"))
    expect(page.locator("#charts canvas")).to_have_count(0 if history is None else 5)
    assert page.locator("img").count() == 0


@pytest.mark.slow
def test_nothing_can_be_done_on_it(show, report) -> None:
    page = show(freeze(report_view(report, Shop.graph())))
    expect(page.locator("#drawing .node")).to_have_count(3)
    assert page.locator("button:visible, input, select, form, a[href^='/']").count() == 0
    live = {"actions": ["pause", "fail", "replay", "log-level"], "open_trees": trees(fake_tree("one"))}
    page = show(freeze(fake_view(**live)))
    expect(page.locator("#trees tbody tr")).to_have_count(1)
    assert page.locator("button:visible, input, select, form, a[href^='/']").count() == 0


def trees(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"total": len(rows), "stuck": 0, "rows": list(rows)}


def test_what_users_wrote_is_text(show, report) -> None:
    told = {"error": f"ValueError: {SCRIPT}", "stalls": (SCRIPT,), "abandoned": (Abandoned("bill", 3, SCRIPT),)}
    bad = RunReport(topology=f"Shop {SCRIPT}", outcome="failed", started_at="", seconds=1.0, stats=report.stats, **told)
    page = show(freeze(report_view(bad, Shop.graph())))
    expect(page.locator("h1")).to_have_text(f"Shop {SCRIPT}")
    expect(page.locator("#texts")).to_have_text(re.compile(re.escape(f"ValueError: {SCRIPT}")))
    expect(page.locator("#tables")).to_have_text(re.compile(re.escape(f"bill: {SCRIPT}")))
    assert page.title() == f"Shop {SCRIPT} \N{MIDDLE DOT} acker" and page.locator("img").count() == 0
    row = fake_tree(SCRIPT, holders=[{"component": SCRIPT, "task": 1, "how": "queue", "for_ms": None}])
    graph = {"nodes": [fake_node(SCRIPT, "spout"), fake_node("b")], "edges": [fake_edge(SCRIPT, "b")]}
    page = show(freeze(fake_view(open_trees=trees(row), graph=graph)))
    expect(page.locator("#trees td.id")).to_have_text(SCRIPT)
    expect(page.locator("#drawing .node")).to_have_count(2)
    assert page.locator("img").count() == 0 and page.title() == "Fake \N{MIDDLE DOT} acker"


@pytest.mark.slow
def test_the_charts_are_kept_where_there_are_any(show) -> None:
    history = {"times_ms": [1_000, 2_000, 3_000], "series": {"throughput.acked": [1.0, 2.0, 1.5]}}
    page = show(freeze(fake_view(at_ms=3_000), history))
    expect(page.locator("#charts canvas")).to_have_count(1)
    expect(page.locator("#charts .plot")).to_have_attribute("aria-label", "Throughput: acked 1.5 trees/s")
    page = show(freeze(fake_view()))
    expect(page.locator("#drawing .node")).to_have_count(2)
    expect(page.locator("#charts")).to_be_hidden()


def test_a_live_page_can_be_saved(show, source, serve) -> None:
    source.now = fake_view(open_trees=trees(fake_tree("one")))
    status, headers, body = ask(serve(source), "/frozen.html")
    assert status == 200 and headers["content-disposition"] == 'attachment; filename="Fake.html"'
    page = show(body.decode())
    expect(page.locator("#trees tbody tr")).to_have_count(1)
    expect(page.locator("#charts canvas")).to_have_count(1)
    expect(page.locator("#link")).to_have_text(re.compile("^Frozen: "))


def test_the_policy_of_the_file_refuses_every_other_script_and_host(show, report) -> None:
    page = show(freeze(report_view(report, Shop.graph())), allowed=("Content Security Policy",))
    expect(page.locator("#histograms canvas")).to_have_count(3)
    assert page.evaluate("window.broken") == []
    refused = page.evaluate(
        "(async () => { const refused = () => new Promise((done) =>"
        " addEventListener('securitypolicyviolation', () => done(true), { once: true }));"
        " const script = document.createElement('script'); script.textContent = 'document.title = 1';"
        " const inline = refused(); document.body.append(script);"
        " const far = refused(); fetch('https://example.invalid/').catch(() => {});"
        " return [await inline, await far]; })()"
    )
    assert refused == [True, True]
    page.hosts.discard("example.invalid")


@LOOKS
def test_axe_finds_nothing_serious_and_it_fits(show, report, scheme, width) -> None:
    page = show(freeze(report_view(report, Shop.graph())), width=width, color_scheme=scheme, bypass_csp=True)
    expect(page.locator("#histograms canvas")).to_have_count(3)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    found = Axe().run(page).response["violations"]
    serious = [(each["id"], node["target"]) for each in found for node in each["nodes"] if is_serious(each)]
    assert serious == []


def is_serious(violation: dict[str, Any]) -> bool:
    return violation["impact"] in {"serious", "critical"}


def test_without_a_script_the_file_says_so(show) -> None:
    page = show(freeze(fake_view()), java_script_enabled=False)
    expect(page.locator("noscript p, body > p")).to_have_text("This page needs JavaScript.")


def test_all_that_the_modules_import_is_in_the_file() -> None:
    imported = {name for module in frozen._MODULES for name in re.findall(r'from "\./([^"]+)"', frozen._read(module))}
    assert imported | {"frozen.js"} == set(frozen._MODULES)
    assert re.findall(r'import "acker/([^"]+)"', frozen._START) == ["frozen.js"]


def test_the_file_is_small_and_names_the_licences() -> None:
    runtime = Runtime()
    report = RunReport(topology="T", outcome="drained", started_at="", seconds=1.0, stats=runtime.stats())
    text = freeze(report_view(report, Shop.graph()))
    assert len(text.encode()) < 250_000
    for part in ("uPlot", "dagre", "Permission is hereby granted"):
        assert part in text.partition("<body>")[0]
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert data["view"]["name"] == "T" and data["history"] is None
