"""The process of the streaming word count: start, stop, and SIGKILL of the driver or of a Python worker."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

# From the process of the stream down: the JVM, the daemon that forks workers, a worker.
_WORKER_DEPTH: Final = 3

_STOP_SECONDS: Final = 60.0

# A JVM that lives for a minute or less does not get back what its second compiler costs: without it the first
# micro-batch takes the JVM 40 % less processor time, and the later ones a third less.
_QUICK_START: Final = "-XX:TieredStopAtLevel=1"


class StreamProcess:
    """One stream, which may run in several processes, one after the other.

    Parameters
    ----------
    command : sequence of str
        Runs the stream until its standard input ends.
    log : Path
        Takes the standard error of all of its processes.
    scratch : Path
        Folder for temporary files, which killed processes leave behind.
    """

    def __init__(self, command: Sequence[str], log: Path, scratch: Path) -> None:
        self._command = list(command)
        self._log = log
        self._scratch = scratch
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start a process in a new session, which Ctrl-C does not reach."""
        self._scratch.mkdir(parents=True, exist_ok=True)
        scratch = str(self._scratch)
        options = [_QUICK_START, os.environ.get("JAVA_TOOL_OPTIONS", ""), f'-Djava.io.tmpdir="{scratch}"']
        environment = {
            **os.environ,
            "TMPDIR": scratch,
            "SPARK_LOCAL_DIRS": scratch,
            "JAVA_TOOL_OPTIONS": " ".join(options),
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def exit_code(self) -> int | None:
        """Return the exit code if the process has ended."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> int:
        """Stop the process and return its exit code; kill it if it does not stop."""
        process = self._running()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            return process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """Kill the driver, Python and JVM, with SIGKILL, if it runs; return the exit code."""
        process = self._process
        if process is None:
            return 0
        # The workers end by themselves once the JVM is gone: they are in another process group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        return process.wait()

    def workers(self) -> list[int]:
        """Return the process ids of the Python workers."""
        children = _children()
        level = [self._running().pid]
        for _ in range(_WORKER_DEPTH):
            level = [child for parent in level for child in children.get(parent, ())]
        return sorted(level)

    def kill_worker(self, draw: float) -> bool:
        """Kill the worker at this share of the list with SIGKILL; return whether there was one."""
        workers = self.workers()
        if not workers:
            return False
        try:
            os.kill(workers[int(draw * len(workers))], signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "start comes first"
        return self._process


def _children() -> dict[int, list[int]]:
    """Return the processes of this machine by their parents."""
    pairs: list[tuple[int, int]] = []
    if Path("/proc/self/stat").exists():
        for path in Path("/proc").glob("[0-9]*/stat"):
            # The name, in parentheses, may hold anything.
            with contextlib.suppress(OSError):
                fields = path.read_text(errors="replace").rpartition(")")[2].split()
                pairs.append((int(path.parent.name), int(fields[1])))
    else:
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        pairs = [(int(pid), int(parent)) for pid, parent in map(str.split, listed.splitlines())]
    children: dict[int, list[int]] = {}
    for pid, parent in pairs:
        children.setdefault(parent, []).append(pid)
    return children
