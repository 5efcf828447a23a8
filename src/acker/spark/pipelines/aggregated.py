"""A pipeline that ends in an aggregation: one row for each group of rows, and the trees of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from acker.spark.pipelines.pipeline import Pipeline

if TYPE_CHECKING:
    import numpy.typing as npt
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from acker.spark.pipelines.pipeline_plan import PipelinePlan

ENDED: Final = (
    "an aggregation ends a pipeline, as a group has no tree of its own: do the step before grouped(...), or on the"
    " DataFrame that data() or acked() returns; completions_of settles several pipelines together"
)


class Aggregated(Pipeline):
    """A pipeline that ends with `Grouped.agg`: its data are groups, and a tree ends as its rows did before them.

    Nothing is computed until a method is called. `dataframe` has the rows before the aggregation, so `persist` keeps
    these, and `micro_batch` takes them.
    """

    def __init__(self, plan: PipelinePlan, aggregate: Callable[[DataFrame], DataFrame]) -> None:
        super().__init__(plan)
        self._aggregate = aggregate
        # Here, so that Spark refuses wrong aggregates at once.
        self._groups = aggregate(self._rows(None)).schema

    if not TYPE_CHECKING:  # Type checkers know which methods there are.

        def __getattr__(self, name: str) -> Any:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(text if name.startswith("_") else f"{text}: {ENDED}", name=name, obj=self)

    @property
    def _schema(self) -> StructType:
        return self._groups

    @property
    def _explained(self) -> DataFrame:
        return self.dataframe if self.plan.is_streaming else self.data()

    def _with_plan(self, plan: PipelinePlan) -> Aggregated:
        return Aggregated(plan, self._aggregate)

    def data(self, without: npt.ArrayLike | None = None) -> DataFrame:
        """Return the groups of all rows that did not fail; a batch only.

        Parameters
        ----------
        without : (n,) int64, optional
            Root ids: no group has the rows that belong to any of these trees.
        """
        self._refuse_streaming(
            "data",
            "a group of a stream is never complete: write `dataframe` with foreachBatch, and add up the groups of each"
            " `micro_batch`, or end with sink() in place of agg, and aggregate its data() with a watermark",
        )
        return self._aggregate(super().data(without))

    def acked(self) -> DataFrame:
        """Return the groups of the rows all of whose trees ended ACKED, and of unanchored rows; a batch only.

        Settles the messages now, and evaluates the pipeline again unless it is persisted.
        """
        return self._aggregate(super().acked())
