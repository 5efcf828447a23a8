"""The tuple trees of a consumer's messages, and their acker: on the I/O thread."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from acker._engine.acker import Acker
from acker._engine.completions import Completions
from acker._engine.protocol import Kind, Outcome, Stats
from acker.connectors.attempts import Attempt, log_fields
from acker.connectors.calls import RunningCalls
from acker.connectors.handles import MessageTree
from acker.connectors.message_store import MessageStore
from acker.connectors.open_messages import describe_open
from acker.observe.reasons import Reason, ReasonKind
from acker.observe.timeout_advice import TimeoutAdvice
from acker.observe.watchdog import StallWatchdog

if TYPE_CHECKING:
    from acker._handles import Inbox

# A tree times out after 1 to 1 + 1 / (buckets - 1) times the timeout.
_BUCKETS: Final = 5
_LOOKS: Final = 4  # of the watchdog, in a timeout
_ACKED: Final = int(Outcome.ACKED)
_JOBS_NAMED: Final = 3


class MessageTrees:
    """Gives the acker what handles post, rotates by the clock, and settles the messages whose trees ended.

    Parameters
    ----------
    name : str
        The consumer's.
    timeout_secs : float
    logger : logging.Logger
    store : MessageStore
    calls : RunningCalls
    inbox : Inbox
        What handles post for the acker.

    Attributes
    ----------
    lost : int
        Number of messages that failed because a handle was garbage-collected without an end.
    undecodable : int
        Number of messages whose bodies could not be decoded.
    repeated_jobs : int
        Number of open jobs in other processes whose messages went back: they run again.
    """

    def __init__(
        self,
        name: str,
        timeout_secs: float,
        logger: logging.Logger,
        store: MessageStore,
        calls: RunningCalls,
        inbox: Inbox,
    ) -> None:
        self.lost = self.undecodable = self.repeated_jobs = 0
        self._has_told = False
        self._name = name
        self._logger = logger
        self._store = store
        self._calls = calls
        self._inbox = inbox
        self._acker = Acker(buckets=_BUCKETS)
        self._rotate_secs = timeout_secs / (_BUCKETS - 1)
        self._rotate_at = time.monotonic() + self._rotate_secs
        self._look_secs = timeout_secs / _LOOKS
        self._look_at = time.monotonic() + self._look_secs
        self._watchdog = StallWatchdog(max(1, round(1000 * timeout_secs)))
        self._advice = TimeoutAdvice(timeout_secs)

    def turn(self) -> float:
        """Take what handles posted; return the seconds until the next turn is due."""
        now = time.monotonic()
        columns = self._inbox.take()
        if columns is not None:
            self._settle(self._acker.ingest(*columns, now_ms=int(1000 * now)))
        if now >= self._rotate_at:
            self._rotate(now)
        if now >= self._look_at:
            self._look_at = now + self._look_secs
            self._look(now)
        return max(0.0, min(self._rotate_at, self._look_at) - time.monotonic())

    def _look(self, now: float) -> None:
        """Warn if nothing has been acked for a whole timeout."""
        oldest = self._store.oldest(3)
        oldest_ms = (time.monotonic_ns() - oldest[0].since_ns) // 1_000_000 if oldest else None
        stall = self._watchdog.stall(int(1000 * now), self._store.counts.acked, len(self._store), oldest_ms)
        if stall is not None:
            named = describe_open(oldest).text()
            who = f"the oldest: {named}" if named else "none is handed out: they wait for their turn or another attempt"
            self._logger.warning("%s: %s; %s%s", self._name, stall, who, self._told_calls())

    def _told_calls(self) -> str:
        attempts = self._store.oldest()
        calls = self._calls.of(attempts, time.monotonic_ns())
        return f". {self._calls.busy(attempts)}; the longest is {calls[0][1]}" if calls else ""

    def _rotate(self, now: float) -> None:
        self._rotate_at = now + self._rotate_secs
        timed_out = self._settle(self._acker.rotate(now_ms=int(1000 * now))) + self._end_unbegun()
        advice = self._advice.look(now, self._store.counts.acked, len(self._store), timed_out, self._some_wait)
        if advice is not None:
            self._logger.warning("%s: %s%s", self._name, advice, self._told_calls())

    def _settle(self, completions: Completions) -> int:
        """Settle the messages of trees that ended; return how many timed out."""
        timed_out = 0
        # Attempts that were revoked meanwhile are in neither, and counted as such.
        done, others = self._store.settled(completions)
        late = [tree for _, tree, outcome in others if outcome == Outcome.TIMED_OUT and tree is not None]
        running = self._calls.told(late)  # before coroutines are cancelled
        for attempt, tree, outcome in others:
            if outcome == _ACKED:
                done.append(attempt)
                tree.end_span(None)
                tree.forget_jobs()
            else:
                timed_out += outcome == Outcome.TIMED_OUT
                self._settle_failed(attempt, tree, outcome, running.get(attempt.message_id))
        self._store.end_done(done)
        return timed_out

    def _settle_failed(self, attempt: Attempt, tree: MessageTree | None, outcome: int, running: str | None) -> None:
        if outcome == Outcome.TIMED_OUT:
            why = "; ".join(filter(None, (running, _open_jobs(tree) if tree else None))) or None
            reason = Reason(ReasonKind.TIMED_OUT, exception=why, attempt=attempt.number)
        else:
            why, line = (tree.reason, tree.line) if tree else (None, None)
            reason = Reason(ReasonKind.FAILED, exception=why, attempt=attempt.number, line=line)
            if tree and tree.lost is not None:
                self._report_lost(attempt, tree.lost, tree.reason)
        if tree is None:
            self._store.end(attempt.message_id, reason)
            return
        tree.end_span("timed out" if outcome == Outcome.TIMED_OUT else tree.reason or "failed")
        self.undecodable += tree.is_undecodable
        if tree.goes_back and outcome != Outcome.TIMED_OUT:
            self._store.offer_again(attempt, tree.reason)
        else:
            self._store.end(attempt.message_id, reason, is_final=tree.is_final, retry_secs=tree.retry_secs)
        tree.cancel()  # first, so that no coroutine begins that is not noted
        self._calls.note_over(tree)

    def _some_wait(self) -> bool:
        return self._calls.some_wait(self._store.oldest(), len(self._store) - self._store.retrying)

    def _end_unbegun(self) -> int:
        """Time out messages whose hand-out an exception interrupted before their tree began; return how many."""
        before_ns = time.monotonic_ns() - round(1e9 * self._rotate_secs * (_BUCKETS - 1))
        unbegun = [
            attempt for attempt in self._store.of({"open"}) if attempt.tree is None and attempt.since_ns < before_ns
        ]
        for attempt in unbegun:
            self._store.end(attempt.message_id, Reason(ReasonKind.TIMED_OUT, attempt=attempt.number))
        return len(unbegun)

    def _report_lost(self, attempt: Attempt, made_in: str, reason: str | None) -> None:
        self.lost += 1
        text = "%s: a handle of %s was garbage-collected, and nothing acked or failed it. It was made in %s"
        extra = log_fields(attempt, self._store.name, reason)
        self._logger.warning(text, self._name, attempt.delivery.key, made_in, extra=extra)

    def over(self, attempt: Attempt) -> None:
        """Forget the tree of an attempt whose outcome no longer counts."""
        tree: MessageTree | None = attempt.tree
        attempt.tree = None
        if tree is not None:
            tree.end_span("taken back by the broker")
            self.repeated_jobs += 0 if tree.remote is None else tree.remote.open
            self._inbox.append(Kind.FAIL, tree.root_id)
            tree.cancel()  # first, as above
            self._calls.note_over(tree)

    def tell_repeated_jobs(self) -> None:
        """Warn at the end of the jobs that run again."""
        if self.repeated_jobs and not self._has_told:
            self._has_told = True
            text = "%s: %d jobs in other processes were not done when their messages went back: they run again"
            self._logger.warning(text, self._name, self.repeated_jobs)

    def acker_stats(self) -> Stats:
        """Return the figures of the acker."""
        return self._acker.stats()


def _open_jobs(tree: MessageTree) -> str | None:
    """Return which jobs in other processes a message still waits for."""
    named = "; ".join(map(str, tree.open_jobs(_JOBS_NAMED)))
    return f"not done are {named}" if named else None
