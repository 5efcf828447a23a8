"""Benchmark of the live page: what a topology loses while somebody looks at it.

The word count of `topology.py` runs with a page and without one. A process of its own reads the events of the page, as
a browser does: it takes the history and each reading, and parses them. The clock runs from the first line to the last
ack; before it, the page is open, and its reader has the history.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from acker.local import LocalRuntime
from acker.ui import LivePage
from benchmarks.suite.measure import Alternation, Case, Goal, Ratio, Result, Scale, expect
from benchmarks.suite.topology import PAR, Counted, Text, Way, _check, _rates, text, topology

OPEN, WITHOUT = "page open", "no page"
# How often the lines are counted in a round: some readings have to fall into it.
TIMES: Final = 3

# Says "ready" when it has the history; at the end how many readings it has got, and how many bytes.
_READER: Final = """
import http.client, json, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
connection.request("GET", "/api/events")
readings = size = 0
for line in connection.getresponse():
    size += len(line)
    if line.startswith(b"data: "):
        event = json.loads(line[6:])
        if "times_ms" in event:
            print("ready", flush=True)
        readings += "sequence" in event
print(readings, size)
"""


@dataclass
class _Round:
    """What the rounds of one side share: the time of the last one, and what its readers have got."""

    took_ns: int = 0
    seen: list[dict[str, int]] = field(default_factory=list)

    def clock(self, work: Callable[[], object]) -> int:
        """Return the time of a round without its start and its end."""
        work()
        return self.took_ns


class _Gate:
    """Lines that begin when the gate opens."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self.opens = threading.Event()

    def __iter__(self) -> Iterator[str]:
        self.opens.wait()
        yield from self._lines


@contextlib.contextmanager
def _reader(port: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-S", "-c", _READER, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            expect("what the reader of the page says first", process.stdout.readline(), "ready\n")
            yield process
        finally:
            process.terminate()


def _count_words(shared: _Round, load: Text, *, is_open: bool) -> Counted:
    """Count words, with somebody looking or with nobody."""
    gate: Any = _Gate(load.lines)
    word_count, counters = topology(gate, Way())
    with contextlib.ExitStack() as stack:
        with contextlib.redirect_stderr(io.StringIO()):  # the URL, of each round
            runtime = stack.enter_context(LocalRuntime(word_count, ui=LivePage(port=0) if is_open else None))
        reader = None if runtime.page is None else stack.enter_context(_reader(runtime.page.port))
        start = time.perf_counter_ns()
        gate.opens.set()
        runtime.run_until("drained")
        shared.took_ns = time.perf_counter_ns() - start
        runtime.stop()  # The last reading ends the stream.
        if reader is not None:
            readings, size = reader.communicate()[0].split()
            shared.seen.append({"readings": int(readings), "bytes": int(size)})
    return Counted(counters, runtime.report())


def live_page(scale: Scale) -> Result:
    """Time the word count with an open page and without one, in turns."""
    load, shared = Text.of(TIMES * text(scale).lines), _Round()
    sides: dict[str, Callable[[Text], Counted]] = {
        OPEN: partial(_count_words, shared, is_open=True),
        WITHOUT: partial(_count_words, shared, is_open=False),
    }
    taken = Alternation(sides, partial(_check, []), shared.clock).run([load] * (scale.pairs + 1))
    expect("rounds whose reader got no reading", [each for each in shared.seen if not each["readings"]], [])
    return Result(
        "acked tuples/s",
        _rates(taken, load),
        [Ratio(OPEN, WITHOUT, scale.goal(Goal(at_least=0.97)))],
        {"lines": len(load.lines), "words": load.counts.total(), "par": PAR, "seen": shared.seen[1:]},
        {"tuples": load.tuples},
    )


CASES: Final = [Case("topology/live-page", "What does a topology lose while its live page is open?", live_page)]
