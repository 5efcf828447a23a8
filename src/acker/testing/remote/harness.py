"""The harness of a task queue, which the author of an integration writes for the kit."""

from __future__ import annotations

import abc
import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Never

from acker.remote import Replies
from acker.testing.connectors.harness import NotApplicable


class QueueHarness(abc.ABC):
    """A queue, its integration in this process, and real workers in others; for any number of scenarios.

    The workers' job is `perform`. `replies`, `command` and `send` are needed. Each further method makes more scenarios
    applicable; those that need a missing one raise `acker.testing.connectors.NotApplicable` with its name.

    Parameters
    ----------
    folder : str or Path
        An empty one, for notes and logs.

    Attributes
    ----------
    patience_secs : float
        The longest wait for something that has to happen. A wait that takes this long is a failure.
    ready : str
        What a worker logs when it is about to take jobs.
    environ : mapping
        Environment variables of workers, beside those of this process.
    runs_one_job : bool
        Whether a process of the worker runs one job at a time, so that a thread of the job works for it.
    threads_outlive : bool
        Whether a thread that a job has started goes on when the job has ended.
    after_exit, after_process_kill, after_worker_kill : {"repeats", "fails"} or None
        What becomes of a job that raises SystemExit, whose process is killed by SIGKILL, or whose worker is with all of
        its processes, when another worker runs: it runs again, or the tree fails. None: neither, within any time that
        a test would wait.
    skips : mapping
        Environment variables that make a worker skip jobs of owners that are gone (`skip_gone` of replies).
    """

    patience_secs: ClassVar[float] = 60.0
    ready: ClassVar[str] = "ready"
    environ: Mapping[str, str] = {}
    runs_one_job: ClassVar[bool] = False
    threads_outlive: ClassVar[bool] = True
    after_exit: ClassVar[str | None] = "fails"
    after_process_kill: ClassVar[str | None] = None
    after_worker_kill: ClassVar[str | None] = "repeats"
    skips: Mapping[str, str] = {}

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._worker: subprocess.Popen[bytes] | None = None
        self._workers = 0

    @property
    @abc.abstractmethod
    def replies(self) -> Replies:
        """The replies of this process."""

    @abc.abstractmethod
    def command(self) -> Sequence[str]:
        """Return the command of a worker."""

    @abc.abstractmethod
    def send(self, plan: str) -> None:
        """Send the job to the queue."""

    def send_with_token(self, plan: str, token: str) -> None:
        """Send the job with a token that was made before, as a queue does that delivers it once more."""
        self._lacks("send_with_token")

    def send_with_retries(self, plan: str, retries: int) -> None:
        """Send the job so that the queue runs it again, at once, when it raises, but not more often than that."""
        self._lacks("send_with_retries")

    def send_later(self, plan: str, secs: float) -> None:
        """Send the job so that it does not run before so many seconds are over."""
        self._lacks("send_later")

    def send_expired(self, plan: str) -> None:
        """Send the job so that it is too old when a worker takes it."""
        self._lacks("send_expired")

    def send_revoked(self, plan: str) -> None:
        """Send the job and revoke it, so that no worker runs it."""
        self._lacks("send_revoked")

    def send_unknown(self, plan: str) -> None:
        """Send a job that no worker knows."""
        self._lacks("send_unknown")

    def send_with_time_limit(self, plan: str, secs: float) -> None:
        """Send the job so that it may run for so many seconds."""
        self._lacks("send_with_time_limit")

    def send_lost(self, plan: str) -> None:
        """Send the job so that no worker ever gets it, and nobody says so."""
        self._lacks("send_lost")

    def replies_away(self) -> AbstractContextManager[object]:
        """Return a context in which the server of the replies does not answer."""
        self._lacks("replies_away")

    def forget_replies(self) -> None:
        """Let the server of the replies forget everything."""
        self._lacks("forget_replies")

    def _lacks(self, method: str) -> Never:
        raise NotApplicable(f"{type(self).__name__} does not implement {method}")

    @property
    def log(self) -> str:
        """All that the workers have logged."""
        logs = [self.folder / f"worker-{number}.log" for number in range(1, self._workers + 1)]
        return "".join(path.read_text(errors="replace") for path in logs)

    def start_worker(self, **environ: str) -> None:
        """Start a worker, and return when it is ready."""
        self._workers += 1
        path = self.folder / f"worker-{self._workers}.log"
        with path.open("wb") as log:
            worker = self._worker = subprocess.Popen(
                [*self.command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self.environ, **environ},
            )
        self.wait_until(lambda: worker.poll() is not None or self.ready in path.read_text(errors="replace"))
        assert worker.poll() is None, self.log

    def kill_worker(self) -> None:
        """End the worker and all of its processes by SIGKILL."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        kill_session(worker)

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition.

        Raises
        ------
        AssertionError
            It did not come true within `patience_secs`; the text is the log of the workers.
        """
        pause, end = threading.Event(), time.monotonic() + self.patience_secs
        while not condition():
            assert time.monotonic() < end, self.log
            pause.wait(0.02)

    def close(self) -> None:
        """End the worker, and close what this process has. The scenarios do not call it."""
        self.kill_worker()
        self.replies.close()


def kill_session(leader: subprocess.Popen[Any]) -> None:
    """End a process that began a session, and all others of it, by SIGKILL.

    Not its process group, as workers give their children groups of their own. The leader ends first: else it might hear
    of the end of another one, and report it.
    """
    while found := processes_of_session(leader.pid):
        for process in sorted(found, key=lambda each: each != leader.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        leader.wait()
    leader.wait()  # if it had ended before


def processes_of_session(leader: int) -> list[int]:
    """Return the processes of a session that are no zombies."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(int(path.parent.name))
    return found
