"""The benchmark of a ShardedAcker with two shards and two threads against one Acker, in wall-clock time."""

from __future__ import annotations

from functools import partial
from typing import Final

from acker._engine.acker import Acker
from acker._engine.sharded import ShardedAcker
from benchmarks.suite.ingest import BATCH_ROWS, Checker, feed, fill, windows
from benchmarks.suite.measure import Alternation, Case, Goal, Ratio, Result, Scale, per, wall_ns
from benchmarks.suite.workloads import SEED, WORKLOADS

_SHARDS: Final = 2


def against_plain(workload: str, goal: Goal, scale: Scale) -> Result:
    """Time both on the same windows of one stream."""
    shape = WORKLOADS[workload]
    stream = shape.stream(scale)
    plain = fill(Acker(seed=SEED), stream)
    sharded = fill(ShardedAcker(_SHARDS, _SHARDS, seed=SEED), shape.stream(scale))
    rows = scale.size(shape.window_rows, 2 * BATCH_ROWS)
    checker = Checker()
    sides = {"plain": partial(feed, plain), "sharded": partial(feed, sharded)}
    samples = Alternation(sides, checker.check, wall_ns).run(windows(stream, rows, BATCH_ROWS, scale.pairs + 1))
    return Result(
        "ns/message",
        per(samples, rows),
        [Ratio("plain", "sharded", scale.goal(goal))],
        {
            "workload": workload,
            "text": shape.text,
            "seed": SEED,
            "shards": sharded.shards,
            "threads": sharded.threads,
            "pending": len(sharded),
            "batch_rows": BATCH_ROWS,
            "window_rows": rows,
            "table_bytes": sharded.nbytes,
        },
        stream.expected._asdict(),
    )


CASES: Final = [
    Case(
        f"sharded/{workload}",
        "How much faster is ingest on two threads?",
        partial(against_plain, workload, Goal(at_least=1.6)),
    )
    for workload in ("m1", "m2")
]
