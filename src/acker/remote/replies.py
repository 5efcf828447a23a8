"""Replies: how jobs in other processes report to the process that waits for them, and the thread that reads there."""

from __future__ import annotations

import abc
import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self

from acker.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    ConnectionLostError,
    ForkedError,
    JobsError,
    RuntimeStateError,
    TupleStateError,
    exception_text,
)
from acker.observe.backoff import backoff
from acker.remote.ledger import JOBS_MAX, Ledger, OpenJob
from acker.remote.wire import (
    ADDRESS_BYTES,
    Report,
    ReportKind,
    Seal,
    Token,
    check_name,
    random_number,
    read_report,
    write_token,
)

log: Final = logging.getLogger("acker.remote")
# How long one look for reports may take.
READ_SECS: Final = 1.0
_RETRY_SECS: Final = 0.2
_RETRY_SECS_MAX: Final = 5.0
# A tree remembers the requests for more time of so many executions, where reports are signed.
_SERIALS_MAX: Final = 100_000
# The same trouble is logged this often.
QUIET_SECS: Final = 60.0


class GoneError(Exception):
    """An address of replies is not there any more, and what was sent to it is lost."""


class Quiet:
    """Says when the same trouble may be logged again."""

    def __init__(self) -> None:
        self._at = float("-inf")

    def may_log(self) -> bool:
        """Return whether nothing was logged for a while."""
        now = time.monotonic()
        if now - self._at < QUIET_SECS:
            return False
        self._at = now
        return True


class Inbox(abc.ABC):
    """One address, and the reports that come to it. Only the thread that reads uses it, but for `wake`.

    Attributes
    ----------
    address : bytes
        13 random bytes.
    """

    def __init__(self) -> None:
        self.address = os.urandom(ADDRESS_BYTES)

    @abc.abstractmethod
    def read(self, wait_secs: float) -> list[bytes]:
        """Return some reports, or none after `wait_secs`; those of the last call are forgotten.

        Raises
        ------
        ConnectionLostError
            A later call may succeed.
        GoneError
            The address is lost.
        """

    @abc.abstractmethod
    def wake(self) -> None:
        """Let a `read` that waits return soon, or else the next one; any thread may call it, and errors are no harm."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give the address up; errors are no harm."""


class Replies(abc.ABC):
    """Where jobs in other processes report that they are done.

    The process that waits and those that work for it make the same replies, each for itself. One object serves any
    number of consumers, trees and threads.

    Parameters
    ----------
    name : str
        For logs and errors.
    report_secs : float
        How long a job tries to report when the server does not answer. Its tree times out after that.
    jobs_max : int
        A tree with more jobs fails.
    secret : str or bytes, optional
        At least 16 bytes, the same for all processes: sign tokens and reports with it, and refuse others.
    skip_gone : bool
        In workers of task queues and a `Consumer` with `follow`: skip jobs of processes that are gone, since whoever
        took over has begun them anew. This asks the server before each job.

    Attributes
    ----------
    counts : ReplyCounts
    away : str or None
        Why the last report could not be sent; None if it could.
    """

    def __init__(
        self,
        name: str,
        report_secs: float = 30.0,
        jobs_max: int = JOBS_MAX,
        secret: str | bytes | None = None,
        skip_gone: bool = False,
    ) -> None:
        if not 0 < report_secs < float("inf"):
            raise ArgumentValueError(f"report_secs must be positive and finite, not {report_secs}")
        if not jobs_max > 0:
            raise ArgumentValueError(f"jobs_max must be positive, not {jobs_max}")
        self.name = name
        self.report_secs = report_secs
        self.jobs_max = jobs_max
        self.skip_gone = skip_gone
        self.seal = None if secret is None else Seal(secret)
        self.counts = ReplyCounts()
        self.away: str | None = None
        self._quiet, self._quiet_damaged, self._quiet_skipped = Quiet(), Quiet(), Quiet()
        # One in each process: a fork has none of the threads of its parent.
        self._readers: dict[int, ReplyReader] = {}

    @abc.abstractmethod
    def send(self, address: bytes, report: bytes) -> bool:
        """Store a report; return False if its address is gone.

        Raises
        ------
        ConnectionLostError
            The server has not confirmed it.
        """

    @abc.abstractmethod
    def has(self, address: bytes) -> bool:
        """Return whether an address is still there; raise as `send` does."""

    @abc.abstractmethod
    def open_inbox(self) -> Inbox:
        """Make an address; raise as `send` does."""

    def begin_tree(self) -> RemoteTree:
        """Return a new tree, whose reports come to this process.

        Raises
        ------
        ConnectionLostError
            The server cannot be reached.
        """
        process = os.getpid()
        reader = self._readers.get(process) or self._readers.setdefault(process, ReplyReader(self))
        return reader.begin()

    def note_gone(self, what: object) -> None:
        """Say, once in a while, that a report found no address."""
        self.counts.unowned += 1
        if self._quiet.may_log():
            text = "%s: nobody waits for %r any more, so its report is dropped. If its consumer runs, give both sides"
            log.warning(text + " replies of the same server and prefix", self.name, what)

    def note_unconfirmed(self, what: object, why: object) -> None:
        """Say that the server has not confirmed a report in time."""
        self.counts.unconfirmed += 1
        text = "%r: its report was not confirmed within %g s, so its tree may time out: %s"
        log.error(text, what, self.report_secs, why)

    def note_skipped(self, what: object) -> None:
        """Say, once in a while, that a job is skipped."""
        self.counts.skipped += 1
        if self._quiet_skipped.may_log():
            log.warning("%s: %r is skipped, since nobody waits for it any more", self.name, what)

    def note_damaged(self, name: str, error: Exception) -> None:
        """Say, once in a while, that a job runs for which nobody waits, since its token cannot be read."""
        self.counts.damaged_tokens += 1
        if self._quiet_damaged.may_log():
            log.error("a job %s runs, and no message waits for it: %s", name, error)

    def close(self) -> None:
        """Fail the trees that are open in this process, and give its address up."""
        reader = self._readers.pop(os.getpid(), None)
        if reader is not None:
            reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


@dataclass(slots=True)
class ReplyCounts:
    """Counts of this process since it began: of the reports that came to it, and of those that its jobs sent.

    Attributes
    ----------
    reports : int
        Those that came.
    late : int
        Reports for trees that were over: of jobs that ran again, or whose message had failed.
    duplicates : int
        Reports about jobs that were done before: these ran again, or the report was sent or replayed again.
    malformed : int
        What could not be read as a report.
    forged : int
        Reports that were refused, since they are not signed with the secret.
    replayed : int
        Requests for more time that came a second time, and were refused. Only with a secret.
    lost_addresses : int
        How often the server forgot the address, and all open trees failed.
    unowned : int
        Reports that found nobody who waits.
    unconfirmed : int
        Reports that the server did not confirm within `report_secs`.
    skipped : int
        Jobs that did not run, since nobody waits for them any more.
    damaged_tokens : int
        Jobs that run and that nobody awaits, since their tokens could not be read.
    """

    reports: int = 0
    late: int = 0
    duplicates: int = 0
    malformed: int = 0
    forged: int = 0
    replayed: int = 0
    lost_addresses: int = 0
    unowned: int = 0
    unconfirmed: int = 0
    skipped: int = 0
    damaged_tokens: int = 0


class KeptOpen(Protocol):
    """Something that a tree of jobs keeps open, such as a message."""

    def ack(self) -> None:
        """Take note that all jobs are done."""

    def fail(self, reason: object = None) -> None:
        """Take note that a job has failed."""

    def reset_timeout(self) -> None:
        """Give it its whole timeout again."""


class RemoteTree:
    """The jobs of one tree that run elsewhere. Any thread may use it.

    While a job is open, something waits for it: `token` makes it for the first job, and again if all were done
    meanwhile. The last report acks it, the first failure fails it.

    Parameters
    ----------
    reader : ReplyReader
    jobs_max : int

    Attributes
    ----------
    number : int
    address : bytes
    """

    __slots__ = ("_is_over", "_ledger", "_lock", "_reader", "_serials", "_waiting", "_why", "address", "number")

    def __init__(self, reader: ReplyReader, jobs_max: int, address: bytes) -> None:
        self.number = random_number()
        self.address = address
        self._reader = reader
        self._ledger = Ledger(jobs_max)
        self._lock = threading.Lock()
        self._waiting: KeptOpen | None = None
        self._is_over = False
        self._why = ""
        # The last request for more time of each execution, where reports are signed.
        self._serials: dict[int, int] | None = None

    def token(self, name: str, begin: Callable[[], KeptOpen]) -> str:
        """Return the token of a further job.

        Parameters
        ----------
        name : str
            For people.
        begin : callable
            Returns what waits for jobs. It is called while no job is open.

        Raises
        ------
        TupleStateError
            The tree is over.
        JobsError
            It has too many jobs, and has failed.
        ArgumentTypeError
            The name is no text.
        """
        check_name(name)
        with self._lock:
            if self._is_over:
                raise TupleStateError(f"no token for {name or 'a job'}: its message or tree is over{self._why}")
            if self._waiting is None:
                self._waiting = begin()
            place = self._ledger.make(name, time.monotonic())
            waiting = self._ended()
        if waiting is not None:
            waiting.fail(self._ledger.failure)
            raise JobsError(f"no token for {name or 'a job'}: {self._ledger.failure}")
        return write_token(Token(self.address, self.number, self._ledger.maker, place), self._reader.seal)

    def take(self, report: Report, serial: int | None = None) -> None:
        """Apply a report.

        Parameters
        ----------
        report : Report
        serial : int, optional
            Of a signed one: which report of its execution it is.
        """
        with self._lock:
            waiting = self._waiting
            if waiting is None:
                self._reader.counts.late += 1
                return
            needs_time = False
            if report.kind == ReportKind.MORE_TIME:
                needs_time = self._ledger.is_open(report.maker, report.place) and self._is_new(report, serial)
            else:
                duplicates = self._ledger.duplicates
                self._ledger.take(report, time.monotonic())
                self._reader.counts.duplicates += self._ledger.duplicates - duplicates
            ended = self._ended()
        # Without the lock, since what waits has a lock of its own.
        if needs_time:
            waiting.reset_timeout()
        elif ended is not None and self._ledger.failure is not None:
            ended.fail(self._ledger.failure)
        elif ended is not None:
            ended.ack()

    def _is_new(self, report: Report, serial: int | None) -> bool:
        """Return whether a request for more time is the first of its serial: one that is replayed has no effect."""
        if serial is None:
            return True
        self._serials = self._serials or {}
        if serial <= self._serials.get(report.execution, 0) or len(self._serials) >= _SERIALS_MAX:
            self._reader.note_replayed()
            return False
        self._serials[report.execution] = serial
        return True

    def _ended(self) -> KeptOpen | None:
        """Return what waited, if the ledger is at its end."""
        failed = self._ledger.failure is not None
        if not failed and self._ledger.open:
            return None
        waiting, self._waiting = self._waiting, None
        if failed:
            self._note_over(str(self._ledger.failure))
        return waiting

    def _note_over(self, why: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._why = f", since it has failed: {why}"

    def fail(self, reason: str) -> None:
        """Fail what waits, for a reason that no job reported."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
            self._note_over(reason)
        if waiting is not None:
            waiting.fail(reason)

    def close(self) -> None:
        """Forget all jobs: nobody waits for them any more."""
        self._reader.forget(self.number)
        with self._lock:
            self._is_over = True
            self._waiting = None

    def abandon(self) -> None:
        """Forget all jobs, as a finalizer may: the collector can run it in a thread that holds a lock of this tree."""
        self._reader.forget(self.number)

    def missing(self, most: int) -> list[OpenJob]:
        """Return the jobs that are open, those first that have been so for longest."""
        found: list[OpenJob] = []
        with self._lock:
            if self._waiting is not None:
                for job in self._ledger.missing(time.monotonic()):
                    found.append(job)
                    if len(found) == most:
                        break
        return found

    @property
    def open(self) -> int:
        """How many jobs are known and not done."""
        return self._ledger.open if self._waiting is not None else 0


class ReplyReader:
    """The thread that reads the reports for all trees of one process, and the address where they come.

    If the server forgets the address, all open trees fail at once, and the next tree begins with another address.

    Parameters
    ----------
    replies : Replies
    """

    def __init__(self, replies: Replies) -> None:
        self.counts = replies.counts
        self.seal = replies.seal
        self._replies = replies
        self._trees: dict[int, RemoteTree] = {}
        self._lock = threading.Lock()
        self._inbox: Inbox | None = None
        # Those before the last one lost their address, and may not have ended yet.
        self._threads: list[threading.Thread] = []
        self._end = threading.Event()
        self._quiet, self._quiet_malformed = Quiet(), Quiet()
        self._quiet_forged, self._quiet_replayed = Quiet(), Quiet()

    def begin(self) -> RemoteTree:
        """Return a new tree; make an address if there is none."""
        with self._lock:
            if self._end.is_set():
                raise RuntimeStateError(f"{self._replies.name}: these replies are closed")
            inbox = self._inbox
            if inbox is None:
                inbox = self._inbox = self._replies.open_inbox()
                thread = threading.Thread(
                    target=self._run, args=(inbox,), name=f"acker replies {self._replies.name}", daemon=True
                )
                thread.start()
                self._threads = [*(each for each in self._threads if each.is_alive()), thread]
            tree = RemoteTree(self, self._replies.jobs_max, inbox.address)
            self._trees[tree.number] = tree
        return tree

    def forget(self, number: int) -> None:
        """Forget a tree; further reports for it are late."""
        self._trees.pop(number, None)

    def close(self) -> None:
        """End the thread, and fail what is open."""
        self._end.set()
        with self._lock:
            inbox, threads = self._inbox, self._threads
        if inbox is not None:
            inbox.wake()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()
        self._fail_all("its replies were closed", self._trees.copy())

    def _run(self, inbox: Inbox) -> None:
        failures, is_told = 0, False
        try:
            while not self._end.is_set():
                try:
                    reports = inbox.read(READ_SECS)
                    if is_told:
                        log.info("%s: reports can be read again", self._replies.name)
                    failures, is_told = 0, False
                except ConnectionLostError as lost:
                    failures += 1
                    # Without an open tree, nobody waits for a report. Other threads may end the last one meanwhile.
                    if (trees := len(self._trees)) and self._quiet.may_log():
                        is_told = True
                        text = "%s: reports of %d open trees cannot be read now, and are read later: %s"
                        log.warning(text, self._replies.name, trees, lost)
                    self._end.wait(backoff(failures, _RETRY_SECS, _RETRY_SECS_MAX))
                    continue
                for report in reports:
                    self._take(report, inbox.address)
        except GoneError as gone:
            self._lose(inbox.address, str(gone))
        except Exception as error:
            log.exception("%s: reading reports failed", self._replies.name)
            self._lose(inbox.address, f"{self._replies.name}: reading reports failed: {exception_text(error)}")
        finally:
            inbox.close()

    def note_replayed(self) -> None:
        """Say, once in a while, that a request for more time came again."""
        self.counts.replayed += 1
        if self._quiet_replayed.may_log():
            text = "%s: %d requests for more time came a second time and were refused: a send was repeated, or somebody"
            log.warning(text + " replays them", self._replies.name, self.counts.replayed)

    def _note_forged(self) -> None:
        self.counts.forged += 1
        if self._quiet_forged.may_log():
            text = "%s: %d reports were refused, since they are not signed with its secret: somebody forges them, or"
            log.error(text + " a process has no secret= or another one", self._replies.name, self.counts.forged)

    def _take(self, data: bytes, address: bytes) -> None:
        self.counts.reports += 1
        serial = None
        if self.seal is not None and (serial := self.seal.serial_of(data, address)) is None:
            self._note_forged()
            return
        try:
            report = read_report(data)
        except ArgumentValueError as error:
            self.counts.malformed += 1
            if self._quiet_malformed.may_log():
                text = "%s: %d messages could not be read as reports and were ignored, the last one since it is %s"
                log.error(text, self._replies.name, self.counts.malformed, error)
            return
        tree = self._trees.get(report.tree)
        if tree is None:
            self.counts.late += 1
        else:
            tree.take(report, serial)

    def _lose(self, address: bytes, why: str) -> None:
        with self._lock:
            self._inbox = None
            # Of a copy, as trees are forgotten without the lock.
            lost = {number: tree for number, tree in self._trees.copy().items() if tree.address == address}
        self.counts.lost_addresses += 1
        log.error("%s: all %d open trees fail: %s", self._replies.name, len(lost), why)
        self._fail_all(why, lost)

    def _fail_all(self, why: str, trees: dict[int, RemoteTree]) -> None:
        for number, tree in trees.items():
            self.forget(number)
            tree.fail(why)


def check_expiry(expiry_secs: float) -> None:
    """Refuse a time after which what a process reads from would expire before the process renews it by a read.

    Raises
    ------
    ArgumentValueError
    """
    if not READ_SECS < expiry_secs < float("inf"):
        raise ArgumentValueError(
            f"expiry_secs must be finite and more than {READ_SECS:g}, after which it is renewed, not {expiry_secs}"
        )


class MemoryReplies(Replies):
    """Replies within one process, for tests and for jobs that run in its threads."""

    def __init__(
        self,
        *,
        report_secs: float = 30.0,
        jobs_max: int = JOBS_MAX,
        secret: str | bytes | None = None,
        skip_gone: bool = False,
    ) -> None:
        super().__init__("replies in memory", report_secs, jobs_max, secret, skip_gone)
        self._inboxes: dict[bytes, queue.SimpleQueue[bytes | None]] = {}
        self._process = os.getpid()

    def _refuse_fork(self) -> None:
        # A report to the copy here would look confirmed, and nobody would ever read it.
        if self._process != os.getpid():
            raise ForkedError("MemoryReplies", self._process, "between processes use acker.remote.redis.RedisReplies")

    def __reduce__(self) -> tuple[object, ...]:
        raise ArgumentTypeError(
            "MemoryReplies cannot be pickled: they are of one process; between processes use"
            " acker.remote.redis.RedisReplies"
        )

    def send(self, address: bytes, report: bytes) -> bool:
        """Store a report."""
        self._refuse_fork()
        inbox = self._inboxes.get(address)
        if inbox is not None:
            inbox.put(report)
        return inbox is not None

    def has(self, address: bytes) -> bool:
        """Return whether an address is still there."""
        self._refuse_fork()
        return address in self._inboxes

    def open_inbox(self) -> Inbox:
        """Make an address."""
        self._refuse_fork()
        return _MemoryInbox(self._inboxes)


class _MemoryInbox(Inbox):
    def __init__(self, inboxes: dict[bytes, queue.SimpleQueue[bytes | None]]) -> None:
        super().__init__()
        self._inboxes = inboxes
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        inboxes[self.address] = self._queue

    def read(self, wait_secs: float) -> list[bytes]:
        if self._inboxes.get(self.address) is not self._queue:
            raise GoneError("the address of the replies is gone")
        report = None
        with contextlib.suppress(queue.Empty):
            report = self._queue.get(timeout=wait_secs)
        return [] if report is None else [report]

    def wake(self) -> None:
        self._queue.put(None)

    def close(self) -> None:
        self._inboxes.pop(self.address, None)
