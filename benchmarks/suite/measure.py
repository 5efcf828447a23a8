"""The measuring: pairs of runs over the same load, and ratios of the pairs.

A figure in nanoseconds depends on the machine, its neighbours and the minute. So two sides are always timed on the same
load, one right after the other, in alternating order (A B, B A, A B ...). The result is the median of the ratios of the
pairs, with their spread.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from typing import Any, Generic, NamedTuple, TypeVar

Load = TypeVar("Load")


@dataclass(frozen=True)
class Goal:
    """What a ratio or a figure should be; met or not is reported, and never fails a run."""

    at_least: float | None = None
    at_most: float | None = None

    def is_met(self, median: float) -> bool:
        """Return whether a median reaches the goal."""
        return (self.at_least is None or median >= self.at_least) and (self.at_most is None or median <= self.at_most)


class Scale(NamedTuple):
    """How much work a run does.

    Attributes
    ----------
    name : str
    divisor : int
        What the sizes of the workloads are divided by.
    pairs : int
        How often each side is timed.
    """

    name: str
    divisor: int
    pairs: int

    def size(self, full: int, least: int = 1) -> int:
        """Return a size at this scale, `least` or more."""
        return max(least, full // self.divisor)

    def goal(self, goal: Goal | None) -> Goal | None:
        """Return the goal at full size, which goals are about; else None."""
        return goal if self.divisor == 1 else None


FULL = Scale("full", 1, 15)
QUICK = Scale("quick", 8, 5)
# For tests: shows that a benchmark works, not how fast anything is.
TINY = Scale("tiny", 4000, 2)
SCALES = {scale.name: scale for scale in (FULL, QUICK, TINY)}


class Spread(NamedTuple):
    """Median, quartiles and extremes of samples."""

    median: float
    low: float
    high: float
    least: float
    most: float

    @classmethod
    def of(cls, samples: list[float]) -> Spread:
        """Summarise one sample or more."""
        if len(samples) == 1:
            return cls(*samples * 5)
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, low, high, min(samples), max(samples))


@dataclass(frozen=True)
class Ratio:
    """Samples of one side divided by those of another, pair by pair."""

    of: str
    to: str
    goal: Goal | None = None


class Published(NamedTuple):
    """A figure of somebody else's, from another machine: shown for context, compared with nothing.

    Attributes
    ----------
    name : str
    figure : float
        In the unit of the result.
    source : str
    """

    name: str
    figure: float
    source: str


@dataclass
class Result:
    """What a case measured.

    Attributes
    ----------
    unit : str
        Of the samples.
    samples : dict of side to list of float
        Item i of every side belongs to pair i.
    ratios : list of Ratio
        The comparisons that answer the question.
    parameters : dict
        Sizes, seeds and options: what is needed to run the same again.
    checksum : dict
        What was counted, and found to be what the workload's generator expects; a case whose work is not, raises.
    goals : dict of side to Goal
        Of figures that are their own answer.
    published : list of Published
        Figures of others, for context.
    """

    unit: str
    samples: dict[str, list[float]]
    ratios: list[Ratio] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    checksum: dict[str, Any] = field(default_factory=dict)
    goals: dict[str, Goal] = field(default_factory=dict)
    published: list[Published] = field(default_factory=list)

    def spread(self, side: str) -> Spread:
        """Summarise the samples of a side."""
        return Spread.of(self.samples[side])

    def ratio(self, ratio: Ratio) -> Spread:
        """Summarise the ratios of the pairs."""
        pairs = zip(self.samples[ratio.of], self.samples[ratio.to], strict=True)
        return Spread.of([of / to for of, to in pairs])

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON-able values, the summaries included."""
        ratios = [
            {
                **asdict(ratio),
                **self.ratio(ratio)._asdict(),
                "met": ratio.goal and ratio.goal.is_met(self.ratio(ratio).median),
            }
            for ratio in self.ratios
        ]
        figures = {side: self.spread(side)._asdict() for side in self.samples}
        return {
            "parameters": self.parameters,
            "checksum": self.checksum,
            "unit": self.unit,
            "figures": figures,
            "ratios": ratios,
            "goals": {
                side: {**asdict(goal), "met": goal.is_met(self.spread(side).median)}
                for side, goal in self.goals.items()
            },
            "published": [other._asdict() for other in self.published],
            "samples": self.samples,
        }


@dataclass(frozen=True)
class Case:
    """One question at one size.

    Attributes
    ----------
    name : str
        ``question/size``; what `--only` selects by.
    question : str
        In words.
    run : callable
        Takes a `Scale`, returns a `Result`. At module level (with `functools.partial`), since it runs in a process of
        its own.
    needs : tuple of str
        Modules that the package does not depend on. Where one is missing the case is left out, unless it is asked for.
    obstacle : callable, optional
        Says why the case cannot run here, None if it can; then it is left out in the same way.
    """

    name: str
    question: str
    run: Callable[[Scale], Result]
    needs: tuple[str, ...] = ()
    obstacle: Callable[[], str | None] | None = None

    def missing(self) -> list[str]:
        """Return which of `needs` are not installed."""
        return [module for module in self.needs if find_spec(module) is None]

    def why_not(self) -> str | None:
        """Return why the case is left out; None if it can run."""
        if missing := self.missing():
            return f"{', '.join(missing)} is not installed"
        return self.obstacle() if self.obstacle else None


def clock_ns(work: Callable[[], object]) -> int:
    """Return the nanoseconds of processor time that `work` takes on this thread, garbage collection off.

    Processor time, since a neighbour that takes the core away for a while is no part of the question. Work that other
    threads or processes do is not seen; `process_ns` and `wall_ns` are for that.
    """
    return _time(work, time.thread_time_ns)


def process_ns(work: Callable[[], object]) -> int:
    """Return the nanoseconds of processor time that all threads of this process take while `work` runs."""
    return _time(work, time.process_time_ns)


def wall_ns(work: Callable[[], object]) -> int:
    """Return the nanoseconds that pass while `work` runs, garbage collection off."""
    return _time(work, time.perf_counter_ns)


def _time(work: Callable[[], object], now: Callable[[], int]) -> int:
    enabled = gc.isenabled()
    gc.disable()
    try:
        start = now()
        work()
        return max(now() - start, 1)  # where the clock is too coarse it reads 0, of which no ratio can be taken
    finally:
        if enabled:
            gc.enable()


@dataclass
class Alternation(Generic[Load]):
    """Times several sides on each of a row of loads, each load in the opposite order of the one before.

    Parameters
    ----------
    sides : mapping of name to callable
        Each takes a load. What it returns is given to `check`.
    check : callable, optional
        Takes the side's name, the load and what the side returned, after the clock was stopped.
    clock : callable
        `clock_ns`, `process_ns` or `wall_ns`.
    """

    sides: Mapping[str, Callable[[Load], Any]]
    check: Callable[[str, Load, Any], None] | None = None
    clock: Callable[[Callable[[], object]], int] = clock_ns

    def run(self, loads: Iterable[Load], warm_up: int = 1) -> dict[str, list[float]]:
        """Return the nanoseconds of each side on each load but the first `warm_up`."""
        order = list(self.sides)
        samples: dict[str, list[float]] = {side: [] for side in order}
        for number, load in enumerate(loads):
            for side in order[:: -1 if number % 2 else 1]:
                taken = self._once(side, load)
                if number >= warm_up:
                    samples[side].append(taken)
        return samples

    def _once(self, side: str, load: Load) -> float:
        work, returned = self.sides[side], []
        taken = self.clock(lambda: returned.append(work(load)))
        if self.check is not None:
            self.check(side, load, returned[0])
        return taken


def per(samples: Mapping[str, list[float]], units: float) -> dict[str, list[float]]:
    """Return all samples divided by `units`."""
    return {side: [sample / units for sample in taken] for side, taken in samples.items()}


def expect(what: str, found: object, expected: object) -> None:
    """Raise AssertionError unless the work gave what the workload's generator expects."""
    if found != expected:
        raise AssertionError(f"{what}: expected {expected}, got {found}")
