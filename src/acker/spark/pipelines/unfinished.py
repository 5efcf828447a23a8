"""The messages of a pipeline whose trees did not end ACKED, joined with the rows of the spouts that they were."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.

from acker._engine.protocol import Outcome
from acker.spark.pipelines.hidden_columns import ATTEMPT, ROOT
from acker.spark.pipelines.sql_rows import begin_trees, columns_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame

    from acker.spark.pipelines.transforms import SpoutTransform


def find_unfinished(completions: DataFrame, sources: Iterable[tuple[DataFrame, SpoutTransform]], ids: str) -> DataFrame:
    """Return the rows of these spouts whose trees are not ACKED in `completions`; see `Tracked.unfinished`."""
    parts = [_rooted(frame, spout, ids) for frame, spout in sources]
    rows = functools.reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
    users = [name for name in rows.columns if name not in (ROOT, ATTEMPT)]
    rooted = rows.select(
        F.col(ROOT).alias("root_id"), F.col(ATTEMPT).alias("attempt"), F.struct(*columns_of(users)).alias("row")
    )
    words = F.element_at(F.array(*(F.lit(outcome.name) for outcome in Outcome)), F.col("outcome") + 1)
    missed = completions.where(F.col("outcome") != int(Outcome.ACKED))
    told = missed.select("root_id", "message_id", words.alias("outcome"), "component", "reason")
    return told.join(rooted, "root_id").drop("root_id").select(*told.columns[1:], "attempt", "row")


def _rooted(frame: DataFrame, spout: SpoutTransform, ids: str) -> DataFrame:
    """Return the rows that have trees with their root ids, and the attempt of each."""
    rows = begin_trees(frame, spout, ids, None).where(F.col(ROOT).isNotNull())
    attempt = F.coalesce(F.col(ATTEMPT), F.lit(0).cast("bigint")).alias(ATTEMPT)
    return rows.select(ROOT, attempt, *columns_of(frame.columns))
