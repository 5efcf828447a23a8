"""An acker that nobody rotates: nothing times out in it, and what does not finish is kept for ever.

Nobody is warned without evidence, which is the time that the acker is told: an acker that is filled and asked once has
no need of rotations, nor has one whose trees all finish.
"""

from __future__ import annotations

import warnings
from typing import Final

from acker._engine.protocol import INT64_MAX

# An entry is worth a warning after so long, where at least so many are held or so many batches came.
LONG_MS: Final = 3_600_000
FEW: Final = 100
# So many open trees are worth one however old they are, if not one has ended.
MANY: Final = 1_000_000


def warn_never_rotated(held: int, open_trees: int, ended: int, age_ms: int) -> None:
    """Warn of an acker that was never rotated.

    Parameters
    ----------
    held, open_trees, ended : int
        Entries, those of them that have a TRACK, and trees that ended so far.
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
    """What time an acker was told, and when to look at its oldest entry; the twin of ``ext/acker/rotation_watch.h``."""

    def __init__(self) -> None:
        self.now_ms: int | None = None
        self._first_ms = self._ask_ms = 0
        self._batches = 0
        self._over = False  # it is rotated, or somebody was warned

    def look(self, now_ms: int, held: int, open_trees: int, ended: int) -> bool:
        """Take note of the time of a batch; return whether somebody should look at the oldest entry."""
        if self._batches == 0:
            self._first_ms, self._ask_ms = now_ms, min(now_ms + LONG_MS, INT64_MAX)
        self._batches += 1
        self.now_ms = now_ms
        if self._over:
            return False
        is_long = now_ms >= self._ask_ms and held > 0 and (held >= FEW or self._batches > FEW)
        return is_long or (open_trees >= MANY and ended == 0 and now_ms > self._first_ms)

    def look_again(self, age_ms: int) -> None:
        """Take note that the oldest entry is only so old."""
        assert self.now_ms is not None
        self._ask_ms = min(self.now_ms + LONG_MS - age_ms, INT64_MAX)

    def rotated(self, now_ms: int) -> None:
        """Take note of a rotation."""
        self.now_ms = now_ms
        self._over = True

    def end(self) -> None:
        """Take note that somebody was warned."""
        self._over = True
