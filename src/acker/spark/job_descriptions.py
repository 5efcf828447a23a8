"""Descriptions of jobs in Spark's UI."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from acker.spark.session_checks import is_classic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

# The property of a thread that `SparkContext.setJobDescription` sets; only this way can it be read and removed.
_DESCRIPTION: Final = "spark.job.description"


@contextmanager
def describe_jobs(session: SparkSession, text: str) -> Iterator[None]:
    """Show a text at the jobs and stages that this thread starts in a ``with`` block, behind what it shows already.

    With Spark Connect nothing changes, as a client cannot describe jobs.
    """
    if not is_classic(session):
        yield
        return
    context: Any = session.sparkContext
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, f"{before}: {text}" if before else text)
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)
