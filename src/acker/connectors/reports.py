"""Reports to the owners of trees of which messages are jobs: confirmed before the message is acked."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Final

from acker.connectors.attempts import Attempt
from acker.connectors.headers import TOKEN
from acker.connectors.source import Delivery
from acker.remote.jobs import Job, find_job
from acker.remote.replies import Replies

log: Final = logging.getLogger("acker.connectors")
_STOP_SECS: Final = 5.0


class Reporter:
    """A thread that reports how messages end that are jobs of trees elsewhere.

    Parameters
    ----------
    replies : Replies
    name : str
        The consumer's.
    """

    def __init__(self, replies: Replies, name: str) -> None:
        self._replies = replies
        self._name = name
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin_job(self, delivery: Delivery) -> Job | None:
        """Return a new execution of the job that a message is; None if its headers have no token."""
        return find_job(delivery.headers.get(TOKEN), self._replies, self._name)

    def report(self, attempt: Attempt, confirm: Callable[[Attempt], None]) -> None:
        """Report the end of an attempt, and then call `confirm`, on the thread of this object.

        If the server does not answer for the `report_secs` of the replies, this logs an error and goes on as well: the
        tree times out there.
        """
        until = time.monotonic() + self._replies.report_secs
        reason = None if attempt.reason is None else str(attempt.reason)

        def work() -> None:
            # An attempt that has ended meanwhile belongs to another consumer now.
            if attempt.state == "reporting" and attempt.job is not None:
                try:
                    attempt.job.end(reason, until)
                finally:
                    confirm(attempt)

        self._put(work)

    def reset_timeout(self, job: Job) -> None:
        """Give the tree of a job its whole timeout again, some time later."""
        self._put(job.reset_timeout)

    def _put(self, work: Callable[[], None]) -> None:
        self._queue.put(work)
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"acker {self._name} reports", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except Exception:  # this thread has to go on: further messages wait for it
                log.exception("%s: a report could not be made, so its tree may time out", self._name)

    def stop(self) -> None:
        """End the thread; what is not reported by now is reported by whoever gets the message."""
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(_STOP_SECS)
