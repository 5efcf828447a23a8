"""Jobs: the part that this code works for, here or in another process, and its tokens for further jobs."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import os
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Protocol, Self

from acker.errors import ConnectionLostError, ForkedError, TokenError, TupleStateError, exception_text
from acker.observe.backoff import backoff
from acker.observe.reasons import PROGRAM_ENDS, reason_text
from acker.remote.replies import Replies
from acker.remote.wire import (
    JOBS_LIMIT,
    NAMES_MAX,
    Report,
    ReportKind,
    Token,
    check_name,
    random_number,
    read_token,
    write_report,
    write_token,
)

log: Final = logging.getLogger("acker.remote")
_RETRY_SECS: Final = 0.1
_RETRY_SECS_MAX: Final = 2.0


class Part(Protocol):
    """A part of the work for a tree: a message or a child of it, a tree, or a job in another process."""

    def token(self, name: str = "") -> str:
        """Return the token of a further job, for which this part's tree waits."""

    def fail(self, reason: object = None) -> None:
        """End this part, and fail its tree."""

    def not_sent(self, reason: str) -> None:
        """Take note that a job may not have been sent, whose token this part made: then its tree fails."""

    def reset_timeout(self) -> None:
        """Give the tree its whole timeout again."""

    @property
    def alive(self) -> bool:
        """Whether somebody still waits for this part."""


_current: contextvars.ContextVar[Part | None] = contextvars.ContextVar("acker part", default=None)


def current() -> Part | None:
    """Return the part that this code works for; None if nobody waits for what it does.

    It follows the context: into coroutines, and into threads of `Handle.submit`, but not into other threads.
    """
    return _current.get()


def set_current(part: Part | None) -> None:
    """Let the code that follows work for a part."""
    _current.set(part)


@contextlib.contextmanager
def working_for(part: Part | None) -> Iterator[None]:
    """Let code work for a part, as a ``with`` block of the part does."""
    before = _current.get()
    _current.set(part)
    try:
        yield
    finally:
        # Not by a token of the context: a generator may end in another one.
        _current.set(before)


class Job:
    """One execution of a job that came with a token. Any thread may use it.

    As a ``with`` block, it reports at the end that the job is done, or has failed if the block raised. `current`
    returns it within.

    Parameters
    ----------
    token : Token
    replies : Replies
    name : str
        For people: it begins the reasons of failures.
    """

    def __init__(self, token: Token, replies: Replies, name: str = "") -> None:
        self.name = name
        self._token = token
        self._replies = replies
        self._execution = random_number()
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._jobs = self._reports = 0
        self._names: list[str] = []
        self._not_sent: str | None = None
        self._is_ended = False
        self._before: Part | None = None

    def token(self, name: str = "") -> str:
        """Return the token of a further job, which has to be done before the message is acked.

        Give each job a token of its own, also where one thing is sent twice.

        Parameters
        ----------
        name : str
            For people.

        Raises
        ------
        TupleStateError
            This job has ended: the message may be acked already.
        ForkedError
            This is a forked process.
        """
        self._refuse_fork()
        check_name(name)
        with self._lock:
            if self._is_ended or self._jobs == JOBS_LIMIT:
                raise TupleStateError(
                    f"{self!r} has ended, so its message may be acked already, and nobody waits for"
                    f" {name or 'a further job'}: let the job wait for its threads before it ends, or send this in a"
                    " block of acker.remote.detached()"
                )
            place = self._jobs
            self._jobs += 1
            if place < NAMES_MAX:
                self._names.append(name)
        return write_token(self._token._replace(maker=self._execution, place=place), self._replies.seal)

    def ack(self) -> None:
        """Report that this job is done, but for the jobs that it made; wait until the report is confirmed.

        If the server does not answer for the `report_secs` of the replies, this logs an error and returns: the tree
        times out.

        Raises
        ------
        TupleStateError
            It has ended before.
        """
        self.end()

    def fail(self, reason: object = None) -> None:
        """Report that this job has failed for good, and with it the tree; else as `ack`.

        Parameters
        ----------
        reason : str or exception, optional
        """
        self.end(reason_text(reason))

    def finish(self, reason: object = None) -> None:
        """End as `ack` does, or with a reason as `fail` does; do nothing if the work has ended this job itself.

        Integrations of task queues call it, as the queue has to end its own job in any case.

        Parameters
        ----------
        reason : str or exception, optional
            Why it has failed; None if it is done.
        """
        self._try_end(None if reason is None else reason_text(reason))

    def abandon(self) -> None:
        """End without a report, since the queue will run the job again; do nothing if it has ended."""
        with self._lock:
            self._is_ended = True

    def not_sent(self, reason: str) -> None:
        """Let this job fail at its end, since a job that it made may not have been sent."""
        self._not_sent = self._not_sent or reason

    def end(self, reason: str | None = None, until: float | None = None) -> None:
        """Report that this job is done, or why it has failed; errors are those of `ack`.

        With `until`, a time of the monotonic clock, it tries until then instead of for `report_secs`. While the server
        does not answer, it does not even try once that time is over: so of many jobs that end meanwhile, not each waits
        for the server.
        """
        if not self._try_end(reason, until):
            raise TupleStateError(f"{self!r} has ended before: a job is acked or failed once")

    def _try_end(self, reason: str | None, until: float | None = None) -> bool:
        """End as `end` does; return False if it has ended before."""
        self._refuse_fork()
        with self._lock:
            if self._is_ended:
                return False
            self._is_ended = True
        reason = self._not_sent if reason is None else reason
        if reason is None:
            self._report(ReportKind.OK, until, names=tuple(self._names) if any(self._names) else ())
        else:
            self._report(ReportKind.FAIL, until, f"{self.name}: {reason}" if self.name else reason)
        return True

    def reset_timeout(self) -> None:
        """Give the tree its whole timeout again, for work that takes long and makes progress."""
        self._refuse_fork()
        self._report(ReportKind.MORE_TIME)

    @property
    def is_ended(self) -> bool:
        """Whether it has reported, or was abandoned."""
        return self._is_ended

    @property
    def alive(self) -> bool:
        """Whether the process that waits is still there; True while that cannot be known."""
        try:
            return self._replies.has(self._token.address)
        except ConnectionLostError:
            return True

    def skip(self) -> bool:
        """End without a report if nobody waits for this any more, and the replies skip such jobs; return whether so."""
        if not self._replies.skip_gone or self.alive:
            return False
        self.abandon()
        self._replies.note_skipped(self)
        return True

    def _report(
        self, kind: ReportKind, until: float | None = None, reason: str = "", names: tuple[str, ...] = ()
    ) -> None:
        """Send a report until it is confirmed, or for `report_secs`."""
        address, tree, maker, place = self._token
        data = write_report(Report(tree, maker, place, self._execution, self._jobs, kind, reason, names))
        replies, failures = self._replies, 0
        if replies.seal is not None:
            with self._lock:
                self._reports += 1
                data = replies.seal.sign_report(data, address, self._reports)
        until = time.monotonic() + replies.report_secs if until is None else until
        lost: object = replies.away
        while lost is None or time.monotonic() < until:
            try:
                if not replies.send(address, data):
                    replies.note_gone(self)
                replies.away = None
                return
            except ConnectionLostError as error:
                lost = replies.away = str(error)
            failures += 1
            wait_secs = backoff(failures, _RETRY_SECS, _RETRY_SECS_MAX)
            if time.monotonic() + wait_secs > until:
                break
            time.sleep(wait_secs)
        replies.note_unconfirmed(self, lost)

    def _refuse_fork(self) -> None:
        if self._process != os.getpid():
            raise ForkedError("job", self._process, "take tokens in the process that runs the job")

    def __enter__(self) -> Self:
        self._refuse_fork()
        self._before = _current.get()
        _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.set(self._before)
        self._before = None
        if self._is_ended or self._process != os.getpid():
            return
        if isinstance(error, PROGRAM_ENDS):
            log.info("%r ends without a report, since its work was ended by %s", self, exception_text(error))
            self.abandon()
        else:
            self.finish(error)

    def __repr__(self) -> str:
        return f"<Job {self.name or 'without a name'}, {'ended' if self._is_ended else 'open'}>"


def job(token: str, replies: Replies, name: str = "") -> Job:
    """Begin the job that came with a token.

    Parameters
    ----------
    token : str
        Of `Handle.token` or `Job.token`. Queues may bring it more than once: each time is an execution of its own.
    replies : Replies
        To the same server as those of the process that waits. The token names no server.
    name : str
        For people: it begins the reasons of failures.

    Raises
    ------
    TokenError
        The token is damaged, has another version, or is not signed with the secret of the replies.

    Examples
    --------
    >>> with job(token, replies, "pack") as part:        # doctest: +SKIP
    ...     for item in items:
    ...         queue.put((item, part.token("post")))
    """
    return Job(read_token(token, replies.seal), replies, name)


def find_job(token: str | bytes | None, replies: Replies, name: str) -> Job | None:
    """Return the job of a token that came with something; None, with an error in the log, if it cannot be read."""
    if token is None:
        return None
    try:
        return job(token.decode(errors="replace") if isinstance(token, bytes) else token, replies, name)
    except TokenError as error:
        replies.note_damaged(name, error)
        return None


class _Detached:
    """The part of code whose jobs nobody awaits, on purpose."""

    def token(self, name: str = "") -> str:
        raise TupleStateError(f"no token for {name or 'a job'}: this is a block of detached()")

    def fail(self, reason: object = None) -> None:
        """Do nothing."""

    def not_sent(self, reason: str) -> None:
        """Do nothing."""

    def reset_timeout(self) -> None:
        """Do nothing."""

    alive = False


DETACHED: Final[Part] = _Detached()


def detached() -> contextlib.AbstractContextManager[None]:
    """Return a block whose jobs nobody awaits: integrations send them without a token."""
    return working_for(DETACHED)


def fail(token: str, replies: Replies, reason: object) -> None:
    """Report that a job has failed that will not run, such as one in a queue of dead letters.

    Parameters
    ----------
    token : str
    replies : Replies
    reason : str or exception
    """
    Job(read_token(token, replies.seal), replies).fail(reason)
