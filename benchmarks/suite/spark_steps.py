"""Benchmarks of tracked pipelines of DataFrame steps against the same steps without trees; no Python function.

A filter, two computed columns and an explosion: `tracked` computes rows, trees and messages, as one evaluation gives
them; `settled` evaluates the rows, and the completions by themselves. A filter and totals by key: `tracked` computes
the groups of all rows, `acked` those of the rows whose trees are all ACKED, which it settles for that.
"""

from __future__ import annotations

import importlib.metadata
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from acker._engine.protocol import Outcome
from benchmarks.suite.measure import Alternation, Case, Goal, Ratio, Result, Scale, expect, per, wall_ns
from benchmarks.suite.spark import session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

ROWS: Final = 10_000_000
_WARM_UP_PAIRS: Final = 3
_PAIRS_MAX: Final = 7
# Of ten rows one is dropped; each other one becomes three.
_KINDS: Final = 10
_WORDS: Final = 3
_GROUPS: Final = 1000

UNTRACKED, TRACKED, SETTLED, ACKED = "untracked", "tracked", "settled", "acked"


@contextmanager
def _lines(rows: int) -> Iterator[DataFrame]:
    """Write the rows as Parquet files of a session, and yield the DataFrame that reads them."""
    from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.

    with tempfile.TemporaryDirectory() as name, session() as spark:
        words = [F.hash(F.col("id") + number).cast("string") for number in range(_WORDS)]
        lines = spark.range(rows).select(
            F.col("id").alias("line"),
            F.concat_ws(" ", *words).alias("text"),
            (F.col("id") % _KINDS).alias("kind"),
            (F.col("id") % _GROUPS).alias("group"),
        )
        lines.write.mode("overwrite").parquet(name)
        yield spark.read.parquet(name)


def _measure(
    scale: Scale, rows: int, compared: Mapping[str, Sequence[DataFrame]]
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Time the sides, all rows of their DataFrames taken and thrown away; return nanoseconds a row, and parameters."""

    def take(frames: Sequence[DataFrame]) -> None:
        for frame in frames:
            frame.write.format("noop").mode("overwrite").save()

    warm_up = _WARM_UP_PAIRS if scale.divisor == 1 else 1
    sides = {side: lambda _, frames=frames: take(frames) for side, frames in compared.items()}
    alternation: Alternation[None] = Alternation(sides, clock=wall_ns)
    taken = alternation.run([None] * (min(scale.pairs, _PAIRS_MAX) + warm_up), warm_up)
    context = compared[UNTRACKED][0].sparkSession.sparkContext
    parameters = {"rows": rows, "master": context.master, "pyspark": importlib.metadata.version("pyspark")}
    return per(taken, rows), parameters


def steps(scale: Scale) -> Result:
    """Time a filter, two columns and an explosion over the same file."""
    from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.

    from acker.spark import spout

    rows = scale.size(ROWS, 1000)
    with _lines(rows) as lines:
        condition, columns = F.col("kind") != 0, {"length": F.length("text"), "words": F.split("text", " ")}
        untracked = lines.drop("group").where(condition).withColumns(columns)
        untracked = untracked.select("line", "text", "kind", "length", F.explode("words").alias("word"))
        tracked = spout(lines.drop("group"), message_id="line", run_seed=1).where(condition).with_columns(columns)
        tracked = tracked.explode("words", into="word").sink()
        outcomes = tracked.completions().groupBy("outcome").count().collect()
        expect("completions", [tuple(row) for row in outcomes], [(int(Outcome.ACKED), rows)])
        expect("rows", tracked.data().count(), untracked.count())
        expect("rows", untracked.count(), (rows - -(-rows // _KINDS)) * _WORDS)
        compared = {
            UNTRACKED: [untracked],
            TRACKED: [tracked.dataframe],
            SETTLED: [tracked.data(), tracked.completions()],
        }
        taken, parameters = _measure(scale, rows, compared)
    ratios = [Ratio(TRACKED, UNTRACKED, scale.goal(Goal(at_most=1.5))), Ratio(SETTLED, UNTRACKED)]
    return Result("ns/row", taken, ratios, {**parameters, "words": _WORDS}, {"completions": rows})


def totals(scale: Scale) -> Result:
    """Time a filter and totals by key over the same file."""
    from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.

    from acker.spark import spout

    rows = scale.size(ROWS, 1000)
    with _lines(rows) as lines:
        condition, aggregates = F.col("kind") != 0, [F.sum(F.length("text")).alias("total"), F.count("*").alias("n")]
        untracked = lines.where(condition).groupBy("group").agg(*aggregates)
        tracked = spout(lines, message_id="line", run_seed=1).where(condition).grouped("group").agg(*aggregates)
        expected = sorted(map(tuple, untracked.collect()))
        expect("groups", sorted(map(tuple, tracked.data().collect())), expected)
        expect("groups", sorted(map(tuple, tracked.acked().collect())), expected)
        compared = {UNTRACKED: [untracked], TRACKED: [tracked.data()], ACKED: [tracked.acked()]}
        taken, parameters = _measure(scale, rows, compared)
    ratios = [Ratio(TRACKED, UNTRACKED), Ratio(ACKED, UNTRACKED)]
    return Result("ns/row", taken, ratios, {**parameters, "groups": _GROUPS}, {"groups": len(expected)})


CASES: Final = [
    Case("spark/steps", "What does it cost to track DataFrame steps?", steps),
    Case("spark/totals", "What does it cost to track totals by key?", totals),
]
