"""The tuple trees of a consumer's messages, and their acker: on the I/O thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from acker._engine.acker import Acker
from acker._engine.completions import Completions
from acker._engine.protocol import Kind, Outcome
from acker.connectors.attempts import Attempt
from acker.connectors.handles import MessageTree, Row
from acker.connectors.intake import Intake
from acker.connectors.open_messages import describe_open
from acker.connectors.waiting import TimeoutAdvice
from acker.observe.reasons import Reason, ReasonKind
from acker.observe.stats import RuntimeStats, TaskStats
from acker.observe.watchdog import StallWatchdog

# A tree times out after 1 to 1 + 1 / (buckets - 1) times the timeout.
_BUCKETS: Final = 5
_LOOKS: Final = 4  # of the watchdog, in a timeout
_SPOUT_TASK: Final = 1
_ACKER_TASK: Final = 2


class MessageTrees:
    """Gives the acker what handles post, rotates by the clock, and settles the messages whose trees ended.

    Parameters
    ----------
    name : str
        The consumer's.
    timeout_secs : float
    logger : logging.Logger
    stats : callable
        Returns the figures of the consumer, for the watchdog.

    Attributes
    ----------
    intake : Intake
        Set by the consumer.
    lost : int
        Number of messages that failed because a handle was garbage-collected without an end.
    undecodable : int
        Number of messages whose bodies could not be decoded.
    """

    intake: Intake

    def __init__(
        self, name: str, timeout_secs: float, logger: logging.Logger, stats: Callable[[], RuntimeStats]
    ) -> None:
        self.lost = self.undecodable = 0
        self._name = name
        self._logger = logger
        self._stats = stats
        self._acker = Acker(buckets=_BUCKETS)
        self._rotate_secs = timeout_secs / (_BUCKETS - 1)
        self._rotate_at = time.monotonic() + self._rotate_secs
        self._look_secs = timeout_secs / _LOOKS
        self._look_at = time.monotonic() + self._look_secs
        self._watchdog = StallWatchdog(max(1, round(1000 * timeout_secs)))
        self._advice = TimeoutAdvice(timeout_secs)
        self._forgotten: list[Row] = []

    def turn(self, rows: list[Any]) -> float:
        """Take what handles posted; return the seconds until the next turn is due."""
        now = time.monotonic()
        if self._forgotten:
            rows += self._forgotten
            self._forgotten = []
        if rows:
            self._settle(self._acker.ingest(*zip(*rows, strict=True), now_ms=int(1000 * now)))
        if now >= self._rotate_at:
            self._rotate(now)
        if now >= self._look_at:
            self._look_at = now + self._look_secs
            stall = self._watchdog.look(int(1000 * now), self._stats())
            if stall is not None:
                oldest = describe_open(self.intake.attempts.oldest(3)).text()
                self._logger.warning("%s: %s; the oldest: %s", self._name, stall.partition(": ")[0], oldest or "none")
        return max(0.0, min(self._rotate_at, self._look_at) - time.monotonic())

    def _rotate(self, now: float) -> None:
        self._rotate_at = now + self._rotate_secs
        timed_out = self._settle(self._acker.rotate(now_ms=int(1000 * now))) + self._end_unbegun()
        advice = self._advice.look(now, self.intake.counts.acked, len(self.intake.attempts), timed_out)
        if advice is not None:
            self._logger.warning("%s: %s", self._name, advice)

    def _settle(self, completions: Completions) -> int:
        """Settle the messages of trees that ended; return how many timed out."""
        timed_out = 0
        get = self.intake.attempts.get
        for message_id, outcome in zip(completions.message_id.tolist(), completions.outcome.tolist(), strict=True):
            attempt = get(message_id)
            if attempt is None:
                continue  # revoked meanwhile, and counted as such
            tree: MessageTree | None = attempt.tree
            attempt.tree = None  # the tree refers to the attempt: without this, only the collector would free both
            if outcome == Outcome.ACKED:
                self.intake.end(message_id, None)
                continue
            if outcome == Outcome.TIMED_OUT:
                timed_out += 1
                reason = Reason(ReasonKind.TIMED_OUT, attempt=attempt.number)
            elif tree and tree.goes_back:
                reason = Reason(ReasonKind.SHUTDOWN, attempt=attempt.number)
            else:
                reason = Reason(ReasonKind.FAILED, exception=tree.reason if tree else None, attempt=attempt.number)
                if tree and tree.lost is not None:
                    self._report_lost(attempt, tree.lost)
            is_final = tree is not None and tree.is_final
            self.undecodable += is_final
            self.intake.end(message_id, reason, is_final=is_final)
            if tree is not None:
                tree.cancel()
        return timed_out

    def _end_unbegun(self) -> int:
        """Time out messages whose hand-out an exception interrupted before their tree began; return how many."""
        before_ns = time.monotonic_ns() - round(1e9 * self._rotate_secs * (_BUCKETS - 1))
        unbegun = [
            attempt
            for attempt in self.intake.attempts.of({"open"})
            if attempt.tree is None and attempt.since_ns < before_ns
        ]
        for attempt in unbegun:
            self.intake.end(attempt.message_id, Reason(ReasonKind.TIMED_OUT, attempt=attempt.number))
        return len(unbegun)

    def _report_lost(self, attempt: Attempt, place: str) -> None:
        self.lost += 1
        text = "%s: a handle of %s was garbage-collected, and nothing acked or failed it. It was made in %s"
        self._logger.warning(text, self._name, attempt.delivery.key, place)

    def over(self, attempt: Attempt) -> None:
        """Forget the tree of an attempt whose outcome no longer counts."""
        tree: MessageTree | None = attempt.tree
        attempt.tree = None
        if tree is not None:
            self._forgotten.append((int(Kind.FAIL), tree.root_id, 0, 0, 0))
            tree.cancel()

    def task_stats(self) -> TaskStats:
        """Return the figures of the acker."""
        executor = f"acker {self.intake.source.name}"
        return TaskStats(
            component="acker", kind="acker", task=_ACKER_TASK, executor=executor, acker=self._acker.stats()
        )


def task_stats(intake: Intake, user: dict[str, int]) -> TaskStats:
    """Return the figures of an intake as those of a spout task."""
    counts = intake.counts
    oldest = intake.attempts.oldest(1)
    revoked = counts.revoked + intake.source.late_acks
    names = ("delivered", "retried", "revoked", "released", "reconnects")
    return TaskStats(
        component=intake.source.name,
        kind="spout",
        task=_SPOUT_TASK,
        executor=f"acker {intake.source.name}",
        executed=counts.polls,
        acked=counts.acked,
        failed=counts.failed,
        timed_out=counts.timed_out,
        late=counts.late,
        dead_letters=counts.dead_letters,
        pending=len(intake.attempts),
        oldest_age_ms=(time.monotonic_ns() - oldest[0].since_ns) // 1_000_000 if oldest else None,
        complete_latency=intake.settlement.latency.snapshot(),
        user={**{name: getattr(counts, name) for name in names}, **user} | {"revoked": revoked},
    )
