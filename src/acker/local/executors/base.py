"""The base of all executors, which work in steps, in the mode that the lifecycle sets, and wait for one signal.

All work is done in `step`. A runtime has a thread for each executor, which steps it again and again; a scheduler that
chooses which executor steps next can replay any interleaving.
"""

from __future__ import annotations

import contextlib
import enum
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from acker._flow import AckBatch, AckSender
from acker.local.clock import Clock, Flag, Signal
from acker.local.queues import Outbox, Queue

STEP_TUPLES = 512

# A producer flushes its buffers when one of them is this long: long enough to be rare, short enough that the consumer
# starts soon.
_TRANSFER_TUPLES = 256


class Mode(enum.Enum):
    """The work that the lifecycle wants of an executor."""

    OPEN = enum.auto()  # make the components and initialize them
    RUN = enum.auto()
    PAUSE = enum.auto()  # spouts: take outcomes, but emit nothing new; all others work as in RUN
    DRAIN = enum.auto()  # as PAUSE, without ticks and rotations by the clock
    DEACTIVATE = enum.auto()  # bolts: deactivate the components, then as DRAIN
    HALT = enum.auto()  # do nothing
    SETTLE = enum.auto()  # spouts: take outcomes, and log what ack and fail raise
    CLOSE = enum.auto()  # close the components


class Executor(ABC):
    """The tasks that one thread runs.

    Attributes
    ----------
    name : str
    signal : Signal
        Set when there may be something to do.
    mode, seen : Mode
        The mode that the lifecycle has set, and the one that the last step began with.
    done : Mode or None
        OPEN or CLOSE, once that is done.
    crash : BaseException or None
        The exception that escaped from a step and halted the executor.
    spawned, abandoned : bool
        Whether a thread or a scheduler runs it, and whether it was left behind inside user code.
    inside : str
        The code in which a step that does not end is, for messages.
    blocked : bool
        Whether the last step found a full queue in its way.
    steps : int
        Number of steps that did something.
    busy_ns : int
        Time spent in steps that did something.
    step_since_ns : int or None
        The start of the step that runs now.
    """

    inside: ClassVar[str] = "user code"

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

    def set_mode(self, mode: Mode) -> None:
        """Set the mode; the executor sees it when its step ends."""
        self.mode = mode
        self.signal.set()

    def step(self, limit: int = STEP_TUPLES) -> bool:
        """Do some work, at most `limit` tuples; return whether there was any."""
        mode = self.mode
        if self.seen is not mode:
            self.seen = mode
            self._lifecycle_signal.set()
        if self.crash is not None and mode not in (Mode.SETTLE, Mode.CLOSE):
            return False
        begin = self.step_since_ns = self.clock.now_ns()
        try:
            worked = self._step(mode, limit)
            if worked:
                # While the step still counts as running: is_quiet must not miss it.
                self.steps += 1
        except BaseException as error:  # noqa: BLE001  The lifecycle decides whether to restart.
            self.crash = error
            self._lifecycle_signal.set()
            return False
        finally:
            self.step_since_ns = None
        if worked:
            self.busy_ns += self.clock.now_ns() - begin
        return worked

    def _new_signal(self) -> Signal:
        return Flag()

    @abstractmethod
    def _step(self, mode: Mode, limit: int) -> bool:
        """Do some work; return whether there was any."""

    def deadline_ns(self) -> int | None:
        """Return when the executor has to step even if its signal is not set."""
        return None

    def is_quiet(self) -> bool:
        """Return whether the executor has seen its mode, and its buffers and its queue are empty."""
        return self.seen is self.mode and self.step_since_ns is None

    def rest(self) -> None:
        """Wait until there may be something to do; a blocked executor waits for room, whatever is due."""
        self.clock.wait(self.signal, None if self.blocked else self.deadline_ns())

    def work(self) -> None:
        """Step until closed, or until user code returns to an executor that was abandoned: the body of its thread."""
        while True:
            self.signal.clear()
            # After the clear: who abandons it sets the signal then, and a rest ends at once.
            if self.done is Mode.CLOSE or self.abandoned:
                return
            if not self.step():
                self.rest()

    def finish(self, mode: Mode) -> bool:
        """Report that OPEN or CLOSE is done."""
        self.done = mode
        self._lifecycle_signal.set()
        return True


class ComponentExecutor(Executor):
    """An executor of tasks of one component, a spout or a bolt.

    Parameters
    ----------
    capacity : int
        Of its queue. Its buffers are flushed before they hold more.
    ackers : iterable of Queue
        The queues of the ackers.

    Attributes
    ----------
    tasks : list of SpoutTask or BoltTask
    outbox, ack_sender
        Buffers of tuples for other tasks, and of messages for the ackers.
    """

    tasks: list[Any]

    def __init__(
        self, name: str, clock: Clock, lifecycle_signal: Signal, *, capacity: int, ackers: Iterable[Queue[AckBatch]]
    ) -> None:
        super().__init__(name, clock, lifecycle_signal)
        self.outbox = Outbox(self.signal, min(_TRANSFER_TUPLES, capacity))
        self.ack_sender = AckSender(ackers)
        # One thread sends at a time, which keeps the order of tuples.
        self._sending = threading.RLock()

    def work(self) -> None:
        """Step until closed: the body of the executor's thread."""
        self.outbox.may_wait = True
        super().work()

    @abstractmethod
    def _work(self, mode: Mode, limit: int) -> bool:
        """Do some work of the modes RUN, PAUSE, DRAIN and SETTLE; return whether there was any."""

    def _step(self, mode: Mode, limit: int) -> bool:
        outbox = self.outbox
        outbox.flusher_signal.set()
        before = outbox.enter()
        try:
            if outbox.keep_alive_at and self.crash is None:
                outbox.keep_alive_if_due(self.clock.now_ns())
            self.blocked = outbox.must_yield = False
            if mode is Mode.OPEN or mode is Mode.CLOSE:
                return self.done is not mode and self._open_or_close(mode)
            return mode is not Mode.HALT and self._work(mode, limit)
        finally:
            outbox.leave(before)

    def _open_or_close(self, mode: Mode) -> bool:
        for task in self.tasks:
            (task.open if mode is Mode.OPEN else task.close)()
        self.flush()
        return self.finish(mode)

    def set_mode(self, mode: Mode) -> None:
        """Set the mode; the step that runs now ends soon, and the next one sees it."""
        self.mode = mode
        # Before the signal, so that another step follows the one that this cuts short.
        self.outbox.must_yield = True
        self.signal.set()

    def has_room(self) -> bool:
        """Return whether all queues that it sends to have room; sets `blocked`."""
        self.blocked = not (self.outbox.has_room() and self.ack_sender.has_room(self.signal))
        return not self.blocked

    def busy_ns_of(self, task: Any, now_ns: int | None = None) -> int:  # noqa: ARG002
        """Return how long the thread of a task has worked in all; until `now_ns`, with the step that runs now.

        That step may never end.
        """
        since_ns = None if now_ns is None else self.step_since_ns
        return self.busy_ns if now_ns is None or since_ns is None else self.busy_ns + now_ns - since_ns

    def flush(self) -> None:
        """Flush the buffers: send all tuples and messages."""
        with self._sending:
            self.ack_sender.send()
            self.outbox.flush()

    def flush_early(self) -> bool:
        """Flush for an executor that is inside a step, and let that step end soon; return whether anything was sent.

        For the flusher, on another thread: user code may take long, and what was done before has to leave.
        """
        self.outbox.must_yield = True
        with self._sending:
            # Once the outbox is closed, the trees have failed and the lifecycle has emptied the buffers.
            return not self.outbox.closed and self.ack_sender.send() + self.outbox.send() > 0

    @contextlib.contextmanager
    def pause_sending(self) -> Iterator[None]:
        """Let no thread send meanwhile: of each emission, the queues have what goes to all tasks, or nothing."""
        with self._sending, self.outbox.lock:  # the lock is that of threads of user code, which send at once
            yield

    def has_unsent(self) -> bool:
        """Return whether tuples or messages wait in the buffers."""
        return bool(self.outbox.dirty) or self.ack_sender.has_unsent()

    def discard(self) -> None:
        """Drop what is in the buffers for other tasks."""
        with self._sending:
            self.outbox.discard()
