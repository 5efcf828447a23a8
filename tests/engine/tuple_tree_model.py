"""`acker.TupleTree` in plain Python, the oracle of its tests: the same messages, errors and warnings for every call."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from acker._engine import misuse
from acker._engine.protocol import (
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    Kind,
    Message,
    PendingTree,
    acker_of,
    check_integer,
    check_ms,
    encode_tuple_id,
)

# How many acknowledged inputs are remembered, to detect a second acknowledgement.
_ACKNOWLEDGED_KEPT: Final = 4096
# The number of unacknowledged inputs from which on their age is checked, and the age that is worth a warning.
_MANY_INPUTS: Final = 1024
_LONG_MS: Final = 600_000


class _Input:
    """An input from its first anchor to its acknowledgement."""

    __slots__ = ("emitted", "root_id", "settled", "since_ms", "tuple_id")

    def __init__(self, root_id: int, tuple_id: int, since_ms: int) -> None:
        self.root_id = root_id
        self.tuple_id = tuple_id
        self.since_ms = since_ms
        self.emitted = 0  # the xor of the tuple ids that were emitted under it, for its OK to carry
        self.settled = False


class ModelTree:
    """The calls of a `TupleTree`."""

    def __init__(
        self,
        ackers: Sequence[Callable[[Message], object]],
        *,
        protocol: str,
        next_id: Callable[[], int],
        now_ms: Callable[[], int],
    ) -> None:
        self._ackers = ackers
        self._one_by_one = protocol == "fsshelter"
        self._next_id = next_id
        self._now_ms = now_ms
        # By root id and tuple id.
        self._inputs: dict[tuple[int, int], _Input] = {}
        # By root id, the trees that the spout has not closed yet. Weak, so that a tree that is lost can warn of it.
        self._trackings: dict[int, weakref.ref[Tracking]] = {}
        self._acknowledged: set[tuple[int, int]] = set()
        self._order: deque[tuple[int, int]] = deque()  # of the acknowledged, the first one first
        self._look_at = _MANY_INPUTS

    def __len__(self) -> int:
        """Return the number of anchored ids of inputs that are not acknowledged yet."""
        return len(self._inputs)

    def _draw(self, name: str) -> int:
        return check_integer(name, self._next_id(), INT64_MIN, INT64_MAX)

    def _now(self) -> int:
        return check_ms("now_ms", self._now_ms())

    def track(self, task_id: int, message_id: int | None) -> Tracking:
        return Tracking(self, task_id, message_id)

    def anchor(self, tuple_ids: Sequence[str]) -> Anchoring:
        return Anchoring(self, tuple_ids)

    def ok(self, tuple_id: str) -> None:
        self._acknowledge(Kind.OK, tuple_id)

    def fail(self, tuple_id: str) -> None:
        self._acknowledge(Kind.FAIL, tuple_id)

    def _acknowledge(self, kind: Kind, tuple_id: str) -> None:
        """Send the OK or FAIL of an input."""
        parsed = misuse.read_id(tuple_id, -1)
        if parsed is None:
            return
        if parsed in self._acknowledged:
            raise misuse.acknowledged_error(tuple_id)
        root, value = parsed
        known = self._inputs.pop(parsed, None)
        if known is not None:
            known.settled = True
            if kind is Kind.OK:
                value ^= known.emitted
        self._acknowledged.add(parsed)
        self._order.append(parsed)
        if len(self._order) > _ACKNOWLEDGED_KEPT:
            self._acknowledged.discard(self._order.popleft())
        self._send(Message(kind, root, value))

    def reset_timeout(self, tuple_ids: object) -> None:
        """Send a RESET_TIMEOUT for each tree of an input."""
        for root in dict.fromkeys(root for root, _ in _read_ids(tuple_ids)):
            self._send(Message(Kind.RESET_TIMEOUT, root, 0))

    def _begin(self, parsed: list[tuple[int, int]]) -> list[_Input]:
        """Return the inputs that tuples will be anchored to, remembered until they are acknowledged."""
        now = self._now()
        for each in parsed:
            if each in self._acknowledged:
                raise misuse.settled_error(*each)
        inputs = [self._inputs.setdefault(each, _Input(*each, now)) for each in parsed]
        if len(self._inputs) >= self._look_at:
            self._look_at = 2 * len(self._inputs)
            age_ms = now - min(known.since_ms for known in self._inputs.values())
            if age_ms >= _LONG_MS:
                self._look_at = INT64_MAX
                misuse.warn_never_acknowledged(len(self._inputs), age_ms, 6)
        return inputs

    def oldest(self) -> list[PendingTree]:
        """Return the ten oldest trees and inputs that wait on this side."""
        now = self._now()
        trees = []
        for reference in list(self._trackings.values()):
            spout = reference()
            if spout is not None:
                ids = (spout._root_id, spout._task_id, spout._emitted)
                trees.append(PendingTree(spout._message_id, max(0, now - spout._since_ms), "tracking", *ids, None))
        for known in list(self._inputs.values()):
            age_ms, ack_val = max(0, now - known.since_ms), known.tuple_id ^ known.emitted
            trees.append(PendingTree(None, age_ms, "anchored", known.root_id, None, ack_val, None))
        return sorted(trees, key=lambda tree: (-tree.age_ms, tree.root_id))[:10]

    def _send(self, message: Message) -> None:
        # With one acker nothing is chosen.
        acker = self._ackers[0] if len(self._ackers) == 1 else self._ackers[acker_of(message[1], len(self._ackers))]
        acker(message)


def _read_ids(tuple_ids: object) -> list[tuple[int, int]]:
    """Return root ids and tuple ids of encoded ids, without the unanchored ones."""
    parsed = [misuse.read_id(tuple_id, place) for place, tuple_id in enumerate(misuse.sequence_of(tuple_ids))]
    return [each for each in parsed if each is not None]


class Tracking:
    """One tree that a spout begins; see `TupleTree.track`. Calling it returns the ids of one delivery.

    If the ``with`` block raises, the tree is failed: some deliveries may have been sent, and the spout must know.
    """

    __slots__ = (
        "__weakref__",
        "_deliveries",
        "_emitted",
        "_message_id",
        "_open",
        "_root_id",
        "_since_ms",
        "_task_id",
        "_tree",
    )

    def __init__(self, tree: ModelTree, task_id: int, message_id: int | None) -> None:
        self._open = False
        self._tree = tree
        self._task_id = check_integer("task_id", task_id, 0, INT32_MAX)
        self._message_id = None if message_id is None else check_integer("message_id", message_id, INT64_MIN, INT64_MAX)
        self._root_id = root = tree._draw("root_id")
        self._emitted = 0
        self._deliveries = 0
        if message_id is None:
            return
        self._since_ms = tree._now()
        tree._trackings[root] = weakref.ref(self)
        self._open = True
        if tree._one_by_one:
            tree._send(Message(Kind.TRACK, root, 0, self._task_id, self._message_id or 0))

    def __call__(self) -> list[str]:
        """Return the encoded ids of one more delivery."""
        tree = self._tree
        tuple_id = tree._draw("tuple_id")
        if self._message_id is None:
            return [str(tuple_id)]
        if not self._open:
            raise misuse.closed_error()
        self._emitted ^= tuple_id
        self._deliveries += 1
        if tree._one_by_one:
            tree._send(Message(Kind.ANCHOR, self._root_id, tuple_id))
        return [encode_tuple_id(self._root_id, tuple_id)]

    def close(self) -> None:
        """Send the last message of the spout, after the last delivery. A second call does nothing."""
        if not self._open or self._message_id is None:
            return
        self._open = False
        tree, root = self._tree, self._root_id
        tree._trackings.pop(root, None)
        if not tree._one_by_one:
            tree._send(Message(Kind.TRACK, root, self._emitted, self._task_id, self._message_id))
        elif self._deliveries == 0:
            # No bolt reads the stream. A TRACK alone never finishes a tree here, and OK does if the ack val is 0.
            tree._send(Message(Kind.OK, root, 0))

    def _fail(self) -> None:
        if not self._open:
            return
        # One more edge that is never acked: without it the ack val may be 0, and ACKED wins over FAILED.
        self()
        self.close()
        self._tree._send(Message(Kind.FAIL, self._root_id, 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._fail()

    def __del__(self) -> None:
        # The constructor may have raised before there was anything to close.
        if not getattr(self, "_open", False) or self._message_id is None:
            return
        self._open = False
        self._tree._trackings.pop(self._root_id, None)
        if not self._tree._one_by_one:
            misuse.warn_never_closed(self, self._message_id, 3)


class Anchoring:
    """The trees that a bolt's outputs belong to; see `TupleTree.anchor`. Calling it returns the ids of one delivery."""

    __slots__ = ("_anchors", "_inputs", "_tree")

    def __init__(self, tree: ModelTree, tuple_ids: Sequence[str]) -> None:
        parsed = _read_ids(tuple_ids)
        self._tree = tree
        self._inputs = tree._begin(parsed)
        # Root id -> the input whose OK carries the emitted ids. One is enough if several inputs share a root: the acker
        # sees the xor of all.
        self._anchors: dict[int, _Input] = {}
        for known in self._inputs:
            self._anchors.setdefault(known.root_id, known)

    def __call__(self) -> list[str]:
        """Return the encoded ids of one more delivery."""
        tree = self._tree
        tuple_id = tree._draw("tuple_id")
        anchors = self._anchors.values()
        for anchor in anchors:
            if anchor.settled:
                raise misuse.settled_error(anchor.root_id, anchor.tuple_id)
        if not anchors:
            return [str(tuple_id)]
        for anchor in anchors:
            if tree._one_by_one:
                tree._send(Message(Kind.ANCHOR, anchor.root_id, tuple_id))
            else:
                anchor.emitted ^= tuple_id
        return [encode_tuple_id(anchor.root_id, tuple_id) for anchor in anchors]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        acknowledge = self._tree.ok if kind is None else self._tree.fail
        for each in self._inputs:
            if not each.settled:  # Else it was acknowledged inside the block.
                acknowledge(encode_tuple_id(each.root_id, each.tuple_id))
