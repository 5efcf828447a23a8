"""What a test leaves behind: threads, child processes, descriptors, and event loops and tasks of asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Container, Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any, TypeAlias

# How long something may take to go, on a machine that stands still for seconds.
PATIENCE_SECS = 30.0

# Modules of threads that belong to the whole run: Spark's bridge to the JVM, the browser's driver, a notebook's kernel.
KEPT_MODULES = ("py4j", "pyspark", "playwright", "IPython", "ipykernel", "zmq", "tornado", "execnet", "xdist")
# Processes that belong to the whole run, by a part of their command line.
KEPT_COMMANDS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "org.apache.spark", "playwright")
# What libraries keep open, by a part of what the descriptor is open on.
KEPT_FILES = ("/dev/urandom", "/dev/null", "/.hypothesis/", ".so", ".ttf", "anon_inode:[pidfd]")

Look: TypeAlias = Callable[[], dict[object, str]]

LINUX = Path("/proc/self/fd").is_dir()


def threads() -> dict[object, str]:
    """Return the threads that run, each with its name and where it stands."""
    frames = sys._current_frames()

    def stands(thread: threading.Thread) -> str:
        frame = frames.get(thread.ident or 0)
        return f"at {''.join(traceback.format_stack(frame, limit=1)).strip()}" if frame else "that has no frame"

    return {
        thread: f"thread {thread.name} {stands(thread)}"
        for thread in threading.enumerate()
        if not module_of(thread).startswith(KEPT_MODULES)
    }


def module_of(thread: threading.Thread) -> str:
    """Return the module of a thread's class or, if that is Python's own, of the function that it runs."""
    module = type(thread).__module__
    target: Any = getattr(thread, "_target", None)
    return str(getattr(target, "__module__", module)) if module == "threading" else module


def children() -> dict[object, str]:
    """Return the processes that this one has started and that live, or for which nobody has waited.

    Each list is read twice: while one process ends, the system may leave others out.
    """
    found: dict[object, str] = {}
    for task in 2 * os.listdir("/proc/self/task"):  # noqa: PTH208 - three times as fast
        listed: list[str] = []
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/children") as file:  # noqa: PTH123 - the same
            listed = file.read().split()  # unless the thread has ended
        for child in listed:
            with contextlib.suppress(OSError):  # the process has, which says nothing of the next one
                command = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if not any(word in command for word in KEPT_COMMANDS):
                    found[child] = f"process {child} {command.strip() or '(ended, nobody has waited for it)'}"
    return found


def descriptors(ignored: Container[str]) -> dict[object, str]:
    """Return the open descriptors but those of some kinds, each with what it is open on.

    Sockets and pipes are counted, since clients of the whole run may connect again while a test runs.
    """
    found: dict[object, str] = {}
    counts: Counter[str] = Counter()
    kept = helpers()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - three times as fast
        with contextlib.suppress(OSError):  # that of the listing
            target = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115 - the same
            kind = target.partition(":[")[0]
            # pytest puts its own files in the place of the first three.
            is_kept = int(name) < 3 or int(name) in kept or any(word in target for word in KEPT_FILES)
            if not is_kept and kind not in ignored:
                counts[kind] += 1
                found[kind, counts[kind]] = f"descriptor {name} on {target}"
    return found


def helpers() -> set[int | None]:
    """Return the descriptors of the helpers of multiprocessing."""
    return {resource_tracker._resource_tracker._fd, forkserver._forkserver._forkserver_alive_fd}


class Loops:
    """Counts the event loops that were made, since their tasks are found by the garbage collector alone."""

    def __init__(self) -> None:
        self.made = 0
        begin = asyncio.BaseEventLoop.__init__

        def init(loop: asyncio.BaseEventLoop) -> None:
            self.made += 1
            begin(loop)

        asyncio.BaseEventLoop.__init__ = init  # type: ignore[method-assign]


LOOPS = Loops()
LOGGER = logging.getLogger("asyncio")


class Told(logging.Handler):
    """Keeps what asyncio says of tasks that nobody has waited for, and of exceptions that nobody has looked at."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "never retrieved" in message or "Task was destroyed" in message:
            self.said.append(message)


class Before:
    """What there was before a test.

    Parameters
    ----------
    ignored : container of str
        Kinds of descriptors that may change at any time, such as "socket".
    """

    def __init__(self, ignored: Container[str] = ()) -> None:
        look_at_descriptors = functools.partial(descriptors, ignored)
        self.looks: list[Look] = [threads, *([children, look_at_descriptors] if LINUX else [])]
        self.found = [look().keys() for look in self.looks]
        self.loops = LOOPS.made
        self.told = Told()
        LOGGER.addHandler(self.told)

    def left(self) -> list[str]:
        """Return what has come since, after it had its time to go: empty if nothing is left."""
        if LOOPS.made > self.loops:
            gc.collect()  # what nobody has waited for says so when it is freed
        LOGGER.removeHandler(self.told)
        for pause in pauses():
            left = [text for look, before in zip(self.looks, self.found, strict=True) for text in new(look, before)]
            if not left:
                break
            time.sleep(pause)
        return [*map(with_ports, left), *self.told.said]


def new(look: Look, before: Any) -> list[str]:
    return [text for key, text in look().items() if key not in before]


def with_ports(text: str) -> str:
    """Add the ports of a TCP connection, from which it can be told whose it is."""
    inode = text.rpartition("socket:[")[2].rstrip("]")
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:] if LINUX else ():
            words = line.split()
            if words[9] == inode:
                own, other = (int(words[column].rpartition(":")[2], 16) for column in (1, 2))
                return f"{text}, port {own} to {other}"
    return text


def pauses() -> Iterator[float]:
    """Yield pauses until the patience is over; objects that nobody holds may be all that is left."""
    yield 0.0
    gc.collect()
    deadline = time.monotonic() + PATIENCE_SECS
    while time.monotonic() < deadline:
        yield 0.01
