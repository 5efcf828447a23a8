"""Flame graphs: the stacks of running calls, sampled for some seconds when somebody asks."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from acker.observe.calls import Line, has_user_code, line_of_user
from acker.ui.source import ActionError

# How long it looks, and how often.
SECS: Final = 3.0
LOOKS: Final = 60
# How many flame graphs are kept, and the limits of one.
_KEPT_MAX: Final = 3
_DEPTH_MAX: Final = 100
_TOP_MAX: Final = 5

Stack = tuple[Line, ...]


class Flames:
    """Samples stacks when somebody asks for it, and keeps the last flame graphs for the page and its frozen copies.

    Parameters
    ----------
    stacks_of : callable
        Takes one of `names`; returns the stacks of its calls that run at this moment.
    names : callable
        Returns what can be sampled.
    note : callable
        Returns what cannot be sampled, and why; an empty text if all can.
    """

    def __init__(
        self,
        stacks_of: Callable[[str], Iterable[Stack]],
        names: Callable[[], Sequence[str]],
        note: Callable[[], str] = str,
    ) -> None:
        self._stacks_of = stacks_of
        self._names = names
        self._note = note
        self._sampling = threading.Lock()
        self._taken: deque[dict[str, Any]] = deque(maxlen=_KEPT_MAX)

    def sample(self, arguments: Mapping[str, Any]) -> str:
        """Take samples for some seconds; the action of the page.

        Raises
        ------
        ActionError
            Nothing has this name, no call of it ran, or others are sampled now.
        """
        name, names = arguments.get("of"), self._names()
        if name not in names:
            raise ActionError(
                f'expected {{"of": ...}}, one of {", ".join(names) or "nothing"}. {self._note()}'.rstrip()
            )
        if not self._sampling.acquire(blocking=False):
            raise ActionError("stacks are sampled already; ask again in some seconds")
        try:
            stacks = self._look(str(name))
        finally:
            self._sampling.release()
        if not stacks:
            raise ActionError(f"no call of {name} ran at any of {LOOKS} looks within {SECS:g} s: it waits, or is fast")
        self._taken.appendleft(_flame(str(name), stacks))
        return f"took {len(stacks):,} samples of {name} in {SECS:g} s"

    def _look(self, name: str) -> list[Stack]:
        found: list[Stack] = []
        for _ in range(LOOKS):
            found += [stack[:_DEPTH_MAX] for stack in self._stacks_of(name) if has_user_code(stack)]
            time.sleep(SECS / LOOKS)
        return found

    def to_json(self) -> dict[str, Any]:
        """Return what can be sampled, and what was, the newest first, as values for JSON."""
        return {"of": list(self._names()), "note": self._note(), "taken": list(self._taken)}


def _flame(name: str, stacks: Sequence[Stack]) -> dict[str, Any]:
    """Return stacks as one tree of functions: how many samples each is in; and the lines of user code at the top."""
    root: dict[str, Any] = {"name": name, "value": len(stacks), "children": []}
    for stack in stacks:
        node = root
        for line in stack:
            called = _function(line)
            child = next((each for each in node["children"] if each["name"] == called), None)
            if child is None:
                child = {"name": called, "value": 0, "children": []}
                node["children"].append(child)
            child["value"] += 1
            node = child
    lines = [line_of_user(stack) for stack in stacks]
    top = Counter(line.short for line in lines if line is not None).most_common(_TOP_MAX)
    at_ms = time.time_ns() // 1_000_000
    return {"of": name, "at_ms": at_ms, "secs": SECS, "samples": len(stacks), "top": top, "tree": root}


def _function(line: Line) -> str:
    return f"{line.function} ({Path(line.file).name})"
