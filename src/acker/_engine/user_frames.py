"""Stack levels that make warnings show the user's line."""

from __future__ import annotations

import sys
from typing import Final

_PACKAGE: Final = __name__.partition(".")[0] + "."


def user_stacklevel() -> int:
    """Return the `stacklevel` with which a warning of this function's caller points at the line outside of acker."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level
