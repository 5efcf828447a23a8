"""The progress of a topology's micro-batches, for the page and the watchdog: their times, and where one stands."""

from __future__ import annotations

import contextlib
import logging
import statistics
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from acker.observe.calls import UserCall
from acker.observe.headline import RunningJob
from acker.observe.readings import table
from acker.spark.report_receiver import ReportReceiver
from acker.spark.task_reports import ReportAddress, TaskReport
from acker.spark.task_tables import tasks_in, tasks_table
from acker.spark.topologies.stage_plan import StagePlan
from acker.spark.topologies.stage_worker import TaskTime

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NS_PER_MS: Final = 1_000_000
# How many micro-batches are listed. The usual time of one is the median of as many.
_BATCHES_MAX: Final = 20

logger = logging.getLogger("acker.spark")


@dataclass(frozen=True, slots=True)
class RunningBatch:
    """A micro-batch that runs.

    Attributes
    ----------
    number : int
    since_ns : int
        By the runtime's clock.
    roots : collection of int
        The root ids of the tuples that spouts on the driver have emitted.
    """

    number: int
    since_ns: int
    roots: Collection[int]


class EndedBatch(NamedTuple):
    """A micro-batch that was committed.

    Attributes
    ----------
    number : int
    at_ms : int
        The end, since 1970, UTC.
    acked, failed : int
        Trees.
    took_ms : int
    evaluations : int
    tasks : sequence of TaskTime
        Those of the last evaluation.
    """

    number: int
    at_ms: int
    acked: int
    failed: int
    took_ms: int
    evaluations: int
    tasks: Sequence[TaskTime]

    @property
    def state_ms(self) -> int:
        """The longest time that a task took to read and write state."""
        return max((task.state_ns for task in self.tasks), default=0) // _NS_PER_MS

    def by_stage(self) -> list[tuple[int, list[TaskTime]]]:
        """Return the tasks of each stage."""
        stages = sorted({task.stage for task in self.tasks})
        return [(stage, [task for task in self.tasks if task.stage == stage]) for stage in stages]


class SparkStage(NamedTuple):
    """A stage of Spark that runs now: its number, how many of its tasks are done, and its bolts if they are known."""

    number: int
    done: int
    tasks: int
    bolts: str = ""

    def __str__(self) -> str:
        bolts = f" ({self.bolts})" if self.bolts else ""
        return f"of Spark's stage {self.number}{bolts}, {self.done} of {self.tasks} tasks are done"


class BatchProgress:
    """Knows what the micro-batches of one run have taken, and asks Spark and the workers where the one that runs is.

    Parameters
    ----------
    spark : SparkSession
    name : str
        Of the topology.
    stages : StagePlan
    tag : str
        Of the Spark jobs of this run.

    Attributes
    ----------
    running : RunningBatch or None
    receiver : ReportReceiver or None
        From `listen` until `close`.
    """

    def __init__(self, spark: SparkSession, name: str, stages: StagePlan, tag: str) -> None:
        self.running: RunningBatch | None = None
        self.receiver: ReportReceiver | None = None
        self._spark = spark
        self._name = name
        self._stages = stages
        self._tag = tag
        self._ended: deque[EndedBatch] = deque(maxlen=_BATCHES_MAX)

    @property
    def address(self) -> ReportAddress | None:
        """Where workers report to."""
        return None if self.receiver is None else self.receiver.address

    def listen(self, message_of: Callable[[int], str | None]) -> None:
        """Receive what workers report from now on, and warn of calls that hang, with their messages."""
        self.receiver = ReportReceiver(self._spark, self._name, message_of)

    def close(self) -> None:
        """End the thread and the socket of `listen`."""
        if self.receiver is not None:
            self.receiver.close()

    def begin(self, number: int, now_ns: int, roots: Collection[int]) -> None:
        """Note that a micro-batch begins."""
        if self.receiver is not None:
            self.receiver.begin(str(number))
        self.running = RunningBatch(number, now_ns, roots)

    def end(self) -> None:
        """Note that no micro-batch runs."""
        self.running = None

    def note(self, ended: EndedBatch) -> None:
        """Add a micro-batch that was committed."""
        self._ended.append(ended)

    # Now.

    def reports(self) -> list[TaskReport]:
        """Return the reports of the tasks that work for long, the longest call first."""
        return [] if self.receiver is None or self.running is None else self.receiver.reports()

    def calls(self, message_of: Callable[[int], str | None]) -> dict[int, UserCall]:
        """Return the calls of user code in the Spark tasks that work for long, by task of the topology."""
        found: dict[int, UserCall] = {}
        for each in self.reports():
            call = each.call(None if each.root_id is None else message_of(each.root_id))
            if call is not None and each.task is not None:
                found.setdefault(each.task, call)
        return found

    def job(self, now_ns: int) -> RunningJob | None:
        """Return the job of the micro-batch that runs, if one does."""
        running = self.running
        if running is None:
            return None
        took = [each.took_ms for each in list(self._ended)]
        usual_ms = statistics.median(took) if took else None
        for_ms = (now_ns - running.since_ns) // _NS_PER_MS
        job = RunningJob(f"micro-batch {running.number}", for_ms, usual_ms)
        return job._replace(where=self.where()) if job.is_long else job

    def where(self) -> str:
        """Return what the micro-batch that runs does now; empty if nobody knows."""
        reports = self.reports()
        bolts = {each.stage: each.bolts for each in reports}
        stages = [str(stage._replace(bolts=bolts.get(stage.number, ""))) for stage in self.active_stages()]
        return "; ".join(part for part in (tasks_in(reports), *stages) if part)

    def active_stages(self) -> list[SparkStage]:
        """Return the stages of this run that Spark computes; none between two of them, and when Spark has stopped."""
        found: list[SparkStage] = []
        with contextlib.suppress(Exception):
            context: Any = self._spark.sparkContext
            tracker = context.statusTracker()
            jobs = [tracker.getJobInfo(job) for job in context._jsc.sc().statusTracker().getJobIdsForTag(self._tag)]
            mine = {stage for job in jobs if job is not None for stage in job.stageIds}
            for number in tracker.getActiveStageIds():
                info = tracker.getStageInfo(number) if number in mine else None
                if info is not None:
                    found.append(SparkStage(number, info.numCompletedTasks, info.numTasks))
        return found

    # Tables of the live page.

    def tables(self, message_of: Callable[[int], str | None]) -> list[dict[str, Any]]:
        """Return the tasks that work for long, the micro-batches, and the stages of the last one."""
        ended = list(reversed(self._ended))
        return [tasks_table(self.reports(), message_of), self._batches_table(ended), self._stages_table(ended)]

    def _batches_table(self, ended: Sequence[EndedBatch]) -> dict[str, Any]:
        rows = [
            [str(each.number), each.at_ms, each.acked, each.failed, each.took_ms, each.state_ms, each.evaluations]
            for each in ended
        ]
        columns = [
            ("Micro-batch", None),
            ("Time", "at"),
            ("Acked", ""),
            ("Failed", ""),
            ("Took", "ms"),
            ("State", "ms"),
            ("Evaluations", ""),
        ]
        return table("batches", "Micro-batches", columns, rows, "None has ended yet.")

    def _stages_table(self, ended: Sequence[EndedBatch]) -> dict[str, Any]:
        rows = []
        for stage, tasks in ended[0].by_stage() if ended else ():
            slowest = max(tasks, key=lambda task: task.took_ns)
            median_ns = statistics.median(task.took_ns for task in tasks)
            rows.append(
                [
                    ", ".join(self._stages.components(stage)),
                    len(tasks),
                    sum(task.done for task in tasks),
                    median_ns / _NS_PER_MS,
                    slowest.took_ns / _NS_PER_MS,
                    f"partition {slowest.partition}, with {slowest.done:,} tuples",
                    max(task.state_ns for task in tasks) / _NS_PER_MS,
                ]
            )
        columns = [
            ("Stage", None),
            ("Tasks", ""),
            ("Tuples", ""),
            ("Median", "ms"),
            ("Slowest", "ms"),
            ("Which", None),
            ("State", "ms"),
        ]
        return table("stages", "Stages of the last micro-batch", columns, rows, "No micro-batch has ended yet.")


def new_ended(
    number: int, acked: int, failed: int, took_secs: float, evaluations: int, tasks: Sequence[TaskTime]
) -> EndedBatch:
    """Return a micro-batch that ends now."""
    at_ms = time.time_ns() // _NS_PER_MS
    return EndedBatch(number, at_ms, acked, failed, round(1_000 * took_secs), evaluations, tasks)
