"""The input that the running code works for, where coroutines take turns: each has its own context.

Python 3.14 can give a thread the context of whoever starts it, and does so without a GIL. There the input counts for
nothing: a thread of a pool outlives the coroutine that happened to start it, and works for other inputs.
"""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from acker.topology.tuples import Tuple

THREADS_INHERIT: Final = bool(getattr(sys.flags, "thread_inherit_context", False))

# The collector of the task that a coroutine belongs to, and the coroutine's inputs.
_inputs: Final[contextvars.ContextVar[tuple[object, tuple[Tuple, ...]] | None]] = contextvars.ContextVar(
    "acker inputs", default=None
)

T = TypeVar("T")


def set_inputs(owner: object, tuples: tuple[Tuple, ...]) -> None:
    """Say what the running coroutine works for, and whose it is."""
    _inputs.set((owner, tuples))


def inputs_of(owner: object) -> tuple[Tuple, ...] | None:
    """Return what the running code works for; None if that is not known, or it belongs to another owner."""
    found = None if _is_inherited() else _inputs.get()
    return found[1] if found is not None and found[0] is owner else None


def context_of_caller() -> contextvars.Context | None:
    """Return the context for a callback of this thread, if it is another one than that which Python would take."""
    if not _is_inherited():
        return None
    context = contextvars.copy_context()
    context.run(_inputs.set, None)
    return context


def _is_inherited() -> bool:
    """Return whether the inputs are those with which this thread was started, and nobody has set others since."""
    if not THREADS_INHERIT:
        return False
    found, started_with = _inputs.get(), getattr(threading.current_thread(), "_context", None)
    return found is not None and started_with is not None and started_with.get(_inputs) is found


class ContextFreePool(ThreadPoolExecutor):
    """Threads that inherit nothing, so that what a function brings along, as with `asyncio.to_thread`, is its own."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run a function in a thread."""
        return contextvars.Context().run(super().submit, fn, *args, **kwargs)
