"""How messages are settled with their source: acks, retries, dead letters, leases, and those that are given back."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from acker.connectors.attempts import Attempt, AttemptTable, IntakeCounts
from acker.connectors.dead_letters import DeadLetterWriter
from acker.connectors.options import BROKER, IntakeOptions
from acker.connectors.source import Delivery, Source
from acker.connectors.suspects import Suspects
from acker.connectors.working import threads_at_work
from acker.errors import ArgumentValueError
from acker.observe.backoff import backoff
from acker.observe.failures import FailureLog
from acker.observe.reasons import Reason, ReasonKind
from acker.observe.latencies import LatencyRecorder

# Failures that are not the message's fault: it goes back to the broker, and its owner stops.
# The most deliveries of one poll, so that acks never wait for long.
_POLL_MAX: Final = 500
_NOT_COUNTED: Final = frozenset({ReasonKind.RESTART, ReasonKind.SHUTDOWN})
# How often leases are renewed within their time.
_RENEWALS: Final = 3


class Settlement:
    """Settles attempts with a source, on the I/O thread.

    Parameters
    ----------
    source : Source
    options : IntakeOptions
    logger : logging.Logger
    wake : callable
        Called by other threads when a dead letter is confirmed.
    on_over : callable, optional
        Called with each attempt that somebody works on and whose outcome no longer counts.

    Attributes
    ----------
    attempts : AttemptTable
    counts : IntakeCounts
    latency : LatencyRecorder
        From handing out to the end of the tree.
    is_open : bool
        Whether the source is connected.
    suspects : Suspects
    is_stopping : bool
        Whether attempts that fail go back to the broker.
    confirmed : deque of Attempt
        Dead letters that were confirmed, and whose acks are to follow.
    failures : FailureLog or None
        Where failures are recorded, for the live page.
    on_dead_letter : callable, optional
        Called with each attempt whose dead letter has been written.
    """

    def __init__(
        self,
        source: Source,
        options: IntakeOptions,
        logger: logging.Logger,
        wake: Callable[[], None],
        on_over: Callable[[Attempt], None] | None,
    ) -> None:
        if options.dead_letters == BROKER and not source.can_give_up:
            raise ArgumentValueError(
                f"dead_letters: {source.name} has no place for dead letters of its own; set a publisher, such as"
                " DeadLetterFile('dead-letters.jsonl')"
            )
        self.attempts = AttemptTable()
        self.suspects = Suspects(source.name, self.attempts, options, logger)
        self.counts = IntakeCounts()
        self.latency = LatencyRecorder()
        self.is_open = False
        self.is_stopping = False
        self.confirmed: deque[Attempt] = deque()
        # What the source is still to be told: an item leaves its list only after the call that tells it, so a lost
        # connection in between loses none.
        # Also set by the first retry that the broker takes, for sources that forget to say so.
        self._redelivers = source.redelivers
        self._done: list[Attempt] = []
        self._failed: deque[tuple[Callable[[Attempt], None], Attempt]] = deque()
        self._back: list[Delivery] = []
        self.failures: FailureLog | None = None
        self.on_dead_letter: Callable[[Attempt], None] | None = None
        self._source = source
        self._options = options
        self._logger = logger
        self._wake = wake
        self._on_over = on_over
        self._renew_at = 0.0
        publisher = options.publisher
        self._writer = None if publisher is None else DeadLetterWriter(publisher, source.name, self._confirm, logger)

    def _confirm(self, attempt: Attempt) -> None:
        self.confirmed.append(attempt)
        self._wake()

    def accept(self, delivery: Delivery) -> None:
        """Take a delivery into the process."""
        self.counts.delivered += 1
        tries = delivery.attempt if self._redelivers else 1
        most = self._options.delivered_max
        if most is None or delivery.attempt <= most:
            self.suspects.add(delivery, tries)
            return
        # The broker counts attempts that died with their process. So nobody may take this one.
        attempt = self.attempts.add(delivery, delivery.attempt, tries, "failed")
        text = f"this is its delivery {delivery.attempt} by the broker, and deliveries_max is {most}"
        attempt.reason = Reason(ReasonKind.FAILED, exception=text, attempt=delivery.attempt)
        self._give_up(attempt)

    @property
    def room(self) -> int:
        """How many further deliveries the source may return."""
        if self.suspects:
            return 0
        return min(1 if self.suspects.is_careful else _POLL_MAX, max(0, self._options.open_max - len(self.attempts)))

    def end(self, message_id: int, reason: Reason | None, *, is_final: bool = False) -> bool:
        """Settle one attempt, on the I/O thread only; return whether it was open. The next `flush` tells the source.

        Parameters
        ----------
        message_id : int
        reason : Reason or None
            None: it is done.
        is_final : bool
            No further attempt can succeed.
        """
        attempt = self.attempts.get(message_id)
        if attempt is None:
            self.counts.late += 1
            return False
        if reason is None:
            self.latency.record(time.monotonic_ns() - attempt.since_ns)
            self.counts.acked += 1
            self._ack(attempt)
            return True
        if reason.kind in _NOT_COUNTED:
            # It goes back when the intake stops. Now, the broker would deliver it here again, and count that.
            attempt.state = "withheld"
            return True
        attempt.reason = replace(reason, attempt=attempt.number)
        if reason.kind is ReasonKind.TIMED_OUT:
            self.counts.timed_out += 1
        else:
            self.counts.failed += 1
        if self.failures is not None:
            elapsed_ms = (time.monotonic_ns() - attempt.since_ns) // 1_000_000
            self.failures.record(self._source.name, 1, attempt.delivery.key, attempt.reason, elapsed_ms)
        is_last = is_final or (self._options.attempts_max is not None and attempt.tries >= self._options.attempts_max)
        if is_last and self._options.dead_letters is not None:
            self._give_up(attempt)
        elif self.is_stopping:
            self.release([attempt])
        else:
            attempt.state = "failed"
            self._failed.append((self._retry, attempt))
        return True

    def _ack(self, attempt: Attempt) -> None:
        attempt.state = "done"
        self._done.append(attempt)

    def flush(self) -> None:
        """Tell the source what has ended, unless the connection is lost."""
        self.flush_acks()
        while self._failed and self.is_open:
            settle, attempt = self._failed[0]
            if attempt.state == "failed":  # and was not revoked
                settle(attempt)
            self._failed.popleft()
        if self._back and self.is_open:
            held = [delivery for delivery in self._back if self._source.holds(delivery)]
            if held:
                self._source.release(held)
            self._back.clear()

    def flush_acks(self) -> None:
        """Ack what is done, dead letters that are confirmed included."""
        while self.confirmed:
            attempt = self.confirmed.popleft()
            if attempt.state == "dead":
                self._count_dead_letter(attempt)
                self._ack(attempt)
        if not self._done or not self.is_open:
            return
        held = [attempt.delivery for attempt in self._done if self._source.holds(attempt.delivery)]
        if held:
            self._source.ack(held)
        self.counts.revoked += len(self._done) - len(held)
        self.attempts.end_done(self._done)
        self._done.clear()

    def _give_up(self, attempt: Attempt) -> None:
        """Write a dead letter; the ack follows when it is confirmed."""
        key, reason = attempt.delivery.key, attempt.reason
        self._logger.error("%s: gave up %s after attempt %d: %s", self._source.name, key, attempt.number, reason)
        if self._writer is not None:
            attempt.state = "dead"
            self._writer.write(attempt)
        else:
            attempt.state = "failed"
            self._failed.append((self._give_up_to_broker, attempt))

    def _give_up_to_broker(self, attempt: Attempt) -> None:
        if self._source.holds(attempt.delivery):
            self._source.give_up(attempt.delivery, str(attempt.reason))
            self._count_dead_letter(attempt)
        else:
            self.counts.revoked += 1
        self.attempts.end(attempt)

    def _count_dead_letter(self, attempt: Attempt) -> None:
        if self.on_dead_letter is not None:
            self.on_dead_letter(attempt)
        self.counts.dead_letters += 1

    def _retry(self, attempt: Attempt) -> None:
        if not self._source.holds(attempt.delivery):
            self.counts.revoked += 1
            self.attempts.end(attempt)
            return
        if self.is_stopping:
            self.release([attempt])
            return
        options = self._options
        delay_secs = backoff(attempt.tries, options.backoff_secs, options.backoff_secs_max)
        if self._source.retry(attempt.delivery, delay_secs):
            self._redelivers = True
            self.counts.retried += 1
            self.attempts.end(attempt)
        else:
            self.attempts.wait(attempt, delay_secs)
        self._logger.warning(
            "%s: attempt %d of %s failed, the next one is in %.3g s: %s",
            self._source.name,
            attempt.number,
            attempt.delivery.key,
            delay_secs,
            attempt.reason,
        )

    def renew_leases(self, now: float) -> None:
        """Renew the leases of all messages, if it is time."""
        lease_secs = self._source.lease_secs
        if lease_secs is None or now < self._renew_at:
            return
        self._renew_at = now + lease_secs / _RENEWALS
        lost = {id(each) for each in self._source.extend(self.attempts.deliveries())} if len(self.attempts) else set()
        if lost:
            self._logger.warning(
                "%s: the leases of %d messages were lost, and the broker delivers these again. Look what stopped this"
                " process, or choose a longer lease than %g s",
                self._source.name,
                len(lost),
                lease_secs,
            )
            self.revoked(lambda delivery: id(delivery) in lost)

    @property
    def renew_at(self) -> float | None:
        """When leases have to be renewed, on the monotonic clock."""
        return None if self._source.lease_secs is None else self._renew_at

    def reopened(self) -> None:
        """Forget what belonged to an earlier connection, and renew leases at once."""
        self.is_open = True
        self.suspects.reopened()
        self._renew_at = 0.0
        self.revoked(lambda delivery: not self._source.holds(delivery))

    def revoked(self, concerned: Callable[[Delivery], bool]) -> None:
        """Forget some deliveries; their outcomes no longer count."""
        for attempt in self.attempts.of(None, concerned):
            self.counts.revoked += 1
            if attempt.state == "done":
                self._done.remove(attempt)
            self._forget(attempt)

    def _forget(self, attempt: Attempt) -> None:
        """Remove an attempt that this consumer does not settle."""
        if self.attempts.end(attempt) and self._on_over is not None:
            self._on_over(attempt)

    def release(self, attempts: list[Attempt]) -> None:
        """Give attempts back to the broker, with the next `flush`."""
        for attempt in attempts:
            self._forget(attempt)
            self._back.append(attempt.delivery)
        self.counts.released += len(attempts)

    def release_rest(self) -> None:
        """Give back what is not done by the end."""
        left = [attempt for attempt in self.attempts.of(None) if attempt.state != "done"]
        if not left:
            return
        working = threads_at_work(left)
        self._logger.warning(
            "%s: %d messages, such as %s, were not done within %g s, and go back to the broker%s",
            self._source.name,
            len(left),
            left[0].delivery.key,
            self._options.drain_secs,
            f". Still at work, in pools for which the program waits: {'; '.join(working)}" if working else "",
        )
        self.release(left)
        self.flush()

    def stop_writing(self) -> None:
        """End the thread of dead letters."""
        if self._writer is not None:
            self._writer.stop()

    def forget_all(self) -> None:
        """Forget every attempt, without a word to the source."""
        if self._done:
            text = "%s: %d messages, such as %s, are done and could not be acked: the broker delivers them again"
            self._logger.warning(text, self._source.name, len(self._done), self._done[0].delivery.key)
        for attempt in self.attempts.of(None):
            self._forget(attempt)
        self._done.clear()
