"""Queues between executors. What travels is lists, so that a lock is taken once for many tuples.

A queue is bounded by agreement: its producers look for room before they take up new work, and a producer puts down all
that it has in hand at once. So a queue holds at most its capacity and what each producer had in hand: one transfer
batch and the tuples of one more call of the user's code. No producer ever waits while it holds something, hence nobody
waits in a circle.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from acker._flow import Outlet, OutputBuffer
from acker.local.clock import Flag, Signal
from acker.topology.tuples import Tuple

Item = TypeVar("Item")

# How often one who waits for room looks whether the topology goes on at all.
_LOOK_SECS = 1.0


class Queue(Generic[Item]):
    """Chunks on their way to one consumer, and how many items those are.

    Parameters
    ----------
    capacity : int
        From how many items on producers stop. Items count until the consumer is through with them.
    signal : Signal
        Set when something arrives.
    """

    __slots__ = ("_chunks", "_lock", "_waiting", "capacity", "signal", "size", "size_max")

    def __init__(self, capacity: int, signal: Signal) -> None:
        self.capacity = capacity
        self.signal = signal
        self.size = 0
        self.size_max = 0
        self._chunks: deque[Item] = deque()
        self._waiting: list[Signal] = []
        self._lock = threading.Lock()

    def put(self, chunk: Item, items: int) -> None:
        """Add a chunk of so many items, whether or not there is room."""
        with self._lock:
            self._chunks.append(chunk)
            self.size += items
            self.size_max = max(self.size_max, self.size)
        # A set signal needs no second one: who clears it looks into the queue afterwards.
        if not self.signal.is_set():
            self.signal.set()

    def take(self) -> Item | None:
        """Return the oldest chunk, or None."""
        with self._lock:
            return self._chunks.popleft() if self._chunks else None

    def done(self, items: int) -> None:
        """Make room for so many items, which were taken and are dealt with."""
        with self._lock:
            self.size -= items
            # Producers come back when half is free: waking one for each item would be a dance of two threads.
            if not self._waiting or self.size > self.capacity // 2:
                return
            waiting, self._waiting = self._waiting, []
        for signal in waiting:
            signal.set()

    def has_room(self, producer: Signal) -> bool:
        """Say whether a producer may take up work; if not, its signal is set once there is room."""
        if self.size < self.capacity:
            return True
        with self._lock:
            if self.size < self.capacity:
                return True
            if producer not in self._waiting:
                self._waiting.append(producer)
            return False

    def clear(self) -> int:
        """Drop everything; return how many items that were."""
        with self._lock:
            dropped, self.size = self.size, 0
            self._chunks.clear()
            waiting, self._waiting = self._waiting, []
        for signal in waiting:
            signal.set()
        return dropped


# What a bolt executor reads: the place of the task within the executor, and the tuples for it.
TupleQueue = Queue[tuple[int, list[Tuple]]]


class Outbox(OutputBuffer):
    """What one executor has in hand, and whether those who are to get it have room.

    Parameters
    ----------
    signal : Signal
        The executor's own, for when there is room again.
    flush_at : int
        Once it has that many tuples for one task in hand, the executor puts everything down before it goes on.

    Attributes
    ----------
    may_wait : bool
        Whether threads that call the executor's components are held up while there is no room. Not under a scheduler:
        the one that waits may be the one that steps everybody.
    keep_alive : callable, optional
        Called between two calls of a component once the clock shows `keep_alive_at`.
    """

    def __init__(self, signal: Signal, flush_at: int) -> None:
        super().__init__(flush_at)
        self.may_wait = False
        self.keep_alive: Callable[[], object] | None = None
        self._signal = signal
        self._queues: list[TupleQueue] = []

    def outlet(self, queue: TupleQueue, place: int, task: int, *, waits: bool) -> Outlet:
        """Make the way to a task. Unless it `waits`, a full queue does not hold this executor up."""
        if waits and queue not in self._queues:
            self._queues.append(queue)
        return Outlet(queue, place, task)

    def _wake(self) -> None:
        self._signal.set()

    def _keep_alive(self) -> None:
        assert self.keep_alive is not None
        self.keep_alive()

    def _wait_for_room(self) -> None:
        """Hold up a thread that is not the executor's and is about to emit.

        It waits for the consumers alone, which wait for nobody before them. So the executor may wait for that thread.
        """
        if not self.may_wait:
            return
        room = Flag()
        room.clear()
        while not self.closed and not all(queue.has_room(room) for queue in self._queues):
            room.wait(_LOOK_SECS)
            room.clear()

    def has_room(self) -> bool:
        """Say whether all queues that this executor waits for take more; its signal is set when that changes."""
        return all(queue.has_room(self._signal) for queue in self._queues)
