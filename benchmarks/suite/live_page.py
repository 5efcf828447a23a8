"""Benchmarks of the live page: what topologies and a consumer cost more while somebody looks at them.

The word count of `topology.py`, a consumer of a broker in memory, and the word count on Spark run with a page and
without one, in turns. A process of its own reads the events of the page, as a browser does: it takes the history and
each reading, which come once a second, and parses them. What counts is the processor time of all threads of this
process, the page's included, and on Spark also that of the JVM and of its Python workers, from the first line to the
last ack; before it, the page is open, and its reader has the history.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from acker.connectors import Consumer
from acker.local import LocalRuntime
from acker.testing.connectors import MemoryBroker, MemorySource
from acker.ui import LivePage
from benchmarks.suite.measure import Alternation, Case, Goal, Ratio, Result, Scale, expect, per
from benchmarks.suite.spark_topologies import FOLDER, WORDS_A_LINE, WordCount, write_lines
from benchmarks.suite.streaming import streaming_session
from benchmarks.suite.topology import PAR, Counted, Text, Way, _check, text, topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPEN, WITHOUT = "page open", "no page"
GOAL: Final = Goal(at_most=1.03)
# How often the lines are counted in a round, and how many messages are consumed: some readings have to fall into it.
TIMES: Final = 6
MESSAGES: Final = 400_000
# On Spark each file is a micro-batch. The JVM goes on compiling for some rounds.
LINES: Final = 250_000
FILES: Final = 10
_WARM_UP_PAIRS: Final = 3
_PAIRS_MAX: Final = 9

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
    """What the rounds of one case share: the processor time of the last one, and what its readers have got."""

    took_ns: int = 0
    seen: list[dict[str, int]] = field(default_factory=list)

    def clock(self, work: Callable[[], object]) -> int:
        """Return the time of a round without its start and its end."""
        work()
        return self.took_ns

    @contextlib.contextmanager
    def timed(self, now: Callable[[], int] = time.process_time_ns) -> Iterator[None]:
        """Take the processor time of what runs meanwhile."""
        start = now()
        yield
        self.took_ns = now() - start

    def note(self, reader: subprocess.Popen[str] | None) -> None:
        """Note what a reader has got, once the last reading has ended its stream."""
        if reader is not None:
            readings, size = reader.communicate()[0].split()
            self.seen.append({"readings": int(readings), "bytes": int(size)})

    def result(
        self, taken: dict[str, list[float]], scale: Scale, units: int, *, warm_up: int = 1, **parameters: Any
    ) -> Result:
        """Return the samples as nanoseconds for each of so many units."""
        expect("rounds whose reader got no reading", [each for each in self.seen if not each["readings"]], [])
        return Result(
            f"ns of processor time a {parameters.pop('unit')}",
            per(taken, units),
            [Ratio(OPEN, WITHOUT, scale.goal(GOAL))],
            {**parameters, "seen": self.seen[warm_up:]},
            {"units": units},
        )


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


def _page(is_open: bool) -> LivePage | None:
    return LivePage(port=0) if is_open else None


def _count_words(shared: _Round, load: Text, *, is_open: bool) -> Counted:
    """Count words, with somebody looking or with nobody."""
    gate: Any = _Gate(load.lines)
    word_count, counters = topology(gate, Way())
    with contextlib.ExitStack() as stack:
        with contextlib.redirect_stderr(io.StringIO()):  # the URL, of each round
            runtime = stack.enter_context(LocalRuntime(word_count, ui=_page(is_open)))
        reader = None if runtime.page is None else stack.enter_context(_reader(runtime.page.port))
        with shared.timed():
            gate.opens.set()
            runtime.run_until("drained")
        runtime.stop()
        shared.note(reader)
    return Counted(counters, runtime.report())


def _consume(shared: _Round, count: int, *, is_open: bool) -> int:
    """Consume messages, with somebody looking or with nobody; return how many were acked."""
    broker = MemoryBroker()
    with contextlib.ExitStack() as stack:
        with contextlib.redirect_stderr(io.StringIO()):
            consumer = stack.enter_context(Consumer(MemorySource(broker), open_max=1_000, ui=_page(is_open)))
        reader = None if consumer.page is None else stack.enter_context(_reader(consumer.page.port))
        broker.publish(b"x" * 200 for _ in range(count))
        with shared.timed():
            for number, message in enumerate(consumer, 1):
                with message, message.child():
                    pass
                if number == count:
                    break
        consumer.close()
        shared.note(reader)
    return broker.counts["acked"]


def live_page(scale: Scale) -> Result:
    """Time the word count with an open page and without one, in turns."""
    load, shared = Text.of(TIMES * text(scale).lines), _Round()
    sides: dict[str, Callable[[Text], Counted]] = {
        OPEN: partial(_count_words, shared, is_open=True),
        WITHOUT: partial(_count_words, shared, is_open=False),
    }
    taken = Alternation(sides, partial(_check, []), shared.clock).run([load] * (scale.pairs + 1))
    lines, words = len(load.lines), load.counts.total()
    return shared.result(taken, scale, load.tuples, unit="tuple", lines=lines, words=words, par=PAR)


def live_consumer(scale: Scale) -> Result:
    """Time a consumer with an open page and without one, in turns."""
    count, shared = scale.size(MESSAGES, 20), _Round()
    sides: dict[str, Callable[[int], int]] = {
        OPEN: partial(_consume, shared, is_open=True),
        WITHOUT: partial(_consume, shared, is_open=False),
    }

    def check(side: str, count: int, acked: int) -> None:
        expect(f"messages acked with {side}", acked, count)

    taken = Alternation(sides, check, shared.clock).run([count] * (scale.pairs + 1))
    return shared.result(taken, scale, count, unit="message", messages=count)


def _family_ns(but: int | None = None) -> int:
    """Return the processor time of this process and of all below it, those that have ended included, in /proc's ticks.

    Parameters
    ----------
    but : int, optional
        A process that does not count.
    """
    ticks: dict[int, int] = {}
    below: dict[int, list[int]] = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended; its parent counts it
            # The name stands in brackets and may hold anything.
            fields = path.read_text("ascii", "replace").rpartition(")")[2].split()
            number = int(path.parent.name)
            below[int(fields[1])].append(number)
            ticks[number] = sum(map(int, fields[11:15]))
    family = [os.getpid()]
    for number in family:
        family += [child for child in below[number] if child != but]
    return sum(ticks[number] for number in family) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def _count_on_spark(shared: _Round, spark: SparkSession, lines: int, files: list[Path], *, is_open: bool) -> int:
    """Count the words of files, each in a micro-batch, with somebody looking or with nobody; return how many."""
    from acker.spark.topologies.run import run_until
    from acker.spark.topologies.spark_runtime import SparkRuntime

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        source, checkpoint = folder / "in", str(folder / "checkpoint")
        source.mkdir()
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))  # the URL, of each round
        runtime = SparkRuntime(WordCount, {FOLDER: str(source)}, spark, checkpoint=checkpoint, ui=_page(is_open))
        stack.callback(runtime.release)
        runs = stack.enter_context(ThreadPoolExecutor(1)).submit(run_until, runtime, lines, checkpoint, "0 seconds")
        stack.callback(runtime.stop)
        runtime.lifecycle.running.wait()
        reader = None if runtime.page is None else stack.enter_context(_reader(runtime.page.port))
        with shared.timed(partial(_family_ns, None if reader is None else reader.pid)):
            for file in files:
                os.link(file, source / file.name)
            runs.result()
        shared.note(reader)
    return runtime.report().stats.components()["count"].executed


def live_spark(scale: Scale) -> Result:
    """Time the word count as a stream on Spark with an open page and without one, in turns."""
    pairs, warm_up = (min(scale.pairs, _PAIRS_MAX), _WARM_UP_PAIRS) if scale.divisor == 1 else (scale.pairs, 1)
    count, lines, shared = scale.size(FILES, 2), scale.size(LINES, 100), _Round()
    with tempfile.TemporaryDirectory() as name, streaming_session() as spark:
        folder = Path(name) / "files"
        write_lines(folder, lines, count)
        files = sorted(folder.iterdir())
        sides: dict[str, Callable[[list[Path]], int]] = {
            OPEN: partial(_count_on_spark, shared, spark, lines, is_open=True),
            WITHOUT: partial(_count_on_spark, shared, spark, lines, is_open=False),
        }

        def check(side: str, load: list[Path], counted: int) -> None:  # noqa: ARG001
            expect(f"words counted on Spark with {side}", counted, lines * WORDS_A_LINE)

        taken = Alternation(sides, check, shared.clock).run([files] * (pairs + warm_up), warm_up)
        master = spark.sparkContext.master
    tuples = lines * (1 + WORDS_A_LINE)
    return shared.result(
        taken, scale, tuples, warm_up=warm_up, unit="tuple", lines=lines, micro_batches=count, master=master
    )


def _why_not() -> str | None:
    return None if Path("/proc/self/stat").exists() else "it takes the processor time of all processes from /proc"


CASES: Final = [
    Case("topology/live-page", "What does a topology cost more while its live page is open?", live_page),
    Case("connectors/live-page", "And a consumer, one child a message?", live_consumer),
    Case("spark/live-page", "And a topology as a stream on Spark?", live_spark, ("pyspark",), _why_not),
]
