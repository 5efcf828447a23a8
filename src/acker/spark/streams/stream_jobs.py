"""The micro-batches of streaming queries that run now: for how long, and which stage Spark computes."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from acker.observe.headline import RunningJob

# The usual time of a micro-batch is the median of as many.
_BATCHES_MAX: Final = 20


class _Query:
    def __init__(self, name: str, now: float) -> None:
        self.name = name
        self.since = now
        self.took_ms: deque[int] = deque(maxlen=_BATCHES_MAX)


class StreamJobs:
    """Knows since when each query has said nothing, and asks Spark whether it works.

    Parameters
    ----------
    tracker : StatusTracker of PySpark, or None
        None, as with Spark Connect: nothing is known.
    now : callable
        Returns a monotonic time in seconds.
    """

    def __init__(self, tracker: Any, now: Callable[[], float] = time.monotonic) -> None:
        self._tracker = tracker
        self._now = now
        self._queries: dict[str, _Query] = {}

    def begin(self, run_id: str, name: str) -> None:
        """Note that a query begins."""
        self._queries[run_id] = _Query(name, self._now())

    def rest(self, run_id: str, took_ms: int | None = None) -> None:
        """Note that a query has ended a micro-batch, or has found nothing to do."""
        query = self._queries.get(run_id)
        if query is not None:
            query.since = self._now()
            if took_ms is not None:
                query.took_ms.append(took_ms)

    def end(self, run_id: str) -> None:
        """Note that a query has ended."""
        self._queries.pop(run_id, None)

    def longest(self, inside: str = "") -> RunningJob | None:
        """Return the micro-batch that has run longest; `inside` tells where its tasks are."""
        found: list[RunningJob] = []
        for run_id, query in list(self._queries.items()):
            stages = self._active_stages(run_id)
            if not stages:
                continue
            usual_ms = statistics.median(query.took_ms) if query.took_ms else None
            for_ms = round(1_000 * (self._now() - query.since))
            where = "; ".join(filter(None, [inside, *stages]))
            found.append(RunningJob(f"the micro-batch of {query.name}", for_ms, usual_ms, where))
        return max(found, key=lambda job: (job.is_long, job.for_ms), default=None)

    def _active_stages(self, run_id: str) -> list[str]:
        """Return how far Spark is with the stages of a query: it gives all jobs of one the group of its run."""
        found: list[str] = []
        if self._tracker is None:
            return found
        with contextlib.suppress(Exception):  # Spark has stopped.
            jobs = [self._tracker.getJobInfo(job) for job in self._tracker.getJobIdsForGroup(run_id)]
            mine = {stage for job in jobs if job is not None for stage in job.stageIds}
            for number in self._tracker.getActiveStageIds():
                info = self._tracker.getStageInfo(number) if number in mine else None
                if info is not None:
                    told = f"{info.numCompletedTasks} of {info.numTasks} tasks are done"
                    found.append(f"of Spark's stage {number}, {told}")
        return found
