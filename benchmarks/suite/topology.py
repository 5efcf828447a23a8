"""Benchmarks of a word count in the local runtime: the cost of tracking, and the distance from bare threads.

A spout reads the lines of the standard library's sources, one bolt splits them, and another counts the words by fields
grouping. `tracked` and `untracked` differ in the message ids alone; `threads` does the same with threads and deques and
nothing else. Every round runs afresh; its counts are compared with those of `Counter`.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final

from acker.local import RunReport, run
from acker.topology import Bolt, Grouping, ReliableSpout, Spout, Topology
from benchmarks.suite.measure import Alternation, Case, Goal, Published, Ratio, Result, Scale, expect

LINES: Final = 100_000
PAR: Final = 2  # tasks of each bolt, each a thread

TRACKED, UNTRACKED, THREADS = "tracked", "untracked", "threads"

# Context, never a comparison: another machine, another topology, another language.
PUBLISHED: Final = [Published("FsShelter, self-hosted", 5350, ".NET")]


@dataclass(frozen=True)
class Text:
    """The lines of a run, and what counting their words must give."""

    lines: list[str]
    counts: Counter[str]

    @property
    def tuples(self) -> int:
        """How many tuples bolts process, and ack: every line and every word."""
        return len(self.lines) + self.counts.total()

    @classmethod
    def of(cls, lines: list[str]) -> Text:
        """Count some lines."""
        return cls(lines, Counter(" ".join(lines).split()))

    def head(self, count: int) -> Text:
        """Return the first lines."""
        return self.of(self.lines[:count])


def text(scale: Scale) -> Text:
    """Return lines of the standard library's sources, the same ones for the same Python."""
    # Not above: it needs what the command line needs, and a Python that only runs the topologies may lack that.
    from examples.wordcount import STDLIB, lines_of, text_files

    every = (line for name in text_files(STDLIB) for line in lines_of(STDLIB / name))
    return Text.of(list(islice(every, scale.size(LINES, 20))))


@dataclass(frozen=True)
class Way:
    """How the word count is run."""

    tracked: bool = True
    spout: type[Spout] = Spout
    par: int = PAR
    executors: int | None = None
    one_core: bool = False
    conf: Mapping[str, Any] = field(default_factory=dict)


def topology(lines: Sequence[str], way: Way) -> tuple[type[Topology], list[Counter[str]]]:
    """Return the word count, and the list that its counting tasks put their counts in."""
    counters: list[Counter[str]] = []
    tracked = way.tracked

    class Lines(way.spout):  # type: ignore[misc, name-defined]
        outputs = ("line",)

        def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:  # noqa: ARG002
            self._lines = enumerate(lines)

        def next_tuple(self) -> None:
            for number, line in self._lines:
                self.emit([line], tup_id=number if tracked else None)
                return
            self.finish()

    # The fields of a tuple are its attributes, which its type does not know.
    class Split(Bolt):
        outputs = ("word",)

        def process(self, tup: Any) -> None:
            for word in tup.line.split():
                self.emit([word])

    class Count(Bolt):
        def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:  # noqa: ARG002
            self._counts: Counter[str] = Counter()
            counters.append(self._counts)

        def process(self, tup: Any) -> None:
            self._counts[tup.word] += 1

    class WordCount(Topology):
        lines = Lines.spec()
        split = Split.spec(inputs=[lines], par=way.par, executors=way.executors)
        count = Count.spec(inputs={split: Grouping.fields("word")}, par=way.par, executors=way.executors)

    return WordCount, counters


@dataclass(frozen=True)
class Counted:
    """What a round gave."""

    counters: list[Counter[str]]
    report: RunReport | None = None


@contextmanager
def on_one_core() -> Iterator[None]:
    """Keep this thread, and the threads that it starts, on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def through_runtime(way: Way, load: Text) -> Counted:
    """Count words with the local runtime, from its start to its end."""
    word_count, counters = topology(load.lines, way)
    with on_one_core() if way.one_core else nullcontext():
        return Counted(counters, run(word_count, way.conf, until="drained"))


class _Inbox:
    """A deque that one thread reads; the others wake it."""

    def __init__(self) -> None:
        self._items: deque[str | None] = deque()
        self._filled = threading.Event()

    def put(self, item: str | None) -> None:
        self._items.append(item)
        if not self._filled.is_set():
            self._filled.set()

    def __iter__(self) -> Iterator[str]:
        """Give what was put in, up to as many ends as there are producers."""
        items, filled = self._items, self._filled
        while True:
            while items:
                item = items.popleft()
                if item is None:
                    return
                yield item
            filled.clear()
            # A thread that put an item between the last look and the clearing saw the event set.
            if not items:
                filled.wait()


def through_threads(load: Text) -> Counted:
    """Count words with bare threads and deques: no topology, no bounds, no errors, nothing tracked."""
    counts = [Counter[str]() for _ in range(PAR)]
    to_split = [_Inbox() for _ in range(PAR)]
    to_count = [_Inbox() for _ in range(PAR)]

    def split(inbox: _Inbox) -> None:
        for line in inbox:
            for word in line.split():
                to_count[hash(word) % PAR].put(word)

    def count(inbox: _Inbox, counter: Counter[str]) -> None:
        for word in inbox:
            counter[word] += 1

    splitters = [threading.Thread(target=split, args=(inbox,)) for inbox in to_split]
    counters = [threading.Thread(target=count, args=each) for each in zip(to_count, counts, strict=True)]
    for thread in [*splitters, *counters]:
        thread.start()
    for number, line in enumerate(load.lines):
        to_split[number % PAR].put(line)
    # The end overtakes nothing: it is put last, and into the counting ones once all that splits is through.
    for inboxes, threads in ((to_split, splitters), (to_count, counters)):
        for inbox in inboxes:
            inbox.put(None)
        for thread in threads:
            thread.join()
    return Counted(counts)


def wall_ns(work: Callable[[], object]) -> int:
    """Return the nanoseconds that pass while `work` runs, with garbage collected as it is in production."""
    start = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - start


def _check(latencies: list[tuple[float, float]], side: str, load: Text, counted: Counted) -> None:
    """Compare counts with the plain ones, and remember the complete latencies of a tracked round: p50 and p99 in ms."""
    found = sum(counted.counters, Counter[str]())
    wrong = [word for word in found.keys() | load.counts.keys() if found[word] != load.counts[word]]
    expect(f"words that {side} counted wrong, of {len(load.counts)}", wrong[:5], [])
    if counted.report is None:
        return
    tasks = counted.report.stats.tasks
    expect(f"how {side} ended", counted.report.outcome, "drained")
    expect(f"tuples that bolts acked, {side}", sum(t.acked for t in tasks if t.kind == "bolt"), load.tuples)
    spout = next(task for task in tasks if task.kind == "spout")
    if side != UNTRACKED:
        expect(f"trees that were acked, {side}", spout.acked, len(load.lines))
    if side == TRACKED:
        p50, p99 = (spout.complete_latency.quantile(q) for q in (0.5, 0.99))
        latencies.append(((p50 or 0) / 1e6, (p99 or 0) / 1e6))


def _rates(taken: Mapping[str, list[float]], load: Text) -> dict[str, list[float]]:
    return {side: [load.tuples / ns * 1e9 for ns in samples] for side, samples in taken.items()}


def throughput(scale: Scale) -> Result:
    """Time tracked, untracked and bare threads in turns, each from start to end."""
    load = text(scale)
    latencies: list[tuple[float, float]] = []
    sides: dict[str, Callable[[Text], Counted]] = {
        TRACKED: partial(through_runtime, Way()),
        UNTRACKED: partial(through_runtime, Way(tracked=False)),
        THREADS: through_threads,
    }
    taken = Alternation(sides, partial(_check, latencies), wall_ns).run([load] * (scale.pairs + 1))
    return Result(
        "acked tuples/s",
        _rates(taken, load),
        [Ratio(TRACKED, UNTRACKED, scale.goal(Goal(at_least=0.65))), Ratio(TRACKED, THREADS)],
        {
            "lines": len(load.lines),
            "words": load.counts.total(),
            "par": PAR,
            "complete_latency_ms": [{"p50": p50, "p99": p99} for p50, p99 in latencies[1:]],
        },
        {"tuples": load.tuples, "distinct_words": len(load.counts)},
        {TRACKED: goal} if (goal := scale.goal(Goal(at_least=150_000))) else {},
        PUBLISHED,
    )


# What else one might choose, all tracked. The default is two tasks and two threads a bolt, and 128 lines open.
WAYS: Final = {
    TRACKED: Way(),
    "ReliableSpout": Way(spout=ReliableSpout),
    "1 thread a bolt": Way(executors=1),
    "1 task a bolt": Way(par=1),
    "pending 1,024": Way(conf={"topology.max.spout.pending": 1024}),
    "pending 1,024, queues 1,024": Way(
        conf={"topology.max.spout.pending": 1024, "topology.executor.receive.buffer.size": 1024}
    ),
    "every tree's edges traced": Way(conf={"topology.trace.sample": 1}),
    "1 core": Way(one_core=True),
    "1 core, pending 1,024": Way(one_core=True, conf={"topology.max.spout.pending": 1024}),
}


def settings(scale: Scale) -> Result:
    """Time the ways to run it that a user can choose, in turns."""
    load = text(scale._replace(divisor=2 * scale.divisor))
    can_choose_cores = hasattr(os, "sched_setaffinity")  # not on macOS and Windows
    ways = {name: way for name, way in WAYS.items() if can_choose_cores or not way.one_core}
    sides = {name: partial(through_runtime, way) for name, way in ways.items()}
    taken = Alternation(sides, partial(_check, []), wall_ns).run([load] * (scale.pairs + 1))
    ratios = [Ratio(name, TRACKED) for name in ways if name != TRACKED]
    if can_choose_cores:
        ratios.append(Ratio("1 core, pending 1,024", "pending 1,024"))
    parameters = {"lines": len(load.lines), "words": load.counts.total(), "par": PAR}
    return Result("acked tuples/s", _rates(taken, load), ratios, parameters, {"tuples": load.tuples})


def latency(scale: Scale) -> Result:
    """Ask how long a tree takes: under full load, and alone in the topology."""
    load = text(scale)
    few = load.head(max(20, len(load.lines) // 20))
    samples: dict[str, list[float]] = {"p50": [], "p99": [], "alone, p50": [], "alone, p99": []}
    for _ in range(scale.pairs):
        taken: list[tuple[float, float]] = []
        _check(taken, TRACKED, load, through_runtime(Way(), load))
        _check(taken, TRACKED, few, through_runtime(Way(conf={"topology.max.spout.pending": 1}), few))
        for name, milliseconds in zip(samples, [*taken[0], *taken[1]], strict=True):
            samples[name].append(milliseconds)
    parameters = {"lines": len(load.lines), "lines_alone": len(few.lines), "par": PAR}
    return Result("ms", samples, [], parameters, {"tuples": load.tuples, "tuples_alone": few.tuples})


CASES: Final = [
    Case("topology/wordcount", "What does tracking cost a topology, and the runtime a program?", throughput),
    Case("topology/settings", "What do options and parallelism change?", settings),
    Case("topology/latency", "How long does a tree take to complete?", latency),
]
