"""The messages of a source that are in this process, each with its state, from delivery until the source knows its end.

`acker.connectors.attempts` draws the states.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import math
import queue
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from acker._handles import ReadyAttempts, deliveries_to_ack, finish, forget, offer_first, settled
from acker.connectors.attempts import Attempt, MessageCounts, State, log_fields
from acker.connectors.options import BROKER, MessageOptions
from acker.connectors.source import Delivery
from acker.connectors.suspects import Suspects
from acker.errors import exception_text
from acker.observe.backoff import backoff
from acker.observe.failures import FailureLog
from acker.observe.latencies import LatencyRecorder
from acker.observe.reasons import Reason, ReasonKind

if TYPE_CHECKING:
    from acker._engine.completions import Completions
    from acker.connectors.order import KeyOrder, Pace
    from acker.remote.jobs import Job

# The most deliveries of one poll, so that acks never wait for long.
_POLL_MAX: Final = 500
# Failures that are not the message's fault: it goes back to the broker, and its consumer stops.
_NOT_COUNTED: Final = frozenset({ReasonKind.RESTART, ReasonKind.SHUTDOWN})
# So many failures are remembered, for dead letters of messages that the broker delivers too often.
_REASONS_MAX: Final = 1000
# The longest wait of a thread that wants a message. If another thread receives a signal, as after SIGSTOP and SIGCONT,
# nothing interrupts the wait of the main thread, and the handler runs only when the wait ends. And an exception of a
# handler can swallow the item that was to wake the thread up.
_LOOK_SECS: Final = 0.5


class MessageStore:
    """Owns the attempts at messages: which can be handed out, which are open, which wait, and what the source is to do.

    It knows neither source nor trees. The I/O thread puts deliveries in, says how open attempts ended, and takes out
    what the source is to be told; an item stays until the call that tells it has returned, so a lost connection in
    between loses none.

    Any thread may call `take`, `stop_handing_out`, `listen`, `confirm`, `oldest` and `len`, and read the attributes.
    All else belongs to the I/O thread.

    Parameters
    ----------
    name : str
        The source's, for logs.
    options : MessageOptions
    logger : logging.Logger
    redelivers : bool
        Whether the source delivers failed messages again itself, and counts their attempts.
    on_over : callable, optional
        Called with each attempt that somebody works on and whose outcome no longer counts.
    on_dead_letter : callable, optional
        Called with each attempt whose dead letter has been written.
    failures : FailureLog, optional
        Where failures and dead letters are recorded, for the live page.
    order : KeyOrder, optional
    pace : Pace, optional
        When messages are handed out; by default as soon as possible.
    begin_job : callable, optional
        Returns a new execution of the job that a delivery is, or None.

    Attributes
    ----------
    name : str
    counts : MessageCounts
    latency : LatencyRecorder
        From handing out to the end of the tree.
    failures : FailureLog or None
    error : BaseException or None
        The error that `take` raises at the end.
    ready : ReadyAttempts
        Those that can be handed out; `take` waits for one.
    is_releasing : bool
        Whether attempts that fail go back to the broker, since the end is near.
    """

    def __init__(
        self,
        name: str,
        options: MessageOptions,
        logger: logging.Logger,
        *,
        redelivers: bool = False,
        on_over: Callable[[Attempt], None] | None = None,
        on_dead_letter: Callable[[Attempt], None] | None = None,
        failures: FailureLog | None = None,
        order: KeyOrder | None = None,
        pace: Pace | None = None,
        begin_job: Callable[[Delivery], Job | None] | None = None,
    ) -> None:
        self.name = name
        self.counts = MessageCounts()
        self.latency = LatencyRecorder()
        self.failures = failures
        self.error: BaseException | None = None
        self.ready = ReadyAttempts()
        self.is_releasing = False
        self._options = options
        self._logger = logger
        self._redelivers = redelivers  # also set by the first retry that the broker takes, for sources that do not say
        self._on_over = on_over
        self._on_dead_letter = on_dead_letter
        self._ids = itertools.count(1)
        self._by_id: dict[int, Attempt] = {}
        self._is_gathering = False
        self._drained: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._listeners: set[Callable[[], object]] = set()
        self._suspects = Suspects(name, options, logger)
        self._withheld: list[Attempt] = []
        self._order = order
        self._pace = pace
        self._begin_job = begin_job
        self._paced: deque[Attempt] = deque()  # those that wait for their time
        self._waiting: list[tuple[float, int, Attempt]] = []  # a heap, by the end of the wait
        # For the I/O thread to take to the source, to the writer of dead letters, and to the reporter.
        self._done: list[Attempt] = []
        self._failed: deque[Attempt] = deque()
        self._letters: list[Attempt] = []
        self._confirmed: deque[Attempt] = deque()
        self._reports: list[Attempt] = []
        self._given_back: list[Delivery] = []
        # Why messages failed last, the latest failure at the end; by key and body, since a broker may use a key again.
        self._reasons: dict[tuple[str, int], Reason] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def is_closed(self) -> bool:
        """Whether nothing is handed out any more."""
        return self.ready.is_closed

    def record_failures(self) -> None:
        """Record failures and dead letters, for a live page that is asked for after the construction."""
        if self.failures is None:
            self.failures = FailureLog()

    # ---- any thread --------------------------------------------------------------------------------------------------

    def take(self, timeout_secs: float | None = None) -> Attempt | None:
        """Hand out the next attempt; None at the end.

        Raises
        ------
        queue.Empty
            Nothing came within `timeout_secs`.
        SourceError, BrokenExecutor
            `error`, at the end.
        """
        secs = _LOOK_SECS if timeout_secs is None else timeout_secs
        while not self.is_closed:
            if self._is_gathering and self.ready.empty():
                self._is_gathering = False
                self._drained.put(None)
            try:
                attempt = self.ready.get(secs > 0, secs)
            except queue.Empty:
                if timeout_secs is not None and not self.is_closed:
                    raise
                continue
            if attempt is None:
                self.ready.put(None)  # for the next one who asks
                break
            if attempt.hand_out(time.monotonic_ns()):
                return attempt
        if self.error is not None:
            raise self.error
        return None

    def stop_handing_out(self, error: BaseException | None = None) -> None:
        """Let `take` return None, or raise an error; wake event loops, and no threads, as signal handlers call it."""
        self.error = self.error or error
        self.ready.is_closed = True
        self._notify()

    def listen(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call a function when attempts became ready, and at the end; return a function that ends this."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def confirm(self, attempt: Attempt) -> None:
        """Take note that a dead letter or a report is confirmed; its ack follows."""
        self._confirmed.append(attempt)

    def unacked(self) -> list[Delivery]:
        """Return the deliveries that are done and not passed to the source, or not taken by it.

        Also of trees that ended while the I/O thread waits for the broker, and so looks at none.
        """
        copied = list(self._by_id.copy().values())
        return [each.delivery for each in copied if each.state == "done" or (each.state == "open" and _is_done(each))]

    @property
    def retrying(self) -> int:
        """How many messages have failed, and wait for another attempt in this process."""
        return len(self._waiting)

    def oldest(self, most: int | None = None) -> list[Attempt]:
        """Return the attempts that were handed out and have not ended, the oldest first."""
        copied = list(self._by_id.copy().values())
        found = sorted((each for each in copied if each.state == "open"), key=lambda attempt: attempt.since_ns)
        return found[:most]

    # ---- deliveries, and what is handed out --------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many further deliveries the source may return."""
        if self._suspects:
            return 0
        return min(1 if self._suspects.is_careful else _POLL_MAX, max(0, self._options.open_max - len(self)))

    def gather(self, secs: float) -> None:
        """If plenty of messages can be handed out, wait until somebody finds none, at most so long.

        Nobody waits for the I/O thread meanwhile. A turn for each message would take the interpreter from those who
        work.
        """
        if self.ready.qsize() < self._options.plenty:
            return
        while not self._drained.empty():
            self._drained.get()
        self._is_gathering = True
        with contextlib.suppress(queue.Empty):
            self._drained.get(timeout=secs)
        self._is_gathering = False

    def accept(self, deliveries: Sequence[Delivery]) -> None:
        """Take deliveries into the process, and hand out again what a rebalance withheld and did not take away."""
        self.counts.delivered += len(deliveries)
        has_withheld = self._hand_out_withheld()  # first, as they came first
        now_ns, place = time.monotonic_ns(), 0
        is_free = self._order is None and self._pace is None and self._begin_job is None
        while place < len(deliveries):
            if is_free and not self._suspects.is_alert:
                place = offer_first(deliveries, place, self._by_id, self._ids, now_ns, self.ready.put)
            if place < len(deliveries):
                self._accept(deliveries[place])
                place += 1
        if has_withheld or deliveries:
            self._notify()

    def _accept(self, delivery: Delivery) -> None:
        """Take a delivery that the broker has made before, or one after such a one."""
        if not isinstance(delivery, Delivery):
            raise TypeError(f"{self.name}: poll returned {delivery!r:.100}, expected a Delivery")
        self.counts.redelivered += delivery.attempt > 1
        tries = delivery.attempt if self._redelivers else 1
        most = self._options.delivered_max
        if most is not None and delivery.attempt > most:
            # The broker counts attempts that died with their process. So nobody may take this one.
            attempt = self._add(delivery, delivery.attempt, tries, "failed")
            text = f"this is its delivery {delivery.attempt} by the broker, and deliveries_max is {most}"
            if (last := self._reasons.get(_name_of(delivery))) is not None:
                text += f"; its last failure in this process: {last}"
            attempt.reason = Reason(ReasonKind.FAILED, exception=text, attempt=delivery.attempt)
            self._give_up(attempt)
        else:
            attempt = self._add(delivery, delivery.attempt, tries, "queued")
            self._line_up(attempt, is_suspect=self._suspects.suspect(delivery))

    def _add(self, delivery: Delivery, number: int, tries: int, state: State) -> Attempt:
        attempt = Attempt(next(self._ids), delivery, number, tries, time.monotonic_ns(), state)
        if self._begin_job is not None:
            attempt.job = self._begin_job(delivery)
        self._by_id[attempt.message_id] = attempt
        return attempt

    def _line_up(self, attempt: Attempt, *, is_suspect: bool = False) -> None:
        """Let an attempt be handed out, or wait behind another message of its key."""
        attempt.state = "queued"
        if self._order is not None:
            try:
                may_go_on = self._order.enter(attempt)
            except Exception as error:  # noqa: BLE001 - of the function of the user: it is the message's fault
                self._refuse_key(attempt, error)
                return
            if not may_go_on:
                return
        if is_suspect:
            self._suspects.hold(attempt)
        else:
            self._offer(attempt)

    def _refuse_key(self, attempt: Attempt, error: Exception) -> None:
        text = f"its key cannot be told: {exception_text(error)}"
        attempt.reason = Reason(ReasonKind.FAILED, exception=text, attempt=attempt.number)
        self._note_failure(attempt, attempt.reason)
        self._fail(attempt, is_final=True)

    def _offer(self, attempt: Attempt) -> None:
        """Hand out an attempt, as soon as the pace allows it."""
        if self._pace is not None:
            attempt.state = "queued"
            self._paced.append(attempt)
            return
        attempt.state = "ready"
        self.ready.put(attempt)

    def hand_out_due(self, now: float) -> None:
        """Hand out what the pace allows by now."""
        pace, offered = self._pace, False
        while self._paced and pace is not None:
            if self._paced[0].state != "queued":  # it went back, or is withheld
                self._paced.popleft()
                continue
            if not pace.allows(now, self.ready.qsize()):
                break
            attempt = self._paced.popleft()
            attempt.state = "ready"
            self.ready.put(attempt)
            offered = True
        if offered:
            self._notify()

    def pace_secs(self, now: float) -> float:
        """Return after which time `hand_out_due` is to be called again; infinite if nothing waits for the pace."""
        return self._pace.wait_secs(now) if self._pace is not None and self._paced else math.inf

    @property
    def holds_back(self) -> bool:
        """Whether messages wait in this process for their time, or for others of their keys."""
        return bool(self._paced) or (self._order is not None and self._order.waiting > 0)

    @property
    def keeps_order(self) -> bool:
        """Whether messages wait for others of their key, so that these have to be tried again in this process."""
        return self._order is not None

    def _leave(self, attempts: Iterable[Attempt]) -> None:
        """Let what waits behind these messages of its keys go on: they are over."""
        if self._order is None:
            return
        went_on = False
        for attempt in attempts:
            following = self._order.leave(attempt)
            if following is not None:
                went_on = True
                if following.delivery.attempt >= self._options.suspect_from:
                    self._suspects.hold(following)
                else:
                    self._offer(following)
        if went_on:
            self._notify()

    def _notify(self) -> None:
        for listener in self._listeners.copy():
            try:
                listener()
            except RuntimeError:  # its event loop is closed
                self._listeners.discard(listener)

    def hand_out_suspect(self) -> None:
        """If nobody works on anything, hand out a message that may end its process."""
        if self._suspects.are_held() and not self._paced and not self.of({"ready", "open"}):
            self._offer(self._suspects.pick())
            self._notify()

    def withhold(self, concerned: Callable[[Delivery], bool]) -> None:
        """Hand out no attempts of some deliveries until the next `accept`."""
        for attempt in self.of({"ready", "queued"}, concerned):
            if attempt.withhold():
                self._withheld.append(attempt)

    def _hand_out_withheld(self) -> bool:
        found = [attempt for attempt in self._withheld if attempt.state == "withheld"]
        self._withheld.clear()
        for attempt in found:
            self._line_up(attempt)
        return bool(found)

    def rescue(self) -> None:
        """Offer attempts again that a thread has drawn and not handed out.

        An exception of a signal handler, such as `KeyboardInterrupt`, can come between the two.
        """
        drawn = self.of({"ready"}) if self.ready.empty() else []
        for attempt in drawn:
            self.ready.put(attempt)  # if it is there twice, the second one is skipped
        if drawn:
            self._notify()

    def close(self) -> None:
        """Let every `take`, from now on, return None, and wake those who wait."""
        self.ready.is_closed = True
        self.ready.put(None)
        self._notify()

    def release_failures(self, error: BaseException | None = None) -> None:
        """Let attempts that fail go back to the broker, since the end is near; it may be an error that ends this."""
        self.error = self.error or error
        self.is_releasing = True

    # ---- ends of attempts --------------------------------------------------------------------------------------------

    def open_attempt(self, message_id: int) -> Attempt | None:
        """Return an attempt that was handed out and has not ended."""
        attempt = self._by_id.get(message_id)
        return attempt if attempt is not None and attempt.state == "open" else None

    def settled(self, completions: Completions) -> tuple[list[Attempt], list[tuple[Attempt, Any, int]]]:
        """Return the open attempts whose trees were acked, for `end_done`; and the others whose trees ended.

        Those were not acked, or have to end a span or forget jobs; each comes with its tree and its outcome.
        """
        return settled(self._by_id, completions.message_id, completions.outcome)

    def end_done(self, attempts: list[Attempt]) -> None:
        """End attempts whose work is done. The I/O thread then acks them, those that are jobs after their reports."""
        if self._begin_job is not None:
            attempts = [attempt for attempt in attempts if not self._is_to_report(attempt)]
        finish(attempts, time.monotonic_ns(), self.latency.record_all)
        self._done += attempts
        self.counts.acked += len(attempts)
        self._leave(attempts)

    def end(
        self, message_id: int, reason: Reason | None, *, is_final: bool = False, retry_secs: float | None = None
    ) -> bool:
        """End an open attempt; return whether it was open. The I/O thread then tells the source.

        Parameters
        ----------
        message_id : int
        reason : Reason or None
            None: it is done.
        is_final : bool
            No further attempt can succeed.
        retry_secs : float, optional
            How long the next attempt waits, in place of the back-off.
        """
        attempt = self.open_attempt(message_id)
        if attempt is None:
            self.counts.late += 1
        elif reason is None:
            self.end_done([attempt])
        elif reason.kind in _NOT_COUNTED:
            # It goes back at the end. Now, the broker would deliver it here again, and count that.
            attempt.state = "withheld"
        else:
            attempt.reason = replace(reason, attempt=attempt.number)
            self._note_failure(attempt, attempt.reason)
            attempt.retry_secs = retry_secs
            self._fail(attempt, is_final=is_final)
        return attempt is not None

    def offer_again(self, attempt: Attempt, why: str | None) -> None:
        """End an open attempt that is to count for nothing, and hand it out again; it goes back if the end is near."""
        extra = log_fields(attempt, self.name, why)
        text = "%s: attempt %d of %s does not count, since its work was ended by %s"
        self._logger.info(text, self.name, attempt.number, attempt.delivery.key, why, extra=extra)
        if self.is_closed:
            attempt.state = "withheld"
            return
        self._end(attempt)
        again = self._add(attempt.delivery, attempt.number, attempt.tries, "ready")
        again.went_back = True
        again.lane = attempt.lane
        self._offer(again)
        self._notify()

    def _note_failure(self, attempt: Attempt, reason: Reason) -> None:
        if self._options.delivered_max is not None:
            self._reasons.pop(name := _name_of(attempt.delivery), None)
            self._reasons[name] = reason
            if len(self._reasons) > _REASONS_MAX:
                del self._reasons[next(iter(self._reasons))]
        if reason.kind is ReasonKind.TIMED_OUT:
            self.counts.timed_out += 1
        else:
            self.counts.failed += 1
        if self.failures is not None:
            elapsed_ms = (time.monotonic_ns() - attempt.since_ns) // 1_000_000
            self.failures.record(self.name, 1, attempt.delivery.key, reason, elapsed_ms, attempt.message_id)

    def _fail(self, attempt: Attempt, *, is_final: bool) -> None:
        most = self._options.attempts_max
        is_last = is_final or (most is not None and attempt.tries >= most)
        if is_last and self._options.dead_letters is not None:
            self._give_up(attempt)
            return
        if is_final:
            text = "%s: %s can never succeed, and is tried again, since it has no place to go to: set dead_letters="
            self._logger.error(text, self.name, attempt.delivery.key, extra=log_fields(attempt, self.name))
        if self.is_releasing:
            self.release([attempt])
        else:
            attempt.state = "failed"
            self._failed.append(attempt)

    def _is_to_report(self, attempt: Attempt) -> bool:
        """Return whether an attempt has to be reported before it goes on; let that happen."""
        if attempt.job is None:
            return False
        attempt.state = "reporting"
        self._reports.append(attempt)
        return True

    def _end_reported(self, attempt: Attempt) -> None:
        """Let an attempt go on whose report is confirmed."""
        attempt.job = None
        if attempt.reason is None:
            self.end_done([attempt])
        elif self._options.dead_letters == BROKER:
            self._give_up_to_broker(attempt)
        else:
            self._ack(attempt)
            self._leave([attempt])

    def _give_up_to_broker(self, attempt: Attempt) -> None:
        attempt.state = "given up"
        self._failed.append(attempt)

    def _ack(self, attempt: Attempt) -> None:
        attempt.state = "done"
        self._done.append(attempt)

    def _give_up(self, attempt: Attempt) -> None:
        """Make a dead letter of an attempt."""
        key, reason = attempt.delivery.key, attempt.reason
        text = "%s: gave up %s after attempt %d: %s"
        self._logger.error(text, self.name, key, attempt.number, reason, extra=log_fields(attempt, self.name))
        if self._options.dead_letters != BROKER:
            attempt.state = "dead"
            self._letters.append(attempt)
        elif not self._is_to_report(attempt):
            self._give_up_to_broker(attempt)

    def _note_dead_letter(self, attempt: Attempt) -> None:
        if attempt.reason is not None and self.failures is not None:
            delivery = attempt.delivery
            self.failures.record_dead_letter(self.name, 1, delivery.key, delivery.value, attempt.reason)
        if self._on_dead_letter is not None:
            self._on_dead_letter(attempt)
        self.counts.dead_letters += 1

    # ---- what the source is to be told -------------------------------------------------------------------------------

    @property
    def has_confirmed(self) -> bool:
        """Whether dead letters or reports were confirmed whose acks are to follow."""
        return bool(self._confirmed)

    def done(self) -> list[Delivery]:
        """Return the deliveries to ack, also of dead letters and reports that are confirmed; then call `acked`."""
        while self._confirmed:
            attempt = self._confirmed.popleft()
            if attempt.state == "dead":
                self._note_dead_letter(attempt)
                if not self._is_to_report(attempt):
                    self._ack(attempt)
                    self._leave([attempt])
            elif attempt.state == "reporting":
                self._end_reported(attempt)
        return deliveries_to_ack(self._done)

    def acked(self, count: int) -> None:
        """End the attempts that are done; `count` of them were still the source's to ack."""
        self.counts.revoked += len(self._done) - count
        forget(self._by_id, self._done)
        self._done.clear()

    def letters(self) -> list[Attempt]:
        """Return the attempts whose dead letters are to be written, and are not forgotten before `confirm`."""
        letters, self._letters = self._letters, []
        return letters

    def reports(self) -> list[Attempt]:
        """Return the attempts whose ends are to be reported, and are not forgotten before `confirm`."""
        reports, self._reports = self._reports, []
        return reports

    def failed(self) -> Iterator[Attempt]:
        """Yield the attempts of which the source is to be told that they failed or are given up.

        Each leaves when the next one is asked for: after `lost`, `gave_up`, `retried`, `wait` or `release`.
        """
        while self._failed:
            if self._failed[0].state in {"failed", "given up"}:  # and was not revoked
                yield self._failed[0]
            self._failed.popleft()

    def lost(self, attempt: Attempt) -> None:
        """End an attempt that failed, and whose delivery the source does not hold any more."""
        self.counts.revoked += 1
        self._end(attempt)
        self._leave([attempt])

    def gave_up(self, attempt: Attempt) -> None:
        """End an attempt that the broker has moved to its own place for dead letters."""
        self._note_dead_letter(attempt)
        self._end(attempt)
        self._leave([attempt])

    def retry_delay_secs(self, attempt: Attempt) -> float:
        """Return how long the next attempt has to wait."""
        if attempt.retry_secs is not None:
            return attempt.retry_secs
        return backoff(attempt.tries, self._options.backoff_secs, self._options.backoff_secs_max)

    def retried(self, attempt: Attempt) -> None:
        """End an attempt whose message the broker will deliver again."""
        self._redelivers = True
        self.counts.retried += 1
        self._end(attempt)

    def wait(self, attempt: Attempt, secs: float) -> None:
        """Keep an attempt that failed for a retry in this process."""
        attempt.state = "waiting"
        heapq.heappush(self._waiting, (time.monotonic() + secs, attempt.message_id, attempt))

    @property
    def next_retry(self) -> float | None:
        """When the next wait is over, on the monotonic clock."""
        return self._waiting[0][0] if self._waiting else None

    def retry_due(self, now: float) -> None:
        """Begin the attempts that follow those whose wait is over."""
        retried = 0
        while self._waiting and self._waiting[0][0] <= now:
            attempt = heapq.heappop(self._waiting)[2]
            if attempt.state == "waiting":
                self._end(attempt)
                following = self._add(attempt.delivery, attempt.number + 1, attempt.tries + 1, "queued")
                following.lane = attempt.lane
                self._line_up(following)
                retried += 1
        self.counts.retried += retried
        if retried:
            self._notify()

    # ---- what this process has no more -------------------------------------------------------------------------------

    def of(self, states: Container[State] | None, concerned: Callable[[Delivery], bool] | None = None) -> list[Attempt]:
        """Return the attempts in some states or in any, of some deliveries or of any."""
        return [
            attempt
            for attempt in self._by_id.values()
            if (states is None or attempt.state in states) and (concerned is None or concerned(attempt.delivery))
        ]

    def deliveries(self) -> list[Delivery]:
        """Return the deliveries of all attempts."""
        return [attempt.delivery for attempt in self._by_id.values()]

    def connected(self) -> None:
        """Be careful with what a new connection brings first."""
        self._suspects.connected()

    def revoke(self, concerned: Callable[[Delivery], bool]) -> None:
        """Forget some deliveries, which the broker has taken back; their outcomes no longer count."""
        revoked = self.of(None, concerned)
        for attempt in revoked:
            self.counts.revoked += 1
            if attempt.state == "done":
                self._done.remove(attempt)
            self._forget(attempt)
        if revoked:
            self._drop_ended()
        self._leave(revoked)  # now that none of them can go on

    def _drop_ended(self) -> None:
        """Let go of ended attempts that wait, which would keep their bodies until a thread, or their time, comes."""
        self._waiting = [each for each in self._waiting if each[2].state == "waiting"]
        heapq.heapify(self._waiting)
        found: list[Attempt | None] = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self.ready.get(False))
        for attempt in found:
            if attempt is None or attempt.state == "ready":
                self.ready.put(attempt)
        self._notify()  # somebody may have found it empty meanwhile

    def release(self, attempts: Sequence[Attempt]) -> None:
        """Forget attempts whose deliveries go back to the broker; see `given_back`."""
        for attempt in attempts:
            self._forget(attempt)
            self._given_back.append(attempt.delivery)
        self.counts.released += len(attempts)
        self._leave(attempts)

    def given_back(self) -> list[Delivery]:
        """Return the deliveries that go back to the broker; then call `went_back`."""
        return self._given_back.copy()

    def went_back(self) -> None:
        """Forget what `given_back` returned."""
        self._given_back.clear()

    def forget_all(self) -> None:
        """Forget every attempt, at the end."""
        if done := self.unacked():
            text = "%s: %d messages, such as %s, are done and could not be acked: the broker delivers them again"
            self._logger.warning(text, self.name, len(done), done[0].key)
        for attempt in self.of(None):
            self._forget(attempt)
        self._done.clear()

    def _forget(self, attempt: Attempt) -> None:
        """Remove an attempt whose outcome no longer counts."""
        if self._end(attempt) and self._on_over is not None:
            self._on_over(attempt)

    def _end(self, attempt: Attempt) -> bool:
        """Remove an attempt; return whether someone still works on it."""
        was_open = attempt.end()
        self._by_id.pop(attempt.message_id, None)
        return was_open


def _is_done(attempt: Attempt) -> bool:
    tree = attempt.tree
    return tree is not None and tree.is_done


def _name_of(delivery: Delivery) -> tuple[str, int]:
    return delivery.key, hash(delivery.value)
