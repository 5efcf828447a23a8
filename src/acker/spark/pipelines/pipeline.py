"""A pipeline and what one evaluation of it gives: the data, the completions of its trees, and the failures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Unpack

import numpy as np
from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.

from acker._engine.protocol import Outcome
from acker.errors import ArgumentValueError
from acker.spark.block_settlement import by_shard
from acker.spark.job_descriptions import describe_jobs
from acker.spark.messages import quote_column
from acker.spark.options import CompletionKeywords, check_options, takes_options
from acker.spark.pipelines.collector import COUNTERS_SHARD
from acker.spark.pipelines.counters import PipelineCounters, sum_counters
from acker.spark.pipelines.failures import FAILURES_DDL, list_failures
from acker.spark.pipelines.hidden_columns import ALIVE, BLOCK, ROOT, SHARD
from acker.spark.pipelines.pipeline_plan import map_batches
from acker.spark.pipelines.pipeline_settlement import settle_pipelines
from acker.spark.pipelines.sql_rows import rows_without
from acker.spark.pipelines.stages import without_trees
from acker.spark.pipelines.unfinished import find_unfinished
from acker.spark.versioned_pickle import pack_function

if TYPE_CHECKING:
    from typing import Self

    import numpy.typing as npt
    import pyarrow as pa
    from pyspark import StorageLevel
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from acker.spark.pipelines.pipeline_plan import PipelinePlan


class Pipeline:
    """Rows that carry their trees, together with the messages of all components before them."""

    def __init__(self, plan: PipelinePlan) -> None:
        self.plan = plan  # For acker itself.
        self._counters: PipelineCounters | None = None

    def __repr__(self) -> str:
        plan = self.plan.describe(self._schema)
        return f"<{type(self).__name__} {plan}; DataFrames: data(), completions(), failures()>"

    def _repr_html_(self) -> str:
        """Return the drawing, with the counts once `counters` has been called, and the columns; asks Spark nothing."""
        from html import escape

        plan, counters = self.plan, None if self._counters is None else self._counters.components
        return f"{plan.graph.drawing(plan.spouts, plan.components, counters)}<p>{escape(repr(self))}</p>"

    @property
    def _schema(self) -> StructType:
        """The schema of `data`."""
        return self.plan.schema

    @property
    def _explained(self) -> DataFrame:
        """The DataFrame that `explain` explains."""
        return self.dataframe

    def _with_plan(self, plan: PipelinePlan) -> Self:
        """Return a pipeline like this one with another DataFrame."""
        return type(self)(plan)

    @property
    def columns(self) -> list[str]:
        """Names of the user's columns."""
        return list(self._schema.names)

    @property
    def run_seed(self) -> int:
        """Key of all ids; a `spout` with the same one repeats them."""
        return self.plan.run_seed

    @property
    def dataframe(self) -> DataFrame:
        """The DataFrame with hidden columns: data rows and carriers. For `micro_batch`, `explain` and the like."""
        return self.plan.dataframe

    def explain(self, mode: str = "simple") -> None:
        """Print the components and the steps between them, and Spark's plan; `mode` as in Spark's ``explain``."""
        print("== Tracked Pipeline ==", *self.plan.graph.lines(), "", sep="\n")  # noqa: T201  As Spark's does.
        self._explained.explain(mode=mode)

    def described(self, text: str = "") -> AbstractContextManager[None]:
        """Return a context manager that names the components and steps in Spark's UI, at jobs and stages.

        These are the jobs that this thread starts in the ``with`` block. What the thread has set by
        ``setJobDescription`` stands before, and is set again behind the block. No effect with Spark Connect.

        Parameters
        ----------
        text : str
            Stands before the components.

        Examples
        --------
        >>> with shipped.described("nightly"):                                                          # doctest: +SKIP
        ...     shipped.data().write.parquet("shipped")
        """
        lines = self.plan.graph.lines()
        graph = "; ".join([line for line in lines if " > " in line] or lines)
        return describe_jobs(self.dataframe.sparkSession, f"{text}: {graph}" if text else graph)

    def persist(self, level: StorageLevel | None = None) -> Self:
        """Keep the computed rows, so that data, completions and failures come from one evaluation."""
        self._refuse_streaming(
            "persist",
            "a stream has no end that could be kept: write `dataframe` with foreachBatch, and persist the"
            " `micro_batch` of its function",
        )
        frame = self.dataframe.persist() if level is None else self.dataframe.persist(level)
        return self._with_plan(self.plan.replace_frame(frame))

    def unpersist(self) -> Self:
        """Free what `persist` kept; call it on what `persist` returned."""
        return self._with_plan(self.plan.replace_frame(self.dataframe.unpersist()))

    def micro_batch(self, frame: DataFrame) -> Self:
        """Return the pipeline as one micro-batch evaluated it: for functions given to foreachBatch.

        Parameters
        ----------
        frame : DataFrame
            The argument of the function, in a query that writes `dataframe` of this pipeline.

        Returns
        -------
        Pipeline of the same class
            On a batch DataFrame, so with `persist` and all. Its completions are those of this micro-batch's messages
            alone.

        Examples
        --------
        >>> def write(frame, batch_id):                                                                 # doctest: +SKIP
        ...     part = pipeline.micro_batch(frame).persist()
        ...     part.data().write.mode("overwrite").parquet(f"words/batch={batch_id}")
        ...     part.failures().write.mode("overwrite").parquet(f"failures/batch={batch_id}")
        >>> pipeline.dataframe.writeStream.foreachBatch(write).start()                                  # doctest: +SKIP
        """
        expected = self.dataframe.columns
        if frame.isStreaming or frame.columns != expected:
            got = "a streaming one" if frame.isStreaming else f"the columns {', '.join(frame.columns)}"
            raise ArgumentValueError(
                f"frame: expected the argument of a foreachBatch function, a batch DataFrame with the columns"
                f" {', '.join(expected)}, got {got}"
            )
        return self._with_plan(self.plan.replace_frame(frame))

    def data(self, without: npt.ArrayLike | None = None) -> DataFrame:
        """Return the data rows, with the user's columns.

        Parameters
        ----------
        without : (n,) int64, optional
            Root ids: rows that belong to any of these trees are left out.
        """
        return self._rows(without)

    def acked(self) -> DataFrame:
        """Return the data rows all of whose trees ended ACKED; unanchored rows too.

        Settles the messages now, and evaluates the pipeline again unless it is persisted.
        """
        self._refuse_streaming(
            "acked", "trees are still open when their rows leave: join `data` with the completions that come later"
        )
        done = self.completions(include_pending=True).where(F.col("outcome") != int(Outcome.ACKED))
        if self.plan.ends_in_sql:
            trees = done.select(F.col("root_id").alias(ROOT))
            return rows_without(self.dataframe, trees).select(*map(quote_column, self.plan.schema.names))
        with self.described("acked()"):
            rows = done.select("root_id").collect()
        return self._rows([row.root_id for row in rows])

    def unfinished(self, source: DataFrame | None = None) -> DataFrame:
        """Return the messages whose trees did not end ACKED, with the rows that they were.

        Columns: message_id; outcome string, FAILED or PENDING; component, reason string, as in `completions`; attempt
        long; row, a struct of the spout's columns. Of a union of spouts it has the columns of all of them.

        Settles the messages, and reads the rows of the spouts again.

        Parameters
        ----------
        source : DataFrame, optional
            The rows of the spout, in place of those that it reads. A `micro_batch` needs it: such as the table that the
            stream reads.
        """
        sources = self.plan.sources
        if source is not None:
            if len(sources) != 1:
                raise ArgumentValueError(f"source: expected a pipeline of one spout, got {len(sources)}")
            sources = ((source, sources[0][1]),)
        if any(frame.isStreaming for frame, _ in sources) or self.plan.is_streaming:
            raise ArgumentValueError(
                "unfinished: expected rows of a batch, got those of a stream: call it on a `micro_batch`, with a batch"
                " DataFrame of the spout's rows as source"
            )
        return find_unfinished(self.completions(include_pending=True), sources, self.plan.ids)

    @takes_options(CompletionKeywords)
    def completions(self, **options: Unpack[CompletionKeywords]) -> DataFrame:
        """Return one row for each finished tree, with why it failed; columns and options as of `completions_of`."""
        return settle_pipelines([self.plan], check_options(**options))

    def blocks(self) -> DataFrame:
        """Return the packed messages, columns shard int and block binary: for `completions_from_blocks`.

        Message ids that are texts are numbers there: those that Spark's function ``xxhash64`` gives.
        """
        return self.plan.blocks()

    def failures(self) -> DataFrame:
        """Return the rows that failed, and why: one for each row and tree, and one for a row without a tree.

        Columns: message_id, of the tree's row; component, reason string, the bolt and what it raised; attempt long, of
        the spout's row; row string, what the bolt got as JSON; root_id, tuple_id long. Texts are cut at 1,000
        characters. The four ids are null without a tree; later `branches` do not know message_id and attempt, which
        travel with the first.
        """
        rows = by_shard(self.plan.blocks_and_notes(), self.plan.shards)
        ids = self.plan.ids

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return list_failures(batches, ids)

        return rows.mapInArrow(pack_function(run, "failures"), f"message_id {ids}, {FAILURES_DDL}")

    def counters(self) -> PipelineCounters:
        """Compute the counters of each component; evaluates the pipeline."""
        self._refuse_streaming("counters", "a stream has no end to sum up at: ask a `micro_batch`")
        with self.described("counters()"):
            rows = self.dataframe.where(F.col(SHARD) == COUNTERS_SHARD).select(BLOCK).collect()
        self._counters = sum_counters([json.loads(bytes(row[0])) for row in rows])
        return self._counters

    def _refuse_streaming(self, method: str, hint: str) -> None:
        if self.plan.is_streaming:
            raise ArgumentValueError(f"{method}: expected a pipeline on a batch DataFrame, got a streaming one; {hint}")

    def _rows(self, without: npt.ArrayLike | None) -> DataFrame:
        """Return the user's rows, without those of these trees."""
        sql, columns = self.plan.ends_in_sql, self.plan.schema.names
        rows = self.dataframe.where(F.col(ALIVE) if sql else F.col(SHARD).isNull())
        if without is None:
            return rows.select(*map(quote_column, columns))
        excluded = np.unique(np.asarray(without, np.int64))
        if sql:
            trees = self.dataframe.sparkSession.createDataFrame([(root,) for root in excluded.tolist()], f"{ROOT} long")
            return rows_without(self.dataframe, trees).select(*map(quote_column, columns))

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return without_trees(excluded, columns, batches)

        return map_batches(self.dataframe, run, self.plan.schema, "data")
