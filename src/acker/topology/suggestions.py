"""What mends a name that nobody knows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: object, known: Iterable[str]) -> str:
    """Return what mends an unknown name: the nearest known one, or all of them."""
    names = list(known)
    if not names:
        return "there are none"
    near = difflib.get_close_matches(str(name), names, 1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(map(repr, names))}"
