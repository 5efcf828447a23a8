"""A benchmark of a numeric pipeline in columns: filter, arithmetic, explode, sum by key, against Polars on one thread.

Polars tracks nothing, and runs one plan over the whole table. Here four bolts pass batches, and each row is tracked.
Both are timed by the processor time of all threads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acker.local import run
from acker.topology import ArrowBolt, Spout, Topology
from benchmarks.suite.measure import Alternation, Case, Goal, Ratio, Result, Scale, expect, process_ns

COLUMNS, UNTRACKED, POLARS = "columns", "columns, untracked", "Polars"

_ROWS: Final = 4_000_000
_KEYS: Final = 1000
_PARTS_MAX: Final = 4
# Python works for each batch: with half as many rows its part is half as large again.
_BATCH_ROWS: Final = 65_536
_PENDING: Final = 4 * _BATCH_ROWS
_LEAST: Final = 0.25


def make_load(rows: int) -> pa.Table:
    """Return rows with a key, a value and a list of numbers."""
    rng = np.random.default_rng(30)
    counts = rng.integers(0, _PARTS_MAX + 1, rows)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    parts: Any = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(rng.integers(0, 100, offsets[-1])))
    columns: dict[str, Any] = {"key": rng.integers(0, _KEYS, rows), "value": rng.random(rows), "parts": parts}
    return pa.table(columns)


class Filter(ArrowBolt):
    """Keeps rows with a value that is large enough."""

    outputs = {"key": pa.int64(), "value": pa.float64(), "parts": pa.list_(pa.int64())}  # noqa: RUF012

    def process_rows(self, batch: pa.RecordBatch) -> None:
        """Emit the rows that stay."""
        rows = pc.indices_nonzero(pc.greater_equal(batch.column("value"), pa.scalar(_LEAST)))
        self.emit_batch(batch.take(rows), parents=rows)


class Arithmetic(ArrowBolt):
    """Computes a column."""

    outputs = {"key": pa.int64(), "scaled": pa.float64(), "parts": pa.list_(pa.int64())}  # noqa: RUF012

    def process_rows(self, batch: pa.RecordBatch) -> None:
        """Emit the rows with the column."""
        scaled = pc.add(pc.multiply(batch.column("value"), pa.scalar(3.0)), pa.scalar(1.0))
        self.emit_batch({"key": batch.column("key"), "scaled": scaled, "parts": batch.column("parts")})


class Explode(ArrowBolt):
    """Makes a row of each number of a list."""

    outputs = {"key": pa.int64(), "amount": pa.float64()}  # noqa: RUF012

    def process_rows(self, batch: pa.RecordBatch) -> None:
        """Emit a row for each number."""
        rows = pc.list_parent_indices(batch.column("parts"))
        numbers = pc.list_flatten(batch.column("parts"))
        amount = pc.multiply(batch.column("scaled").take(rows), numbers)
        self.emit_batch({"key": batch.column("key").take(rows), "amount": amount}, parents=rows)


def _topology(load: pa.Table, sums: list[Any], *, tracked: bool) -> type[Topology]:
    batches = load.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS)

    class Rows(Spout):
        outputs = dict(zip(load.schema.names, load.schema.types, strict=True))  # noqa: RUF012

        def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:  # noqa: ARG002
            self._next = self._first = 0

        def next_tuple(self) -> None:
            if self._next == len(batches):
                self.finish()
                return
            batch = batches[self._next]
            ids = np.arange(self._first, self._first + batch.num_rows) if tracked else None
            self._next += 1
            self._first += batch.num_rows
            self.emit_batch(batch, tup_ids=ids)

    class Sum(ArrowBolt):
        def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:  # noqa: ARG002
            self._sums = np.zeros(_KEYS)
            sums.append(self._sums)

        def process_rows(self, batch: pa.RecordBatch) -> None:
            keys, amounts = batch.column("key").to_numpy(), batch.column("amount").to_numpy()
            self._sums += np.bincount(keys, amounts, _KEYS)

    class Numeric(Topology):
        rows = Rows.spec()
        kept = Filter.spec(inputs=[rows])
        scaled = Arithmetic.spec(inputs=[kept])
        exploded = Explode.spec(inputs=[scaled])
        summed = Sum.spec(inputs=[exploded])

    return Numeric


def through_columns(load: pa.Table, *, tracked: bool) -> tuple[Any, int]:
    """Run the topology; return the sum of each key, and the number of trees that were acked."""
    sums: list[Any] = []
    conf = {"topology.max.spout.pending": _PENDING, "topology.arrow.batch.rows": _BATCH_ROWS}
    conf["topology.executor.receive.buffer.size"] = 4 * _BATCH_ROWS
    report = run(_topology(load, sums, tracked=tracked), conf)
    return sums[0], report.stats.totals.acked


def through_polars(frame: Any) -> Any:
    """Run the same as one plan of Polars; return the sum of each key."""
    import polars as pl

    summed = (
        frame.lazy()
        .filter(pl.col("value") >= _LEAST)
        .with_columns(scaled=pl.col("value") * 3.0 + 1.0)
        .filter(pl.col("parts").list.len() > 0)
        .explode("parts")
        .group_by("key")
        .agg((pl.col("scaled") * pl.col("parts")).sum().alias("amount"))
        .collect()
    )
    sums = np.zeros(_KEYS)
    sums[summed["key"].to_numpy()] = summed["amount"].to_numpy()
    return sums


def against_polars(scale: Scale) -> Result:
    """Time both in turns."""
    os.environ["POLARS_MAX_THREADS"] = "1"  # read when it is imported
    import polars as pl

    load = make_load(scale.size(_ROWS, 100_000))
    frame = pl.from_arrow(load)
    expected = through_polars(frame)
    sides: dict[str, Any] = {
        COLUMNS: partial(through_columns, tracked=True),
        UNTRACKED: partial(through_columns, tracked=False),
        POLARS: lambda _: (through_polars(frame), 0),
    }

    def check(side: str, of: pa.Table, found: tuple[Any, int]) -> None:
        sums, acked = found
        expect(f"sums of {side} that differ", int((~np.isclose(sums, expected)).sum()), 0)
        expect(f"trees that were acked, {side}", acked, of.num_rows if side == COLUMNS else 0)

    taken = Alternation(sides, check, process_ns).run([load] * (scale.pairs + 1))
    return Result(
        "ns of processor time/row",
        {side: [ns / load.num_rows for ns in samples] for side, samples in taken.items()},
        [Ratio(COLUMNS, POLARS, scale.goal(Goal(at_most=3))), Ratio(UNTRACKED, POLARS)],
        {
            "rows": load.num_rows,
            "keys": _KEYS,
            "batch": _BATCH_ROWS,
            "pending": _PENDING,
            "threads of Polars": pl.thread_pool_size(),
        },
        {"sum": round(float(expected.sum()))},
    )


CASES: Final = [
    Case(
        "columns/polars",
        "What does a numeric pipeline in columns take, beside Polars on one thread?",
        against_polars,
        needs=("polars",),
    )
]
