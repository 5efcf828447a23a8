"""Benchmarks of the cost of a call itself: one row, and a batch of 1,000.

The table is small and stays in the core's cache, so the time is that of the way from Python to the native loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce
from typing import TYPE_CHECKING, Final

from acker._engine.acker import Acker
from acker._engine.reference import ReferenceAcker
from acker.testing.streams import Checksum
from benchmarks.suite.ingest import Checker, Window, cut, feed, fill, windows
from benchmarks.suite.measure import Alternation, Case, Goal, Ratio, Result, Scale, expect, per
from benchmarks.suite.workloads import SEED, WORKLOADS

if TYPE_CHECKING:
    from acker._engine.completions import Int64Column

_ONE_ROW_CALLS: Final = 20_000
_SMALL_ROWS: Final = 1000
_BATCHES: Final = 10
# The difference of two nearly equal times takes more pairs than a ratio.
_PAIRS_TIMES: Final = 8
# The rows of one large call, and of many calls of _SMALL_ROWS together.
_LARGE_ROWS: Final = 10_000


def one_row(scale: Scale) -> Result:
    """Time calls of one row, NumPy arrays of length 1."""
    calls = scale.size(_ONE_ROW_CALLS, 10)
    stream, native_stream = WORKLOADS["p100"].stream(scale), WORKLOADS["p100"].stream(scale)
    native, reference = fill(Acker(seed=SEED), native_stream), fill(ReferenceAcker(seed=SEED), stream)
    checker = Checker()
    sides = {"reference": partial(feed, reference), "native": partial(feed, native)}
    samples = Alternation(sides, checker.check).run(windows(stream, calls, 1, scale.pairs + 1))
    return Result(
        "µs/call",
        per(samples, calls * 1000),
        [Ratio("reference", "native")],
        {"calls": calls, "pending": len(native), "seed": SEED},
        stream.expected._asdict(),
        goals={"native": Goal(at_most=2.0)} if scale.divisor == 1 else {},
    )


def thousand_rows(scale: Scale) -> Result:
    """Time the same messages in calls of 1,000 and of 10,000 rows: the rest is the fixed cost of nine calls in ten."""
    batches = scale.size(_BATCHES, 1)
    streams = {rows: WORKLOADS["p100"].stream(scale) for rows in (_SMALL_ROWS, _LARGE_ROWS)}
    ackers = {rows: fill(Acker(seed=SEED), stream) for rows, stream in streams.items()}
    stream = streams[_SMALL_ROWS]

    def loads() -> Iterator[dict[int, Window]]:
        for _ in range(_PAIRS_TIMES * scale.pairs + 1):
            messages = stream.take(batches * _LARGE_ROWS)
            yield {
                rows: Window(messages.kind.size, cut(messages, rows), stream.expected)
                for rows in (_SMALL_ROWS, _LARGE_ROWS)
            }

    found = dict.fromkeys(ackers, Checksum())

    def check(side: str, load: dict[int, Window], returned: list[Int64Column]) -> None:
        rows = int(side)
        found[rows] = reduce(Checksum.add, returned, found[rows])
        expect(f"trees finished in batches of {rows}", found[rows], load[rows].expected)

    def ingest(rows: int, load: dict[int, Window]) -> object:
        return feed(ackers[rows], load[rows])

    taken = Alternation({str(rows): partial(ingest, rows) for rows in ackers}, check).run(loads())
    small, large = taken[str(_SMALL_ROWS)], taken[str(_LARGE_ROWS)]
    calls = batches * (_LARGE_ROWS // _SMALL_ROWS - 1)
    fixed = [(many - few) / calls / 1000 for many, few in zip(small, large, strict=True)]
    whole = [sample / (batches * _LARGE_ROWS // _SMALL_ROWS) / 1000 for sample in small]
    return Result(
        "µs/call",
        {"fixed part": fixed, "whole call": whole},
        [Ratio("fixed part", "whole call")],
        {
            "batch_rows": _SMALL_ROWS,
            "batches": batches * _LARGE_ROWS // _SMALL_ROWS,
            "pending": len(ackers[_SMALL_ROWS]),
            "seed": SEED,
        },
        stream.expected._asdict(),
    )


CASES: Final = [
    Case("calls/one-row", "What does a call of one row cost?", one_row),
    Case("calls/thousand-rows", "What does a call of 1,000 rows cost beyond the work in it?", thousand_rows),
]
