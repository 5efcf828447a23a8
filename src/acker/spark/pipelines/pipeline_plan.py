"""The plan of a tracked pipeline: a DataFrame, and the transforms that follow it until the next shuffle."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.
from pyspark.sql.types import StructType

from acker.errors import ArgumentTypeError, ArgumentValueError
from acker.spark.blocks import latest_event_ms
from acker.spark.pipelines.collector import COUNTERS_SHARD, notes_shard
from acker.spark.pipelines.failure_log import make_accumulator
from acker.spark.pipelines.hidden_columns import BLOCK, RESERVED, SHARD
from acker.spark.pipelines.pipeline_graph import PipelineGraph
from acker.spark.pipelines.row_schemas import (
    arrow_schema_of,
    make_nullable,
    with_hidden_columns,
    with_sql_columns,
)
from acker.spark.pipelines.sql_rows import begin_trees, messages_only, project
from acker.spark.pipelines.stages import Stage
from acker.spark.pipelines.transforms import SelectTransform, SpoutTransform, Transform
from acker.spark.report_receiver import ReportReceiver
from acker.spark.session_checks import is_classic
from acker.spark.versioned_pickle import pack_function

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from acker.spark.versioned_pickle import ArrowFunction


@dataclass(frozen=True, eq=False)
class PipelinePlan:
    """The plan of a pipeline; each method returns a new one and computes nothing.

    Attributes
    ----------
    frame : DataFrame
        The rows before the transforms.
    timed_frame : callable
        Returns the same with event times, given the column of the spouts' rows, which only the completions name.
    spouts : dict of str to StructType
        The schema of each spout's rows.
    sources : tuple of (DataFrame, SpoutTransform)
        The rows that each spout reads, and how it begins their trees.
    tracked : bool
        Whether `frame` has the hidden columns.
    transforms : tuple of Transform
    mute : int
        How many of the first transforms send no messages.
    schema : StructType
        The user's columns.
    run_seed, shards : int
    components : dict of str to object
        A token for each name of a component.
    origins : frozenset
        The tokens of the components whose messages this pipeline carries.
    strict : bool
        The default of bolts.
    unread : frozenset of str
        The components whose outputs no bolt reads.
    ids : str
        The type of message ids: "bigint" for integers of any width, "string" or "binary".
    graph : PipelineGraph
    sql : bool
        Whether `frame` has the hidden columns that SQL reads.
    native : bool
        Whether Python has run nowhere before `frame`.
    may_fail : bool
        Whether a step that SQL runs fails rows.
    """

    frame: DataFrame
    timed_frame: Callable[[str], DataFrame]
    spouts: dict[str, StructType]
    sources: tuple[tuple[DataFrame, SpoutTransform], ...]
    tracked: bool
    transforms: tuple[Transform, ...]
    mute: int
    schema: StructType
    run_seed: int
    shards: int
    components: dict[str, object]
    origins: frozenset[object]
    strict: bool
    unread: frozenset[str]
    ids: str
    graph: PipelineGraph
    sql: bool = False
    native: bool = False
    may_fail: bool = False

    @functools.cached_property
    def dataframe(self) -> DataFrame:
        """The DataFrame with hidden columns: data rows and carriers."""
        return self._evaluate(None)

    def describe(self, schema: StructType) -> str:
        """Return the components and these columns as text; asks Spark for nothing."""
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
        return f"components: {', '.join(self.components)}; columns: {columns}; shards: {self.shards}"

    @property
    def ends_in_sql(self) -> bool:
        """Whether `dataframe` has the hidden columns that SQL reads."""
        return self.sql and not self.transforms

    @property
    def is_streaming(self) -> bool:
        """Whether the DataFrame is a streaming one."""
        return bool(self.frame.isStreaming)

    def _evaluate(self, event_time: str | None) -> DataFrame:
        """Return the DataFrame; if a column of event times is named, with the time of its tree in each message."""
        frame = self._frame_at(event_time)
        if not self.transforms and self.tracked:
            return frame
        return self._run_stage(frame, event_time, self.schema)

    def _frame_at(self, event_time: str | None) -> DataFrame:
        return self.frame if event_time is None else self.timed_frame(event_time)

    def _run_stage(
        self, frame: DataFrame, event_time: str | None, schema: StructType, *, to_sql: bool = False
    ) -> DataFrame:
        """Run the transforms in Python, over a DataFrame in the place of the plan's."""
        timed = event_time is not None
        stage = Stage(
            tuple(_add_event_time(transform, event_time) for transform in self.transforms),
            arrow_schema_of(frame.sparkSession, schema),
            self.shards,
            self.mute,
            self.tracked,
            timed=timed,
            from_sql=self.sql,
            sql_ids=self.ids if to_sql else None,
        )
        failed = make_accumulator(frame.sparkSession)

        # With Spark Connect nobody knows how the workers could reach this program, so they write to their own log.
        reports = ReportReceiver.of_pipelines(frame.sparkSession).address if is_classic(frame.sparkSession) else None

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return stage.run_watched(batches, None if failed is None else failed.add, reports)

        output = with_sql_columns(schema, self.ids, timed=timed) if to_sql else with_hidden_columns(schema)
        return map_batches(frame, run, output, stage.name)

    def _carriers(self, event_time: str | None) -> DataFrame:
        """Return a DataFrame with all carriers; where rows carry messages themselves these are packed, without rows."""
        if not self.ends_in_sql:
            return self.dataframe if event_time is None else self._evaluate(event_time)
        return self._run_stage(messages_only(self._frame_at(event_time)), event_time, StructType([]))

    def to_sql(self) -> PipelinePlan:
        """Continue with a DataFrame whose hidden columns SQL reads; from the spout on without Python if possible."""
        if self.ends_in_sql:
            return self
        native = not self.tracked and all(isinstance(each, SelectTransform) for each in self.transforms[1:])

        def evaluate(event_time: str | None) -> DataFrame:
            frame = self._frame_at(event_time)
            if not native:
                return self._run_stage(frame, event_time, self.schema, to_sql=True)
            (spout,) = (each for each in self.transforms if isinstance(each, SpoutTransform))
            rows = begin_trees(frame, spout, self.ids, event_time)
            return project(rows, dict.fromkeys(self.schema.names))

        plan = self.replace_frame(evaluate(None))
        return replace(plan, timed_frame=functools.cache(evaluate), sql=True, native=native, may_fail=False)

    def to_python(self) -> PipelinePlan:
        """Continue with a DataFrame that has the hidden columns of Python stages."""
        if not self.ends_in_sql:
            return self

        def evaluate(event_time: str | None) -> DataFrame:
            return self._run_stage(self._frame_at(event_time), event_time, self.schema)

        plan = self.replace_frame(evaluate(None))
        return replace(plan, timed_frame=functools.cache(evaluate), sql=False, native=False)

    def sql_step(self, step: Callable[..., DataFrame], text: str, *others: PipelinePlan) -> PipelinePlan:
        """Add a step that Spark runs, from DataFrames with the hidden columns that SQL reads to another one.

        With others it makes one DataFrame of that of this pipeline and of theirs.
        """
        plans = [each.to_sql() for each in (self, *others)]

        def evaluate(event_time: str | None) -> DataFrame:
            return step(*(plan._frame_at(event_time) for plan in plans))

        frame = step(*(plan.frame for plan in plans))
        schema = make_nullable(StructType([each for each in frame.schema if each.name not in RESERVED]))
        whole, *rest = (replace(plan, graph=plan.graph.step(text) if text else plan.graph) for plan in plans)
        for other in rest:
            whole = whole.with_plan(other)
        return replace(whole, frame=frame, timed_frame=functools.cache(evaluate), schema=schema)

    def blocks(self) -> DataFrame:
        """Return the packed messages: shard int, block binary."""
        return (
            self._carriers(None)
            .where(F.col(SHARD) >= 0)
            .select(F.col(SHARD).alias("shard"), F.col(BLOCK).alias("block"))
        )

    def blocks_and_notes(self, event_time: str | None = None) -> DataFrame:
        """Return messages and notes of trees, packed, as `blocks`; with event times also event_ms, the latest."""
        frame = self._carriers(event_time)
        number = F.col(SHARD)
        shard = F.when(number >= 0, number).otherwise(notes_shard(number))
        rows = frame.where(number != COUNTERS_SHARD).select(shard.alias("shard"), F.col(BLOCK).alias("block"))
        return rows if event_time is None else rows.withColumn("event_ms", latest_event_ms(F.col("block")))

    def add_component(self, component: str) -> PipelinePlan:
        """Add the name of a component that sends messages."""
        check_component(component)
        if component in self.components:
            raise ArgumentValueError(f"component: {component!r} is there already; its tuple ids would be given twice")
        token = object()
        return replace(
            self,
            components={**self.components, component: token},
            origins=self.origins | frozenset({token}),
            graph=self.graph.add(component),
        )

    def transform(self, transform: Transform, schema: StructType | None = None) -> PipelinePlan:
        """Add a transform; without a schema it keeps the columns."""
        return replace(self, transforms=(*self.transforms, transform), schema=self.schema if schema is None else schema)

    def shuffle(self, move: Callable[..., DataFrame], *others: PipelinePlan) -> PipelinePlan:
        """Continue with the DataFrame that `move` makes of those of this pipeline and of others."""

        def evaluate(event_time: str | None) -> DataFrame:
            return move(*(plan._evaluate(event_time) for plan in (self, *others)))

        frame = move(*(plan.dataframe for plan in (self, *others)))
        # Cached, so that the branches of a pipeline share the frame before the fork.
        return replace(self.replace_frame(frame), timed_frame=functools.cache(evaluate))

    def with_plan(self, other: PipelinePlan) -> PipelinePlan:
        """Continue with the components of another pipeline too, whose rows are in the DataFrame."""
        return replace(
            self,
            native=self.native and other.native,
            may_fail=self.may_fail or other.may_fail,
            spouts={**self.spouts, **other.spouts},
            sources=tuple(dict.fromkeys((*self.sources, *other.sources))),
            components={**self.components, **other.components},
            origins=self.origins | other.origins,
            unread=self.unread | other.unread,
            graph=self.graph.union(other.graph),
        )

    def replace_frame(self, frame: DataFrame) -> PipelinePlan:
        """Continue with a DataFrame that has the hidden columns, of the kind that this plan's has."""
        sql = self.ends_in_sql
        return replace(
            self,
            frame=frame,
            timed_frame=lambda _: frame,
            tracked=True,
            transforms=(),
            mute=0,
            sql=sql,
            native=sql and self.native,
        )


def check_component(component: object) -> None:
    """Refuse what is no name of a component."""
    if not isinstance(component, str) or not component:
        raise ArgumentTypeError(f"component: expected a name, got {component!r}")


def check_disjoint(plans: list[PipelinePlan]) -> None:
    """Refuse pipelines that do not fit together, or of which two carry the messages of one component.

    Raises
    ------
    ArgumentValueError
    """
    seen: set[object] = set()
    names: dict[str, object] = {}
    for plan in plans:
        if plan.shards != plans[0].shards:
            raise ArgumentValueError(f"shards: {plans[0].shards} in one pipeline, {plan.shards} in another")
        if plan.is_streaming != plans[0].is_streaming:
            raise ArgumentValueError("expected pipelines that are all streaming or all batch, got both")
        if plan.ids != plans[0].ids:
            raise ArgumentValueError(
                f"message_id: ids of {' and '.join(map(repr, plans[0].spouts))} are {plans[0].ids}, those of"
                f" {' and '.join(map(repr, plan.spouts))} are {plan.ids}: cast one of the columns"
            )
        for name, token in plan.components.items():
            if names.setdefault(name, token) is not token:
                raise ArgumentValueError(f"component: {name!r} names two components")
            if token in seen and token in plan.origins:
                raise ArgumentValueError(
                    f"both pipelines carry the messages of {name!r}, which would count twice: part them with branches"
                )
        seen |= plan.origins


def _add_event_time(transform: Transform, event_time: str | None) -> Transform:
    return replace(transform, event_time=event_time) if isinstance(transform, SpoutTransform) else transform


def map_batches(frame: DataFrame, run: ArrowFunction, schema: StructType, name: str) -> DataFrame:
    """Map a function over the Arrow batches of a DataFrame, whose columns may have any names; plans show its name."""
    names = frame.columns
    if not any(mark in name for name in names for mark in "`."):
        return frame.mapInArrow(pack_function(run, name), schema)

    def run_with_names(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run(batch.rename_columns(names) for batch in batches)

    # PySpark looks columns up by name, and a dot in a name would select a field of a struct.
    return frame.toDF(*(f"column{index}" for index in range(len(names)))).mapInArrow(
        pack_function(run_with_names, name), schema
    )
