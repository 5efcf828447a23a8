"""The ledger of one tree: which jobs there are in other processes, and which of them are done.

A job has the name (maker, place): the number of the execution that made it, and which of its jobs it is. Queues repeat
jobs, and two executions of one job may make different ones; as each execution has a number of its own, no name ever
stands for two pieces of work. The first OK about a name counts, and with it the execution that sent it: only its jobs
are awaited. All later reports about that name are duplicates.

So when nothing is open, at least one complete execution of each job, and of everything it led to, is done. Nothing here
depends on the order of the reports or on how often each of them comes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from acker.observe.durations import format_duration
from acker.remote.wire import JOBS_LIMIT, NAMES_MAX, Report, ReportKind, random_number

JOBS_MAX: Final = 10_000_000
# So many names of jobs a tree remembers, whoever sends them.
_NAMES_KEPT: Final = 10_000
_NOT_ALL_DONE: Final = re.compile(rb"[^\xff]")


class OpenJob(NamedTuple):
    """One job that is not done.

    Attributes
    ----------
    name : str
        As whoever made it called it, or its number.
    made_by : str
        The name of the job that made it; empty if the owner of the tree did.
    age_secs : float
        Since it was made or, if a job made it, since that job was done. Of the jobs that the owner made, those from
        the 100th on share one time.
    """

    name: str
    made_by: str
    age_secs: float

    def __str__(self) -> str:
        maker = f", made by {self.made_by}" if self.made_by else ""
        return f"{self.name}{maker}, {format_duration(1000 * self.age_secs)} ago"


class _Execution:
    """An execution that counts: how many jobs it made, and a bit for each of them that is done."""

    __slots__ = ("done", "jobs", "name", "names", "open", "since")

    def __init__(self, name: str, jobs: int, names: tuple[str, ...], since: float) -> None:
        self.name = name
        self.jobs = self.open = jobs
        self.done = bytearray((jobs + 7) // 8)
        self.names = list(names)
        self.since = [since]

    def is_done(self, place: int) -> int:
        return self.done[place >> 3] & 1 << (place & 7)

    def end(self, place: int) -> None:
        self.done[place >> 3] |= 1 << (place & 7)
        self.open -= 1

    def open_places(self) -> Iterator[int]:
        """Yield which jobs are not done. A search finds them, as one of millions may be the last."""
        for found in _NOT_ALL_DONE.finditer(bytes(self.done)):
            first = 8 * found.start()
            for place in range(first, min(first + 8, self.jobs)):
                if not self.is_done(place):
                    yield place

    def name_of(self, place: int) -> str:
        name = self.names[place] if place < len(self.names) else ""
        return name or (f"job {place} of {self.name}" if self.name else f"job {place}")


class Ledger:
    """The jobs of one tree. It knows no clock, no thread and no network.

    Parameters
    ----------
    jobs_max : int
        The most jobs of the tree, and the most reports whose maker has not reported.

    Attributes
    ----------
    maker : int
        The number of the owner, who makes the first jobs.
    open : int
        How many jobs are known and not done.
    jobs : int
        How many jobs are known.
    failure : str or None
        Why the tree has failed; from then on nothing changes it.
    duplicates, strangers : int
        Reports about jobs that were done before, and about jobs that nobody has made.
    """

    def __init__(self, jobs_max: int = JOBS_MAX) -> None:
        self.maker = random_number()
        self.open = self.jobs = self.duplicates = self.strangers = 0
        self.failure: str | None = None
        self._jobs_max = jobs_max
        self._owner = _Execution("", 0, (), 0.0)
        self._executions = {self.maker: self._owner}
        # Reports about jobs of executions that do not count, or not yet: by the maker, the first about each job.
        self._early: dict[int, dict[int, Report]] = {}
        self._early_count = 0
        self._names_count = 0

    def make(self, name: str, now: float) -> int:
        """Note a job that the owner makes; return its place."""
        owner = self._owner
        place = owner.jobs
        if not self._announce(1):
            return place
        owner.jobs += 1
        owner.open += 1
        if place & 7 == 0:
            owner.done.append(0)
        if place < NAMES_MAX:
            owner.names.append(name)
            owner.since[place:] = [now]
        return place

    def is_open(self, maker: int, place: int) -> bool:
        """Return whether a job is open, or could become so."""
        execution = self._executions.get(maker)
        return execution is None or (place < execution.jobs and not execution.is_done(place))

    def take(self, report: Report, now: float) -> None:
        """Apply a report that a job is done or has failed, and the early ones that it makes count."""
        found = [report]
        while found and self.failure is None:
            found += self._apply(found.pop(), now)

    def _apply(self, report: Report, now: float) -> list[Report]:
        """Apply one report; return the early ones that count from now on."""
        maker = self._executions.get(report.maker)
        if maker is None:
            self._keep_early(report)
        elif report.place >= maker.jobs:
            self.strangers += 1
        elif maker.is_done(report.place):
            self.duplicates += 1
        elif report.kind == ReportKind.FAIL:
            self.failure = report.reason or f"{maker.name_of(report.place)} failed, without a reason"
        elif report.execution in self._executions:
            self.strangers += 1  # an execution has one job, so this one is forged
        elif self._announce(report.jobs):
            maker.end(report.place)
            self.open -= 1
            if report.jobs:
                name = maker.name_of(report.place)
                self._executions[report.execution] = _Execution(name, report.jobs, self._kept(report.names), now)
            # Only an execution that counts has its early reports kept to the end.
            early = self._early.pop(report.execution, {})
            self._early_count -= len(early)
            return [*early.values()]
        return []

    def _keep_early(self, report: Report) -> None:
        early = self._early.setdefault(report.maker, {})
        if report.place in early:
            self.duplicates += 1
        else:
            early[report.place] = report._replace(names=self._kept(report.names))
            self._early_count += 1
            self._check_room(0)

    def _kept(self, names: tuple[str, ...]) -> tuple[str, ...]:
        kept = names[: max(0, _NAMES_KEPT - self._names_count)]
        self._names_count += len(kept)
        return kept

    def _announce(self, jobs: int) -> bool:
        """Count further jobs; return whether the tree has room for them."""
        if not self._check_room(jobs):
            return False
        self.jobs += jobs
        self.open += jobs
        return True

    def _check_room(self, jobs: int) -> bool:
        if self.jobs + jobs + self._early_count > self._jobs_max or self._owner.jobs == JOBS_LIMIT:
            self.failure = (
                f"more than {self._jobs_max:,} jobs derive from it ({self.jobs + jobs:,} and {self._early_count:,}"
                " reports of unknown origin): raise jobs_max if so many are right"
            )
        return self.failure is None

    def missing(self, now: float) -> Iterator[OpenJob]:
        """Yield the jobs that are open, in the order in which their makers were done."""
        for execution in self._executions.values():
            if not execution.open:
                continue
            for place in execution.open_places():
                since = execution.since[min(place, len(execution.since) - 1)]
                yield OpenJob(execution.name_of(place), execution.name, max(0.0, now - since))
