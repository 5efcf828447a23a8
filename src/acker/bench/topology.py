"""Word count through the local runtime: what tracking costs, and how far all of it is from bare threads.

The lines of the standard library's sources go from a spout through a bolt that splits them to a bolt that counts, by
fields grouping. `tracked` and `untracked` are one topology but for the message ids; `threads` does the same with
threads and deques and nothing else. Every round runs afresh; its counts are compared with those of `Counter`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

from acker.bench.measure import Alternation, Case, Goal, Published, Ratio, Result, Scale, expect
from acker.local import Report, run
from acker.topology import Bolt, Grouping, Spout, Topology, Tuple
from acker.wordcount.corpus import default_input, find, read_lines

LINES: Final = 100_000
PAR: Final = 2  # tasks of each bolt, each a thread

TRACKED, UNTRACKED, THREADS = "tracked", "untracked", "threads"

# Context, never a comparison: other machines, other topologies, other languages.
PUBLISHED: Final = [
    Published("Storm, in one process, with acks", 1e6, "JVM on a laptop of 2015, apache/storm pull request 2241"),
    Published("FsShelter, self-hosted", 5350, ".NET"),
]


@dataclass(frozen=True)
class Text:
    """The lines of a run, and what counting their words must give."""

    lines: list[str]
    counts: Counter[str]

    @property
    def tuples(self) -> int:
        """How many tuples bolts process, and ack: every line and every word."""
        return len(self.lines) + self.counts.total()


def text(scale: Scale) -> Text:
    """Return lines of the standard library's sources, the same ones for the same Python."""
    corpus = find(default_input())
    every = (line for file in range(len(corpus.paths)) for line in read_lines(corpus.path(file)))
    lines = list(islice(every, scale.size(LINES, 20)))
    return Text(lines, Counter(" ".join(lines).split()))


def topology(lines: Sequence[str], *, tracked: bool) -> tuple[type[Topology], list[Counter[str]]]:
    """Return the word count, and the list that its counting tasks put their counts in."""
    counters: list[Counter[str]] = []

    class Lines(Spout):
        outputs = ("line",)

        def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:  # noqa: ARG002
            self._lines = enumerate(lines)

        def next_tuple(self) -> None:
            for number, line in self._lines:
                self.emit([line], tup_id=number if tracked else None)
                return
            self.finish()

    class Split(Bolt):
        outputs = ("word",)

        def process(self, tup: Tuple) -> None:
            for word in tup[0].split():
                self.emit([word])

    class Count(Bolt):
        def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:  # noqa: ARG002
            self._counts: Counter[str] = Counter()
            counters.append(self._counts)

        def process(self, tup: Tuple) -> None:
            self._counts[tup[0]] += 1

    class WordCount(Topology):
        lines = Lines.spec()
        split = Split.spec(inputs=[lines], par=PAR)
        count = Count.spec(inputs={split: Grouping.fields("word")}, par=PAR)

    return WordCount, counters


@dataclass(frozen=True)
class Counted:
    """What a round gave."""

    counters: list[Counter[str]]
    report: Report | None = None


def through_runtime(lines: Sequence[str], *, tracked: bool, conf: Mapping[str, Any] | None = None) -> Counted:
    """Count the words of lines with the local runtime, from its start to its end."""
    word_count, counters = topology(lines, tracked=tracked)
    report = run(word_count, conf, until="drained")
    return Counted(counters, report)


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
            # Whoever put something between the last look and the clearing saw the event set.
            if not items:
                filled.wait()


def through_threads(lines: Sequence[str]) -> Counted:
    """Count the words of lines with bare threads and deques: no topology, no bounds, no errors, nothing tracked."""
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
    for number, line in enumerate(lines):
        to_split[number % PAR].put(line)
    # The end overtakes nothing: it is put last, and into the counting ones once all that splits is through.
    for inboxes, threads in ((to_split, splitters), (to_count, counters)):
        for inbox in inboxes:
            inbox.put(None)
        for thread in threads:
            thread.join()
    return Counted(counts)


def _wall_ns(work: Callable[[], object]) -> int:
    """Return the nanoseconds that pass while `work` runs, with garbage collected as it is in production."""
    start = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - start


def _check(latencies: list[tuple[float, float]], side: str, load: Text, counted: Counted) -> None:
    """Compare counts with the plain ones, and remember the complete latencies of a tracked round."""
    found = sum(counted.counters, Counter[str]())
    wrong = [word for word in found.keys() | load.counts.keys() if found[word] != load.counts[word]]
    expect(f"words that {side} counted wrong, of {len(load.counts)}", wrong[:5], [])
    if counted.report is None:
        return
    tasks = counted.report.stats.tasks
    expect(f"how {side} ended", counted.report.outcome, "drained")
    expect(f"tuples that bolts acked, {side}", sum(t.acked for t in tasks if t.kind == "bolt"), load.tuples)
    if side == TRACKED:
        spout = next(task for task in tasks if task.kind == "spout")
        expect("trees that were acked", spout.acked, len(load.lines))
        p50, p99 = (spout.complete_latency.quantile(q) for q in (0.5, 0.99))
        latencies.append(((p50 or 0) / 1e6, (p99 or 0) / 1e6))


def throughput(scale: Scale, conf: Mapping[str, Any] | None = None) -> Result:
    """Time tracked, untracked and bare threads in turns, each from start to end."""
    load = text(scale)
    latencies: list[tuple[float, float]] = []
    sides: dict[str, Callable[[Text], Counted]] = {
        TRACKED: lambda load: through_runtime(load.lines, tracked=True, conf=conf),
        UNTRACKED: lambda load: through_runtime(load.lines, tracked=False, conf=conf),
        THREADS: lambda load: through_threads(load.lines),
    }
    taken = Alternation(sides, partial(_check, latencies), _wall_ns).run([load] * (scale.pairs + 1))
    return Result(
        "acked tuples/s",
        {side: [load.tuples / seconds * 1e9 for seconds in samples] for side, samples in taken.items()},
        [Ratio(TRACKED, UNTRACKED, scale.goal(Goal(at_least=0.65))), Ratio(TRACKED, THREADS)],
        {
            "lines": len(load.lines),
            "words": load.counts.total(),
            "par": PAR,
            "conf": dict(conf or {}),
            "complete_latency_ms": [{"p50": p50, "p99": p99} for p50, p99 in latencies[1:]],
        },
        {"tuples": load.tuples, "distinct_words": len(load.counts)},
        {TRACKED: goal} if (goal := scale.goal(Goal(at_least=150_000))) else {},
        PUBLISHED,
    )


def latency(scale: Scale) -> Result:
    """Ask how long a tree takes: under full load, and alone in the topology."""
    load = text(scale)
    few = Text(load.lines[: max(20, len(load.lines) // 20)], Counter())
    few.counts.update(" ".join(few.lines).split())
    samples: dict[str, list[float]] = {"p50": [], "p99": [], "alone, p50": [], "alone, p99": []}
    for _ in range(scale.pairs):
        for names, some, conf in (
            (("p50", "p99"), load, {}),
            (("alone, p50", "alone, p99"), few, {"topology.max.spout.pending": 1}),
        ):
            taken: list[tuple[float, float]] = []
            every = {"topology.stats.sample.rate": 1.0, **conf}
            _check(taken, TRACKED, some, through_runtime(some.lines, tracked=True, conf=every))
            for name, milliseconds in zip(names, taken[0], strict=True):
                samples[name].append(milliseconds)
    parameters = {"lines": len(load.lines), "lines_alone": len(few.lines), "par": PAR}
    return Result("ms", samples, [], parameters, {"tuples": load.tuples, "tuples_alone": few.tuples})


CASES: Final = [
    Case("topology/wordcount", "What does tracking cost a topology, and the runtime a program?", throughput),
    Case("topology/latency", "How long does a tree take to complete?", latency),
]
