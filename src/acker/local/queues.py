"""Queues between executors. They carry lists, so that a lock is taken once for many tuples.

Producers keep the bound: they look for room before they take new work, and then flush their whole buffers. So a queue
holds at most its capacity and the buffer of each producer: one transfer batch and the tuples of one more call of user
code. No producer waits with full buffers, so producers cannot wait for each other in a circle.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from acker._flow import Outlet, OutputBuffer
from acker.local.clock import Flag, Signal

Item = TypeVar("Item")

# How often a thread that waits for room checks whether the topology still runs.
_LOOK_SECS = 1.0


class Queue(Generic[Item]):
    """A queue of chunks for one consumer, and the number of their items.

    Parameters
    ----------
    capacity : int
        Number of items at which producers stop. Items count until the consumer has processed them.
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
        # Reentrant: a finalizer may run while the lock is held, and may ack.
        self._lock = threading.RLock()

    def put(self, chunk: Item, items: int) -> None:
        """Add a chunk of `items` items, even if there is no room."""
        with self._lock:
            self._chunks.append(chunk)
            self.size += items
            self.size_max = max(self.size_max, self.size)
            # The consumer clears its signal before it takes the lock to look into the queue, so if the signal is set
            # here, the consumer will find this chunk.
            is_set = self.signal.is_set()
        if not is_set:
            self.signal.set()

    def take(self) -> Item | None:
        """Return the oldest chunk, or None."""
        with self._lock:
            return self._chunks.popleft() if self._chunks else None

    def chunks(self) -> list[Item]:
        """Return a copy of what waits, the oldest chunk first. Any thread may call it."""
        with self._lock:
            return list(self._chunks)

    def done(self, items: int) -> None:
        """Make room for `items` items, which the consumer has processed."""
        with self._lock:
            self.size -= items
            # Wake producers when half is free: waking one for each item would switch threads all the time.
            if not self._waiting or self.size > self.capacity // 2:
                return
            waiting, self._waiting = self._waiting, []
        for signal in waiting:
            signal.set()

    def has_room(self, producer: Signal) -> bool:
        """Return whether a producer may take new work; if not, its signal is set once there is room."""
        if self.size < self.capacity:
            return True
        with self._lock:
            if self.size < self.capacity:
                return True
            if producer not in self._waiting:
                self._waiting.append(producer)
            return False

    def clear(self) -> int:
        """Drop everything; return the number of items."""
        with self._lock:
            dropped, self.size = self.size, 0
            chunks, self._chunks = self._chunks, deque()
            waiting, self._waiting = self._waiting, []
        for signal in waiting:
            signal.set()
        # Without the lock: their finalizers may emit, and so wait for a thread that is about to put.
        del chunks
        return dropped


# The queue of a bolt executor: the index of the task within the executor, and its tuples, or a TupleBatch.
TupleQueue = Queue[tuple[int, Any]]


class Outbox(OutputBuffer):
    """The output buffers of one executor, and whether the queues that they go to have room.

    Parameters
    ----------
    signal : Signal
        The executor's own, for when there is room again.
    flush_at : int
        Once it holds that many tuples for one task, the executor flushes all buffers before it continues.

    Attributes
    ----------
    may_wait : bool
        Whether other threads that emit wait while there is no room. Not under a scheduler, whose only thread might be
        the one that waits.
    flusher_signal : Signal
        Set when a step begins, and when a coroutine emits or acks between steps: the flusher then looks.
    keep_alive : callable, optional
        Called between two calls of a component once the clock shows `keep_alive_at`.
    """

    def __init__(self, signal: Signal, flush_at: int) -> None:
        super().__init__(flush_at)
        self.may_wait = False
        self.flusher_signal: Signal = Flag()
        self.keep_alive: Callable[[], object] | None = None
        self._signal = signal
        self._queues: list[TupleQueue] = []

    def outlet(self, queue: TupleQueue, index: int, task: int, *, waits: bool) -> Outlet:
        """Make the outlet to a task. Unless it `waits`, a full queue does not block this executor."""
        if waits and queue not in self._queues:
            self._queues.append(queue)
        return Outlet(queue, index, task)

    def _wake(self) -> None:
        self._signal.set()
        self.flusher_signal.set()

    def keep_alive_if_due(self, now_ns: int) -> None:
        """Call `keep_alive` if the clock shows its time."""
        if self.keep_alive_at and now_ns >= self.keep_alive_at:
            self._keep_alive()

    def _keep_alive(self) -> None:
        assert self.keep_alive is not None
        self.keep_alive()

    def _wait_for_room(self) -> None:
        """Block a thread, other than the executor's, that is about to emit.

        It waits only for consumers, which never wait for their producers, so the executor may wait for this thread.
        """
        if not self.may_wait:
            return
        room = Flag()
        room.clear()
        while not self.closed and not all(queue.has_room(room) for queue in self._queues):
            room.wait(_LOOK_SECS)
            room.clear()

    def has_room(self) -> bool:
        """Return whether all queues that this executor waits for have room; if not, its signal is set when they do."""
        return all(queue.has_room(self._signal) for queue in self._queues)
