"""Benchmark of a tracked pipeline of DataFrame steps against the same steps without trees.

A filter, two computed columns and an explosion; no Python function. `tracked` computes rows, trees and messages, as one
evaluation gives them; `settled` evaluates the rows, and the completions by themselves.
"""

from __future__ import annotations

import importlib.metadata
import tempfile
from typing import TYPE_CHECKING, Any, Final

from acker._engine.protocol import Outcome
from benchmarks.suite.measure import Alternation, Case, Goal, Ratio, Result, Scale, expect, per, wall_ns
from benchmarks.suite.spark import session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

ROWS: Final = 10_000_000
_WARM_UP_PAIRS: Final = 3
_PAIRS_MAX: Final = 7
# Of ten rows one is dropped; each other one becomes three.
_KINDS: Final = 10
_WORDS: Final = 3

UNTRACKED, TRACKED, SETTLED = "untracked", "tracked", "settled"


def steps(scale: Scale) -> Result:
    """Time the sides over the same file, all their rows taken and thrown away."""
    from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.

    from acker.spark import spout

    rows = scale.size(ROWS, 1000)
    with tempfile.TemporaryDirectory() as name, session() as spark:
        words = [F.hash(F.col("id") + number).cast("string") for number in range(_WORDS)]
        lines = spark.range(rows).select(
            F.col("id").alias("line"), F.concat_ws(" ", *words).alias("text"), (F.col("id") % _KINDS).alias("kind")
        )
        lines.write.mode("overwrite").parquet(name)
        lines = spark.read.parquet(name)
        condition, columns = F.col("kind") != 0, {"length": F.length("text"), "words": F.split("text", " ")}
        untracked = lines.where(condition).withColumns(columns)
        untracked = untracked.select("line", "text", "kind", "length", F.explode("words").alias("word"))
        tracked = spout(lines, message_id="line", run_seed=1).where(condition).with_columns(columns)
        tracked = tracked.explode("words", into="word").sink()
        outcomes = tracked.completions().groupBy("outcome").count().collect()
        expect("completions", [tuple(row) for row in outcomes], [(int(Outcome.ACKED), rows)])
        expect("rows", tracked.data().count(), untracked.count())
        expect("rows", untracked.count(), (rows - -(-rows // _KINDS)) * _WORDS)

        def run(*frames: DataFrame) -> Callable[[None], None]:
            def take(_: None) -> None:
                for frame in frames:
                    frame.write.format("noop").mode("overwrite").save()

            return take

        compared = {
            UNTRACKED: run(untracked),
            TRACKED: run(tracked.dataframe),
            SETTLED: run(tracked.data(), tracked.completions()),
        }
        warm_up = _WARM_UP_PAIRS if scale.divisor == 1 else 1
        alternation = Alternation(compared, clock=wall_ns)
        taken = alternation.run([None] * (min(scale.pairs, _PAIRS_MAX) + warm_up), warm_up)
        parameters: dict[str, Any] = {
            "rows": rows,
            "words": _WORDS,
            "master": spark.sparkContext.master,
            "pyspark": importlib.metadata.version("pyspark"),
        }
    ratios = [Ratio(TRACKED, UNTRACKED, scale.goal(Goal(at_most=1.5))), Ratio(SETTLED, UNTRACKED)]
    return Result("ns/row", per(taken, rows), ratios, parameters, {"completions": rows})


CASES: Final = [Case("spark/steps", "What does it cost to track DataFrame steps?", steps)]
