"""Which threads of pools work for which messages, so that an end can say what holds the program up."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from acker.connectors.attempts import Attempt

T = TypeVar("T")

# By the number of the thread; each thread writes its own entry only.
_working: dict[int, Attempt] = {}


def unless_over(attempt: Attempt, work: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    """Do the work unless nobody waits for it any more, as after a stop, when a pool still has a queue."""
    if attempt.state != "open":
        raise CancelledError(f"{attempt.delivery.key}: the message is over")
    me = threading.get_ident()
    before = _working.get(me)
    _working[me] = attempt
    try:
        return work(*args, **kwargs)
    finally:
        if before is None:
            del _working[me]
        else:
            _working[me] = before


def threads_at_work(attempts: Collection[Attempt]) -> list[str]:
    """Return which threads work for these messages, and the line where each one is."""
    frames = sys._current_frames()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = []
    for number, attempt in _working.copy().items():
        if attempt in attempts and number in frames:
            code, line = frames[number].f_code, frames[number].f_lineno
            call = f"{code.co_qualname} ({code.co_filename}:{line})"
            found.append(f"{names.get(number, number)} for {attempt.delivery.key}, in {call}")
    return found
