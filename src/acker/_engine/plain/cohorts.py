"""Cohorts of entries that expire together, for the plain tables, as in ``ext/acker/cohorts.h``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


_TIMEOUT_MS_MAX = 2**63 // 16 - 1  # times up to 15 buckets it is still an int64


def check_cohorts(cohorts: tuple[int, int]) -> None:
    """Raise for the values that the compiled tables refuse."""
    timeout_ms, buckets = cohorts
    for name, number, least, most in ("timeout_ms", timeout_ms, 0, _TIMEOUT_MS_MAX), ("buckets", buckets, 2, 15):
        if not least <= number <= most:
            raise ValueError(f"{name} of cohorts: expected {least} to {most}, got {number}")


def cohort_of(ms: int, cohorts: tuple[int, int]) -> int:
    """Return the cohort of a moment, given the timeout (0: there is none) and the number of buckets."""
    timeout_ms, buckets = cohorts
    return ms * (buckets - 1) // timeout_ms if timeout_ms else 0


def cohorts_of(event_ms: npt.NDArray[np.int64], cohorts: tuple[int, int]) -> list[int]:
    """Return the cohorts of some moments."""
    return [cohort_of(ms, cohorts) for ms in event_ms.tolist()]
