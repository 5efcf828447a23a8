"""A guard that lets one thread in at a time, for Python code, as `ext/acker/single_entry.h` does natively."""

from __future__ import annotations

import os
from types import TracebackType

from acker.errors import BusyError, ForkedError


class SingleEntry:
    """Lets one thread in, as a context manager, and refuses every other one meanwhile.

    Parameters
    ----------
    what : str
        The name of the guarded class, for errors.

    Raises
    ------
    BusyError
        On entering: another thread is inside.
    ForkedError
        A thread of the parent process was inside when this process was forked.
    """

    __slots__ = ("_inside", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        # The process of the thread inside, under one key. setdefault is atomic; a lock could be left taken by a fork,
        # without a trace of whose it was.
        self._inside: dict[None, tuple[int]] = {}

    def __enter__(self) -> None:
        me = (os.getpid(),)
        other = self._inside.setdefault(None, me)
        if other is me:
            return
        if other != me:
            raise ForkedError(self._what, other[0])
        raise BusyError(
            f"another thread is inside this {self._what}; one {self._what} is used from one thread at a time"
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self._inside[None]
