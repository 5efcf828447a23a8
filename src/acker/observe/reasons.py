"""Reasons for the failure of a tuple."""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass, field
from typing import Final

from acker.errors import exception_text, text_of
from acker.observe.calls import line_of_caller, line_of_error

# The end of the program, or of the code that works for a message: no failure of the message.
PROGRAM_ENDS: Final = (KeyboardInterrupt, SystemExit, GeneratorExit)

_PACKAGE: Final = __name__.partition(".")[0] + "."


class ReasonKind(enum.Enum):
    """The kind of event that ended a tree without an ack."""

    FAILED = "failed"
    TIMED_OUT = "timed out"
    REJECTED = "rejected"
    RESTART = "restart"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason for which a tuple failed.

    Attributes
    ----------
    kind : ReasonKind
        FAILED: a bolt failed it. TIMED_OUT: it took longer than topology.message.timeout.secs. REJECTED: the acker held
        as many trees as topology.acker.high_water allows. RESTART, SHUTDOWN: it was open when the topology restarted or
        stopped.
    component : str, optional
        The component that failed it, if one did.
    task : int, optional
        The task of that component.
    exception : str, optional
        The reason or exception that this component gave.
    attempt : int
        Number of this emission of the tuple, from 1.
    line : str, optional
        The line of user code that raised the exception or called `fail`, without the folder. Reasons that differ in
        nothing else are equal.
    """

    kind: ReasonKind
    component: str | None = None
    task: int | None = None
    exception: str | None = None
    attempt: int = 1
    line: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        text = self.kind.value
        if self.component is not None:
            text += f" in {self.component}" if self.task is None else f" in {self.component}[{self.task}]"
        if why := " ".join((self.exception or "").split()):
            text += ": " + why
        # Half an emoji, as `json.loads` makes of "\ud83d", is no UTF-8, and no broker would take its dead letter.
        return f"{text} (attempt {self.attempt})".encode(errors="backslashreplace").decode()


def reason_text(reason: object, missing: str | None = None) -> str:
    """Return what user code gave as a reason, as text: of an exception its type and its text.

    Parameters
    ----------
    reason : str, exception or anything else
    missing : str, optional
        The text if `reason` is None or has no words. By default it names the line that called `fail`.
    """
    text = exception_text(reason) if isinstance(reason, BaseException) else "" if reason is None else text_of(reason)
    if text.strip():
        return text
    return f"no reason was given to fail(), in {_line_of_user()}" if missing is None else missing


def reason_line(reason: object) -> str | None:
    """Return the line of user code that raised an exception, or that gives a reason now; None if none is known."""
    line = line_of_error(reason) if isinstance(reason, BaseException) else line_of_caller()
    return None if line is None else line.short


def _line_of_user() -> str:
    """Return the file and the line outside of this package that called into it."""
    frame = sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
