"""Settlement of tracked pipelines, which turns the messages of one or several pipelines into completions."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import LongType, TimestampNTZType, TimestampType

from acker._engine.user_frames import user_stacklevel
from acker.errors import ArgumentValueError
from acker.spark.block_settlement import settle_rows
from acker.spark.pipelines.pipeline_plan import check_disjoint
from acker.spark.pipelines.sql_settlement import settle_sql_rows
from acker.spark.streams.plan import completions_of_block_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from acker.spark.options import CompletionOptions
    from acker.spark.pipelines.pipeline_plan import PipelinePlan

_TIMES: Final = (TimestampType, TimestampNTZType, LongType)


def settle_pipelines(plans: list[PipelinePlan], options: CompletionOptions) -> DataFrame:
    """Settle the messages of at least one pipeline; see `acker.spark.completions_of`."""
    check_disjoint(plans)
    shards = plans[0].shards
    is_streaming = plans[0].is_streaming
    if is_streaming:
        options.refuse_batch_options()
    else:
        options.refuse_stream_options()
    if options.event_time is not None:
        _check_event_time(plans, options.event_time)
    _warn_of_unread(plans)
    if not is_streaming and all(plan.ends_in_sql and plan.native for plan in plans):
        return settle_sql_rows(
            [plan.frame for plan in plans],
            include_pending=options.include_pending,
            may_fail=any(plan.may_fail for plan in plans),
        )
    parts = [plan.blocks_and_notes(options.event_time) for plan in plans]
    rows = functools.reduce(lambda one, other: one.union(other), parts)
    if is_streaming:
        return completions_of_block_stream(rows, shards, options, ids=plans[0].ids)
    return settle_rows(rows, shards, include_pending=options.include_pending, ids=plans[0].ids)


def _check_event_time(plans: list[PipelinePlan], event_time: str) -> None:
    """Check that the rows of each spout have a column of event times."""
    expected = "event_time: expected a column of timestamps or of bigint milliseconds in rows of"
    for plan in plans:
        for component, schema in plan.spouts.items():
            if event_time not in schema.names:
                raise ArgumentValueError(f"{expected} {component!r}, got the columns {', '.join(schema.names)}")
            found = schema[event_time].dataType
            if not isinstance(found, _TIMES):
                raise ArgumentValueError(
                    f"{expected} {component!r}, got {event_time!r}, which is {found.simpleString()}"
                )


def _warn_of_unread(plans: list[PipelinePlan]) -> None:
    unread = sorted(frozenset[str]().union(*(plan.unread for plan in plans)))
    if unread:
        warnings.warn(
            f"no bolt reads what {', '.join(map(repr, unread))} emits, so the trees of those rows stay open:"
            " give the last bolt sink=True, end with sink(), or add a bolt that reads them",
            UserWarning,
            stacklevel=user_stacklevel(),
        )
