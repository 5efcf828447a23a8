"""The calls of user code that run now, with the line where each one stands: read only when somebody asks."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

from acker.observe.durations import format_duration

_PACKAGE: Final = str(Path(__file__).parents[1]) + os.sep
# The sources of the compiled modules, as tracebacks name them.
_NATIVE: Final = "ext/acker/"
# The standard library, and frames that no file holds, such as importlib's.
_STANDARD: Final = (*(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")), "<frozen ")
_INSTALLED: Final = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
# How far a line may be from user code.
_FAR: Final = 2
# A call hangs if it is longer than this and so many times as long as usual; beyond half the timeout fewer times do.
_LONG_MS: Final = 5_000
_MUCH_LONGER: Final = 10
_LONGER: Final = 2
# A guard against awaitables that await each other.
_AWAITS_MAX: Final = 1_000


class Line(NamedTuple):
    """A line of a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"

    @property
    def short(self) -> str:
        """Without the folder of the file."""
        return str(self._replace(file=Path(self.file).name))


@dataclass(frozen=True, slots=True)
class UserCall:
    """A call of user code that runs now.

    Attributes
    ----------
    who : str
        The thread or task that runs it.
    what : str or None
        The message that it works for.
    for_ms : int
    over : str or None
        How that message has ended meanwhile, as "timed out".
    stack : tuple of Line
        Without the frames that led to user code; the line where it stands is the last one. Empty if it has just ended.
    usual_ms : float or None
        The median of earlier calls, where the code that runs it knows more of them than the runtime.
    root_id : int or None
        Of a tuple that it works for, if its message is to be found.
    """

    who: str
    what: str | None
    for_ms: int
    over: str | None = None
    stack: tuple[Line, ...] = ()
    usual_ms: float | None = None
    root_id: int | None = None

    @property
    def line(self) -> Line | None:
        """The line of user code where it stands: the last one outside of libraries, if there is one."""
        return line_of_user(self.stack)

    def __str__(self) -> str:
        what = "" if self.what is None else f" with {self.what}"
        over = "" if self.over is None else f", which {self.over}"
        where = "" if self.line is None else f", at {self.line}"
        return f"{self.who}{what}{over}, for {format_duration(self.for_ms)}{where}"


class Busy(NamedTuple):
    """How many calls of user code run now.

    Attributes
    ----------
    running : int
    over : int
        Those whose message is not open any more: it timed out, failed, or was taken back.
    timed_out : int
        Those of them whose message timed out.
    threads : int
        Those that run in threads of pools, and not as coroutines.
    threads_max : int
        How many threads these pools may have, if they tell.
    waiting : int
        How many calls wait for a thread of these pools.
    """

    running: int = 0
    over: int = 0
    timed_out: int = 0
    threads: int = 0
    threads_max: int = 0
    waiting: int = 0

    def __str__(self) -> str:
        if not self.running or self.threads < self.running:
            text = "1 call runs" if self.running == 1 else f"{self.running:,} calls run"
        elif self.threads_max:
            text = f"{self.threads:,} of {self.threads_max:,} threads {'is' if self.threads == 1 else 'are'} busy"
        else:
            text = "1 thread is busy" if self.threads == 1 else f"{self.threads:,} threads are busy"
        if self.timed_out:
            text += f", {self.timed_out:,} with {'a message' if self.timed_out == 1 else 'messages'} that timed out"
        return text


def hangs(for_ms: float, median_ms: float | None, timeout_ms: float) -> bool:
    """Return whether a call runs for too long, compared with those that have ended and with the timeout.

    Calls that always take long do not hang, even if the timeout is too short for them.
    """
    usual_ms = median_ms or 0
    if for_ms > timeout_ms / 2 and for_ms > _LONGER * usual_ms:
        return True
    return median_ms is not None and for_ms > max(_LONG_MS, _MUCH_LONGER * usual_ms)


def line_of_user(stack: Sequence[Line]) -> Line | None:
    """Return the last line of a stack that is in no library; without one, the last that is in an installed package."""
    return min(reversed(stack), key=_distance, default=None)


def has_user_code(stack: Sequence[Line]) -> bool:
    """Return whether a line of a stack is neither in the standard library nor in acker."""
    return any(_distance(line) < _FAR for line in stack)


def line_of_error(error: BaseException) -> Line | None:
    """Return the line of user code, or of an installed package, that raised an exception or called what raised it."""
    lines, trace = [], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        lines.append(Line(code.co_filename, trace.tb_lineno, code.co_qualname))
        trace = trace.tb_next
    line = line_of_user(lines)
    return None if line is None or _distance(line) >= _FAR else line


def line_of_caller() -> Line | None:
    """Return the line of user code that has called into this package, on this thread."""
    for frame in _outward(sys._getframe(1)):
        line = Line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)
        if _distance(line) < _FAR:
            return line
    return None


def stack_of_thread(number: int | None) -> tuple[Line, ...]:
    """Return the stack of a thread (`Thread.ident`) without the frames that led to user code; empty if it has ended."""
    return stack_of_frame(None if number is None else sys._current_frames().get(number))


def stack_of_frame(innermost: FrameType | None) -> tuple[Line, ...]:
    """Return the stack below a frame without the frames that led to user code; empty without one."""
    return _of_user(_outward(innermost))


def stack_below_acker(number: int) -> tuple[Line, ...]:
    """Return the stack of a thread that another program has started, from the user code that acker calls on."""
    frames = _outward(sys._current_frames().get(number))
    outermost = max((i for i, each in enumerate(frames) if each.f_code.co_filename.startswith(_PACKAGE)), default=None)
    return _of_user(frames if outermost is None else frames[:outermost])


def stack_of_coroutine(coroutine: Any) -> tuple[Line, ...]:
    """Return where a coroutine stands, from its own frame to what it awaits; empty if it has ended.

    `asyncio.Task.get_stack` has only the outermost frame of a coroutine that waits.
    """
    own = getattr(coroutine, "cr_frame", None)
    if own is not None and coroutine.cr_running:
        # It awaits nothing: it is on the stack of a thread.
        for innermost in sys._current_frames().values():
            frames = _outward(innermost)
            if own in frames:
                return _of_user(frames[: frames.index(own) + 1])
    found: list[FrameType] = []
    while coroutine is not None and len(found) < _AWAITS_MAX:
        frame, following = _awaited(coroutine)
        if frame is not None:
            found.append(frame)
        coroutine = following
    return _of_user(found[::-1])


def _awaited(awaitable: Any) -> tuple[FrameType | None, Any]:
    """Return the frame of a coroutine or generator, and what it awaits."""
    for kind in ("cr", "gi", "ag"):
        if hasattr(awaitable, f"{kind}_frame"):
            following = "gi_yieldfrom" if kind == "gi" else f"{kind}_await"
            return getattr(awaitable, f"{kind}_frame"), getattr(awaitable, following)
    return None, None


def _outward(frame: FrameType | None) -> list[FrameType]:
    """Return a frame and its callers, the innermost first."""
    frames: list[FrameType] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def _of_user(frames: Sequence[FrameType]) -> tuple[Line, ...]:
    """Return lines from the outermost frame of user code on; all, if no frame is of user code."""
    lines = [
        Line(each.f_code.co_filename, each.f_lineno or each.f_code.co_firstlineno, each.f_code.co_qualname)
        for each in reversed(frames)
    ]
    first = next((index for index, line in enumerate(lines) if _distance(line) < _FAR), 0)
    return tuple(lines[first:])


def _distance(line: Line) -> int:
    """Return 0 for a line of a program, 1 in an installed package, `_FAR` in the standard library and acker."""
    return _distance_of(line.file)


@functools.lru_cache(maxsize=1_000)
def _distance_of(file: str) -> int:
    if file.startswith((_PACKAGE, _NATIVE)):
        return _FAR
    if any(folder in file for folder in _INSTALLED):
        return 1
    return _FAR if file.startswith(_STANDARD) else 0
