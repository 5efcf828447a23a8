"""The messages that an intake holds: those not handed out, open ones, and those that wait for a retry."""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any, Final

from acker.connectors.source import Delivery
from acker.observe.reasons import Reason

# The longest wait of a thread that wants a message. If another thread receives a signal, as after SIGSTOP and SIGCONT,
# nothing interrupts the wait of the main thread, and the handler runs only when the wait ends. And an exception of a
# handler can swallow the item that was to wake the thread up.
_LOOK_SECS: Final = 0.5


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt at one delivery. A retry of the same delivery is another attempt.

    Attributes
    ----------
    message_id : int
        The consumer's own number of this attempt, never used twice.
    delivery : Delivery
    number : int
        The attempt's number, from 1, as far as broker and consumer know.
    tries : int
        How many attempts count for `attempts_max`, this one included.
    since_ns : int
        When it was delivered, or was handed out, on the monotonic clock.
    state : str
        "ready": not handed out yet. "withheld": the same, while a rebalance may take it away. "suspect": the same,
        until nobody works on anything else. "open": handed out.
        "failed": its source is not told yet. "waiting": for a retry. "dead": its dead letter is not confirmed yet.
        "done": its ack is on the way. "ended".
    reason : Reason or None
        Of its failure.
    tree : Any
        Set by the owner of the intake.
    """

    message_id: int
    delivery: Delivery
    number: int
    tries: int
    since_ns: int
    state: str = "ready"
    reason: Reason | None = None
    tree: Any = None


@dataclass(slots=True)
class IntakeCounts:
    """What happened to messages since the start. The I/O thread writes, any thread reads."""

    delivered: int = 0
    acked: int = 0
    failed: int = 0
    timed_out: int = 0
    retried: int = 0
    dead_letters: int = 0
    revoked: int = 0
    released: int = 0
    late: int = 0
    reconnects: int = 0
    polls: int = 0


class AttemptTable:
    """The attempts by message id, a queue of those that can be handed out, and a heap of those that wait.

    Any thread may call `take`, `listen`, `close` and `oldest`, the I/O thread everything.

    Attributes
    ----------
    is_closed : bool
        Whether `take` returns None. Set by itself, it wakes nobody who waits.
    """

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._by_id: dict[int, Attempt] = {}
        self._ready: queue.SimpleQueue[Attempt | None] = queue.SimpleQueue()
        self.is_closed = False
        self._handing_out = threading.Lock()
        self._withheld: list[Attempt] = []
        self._waiting: list[tuple[float, int, Attempt]] = []
        self._listeners: set[Callable[[], None]] = set()

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def ready_count(self) -> int:
        """About how many attempts wait to be handed out."""
        return self._ready.qsize()

    def add(self, delivery: Delivery, number: int, tries: int = 1, state: str = "ready") -> Attempt:
        """Add an attempt, by default ready to be handed out; call `notify` after the last one."""
        attempt = Attempt(next(self._ids), delivery, number, tries, time.monotonic_ns(), state)
        self._by_id[attempt.message_id] = attempt
        if state == "ready":
            self._ready.put(attempt)
        return attempt

    def take(self, timeout_secs: float | None = None) -> Attempt | None:
        """Hand out the next attempt; None after `close`.

        Raises
        ------
        queue.Empty
            Nothing came within `timeout_secs`.
        """
        secs = _LOOK_SECS if timeout_secs is None else timeout_secs
        while not self.is_closed:
            try:
                attempt = self._ready.get(secs > 0, secs)
            except queue.Empty:
                if timeout_secs is not None and not self.is_closed:
                    raise
                continue
            if attempt is None:
                self._ready.put(None)  # for the next one who asks
                return None
            with self._handing_out:
                if attempt.state == "ready":
                    attempt.state = "open"
                    attempt.since_ns = time.monotonic_ns()
                    return attempt
        return None

    def close(self) -> None:
        """Let every `take`, from now on, return None."""
        self.is_closed = True
        self._ready.put(None)
        self.notify()

    def rescue(self) -> None:
        """Offer attempts again that a thread has drawn and not handed out.

        An exception of a signal handler, such as `KeyboardInterrupt`, can come between the two.
        """
        if self._ready.empty():
            for attempt in self.of({"ready"}):
                self._ready.put(attempt)  # if it is there twice, the second one is skipped

    def notify(self) -> None:
        """Call the listeners."""
        for listener in self._listeners.copy():
            try:
                listener()
            except RuntimeError:  # its event loop is closed
                self._listeners.discard(listener)

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call a function, on the I/O thread, when attempts became ready; return a function that ends this."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def withhold(self, concerned: Callable[[Delivery], bool]) -> None:
        """Hand out no attempts of some deliveries until `hand_out_withheld`."""
        for attempt in self.of({"ready"}, concerned):
            with self._handing_out:
                if attempt.state == "ready":
                    attempt.state = "withheld"
                    self._withheld.append(attempt)

    def hand_out_withheld(self) -> bool:
        """Let attempts be handed out that were withheld and not revoked; return whether there are any."""
        found = [attempt for attempt in self._withheld if attempt.state == "withheld"]
        self._withheld.clear()
        for attempt in found:
            attempt.state = "ready"
            self._ready.put(attempt)
        return bool(found)

    def hand_out(self, attempt: Attempt) -> None:
        """Let an attempt be handed out that was added in another state."""
        attempt.state = "ready"
        self._ready.put(attempt)
        self.notify()

    def get(self, message_id: int) -> Attempt | None:
        """Return an attempt that was handed out and has not ended."""
        attempt = self._by_id.get(message_id)
        return attempt if attempt is not None and attempt.state == "open" else None

    def end(self, attempt: Attempt) -> bool:
        """Remove an attempt; return whether someone still works on it."""
        with self._handing_out:
            was_open = attempt.state == "open"
            attempt.state = "ended"
        self._by_id.pop(attempt.message_id, None)
        return was_open

    def end_done(self, attempts: Iterable[Attempt]) -> None:
        """Remove attempts whose acks are sent: nobody works on them, so no lock is needed."""
        for attempt in attempts:
            attempt.state = "ended"
            self._by_id.pop(attempt.message_id, None)

    def wait(self, attempt: Attempt, secs: float) -> None:
        """Keep an attempt that failed for a retry."""
        attempt.state = "waiting"
        heapq.heappush(self._waiting, (time.monotonic() + secs, attempt.message_id, attempt))

    def replay(self, now: float) -> int:
        """Begin the attempts that follow those whose wait is over; return how many."""
        replayed = 0
        while self._waiting and self._waiting[0][0] <= now:
            attempt = heapq.heappop(self._waiting)[2]
            if attempt.state == "waiting":
                self.end(attempt)
                self.add(attempt.delivery, attempt.number + 1, attempt.tries + 1)
                replayed += 1
        if replayed:
            self.notify()
        return replayed

    @property
    def next_replay(self) -> float | None:
        """When the next wait is over, on the monotonic clock."""
        return self._waiting[0][0] if self._waiting else None

    def of(self, states: Container[str] | None, concerned: Callable[[Delivery], bool] | None = None) -> list[Attempt]:
        """Return the attempts in some states or in any, of some deliveries or of any."""
        return [
            attempt
            for attempt in self._by_id.values()
            if (states is None or attempt.state in states) and (concerned is None or concerned(attempt.delivery))
        ]

    def deliveries(self) -> list[Delivery]:
        """Return the deliveries of all attempts."""
        return [attempt.delivery for attempt in self._by_id.values()]

    def oldest(self, most: int | None = None) -> list[Attempt]:
        """Return the attempts that were handed out and have not ended, the oldest first. From any thread."""
        copied = list(self._by_id.copy().values())
        found = sorted((each for each in copied if each.state == "open"), key=lambda attempt: attempt.since_ns)
        return found[:most]
