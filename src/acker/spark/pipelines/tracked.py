"""Tracked pipelines: DataFrames whose rows are tuples of trees, with the acker knowing when each tree is finished.

A spout gives each row a tree, bolts run functions over the rows, and one evaluation of the last DataFrame yields the
data, the messages for the acker and the texts of failures together. Messages travel as packed blocks in a few carrier
rows of the same DataFrame. Ids are keyed hashes, so whatever Spark computes twice comes out the same.

A stage keeps nothing between rows but what leaves at the end of its task, so a pipeline on a streaming DataFrame is the
same plan, run for each micro-batch; only what needs an end of the data, or an evaluation now, is refused there.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from acker._engine.combiner import check_shards
from acker._engine.protocol import INT32_MAX, INT64_MAX, INT64_MIN, Outcome, check_integer
from acker.errors import ArgumentTypeError, ArgumentValueError
from acker.spark.blocks import latest_event_ms, settle_rows
from acker.spark.messages import check_options, quoted
from acker.spark.pipelines import stages
from acker.spark.pipelines.failure_log import accumulator
from acker.spark.pipelines.stages import BLOCK, HIDDEN, SHARD
from acker.spark.session_checks import carried, is_classic

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import StorageLevel
    from pyspark.sql import SparkSession

    from acker.spark.session_checks import ArrowFunction

_BY: Final = ("row", "batch", "partition")
_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)
_TIMES: Final = (TimestampType, TimestampNTZType, LongType)
_FAILURES: Final = "root_id long, tuple_id long, component string, reason string"


@dataclass(frozen=True)
class ComponentCounters:
    """What one component did, over all tasks of one evaluation.

    Attributes
    ----------
    executed, emitted, failed : int
        Input rows, output rows, and input rows that failed. A spout executes none.
    messages : int
        Messages sent to the acker: one an input row and tree; of a spout one a tracked row.
    function_ns : int
        Time in the user's function, summed over the tasks.
    fanout : dict of int to int
        Outputs of an input row -> input rows, those that failed left out. 1024 stands for 1024 or more.
    """

    executed: int
    emitted: int
    failed: int
    messages: int
    function_ns: int
    fanout: dict[int, int]


class Counters(NamedTuple):
    """What one evaluation of a pipeline did.

    Attributes
    ----------
    messages : int
        Messages that the acker took.
    native_ns : int
        Nanoseconds that it spent on them in its native table, summed over the tasks that sent them; to settle the trees
        comes on top.
    components : dict of str to ComponentCounters
    """

    messages: int
    native_ns: int
    components: dict[str, ComponentCounters]


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
    reader: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] | None = None,
    schema: StructType | str | None = None,
    strict: bool = False,
) -> Tracked:
    """Give each row of a DataFrame a tree, with one tuple in it.

    Parameters
    ----------
    frame : DataFrame
        Batch or streaming.
    message_id : str
        The integer column with the spout's own id of each row, unique within (source, attempt): in a stream for all of
        its life. A row where it is null stays unanchored: nobody hears of it again.
    component : str
        Name of the spout.
    source : str, optional
        The integer column that says what the message ids count in, such as a file or a partition.
    task_id : str or int
        The column, or the one number, of the spout task that hears the outcome; int32 >= 0.
    attempt : str or int
        The column, or the one number, that tells the replays of a message apart.
    run_seed : int, optional
        Key of all ids. Drawn from the operating system when left out, once, when this function is called. A streaming
        frame needs one, the same at each start from a checkpoint: a micro-batch that runs again must repeat its ids.
    shards : int, 1 to 1024, optional
        Into how many shards messages are parted before they are settled; by default Spark's shuffle partitions, at
        most 16.
    reader : callable, optional
        As for `DataFrame.mapInArrow`: takes the batches of `frame`, yields batches of `schema`, which are the rows of
        the spout. So a frame of a few paths becomes rows in the worker that sends them, without a way through the JVM.
    schema : StructType or str, with `reader` only
    strict : bool
        What `strict` is for bolts that are not told otherwise.

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
    if (reader is None) != (schema is None):
        raise ArgumentValueError("reader and schema: expected both or neither")
    struct = _nullable(frame.schema if schema is None else _parse(schema))
    _check_names(struct)
    _check_component(component)
    _check_integer_column(struct, "message_id", message_id)
    if source is not None:
        _check_integer_column(struct, "source", source)
    for name, column, most in (("task_id", task_id, INT32_MAX), ("attempt", attempt, INT64_MAX)):
        if isinstance(column, str):
            _check_integer_column(struct, name, column)
        else:
            check_integer(name, column, 0, most)
    if run_seed is None:
        run_seed = int.from_bytes(os.urandom(8), "little", signed=True)
    check_integer("run_seed", run_seed, INT64_MIN, INT64_MAX)
    if shards is None:
        shards = min(16, int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1))
    first: list[stages.Step] = []
    if reader is not None:
        first.append(stages.ReadStep(reader, _arrow_schema(frame.sparkSession, struct)))
    first.append(stages.SpoutStep(component, run_seed, message_id, source, task_id, attempt))
    token = object()
    return Tracked(
        _frame=frame,
        _timed=lambda _: frame,
        _spouts={component: struct},
        _tracked=False,
        _steps=tuple(first),
        _mute=0,
        _schema=struct,
        _run_seed=run_seed,
        _shards=check_shards(shards),
        _components={component: token},
        _origins=frozenset({token}),
        _strict=bool(strict),
        _unread=frozenset({component}),
    )


@dataclass(frozen=True, eq=False)
class Tracked:
    """A DataFrame whose rows carry their trees, and with it the messages of all components before it.

    Made by `spout`; each method returns a new one and computes nothing. `data`, `completions` and `failures` are
    ordinary DataFrames, each of which evaluates the pipeline: `persist` it first to ask for several. The functions
    given to bolts may run more than once for a row (a retried task, a second evaluation) and must give the same outputs
    in the same order each time.

    On a streaming DataFrame `data`, `completions` and `failures` are streaming DataFrames, each for a query of its own.
    To have everything from one evaluation write `dataframe` with foreachBatch and ask `micro_batch` of what that gets.
    """

    _frame: DataFrame
    # The same with event times, given the column of the spouts' rows: known once completions are asked for.
    _timed: Callable[[str], DataFrame]
    _spouts: dict[str, StructType]
    _tracked: bool
    _steps: tuple[stages.Step, ...]
    _mute: int
    _schema: StructType
    _run_seed: int
    _shards: int
    _components: dict[str, object]
    _origins: frozenset[object]
    _strict: bool
    _unread: frozenset[str]

    @property
    def columns(self) -> list[str]:
        """Names of the user's columns."""
        return list(self._schema.names)

    @property
    def run_seed(self) -> int:
        """Key of all ids; given to `spout` again it repeats them."""
        return self._run_seed

    @functools.cached_property
    def dataframe(self) -> DataFrame:
        """The DataFrame with hidden columns: data rows and carriers. For `micro_batch`, `explain` and the like."""
        return self._evaluated(None)

    def _evaluated(self, event_time: str | None) -> DataFrame:
        """Return the DataFrame; where a column of event times is named, with the time of its tree in each message."""
        frame = self._frame if event_time is None else self._timed(event_time)
        if not self._steps and self._tracked:
            return frame
        timed_steps = tuple(
            replace(step, event_time=event_time) if isinstance(step, stages.SpoutStep) else step for step in self._steps
        )
        stage = stages.Stage(
            timed_steps,
            _arrow_schema(frame.sparkSession, self._schema),
            self._shards,
            self._mute,
            self._tracked,
            timed=event_time is not None,
        )
        failed = accumulator(frame.sparkSession)

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return stage.run(batches, None if failed is None else failed.add)

        hidden = [StructField(name, dtype) for name, dtype in zip(HIDDEN, _hidden_types(), strict=True)]
        return _mapped(frame, run, StructType([*self._schema.fields, *hidden]))

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
            a tuple or a dict; with a schema of one column the value alone will do.
            by="batch": called with an Arrow RecordBatch, returns `Outputs` or None. What it does to a row must not
            depend on the other rows: where Spark cuts batches may change. When it raises it is called again for parts
            of the batch, until the rows that it raises for are found; unless it raises the same error (of one type,
            from one line) for each first half, down to the first row, and for each of 32 rows alone besides: then all
            rows of the batch fail.
            by="partition": as "batch", with all rows of the partition at once (after `grouped`: all rows of each key),
            so here rows may be joined. When it raises, all of them fail.
        schema : StructType or str
            Columns of the outputs.
        component : str
            Name of the bolt, used once in a pipeline; the function's name if it has one.
        by : {"row", "batch", "partition"}
        sink : bool
            The outputs are results that nobody consumes: they get no tuple id, so the tree does not wait for them.
        strict : bool, optional
            True: the first row that fails ends the job, with an error that names the component and says what was
            raised. False: it fails its trees; the worker logs the first one, the driver how many (logger
            `acker.spark`). By default as the spout says.

        Returns
        -------
        Tracked

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            What is wrong with an argument. What `function` raises later fails rows, see `failures`.
        """
        if not callable(function):
            raise ArgumentTypeError(f"function: expected a callable, got {type(function).__name__}")
        if by not in _BY:
            raise ArgumentValueError(f"by: expected one of {', '.join(map(repr, _BY))}, got {by!r}")
        if component is None:
            component = getattr(function, "__name__", "<lambda>")
            if component == "<lambda>":
                raise ArgumentValueError("component: a function without a name needs one")
        struct = _nullable(_parse(schema))
        step = stages.BoltStep(
            component,
            self._run_seed,
            function,
            by,
            _arrow_schema(self._frame.sparkSession, struct),
            bool(sink),
            self._strict if strict is None else bool(strict),
        )
        unread = frozenset[str]() if sink else frozenset({component})
        return replace(self._with(component), _steps=(*self._steps, step), _schema=struct, _unread=unread)

    def _with(self, component: str) -> Tracked:
        """Add the name of a component that sends messages."""
        _check_component(component)
        if component in self._components:
            raise ArgumentValueError(f"component: {component!r} is there already; its tuple ids would be given twice")
        token = object()
        return replace(
            self, _components={**self._components, component: token}, _origins=self._origins | frozenset({token})
        )

    def _moved(self, move: Callable[..., DataFrame], *others: Tracked) -> Tracked:
        """Go on behind what `move` makes of the DataFrames of this pipeline and of others."""

        def evaluated(event_time: str | None) -> DataFrame:
            return move(*(pipeline._evaluated(event_time) for pipeline in (self, *others)))

        frame = move(*(pipeline.dataframe for pipeline in (self, *others)))
        # Kept, so that the branches of a pipeline share what is before them.
        return replace(self, _frame=frame, _timed=functools.cache(evaluated), _tracked=True, _steps=(), _mute=0)

    def grouped(self, *columns: str, partitions: int | None = None) -> Tracked:
        """Bring rows with the same values in these columns to one partition (fields grouping)."""
        if not columns:
            raise ArgumentValueError("columns: expected at least one")
        self._check_columns(columns)
        # Carriers have null in every column of the user; their shard spreads them. On data rows it is null and leaves
        # the hash as it is.
        by = [F.col(quoted(name)) for name in (*columns, SHARD)]
        if partitions is None:
            return self._moved(lambda frame: frame.repartition(*by))
        partitions = check_integer("partitions", partitions, 1, INT32_MAX)
        return self._moved(lambda frame: frame.repartition(partitions, *by))

    def shuffled(self, partitions: int) -> Tracked:
        """Spread rows evenly (shuffle grouping)."""
        partitions = check_integer("partitions", partitions, 1, INT32_MAX)
        return self._moved(lambda frame: frame.repartition(partitions))

    def lossy(self, keep: Callable[[pa.RecordBatch], Any] | Column | str) -> Tracked:
        """Lose the rows for which `keep` is not true. Nobody acknowledges them: their trees stay open.

        Parameters
        ----------
        keep : callable, Column or str
            A function of an Arrow batch that returns a boolean for each row, or a condition for Spark. In a condition a
            UDF of Python makes Spark compute the rows twice, unless they are persisted; a function of a batch does not.

        Raises
        ------
        ArgumentTypeError
            `keep` is none of these, or a UDF that was not called with columns.
        """
        if isinstance(keep, (Column, str)):
            condition = F.expr(keep) if isinstance(keep, str) else keep
            return self._moved(lambda frame: _where(frame, condition))
        expected = "keep: expected a callable, a Column or a str"
        if not callable(keep):
            raise ArgumentTypeError(f"{expected}, got {type(keep).__name__}")
        if hasattr(keep, "evalType"):
            raise ArgumentTypeError(f"{expected}, got a UDF that was not called with columns")
        return replace(self, _steps=(*self._steps, stages.LossyStep(keep)))

    def select(self, *columns: str) -> Tracked:
        """Keep these columns of the user."""
        self._check_columns(columns)
        if not columns:
            raise ArgumentValueError("columns: expected at least one")
        schema = StructType([self._schema[name] for name in columns])
        return replace(self, _steps=(*self._steps, stages.SelectStep(columns)), _schema=schema)

    def branches(self, count: int, *, component: str = "branches") -> tuple[Tracked, ...]:
        """Deliver each tuple to several readers, as when several bolts subscribe to one stream.

        A pipeline that is simply used twice would acknowledge the same tuple twice. The rows before the fork are
        computed once a branch (unless persisted); their messages travel with the first branch only, so ask `union` or
        `completions_of` of all branches together.

        Parameters
        ----------
        count : int >= 1
        component : str
            Name of the fork, used once in a pipeline.

        Returns
        -------
        tuple of Tracked, one a branch
        """
        check_integer("count", count, 1, 1024)
        named = self._with(component)
        forked = []
        for branch in range(count):
            step = stages.BranchStep(component, self._run_seed, branch, count)
            part = replace(named, _steps=(*self._steps, step), _unread=frozenset({component}))
            # A later branch repeats the rows and carries no messages of anything before the fork.
            forked.append(part if branch == 0 else replace(part, _mute=len(part._steps), _origins=frozenset()))
        return tuple(forked)

    def union(self, other: Tracked) -> Tracked:
        """Put the rows and messages of two pipelines together.

        Raises
        ------
        ArgumentValueError
            Their columns or shards differ, both carry the messages of one component, two components have one name, or
            one is a stream and the other a batch.
        """
        _check_disjoint((self, other))
        if [(f.name, f.dataType) for f in self._schema] != [(f.name, f.dataType) for f in other._schema]:
            raise ArgumentValueError(
                f"union: the columns differ: {self._schema.simpleString()} and {other._schema.simpleString()}"
            )
        joined = self._moved(lambda one, two: one.union(two), other)
        return replace(
            joined,
            _spouts={**self._spouts, **other._spouts},
            _components={**self._components, **other._components},
            _origins=self._origins | other._origins,
            _unread=self._unread | other._unread,
        )

    def persist(self, level: StorageLevel | None = None) -> Tracked:
        """Keep what is computed, so that data, completions and failures come from one evaluation."""
        self._refuse_streaming(
            "persist",
            "a stream has no end that could be kept: write `dataframe` with foreachBatch, and persist the"
            " `micro_batch` of what that gets",
        )
        return self._kept(self.dataframe.persist() if level is None else self.dataframe.persist(level))

    def unpersist(self) -> Tracked:
        """Free what `persist` kept; call it on what `persist` returned."""
        return self._kept(self.dataframe.unpersist())

    def _kept(self, frame: DataFrame) -> Tracked:
        """Go on behind a batch DataFrame, which needs no event times."""
        return replace(self, _frame=frame, _timed=lambda _: frame, _tracked=True, _steps=(), _mute=0)

    def micro_batch(self, frame: DataFrame) -> Tracked:
        """Return the pipeline as one micro-batch evaluated it: for functions given to foreachBatch.

        Parameters
        ----------
        frame : DataFrame
            What a query that writes `dataframe` of this pipeline hands to the function.

        Returns
        -------
        Tracked
            On a batch DataFrame, `persist` and all. Its completions are those of this micro-batch's messages alone.

        Examples
        --------
        >>> def write(frame, batch_id):                                                                 # doctest: +SKIP
        ...     part = pipeline.micro_batch(frame).persist()
        ...     part.data().write.mode("overwrite").parquet(f"words/batch={batch_id}")
        ...     part.failures().write.mode("overwrite").parquet(f"failures/batch={batch_id}")
        >>> pipeline.dataframe.writeStream.foreachBatch(write).start()                                  # doctest: +SKIP
        """
        expected = [*self.columns, *HIDDEN]
        if frame.isStreaming or frame.columns != expected:
            got = "a streaming one" if frame.isStreaming else f"the columns {', '.join(frame.columns)}"
            raise ArgumentValueError(
                f"frame: expected what foreachBatch hands over, a batch DataFrame with the columns"
                f" {', '.join(expected)}, got {got}"
            )
        return self._kept(frame)

    def data(
        self,
        without: npt.ArrayLike | None = None,
        *,
        through: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] | None = None,
        schema: StructType | str | None = None,
    ) -> DataFrame:
        """Return the data rows, with the user's columns.

        Parameters
        ----------
        without : (n,) int64, optional
            Root ids: rows that belong to any of these trees are left out.
        through : callable, optional
            As for `DataFrame.mapInArrow`: takes the batches of a partition, yields batches of `schema`. It runs in the
            worker that leaves the rows out, so only its results return to the JVM.
        schema : StructType or str, with `through` only
        """
        if (through is None) != (schema is None):
            raise ArgumentValueError("through and schema: expected both or neither")
        if without is None and through is None:
            rows = self.dataframe.where(F.col(SHARD).isNull())
            return rows.select(*map(quoted, self.columns))
        not_acked = np.unique(np.asarray([] if without is None else without, np.int64))
        struct = self._schema if schema is None else _parse(schema)
        keep = functools.partial(stages.without_trees, not_acked, self.columns)

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            kept = keep(batches)
            return kept if through is None else through(kept)

        return _mapped(self.dataframe, run, struct)

    def acked(self) -> DataFrame:
        """Return the data rows all of whose trees ended ACKED; unanchored rows too.

        Settles the messages now, and evaluates the pipeline again unless it is persisted.
        """
        self._refuse_streaming(
            "acked", "trees are still open when their rows leave: join `data` with the completions that come later"
        )
        done = self.completions(include_pending=True).where(F.col("outcome") != int(Outcome.ACKED))
        return self.data(without=[row.root_id for row in done.select("root_id").collect()])

    def completions(
        self,
        *,
        timeout: str | float | None = None,
        protocol: str = "storm",
        include_pending: bool = False,
        buckets: int = 3,
        high_water: int | None = None,
        event_time: str | None = None,
        watermark_delay: str = "0 seconds",
        name: str = "acker",
    ) -> DataFrame:
        """Return one row a finished tree, columns of `acker.COMPLETION_SCHEMA`; parameters as `completions_of`."""
        return completions_of(
            self,
            timeout=timeout,
            protocol=protocol,
            include_pending=include_pending,
            buckets=buckets,
            high_water=high_water,
            event_time=event_time,
            watermark_delay=watermark_delay,
            name=name,
        )

    def blocks(self) -> DataFrame:
        """Return the packed messages: columns shard int, block binary (see `acker.spark.blocks`)."""
        return _blocks_of(self.dataframe)

    def _timed_blocks(self, event_time: str) -> DataFrame:
        """Return the packed messages with event times, and of each block the latest one, in ms."""
        blocks = _blocks_of(self._evaluated(event_time))
        return blocks.withColumn("event_ms", latest_event_ms(F.col("block")))

    def failures(self) -> DataFrame:
        """Return the texts of failures: root_id, tuple_id long; component, reason string.

        One row a FAIL message, and one for each row that failed and belongs to no tree, whose ids are null.
        """
        carriers = self.dataframe.where(F.col(SHARD) == stages.FAILURES_SHARD).select(BLOCK)
        return carriers.mapInArrow(carried(stages.decode_failures), _FAILURES)

    def counters(self) -> Counters:
        """Compute what each component did; evaluates the pipeline."""
        self._refuse_streaming("counters", "a stream has no end to sum up at: ask a `micro_batch`")
        reports = [
            json.loads(bytes(row[0]))
            for row in self.dataframe.where(F.col(SHARD) == stages.COUNTERS_SHARD).select(BLOCK).collect()
        ]
        return sum_counters(reports)

    def _refuse_streaming(self, method: str, hint: str) -> None:
        if self._frame.isStreaming:
            raise ArgumentValueError(f"{method}: expected a pipeline on a batch DataFrame, got a streaming one; {hint}")

    def _check_columns(self, columns: Sequence[str]) -> None:
        for name in columns:
            if name not in self._schema.names:
                raise ArgumentValueError(f"columns: there is no {name!r}; there are {', '.join(self._schema.names)}")


def _blocks_of(frame: DataFrame) -> DataFrame:
    carriers = frame.where(F.col(SHARD) >= 0)
    return carriers.select(F.col(SHARD).alias("shard"), F.col(BLOCK).alias("block"))


def _mapped(frame: DataFrame, run: ArrowFunction, schema: StructType) -> DataFrame:
    """Map a function over the batches of a DataFrame, whose columns may have any names."""
    names = frame.columns
    if not any(mark in name for name in names for mark in "`."):
        return frame.mapInArrow(carried(run), schema)

    def named(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run(batch.rename_columns(names) for batch in batches)

    # PySpark looks the columns up by their names, and takes a dot for the way into a struct.
    return frame.toDF(*(f"column{place}" for place in range(len(names)))).mapInArrow(carried(named), schema)


def _where(frame: DataFrame, condition: Column) -> DataFrame:
    """Keep the carriers, and the data rows for which a condition holds."""
    is_carrier = F.col(SHARD).isNotNull()
    kept = frame.where(is_carrier | condition)
    # Spark looks at what stands first before it evaluates the rest, but for functions of Python: these are called for
    # every row, and so for carriers, in which all columns of the user are null.
    if _python_calls(kept) == _python_calls(frame):
        return kept
    return frame.where(is_carrier).union(frame.where(~is_carrier & condition))


def _python_calls(frame: DataFrame) -> int:
    """Return how many nodes of a plan call scalar functions of Python."""
    private: Any = frame
    text: str = (
        private._jdf.queryExecution().toString() if is_classic(frame.sparkSession) else private._explain_string()
    )
    return text.count("EvalPython")


def sum_counters(reports: Sequence[dict[str, Any]]) -> Counters:
    """Add up what the tasks report of their components, see `acker.spark.pipelines.stages.COUNTERS_SHARD`."""
    totals: dict[str, dict[str, Any]] = {}
    for report in reports:
        for name, counters in report["components"].items():
            total = totals.setdefault(name, {"fanout": {}})
            fanout = counters.pop("fanout")
            for key, value in counters.items():
                total[key] = total.get(key, 0) + value
            for outputs, inputs in fanout.items():
                total["fanout"][int(outputs)] = total["fanout"].get(int(outputs), 0) + inputs
    return Counters(
        sum(report["messages"] for report in reports),
        sum(report["native_ns"] for report in reports),
        {name: ComponentCounters(**total) for name, total in totals.items()},
    )


def completions_of(
    *pipelines: Tracked,
    timeout: str | float | None = None,
    protocol: str = "storm",
    include_pending: bool = False,
    buckets: int = 3,
    high_water: int | None = None,
    event_time: str | None = None,
    watermark_delay: str = "0 seconds",
    name: str = "acker",
) -> DataFrame:
    """Settle the messages of one pipeline, or of several that share trees (`Tracked.branches`).

    Parameters
    ----------
    *pipelines : Tracked
        None may carry the messages of a component that another carries too.
    timeout : str or number, optional
        "90 seconds", or seconds above 0, after which a tree of a stream ends TIMED_OUT. Checked and of no effect in a
        batch, where nothing times out.
    protocol : {"storm", "storm-0.9"}
    include_pending : bool
        The trees that are still open too, with outcome PENDING. For batches only.
    event_time : str, optional
        A column of the spout's own rows: timestamps, or bigint milliseconds, null in no row that has a message id. A
        tree, with all that bolts say of it, stands at the time of its row, and expires by the watermark instead of by
        the clock. Bolts need not hand the column on. Where there are several spouts each must have it. Checked and of
        no effect in a batch.
    buckets, high_water, watermark_delay, name
        As for `acker.spark.completions`, for streams; of no effect in a batch. The completions of several pipelines in
        one query need different names.

    Returns
    -------
    DataFrame
        Columns of `acker.COMPLETION_SCHEMA`, one row a tree; a streaming one if the pipelines are.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        What is wrong with an argument; no pipeline, or messages that would be counted twice.
    """
    if not pipelines:
        raise ArgumentValueError("completions_of: expected at least one pipeline")
    _check_disjoint(pipelines)
    shards = pipelines[0]._shards
    check_options(protocol, timeout, shards)
    if event_time is not None:
        _check_event_time(pipelines, event_time)
    _warn_of_unread(pipelines)
    is_timed = event_time is not None and pipelines[0]._frame.isStreaming
    parts = [
        pipeline._timed_blocks(event_time) if event_time is not None and is_timed else pipeline.blocks()
        for pipeline in pipelines
    ]
    rows = functools.reduce(lambda one, other: one.union(other), parts)
    if not rows.isStreaming:
        return settle_rows(rows, shards, include_pending=include_pending, unique_ids=True)
    if include_pending:
        raise ArgumentValueError(
            "include_pending: expected False for a streaming pipeline, whose open trees end later, got True"
        )
    from acker.spark.streams.plan import completions_from_block_stream

    return completions_from_block_stream(
        rows,
        shards=shards,
        unique_ids=True,
        timeout=timeout,
        protocol=protocol,
        buckets=buckets,
        high_water=high_water,
        event_time=is_timed,
        watermark_delay=watermark_delay,
        name=name,
    )


def _check_event_time(pipelines: Sequence[Tracked], event_time: object) -> None:
    """Check that the rows of each spout have such a column."""
    if not isinstance(event_time, str):
        raise ArgumentTypeError(f"event_time: expected the name of a column, got {type(event_time).__name__}")
    expected = "event_time: expected a column of timestamps or of bigint milliseconds in rows of"
    for pipeline in pipelines:
        for component, schema in pipeline._spouts.items():
            if event_time not in schema.names:
                raise ArgumentValueError(f"{expected} {component!r}, got the columns {', '.join(schema.names)}")
            found = schema[event_time].dataType
            if not isinstance(found, _TIMES):
                raise ArgumentValueError(
                    f"{expected} {component!r}, got {event_time!r}, which is {found.simpleString()}"
                )


def _depth_of_caller() -> int:
    """Return the stacklevel with which a warning of this function's caller shows the user's line."""
    frame, depth = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals["__name__"] == __name__:
        frame, depth = frame.f_back, depth + 1
    return depth


def _warn_of_unread(pipelines: Sequence[Tracked]) -> None:
    unread = sorted(frozenset[str]().union(*(pipeline._unread for pipeline in pipelines)))
    if unread:
        warnings.warn(
            f"nobody reads what {', '.join(map(repr, unread))} emits, so the trees of rows that it emits stay open:"
            " give the last bolt sink=True, or add a bolt that reads them",
            UserWarning,
            stacklevel=_depth_of_caller(),
        )


def _check_disjoint(pipelines: Sequence[Tracked]) -> None:
    seen: set[object] = set()
    names: dict[str, object] = {}
    for pipeline in pipelines:
        if pipeline._shards != pipelines[0]._shards:
            raise ArgumentValueError(f"shards: {pipelines[0]._shards} in one pipeline, {pipeline._shards} in another")
        if pipeline._frame.isStreaming != pipelines[0]._frame.isStreaming:
            raise ArgumentValueError("expected pipelines that are all streaming or all batch, got both")
        for name, token in pipeline._components.items():
            if names.setdefault(name, token) is not token:
                raise ArgumentValueError(f"component: {name!r} names two components")
            if token in seen and token in pipeline._origins:
                raise ArgumentValueError(
                    f"both pipelines carry the messages of {name!r}, which would count twice: part them with branches"
                )
        seen |= pipeline._origins


def _parse(schema: StructType | str) -> StructType:
    if isinstance(schema, str):
        parsed = StructType.fromDDL(schema) if schema.strip() else StructType([])
    else:
        parsed = schema
    if not isinstance(parsed, StructType):
        raise ArgumentTypeError(f"schema: expected a StructType or its text, got {type(schema).__name__}")
    if not parsed.fields:
        raise ArgumentValueError("schema: expected at least one column")
    _check_names(parsed)
    return parsed


def _check_names(schema: StructType) -> None:
    seen: set[str] = set()
    for name in schema.names:
        if name.lower() in HIDDEN:
            raise ArgumentValueError(f"column {name!r} is reserved; {', '.join(HIDDEN)} are the pipeline's own")
        if name.lower() in seen:
            raise ArgumentValueError(f"column {name!r} is there twice")
        seen.add(name.lower())


def _check_component(component: object) -> None:
    if not isinstance(component, str) or not component:
        raise ArgumentTypeError(f"component: expected a name, got {component!r}")


def _check_integer_column(schema: StructType, parameter: str, name: str) -> None:
    if name not in schema.names:
        raise ArgumentValueError(f"{parameter}: there is no column {name!r}; there are {', '.join(schema.names)}")
    found = schema[name].dataType
    if not isinstance(found, _INTEGERS):
        raise ArgumentTypeError(f"{parameter}: expected a column of integers, {name!r} is {found.simpleString()}")


def _nullable(schema: StructType) -> StructType:
    """Return the schema with all columns nullable: carriers leave them null."""
    return StructType([StructField(entry.name, entry.dataType, True, entry.metadata) for entry in schema.fields])


def _hidden_types() -> tuple[DataType, ...]:
    return BinaryType(), IntegerType(), BinaryType()


def _arrow_schema(session: SparkSession, schema: StructType) -> pa.Schema:
    zone = str(session.conf.get("spark.sql.session.timeZone"))
    try:
        return to_arrow_schema(schema, timezone=zone)
    except TypeError:  # Before PySpark 4.1 the zone is always UTC.
        return to_arrow_schema(schema)
