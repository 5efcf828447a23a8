"""Latencies: a histogram of durations, and the recorder that fills it while tuples and messages flow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from acker._flow import Latencies

# Upper ends of the latency buckets, in ns: four linear steps an octave, from 1 us to the first one beyond 10 minutes.
# A last bucket without an end follows them. The error of a quantile is a quarter at most.
LATENCY_BOUNDS_NS: Final = tuple(250 * step * 2**octave for octave in range(30) for step in range(4, 8))[:118]


@dataclass(frozen=True, repr=False)
class Histogram:
    """A distribution of durations.

    Attributes
    ----------
    bounds_ns : tuple of int
        The inclusive upper ends of the buckets, ascending.
    counts : tuple of int
        Number of values in each bucket; one more than bounds, the last for values above them all.
    total : int
        The sum of counts.
    sum_ns : int
        The sum of the values.
    """

    bounds_ns: tuple[int, ...] = LATENCY_BOUNDS_NS
    counts: tuple[int, ...] = (0,) * (len(LATENCY_BOUNDS_NS) + 1)
    total: int = 0
    sum_ns: int = 0

    def __repr__(self) -> str:
        if not self.total:
            return "Histogram(count=0)"
        p50, p99 = self.quantile_ms(0.5), self.quantile_ms(0.99)
        return f"Histogram(count={self.total}, p50={p50} ms, p99={p99} ms)"

    def __add__(self, other: Histogram) -> Histogram:
        """Return the sum of two histograms; ValueError if they have different buckets."""
        if not isinstance(other, Histogram):
            return NotImplemented
        if self.bounds_ns != other.bounds_ns:
            raise ValueError("cannot add two histograms with different buckets")
        if not (self.total and other.total):
            return self if self.total else other
        counts = tuple(map(sum, zip(self.counts, other.counts, strict=True)))
        return Histogram(self.bounds_ns, counts, self.total + other.total, self.sum_ns + other.sum_ns)

    @property
    def mean_ns(self) -> float | None:
        """The exact mean in nanoseconds; None if nothing was recorded."""
        return self.sum_ns / self.total if self.total else None

    def quantile(self, q: float) -> float | None:
        """Return the latency, in nanoseconds, that a share `q` of the values did not exceed.

        Parameters
        ----------
        q : float, 0 to 1

        Returns
        -------
        float or None
            Interpolated within its bucket; for values above the last bound, that bound. None if nothing was recorded.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"a quantile is between 0 and 1, and not {q}")
        if not self.total:
            return None
        rank, below = q * self.total, 0
        low = 0
        for high, count in zip(self.bounds_ns, self.counts, strict=False):
            if count and below + count >= rank:
                return low + (high - low) * (rank - below) / count
            below += count
            low = high
        return float(self.bounds_ns[-1])

    def quantile_ms(self, q: float) -> float | None:
        """Return `quantile` in milliseconds, with four significant digits."""
        return milliseconds(self.quantile(q))

    def quantiles_ms(self, *qs: float) -> dict[str, float | None]:
        """Return quantiles in milliseconds by their names: p50_ms for 0.5."""
        return {f"p{round(100 * q)}_ms": self.quantile_ms(q) for q in qs}

    def cumulative(self, every: int = 1) -> list[tuple[int, int]]:
        """Return (bound in ns, number of values up to it) for each `every`-th bound, and for the last one.

        Exporters send every fourth, which are an octave apart, since each bound is a series.
        """
        found, below = [], 0
        last = len(self.bounds_ns) - 1
        for index, bound in enumerate(self.bounds_ns):
            below += self.counts[index]
            if index % every == 0 or index == last:
                found.append((bound, below))
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the usual figures, in milliseconds, and the buckets that are not empty."""
        held = [[bound, count] for bound, count in zip((*self.bounds_ns, None), self.counts, strict=True) if count > 0]
        return {
            "count": self.total,
            "mean_ms": milliseconds(self.mean_ns),
            **self.quantiles_ms(0.5, 0.9, 0.99),
            "buckets_ns": held,
        }


def milliseconds(ns: float | None) -> float | None:
    """Return nanoseconds as milliseconds with four significant digits; None stays None."""
    return None if ns is None else float(f"{ns / 1e6:.4g}")


class LatencyRecorder(Latencies):
    """Records latencies, in native code. One thread records; any thread may take a snapshot."""

    def __init__(self) -> None:
        super().__init__(LATENCY_BOUNDS_NS)

    def snapshot(self) -> Histogram:
        """Return the recorded values. While another thread records, the sum may be one latency behind or ahead."""
        counts, sum_ns = self.totals()
        return Histogram(LATENCY_BOUNDS_NS, counts, sum(counts), sum_ns)
