"""Messages on their way to an acker: columns from the start, because an acker eats columns."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from acker.local.queues import Queue
from acker.protocol import Kind, acker_of
from acker.topology.reasons import Reason

Column = NDArray[np.int64]


@dataclass(slots=True)
class Letter:
    """What one executor has to say to one acker. All of it may be applied in any order (protocol "storm")."""

    track_roots: array[int]
    track_values: array[int]
    track_tasks: array[int]
    track_messages: array[int]
    ok_roots: array[int]
    ok_values: array[int]
    fails: list[tuple[int, Reason]]
    resets: array[int]

    def __len__(self) -> int:
        return len(self.track_roots) + len(self.ok_roots) + len(self.fails) + len(self.resets)


def _blank() -> Letter:
    return Letter(*(array("q") for _ in range(6)), [], array("q"))


class Mailbox:
    """Letters of one executor to one acker: the one being written, and the way there."""

    __slots__ = ("letter", "queue")

    def __init__(self, queue: Queue[Letter]) -> None:
        self.queue = queue
        self.letter = _blank()

    def send(self) -> None:
        """Send the letter, unless nothing is in it."""
        items = len(self.letter)
        if items:
            letter, self.letter = self.letter, _blank()
            self.queue.put(letter, items)


class Post:
    """An executor's mailboxes, one for each acker. Without an acker nothing is tracked and nothing is sent."""

    __slots__ = ("_boxes",)

    def __init__(self, queues: Iterable[Queue[Letter]]) -> None:
        self._boxes = [Mailbox(queue) for queue in queues]

    def __len__(self) -> int:
        return len(self._boxes)

    def boxes(self) -> Sequence[Mailbox]:
        """Return the mailboxes, in the order of the ackers."""
        return self._boxes

    def of(self, root_id: int) -> Mailbox:
        """Return the mailbox of the acker that owns a tree."""
        return self._boxes[acker_of(root_id, len(self._boxes))]

    def track(self, root_id: int, value: int, task_id: int, message_id: int) -> None:
        """Write a TRACK."""
        boxes = self._boxes
        letter = boxes[0].letter if len(boxes) == 1 else self.of(root_id).letter
        letter.track_roots.append(root_id)
        letter.track_values.append(value)
        letter.track_tasks.append(task_id)
        letter.track_messages.append(message_id)

    def ok(self, ids: dict[int, int], ack_val: int) -> None:
        """Write an OK for each tree of a tuple: its own id there xor what was emitted under it."""
        boxes = self._boxes
        if len(boxes) == 1:
            letter = boxes[0].letter
            for root_id, tuple_id in ids.items():
                letter.ok_roots.append(root_id)
                letter.ok_values.append(tuple_id ^ ack_val)
            return
        for root_id, tuple_id in ids.items():
            letter = self.of(root_id).letter
            letter.ok_roots.append(root_id)
            letter.ok_values.append(tuple_id ^ ack_val)

    def fail(self, root_ids: Iterable[int], reason: Reason) -> None:
        """Write a FAIL for each tree."""
        for root_id in root_ids:
            self.of(root_id).letter.fails.append((root_id, reason))

    def reset_timeout(self, root_ids: Iterable[int]) -> None:
        """Write a RESET_TIMEOUT for each tree."""
        for root_id in root_ids:
            self.of(root_id).letter.resets.append(root_id)

    def has_room(self, signal: object) -> bool:
        """Say whether the ackers keep up; if not, the signal is set once they do."""
        return all(box.queue.has_room(signal) for box in self._boxes)  # type: ignore[arg-type]

    def send(self) -> None:
        """Send all letters."""
        for box in self._boxes:
            box.send()


def columns_of(letters: Sequence[Letter]) -> tuple[NDArray[np.int8], Column, Column, NDArray[np.int32], Column]:
    """Put letters into the columns of `Acker.ingest`, letter by letter."""
    kinds: list[int] = []
    counts: list[int] = []
    roots: list[Column] = []
    values: list[Column] = []
    tasks: list[Column] = []
    messages: list[Column] = []

    def part(
        kind: Kind, root: Column, value: Column, task: Column | None = None, message: Column | None = None
    ) -> None:
        if len(root):
            kinds.append(kind)
            counts.append(len(root))
            roots.append(root)
            values.append(value)
            tasks.append(_zeros(len(root)) if task is None else task)
            messages.append(_zeros(len(root)) if message is None else message)

    for letter in letters:
        part(
            Kind.TRACK,
            _column(letter.track_roots),
            _column(letter.track_values),
            _column(letter.track_tasks),
            _column(letter.track_messages),
        )
        part(Kind.OK, _column(letter.ok_roots), _column(letter.ok_values))
        part(Kind.FAIL, np.array([root for root, _ in letter.fails], np.int64), _zeros(len(letter.fails)))
        part(Kind.RESET_TIMEOUT, _column(letter.resets), _zeros(len(letter.resets)))
    return (
        np.repeat(np.array(kinds, np.int8), counts),
        np.concatenate(roots),
        np.concatenate(values),
        np.concatenate(tasks).astype(np.int32),
        np.concatenate(messages),
    )


def _column(numbers: array[int]) -> Column:
    return np.frombuffer(numbers, np.int64)


def _zeros(count: int) -> Column:
    return np.zeros(count, np.int64)
