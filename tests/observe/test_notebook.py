"""Figures in notebooks: tables of HTML, and a cell that changes, in a real kernel."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from jupyter_client.manager import start_new_kernel

from acker.errors import RuntimeStateError
from acker.local import Abandoned, RunReport, watch
from acker.observe.durations import format_ns
from tests.figures import Runtime

SCRIPT = "<script>alert(1)</script>"
WAIT_SECS = 120

PROGRAM = """
import threading
from acker.local import LocalRuntime, watch
from acker.topology import Bolt, ReliableSpout, Topology

class Lines(ReliableSpout):
    outputs = ["line"]
    def initialize(self, conf, context):
        self.rest = list("abc")
    def next_tuple(self):
        if self.rest:
            line = self.rest.pop()
            self.emit([line], tup_id=line)

class Count(Bolt):
    def process(self, tup):
        pass

class Words(Topology):
    lines = Lines.spec()
    count = Count.spec(inputs=[lines])

runtime = LocalRuntime(Words).start()
_ = runtime.run_until(3)
"""


@pytest.fixture(scope="module")  # its client keeps an event loop for the whole process
def run_cell():
    """Run cells in a kernel: yield a function that returns the kernel's messages up to one that fits."""
    manager, client = start_new_kernel()

    def run(code: str, wanted) -> list[dict]:
        sent = client.execute(code)
        found = []
        while not found or not wanted(found[-1]):
            message = client.get_iopub_msg(timeout=WAIT_SECS)
            assert message["msg_type"] != "error", message["content"]["traceback"]
            # The kernel may still say that it is done with what the client asked before.
            if not is_idle(message) or message["parent_header"].get("msg_id") == sent:
                found.append(message)
        return found

    yield run
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def is_idle(message: dict) -> bool:
    return message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"


def shown_html(message: dict) -> str:
    return message["content"].get("data", {}).get("text/html", "")


def test_a_cell_is_updated_until_the_runtime_has_stopped(run_cell) -> None:
    run_cell(PROGRAM, is_idle)
    messages = run_cell("watch(runtime, interval_secs=0.05)", is_idle)
    (shown,) = [each for each in messages if each["msg_type"] == "display_data"]
    display_id = shown["content"]["transient"]["display_id"]
    assert "<caption>Words: running, " in shown_html(shown)
    messages = run_cell("runtime.stop()", lambda each: "Words: stopped" in shown_html(each))
    last = messages[-1]
    assert last["msg_type"] == "update_display_data" and last["content"]["transient"]["display_id"] == display_id
    assert re.search(r"<td>Words</td><td>topology</td><td>2</td>.*<td>3</td>", shown_html(last))


def test_it_needs_a_notebook() -> None:
    with pytest.raises(RuntimeStateError, match="no cell of a notebook"):
        watch(Runtime())


def test_stats_are_a_table_with_their_numbers() -> None:
    stats = Runtime().value
    table = stats._repr_html_()
    assert "<caption>WordCount: running, 2.0 s, restarts: 1</caption>" in table
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)][1:]
    assert [row[:5] for row in rows] == [
        ["lines", "spout", "1", "11", "99"],
        ["split", "bolt", "1", "50", "10"],
        ["WordCount", "topology", "2", "61", "10"],
    ]
    assert rows[0][11:] == [*(format_ns(stats.totals.complete_latency.quantile(q)) for q in (0.5, 0.99)), "0.25"]


def test_a_report_says_how_it_ended_and_escapes_what_it_quotes() -> None:
    stats = replace(Runtime().value, topology=SCRIPT)
    report = RunReport(
        topology=SCRIPT,
        outcome="failed",
        started_at="",
        seconds=2.0,
        stats=stats,
        error=f"ValueError: {SCRIPT}",
        abandoned=(Abandoned("split", 2, ""),),
    )
    shown = report._repr_html_()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;: failed, 2.0 s</caption>" in shown
    assert shown.startswith("<p>Stopped with an error: ValueError: &lt;script&gt;alert(1)&lt;/script&gt;. 1 abandoned")
    assert "<pre>ValueError: &lt;script&gt;" in shown and "<script" not in shown
    assert len(shown) < 3_000
