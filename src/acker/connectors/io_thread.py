"""The I/O thread of a source: it moves deliveries into the message store, and acks, retries and leases to the broker.

The thread polls the source while the store has room, and tells the source what the store has for it. It renews leases,
connects again after a loss, and gives back at the end what is not done. It knows nothing of trees: a `Consumer` or a
`SourceSpout` has an inbox of its own, wakes this thread, and takes in a turn on it what has come.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from acker._handles import WakeMark
from acker.connectors.attempts import Attempt, log_fields
from acker.connectors.dead_letters import DeadLetterWriter
from acker.connectors.message_store import MessageStore
from acker.connectors.options import BROKER, MessageOptions
from acker.connectors.source import Delivery, Silence, Source
from acker.connectors.stopping import Stopping
from acker.errors import ArgumentValueError, ConnectionLostError, RuntimeStateError, SourceError, exception_text
from acker.observe.backoff import backoff

if TYPE_CHECKING:
    from acker.connectors.reports import Reporter

# While messages wait to be handed out, and were plenty, turns are so far apart.
_GATHER_SECS: Final = 0.001
_RECONNECT_SECS: Final = 0.5
_RECONNECT_SECS_MAX: Final = 5.0
# The longest wait of the I/O thread: signal handlers and destructors cannot end a poll.
_WAIT_SECS_MAX: Final = 0.5
_RESCUE_SECS: Final = 1.0
# How often leases are renewed within their time.
_RENEWALS: Final = 3

# Ends attempts in the store, and returns the seconds until its next turn.
Turn = Callable[[], float]


class IoThread:
    """The thread that alone uses a source, and moves messages between it and their store.

    Parameters
    ----------
    source : Source
    store : MessageStore
        The thread closes it at its end.
    options : MessageOptions
    logger : logging.Logger
    turn : callable
        Called on this thread, again and again.
    reporter : Reporter, optional
        Reports the ends of messages that are jobs of trees elsewhere.
    mark : WakeMark, optional
        Says whether this thread sleeps.

    Attributes
    ----------
    polls, reconnects : int
        How often it polled the source, and how often it lost the connection.
    turned_at : float
        When it last took a turn, on the monotonic clock.
    away : (float, str) or None
        While the source cannot be reached: since when, by the monotonic clock in seconds, and the last error.

    Raises
    ------
    ArgumentValueError
        Dead letters are to stay with a broker that has no place for them, or the limits of attempts contradict each
        other.
    """

    def __init__(
        self,
        source: Source,
        store: MessageStore,
        options: MessageOptions,
        logger: logging.Logger,
        turn: Turn,
        reporter: Reporter | None = None,
        mark: WakeMark | None = None,
    ) -> None:
        if options.dead_letters == BROKER and not source.can_give_up:
            raise ArgumentValueError(
                f"dead_letters: {source.name} has no place for dead letters of its own; set a publisher, such as"
                " DeadLetterFile('dead-letters.jsonl')"
            )
        if source.redelivers and (error := options.deliveries_error):
            raise ArgumentValueError(f"{source.name}: {error}")
        self.polls = self.reconnects = 0
        self.turned_at = time.monotonic()
        self.away: tuple[float, str] | None = None
        self._source = source
        self._wakes_poll = source.wait_secs_max > Source.wait_secs_max
        self._store = store
        self._options = options
        self._logger = logger
        self._turn = turn
        self._signal: queue.SimpleQueue[None] = queue.SimpleQueue()
        # Idle or urgent: each is set before the other one is looked at, so nothing waits while this thread sleeps.
        # Without the GIL, a thread may see them in another order: then it waits for at most `_WAIT_SECS_MAX`.
        self._mark = WakeMark() if mark is None else mark
        self._mark.wake = self.wake
        self._stopping = Stopping(source.name, options.drain_secs, logger)
        publisher = options.publisher
        self._writer = (
            None
            if publisher is None
            else DeadLetterWriter(publisher, source.name, source.origin, self._confirm, logger)
        )
        self._reporter = reporter
        self._thread: threading.Thread | None = None
        # Below this line: of the I/O thread alone.
        self._is_connected = self._is_finishing = self._is_failed = False
        self._has_released = False  # on this connection
        self._rescue_at = self._renew_at = 0.0
        self._is_until_empty = False
        self._silence = Silence()
        self._retry_at = 0.0  # when the broker has tried again what it tries itself

    # ---- any thread -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread.

        Raises
        ------
        RuntimeStateError, ForkedError
            It was started before, or another consumer uses the source.
        """
        if self._thread is not None:
            raise RuntimeStateError(f"{self._source.name}: this was started before; make a new one")
        self._source.reserve()
        thread = self._thread = threading.Thread(target=self._run, name=f"acker {self._source.name}", daemon=True)
        try:
            thread.start()
        except BaseException:
            if not thread.is_alive():  # no thread could be had
                self._source.free()
            raise

    def wake(self) -> None:
        """Let the thread take its next turn at once."""
        self._mark.is_urgent = True
        if self._mark.is_idle:
            self._mark.is_idle = False
            self._signal.put(None)
            self._source.wake()

    def wake_unlocked(self) -> None:
        """As `wake`, but takes no lock, for destructors; a poll may end first."""
        self._mark.is_urgent = True
        self._signal.put(None)

    def stop(self) -> None:
        """Take no new messages; signal handlers may call it, too.

        Messages that are not handed out go back to the broker. Open ones may end until the time to drain is over.
        """
        self._stopping.begin()
        self._store.stop_handing_out()
        self._signal.put(None)
        # A handler runs on the main thread, maybe while this thread is inside `wake`.
        if threading.current_thread() is not threading.main_thread():
            self.wake()

    def stop_when_empty(self) -> None:
        """Stop as soon as no message is in this process, and none has come for a second; call it before `start`."""
        self._is_until_empty = True

    def break_off(self, error: BaseException) -> None:
        """Stop for an error that is to be raised where messages are taken, unless this stops already."""
        if not self.is_stopping:
            self._store.stop_handing_out(error)
            text = "%s: this ends, and what is open goes back: %s"
            self._logger.error(text, self._source.name, exception_text(error))
            self.stop()

    def join(self) -> None:
        """Wait for the end of the thread after `stop`; no longer than `Stopping` lets it take."""
        self.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._stopping.wait_for(self._thread, self._count_unacked)

    def _count_unacked(self) -> int:
        """Note and return how many messages are done and were not acked, while this thread hangs."""
        count = self._store.counts.unacked = self._source.count_unacked(self._store.unacked())
        return count

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called, or the source failed."""
        return self._stopping.has_begun

    def _confirm(self, attempt: Attempt) -> None:
        self._store.confirm(attempt)
        self.wake()

    # ---- the loop ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        failures = 0
        try:
            while not self._is_drained():
                try:
                    if not self._is_connected:
                        self._connect()
                        if failures:
                            self._logger.info("%s: connected again", self._source.name)
                    self._step()
                    failures, self.away = 0, None
                except ConnectionLostError as lost:
                    failures += 1
                    self._lose(lost, backoff(failures, _RECONNECT_SECS, _RECONNECT_SECS_MAX))
        except BaseException as error:  # noqa: BLE001 - it is raised where messages are taken
            self._fail(error)
        finally:
            self._end()

    def _connect(self) -> None:
        self._source.open(self, self._options.open_max)
        self._is_connected, self._has_released = True, False
        self._store.connected()
        self._renew_at = 0.0
        self._silence.begin()
        self.revoked(lambda delivery: not self._source.holds(delivery))

    def _step(self) -> None:
        """Settle, retry, renew leases, and poll once."""
        self._store.gather(_GATHER_SECS)
        due_secs = self._take_turn()
        self._tell_source()
        now = time.monotonic()
        self._store.retry_due(now)
        self._store.hand_out_due(now)
        self._renew_leases(now)
        if now >= self._rescue_at:
            self._rescue_at = now + _RESCUE_SECS
            self._store.rescue()
        room = 0 if self.is_stopping else self._store.room
        wait_secs = self._wait_secs(now, due_secs)
        if room == 0:
            self._poll(0, 0.0)
            self._store.hand_out_suspect()  # not before the acks of what was done are sent
            self._wait(wait_secs if len(self._store) else 0.0)  # none: a stop is over, and nobody wakes this
            return
        if self._store.holds_back and not self._wakes_poll:
            # What lets such a message go on cannot end a wait in the client, and for Redis that may take 0.1 s.
            self._poll(room, 0.0)
            self._wait(wait_secs)
            return
        self._mark.is_idle = True
        self._poll(room, 0.0 if self._mark.is_urgent or self._store.has_confirmed else wait_secs)

    def _poll(self, room: int, wait_secs: float) -> None:
        """Move what the source has into the store, at most `room` deliveries."""
        self.polls += 1
        deliveries = self._source.poll(room, wait_secs)
        if room:
            self._end_wait()
        self._store.accept(deliveries)
        self._hand_on()
        if self._is_until_empty:
            self._stop_if_empty()

    def _stop_if_empty(self) -> None:
        if len(self._store) or not self._source.is_receiving or time.monotonic() < self._retry_at:
            self._silence.begin()
        elif self._silence.has_lasted() and not self.is_stopping:
            self._logger.info("%s: empty, so this stops", self._source.name)
            self.stop()

    def _wait_secs(self, now: float, due_secs: float) -> float:
        """Return for how long this thread may wait."""
        renew_at = None if self._source.lease_secs is None else self._renew_at
        dues = [due - now for due in (self._store.next_retry, renew_at) if due is not None]
        return max(0.0, min(due_secs, self._source.wait_secs_max, _WAIT_SECS_MAX, self._store.pace_secs(now), *dues))

    def _wait(self, secs: float) -> None:
        """Wait until another thread posts something, or the time is over."""
        self._mark.is_idle = True
        if not (self._mark.is_urgent or self._store.has_confirmed) and secs > 0:
            with contextlib.suppress(queue.Empty):
                self._signal.get(timeout=secs)
        self._end_wait()

    def _end_wait(self) -> None:
        self._mark.is_idle = False
        while not self._signal.empty():
            self._signal.get()

    def _take_turn(self) -> float:
        """Let the owner look at its inbox; return the seconds until its next turn."""
        self.turned_at = time.monotonic()
        self._mark.is_urgent = False
        due_secs = self._turn()
        self._hand_on()
        return due_secs

    # ---- from the store to the source -------------------------------------------------------------------------------

    def _tell_source(self) -> None:
        """Tell the source what has ended, unless the connection is lost."""
        self._send_acks()
        if not self._is_connected:
            return
        for attempt in self._store.failed():
            self._tell_failure(attempt)
        if self._store.is_releasing:
            self._release()

    def _release(self) -> None:
        """Give messages back. The first call tells the source that the end is near, even if there are none."""
        held = self._source.held(self._store.given_back())
        if held or not self._has_released:
            self._source.release(held)
            self._has_released = True
        self._store.went_back()

    def _send_acks(self) -> None:
        done = self._store.done()
        self._hand_on()  # a job of which the dead letter is confirmed has to be reported
        if not done or not self._is_connected:
            return
        held = self._source.held(done)
        if held:
            self._source.ack(held)
        self._store.acked(len(held))

    def _tell_failure(self, attempt: Attempt) -> None:
        """Ask for a retry of an attempt that failed, or let the broker keep its dead letter."""
        if not self._source.holds(attempt.delivery):
            self._store.lost(attempt)
        elif attempt.state == "given up":
            self._source.give_up(attempt.delivery, str(attempt.reason))
            self._store.gave_up(attempt)
        elif self._store.is_releasing:
            self._store.release([attempt])
        else:
            self._retry(attempt)

    def _retry(self, attempt: Attempt) -> None:
        delay_secs = self._store.retry_delay_secs(attempt)
        # What waits behind it in this process must not go on before it.
        if not self._store.keeps_order and self._source.retry(attempt.delivery, delay_secs):
            self._store.retried(attempt)
            # SQS counts in whole seconds.
            self._retry_at = max(self._retry_at, time.monotonic() + math.ceil(delay_secs))
        else:
            self._store.wait(attempt, delay_secs)
        self._logger.warning(
            "%s: attempt %d of %s failed, the next one is in %.3g s: %s",
            self._source.name,
            attempt.number,
            attempt.delivery.key,
            delay_secs,
            attempt.reason,
            extra=log_fields(attempt, self._source.name),
        )

    def _hand_on(self) -> None:
        """Let other threads write dead letters, and report the ends of jobs."""
        if self._writer is not None:
            for attempt in self._store.letters():
                self._writer.write(attempt)
        if self._reporter is not None:
            for attempt in self._store.reports():
                self._reporter.report(attempt, self._confirm)

    def _renew_leases(self, now: float) -> None:
        """Renew the leases of all messages, if it is time."""
        lease_secs = self._source.lease_secs
        if lease_secs is None or now < self._renew_at:
            return
        self._renew_at = now + lease_secs / _RENEWALS
        lost = {id(each) for each in self._source.extend(self._store.deliveries())} if len(self._store) else set()
        if lost:
            self._logger.warning(
                "%s: the leases of %d messages were lost, and the broker delivers these again. Look what stopped this"
                " process, or choose a longer lease than %g s",
                self._source.name,
                len(lost),
                lease_secs,
            )
            self.revoked(lambda delivery: id(delivery) in lost)

    # ---- called by the source, on this thread; see `SourceEvents` ---------------------------------------------------

    def revoked(self, concerned: Callable[[Delivery], bool]) -> None:
        """Forget some deliveries; their outcomes no longer count."""
        self._store.revoke(concerned)

    def finish(self, concerned: Callable[[Delivery], bool], secs: float) -> None:
        """Let the open messages of some deliveries end."""
        if self._is_finishing:
            return
        self._is_finishing = True
        # Work that begins now would be done again by whoever gets these messages.
        self._store.withhold(concerned)
        deadline = time.monotonic() + secs
        try:
            while True:
                due_secs = self._take_turn()
                self._send_acks()
                now = time.monotonic()
                self._renew_leases(now)
                if now >= deadline or not self._store.of({"open", "dead", "reporting"}, concerned):
                    break
                self._wait(min(deadline - now, max(self._wait_secs(now, due_secs), 0.001)))
        finally:
            self._is_finishing = False

    # ---- losses, and the end ----------------------------------------------------------------------------------------

    def _lose(self, lost: ConnectionLostError, wait_secs: float) -> None:
        self._mark.is_idle = self._is_connected = False
        self.reconnects += 1
        self.away = (time.monotonic() if self.away is None else self.away[0], exception_text(lost))
        why = str(lost).removeprefix(f"{self._source.name}: ")
        self._logger.warning("%s: no connection, next attempt in %.3g s: %s", self._source.name, wait_secs, why)
        self._source.close()
        # The broker delivers again all that the closed connection held.
        self.revoked(lambda delivery: not self._source.holds(delivery))
        deadline = time.monotonic() + wait_secs
        # Trees end and time out meanwhile, and letters are confirmed, which would end each wait. Their acks wait.
        while not self._is_drained() and (left_secs := deadline - time.monotonic()) > 0:
            due_secs = self._take_turn()
            self._send_acks()
            self._wait(min(left_secs, due_secs, _WAIT_SECS_MAX))

    def _is_drained(self) -> bool:
        """Return whether the work is over: after `stop`, if nothing is open or the time to drain is up."""
        if not self.is_stopping:
            return False
        if not self._store.is_releasing:
            self._store.release_failures()
            self._store.close()
        self._store.release(self._store.of({"ready", "withheld", "suspect", "queued", "waiting"}))
        left = self._store.of({"open", "dead", "reporting", "done"})
        return not left or self._stopping.is_over(left)

    def _fail(self, error: BaseException) -> None:
        self._store.release_failures(error)
        self._stopping.begin()
        self._is_failed = True
        if isinstance(error, SourceError):
            self._logger.error("%s: %s", self._source.name, error)
        else:
            self._logger.error("%s: the I/O thread failed", self._source.name, exc_info=error)

    def _end(self) -> None:
        """Give back what is left, and close everything."""
        try:
            if self._writer is not None:
                self._writer.stop()
            if self._reporter is not None:
                self._reporter.stop()
            if not self._is_failed:
                self._take_turn()
                self._tell_source()
                self._release_rest()
        except ConnectionLostError as lost:
            self._logger.warning("%s: no connection at the end: %s", self._source.name, lost)
        except BaseException as error:  # noqa: BLE001 - it is raised where messages are taken
            self._fail(error)
        finally:
            self._close()

    def _release_rest(self) -> None:
        """Give back what is not done by the end."""
        left = [attempt for attempt in self._store.of(None) if attempt.state != "done"]
        if not left:
            return
        self._logger.warning(
            "%s: %d messages, such as %s, were not done within %g s, and go back to the broker",
            self._source.name,
            len(left),
            left[0].delivery.key,
            self._options.drain_secs,
        )
        self._store.release(left)
        self._tell_source()

    def _close(self) -> None:
        try:
            done = self._store.unacked()
            self._store.forget_all()
            self._source.close()
            self._store.counts.unacked = self._source.count_unacked(done)
        except BaseException as error:  # noqa: BLE001 - as above
            self._fail(error)
        finally:
            self._source.free()
            self._stopping.begin()
            self._store.close()
