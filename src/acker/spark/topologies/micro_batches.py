"""Micro-batches: take what the spouts emitted, journal it, evaluate it on Spark, commit, and tell the spouts."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from acker.errors import CheckpointError, TopologyError
from acker.observe.reasons import Reason
from acker.spark.partition_keys import partition_keys
from acker.spark.topologies.batch_progress import BatchProgress, new_ended
from acker.spark.topologies.bolt_state import StateCleaner, read_files, write_states
from acker.spark.topologies.checkpoint_layout import check_plans, layout_of, move_commit
from acker.spark.topologies.column_blocks import parts_of
from acker.spark.topologies.event_times import SourceKey, SpoutLook, Watermarks
from acker.spark.topologies.frames import FrameRows, find_rows
from acker.spark.topologies.journal import BatchPlan, Journal, JournalEntry, MemoryJournal
from acker.spark.topologies.jvm import Jvm, Load, free_dropped
from acker.spark.topologies.micro_batch_job import FailedTree, MicroBatchJob, MicroBatchResult
from acker.spark.topologies.micro_batch_plan import MicroBatchPlan
from acker.spark.topologies.spark_executor import DriverExecutors, Taken
from acker.spark.topologies.spout_tuples import SpoutTuples
from acker.spark.topologies.stage_rows import StageRow
from acker.spark.topologies.state_log import StateChain
from acker.spark.topologies.taken_trees import TakenTrees
from acker.spark.topologies.tuple_blocks import MixedChunk, bytes_of, encode_tuples
from acker.topology.graph import Graph
from acker.topology.spout import ReliableSpout, Spout
from acker.topology.tuple_batch import TupleBatch
from acker.topology.tuples import Tuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The task of trees whose spout runs on the driver. Spout tasks count from 1.
_DRIVER: Final = 0
# A micro-batch whose trees fail is computed again without them. Each time other trees may fail, if bolts do something
# else with the same tuples. The result of the last evaluation is taken as it is.
_EVALUATIONS_MAX: Final = 5
# The driver settles the trees of a micro-batch if the one before it had at most this many trees. The executors settle
# them if a task of the micro-batch has more than `_TREES_MAX` trees.
_FEW_TREES: Final = 10_000
_TREES_MAX: Final = 100_000
# The largest value of Spark in bytes: an array of Java, with a header.
_BLOCK_MAX: Final = 2**31 - 64
# Tuples that are larger together travel in several values.
_ROW_BYTES: Final = 4_000_000
# Bytes of tuples after which the JVM frees those of micro-batches that have ended.
_FREE_BYTES: Final = 8_000_000
# How long a micro-batch whose jobs are cancelled may take to end, and how often they are cancelled.
_CANCEL_SECS: Final = 30
_LOOK_SECS: Final = 0.1

logger = logging.getLogger("acker.spark")


class MicroBatches:
    """Runs the micro-batches of one topology.

    Parameters
    ----------
    spark : SparkSession
    plan : MicroBatchPlan
        The plan that all micro-batches share.
    journal : Journal or MemoryJournal
    run_seed : bytes

    Attributes
    ----------
    last : int
        The number of the last micro-batch that was committed.
    evaluations : int
        How many Spark jobs the micro-batches took.
    traces : int
        How many trees failed of which the state has effects nevertheless.
    error : BaseException or None
        The error that ended a micro-batch.
    progress : BatchProgress
    jvm : Jvm
    """

    def __init__(
        self, spark: SparkSession, plan: MicroBatchPlan, journal: Journal | MemoryJournal, run_seed: bytes
    ) -> None:
        self._spark = spark
        self._plan = replace(plan, run=run_seed)
        self._journal = journal
        self._seed = run_seed
        self._tag = f"acker-{run_seed.hex()}"
        self.progress = BatchProgress(spark, plan.graph.name, plan.stages, self._tag)
        self.jvm = Jvm(spark)
        # Before the claim, since this run must not remove the files of a run that takes over from it.
        self._files = StateCleaner(plan.state_root)
        journal.claim()
        try:
            self._restore()
        except BaseException:
            journal.release()
            raise
        self._watermarks = Watermarks(plan.graph, plan.stages.order, time.time_ns())
        self._lock = threading.Lock()
        self.tuples: SpoutTuples | None = None
        self._warned: set[str] = set()
        self._told_late: set[str] = set()
        self._frames: Mapping[str, FrameRows] = {}
        self._last_trees: int | None = None
        self._unfreed_bytes = 0
        self.evaluations = 0
        self.traces = 0
        self.error: BaseException | None = None

    def _restore(self) -> None:
        """Read what earlier runs have left."""
        plan = self._plan
        self.last, before = self._journal.last_commit()
        self._commit = move_commit(before, plan.graph)
        # The micro-batches that an earlier run has planned and did not commit.
        plans = self._journal.plans()
        self._plans = {number: each for number, each in plans.items() if number > self.last}
        self._plans_before = [each for number, each in plans.items() if number <= self.last]
        check_plans(self._plans, plan.graph, plan.stages)
        self._files.remove_unused(self._commit.chains)

    def begin_with(self, states: Mapping[int, Mapping[Any, Any]]) -> None:
        """Take over the states of an earlier run, by task, before the first micro-batch."""
        chains = write_states(self._plan.state_root, states)
        self._commit = replace(self._commit, chains=chains)
        self._files.add(chains)

    def read_state(self, task: int) -> dict[Any, Any]:
        """Return the state of a task after the last micro-batch. Any thread may call it."""
        while True:
            chain = self._commit.chains.get(task, StateChain())
            try:
                return read_files(self._plan.state_root, chain.files)
            except FileNotFoundError:
                # Another thread may have committed a newer chain meanwhile, and removed the files of this one.
                if self._commit.chains.get(task, StateChain()) == chain:
                    raise

    @property
    def lost(self) -> CheckpointError | None:
        """Why another run has the checkpoint now, once it is known."""
        return self._journal.lost

    @property
    def next_load(self) -> Load:
        """The micro-batch after the last one."""
        return Load(self.last + 1)

    def release(self) -> None:
        """Leave the checkpoint to the next run."""
        self._journal.release()

    def attach(self, executors: DriverExecutors) -> None:
        """Take the executors of a start, and give the spouts what the checkpoint kept for them."""
        self.tuples = SpoutTuples(executors)
        self.tuples.restore(self._commit, self._plans.values(), self._plans_before)
        self._plans_before = []
        executors.spark.has_plans = bool(self._plans)
        if self._watermarks.names:
            executors.spark.has_windows_due = self.has_windows_due

    def has_windows_due(self) -> bool:
        """Return whether windows by event time have ended that only another micro-batch can process."""
        commit = self._commit
        look = SpoutLook.at(self._executors.spouts_by_task)
        return self._watermarks.ended(commit.times, commit.ended, look, (), time.time_ns()) != commit.ended

    @property
    def _tuples(self) -> SpoutTuples:
        assert self.tuples is not None
        return self.tuples

    @property
    def _executors(self) -> DriverExecutors:
        return self._tuples.executors

    # ---- a micro-batch -----------------------------------------------------------------------------------------------

    def run(self, batch: int, frames: Mapping[str, FrameRows]) -> bool:
        """Run one micro-batch, unless it was committed; return whether there was anything to do."""
        with self._lock:
            return self._run(batch, frames)

    def _run(self, batch: int, frames: Mapping[str, FrameRows]) -> bool:
        if batch <= self.last:
            logger.info("micro-batch %d was committed before", batch)
            return False
        if self._plans and batch > min(self._plans):
            raise CheckpointError(
                f"micro-batch {min(self._plans)} is planned and did not end, and Spark continues with {batch}: the"
                " query and the journal are not of the same checkpoint"
            )
        spark = self._executors.spark
        spark.is_running = True
        self._frames = frames
        taken, trees, began = Taken([]), TakenTrees(()), time.monotonic()
        load = Load(batch)
        try:
            self._spark.sparkContext.addJobTag(self._tag)
            self._journal.check()
            planned = self._plans.get(batch)
            if planned is None:
                look = SpoutLook.at(self._executors.spouts_by_task)
                # A watermark is of all that was emitted before: to leave some of it in the queue would make that late.
                taken = spark.take(is_whole=bool(self._watermarks.names))
                load, trees = Load(batch, *taken[1:]), TakenTrees(taken.chunks)
                planned = _make_plan(self._plan, self._tuples, taken, trees)
                if self._watermarks.names:
                    planned = self._with_times(planned, look, taken.chunks, frames)
                moves = planned.ended != self._commit.ended
                if not planned.rows and not frames and not planned.ticks and not moves:
                    self._save()
                    return False
                self._journal.write_plan(batch, planned)
                self._tuples.report_journaled(planned.keys())
            else:
                planned = planned.recovered()
                load = Load(batch, len(planned.tracks), sum(len(row.block) for row in planned.rows))
                logger.warning(
                    "micro-batch %d: its %d trees run again; %d others come from their source again",
                    batch,
                    len(planned.tracks),
                    len(planned.left_out),
                )
            evaluations, began_ns = self.evaluations, spark.clock.now_ns()
            self.progress.begin(batch, began_ns, planned.tracks.keys())
            result, failed = self._evaluate(batch, planned, frames)
            self._finish(batch, planned, result, failed, trees, began_ns)
            self._free(load.size_bytes)
            acked, secs = sum(result.acked.values()), time.monotonic() - began
            self._last_trees = acked + len(failed)
            counts = acked, len(failed), secs, self.evaluations - evaluations
            self.progress.note(new_ended(batch, *counts, result.took))
            logger.info("micro-batch %d: %d trees acked, %d failed, %.1f s", batch, acked, len(failed), secs)
            return True
        except BaseException as error:
            self.error = error
            if not self.jvm.is_to_blame(error):
                raise
            self.error = self.jvm.death(load, spark.batch_bytes, error)
            raise self.error from error
        finally:
            spark.end(taken)
            spark.is_running = False
            self.progress.end()
            self._tell_spark(self._spark.sparkContext.removeJobTag)

    def _tell_spark(self, call: Callable[[str], object]) -> None:
        """Call Spark for the jobs of this run, unless its JVM is gone; an error here would hide the one of its end."""
        if not self.jvm.has_died():
            with contextlib.suppress(Exception):
                call(self._tag)

    def _free(self, size_bytes: int) -> None:
        """Let the JVM free the tuples of micro-batches that have ended: it keeps those of DataFrames in Python."""
        self._unfreed_bytes += size_bytes
        if self._unfreed_bytes >= _FREE_BYTES:
            self._unfreed_bytes = 0
            free_dropped(self._spark)

    def cancel(self) -> bool:
        """Cancel the Spark jobs of the micro-batch that runs, if any, and wait for its end; return whether it came.

        A thread that is inside native code when the interpreter ends would abort the process.
        """
        deadline = time.monotonic() + _CANCEL_SECS
        # Again and again, since the micro-batch may be between two jobs.
        while not self._lock.acquire(timeout=_LOOK_SECS):
            self._tell_spark(self._spark.sparkContext.cancelJobsWithTag)
            if time.monotonic() > deadline:
                logger.error("the micro-batch that runs has not ended %d s after its job was cancelled", _CANCEL_SECS)
                return False
        self._lock.release()
        return True

    def save(self) -> None:
        """Forget in the journal what the spouts know or have given up since the last micro-batch; call it at the end.

        While a micro-batch runs, nothing is done: it commits the same.
        """
        if self.tuples is not None and self._lock.acquire(blocking=False):
            try:
                self._save()
            finally:
                self._lock.release()

    def _save(self) -> None:
        entries, acked = self._tuples.after_batch((), (), ()), self._tuples.acked_after_batch(())
        before = self._commit
        if {entry.key for entry in entries} != {entry.key for entry in before.entries} or acked != before.acked:
            self._commit = replace(before, entries=entries, acked=acked)
            self._journal.commit(self.last, self._commit)

    def _with_times(
        self, planned: BatchPlan, look: SpoutLook, chunks: Sequence[MixedChunk], frames: Collection[str]
    ) -> BatchPlan:
        """Return a plan with what bolts with event time need."""
        active: set[SourceKey] = {*frames, *(_emitter_of(rows) for _, rows in chunks)}
        spouts = {
            root_id: task.collector.task
            for task in self._executors.spout_tasks()
            for root_id in task.collector.open_root_ids()
            if self._watermarks.has_several and root_id in planned.tracks
        }
        before = self._commit
        ended = self._watermarks.ended(before.times, before.ended, look, active, planned.time_ns)
        return replace(planned, spouts=spouts, ended=ended)

    def _evaluate(
        self, batch: int, planned: BatchPlan, frames: Mapping[str, FrameRows]
    ) -> tuple[MicroBatchResult, dict[int, FailedTree]]:
        """Evaluate until no tree fails that could have left a trace in the state; return all that failed, by root."""
        tracks = {root_id: (ack_val, _DRIVER, index) for index, (root_id, ack_val) in enumerate(planned.tracks.items())}
        plan = replace(
            self._plan,
            seed=self._derive(batch, 0),
            ticks=planned.ticks,
            states=self._commit.chains,
            batch=batch,
            partitions=planned.partitions,
            time_ns=planned.time_ns,
            ended=planned.ended,
            moved=frozenset(name for name, end in planned.ended.items() if end != self._commit.ended.get(name)),
            trees_max=_TREES_MAX if self._last_trees is not None and self._last_trees <= _FEW_TREES else None,
            reports=self.progress.address,
        )
        failed: dict[int, FailedTree] = {}
        arguments = planned.rows, frames, tracks, self._named(), planned.spouts
        job = MicroBatchJob(self._spark, plan, *arguments)
        try:
            for number in range(_EVALUATIONS_MAX):
                result = job.evaluate(planned.left_out.union(failed), self._derive(batch, number))
                self.evaluations += 1
                self._files.add(result.chains)
                if result.has_too_many:
                    logger.info("micro-batch %d has many trees; it is computed again, and settled on executors", batch)
                    job.close()
                    job = MicroBatchJob(self._spark, replace(plan, trees_max=None), *arguments)
                    continue
                new = {tree.root_id: tree for tree in result.failed}
                if result.touched and job.reads_again:
                    # What failed is found again among the rows that are kept.
                    job.keep_rows()
                    new = {root_id: tree for root_id, tree in new.items() if tree.task == _DRIVER}
                failed.update(new)
                if not result.touched:
                    return result, failed
                logger.info("micro-batch %d: %d trees failed; it is computed again without them", batch, len(new))
        finally:
            job.close()
        self.traces += len(new)
        logger.warning(
            "micro-batch %d: other trees failed in each of %d evaluations, so the state has effects of %d failed ones,"
            " and their replays add to them; let bolts behind a stateful one do the same with the same tuples",
            batch,
            _EVALUATIONS_MAX,
            len(new),
        )
        return result, failed

    def _derive(self, batch: int, number: int) -> bytes:
        return hashlib.blake2b(f"{batch} {number}".encode(), key=self._seed, digest_size=16).digest()

    def _named(self) -> frozenset[int]:
        """Return the tasks whose acked message ids are wanted: those that act on an ack, and the driver's."""
        acting = {
            task.collector.task
            for task in self._executors.spout_tasks()
            if type(task.spout).ack not in (Spout.ack, ReliableSpout.ack)
            or type(task.spout).ack_batch is not Spout.ack_batch
        }
        return frozenset(acting | {_DRIVER})

    # ---- the end of a micro-batch ------------------------------------------------------------------------------------

    def _finish(
        self,
        batch: int,
        planned: BatchPlan,
        result: MicroBatchResult,
        failed_trees: Mapping[int, FailedTree],
        trees: TakenTrees,
        began_ns: int,
    ) -> None:
        """Commit, then tell the spouts."""
        roots = list(planned.tracks)
        failed = {root_id: tree.reason for root_id, tree in failed_trees.items() if tree.task == _DRIVER}
        acked = [roots[index] for index in result.acked_ids.pop(_DRIVER, [])]
        of_frames = [tree for tree in failed_trees.values() if tree.task != _DRIVER]
        again = _failed_rows(of_frames, self._frames, self._plan.graph)
        ended = planned.keys_of(acked)
        told = _failed_entries(planned, failed, trees)
        entries = self._tuples.after_batch(planned.keys(), ended, [*told, *again])
        self._commit = replace(
            self._commit,
            chains={**self._commit.chains, **result.chains},
            entries=entries,
            acked=self._tuples.acked_after_batch(ended),
            times=self._watermarks.after_batch(self._commit.times, result.times, time.time_ns()),
            ended=planned.ended,
        )
        self._journal.commit(batch, self._commit)
        self.last = batch
        self._files.remove_unused(self._commit.chains)
        self._plans.pop(batch, None)
        self._executors.spark.has_plans = bool(self._plans)
        self._executors.count(result.counters)
        _warn_of_changes(result.changed, self._warned)
        for component in result.late.keys() - self._told_late:
            self._told_late.add(component)
            logger.warning("%s", result.late[component])
        self._deliver(planned, trees, acked, failed, again, result, began_ns)

    def _deliver(
        self,
        planned: BatchPlan,
        trees: TakenTrees,
        acked: Sequence[int],
        failed: Mapping[int, Reason],
        again: Sequence[JournalEntry],
        result: MicroBatchResult,
        began_ns: int,
    ) -> None:
        spark = self._executors.spark
        tasks = {task.collector.task: task for task in self._executors.spout_tasks()}
        rows = {task_id: count for task_id, count in result.acked.items() if task_id != _DRIVER}
        elapsed_ns = spark.clock.now_ns() - began_ns
        self._executors.count_rows(rows, elapsed_ns)
        for root_id, reason in [*((root, None) for root in acked), *failed.items()]:
            if root_id in trees.tuples:
                spark.settle(trees.tuples[root_id], reason)
            elif (entry := planned.entries.get(root_id)) is not None:  # of a run before this one
                self._tuples.deliver(entry, reason)
        spark.settle_rows(*trees.rows_among([*acked, *failed]), failed)
        for entry in again:
            self._tuples.deliver(entry, entry.reason, elapsed_ns // 1_000_000)
        for task_id, ids in result.acked_ids.items():
            component = self._plan.graph.component_of(task_id)
            for tup_id, values in find_rows(self._frames[component], frozenset(ids)).values():
                self._tuples.deliver(JournalEntry(task_id, tup_id, values), None)
        for task_id, count in rows.items():
            if task_id not in result.acked_ids:
                tasks[task_id].collector.acked += count
        spark.settling.ack_sender.send()


def _make_plan(shared: MicroBatchPlan, tuples: SpoutTuples, taken: Taken, trees: TakenTrees) -> BatchPlan:
    """Return the tuples as rows, with their trees."""
    stages, graph = shared.stages, shared.graph
    by_partition: dict[tuple[int, int], list[MixedChunk]] = {}
    for task, of_task in taken.chunks:
        stage = stages.stage_of[graph.component_of(task)]
        by_partition.setdefault((stage, task % shared.partitions), []).append((task, of_task))
    keys = partition_keys(shared.partitions).tolist()
    rows: list[StageRow] = []
    for (stage, partition), parts in sorted(by_partition.items()):
        for part in _parts_of(parts, taken.size_bytes):
            rows.append(StageRow(keys[partition], stage, -1, len(rows), encode_tuples(part)))
    if taken.largest is not None and any(len(row.block) > _BLOCK_MAX for row in rows):
        component, size = taken.largest
        raise TopologyError(
            f"component {component!r}: it has emitted a tuple of {size:,} bytes, and Spark takes at most"
            f" {_BLOCK_MAX:,}; emit where the data is, or its parts"
        )
    entries, batches, borrowed = tuples.entries(trees)
    ticks, layout = tuples.executors.spark.due_ticks(), layout_of(graph, stages)
    return BatchPlan(
        rows,
        trees.tracks(),
        entries,
        ticks,
        borrowed,
        layout=layout,
        partitions=shared.partitions,
        time_ns=time.time_ns(),
        batches=batches,
    )


def _emitter_of(rows: list[Tuple] | TupleBatch) -> int:
    """Return the task that has emitted a chunk."""
    return rows.source.task if isinstance(rows, TupleBatch) else rows[0].task


def _failed_entries(planned: BatchPlan, failed: Mapping[int, Reason], trees: TakenTrees) -> list[JournalEntry]:
    """Return the tuples of spouts on the driver whose trees have failed, with the reasons."""
    entries = planned.entries
    if planned.batches:
        root_ids, _ = trees.rows_among(failed)
        values = trees.values_of_rows(root_ids)
        of_rows = [each for rows in planned.batches for each in rows.entries(values).items()]
        entries = {**entries, **dict(of_rows)}
    return [replace(entries[root], reason=reason) for root, reason in failed.items() if root in entries]


def _parts_of(chunks: list[MixedChunk], size_bytes: int) -> Iterator[list[MixedChunk]]:
    """Yield tuples in parts for rows of a good size: Spark copies the whole of a value several times."""
    if size_bytes <= _ROW_BYTES:
        yield chunks
        return
    part: list[MixedChunk] = []
    of_part = 0
    for task, tuples in chunks:
        if isinstance(tuples, TupleBatch):
            for piece in parts_of(tuples):
                part.append((task, piece))
                of_part += piece.columns.nbytes
                if of_part >= _ROW_BYTES:
                    yield part
                    part, of_part = [], 0
            continue
        begin = 0
        for end, tup in enumerate(tuples, 1):
            of_part += bytes_of(tup)
            if of_part >= _ROW_BYTES:
                yield [*part, (task, tuples[begin:end])]
                part, of_part, begin = [], 0, end
        if begin < len(tuples):
            part.append((task, tuples[begin:]))
    if part:
        yield part


def _failed_rows(trees: Sequence[FailedTree], frames: Mapping[str, FrameRows], graph: Graph) -> list[JournalEntry]:
    """Return the rows of DataFrames whose trees have failed."""
    by_task: dict[int, dict[int, Reason]] = {}
    for tree in trees:
        by_task.setdefault(tree.task, {})[tree.message_id] = tree.reason
    entries = []
    for task, reasons in by_task.items():
        found = find_rows(frames[graph.component_of(task)], frozenset(reasons))
        entries += [
            JournalEntry(task, tup_id, values, reason=reasons[message_id])
            for message_id, (tup_id, values) in found.items()
        ]
    return entries


def _warn_of_changes(changed: Mapping[str, Sequence[str]], warned: set[str]) -> None:
    """Warn of attributes that bolts have changed, once a component."""
    for component in changed.keys() - warned:
        warned.add(component)
        logger.warning(
            "component %r: process() changes %s, which lasts for one micro-batch only; keep in self.state of a"
            " StatefulBolt what has to last",
            component,
            ", ".join(f"self.{name}" for name in changed[component]),
        )
