"""Trees of jobs without a message, for scripts, tests and requests that wait until all is done."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Self

from acker.errors import (
    ArgumentTypeError,
    ForkedError,
    JobsError,
    RuntimeStateError,
    TupleStateError,
    exception_text,
)
from acker.observe.reasons import reason_text
from acker.remote.jobs import Part, current, set_current
from acker.remote.ledger import OpenJob
from acker.remote.replies import Replies

_NAMED: int = 3


class _End:
    """The end of a tree, which its jobs keep open."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.lock = threading.Lock()
        self.reason: str | None = None
        self.open = 1  # the block, and one for all of its jobs

    def begin(self) -> Self:
        """Wait for jobs, too."""
        with self.lock:
            # Whoever waits may have returned: a thread can ask while the block ends.
            if self.is_over.is_set():
                why = (
                    "the block of its tree has ended" if self.reason is None else f"its tree has failed: {self.reason}"
                )
                raise TupleStateError(f"no token: {why}, and nobody waits for a further job")
            self.open += 1
        return self

    def ack(self) -> None:
        with self.lock:
            self.open -= 1
            if not self.open:
                self.is_over.set()

    def fail(self, reason: object = None) -> None:
        with self.lock:
            if not self.is_over.is_set():
                self.reason = reason_text(reason)
                self.is_over.set()

    def reset_timeout(self) -> None:
        """Do nothing: whoever calls `wait` says how long."""


class JobTree:
    """The jobs that a block of code leads to, at any depth. See `tree`."""

    def __init__(self, replies: Replies) -> None:
        self._remote = replies.begin_tree()
        self._end = _End()
        self._before: Part | None = None
        self._is_block_over = False
        self._process = os.getpid()

    def token(self, name: str = "") -> str:
        """Return the token of a further job; see `Job.token`. Only within the block."""
        self._refuse_fork()
        if self._is_block_over:
            raise TupleStateError(f"no token for {name or 'a job'}: the block of its tree has ended")
        return self._remote.token(name, self._end.begin)

    def fail(self, reason: object = None) -> None:
        """Let `wait` raise."""
        self._end.fail(reason)

    def not_sent(self, reason: str) -> None:
        """Let `wait` raise, since a job may not have been sent."""
        self._end.fail(reason)

    def reset_timeout(self) -> None:
        """Do nothing: `wait` has the timeout."""

    @property
    def alive(self) -> bool:
        """Whether jobs are open, or the block is."""
        return not self._end.is_over.is_set()

    def wait(self, timeout_secs: float | None = None) -> None:
        """Wait until all jobs are done. May be called again after a timeout.

        Raises
        ------
        JobsError
            A job has failed.
        TimeoutError
            Some jobs are not done; the text names the first ones.
        RuntimeStateError
            The block has not ended: it may make further jobs.
        ForkedError
            This is a forked process, which gets no reports.
        """
        self._refuse_fork()
        if not self._is_block_over:
            raise RuntimeStateError(f"{self!r}: leave the block first, and then wait: it may make further jobs")
        if not self._end.is_over.wait(timeout_secs):
            named = "; ".join(map(str, self.missing(_NAMED)))
            raise TimeoutError(f"{self._remote.open} jobs are not done after {timeout_secs:g} s, such as {named}")
        self.close()
        if self._end.reason is not None:
            raise JobsError(self._end.reason)

    def missing(self, most: int = 100) -> list[OpenJob]:
        """Return the jobs that are not done, those first that have been open for longest."""
        return self._remote.missing(most)

    def close(self) -> None:
        """Forget the jobs; what they report is late. `wait` does this at its end."""
        self._remote.close()

    def __enter__(self) -> Self:
        if self._is_block_over:
            raise TupleStateError("the block of this tree has ended: make a new tree")
        self._before = current()
        set_current(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        set_current(self._before)
        self._before = None
        self._is_block_over = True
        if self._process != os.getpid():
            return
        if error is None:
            self._end.ack()
        else:
            self._end.fail(exception_text(error))
            self.close()

    def __del__(self) -> None:
        if remote := getattr(self, "_remote", None):
            remote.abandon()

    def _refuse_fork(self) -> None:
        if self._process != os.getpid():
            raise ForkedError("tree of jobs", self._process, "make tokens, and wait, in the process that made the tree")

    def __repr__(self) -> str:
        return f"<JobTree, {self._remote.open} open jobs>"


def tree(replies: Replies) -> JobTree:
    """Begin a tree of jobs that no message stands for.

    Parameters
    ----------
    replies : Replies

    Raises
    ------
    ConnectionLostError
        The server of the replies cannot be reached.

    Examples
    --------
    >>> with tree(replies) as jobs:        # doctest: +SKIP
    ...     import_all.delay()
    >>> jobs.wait(600)                     # doctest: +SKIP
    """
    if not isinstance(replies, Replies):
        raise ArgumentTypeError(f"replies: expected Replies, got {type(replies).__name__}")
    return JobTree(replies)
