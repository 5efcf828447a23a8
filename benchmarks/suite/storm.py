"""Benchmarks of `acker.local` against Apache Storm's LocalCluster, which runs the same word count on the same lines.

One spout, two tasks that split lines, two that count words by fields grouping, one acker; all else is what both have by
default. Both run for ever: they warm up, and then take turns of some seconds, while the other side stands still (the
JVM is stopped by a signal, the local runtime is paused). After each turn all tuples under way are processed, and the
counts of all words are compared with those of `Counter`. Storm is a process of its own; this module drives it by lines
on its standard input (benchmarks/storm/WordCount.java).
"""

from __future__ import annotations

import json
import math
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from acker.local import Histogram, LocalRuntime
from acker.topology import Bolt, Grouping, Spout, Topology
from benchmarks.suite.measure import Case, Goal, Ratio, Result, Scale, expect
from benchmarks.suite.topology import PAR, Text, text

ACKER, STORM = "acker", "Storm"
_SCRIPT: Final = Path(__file__).resolve().parents[2] / "scripts/storm.py"
_BOUNDS_NS: Final = Histogram().bounds_ns

_ROUNDS: Final = 5
# Seconds of a turn, and what goes before its clock: what was under way at the last one was processed, so queues fill.
_TURN_S: Final = 3.5
_SETTLE_S: Final = 0.5
# The JVM compiles for that long; Python's dicts and caches only fill.
_WARM_UP_S: Final = {ACKER: 4.0, STORM: 12.0}
_LEAST_S: Final = 0.3
_DRAIN_MAX_S: Final = 60


class Mode(NamedTuple):
    """How the spouts emit: with message ids or without, as fast as may be or a line each so many nanoseconds."""

    tracked: bool = True
    interval_ns: int = 0


class Reading(NamedTuple):
    """What a side has done since its start.

    Attributes
    ----------
    ns, cpu_ns : int
        A clock, and the processor time of all threads of the process.
    processed : int
        Tuples that bolts have processed and acked: lines and words.
    emitted, acked, failed : int
        Lines that the spout emitted; trees whose outcome it received.
    latencies : tuple of int
        The complete latencies of acked trees, by bucket of acker's `Histogram`.
    """

    ns: int
    cpu_ns: int
    processed: int
    emitted: int
    acked: int
    failed: int
    latencies: tuple[int, ...]


class Turn(NamedTuple):
    """What a side did between two readings."""

    begin: Reading
    end: Reading

    @property
    def seconds(self) -> float:
        """Of the clock."""
        return (self.end.ns - self.begin.ns) / 1e9

    @property
    def cpu_seconds(self) -> float:
        """Of processor time."""
        return (self.end.cpu_ns - self.begin.cpu_ns) / 1e9

    @property
    def processed(self) -> int:
        """Tuples, as in `Reading`."""
        return self.end.processed - self.begin.processed

    def quantile_ms(self, share: float) -> float:
        """Return the complete latency that this share of the trees took at most."""
        counts = tuple(late - early for early, late in zip(self.begin.latencies, self.end.latencies, strict=True))
        return (Histogram(_BOUNDS_NS, counts, sum(counts)).quantile(share) or 0) / 1e6


class Side(ABC):
    """A word count that runs for ever and can be made to stand still."""

    name: str

    @abstractmethod
    def open(self, mode: Mode) -> None:
        """Let the spout emit."""

    @abstractmethod
    def read(self) -> Reading:
        """Return what was done so far."""

    @abstractmethod
    def close(self) -> Reading:
        """Stop the spout, wait until all that it emitted is processed, stand still, and return what was done."""

    @abstractmethod
    def counts(self) -> Counter[str]:
        """Return the counts of all words, after `close`."""

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...


# ---- acker ----------------------------------------------------------------------------------------------------------


class Feed:
    """What the spout emits, and how; set while it is paused."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.mode = Mode()
        self.emitted = self.tracked = 0
        self.due_ns = 0
        self.started, self.stopped = threading.Event(), threading.Event()


def word_count(load: Text) -> tuple[type[Topology], Feed, list[Any]]:
    """Return the topology, what feeds its spout, and the list that its counting tasks put their counts in."""
    feed, counted = Feed(load.lines), list[dict[str, int]]()

    class Lines(Spout):
        outputs = ("line",)

        def activate(self) -> None:
            self._mode, self._next = feed.mode, feed.emitted % len(feed.lines)
            feed.started.set()

        def deactivate(self) -> None:
            feed.stopped.set()

        def next_tuple(self) -> None:
            tracked, interval_ns = self._mode
            if interval_ns:
                if time.perf_counter_ns() < feed.due_ns:
                    return
                feed.due_ns += interval_ns
            line = feed.lines[self._next]
            self._next = (self._next + 1) % len(feed.lines)
            feed.emitted += 1
            if tracked:
                feed.tracked += 1
                self.emit([line], tup_id=feed.emitted)
            else:
                self.emit([line])

    # The fields of a tuple are its attributes, which its type does not know.
    class Split(Bolt):
        outputs = ("word",)

        def process(self, tup: Any) -> None:
            for word in tup.line.split():
                self.emit([word])

    class Count(Bolt):
        def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:  # noqa: ARG002
            self._counts: dict[str, int] = {}
            counted.append(self._counts)

        def process(self, tup: Any) -> None:
            word, counts = tup.word, self._counts
            counts[word] = counts.get(word, 0) + 1

    class WordCount(Topology):
        lines = Lines.spec()
        split = Split.spec(inputs=[lines], par=PAR)
        count = Count.spec(inputs={split: Grouping.fields("word")}, par=PAR)

    return WordCount, feed, counted


# The topology, what feeds its spout, and the list that its counting tasks put their counts in.
WordCountParts = tuple[type[Topology], Feed, list[Any]]


class AckerSide(Side):
    """The local runtime, in this process."""

    name = ACKER

    def __init__(self, load: Text, pending: int, make: Callable[[Text], WordCountParts] = word_count) -> None:
        topology, self._feed, self._counted = make(load)
        self._runtime = LocalRuntime(topology, {"topology.max.spout.pending": pending})

    def __enter__(self) -> Self:
        # It emits nothing until it is opened.
        self._feed.mode, self._feed.due_ns = Mode(interval_ns=1), time.perf_counter_ns() + 10**18
        self._runtime.start()
        self._feed.started.wait(_DRAIN_MAX_S)
        self.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._runtime.stop()

    def open(self, mode: Mode) -> None:
        """Let the spout emit."""
        self._feed.mode, self._feed.due_ns = mode, time.perf_counter_ns()
        self._feed.started.clear()
        self._runtime.resume()
        self._feed.started.wait(_DRAIN_MAX_S)

    def read(self) -> Reading:
        """Return what was done so far."""
        parts = self._runtime.stats().components()
        spout = parts["lines"]
        processed = parts["split"].acked + parts["count"].acked
        latencies = spout.complete_latency.counts
        now = time.perf_counter_ns(), time.process_time_ns()
        return Reading(*now, processed, self._feed.emitted, spout.acked, spout.failed, latencies)

    def close(self) -> Reading:
        """Stop the spout, and wait until all that it emitted is processed."""
        self._feed.stopped.clear()
        self._runtime.pause()
        self._feed.stopped.wait(_DRAIN_MAX_S)
        patience = time.monotonic() + _DRAIN_MAX_S
        while not self._is_drained():
            expect("acker is drained in time", time.monotonic() < patience, True)
            time.sleep(0.002)
        return self.read()

    def _is_drained(self) -> bool:
        parts = self._runtime.stats().components()
        spout, split, count = (parts[name] for name in ("lines", "split", "count"))
        ended = spout.acked + spout.failed == self._feed.tracked
        return ended and split.acked == self._feed.emitted and count.acked == split.emitted_total

    def counts(self) -> Counter[str]:
        """Return the counts of all words."""
        return sum((Counter[str](dict(each)) for each in self._counted), Counter[str]())


# ---- Storm ----------------------------------------------------------------------------------------------------------


class Program(NamedTuple):
    """The command that runs Storm's word count, or why it cannot be had.

    Attributes
    ----------
    command : list of str
    code : int
        The exit code of scripts/storm.py, which brings it.
    why : str or None
    """

    command: list[str]
    code: int
    why: str | None


@cache
def storm_program() -> Program:
    """Bring Storm's word count, once a process."""
    done = subprocess.run([sys.executable, str(_SCRIPT)], capture_output=True, check=False, text=True)
    if done.returncode:
        return Program([], done.returncode, done.stderr.strip().rpartition("\n")[2])
    return Program(json.loads(done.stdout), 0, None)


def why_no_storm() -> str | None:
    """Return why Storm cannot run here; None if it can."""
    return storm_program().why


class StormSide(Side):
    """Storm, in a JVM that obeys orders and is stopped by a signal while it has none."""

    name = STORM

    def __init__(self, load: Text, pending: int) -> None:
        self._load = load
        self._pending = pending
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        command, _, why = storm_program()
        if why is not None:
            raise RuntimeError(f"Storm cannot run here: {why}")
        self._folder = Path(self._resources.enter_context(tempfile.TemporaryDirectory(prefix="acker-storm-")))
        lines, self._log = self._folder / "lines", self._folder / "log"
        lines.write_text("\n".join(self._load.lines), encoding="utf-8")
        arguments = [str(lines), ",".join(map(str, _BOUNDS_NS)), str(self._pending), str(PAR)]
        self._process = subprocess.Popen(
            [*command, *arguments],
            cwd=self._folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Should this process be killed: a group that has stopped and lost its parent is ended by the system.
            process_group=0,
            stderr=self._resources.enter_context(self._log.open("wb")),
            text=True,
        )
        try:
            expect("Storm's first word", self._answer(), "ready")
        except BaseException:
            self.__exit__()
            raise
        self._stand_still()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._resources.close()

    def _order(self, order: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        if not answer:
            self._process.wait()
            raise RuntimeError(f"Storm ended: {self._log.read_text(errors='replace')[-2000:]}")
        return answer

    def _stand_still(self) -> None:
        # Its idle threads look for work each millisecond, which takes a fifth of a core.
        self._process.send_signal(signal.SIGSTOP)

    def open(self, mode: Mode) -> None:
        """Let the spout emit."""
        self._process.send_signal(signal.SIGCONT)
        self._order(f"open {int(mode.tracked)} {mode.interval_ns}")

    def read(self) -> Reading:
        """Return what was done so far."""
        return self._reading(self._order("read"))

    def _reading(self, answer: str) -> Reading:
        ns, cpu_ns, processed, emitted, acked, failed, *latencies = map(int, answer.split())
        return Reading(ns, cpu_ns, processed, emitted, acked, failed, tuple(latencies))

    def close(self) -> Reading:
        """Stop the spout, wait until all that it emitted is processed, and stop the JVM."""
        reading = self._reading(self._order("close"))
        self._order(f"counts {self._folder / 'counts'}")
        self._stand_still()
        return reading

    def counts(self) -> Counter[str]:
        """Return the counts of all words."""
        words = Counter[str]()
        for line in (self._folder / "counts").read_text(encoding="utf-8").splitlines():
            word, _, count = line.rpartition(" ")
            words[word] += int(count)
        return words


# ---- measuring ------------------------------------------------------------------------------------------------------


def load_of(scale: Scale) -> Text:
    """Return the lines, with single spaces as their only white space: Java and Python differ on what else it may be."""
    return Text.of([" ".join(line.split()) for line in text(scale).lines])


def check(side: Side, load: Text, reading: Reading) -> None:
    """Compare what a side has done since its start with what its lines must give."""
    times, rest = divmod(reading.emitted, len(load.lines))
    head = load.head(rest)
    expected = Counter({word: count * times for word, count in load.counts.items()} if times else {})
    expected.update(head.counts)
    found = side.counts()
    wrong = [word for word in found.keys() | expected.keys() if found[word] != expected[word]]
    expect(f"words that {side.name} counted wrong, of {len(expected)}", wrong[:5], [])
    expect(f"tuples that bolts of {side.name} processed", reading.processed, reading.emitted + expected.total())
    expect(f"trees that failed, {side.name}", reading.failed, 0)
    expect(f"complete latencies, {side.name}", sum(reading.latencies), reading.acked)


class Session:
    """Both sides, warmed up; for use in a with statement.

    Parameters
    ----------
    scale : Scale
    pending : int
        topology.max.spout.pending, of both sides.
    make : callable, optional
        Load -> the side of acker, if it is not the usual one.
    """

    def __init__(self, scale: Scale, pending: int, make: Callable[[Text], Side] | None = None) -> None:
        self.scale = scale
        self.load = load_of(scale)
        ours = AckerSide(self.load, pending) if make is None else make(self.load)
        self.sides: list[Side] = [ours, StormSide(self.load, pending)]
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as entered:
            for side in self.sides:
                entered.enter_context(side)
                self.turn(side, Mode(), _WARM_UP_S[side.name] / math.sqrt(self.scale.divisor))
            self._resources = entered.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def turn(self, side: Side, mode: Mode, seconds: float) -> Turn:
        """Let one side work, and check what it has done."""
        side.open(mode)
        time.sleep(min(_SETTLE_S, seconds / 4))
        begin = end = side.read()
        while end.processed == begin.processed or end.ns - begin.ns < seconds * 1e9:
            time.sleep(max(_LEAST_S / 3, seconds - (end.ns - begin.ns) / 1e9))
            end = side.read()
        closed = side.close()
        check(side, self.load, closed)
        return Turn(begin, end)

    def rounds(self, mode: Mode) -> dict[str, list[Turn]]:
        """Let the sides take turns: A B, B A, A B ..."""
        taken: dict[str, list[Turn]] = {side.name: [] for side in self.sides}
        for number in range(min(_ROUNDS, 2 + self.scale.pairs // 5)):
            for side in self.sides[:: -1 if number % 2 else 1]:
                taken[side.name].append(self.turn(side, mode, max(_LEAST_S, _TURN_S / self.scale.divisor)))
        return taken


def _sides(turns: Mapping[str, Mapping[str, list[Turn]]]) -> Iterable[tuple[str, list[Turn]]]:
    """Give each side's turns in each of some modes, named as `acker 128`."""
    for mode, taken in turns.items():
        for side in (ACKER, STORM):
            yield f"{side} {mode}", taken[side]


def _parameters(load: Text, turns: Mapping[str, Mapping[str, list[Turn]]], **more: object) -> dict[str, Any]:
    cores = {name: [round(turn.cpu_seconds / turn.seconds, 3) for turn in taken] for name, taken in _sides(turns)}
    return {"lines": len(load.lines), "words": load.counts.total(), "par": PAR, "cores": cores, **more}


def _checksum(load: Text, turns: Mapping[str, Mapping[str, list[Turn]]]) -> dict[str, int]:
    tuples = sum(turn.processed for _, taken in _sides(turns) for turn in taken)
    return {"tuples": tuples, "distinct_words": len(load.counts)}


def throughput(scale: Scale) -> Result:
    """Compare acked tuples a second: in all, and for each second of processor time."""
    turns = {}
    with Session(scale, 128) as session:
        turns["128"] = session.rounds(Mode())
    with Session(scale, 1024) as session:
        turns["1,024"] = session.rounds(Mode())
        turns["untracked"] = session.rounds(Mode(tracked=False))
    samples = {name: [turn.processed / turn.seconds for turn in taken] for name, taken in _sides(turns)}
    samples |= {
        f"{name}, a core": [turn.processed / turn.cpu_seconds for turn in taken] for name, taken in _sides(turns)
    }
    goals = {"128": Goal(at_least=1), "1,024": Goal(at_least=1)}
    ratios = [
        Ratio(f"{ACKER} {mode}{share}", f"{STORM} {mode}{share}", None if share else scale.goal(goals.get(mode)))
        for share in ("", ", a core")
        for mode in turns
    ]
    load = session.load
    return Result("acked tuples/s", samples, ratios, _parameters(load, turns), _checksum(load, turns))


def latency(scale: Scale) -> Result:
    """Compare how long trees take: with one open at a time, under full load, and with half of what both can do."""
    turns = {}
    with Session(scale, 1) as session:
        turns["alone"] = session.rounds(Mode())
    with Session(scale, 128) as session:
        turns["full"] = session.rounds(Mode())
        slowest = min(_lines_a_second(taken) for taken in turns["full"].values())
        turns["half"] = session.rounds(Mode(interval_ns=round(2e9 / slowest)))
    samples = {
        f"{name}, p{share}": [turn.quantile_ms(share / 100) for turn in taken]
        for name, taken in _sides(turns)
        for share in (50, 99)
    }
    ratios = [Ratio(f"{ACKER} {mode}, p{share}", f"{STORM} {mode}, p{share}") for mode in turns for share in (50, 99)]
    load = session.load
    parameters = _parameters(load, turns, half_lines_a_second=round(slowest / 2))
    return Result("ms", samples, ratios, parameters, _checksum(load, turns))


def _lines_a_second(turns: list[Turn]) -> float:
    return statistics.median((turn.end.emitted - turn.begin.emitted) / turn.seconds for turn in turns)


CASES: Final = [
    Case(
        "topology/storm/throughput",
        "How many tuples do acker and Storm process, with the same topology?",
        throughput,
        obstacle=why_no_storm,
    ),
    Case("topology/storm/latency", "How long does a tree take in acker and in Storm?", latency, obstacle=why_no_storm),
]
