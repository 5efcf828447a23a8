"""The intake: the I/O thread that owns a source, from delivery to ack, retry or dead letter.

The thread polls the source while there is room, hands deliveries to `take`, and settles them when their owner says how
they ended. It keeps messages that wait for a retry, renews leases, connects again after a loss, and gives back at the
end what is not done. It knows nothing of trees: its owner, a `Consumer` or a `SourceSpout`, posts items to its inbox,
and turns them into outcomes on the I/O thread.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from acker.connectors.attempts import Attempt
from acker.connectors.options import IntakeOptions
from acker.connectors.settlement import Settlement
from acker.connectors.source import Delivery, Source
from acker.connectors.stopping import Stopping
from acker.errors import ConnectionLostError, RuntimeStateError, SourceError, exception_text
from acker.observe.backoff import backoff
from acker.observe.reasons import Reason

# While plenty of messages wait to be handed out, turns are at least so far apart.
_GATHER_SECS: Final = 0.001
_RECONNECT_SECS: Final = 0.5
_RECONNECT_SECS_MAX: Final = 5.0
# The longest wait of the I/O thread: signal handlers and destructors cannot end a poll.
_WAIT_SECS_MAX: Final = 0.5
_RESCUE_SECS: Final = 1.0

# What the owner makes of the items of the inbox: it calls `Intake.end` and returns the seconds until its next turn.
Turn = Callable[[list[Any]], float]


class Intake:
    """Runs a source on its own thread.

    Parameters
    ----------
    source : Source
    options : IntakeOptions
    logger : logging.Logger
    turn : callable
        Called on the I/O thread with the items of the inbox, again and again.
    on_over : callable, optional
        Called on the I/O thread with each attempt that somebody works on and whose outcome no longer counts.

    Attributes
    ----------
    attempts : AttemptTable
    counts : IntakeCounts
    error : BaseException or None
        What ended the intake: a fault of the source, or a pool that broke.
    """

    def __init__(
        self,
        source: Source,
        options: IntakeOptions,
        logger: logging.Logger,
        turn: Turn,
        on_over: Callable[[Attempt], None] | None = None,
    ) -> None:
        self.source = source
        self.options = options
        self.settlement = Settlement(source, options, logger, self.wake, on_over)
        self.revoked = self.settlement.revoked  # see `SourceEvents`
        self.attempts = self.settlement.attempts
        self.counts = self.settlement.counts
        self.error: BaseException | None = None
        self._logger = logger
        self._turn = turn
        self._inbox: deque[Any] = deque()
        # Puts an item into the inbox, for some later turn.
        self.post_quietly: Callable[[Any], None] = self._inbox.append
        self._signal: queue.SimpleQueue[None] = queue.SimpleQueue()
        # Each is set before the other one is looked at, so no item waits while this thread does. Without the GIL, a
        # thread may see them in another order: then an item waits for at most `_WAIT_SECS_MAX`.
        self._is_idle = self._is_urgent = False
        self._stopping = Stopping(source.name, options.drain_secs, logger)
        self._thread: threading.Thread | None = None
        # Below this line: of the I/O thread alone.
        self._is_finishing = self._is_failed = False
        self._rescue_at = 0.0

    # ---- any thread -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the I/O thread.

        Raises
        ------
        RuntimeStateError
            It was started before.
        """
        if self._thread is not None:
            raise RuntimeStateError(f"{self.source.name}: this was started before; make a new one")
        self._thread = threading.Thread(target=self._run, name=f"acker {self.source.name}", daemon=True)
        self._thread.start()

    def end(self, message_id: int, reason: Reason | None, *, is_final: bool = False) -> bool:
        """Settle one attempt, within a turn; see `Settlement.end`."""
        return self.settlement.end(message_id, reason, is_final=is_final)

    def take(self, timeout_secs: float | None = None) -> Attempt | None:
        """Return the next attempt to work on; None at the end.

        Raises
        ------
        SourceError, BrokenExecutor
            What ended the intake.
        queue.Empty
            Nothing came within `timeout_secs`.
        """
        attempt = self.attempts.take(timeout_secs)
        if attempt is None and self.error is not None:
            raise self.error
        return attempt

    def post(self, item: Any) -> None:
        """Put an item into the inbox, for the owner's next turn."""
        self._inbox.append(item)
        self.wake()

    def wake(self) -> None:
        """Let the I/O thread take its next turn at once."""
        self._is_urgent = True
        if self._is_idle:
            self._is_idle = False
            self._signal.put(None)
            self.source.wake()

    def post_unlocked(self, item: Any) -> None:
        """As `post`, but takes no lock, for destructors; the item may wait for a poll to end."""
        self._inbox.append(item)
        self._is_urgent = True
        self._signal.put(None)

    def stop(self) -> None:
        """Take no new messages; signal handlers may call it, too.

        Messages that are not handed out go back to the broker. Open ones may end until the time to drain is over.
        """
        self._stopping.ask()
        self.attempts.is_closed = True
        self._signal.put(None)
        # A handler runs on the main thread, maybe while this thread is inside `wake`.
        if threading.current_thread() is not threading.main_thread():
            self.wake()

    def break_off(self, fault: BaseException) -> None:
        """Stop for a fault that `take` shall raise, unless this stops already."""
        if not self.is_stopping:
            self.error = fault
            self._logger.error("%s: this ends, and what is open goes back: %s", self.source.name, exception_text(fault))
            self.stop()

    def join(self) -> None:
        """Wait for the end of the I/O thread after `stop`; no longer than `Stopping` lets it take."""
        self.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._stopping.wait_for(self._thread)

    @property
    def is_alive(self) -> bool:
        """Whether the I/O thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called, or the source failed."""
        return self._stopping.is_asked

    # ---- the I/O thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        failures = 0
        try:
            while not self._is_drained():
                try:
                    if not self.settlement.is_open:
                        self.source.open(self, self.options.open_max)
                        self.settlement.reopened()
                        if failures:
                            self._logger.info("%s: connected again", self.source.name)
                    self._step()
                    failures = 0
                except ConnectionLostError as lost:
                    failures += 1
                    self._lose(lost, backoff(failures, _RECONNECT_SECS, _RECONNECT_SECS_MAX))
        except BaseException as fault:  # noqa: BLE001 - it is raised where messages are taken
            self._fail(fault)
        finally:
            self._end()

    def _step(self) -> None:
        """Settle, replay, renew leases, and poll once."""
        if self.attempts.ready_count >= self.options.plenty:
            # Nobody waits for this thread. A turn for each message would take the interpreter from those who work.
            time.sleep(_GATHER_SECS)
        due_secs = self._turn_owner()
        self.settlement.flush()
        now = time.monotonic()
        self.counts.retried += self.attempts.replay(now)
        self.settlement.renew_leases(now)
        if now >= self._rescue_at:
            self._rescue_at = now + _RESCUE_SECS
            self.attempts.rescue()
        room = 0 if self.is_stopping else self.settlement.room
        wait_secs = self._wait_secs(now, due_secs)
        if room == 0:
            self.counts.polls += 1
            self._accept(self.source.poll(0, 0.0))
            self.settlement.suspects.hand_out()  # not before the acks of what was done are sent
            self._wait(wait_secs if len(self.attempts) else 0.0)  # none: a stop is over, and nobody wakes this
            return
        self._is_idle = True
        if self._is_urgent or self.settlement.confirmed:
            wait_secs = 0.0
        self.counts.polls += 1
        deliveries = self.source.poll(room, wait_secs)
        self._is_idle = False
        self._clear_signal()
        self._accept(deliveries)

    def _wait_secs(self, now: float, due_secs: float) -> float:
        """Return for how long this thread may wait."""
        dues = [due - now for due in (self.attempts.next_replay, self.settlement.renew_at) if due is not None]
        return max(0.0, min(due_secs, self.source.wait_secs_max, _WAIT_SECS_MAX, *dues))

    def _wait(self, secs: float) -> None:
        """Wait until another thread posts something, or the time is over."""
        self._is_idle = True
        if not (self._is_urgent or self.settlement.confirmed) and secs > 0:
            with contextlib.suppress(queue.Empty):
                self._signal.get(timeout=secs)
        self._is_idle = False
        self._clear_signal()

    def _clear_signal(self) -> None:
        while not self._signal.empty():
            self._signal.get()

    def _accept(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self.settlement.accept(delivery)
        if self.attempts.hand_out_withheld() or deliveries:
            self.attempts.notify()

    def _turn_owner(self) -> float:
        """Let the owner look at the inbox; return the seconds until its next turn."""
        self._is_urgent = False
        return self._turn([self._inbox.popleft() for _ in range(len(self._inbox))])

    # ---- called by the source, on the I/O thread --------------------------------------------------------------------

    def finish(self, concerned: Callable[[Delivery], bool], secs: float) -> None:
        """Let the open messages of some deliveries end; see `SourceEvents`."""
        if self._is_finishing:
            return
        self._is_finishing = True
        # Work that begins now would be done again by whoever gets these messages.
        self.attempts.withhold(concerned)
        deadline = time.monotonic() + secs
        try:
            while True:
                due_secs = self._turn_owner()
                self.settlement.flush_acks()
                now = time.monotonic()
                self.settlement.renew_leases(now)
                if now >= deadline or not self.attempts.of({"open", "dead"}, concerned):
                    break
                self._wait(min(deadline - now, max(self._wait_secs(now, due_secs), 0.001)))
        finally:
            self._is_finishing = False

    # ---- losses, and the end ----------------------------------------------------------------------------------------

    def _lose(self, lost: ConnectionLostError, wait_secs: float) -> None:
        self._is_idle = self.settlement.is_open = False
        self.counts.reconnects += 1
        self._logger.warning("%s: no connection, next attempt in %.3g s: %s", self.source.name, wait_secs, lost)
        self.source.close()
        # What a closed connection held, the broker delivers again.
        self.revoked(lambda delivery: not self.source.holds(delivery))
        deadline = time.monotonic() + wait_secs
        # Trees end and time out meanwhile. Their acks wait.
        while not self._is_drained() and (left_secs := deadline - time.monotonic()) > 0:
            self._wait(min(left_secs, self._turn_owner(), _WAIT_SECS_MAX))

    def _is_drained(self) -> bool:
        """Return whether the work is over: after `stop`, if nothing is open or the time to drain is up."""
        if not self.is_stopping:
            return False
        if not self.settlement.is_stopping:
            self.settlement.is_stopping = True
            self.attempts.close()
        self.settlement.release(self.attempts.of({"ready", "withheld", "suspect", "waiting"}))
        left = self.attempts.of({"open", "dead", "done"})
        return not left or self._stopping.is_over(left)

    def _fail(self, fault: BaseException) -> None:
        self.error = self.error or fault
        self._stopping.ask()
        self._is_failed = self.settlement.is_stopping = True
        if isinstance(fault, SourceError):
            self._logger.error("%s: %s", self.source.name, fault)
        else:
            self._logger.error("%s: the I/O thread failed", self.source.name, exc_info=fault)

    def _end(self) -> None:
        """Give back what is left, and close everything."""
        try:
            self.settlement.stop_writing()
            if not self._is_failed:
                self._turn_owner()
                self.settlement.flush()
                self.settlement.release_rest()
        except ConnectionLostError as lost:
            self._logger.warning("%s: no connection at the end: %s", self.source.name, lost)
        except BaseException as fault:  # noqa: BLE001 - it is raised where messages are taken
            self._fail(fault)
        finally:
            self._close()

    def _close(self) -> None:
        try:
            self.settlement.forget_all()
            self.source.close()
        except BaseException as fault:  # noqa: BLE001 - as above
            self._fail(fault)
        finally:
            self._stopping.ask()
            self.attempts.close()
