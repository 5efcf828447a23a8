"""The processes that can be killed, found by their parents in ``/proc``."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple

_EXECUTOR = "CoarseGrainedExecutorBackend"


class _Process(NamedTuple):
    number: int
    parent: int
    session: int


def _process(number: int) -> _Process | None:
    try:
        text = Path(f"/proc/{number}/stat").read_text("ascii", "replace")
    except OSError:
        return None
    # The name stands in brackets and may hold anything.
    state, parent, _, session = text.rpartition(")")[2].split()[:4]
    return None if state == "Z" else _Process(number, int(parent), int(session))


def _all() -> list[_Process]:
    found = (_process(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit())
    return [process for process in found if process is not None]


def children_of(number: int) -> list[int]:
    """Return the processes that a process has started."""
    return [process.number for process in _all() if process.parent == number]


def in_session(number: int) -> list[int]:
    """Return the processes of a session."""
    return [process.number for process in _all() if process.session == number]


def command_of(number: int) -> str:
    """Return the command line of a process, "" when it is gone."""
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def executor_of(worker: int) -> int | None:
    """Return the executor's JVM above a Python worker; None when the worker or the executor is gone."""
    process = _process(worker)
    while process is not None and process.number > 1:
        if _EXECUTOR in command_of(process.number):
            return process.number
        process = _process(process.parent)
    return None


def kill(number: int) -> bool:
    """End a process with SIGKILL; tell whether it was there."""
    try:
        os.kill(number, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
