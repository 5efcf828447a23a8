"""Columns of event times in a DataFrame: their types, and their values in milliseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.

from acker.errors import ArgumentValueError
from acker.spark.messages import quote_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def check_event_column(frame: DataFrame, name: str) -> None:
    """Refuse a DataFrame without such a column, or with one of another type."""
    found = dict(frame.dtypes).get(name)
    if found is None or not (found.startswith("timestamp") or found == "bigint"):
        got = f"the columns {', '.join(frame.columns)}" if found is None else found
        raise ArgumentValueError(f"event_time: expected a column of timestamps or of bigint milliseconds, got {got}")


def event_ms_of(frame: DataFrame, name: str) -> Column:
    """Return the event times in milliseconds since 1970."""
    column = F.col(quote_column(name))
    return F.unix_millis(column) if dict(frame.dtypes)[name].startswith("timestamp") else column.cast("bigint")
