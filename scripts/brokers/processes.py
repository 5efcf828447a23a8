"""Programs that run with all of their children: stopped, killed, paused and continued together."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

LOOK_SECONDS = 0.05
GONE_SECONDS = 30.0


def children() -> dict[int, list[int]]:
    """Return the ids of the children of each process that is alive."""
    found: dict[int, list[int]] = {}
    for pid, parent, state in _processes():
        if state != "Z":
            found.setdefault(parent, []).append(pid)
    return found


def _processes() -> list[tuple[int, int, str]]:
    """Return the id, the parent and the state of each process."""
    if not Path("/proc/self/stat").exists():  # macOS
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,state="], capture_output=True, check=True, text=True)
        rows = [line.split() for line in listed.stdout.splitlines()]
        return [(int(pid), int(parent), state[0]) for pid, parent, state in rows]
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            state, parent = text.rpartition(")")[2].split()[:2]  # a name may hold spaces and parentheses
            found.append((int(folder.name), int(parent), state))
    return found


def family(pid: int) -> list[int]:
    """Return a process and all that descend from it, parents first. Their groups do not matter: some make their own."""
    by_parent, found = children(), [pid]
    for each in found:
        found += by_parent.get(each, [])
    return found


def send(pids: list[int], how: int) -> None:
    """Send a signal to each process that still exists."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)


class Program:
    """A program that was started, in a session of its own.

    Parameters
    ----------
    command, environ
        What to run, with exactly these variables.
    log
        The file that its output is appended to.
    user
        The id of the user to run as; None is the one who asks.
    """

    def __init__(
        self, command: list[Path | str], environ: dict[str, str], log: Path, *, user: int | None = None
    ) -> None:
        own = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        with log.open("ab") as stream:
            self._process = subprocess.Popen(  # type: ignore[call-overload]
                command,
                cwd=log.parent,
                env=environ,
                start_new_session=True,
                stderr=stream,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                **own,
            )

    def ended(self) -> int | None:
        """Return the exit code of a program that ended by itself."""
        code: int | None = self._process.poll()
        return code

    def pause(self) -> None:
        """Let it do nothing until it is resumed. Each parent stops before its children are counted."""
        stopped: set[int] = set()
        while more := [pid for pid in self._family() if pid not in stopped]:
            send(more[:1], signal.SIGSTOP)
            stopped.add(more[0])

    def resume(self) -> None:
        """Continue after a pause."""
        send(self._family(), signal.SIGCONT)

    def stop(self, how: signal.Signals, seconds: float) -> bool:
        """Ask it to end, paused or not; return whether it did so in time."""
        self._process.send_signal(how)
        self.resume()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None

    def kill(self) -> None:
        """End it and all of its children at once, and wait until they are gone."""
        self.pause()  # so that no child is born meanwhile
        pids = self._family()
        send(pids, signal.SIGKILL)
        self._process.wait()
        # What is left of the group when the program ended by itself, without its children.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        deadline = time.monotonic() + GONE_SECONDS
        while any(pid in pids and state != "Z" for pid, _, state in _processes()) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)

    def _family(self) -> list[int]:
        """Return its process and all that descend from it; none if it ended, since another may have its id now."""
        return family(self._process.pid) if self.ended() is None else []
