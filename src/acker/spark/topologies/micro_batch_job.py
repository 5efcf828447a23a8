"""One evaluation of a micro-batch: a Spark job that runs all stages, and what it says about each tree."""

from __future__ import annotations

import contextlib
import functools
import pickle
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from acker._engine.combiner import Combiner
from acker._engine.completions import Completions
from acker._engine.protocol import Kind, Outcome
from acker.errors import RuntimeStateError
from acker.observe.reasons import Reason, ReasonKind
from acker.spark.blocks import decode_block, encode_blocks
from acker.spark.partition_keys import partition_keys
from acker.spark.topologies.event_times import SourceKey, join_shared, latest_by_task, merge_times, spout_keys
from acker.spark.topologies.frames import FrameRows, emit_rows
from acker.spark.topologies.micro_batch_plan import MicroBatchPlan
from acker.spark.topologies.stage_plan import is_stateful
from acker.spark.topologies.stage_rows import (
    CHANGED,
    COUNTERS,
    MESSAGES,
    OUTCOMES,
    REASONS,
    STAGE_ROW_SCHEMA,
    STATE,
    TIMES,
    TOO_MANY,
    TOOK,
    TOUCHED,
    TREE_TIMES,
    StageRow,
    batches_of,
    equals,
    stage_row_type,
)
from acker.spark.topologies.stage_worker import TaskTime, run_stage
from acker.spark.topologies.state_log import StateChain
from acker.spark.topologies.tuple_blocks import encode_tuples
from acker.spark.versioned_pickle import pack_function
from acker.topology.graph import Graph
from acker.topology.methods import line_of_work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Spark's text when a worker ended without an exception, and the option by which it leaves its stack.
_WORKER_DIED: Final = "Python worker exited unexpectedly"
# The masters with which Spark fails a job at the first failure of a task, and the attempts that clusters make.
_SINGLE_ATTEMPT: Final = re.compile(r"local(?:\[(?P<cores>\d+|\*)(?:\s*,\s*1)?\])?")
_ATTEMPTS: Final = 4
# Bytes of tuples that are too many for one task, and Spark's option below whose bytes it makes one of them.
_LARGE_BYTES: Final = 4_000_000
_ROWS_BELOW: Final = "spark.sql.execution.arrow.localRelationThreshold"
_conf_lock = threading.Lock()
_FAULTHANDLER: Final = "spark.sql.execution.pyspark.udf.faulthandler.enabled"

_OPEN: Final = Reason(ReasonKind.TIMED_OUT, exception="open at the end of its micro-batch, after which nothing ends it")


class FailedTree(NamedTuple):
    """A tree that was not acked."""

    root_id: int
    task: int
    message_id: int
    reason: Reason


@dataclass
class MicroBatchResult:
    """The result of one evaluation.

    Attributes
    ----------
    acked : dict of int to int
        Spout task -> number of acked trees.
    acked_ids : dict of int to list of int
        Spout task -> message ids of acked trees, of the tasks that want them.
    failed : list of FailedTree
    touched : bool
        Whether one of the failed trees has reached a stateful bolt.
    changed : dict of str to list of str
        Component -> attributes that it has changed, and that are lost.
    counters : list of dict
    chains : dict of int to StateChain
        The new files of state.
    times : dict of str to dict of SourceKey to int
        Bolt with event time -> source -> the latest event time that came.
    late : dict of str to str
        Bolt -> what is to be said of its first late tuple.
    took : list of TaskTime
        How long each Spark task took.
    has_too_many : bool
        Whether the driver was to settle more than `trees_max` trees; the rest of the result says nothing then.
    """

    acked: dict[int, int] = field(default_factory=dict)
    acked_ids: dict[int, list[int]] = field(default_factory=dict)
    failed: list[FailedTree] = field(default_factory=list)
    touched: bool = False
    changed: dict[str, list[str]] = field(default_factory=dict)
    counters: list[dict[str, Any]] = field(default_factory=list)
    chains: dict[int, StateChain] = field(default_factory=dict)
    times: dict[str, dict[SourceKey, int]] = field(default_factory=dict)
    late: dict[str, str] = field(default_factory=dict)
    took: list[TaskTime] = field(default_factory=list)
    has_too_many: bool = False

    def add(self, kind: int, content: Any) -> None:
        """Add what one Spark task says in a row of a kind."""
        if kind == COUNTERS:
            self.counters += content
        elif kind == TOOK:
            self.took.append(content)
        elif kind == CHANGED:
            self.changed.update(content)
        elif kind == STATE:
            self.chains.update(content)
        elif kind == TIMES:
            self.add_times(content)

    def add_times(self, times: Iterable[tuple[str, Mapping[SourceKey, int], str | None]]) -> None:
        """Add the event times that came to some bolts: name, times by source, and what is said of a late tuple."""
        for name, by_source, late in times:
            merge_times(self.times, name, by_source)
            if late is not None:
                self.late.setdefault(name, late)


class MicroBatchJob:
    """The Spark jobs of one micro-batch: one, and further ones that leave out trees that failed.

    From the second evaluation on, the rows of the stages before the first stateful bolt are kept: what a further
    evaluation changes lies behind them. So a failure there, of whatever cause, stays the same.

    Parameters
    ----------
    spark : SparkSession
    plan : MicroBatchPlan
    rows : sequence of StageRow
        The tuples of spouts that run on the driver.
    frames : mapping
        Spout -> the rows of its DataFrame.
    tracks : mapping
        Root id -> (ack val, spout task, message id) of the trees in `rows`.
    named : frozenset of int
        The spout tasks whose acked message ids are wanted.
    owners : mapping
        Root id -> spout task of the trees in `rows`, if a bolt has event time.

    Notes
    -----
    Few trees are settled on the driver: a shuffle and its Python workers take a third of the time of a micro-batch of
    ten tuples.
    """

    def __init__(
        self,
        spark: SparkSession,
        plan: MicroBatchPlan,
        rows: Sequence[StageRow],
        frames: Mapping[str, FrameRows],
        tracks: Mapping[int, tuple[int, int, int]],
        named: frozenset[int],
        owners: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self._spark = spark
        self._plan = plan
        # Trees that are all known to the driver are few enough for it.
        self._is_distributed = bool(frames)
        self._tracks = {} if frames else tracks
        self._named = named
        self._owners = dict(owners)
        self._keys = spout_keys(plan.graph)
        rows = [*rows, *_tick_rows(plan)]
        if frames:
            rows += _track_rows(plan, tracks)
        stages = plan.stages.stage_of
        stateful = [stages[name] for name, node in plan.graph.nodes.items() if is_stateful(node)]
        self._first = min(stateful, default=1)
        self._kept = _run_stages(_read_spouts(spark, plan, rows, frames), plan, 1, self._first - 1)
        self._is_persisted = False
        self._failed_before: frozenset[int] = frozenset()
        self._is_first = bool(frames) and bool(stateful) and plan.batch == 0

    def evaluate(self, excluded: frozenset[int], seed: bytes) -> MicroBatchResult:
        """Run the micro-batch without the trees of some root ids."""
        if excluded or self._is_first:
            # Not at first: most micro-batches need one evaluation, and a small one would take half as long again. But
            # micro-batch 0 has all rows of the DataFrames that are no streams: to read them again takes longer.
            self.keep_rows()
        plan = replace(self._plan, excluded=excluded | self._failed_before, seed=seed)
        is_distributed = self._is_distributed and plan.trees_max is None
        rows = _run_stages(self._kept, plan, self._first, plan.stages.last)
        run = functools.partial(
            settle, named=self._named, tracks=self._tracks, excluded=excluded, owners=self._owners, keys=self._keys
        )
        if is_distributed:
            rows = rows.repartition(plan.shards, "partition_key").mapInArrow(
                pack_function(run, "settle"), stage_row_type()
            )
        try:
            batches = rows.toArrow().to_batches()
        except Exception as error:
            if _WORKER_DIED not in str(error):
                raise
            raise RuntimeStateError(why_died(plan, str(self._spark.sparkContext.master))) from error
        return _read_result(batches if is_distributed else run(iter(batches)), plan.graph)

    @property
    def reads_again(self) -> bool:
        """Whether the next evaluation reads rows of DataFrames again: in another order they have other root ids."""
        return self._is_distributed and not self._is_persisted

    def keep_rows(self) -> None:
        """Keep the rows as the next evaluation reads them, for those that follow."""
        if not self._is_persisted:
            self._is_persisted = True
            self._kept = self._kept.persist()
            self._failed_before = self._read_failed()

    def _read_failed(self) -> frozenset[int]:
        """Return the root ids of the trees that have failed before the first stateful bolt: they need not reach it."""
        rows = self._kept.where(f"stage = {REASONS}").toArrow()
        found = [pickle.loads(block.as_buffer()) for block in rows.column("block")]
        return frozenset(root_id for reasons in found for root_id, _ in reasons)

    def close(self) -> None:
        """Release the rows that are kept."""
        if self._is_persisted:
            self._kept.unpersist()


def why_died(plan: MicroBatchPlan, master: str) -> str:
    """Return why a micro-batch ended in which a Python worker died, and what to do."""
    bolts = ", ".join(node.name for node in plan.graph.bolts)
    death = f"died in every attempt that Spark made, while it ran one of the bolts {bolts}: it"
    single = _SINGLE_ATTEMPT.fullmatch(master)
    if single is not None:
        cores = single["cores"] or "1"
        count = {"*": "all cores", "1": "1 core"}.get(cores, f"{cores} cores")
        death = (
            f"died while it ran one of the bolts {bolts}, and with the master {master!r} Spark tries no task again: use"
            f" local[{cores},{_ATTEMPTS}] ({count}, {_ATTEMPTS} attempts). The worker"
        )
    return (
        f"micro-batch {plan.batch}: a Python worker {death} crashed in native code, called os._exit, was killed, or had"
        " too little memory. Nothing of the micro-batch counts; with checkpoint= the next start runs the same tuples"
        f" again. The log of the executor has the worker's last words, and with {_FAULTHANDLER}=true its stack; let"
        " process() refuse such a tuple by an exception, and start again"
    )


def _read_spouts(
    spark: SparkSession, plan: MicroBatchPlan, rows: Sequence[StageRow], frames: Mapping[str, FrameRows]
) -> DataFrame:
    """Return the stage rows that stage 0 makes."""
    parts: list[DataFrame] = []
    for component, spout_rows in frames.items():
        emit = functools.partial(emit_rows, plan, component, spout_rows.message_id)
        name = " > ".join([component, *_bolts_of(plan, 0)])
        parts.append(spout_rows.frame.mapInArrow(pack_function(emit, name), stage_row_type()))
    first = [row for row in rows if row.stage == 0]
    if first:
        run = functools.partial(run_stage, plan, 0)
        name = " > ".join(_bolts_of(plan, 0))
        parts.append(_frame_of(spark, first).mapInArrow(pack_function(run, name), stage_row_type()))
    later = [row for row in rows if row.stage != 0]
    if later or not parts:
        parts.append(_frame_of(spark, later))
    return functools.reduce(lambda one, other: one.union(other), parts)


def _run_stages(frame: DataFrame, plan: MicroBatchPlan, first: int, last: int) -> DataFrame:
    """Return the rows that remain when some stages have run, each behind a shuffle."""
    for stage in range(first, last + 1):
        run = functools.partial(run_stage, plan, stage)
        shuffled = frame.repartition(plan.partitions, "partition_key").sortWithinPartitions("source", "seq")
        frame = shuffled.mapInArrow(pack_function(run, " > ".join(_bolts_of(plan, stage))), stage_row_type())
    return frame


def _bolts_of(plan: MicroBatchPlan, stage: int) -> list[str]:
    return [name for name in plan.stages.components(stage) if plan.graph.nodes[name].kind == "bolt"]


def _frame_of(spark: SparkSession, rows: Sequence[StageRow]) -> DataFrame:
    table = pa.Table.from_batches(batches_of(list(rows)), STAGE_ROW_SCHEMA)
    if table.nbytes < _LARGE_BYTES:
        return spark.createDataFrame(table, stage_row_type())
    with _as_tasks(spark):
        return spark.createDataFrame(table, stage_row_type())


@contextlib.contextmanager
def _as_tasks(spark: SparkSession) -> Iterator[None]:
    """Make Spark take each Arrow batch as a task, and keep its bytes once.

    Below a size it makes rows of them, beside the bytes, and each core gets its part of them as one task.
    """
    with _conf_lock:
        before = spark.conf.get(_ROWS_BELOW, None)
        spark.conf.set(_ROWS_BELOW, "0")
        try:
            yield
        finally:
            spark.conf.unset(_ROWS_BELOW) if before is None else spark.conf.set(_ROWS_BELOW, before)


def _track(combiner: Combiner, tracks: Mapping[int, tuple[int, int, int]]) -> None:
    if tracks:
        columns = np.array([(root_id, *track) for root_id, track in tracks.items()], np.int64)
        combiner.add(Kind.TRACK, columns[:, 0], columns[:, 1], columns[:, 2], columns[:, 3])


def _tick_rows(plan: MicroBatchPlan) -> list[StageRow]:
    """Return a row without tuples for each partition whose bolts have a tick, or windows that have ended.

    Spark runs no stage without any rows.
    """
    keys = partition_keys(plan.partitions).tolist()
    stages = sorted({plan.stages.stage_of[name] for name in plan.ticks | plan.moved})
    return [StageRow(key, stage, -1, -1, encode_tuples([])) for stage in stages for key in keys]


def _track_rows(plan: MicroBatchPlan, tracks: Mapping[int, tuple[int, int, int]]) -> list[StageRow]:
    combiner = Combiner()
    _track(combiner, tracks)
    keys = partition_keys(plan.shards).tolist()
    return [
        StageRow(keys[shard], MESSAGES, -1, seq, block)
        for seq, (shard, block) in enumerate(encode_blocks(combiner, plan.shards))
    ]


def settle(
    batches: Iterable[pa.RecordBatch],
    named: frozenset[int],
    tracks: Mapping[int, tuple[int, int, int]],
    excluded: frozenset[int] = frozenset(),
    owners: Mapping[int, int] = MappingProxyType({}),
    keys: Mapping[int, SourceKey] = MappingProxyType({}),
) -> Iterator[pa.RecordBatch]:
    """Settle the messages among some rows, and pass the others on; a function of `mapInArrow`.

    Parameters
    ----------
    batches : iterable of RecordBatch
    named, tracks, owners
        As for `MicroBatchJob`.
    excluded : frozenset of int
        Root ids of trees that are left out.
    keys : mapping
        Spout task -> the source of event times that it is.
    """
    combiner = Combiner()
    _track(combiner, tracks)
    touched = [np.empty(0, np.int64)]
    times: list[bytes] = []
    for batch in batches:
        is_message = equals(batch.column(1), MESSAGES)
        is_touched = equals(batch.column(1), TOUCHED)
        is_times = equals(batch.column(1), TREE_TIMES)
        for block in batch.filter(is_message).column(4):
            combiner.merge(decode_block(block.as_buffer())[0])
        touched += [np.frombuffer(block.as_buffer(), np.int64) for block in batch.filter(is_touched).column(4)]
        times += [block.as_py() for block in batch.filter(is_times).column(4)]
        others = batch.filter(pc.invert(pc.or_(pc.or_(is_message, is_touched), is_times)))
        if others.num_rows:
            yield others
    done = combiner.settle(include_pending=True)
    if times:
        found = _times_by_source(times, done, owners, keys)
        yield from batches_of([StageRow(0, TIMES, -1, 0, pickle.dumps(found))])
    counts = np.ones(len(done), np.bool_)
    if excluded:
        counts = ~np.isin(done.root_id, np.fromiter(excluded, np.int64))
    if not counts.any():
        return
    is_acked = counts & (done.outcome == Outcome.ACKED)
    tasks, sizes = np.unique(done.task_id[is_acked], return_counts=True)
    acked_ids = {
        task: done.message_id[is_acked & (done.task_id == task)].tolist() for task in tasks.tolist() if task in named
    }
    left = counts & (done.outcome != Outcome.ACKED)
    rows = [column[left].tolist() for column in (done.root_id, done.task_id, done.message_id, done.outcome)]
    has_touched = bool(np.isin(np.concatenate(touched), done.root_id[left]).any())
    content = dict(zip(tasks.tolist(), sizes.tolist(), strict=True)), acked_ids, rows, has_touched
    yield from batches_of([StageRow(0, OUTCOMES, -1, 0, pickle.dumps(content))])


def _times_by_source(
    times: Iterable[bytes], done: Completions, owners: Mapping[int, int], keys: Mapping[int, SourceKey]
) -> list[tuple[str, dict[SourceKey, int], None]]:
    """Return the latest event times in trees by the sources of these, for each bolt."""
    order = np.argsort(done.root_id)
    ended, tasks = done.root_id[order], done.task_id[order].astype(np.int64)
    for index in np.flatnonzero(tasks == 0).tolist():  # trees of spouts on the driver
        tasks[index] = owners.get(int(ended[index]), 0)
    noted: dict[str, tuple[list[npt.NDArray[np.int64]], list[npt.NDArray[np.int64]]]] = {}
    for name, is_shared, root_bytes, time_bytes in map(pickle.loads, times):
        columns = np.stack([np.frombuffer(root_bytes, np.int64), np.frombuffer(time_bytes, np.int64)])
        noted.setdefault(name, ([], []))[is_shared].append(columns)
    found: dict[str, dict[SourceKey, int]] = {}
    for name, (own, shared) in noted.items():
        for task, time_ms in latest_by_task(*join_shared(own, shared), ended, tasks).items():
            if task in keys:
                merge_times(found, name, {keys[task]: time_ms})
    return [(name, by_source, None) for name, by_source in found.items()]


def _why_open(counters: Iterable[Mapping[str, Any]], graph: Graph) -> Reason:
    """Return the reason of trees that are open at the end: the bolts that have neither acked nor failed a tuple."""
    kept: Counter[str] = Counter()
    bolts = {task: node.name for node in graph.bolts for task in node.tasks}
    for each in counters:
        if each["task"] in bolts:
            kept[bolts[each["task"]]] += each["executed"] - each["acked"] - each["failed"]
    named = [(name, "a tuple" if n == 1 else f"{n:,} tuples") for name, n in kept.most_common() if n > 0]
    if not named:
        return _OPEN
    told = " and ".join(f"{name} neither acked nor failed {tuples}" for name, tuples in named)
    line = line_of_work(graph.nodes[named[0][0]].component)
    return replace(_OPEN, component=named[0][0], exception=f"{_OPEN.exception}: {told}", line=line)


def _read_result(batches: Iterable[pa.RecordBatch], graph: Graph) -> MicroBatchResult:
    result = MicroBatchResult()
    reasons: dict[int, Reason] = {}
    left: list[tuple[int, int, int, int]] = []
    for batch in batches:
        kinds: list[Any] = batch.column(1).to_pylist()
        for kind, block in zip(kinds, batch.column(4), strict=True):
            if kind == TOO_MANY:
                result.has_too_many = True
                continue
            content = pickle.loads(block.as_buffer())
            if kind == REASONS:
                for root_id, reason in content:
                    # Of several failures of a tree the first by its text counts, so that a second run says the same.
                    known = reasons.setdefault(root_id, reason)
                    if str(reason) < str(known):
                        reasons[root_id] = reason
            elif kind == OUTCOMES:
                acked, acked_ids, rows, touched = content
                result.touched |= touched
                for task, count in acked.items():
                    result.acked[task] = result.acked.get(task, 0) + count
                for task, ids in acked_ids.items():
                    result.acked_ids.setdefault(task, []).extend(ids)
                left += zip(*rows, strict=True)
            else:
                result.add(kind, content)
    still_open = _why_open(result.counters, graph)
    for root_id, task, message_id, outcome in left:
        reason = reasons.get(root_id, Reason(ReasonKind.FAILED)) if outcome == Outcome.FAILED else still_open
        result.failed.append(FailedTree(root_id, task, message_id, reason))
    return result
