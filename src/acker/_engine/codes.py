"""Numbers that partials, logs and the native tables share; `ext/acker/codes.h` has the same."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

# Flags of a partial: which messages of its root were seen.
TRACKED: Final = 1
FAILED: Final = 2
RESET: Final = 4

# Task ids of entries that have no TRACK. The last one extends the time of its tree; only event times need it.
UNTRACKED: Final = -1
UNTRACKED_FAILED: Final = -2
UNTRACKED_RESET: Final = -4


class Outcome(IntEnum):
    """How a tree ended. ``PENDING`` appears on Spark only, for a tree that is still open at the end of a batch."""

    ACKED = 0
    FAILED = 1
    TIMED_OUT = 2
    REJECTED = 3
    PENDING = 4
