"""Benchmarks of a word count in columns: against the same with tuples, without tracking, and against Storm.

The lines, the topology and the checks are those of `topology.py` and `storm.py`; the spout and the bolts pass Arrow
batches. The tasks that count keep columns too, and merge them now and then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from acker.local import run
from acker.topology import ArrowBolt, Grouping, Spout, Topology
from benchmarks.suite import storm
from benchmarks.suite.measure import Alternation, Case, Goal, Ratio, Result, Scale, expect
from benchmarks.suite.storm import ACKER, STORM, Feed, Mode, Session, load_of, why_no_storm
from benchmarks.suite.topology import PAR, Counted, Text, Way, through_runtime, wall_ns

COLUMNS, UNTRACKED, TUPLES = "columns", "columns, untracked", "tuples"

_BATCH_ROWS: Final = 8192
# Rows that may be open: some batches for each task.
PENDING: Final = 8 * _BATCH_ROWS
# How often the lines are counted in a round: once takes too little time.
_TIMES: Final = 10
_MERGE_ROWS: Final = 1_000_000


class WordCounts:
    """Counts of words, in columns that are merged once they are long."""

    def __init__(self) -> None:
        self._parts: list[pa.Table] = []
        self._rows = 0

    def add(self, words: pa.Array[Any]) -> None:
        """Count some words."""
        counted = pc.value_counts(words)
        self._parts.append(pa.table([counted.field(0), counted.field(1)], names=["word", "count"]))
        self._rows += len(counted)
        if self._rows > _MERGE_ROWS:
            self._merge()

    def _merge(self) -> dict[str, int]:
        if not self._parts:
            return {}
        merged = pa.concat_tables(self._parts).group_by("word").aggregate([("count", "sum")])
        self._parts, self._rows = [merged.rename_columns({"count_sum": "count"})], merged.num_rows
        words: list[Any] = merged["word"].to_pylist()
        return dict(zip(words, merged["count_sum"].to_pylist(), strict=True))

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Yield the words and their counts."""
        yield from self._merge().items()


class Split(ArrowBolt):
    """Splits lines at single spaces."""

    outputs = {"word": pa.string()}  # noqa: RUF012

    def process_rows(self, batch: pa.RecordBatch) -> None:
        """Emit the words of each line."""
        words = pc.split_pattern(batch.column("line"), " ")
        flat, parents = pc.list_flatten(words), pc.list_parent_indices(words)
        is_word = pc.not_equal(flat, pa.scalar(""))  # an empty line has no words
        self.emit_batch({"word": flat.filter(is_word)}, parents=parents.filter(is_word))


def _topology(spout: type[Spout], counted: list[Any]) -> type[Topology]:
    class Count(ArrowBolt):
        def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:  # noqa: ARG002
            self._counts = WordCounts()
            counted.append(self._counts)

        def process_rows(self, batch: pa.RecordBatch) -> None:
            self._counts.add(batch.column("word"))

    class WordCount(Topology):
        lines = spout.spec()
        split = Split.spec(inputs=[lines], par=PAR)
        count = Count.spec(inputs={split: Grouping.fields("word")}, par=PAR)

    return WordCount


def through_columns(load: Text, *, tracked: bool) -> Counted:
    """Count words with a columnar topology, from its start to its end."""
    lines = pa.array(load.lines, pa.string())

    class Lines(Spout):
        outputs = {"line": pa.string()}  # noqa: RUF012

        def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:  # noqa: ARG002
            self._next = 0

        def next_tuple(self) -> None:
            batch = lines.slice(self._next, _BATCH_ROWS)
            if not len(batch):
                self.finish()
                return
            ids = pa.array(range(self._next, self._next + len(batch)), pa.int64()) if tracked else None
            self._next += len(batch)
            self.emit_batch({"line": batch}, tup_ids=ids)

    counted: list[Any] = []
    report = run(_topology(Lines, counted), {"topology.max.spout.pending": PENDING})
    return Counted([Counter[str](dict(each)) for each in counted], report)


def _check(side: str, load: Text, counted: Counted) -> None:
    found = sum(counted.counters, Counter[str]())
    wrong = [word for word in found.keys() | load.counts.keys() if found[word] != load.counts[word]]
    expect(f"words that {side} counted wrong, of {len(load.counts)}", wrong[:5], [])
    assert counted.report is not None
    tasks = counted.report.stats.tasks
    expect(f"tuples that bolts acked, {side}", sum(t.acked for t in tasks if t.kind == "bolt"), load.tuples)
    acked = sum(t.acked for t in tasks if t.kind == "spout")
    expect(f"trees that were acked, {side}", acked, 0 if side == UNTRACKED else len(load.lines))


def throughput(scale: Scale) -> Result:
    """Time columns tracked, untracked, and tuples in turns, each from start to end."""
    once = load_of(scale)
    load = Text.of(once.lines * _TIMES)
    rows = Way(conf={"topology.max.spout.pending": 1024})
    sides: dict[str, Any] = {
        COLUMNS: partial(through_columns, tracked=True),
        UNTRACKED: partial(through_columns, tracked=False),
        TUPLES: lambda _: through_runtime(rows, once),
    }

    def check(side: str, of: Text, counted: Counted) -> None:
        _check(side, once if side == TUPLES else of, counted)

    taken = Alternation(sides, check, wall_ns).run([load] * (scale.pairs + 1))
    tuples = {side: once.tuples if side == TUPLES else load.tuples for side in sides}
    return Result(
        "acked tuples/s",
        {side: [tuples[side] / ns * 1e9 for ns in samples] for side, samples in taken.items()},
        [Ratio(COLUMNS, UNTRACKED, scale.goal(Goal(at_least=0.6))), Ratio(COLUMNS, TUPLES)],
        {"lines": len(load.lines), "words": load.counts.total(), "par": PAR, "pending": PENDING, "batch": _BATCH_ROWS},
        {"tuples": load.tuples, "distinct_words": len(load.counts)},
    )


def word_count(load: Text) -> tuple[type[Topology], Feed, list[Any]]:
    """Return the topology in columns, what feeds its spout, and the list of its counts."""
    feed, counted = Feed(load.lines), list[Any]()
    lines = pa.array(load.lines, pa.string())

    class Lines(Spout):
        outputs = {"line": pa.string()}  # noqa: RUF012

        def activate(self) -> None:
            self._mode, self._next = feed.mode, feed.emitted % len(lines)
            feed.started.set()

        def deactivate(self) -> None:
            feed.stopped.set()

        def next_tuple(self) -> None:
            if self._mode.interval_ns:  # it stands still
                return
            batch = lines.slice(self._next, _BATCH_ROWS)
            self._next = (self._next + len(batch)) % len(lines)
            tracked = self._mode.tracked
            ids = pa.array(range(feed.emitted, feed.emitted + len(batch)), pa.int64()) if tracked else None
            feed.emitted += len(batch)
            feed.tracked += len(batch) if tracked else 0
            self.emit_batch({"line": batch}, tup_ids=ids)

    return _topology(Lines, counted), feed, counted


def against_storm(scale: Scale) -> Result:
    """Compare acked tuples a second with Storm's, which has 1,024 lines open."""
    with Session(scale, 1024, partial(storm.AckerSide, make=word_count, pending=PENDING)) as session:
        taken = session.rounds(Mode())
    samples = {side: [turn.processed / turn.seconds for turn in turns] for side, turns in taken.items()}
    samples |= {
        f"{side}, a core": [turn.processed / turn.cpu_seconds for turn in turns] for side, turns in taken.items()
    }
    ratios = [Ratio(ACKER, STORM, scale.goal(Goal(at_least=10))), Ratio(f"{ACKER}, a core", f"{STORM}, a core")]
    load = session.load
    parameters = {"lines": len(load.lines), "words": load.counts.total(), "par": PAR, "pending": PENDING}
    checksum = {"tuples": sum(turn.processed for turns in taken.values() for turn in turns)}
    return Result("acked tuples/s", samples, ratios, parameters, checksum | {"distinct_words": len(load.counts)})


CASES: Final = [
    Case("columns/wordcount", "What do columns gain, and what does tracking cost them?", throughput),
    Case(
        "columns/storm",
        "How many tuples do acker in columns and Storm process?",
        against_storm,
        obstacle=why_no_storm,
    ),
]
