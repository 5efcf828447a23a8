"""Tracked pipelines: DataFrames whose rows are tuples of trees, so that the acker knows when each tree is finished.

A spout begins a tree for each row, bolts run functions over the rows, and one evaluation of the last DataFrame yields
the data, the messages for the acker and the texts of failures together. Messages travel as blocks in a few carrier rows
of the same DataFrame. Ids are keyed hashes, so what Spark computes twice comes out the same.

A stage keeps nothing between rows that does not leave at the end of its task. So a pipeline on a streaming DataFrame is
the same plan, run for each micro-batch; only what needs an end of the data, or an evaluation now, is refused there.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.
from pyspark.sql.types import ArrayType, BooleanType, StructType

from acker._engine.combiner import check_shards
from acker._engine.protocol import INT32_MAX, INT64_MAX, INT64_MIN, check_integer
from acker.errors import ArgumentTypeError, ArgumentValueError
from acker.spark.messages import quote_column
from acker.spark.pipelines.aggregated import ENDED, Aggregated
from acker.spark.pipelines.hidden_columns import SHARD
from acker.spark.pipelines.pipeline import Pipeline
from acker.spark.pipelines.pipeline_graph import PipelineGraph
from acker.spark.pipelines.pipeline_plan import PipelinePlan, check_component, check_disjoint
from acker.spark.pipelines.row_schemas import (
    arrow_schema_of,
    check_id_column,
    check_integer_column,
    check_names,
    make_nullable,
    parse_schema,
)
from acker.spark.pipelines.sql_checks import (
    check_expressions,
    check_static_side,
    check_tracked_sides,
    columns_read,
    expression_of,
    text_of,
)
from acker.spark.pipelines.sql_joins import join_static, join_tracked
from acker.spark.pipelines.sql_rows import (
    branch_rows,
    drop_copies,
    end_trees,
    explode_rows,
    fail_nulls,
    keep,
    project,
)
from acker.spark.pipelines.transforms import BoltTransform, BranchTransform, SelectTransform, SpoutTransform

_BY: Final = ("row", "batch", "partition")

AnyPipeline = TypeVar("AnyPipeline", bound=Pipeline)


def spout(
    frame: DataFrame,
    *,
    message_id: str,
    component: str = "spout",
    source: str | None = None,
    task_id: str | int = 0,
    attempt: str | int = 0,
    run_seed: int | None = None,
    shards: int | None = None,
    strict: bool = False,
) -> Tracked:
    """Begin a tree with one tuple for each row of a DataFrame.

    Parameters
    ----------
    frame : DataFrame
        Batch or streaming.
    message_id : str
        The column with the spout's own id of each row, unique within (source, attempt); in a stream for all of its
        life. Integers, strings or binaries, such as UUIDs: of these the acker gets a 64-bit hash, and completions,
        failures and replays have the id itself. A row where it is null stays unanchored: no completion reports it.
    component : str
        Name of the spout.
    source : str, optional
        The integer column that distinguishes the sources of message ids, such as files or partitions.
    task_id : str or int
        The column, or the one number, of the spout task that gets the outcome; int32 >= 0.
    attempt : str or int
        The column, or the one number, that distinguishes the replays of a message.
    run_seed : int, optional
        Key of all ids. By default this function takes one from the operating system. A streaming frame needs one, the
        same at each start from a checkpoint: a micro-batch that runs again must repeat its ids.
    shards : int, 1 to 1024, optional
        Into how many shards messages are split before they are settled; by default Spark's shuffle partitions, at most
        16.
    strict : bool
        The default of `strict` in `Tracked.bolt`.

    Returns
    -------
    Tracked

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        A column that is missing or not of integers, a reserved column name, a streaming DataFrame without run_seed.

    Examples
    --------
    >>> lines = spout(frame, message_id="line")                                                         # doctest: +SKIP
    >>> words = lines.bolt(lambda row: row.text.split(), schema="word string", component="split")       # doctest: +SKIP
    >>> words.bolt(print, schema="word string", component="count", sink=True).completions().show()      # doctest: +SKIP
    """
    if not isinstance(frame, DataFrame):
        raise ArgumentTypeError(
            f"frame: expected a DataFrame of PySpark, got {type(frame).__module__}.{type(frame).__qualname__}"
        )
    if frame.isStreaming and run_seed is None:
        raise ArgumentValueError(
            "run_seed: expected a number for a streaming frame, got None; give the same one at each start, so that a"
            " micro-batch that runs again repeats its ids"
        )
    schema = make_nullable(frame.schema)
    check_names(schema.names)
    check_component(component)
    ids = check_id_column(schema, "message_id", message_id)
    if source is not None:
        check_integer_column(schema, "source", source)
    for name, column, most in (("task_id", task_id, INT32_MAX), ("attempt", attempt, INT64_MAX)):
        if isinstance(column, str):
            check_integer_column(schema, name, column)
        else:
            check_integer(name, column, 0, most)
    if run_seed is None:
        run_seed = int.from_bytes(os.urandom(8), "little", signed=True)
    check_integer("run_seed", run_seed, INT64_MIN, INT64_MAX)
    if shards is None:
        shards = min(16, int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1))
    token = object()
    transform = SpoutTransform(component, run_seed, message_id, source, task_id, attempt)
    return Tracked(
        PipelinePlan(
            frame=frame,
            timed_frame=lambda _: frame,
            spouts={component: schema},
            sources=((frame, transform),),
            tracked=False,
            transforms=(transform,),
            mute=0,
            schema=schema,
            run_seed=run_seed,
            shards=check_shards(shards),
            components={component: token},
            origins=frozenset({token}),
            strict=bool(strict),
            unread=frozenset({component}),
            ids=ids,
            graph=PipelineGraph().add(component),
        )
    )


class Tracked(Pipeline):
    """A DataFrame whose rows carry their trees, together with the messages of all components before it.

    Made by `spout`; each method returns a new one and computes nothing. `data`, `completions` and `failures` return
    ordinary DataFrames, each of which evaluates the pipeline: call `persist` first to use several. The functions of
    bolts may run more than once for a row (a retried task, a second evaluation) and must give the same outputs in the
    same order each time.

    On a streaming DataFrame `data`, `completions` and `failures` return streaming DataFrames, each for a query of its
    own. To have everything from one evaluation write `dataframe` with foreachBatch, and call `micro_batch` in its
    function.
    """

    def bolt(
        self,
        function: Callable[[Any], Any],
        *,
        schema: StructType | str,
        component: str | None = None,
        by: str = "row",
        sink: bool = False,
        strict: bool | None = None,
    ) -> Tracked:
        """Run a function over the rows; acknowledge each input row in each of its trees, or fail it.

        Parameters
        ----------
        function
            by="row": called with each row, a named tuple; returns or yields the rows to emit, or returns None. A row is
            a tuple or a dict; with a schema of one column the value alone is enough.
            by="batch": called with an Arrow RecordBatch, returns `Outputs` or None. Its outputs for a row must not
            depend on the other rows, as Spark may cut batches differently. When it raises it is called again for parts
            of the batch, until the rows for which it raises are found. If it raises the same error (one type, one line)
            for each first half, down to the first row, and for each of 32 single rows, all rows of the batch fail.
            by="partition": as "batch", with all rows of the partition at once (after `grouped`: all rows of each key),
            so it may join rows. When it raises, all of them fail.
        schema : StructType or str
            Columns of the outputs.
        component : str
            Name of the bolt, used once in a pipeline; the function's name if it has one.
        by : {"row", "batch", "partition"}
        sink : bool
            The outputs are results that no bolt reads: they get no tuple id, so the tree does not wait for them.
        strict : bool, optional
            True: the first row that fails ends the job, with an error that names the component and what it raised.
            False: the row fails its trees; the worker logs the first one, the driver the number (logger
            `acker.spark`). By default as in `spout`.

        Returns
        -------
        Tracked

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            A wrong argument. Errors that `function` raises later fail rows: see `failures`.
        """
        if not callable(function):
            raise ArgumentTypeError(f"function: expected a callable, got {type(function).__name__}")
        if by not in _BY:
            raise ArgumentValueError(f"by: expected one of {', '.join(map(repr, _BY))}, got {by!r}")
        if component is None:
            component = getattr(function, "__name__", "<lambda>")
            if component == "<lambda>":
                raise ArgumentValueError("component: a function without a name needs one")
        plan = self.plan
        struct = make_nullable(parse_schema(schema))
        transform = BoltTransform(
            component,
            plan.run_seed,
            function,
            by,
            arrow_schema_of(plan.frame.sparkSession, struct),
            bool(sink),
            plan.strict if strict is None else bool(strict),
        )
        unread = frozenset[str]() if sink else frozenset({component})
        return Tracked(replace(plan.add_component(component).transform(transform, struct), unread=unread))

    def grouped(self, *columns: str, partitions: int | None = None) -> Grouped:
        """Bring rows with the same values in these columns to one partition (fields grouping).

        Go on with a bolt or another step, or end the pipeline with `Grouped.agg`.
        """
        if not columns:
            raise ArgumentValueError("columns: expected at least one")
        _check_columns(self.plan, columns)
        # Carriers have null in every column of the user and are spread by their shard, which is null on data rows and
        # leaves their hash as it is.
        by = [F.col(quote_column(name)) for name in (*columns, SHARD)]
        graph = self.plan.graph.step(f"fields({', '.join(columns)})")
        if partitions is None:
            shuffled = self.plan.shuffle(lambda frame: frame.repartition(*by))
        else:
            partitions = check_integer("partitions", partitions, 1, INT32_MAX)
            shuffled = self.plan.shuffle(lambda frame: frame.repartition(partitions, *by))
        return Grouped(replace(shuffled, graph=graph), columns, partitions, self.plan)

    def shuffled(self, partitions: int) -> Tracked:
        """Spread rows evenly (shuffle grouping)."""
        partitions = check_integer("partitions", partitions, 1, INT32_MAX)
        graph = self.plan.graph.step("shuffle")
        return Tracked(replace(self.plan.shuffle(lambda frame: frame.repartition(partitions)), graph=graph))

    def select(self, *columns: Column | str) -> Tracked:
        """Keep or compute columns: names, and expressions of one row with an alias.

        Where a Python function has run before and only names are given, its worker keeps the columns.
        """
        if not columns:
            raise ArgumentValueError("columns: expected at least one")
        names = [name for name in columns if isinstance(name, str)]
        _check_columns(self.plan, names)
        if len(names) == len(columns) and self.plan.transforms:
            return Tracked(
                replace(
                    self.plan.transform(
                        SelectTransform(tuple(names)), StructType([self.plan.schema[n] for n in names])
                    ),
                    graph=self.plan.graph.step(f"select({', '.join(names)})"),
                )
            )
        plan = self.plan.to_sql()
        chosen: dict[str, Column | None] = {}
        for column in columns:
            if isinstance(column, str):
                name, value = column, None
            else:
                (name,) = check_expressions("select", plan.frame, [expression_of("select", "columns", column)]).names
                value = column
            check_names([*chosen, name])
            chosen[name] = value
        return Tracked(plan.sql_step(lambda frame: project(frame, chosen), f"select({', '.join(chosen)})"))

    def with_columns(
        self,
        columns: Mapping[str, Column | str] | None = None,
        *,
        on_error: str = "fail_job",
        component: str = "with_columns",
        **more: Column | str,
    ) -> Tracked:
        """Add or replace columns by expressions of one row.

        Parameters
        ----------
        columns, more : mapping of str to Column or str
            The expression of each column, as a column of Spark or as SQL text.
        on_error : {"fail_job", "fail_row"}
            "fail_job": an expression that raises ends the job, as in Spark. "fail_row": give expressions that are null
            where they would raise, such as ``try_cast`` and ``try_divide``. A row fails its tree where one is null
            though no column that it reads is; `failures` and `completions` have `component` and the text of the
            expression.
        component : str
            The name that failures have.
        """
        if on_error not in ("fail_job", "fail_row"):
            raise ArgumentValueError(f"with_columns: on_error: expected 'fail_job' or 'fail_row', got {on_error!r}")
        given = {**(columns or {}), **more}
        if not given:
            raise ArgumentValueError("columns: expected at least one")
        check_component(component)
        plan = self.plan.to_sql()
        values = {name: expression_of("with_columns", name, value) for name, value in given.items()}
        check_expressions("with_columns", plan.frame, list(values.values()))
        chosen = {**dict.fromkeys(plan.schema.names), **values}
        check_names(chosen)
        step = f"with_columns({', '.join(values)})"
        if on_error == "fail_job":
            return Tracked(plan.sql_step(lambda frame: project(frame, chosen), step))
        reads, texts = columns_read(plan.frame, plan.schema.names, values)
        failing = plan.sql_step(lambda frame: fail_nulls(frame, values, texts, reads, component), step)
        return Tracked(replace(failing, may_fail=True))

    def drop(self, *columns: str) -> Tracked:
        """Leave out these columns."""
        _check_columns(self.plan, columns)
        kept = [name for name in self.columns if name not in columns]
        if not columns or not kept:
            raise ArgumentValueError("columns: expected at least one, and one that stays")
        return self.select(*kept)

    def where(self, condition: Column | str) -> Tracked:
        """Keep the rows for which an expression of one row is true; a row that it drops is done in its tree."""
        plan = self.plan.to_sql()
        value = expression_of("where", "condition", condition)
        found = check_expressions("where", plan.frame, [value])[0].dataType
        if not isinstance(found, BooleanType):
            raise ArgumentTypeError(f"where: expected a condition, got an expression of {found.simpleString()}")
        return Tracked(plan.sql_step(lambda frame: keep(frame, value), f"where({text_of(condition)})"))

    def explode(
        self, column: str, *, into: str | None = None, outer: bool = False, component: str = "explode"
    ) -> Tracked:
        """Replace each row by one for each element of a column of arrays; they are its children in its tree.

        Parameters
        ----------
        column : str
        into : str, optional
            The name of the column of elements; by default that of the arrays, which it replaces.
        outer : bool
            Whether a row whose array is null or empty stays, with null; else it is done.
        component : str
            Part of the keys of the children's ids.
        """
        _check_columns(self.plan, [column])
        check_component(component)
        found = self.plan.schema[column].dataType
        if not isinstance(found, ArrayType):
            raise ArgumentTypeError(f"explode: expected a column of arrays, {column!r} is {found.simpleString()}")
        others = [name for name in self.columns if name != column]
        check_names([*others, into or column])
        plan = self.plan.to_sql()
        array = F.col(quote_column(column))

        def step(frame: DataFrame) -> DataFrame:
            return explode_rows(frame, array, into or column, others, plan.run_seed, component, outer=outer)

        return Tracked(replace(plan.sql_step(step, f"explode({column})"), unread=plan.unread | {component}))

    def drop_duplicates(self, keys: Sequence[str] | None = None) -> Tracked:
        """Keep one row of those with the same values in these columns (by default all); the others are done.

        Which one stays is the same in each evaluation. A batch only.
        """
        self._refuse_streaming(
            "drop_duplicates", "Spark would drop rows without a message: drop copies before the spout"
        )
        if isinstance(keys, str) or (keys is not None and not keys):
            raise ArgumentTypeError(f"drop_duplicates: keys: expected a sequence of columns, got {keys!r}")
        names = self.columns if keys is None else list(keys)
        _check_columns(self.plan, names)
        step = f"drop_duplicates({', '.join(names)})"
        return Tracked(self.plan.sql_step(lambda frame: drop_copies(frame, names), step))

    def join(
        self, other: DataFrame | Tracked, on: str | Sequence[str], how: str = "inner", *, component: str = "join"
    ) -> Tracked:
        """Join the rows with those of a static DataFrame, which carry no trees, or with those of another pipeline.

        Parameters
        ----------
        other : DataFrame or Tracked
            A DataFrame of a batch; or a pipeline, if both are of a batch: a joined row is a child of both rows, so it
            belongs to the trees of both. A null key matches nothing.
        on : str or sequence of str
            Columns that both sides have, with the same types; integers of a DataFrame may have another width.
        how : {"inner", "left", "left_semi", "left_anti", "right", "outer"}
            A row without a match is done with "inner" and "left_semi", and stays with "left" and "left_anti". With two
            pipelines also "right" and "outer"; a row of the side that does not stay is done.
        component : str
            Part of the keys of the ids: each match is a child of its row.
        """
        _refuse_aggregated("join", other)
        names = [on] if isinstance(on, str) else list(on)
        _check_columns(self.plan, names)
        check_component(component)
        if not names:
            raise ArgumentValueError("join: on: expected at least one column")
        if isinstance(other, Tracked):
            check_tracked_sides(self.plan, other.plan, names, how)
        else:
            check_static_side(self.plan, other, names, how)
        if how not in ("left_semi", "left_anti"):
            check_names([*self.columns, *(name for name in other.columns if name not in names)])
        seed, step = self.plan.run_seed, f"join({', '.join(names)}, {how})"
        if isinstance(other, Tracked):
            plan = self.plan.sql_step(
                lambda one, two: join_tracked(one, two, names, how, seed, component), step, other.plan
            )
        else:
            plan = self.plan.sql_step(lambda frame: join_static(frame, other, names, how, seed, component), step)
        return Tracked(plan if how in ("left_semi", "left_anti") else replace(plan, unread=plan.unread | {component}))

    def sink(self) -> Tracked:
        """End the trees of all rows: they are results that no bolt reads, as those of a bolt with ``sink=True``."""
        return Tracked(replace(self.plan.sql_step(end_trees, "sink"), unread=frozenset()))

    def transform(self, function: Callable[..., AnyPipeline], *arguments: Any, **named: Any) -> AnyPipeline:
        """Return ``function(self, ...)``, so that functions of a pipeline can be chained."""
        result = function(self, *arguments, **named)
        found: object = result
        if not isinstance(found, Pipeline):
            got = type(found).__name__
            raise ArgumentTypeError(f"transform: expected a function that returns a Tracked, got {got}")
        return result

    def branches(self, count: int, *, component: str = "branches") -> tuple[Tracked, ...]:
        """Deliver each tuple to several readers, as when several bolts subscribe to one stream.

        A pipeline that is simply used twice would acknowledge the same tuple twice. The rows before the fork are
        computed once for each branch (unless persisted). Their messages travel with the first branch only, so call
        `union` or `completions_of` with all branches together.

        Parameters
        ----------
        count : int >= 1
        component : str
            Name of the fork, used once in a pipeline.

        Returns
        -------
        tuple of Tracked, one for each branch
        """
        check_integer("count", count, 1, 1024)
        plan = replace(self.plan.add_component(component), unread=frozenset({component}))
        forked = []
        for branch in range(count):
            if plan.ends_in_sql:
                step = functools.partial(
                    branch_rows, run_seed=plan.run_seed, component=component, branch=branch, branches=count
                )
                part = plan.sql_step(step, "")
            else:
                part = plan.transform(BranchTransform(component, plan.run_seed, branch, count))
            if branch > 0:  # It repeats the rows, and carries no messages of the components before the fork.
                part = replace(part, mute=len(part.transforms), origins=frozenset())
            forked.append(Tracked(part))
        return tuple(forked)

    def union(self, other: Tracked) -> Tracked:
        """Put the rows and messages of two pipelines together.

        Raises
        ------
        ArgumentValueError
            Their columns or shards differ, both carry the messages of one component, two components have one name, or
            one is a stream and the other a batch.
        """
        _refuse_aggregated("union", other)
        one, two = self.plan, other.plan
        check_disjoint([one, two])
        if [(f.name, f.dataType) for f in one.schema] != [(f.name, f.dataType) for f in two.schema]:
            raise ArgumentValueError(
                f"union: the columns differ: {one.schema.simpleString()} and {two.schema.simpleString()}"
            )
        if one.ends_in_sql != two.ends_in_sql:
            one, two = one.to_python(), two.to_python()
        joined = one.shuffle(lambda first, second: first.unionByName(second, allowMissingColumns=True), two)
        return Tracked(joined.with_plan(two))


class Grouped(Tracked):
    """What `Tracked.grouped` returns: a pipeline that goes on as any other, or ends with `agg`."""

    def __init__(
        self, plan: PipelinePlan, keys: Sequence[str], partitions: int | None, ungrouped: PipelinePlan
    ) -> None:
        super().__init__(plan)
        self._keys = keys
        self._partitions = partitions
        # An aggregation shuffles what is left of the rows, and not the rows.
        self._ungrouped = ungrouped

    def _with_plan(self, plan: PipelinePlan) -> Grouped:
        return Grouped(plan, self._keys, self._partitions, plan)

    def agg(self, *columns: Column | str) -> Aggregated:
        """Aggregate the rows of each group, and end their trees as `sink` does: a group is a result of all its rows.

        Spark aggregates, in the JVM unless an aggregate is a Python function. `Aggregated.acked` leaves out each row of
        which a tree did not end ACKED.

        Parameters
        ----------
        columns : Column or str
            Aggregates of Spark's, as columns or as SQL text, such as ``"sum(price) as total"``.

        Returns
        -------
        Aggregated
            One row for each group: the columns of the keys, then these. Rows whose key is null are a group.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            No aggregate, or something that is neither a column nor text.
        pyspark.errors.AnalysisException
            Spark cannot aggregate so, as where a column is missing or stands outside of an aggregate.

        Examples
        --------
        >>> totals = orders.grouped("region").agg(F.sum("price").alias("total")).persist()              # doctest: +SKIP
        >>> totals.acked().write.mode("overwrite").parquet("totals")                                    # doctest: +SKIP
        >>> totals.unfinished().write.mode("append").json("again")                                      # doctest: +SKIP
        """
        if not columns:
            raise ArgumentValueError("agg: columns: expected at least one aggregate")
        values = [expression_of("agg", "columns", column) for column in columns]
        keys, partitions = [F.col(quote_column(name)) for name in self._keys], self._partitions

        def aggregate(rows: DataFrame) -> DataFrame:
            moved = rows if partitions is None else rows.repartition(partitions, *keys)
            return moved.groupBy(*keys).agg(*values)

        plan = self._ungrouped
        if plan.unread:
            plan = replace(plan.sql_step(end_trees, ""), unread=frozenset())
        graph = self.plan.graph.step(f"agg({', '.join(map(text_of, columns))})")
        return Aggregated(replace(plan, graph=graph), aggregate)


def _refuse_aggregated(step: str, other: object) -> None:
    if isinstance(other, Aggregated):
        raise ArgumentTypeError(f"{step}: expected a Tracked, got Aggregated: {ENDED}")


def _check_columns(plan: PipelinePlan, columns: Sequence[str]) -> None:
    for name in columns:
        if name not in plan.schema.names:
            raise ArgumentValueError(f"columns: there is no {name!r}; there are {', '.join(plan.schema.names)}")
