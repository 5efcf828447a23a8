"""Rates and latencies of the last seconds, from figures that only grow."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from acker.observe.latencies import Histogram

_NS_PER_SEC = 1_000_000_000


class Reading(NamedTuple):
    """Figures since the start, at one moment."""

    at_ns: int
    counts: Mapping[str, float]
    latencies: Mapping[str, Histogram]


class RecentFigures:
    """The growth of counts and latencies in the last seconds.

    Parameters
    ----------
    window_secs : float
        How far back it looks; less at the start.
    """

    def __init__(self, window_secs: float = 10.0) -> None:
        self._window_ns = round(window_secs * _NS_PER_SEC)
        self._readings: deque[Reading] = deque()

    def take(self, reading: Reading) -> None:
        """Add the figures of this moment."""
        readings = self._readings
        readings.append(reading)
        while len(readings) > 2 and readings[1].at_ns <= reading.at_ns - self._window_ns:
            readings.popleft()

    @property
    def seconds(self) -> float:
        """The length of the window; 0 before the second reading."""
        return (self._readings[-1].at_ns - self._readings[0].at_ns) / _NS_PER_SEC

    def all_latencies(self, name: str) -> Histogram:
        """Return the latencies since the start; none for an unknown name."""
        return self._readings[-1].latencies.get(name, Histogram())

    def rate(self, name: str, *, at_once: bool = False) -> float | None:
        """Return how much a count grew a second in the window, or `at_once`: since the reading before.

        None before the second reading. A count that is new has grown from 0.
        """
        if len(self._readings) < 2:
            return None
        before, now = self._readings[-2 if at_once else 0], self._readings[-1]
        elapsed_ns = now.at_ns - before.at_ns
        if elapsed_ns <= 0:
            return None
        return (now.counts.get(name, 0) - before.counts.get(name, 0)) * _NS_PER_SEC / elapsed_ns

    def growth(self, name: str) -> float:
        """Return how much a count grew in the window; before the second reading, all of it."""
        now = self._readings[-1].counts.get(name, 0)
        return now if len(self._readings) < 2 else now - self._readings[0].counts.get(name, 0)

    def latency(self, name: str, *, at_once: bool = False) -> Histogram:
        """Return the latencies that were recorded in the window, or `at_once`: since the reading before.

        Before the second reading, all of them; none for an unknown name.
        """
        now = self._readings[-1].latencies.get(name, Histogram())
        if len(self._readings) < 2:
            return now
        before = self._readings[-2 if at_once else 0].latencies.get(name)
        return now if before is None else difference(now, before)


def difference(now: Histogram, before: Histogram) -> Histogram:
    """Return what a histogram has more than an earlier one of the same latencies."""
    if now.total == before.total:
        return Histogram()
    counts = tuple(max(0, here - there) for here, there in zip(now.counts, before.counts, strict=True))
    return Histogram(now.bounds_ns, counts, sum(counts), max(0, now.sum_ns - before.sum_ns))
