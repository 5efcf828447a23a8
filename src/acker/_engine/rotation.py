"""The warning about an acker that is never rotated, so that unfinished trees stay in it for ever.

The evidence is the time that the calls pass in: an acker that is filled and read once needs no rotations, nor does one
whose trees all finish.
"""

from __future__ import annotations

import warnings
from typing import Final

from acker._engine.protocol import INT64_MAX

# Warn of an entry older than this, if at least FEW entries are held or more than FEW batches came.
LONG_MS: Final = 3_600_000
FEW: Final = 100
# Warn of this many open trees of any age, if none has ended.
MANY: Final = 1_000_000


def warn_never_rotated(held: int, open_trees: int, ended: int, age_ms: int) -> None:
    """Warn of an acker that was never rotated.

    Parameters
    ----------
    held, open_trees, ended : int
        Entries held, how many of them have a TRACK, and trees that have ended.
    age_ms : int
        Of the oldest entry.
    """
    warnings.warn(
        f"this acker was never rotated, so nothing in it can time out: {held:,} held, {open_trees:,} of them open"
        f" trees, the oldest for {age_ms / 1000:,.0f} s, and {ended:,} trees have ended;"
        " call rotate(now_ms=...) every timeout / (buckets - 1)",
        RuntimeWarning,
        stacklevel=3,
    )


class RotationWatch:
    """The time of an acker, and when to look at its oldest entry; natively ``ext/acker/rotation_watch.h``."""

    def __init__(self) -> None:
        self.now_ms: int | None = None
        self._first_ms = self._look_ms = 0
        self._batches = 0
        self._over = False  # it was rotated, or a warning was given

    def look(self, now_ms: int, held: int, open_trees: int, ended: int) -> bool:
        """Record the time of a batch; return whether to look at the oldest entry."""
        if self._batches == 0:
            self._first_ms, self._look_ms = now_ms, min(now_ms + LONG_MS, INT64_MAX)
        self._batches += 1
        self.now_ms = now_ms
        if self._over:
            return False
        is_long = now_ms >= self._look_ms and held > 0 and (held >= FEW or self._batches > FEW)
        return is_long or (open_trees >= MANY and ended == 0 and now_ms > self._first_ms)

    def look_again(self, age_ms: int) -> None:
        """Record the age of the oldest entry, which is too low for a warning."""
        assert self.now_ms is not None
        self._look_ms = min(self.now_ms + LONG_MS - age_ms, INT64_MAX)

    def rotated(self, now_ms: int) -> None:
        """Record a rotation."""
        self.now_ms = now_ms
        self._over = True

    def end(self) -> None:
        """Record that a warning was given."""
        self._over = True
