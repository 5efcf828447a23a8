"""The step that the calls of a consumer spend their time in, and how long such calls take, for the live page."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final, NamedTuple

from acker.observe.calls import UserCall, has_user_code

# How many calls that have ended are remembered, and how many readings of those that run.
_ENDED_MAX: Final = 500
_READINGS_MAX: Final = 10


class SlowStep(NamedTuple):
    """The line of user code where most calls stood lately, and how long such calls usually take, if that is known."""

    line: str
    call_ms: float | None


class Steps:
    """Notes how long calls in threads of pools took, and where those stand that run whenever somebody looks.

    Any thread may note a call. One thread looks.
    """

    def __init__(self) -> None:
        self._ended: deque[tuple[tuple[str, str] | None, int]] = deque(maxlen=_ENDED_MAX)
        self._stood: deque[list[tuple[tuple[str, str], str]]] = deque(maxlen=_READINGS_MAX)

    def note(self, work: Callable[..., Any], took_ns: int) -> None:
        """Note a call that has ended. It keeps nothing of its arguments, which may be large."""
        while isinstance(work, partial):
            work = work.func
        # No attribute of other objects is asked for, which could run code of theirs.
        function = work.__func__ if isinstance(work, MethodType) else work
        code = function.__code__ if isinstance(function, FunctionType) else None
        self._ended.append((None if code is None else (code.co_filename, code.co_qualname), took_ns))

    def look(self, calls: Iterable[UserCall]) -> None:
        """Note where the calls stand that run now."""
        self._stood.append(
            [
                ((call.stack[0].file, call.stack[0].function), call.line.short)
                for call in calls
                if call.line is not None and has_user_code(call.stack)
            ]
        )

    def slowest(self) -> SlowStep | None:
        """Return where most of the calls stood that were seen lately; None if none was.

        Those in pools come first: a loop that only hands messages over waits for them.
        """
        took: dict[tuple[str, str] | None, list[int]] = {}
        for function, took_ns in self._ended.copy():
            took.setdefault(function, []).append(took_ns)
        stood = Counter(each for reading in self._stood for each in reading)
        in_pools = Counter({each: times for each, times in stood.items() if each[0] in took})
        for (work, line), _ in (in_pools or stood).most_common(1):
            return SlowStep(line, statistics.median(took[work]) / 1e6 if work in took else None)
        return None
