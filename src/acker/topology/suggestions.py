"""Suggestions for a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(name: object, known: Iterable[str]) -> str:
    """Return the end of an error's text: the known name nearest to an unknown one, or all known names."""
    names = list(known)
    if not names:
        return "there are none"
    near = difflib.get_close_matches(str(name), names, 1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(map(repr, names))}"
