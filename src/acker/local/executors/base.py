"""What all executors have in common: a step at a time, a mode that the lifecycle sets, one signal to wait for.

An executor does nothing but in `step`. A thread that calls it again and again is the runtime of every day; a scheduler
that picks which of them steps next replays any interleaving.
"""

from __future__ import annotations

import enum
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from acker._flow import AckBatch, AckSender
from acker.local.clock import Clock, Flag, Signal
from acker.local.queues import Outbox, Queue

STEP_TUPLES = 512

# A producer puts down what it has in hand when a buffer is this long: long enough to be rare, short enough that the
# consumer begins soon.
_TRANSFER_TUPLES = 256


class Mode(enum.Enum):
    """What the lifecycle asks of an executor."""

    OPEN = enum.auto()  # make the components and initialize them
    RUN = enum.auto()
    PAUSE = enum.auto()  # spouts: hear outcomes and ask for nothing; the others work on
    DRAIN = enum.auto()  # as PAUSE, and no ticks and rotations by the clock
    DEACTIVATE = enum.auto()  # bolts: as DRAIN, once told that no tuple comes any more
    HALT = enum.auto()  # nothing
    SETTLE = enum.auto()  # spouts: hear outcomes, whatever they raise
    CLOSE = enum.auto()  # close the components


class Executor(ABC):
    """One thread's worth of tasks.

    Attributes
    ----------
    name : str
    signal : Signal
        Set when there may be something to do.
    mode, seen : Mode
        What the lifecycle asks for, and what the executor found at the beginning of its last step.
    done : Mode or None
        OPEN or CLOSE, once that is through.
    crash : BaseException or None
        What escaped from a step; it halts the executor.
    spawned, abandoned : bool
        Whether it was given to a thread or a scheduler, and whether it was given up because it did not come back.
    blocked : bool
        Whether the last step found no room for what it would put out.
    steps : int
        How many steps did something.
    busy_ns : int
        Time spent in steps that did something.
    step_since_ns : int or None
        When the step began that runs now.
    """

    def __init__(self, name: str, clock: Clock, lifecycle_signal: Signal) -> None:
        self.name = name
        self.clock = clock
        self.signal: Signal = self._new_signal()
        self.mode = Mode.HALT
        self.seen = Mode.HALT
        self.done: Mode | None = None
        self.crash: BaseException | None = None
        self.thread: threading.Thread | None = None
        self.abandoned = False
        self.spawned = False
        self.blocked = False
        self.steps = 0
        self.busy_ns = 0
        self.step_since_ns: int | None = None
        self._lifecycle_signal = lifecycle_signal

    def ask(self, mode: Mode) -> None:
        """Set the mode; the executor sees it when its step ends."""
        self.mode = mode
        self.signal.set()

    def step(self, limit: int = STEP_TUPLES) -> bool:
        """Do some work, as much as `limit` tuples; say whether there was any."""
        mode = self.mode
        if self.seen is not mode:
            self.seen = mode
            self._lifecycle_signal.set()
        if self.crash is not None and mode not in (Mode.SETTLE, Mode.CLOSE):
            return False
        begin = self.step_since_ns = self.clock.now_ns()
        try:
            worked = self._step(mode, limit)
        except BaseException as error:  # noqa: BLE001  The lifecycle decides: restart, or stop with it.
            self.crash = error
            self._lifecycle_signal.set()
            return False
        finally:
            self.step_since_ns = None
        if worked:
            self.steps += 1
            self.busy_ns += self.clock.now_ns() - begin
        return worked

    def _new_signal(self) -> Signal:
        return Flag()

    @abstractmethod
    def _step(self, mode: Mode, limit: int) -> bool:
        """Do some work; say whether there was any."""

    def deadline_ns(self) -> int | None:
        """Return when there is something to do, even if no signal is set before."""
        return None

    def is_quiet(self) -> bool:
        """Say whether the executor has seen its mode, has nothing in hand and nothing in its queue."""
        return self.seen is self.mode and self.step_since_ns is None

    def rest(self) -> None:
        """Wait until there may be something to do. One that is blocked waits for room, whatever is due."""
        self.clock.wait(self.signal, None if self.blocked else self.deadline_ns())

    def work(self) -> None:
        """Step until closed: the body of the executor's thread."""
        while self.done is not Mode.CLOSE:
            self.signal.clear()
            if not self.step():
                self.rest()

    def finished(self, mode: Mode) -> bool:
        """Note that OPEN or CLOSE is through."""
        self.done = mode
        self._lifecycle_signal.set()
        return True


class ComponentExecutor(Executor):
    """An executor of tasks of one component.

    Parameters
    ----------
    capacity : int
        Of its queue; it puts down what it has in hand before it holds more.
    ackers : iterable of Queue
        The ackers' queues.

    Attributes
    ----------
    tasks : list of SpoutTask or BoltTask
    outbox, ack_sender
        Tuples and messages that it has in hand.
    """

    tasks: list[Any]

    def __init__(
        self, name: str, clock: Clock, lifecycle_signal: Signal, *, capacity: int, ackers: Iterable[Queue[AckBatch]]
    ) -> None:
        super().__init__(name, clock, lifecycle_signal)
        self.outbox = Outbox(self.signal, min(_TRANSFER_TUPLES, capacity))
        self.ack_sender = AckSender(ackers)

    def work(self) -> None:
        """Step until closed: the body of the executor's thread."""
        self.outbox.may_wait = True
        super().work()

    @abstractmethod
    def _work(self, mode: Mode, limit: int) -> bool:
        """Do some work of the modes RUN, PAUSE, DRAIN and SETTLE; say whether there was any."""

    def _step(self, mode: Mode, limit: int) -> bool:
        before = self.outbox.enter()
        try:
            return self._inside(mode, limit)
        finally:
            self.outbox.leave(before)

    def _inside(self, mode: Mode, limit: int) -> bool:
        self.blocked = self.outbox.must_yield = False
        if mode in (Mode.OPEN, Mode.CLOSE):
            if self.done is mode:
                return False
            for task in self.tasks:
                (task.open if mode is Mode.OPEN else task.close)()
            self.hand_over()
            return self.finished(mode)
        return mode is not Mode.HALT and self._work(mode, limit)

    def ask(self, mode: Mode) -> None:
        """Set the mode; the executor sees it when its step ends, which is soon."""
        self.mode = mode
        # Before the signal: the step that this cuts short is followed by another one.
        self.outbox.must_yield = True
        self.signal.set()

    def has_room(self) -> bool:
        """Say whether whoever it sends to takes more, and remember it."""
        self.blocked = not (self.outbox.has_room() and self.ack_sender.has_room(self.signal))
        return not self.blocked

    def hand_over(self) -> None:
        """Send and put down what it has in hand."""
        self.ack_sender.send()
        self.outbox.flush()
