"""The runtime of a topology on Spark: that of one process, whose bolts run as Spark jobs."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

from acker._files.paths import Place
from acker.errors import SessionError, TopologyError
from acker.local.calls import running_calls
from acker.local.hooks import Hook
from acker.local.page.open_trees import MessageNames
from acker.local.runtime import LocalRuntime
from acker.local.wiring import ExecutorSet
from acker.observe.calls import UserCall
from acker.observe.headline import RunningJob
from acker.observe.holders import Holder
from acker.spark.hadoop import place_of
from acker.spark.topologies.frames import FrameRows, read_frame
from acker.spark.topologies.journal import Journal, MemoryJournal
from acker.spark.topologies.jvm import BATCH_BYTES
from acker.spark.topologies.micro_batch_plan import MicroBatchPlan
from acker.spark.topologies.micro_batches import MicroBatches
from acker.spark.topologies.spark_executor import DriverExecutors
from acker.spark.topologies.spark_holders import find_on_spark
from acker.spark.topologies.stage_plan import StagePlan, is_stateful, plan_stages
from acker.spark.topologies.topology_checks import check_travels, idle_options
from acker.topology.checks import check_journal, check_ticks
from acker.topology.conf import check, resolve
from acker.topology.definition import Topology
from acker.topology.graph import Graph, Node, graph_of
from acker.topology.spout import Spout, has_frame
from acker.ui.options import PageChoice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A micro-batch of the 128 tuples that suit one process would spend its time in Spark's scheduler.
_PENDING_MAX: Final = 100_000
_SHARDS_MAX: Final = 64
# How long the thread of a micro-batch may still run when that has ended.
_JOIN_SECS: Final = 10

logger = logging.getLogger("acker.spark")


class SparkRuntime(LocalRuntime):
    """Runs a topology: its spouts in threads of this process or as DataFrames, its bolts on Spark.

    Parameters
    ----------
    topology, conf, hooks, environment, state, ui
        As for `acker.local.LocalRuntime`. Hooks see the spouts.
    spark : SparkSession
    checkpoint : str, optional
        The directory of the journal and of the state of bolts.

    Attributes
    ----------
    batches : MicroBatches
    """

    _check = staticmethod(check_ticks)

    def __init__(
        self,
        topology: type[Topology] | Graph,
        conf: Mapping[str, Any] | None,
        spark: SparkSession,
        *,
        checkpoint: str | None = None,
        hooks: Sequence[Hook] = (),
        environment: str | None = None,
        state: str | os.PathLike[str] | bytes | None = None,
        ui: PageChoice = None,
    ) -> None:
        graph = graph_of(topology, environment)
        overrides = check({} if conf is None else conf)
        if "topology.max.spout.pending" not in graph.conf:
            overrides.setdefault("topology.max.spout.pending", _PENDING_MAX)
        if checkpoint is None:
            check_journal(graph)
        overrides["topology.spark.streaming"] = checkpoint is not None
        plan = plan_stages(graph)
        options: dict[str, Any] = {"hooks": hooks, "environment": environment, "state": state, "ui": ui}
        super().__init__(topology, overrides, no_restart=True, **options)
        on_workers = _without_spouts(self.graph)
        check_travels(on_workers, self._parts.conf)
        self.spark = spark
        for acker in self.ackers:  # a micro-batch ends all its trees
            acker.open_roots = self.lifecycle.open_roots
        root = None if checkpoint is None else place_of(checkpoint, spark)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if checkpoint is None:
            _refuse_remote_state(spark, self.graph)
            self._folder = tempfile.TemporaryDirectory(prefix="acker-state-", ignore_cleanup_errors=True)
            root = place_of(self._folder.name)
        assert root is not None
        base = self._base_plan(on_workers, plan, root.below("state"))
        journal = MemoryJournal() if checkpoint is None else Journal(root)
        self.batches = MicroBatches(spark, base, journal, os.urandom(16))
        if self.batches.last < 0:
            try:
                self.batches.begin_with(self._states.restored())
            except BaseException:
                self.release()
                raise
        self._states.read_elsewhere = self.batches.read_state
        self._messages = MessageNames(lambda: self.lifecycle.executors)
        # The DataFrames that the first micro-batch of a batch job reads.
        self._frames: dict[str, FrameRows] = {}

    def _base_plan(self, graph: Graph, plan: StagePlan, state_root: Place) -> MicroBatchPlan:
        cores = self.spark.sparkContext.defaultParallelism
        behind = [graph.nodes[name].par for name, stage in plan.stage_of.items() if stage > 0]
        return MicroBatchPlan(
            graph,
            dict(self._parts.conf),
            plan,
            partitions=max(1, min(max(behind, default=1), 4 * cores)),
            shards=min(cores, _SHARDS_MAX),
            seed=b"",
            tracked=bool(self.ackers),
            state_root=state_root,
        )

    # ---- micro-batches -----------------------------------------------------------------------------------------------

    def _make_executors(self) -> ExecutorSet:
        options = resolve(self._parts.conf)
        pending_max = options["topology.max.spout.pending"] or _PENDING_MAX
        batch_bytes = options[BATCH_BYTES] or self.batches.jvm.batch_bytes
        executors = DriverExecutors(self._parts, pending_max, batch_bytes)
        self.batches.attach(executors)
        executors.spark.may_end = self._may_end
        return executors

    def _may_end(self) -> bool:
        """Return whether the run is to end when all is drained, and the spouts are."""
        until = self.lifecycle.until
        if not until.drained and until.acked is None:
            return False
        return all(task.finished for task in self.executors.spout_tasks())

    @property
    def executors(self) -> DriverExecutors:
        """The executors on the driver, once started."""
        executors = self.lifecycle.require_executors()
        assert isinstance(executors, DriverExecutors)
        return executors

    def start(self) -> Self:
        """Start; see `LocalRuntime.start`."""
        for told in idle_options(self.graph, self._parts.conf):
            logger.info("%s: %s has no effect on Spark", self.graph.name, told)
        self.batches.progress.listen(self._messages.of)
        return super().start()

    def join(self) -> None:
        """Wait until all has ended, and remove the state of a batch job."""
        super().join()
        if self._folder is not None:
            self._folder.cleanup()

    def raise_error(self) -> None:
        """Raise what the start has ended with, if it has."""
        if self.error is not None:
            raise self.error

    def start_batches(self) -> None:
        """Run micro-batches on the executor's own thread, whenever tuples wait; the DataFrames of spouts first.

        Raises
        ------
        TopologyError
            A spout's DataFrame is refused.
        """
        self.raise_error()
        self._frames = self.read_frames()
        streaming = [name for name, rows in self._frames.items() if rows.frame.isStreaming]
        if streaming:
            raise TopologyError(
                f"component {streaming[0]!r}: frame() returned a streaming DataFrame, and this is a batch job: give"
                " checkpoint=, or read with spark.read"
            )
        self.executors.spark.run_batch = self._run_batch
        self.executors.spark.signal.set()

    def read_frames(self) -> dict[str, FrameRows]:
        """Return the DataFrames of spouts."""
        spouts: dict[str, Any] = {}
        for task in self.executors.spout_tasks():
            spouts.setdefault(task.collector.component, task.spout)
        nodes = self.graph.nodes
        conf = self._parts.conf
        return {
            name: read_frame(nodes[name], spout, self.spark, resolve(conf, nodes[name].conf))
            for name, spout in spouts.items()
            if has_frame(type(spout))
        }

    def run_batch(self, batch: int, frames: Mapping[str, FrameRows]) -> bool:
        """Run one micro-batch."""
        return self.batches.run(batch, frames)

    def cancel_jobs(self) -> None:
        """Cancel the job of a micro-batch that still runs after a stop, and wait until its thread has ended.

        A job that the stop has left behind must not run on when the program ends; see `MicroBatches.cancel`.
        """
        has_ended = self.batches.cancel()
        if has_ended and self.has_ended and self.lifecycle.executors is not None:
            thread = self.executors.spark.thread
            if thread is not None:
                thread.join(_JOIN_SECS)

    def release(self) -> None:
        """Leave the checkpoint to the next run; call it at the end of the run."""
        self.batches.release()
        self.batches.progress.close()

    def end_frames(self) -> None:
        """Declare that the DataFrames have no further rows."""
        for feed in self.executors.feeds.values():
            feed.end_rows()

    def _run_batch(self, is_due: bool) -> bool:
        frames, self._frames = self._frames, {}
        if not frames and not is_due:
            return False
        ran = self.run_batch(self.batches.last + 1, frames)
        if frames:
            self.end_frames()
        return ran

    def find_holders(
        self, executors: ExecutorSet, roots: Collection[int], calls: Mapping[int, UserCall], now_ns: int
    ) -> dict[int, list[Holder]]:
        """Return where the tuples of open trees are, by their root ids. Any thread may call it."""
        assert isinstance(executors, DriverExecutors)
        return find_on_spark(executors, self.batches.progress, roots, calls, now_ns)

    def find_calls(self, executors: ExecutorSet, now_ns: int) -> Mapping[int, UserCall]:
        """Return the calls of user code that run now, by task: those of spouts, and those on workers that are long."""
        return {**running_calls(executors.spouts, now_ns), **self.batches.progress.calls(self._messages.of)}

    def find_job(self, now_ns: int) -> RunningJob | None:
        """Return the job of the micro-batch that runs, if one does."""
        return self.batches.progress.job(now_ns)

    def more_tables(self) -> list[dict[str, Any]]:
        """Return the tables of the page about micro-batches."""
        return self.batches.progress.tables(self._messages.of)

    def stop(self, drain_secs: float | None = None) -> None:
        """Stop in order; see `LocalRuntime.stop`."""
        super().stop(drain_secs)
        self.batches.save()

    def _tells_stalls(self) -> bool:
        """Return whether a stall is news: while a micro-batch runs, only if a call on a worker is long."""
        if self.lifecycle.executors is None or not self.executors.spark.is_running:
            return True
        return any(report.hangs for report in self.batches.progress.reports())


def _without_spouts(graph: Graph) -> Graph:
    """Return the graph without what spouts on the driver have: passwords in options, globals that cannot be pickled."""
    stay = {name: replace(node, conf={}, component=Spout) for name, node in graph.nodes.items() if _stays(node)}
    return replace(graph, nodes={**graph.nodes, **stay})


def _stays(node: Node) -> bool:
    return node.kind == "spout" and not has_frame(node.component)


def _refuse_remote_state(spark: SparkSession, graph: Graph) -> None:
    """Refuse state without a checkpoint where the workers may not see this machine's files."""
    stateful = [node.name for node in graph.nodes.values() if is_stateful(node)]
    if stateful and not str(spark.sparkContext.master).startswith("local"):
        raise SessionError(
            f"component {stateful[0]!r} has state, which needs a directory that all workers see: give checkpoint= "
            "with a path on shared storage"
        )
