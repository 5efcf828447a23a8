"""The jobs of a task queue that run in this process: which part a send belongs to, and what a report needs."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Final

from acker.errors import ArgumentTypeError, ArgumentValueError, UnattributedError, exception_text
from acker.remote.jobs import DETACHED, Job, Part, current, find_job, set_current
from acker.remote.replies import Quiet, Replies

log: Final = logging.getLogger("acker.remote")
# The task queues that are integrated in this process, such as "celery".
INTEGRATED: Final[set[str]] = set()


@contextlib.contextmanager
def sending(part: Part | None, name: str) -> Iterator[None]:
    """Let the tree of a part fail if what it sends in this block cannot be sent."""
    try:
        yield
    except BaseException as error:
        if part is not None:
            part.not_sent(f"the send of {name} raised {exception_text(error)}")
        raise


class Run:
    """A job that runs in this process; without a `Job` if nobody awaits it."""

    __slots__ = ("_before", "is_alone", "is_skipped", "job", "part", "threads")

    def __init__(self, found: Job | None) -> None:
        # The integration then lets the queue take it for done.
        self.is_skipped = found is not None and found.skip()
        found = None if self.is_skipped else found
        self.job = found
        self.part: Part = DETACHED if found is None else found
        self.is_alone = True  # no other one ran at any time of this one
        self.threads = frozenset(threading.enumerate())
        self._before = current()

    def enter(self) -> None:
        """Let this thread work for it."""
        set_current(self.part)

    def leave(self) -> None:
        """Let this thread work for what it did before."""
        set_current(self._before)


class Runs:
    """The jobs of one queue that run in this process.

    Parameters
    ----------
    replies : Replies
    threads_of : str
        How the modules begin whose threads send for nobody, such as those of the queue's own scheduler.
    unattributed : {"raise", "ignore"}
        What to do when a thread sends of which nothing says for which job it does so.
    """

    def __init__(self, replies: Replies, threads_of: str, unattributed: str) -> None:
        if not isinstance(replies, Replies):
            raise ArgumentTypeError(
                f"replies: expected Replies, such as RedisReplies(url), got {type(replies).__name__}"
            )
        if unattributed not in ("raise", "ignore"):
            raise ArgumentValueError(f"unattributed: expected 'raise' or 'ignore', got {unattributed!r}")
        INTEGRATED.add(threads_of.rstrip("."))
        self._replies = replies
        self._threads_of = threads_of
        self._is_strict = unattributed == "raise"
        # Not where all sends come through the loop of the main thread.
        self.main_sends_for_nobody = True
        self._runs: dict[int, Run] = {}
        self._has_run = False
        self._has_minted = False
        self._quiet_stray = Quiet()

    def begin(self, key: int, token: str | None, name: str) -> Run:
        """Begin a run, and let this thread work for it."""
        run = Run(self.find_job(token, name))
        self._has_run = True
        self._runs[key] = run
        if len(runs := [*self._runs.values()]) > 1:
            for each in runs:
                each.is_alone = False
        run.enter()
        return run

    def get(self, key: int) -> Run | None:
        """Return a run that has not ended."""
        return self._runs.get(key)

    def end(self, key: int) -> Run | None:
        """Return a run that ends now; None if none has this key."""
        run = self._runs.pop(key, None)
        if run is not None:
            run.leave()
        return run

    def find_job(self, token: str | None, name: str) -> Job | None:
        """Return the job of a token, or None with an error in the log if it cannot be read."""
        return find_job(token, self._replies, name)

    def fail(self, token: str | None, name: str, reason: object) -> None:
        """Report that a job has failed that did not run, or not to its end."""
        found = self.find_job(token, name)
        if found is not None:
            found.fail(reason)

    def token(self, part: Part | None, old: str | None, name: str) -> str | None:
        """Return the token for what is sent: a new one, or the one that it had if it is sent for nobody."""
        if part is None:
            return old  # of a message that the queue itself sends once more
        if part is DETACHED:
            return None
        if old is not None and isinstance(part, Job) and part.is_ended:
            return old  # a retry of a run that has ended its part itself: the first report counts
        self._has_minted = True
        return part.token(name)

    def sender(self, name: str, *, is_awaited: bool) -> Part | None:
        """Return the part that this thread sends something for.

        Parameters
        ----------
        name : str
        is_awaited : bool
            Whether it has a token, as what the queue sends once more.

        Raises
        ------
        UnattributedError
            It may be several, or one that has ended.
        """
        part = current()
        if part is not None or is_awaited:
            return part
        if not self._has_run:
            if self._has_minted and self._quiet_stray.may_log():
                log.warning(
                    "%s is sent by %s for no message, so none waits for it. If it works for one, let it do so by"
                    " message.submit or contextvars.copy_context().run; else use a block of acker.remote.detached()",
                    name,
                    threading.current_thread().name,
                )
            return None
        return self._part_of_thread(name)

    def _part_of_thread(self, name: str) -> Part | None:
        thread = threading.current_thread()
        runs = [*self._runs.values()]
        if len(runs) == 1 and runs[0].is_alone and thread not in runs[0].threads:
            return runs[0].part  # the only one began it
        if not runs and thread is threading.main_thread() and self.main_sends_for_nobody:
            return None
        if type(thread).__module__.startswith(self._threads_of) or not self._is_strict:
            return None
        raise UnattributedError(
            f"{name} was not sent: {thread.name} works for no known task, or for one that has ended, so no message"
            " would wait for it. Start such threads with contextvars.copy_context().run, and wait for them before the"
            " task ends; or send this in a block of acker.remote.detached()"
        )
