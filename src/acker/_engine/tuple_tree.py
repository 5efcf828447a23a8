"""The bookkeeping of a program that tracks tuple trees itself: tuple ids, and the messages to the acker.

Names and calls are those of FsShelter's TupleTree (`track`, `anchor`, `mk_ack`), for every protocol:

==========  ==============================================  ==================================================
step        protocol "fsshelter"                            protocol "storm" and "storm-0.9"
==========  ==============================================  ==================================================
track       TRACK at once                                   nothing yet
mk_ids      ANCHOR with each new tuple id                   remembers the new tuple id
leaving     nothing                                         TRACK with the xor of the spout's tuple ids
ok          OK with the tuple's own id                      OK with its own id xor the ids emitted under it
fail        FAIL                                            FAIL
==========  ==============================================  ==================================================

Examples
--------
A spout, a bolt that splits, and the acker between them. Messages are tuples in the order of the parameters of
`Acker.ingest`, so a list of them is turned into columns by ``zip``:

>>> from acker import ReferenceAcker, TupleTree
>>> messages = []
>>> tree = TupleTree(messages.append)
>>> queue = []
>>> with tree.track(task_id=0, message_id=42) as mk_ids:     # the spout
...     queue.append(("to be", mk_ids()))
>>> line, ids = queue.pop()
>>> with tree.anchor(ids) as mk_ids:                         # the bolt: OK at the end, FAIL when it raises
...     for word in line.split():
...         queue.append((word, mk_ids()))
>>> ok = TupleTree(messages.append).mk_ack()                 # a last bolt, which emits nothing
>>> for word, ids in queue:
...     for tuple_id in ids:
...         ok(tuple_id)
>>> [message.kind.name for message in messages]
['TRACK', 'OK', 'OK', 'OK']
>>> acker = ReferenceAcker()
>>> acker.ingest(*zip(*messages)).message_id
array([42])
"""

from __future__ import annotations

import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self, SupportsIndex

from acker._engine.ids import IdGenerator
from acker._engine.protocol import (
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    PROTOCOLS,
    Kind,
    PendingTree,
    acker_of,
    check_integer,
    encode_tuple_id,
    parse_tuple_id,
)
from acker.errors import ArgumentTypeError, ArgumentValueError, TupleStateError

# How many acknowledged inputs are remembered, to detect a second acknowledgement.
_ACKNOWLEDGED_KEPT: Final = 4096
# The number of unacknowledged inputs from which on their age is checked, and the age that is worth a warning.
_MANY_INPUTS: Final = 1024
_LONG_MS: Final = 600_000

# A tuple as an encoded id names it: root id, tuple id.
_Id = tuple[int, int]
# Makes a message of a tuple of all its fields; the constructor of a NamedTuple takes twice as long.
_new = tuple.__new__
_weak = weakref.ref
_TRACK: Final = Kind.TRACK
_OK: Final = Kind.OK


class Message(NamedTuple):
    """One message to an acker, in the order of the parameters of `Acker.ingest`."""

    kind: Kind
    root_id: int
    value: int
    task_id: int = 0
    message_id: int = 0


class TupleTree:
    """Makes tuple ids and the messages about them, for one spout task or one bolt task.

    Parameters
    ----------
    ackers : callable, or sequence of callables
        One function for each acker, which takes a `Message`, such as ``list.append``. `acker_of` chooses among several
        by root id.
    protocol : {"storm", "storm-0.9", "fsshelter"}
        The protocol of the ackers.
    next_id : callable, optional
        Returns a new non-zero random int64; by default that of an `IdGenerator`.
    now_ms : callable, optional
        Returns the milliseconds of any clock, for the ages in `oldest`; by default that of `time.monotonic`.

    Notes
    -----
    Use one for each task, on one thread. With the storm protocols it remembers the inputs between `anchor` and their
    acknowledgement; ``len(tree)`` says how many those are. As in Storm, every input has to be acked or failed, and
    once: a second OK would take the first one back and leave the tree open. The last 4,096 that were acknowledged are
    remembered, and to acknowledge one of them again, or to anchor to it, is an error. Inputs that nobody acknowledges
    gather: when they are many (1,024, and from then on at each doubling) and the oldest is ten minutes old, a
    RuntimeWarning says so, once.

    FsShelter sends an ANCHOR twice when two anchors belong to one tree, which cancels itself and leaves the tree open
    for ever, and sends ANCHORs for untracked tuples. Here each tree hears of a tuple id once, and tuples that belong to
    no tree carry an unanchored id.
    """

    def __init__(
        self,
        ackers: Callable[[Message], object] | Sequence[Callable[[Message], object]],
        *,
        protocol: str = "storm",
        next_id: Callable[[], int] | None = None,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        if protocol not in PROTOCOLS:
            names = ", ".join(map(repr, PROTOCOLS))
            raise ArgumentValueError(f"protocol: expected one of {names}, got {protocol!r}")
        self._ackers = (ackers,) if callable(ackers) else tuple(ackers)
        if not self._ackers or not all(map(callable, self._ackers)):
            raise ArgumentTypeError("ackers: expected a callable or a sequence of at least one callable")
        self._one_by_one = protocol == "fsshelter"
        # With one acker nothing is chosen. Root ids were checked when they were parsed or drawn.
        self._deliver = self._ackers[0] if len(self._ackers) == 1 else self._choose_and_send
        self._draws = next_id is None  # so that every id is known to be an int64
        self._next_id = IdGenerator().next if next_id is None else next_id
        self._now_ms = _monotonic_ms if now_ms is None else now_ms
        # An input, from anchor to ack -> xor of the tuple ids emitted under it, for its OK to carry; and since when.
        self._emitted: dict[_Id, int] = {}
        self._since_ms: dict[_Id, int] = {}
        # By root id, the trees that the spout has not closed yet. Weak, so that a tree that is lost can warn of it.
        self._trackings: dict[int, weakref.ref[Tracking]] = {}
        self._acknowledged: set[_Id] = set()
        self._order: deque[_Id] = deque()  # of the acknowledged, the first one first
        self._look_at = _MANY_INPUTS

    def track(self, task_id: SupportsIndex, message_id: SupportsIndex | None) -> Tracking:
        """Begin a tree, on the spout's side.

        Parameters
        ----------
        task_id : int32 >= 0
            The spout task that gets the outcome.
        message_id : int64, or None
            The spout's own id of the message; None: the message is not tracked.

        Returns
        -------
        Tracking
            Call it once for each delivery; it returns the encoded ids that the delivered tuple carries. Close it after
            the last delivery, best by using it as a context manager: with the storm protocols the TRACK, which carries
            the xor of the first tuple ids, leaves then.
        """
        if type(task_id) is not int or not 0 <= task_id <= INT32_MAX:
            task_id = check_integer("task_id", task_id, 0, INT32_MAX)
        if message_id is not None and (type(message_id) is not int or not INT64_MIN <= message_id <= INT64_MAX):
            message_id = check_integer("message_id", message_id, INT64_MIN, INT64_MAX)
        return Tracking(self, task_id, message_id)

    def anchor(self, tuple_ids: Sequence[str]) -> Anchoring:
        """Prepare to emit tuples that belong to the trees of the input, on the bolt's side.

        Parameters
        ----------
        tuple_ids : sequence of str
            The encoded ids that the input tuple carries, or those of several input tuples. Ids of no tree are allowed
            and ignored.

        Returns
        -------
        Anchoring
            Call it once for each delivery; it returns the encoded ids that the delivered tuple carries. As a context
            manager it acknowledges the input at the end: OK, or FAIL if the block raises. Without ``with``, call the
            functions that `mk_ack` returns.
        """
        return Anchoring(self, tuple_ids)

    def mk_ack(self, kind: Kind = Kind.OK) -> Callable[[str], None]:
        """Return the function that acknowledges an input tuple by one of its encoded ids.

        Parameters
        ----------
        kind : Kind.OK or Kind.FAIL

        Returns
        -------
        callable
            `ok` or `fail` of this object.
        """
        if kind not in (Kind.OK, Kind.FAIL):
            raise ArgumentValueError(f"kind: expected Kind.OK or Kind.FAIL, got {kind!r}")
        return self.ok if kind == Kind.OK else self.fail

    def ok(self, tuple_id: str) -> None:
        """Acknowledge an input tuple by one of its encoded ids, after everything was emitted.

        A tuple that belongs to several trees carries several ids: call this once for each. An unanchored id does
        nothing.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            `tuple_id` is no encoded id; nothing is sent.
        TupleStateError
            It was acknowledged already; nothing is sent.
        """
        self._acknowledge(Kind.OK, tuple_id)

    def fail(self, tuple_id: str) -> None:
        """Fail an input tuple that cannot be processed, by one of its encoded ids; otherwise as `ok`."""
        self._acknowledge(Kind.FAIL, tuple_id)

    def _acknowledge(self, kind: Kind, tuple_id: str) -> None:
        parsed = _parse_id(tuple_id)
        if parsed is None:
            return
        acknowledged, order = self._acknowledged, self._order
        if parsed in acknowledged:
            raise TupleStateError(
                f"the input {tuple_id!r} was acknowledged already: each one is acked or failed once, since a second OK"
                " takes the first one back"
            )
        root, value = parsed
        if self._emitted:
            emitted = self._emitted.pop(parsed, 0)
            self._since_ms.pop(parsed, None)
            if kind is _OK:
                value ^= emitted
        acknowledged.add(parsed)
        order.append(parsed)
        if len(order) > _ACKNOWLEDGED_KEPT:
            acknowledged.discard(order.popleft())
        self._deliver(_new(Message, (kind, root, value, 0, 0)))

    def reset_timeout(self, tuple_ids: Sequence[str]) -> None:
        """Ask for more time for the trees of an input tuple: RESET_TIMEOUT, once for each.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            One of them is no encoded id; nothing is sent.
        """
        for root in dict.fromkeys(root for root, _ in _parse_ids(tuple_ids)):
            self._deliver(Message(Kind.RESET_TIMEOUT, root, 0))

    def oldest(self, n: SupportsIndex = 10) -> list[PendingTree]:
        """Return the `n` oldest trees and inputs that wait on this side, for a log line when something hangs.

        Those are trees that a spout has begun and not closed ("tracking"), and inputs that a bolt has anchored to and
        not acknowledged ("anchored"; their message ids are unknown here). For the others see `Acker.oldest`.

        Parameters
        ----------
        n : int >= 0
            The most to return.

        Returns
        -------
        list of PendingTree

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            `n` is no integer >= 0.

        Notes
        -----
        O(n log n) in the number of inputs. Call it from the thread that uses this object.

        Examples
        --------
        >>> from acker import TupleTree
        >>> times = iter([1_000, 4_000])
        >>> tree = TupleTree(print, now_ms=lambda: next(times))
        >>> mk_ids = tree.anchor(["7:5"])
        >>> [(each.state, each.root_id, each.age_ms) for each in tree.oldest()]
        [('anchored', 7, 3000)]
        """
        most, now = check_integer("n", n, 0, INT64_MAX), self._now_ms()
        return sorted(self._pending(now), key=lambda tree: (-tree.age_ms, tree.root_id))[:most]

    def _pending(self, now_ms: int) -> Iterable[PendingTree]:
        for root, reference in list(self._trackings.items()):
            tracking = reference()
            if tracking is not None:
                age_ms = max(0, now_ms - tracking._since_ms)
                spout = (tracking._message_id, age_ms, "tracking", root, tracking._task_id)
                yield PendingTree(*spout, ack_val=tracking._emitted, rotations_left=None)
        for (root, tuple_id), emitted in self._emitted.items():
            age_ms = max(0, now_ms - self._since_ms[root, tuple_id])
            yield PendingTree(None, age_ms, "anchored", root, None, tuple_id ^ emitted, None)

    def _begin(self, inputs: Iterable[_Id]) -> None:
        """Remember inputs that tuples will be anchored to."""
        now = self._now_ms()
        for each in inputs:
            self._emitted.setdefault(each, 0)
            self._since_ms.setdefault(each, now)
        if len(self._emitted) >= self._look_at:
            self._look_at = 2 * len(self._emitted)
            age_ms = now - min(self._since_ms.values())
            if age_ms >= _LONG_MS:
                self._look_at = INT64_MAX
                warnings.warn(
                    f"{len(self._emitted):,} inputs were anchored to and never acknowledged, the oldest for"
                    f" {age_ms / 1000:,.0f} s: acknowledge each by ok or fail, or use anchor as a context manager",
                    RuntimeWarning,
                    stacklevel=4,
                )

    def __len__(self) -> int:
        """Return the number of anchored ids of inputs that are not acknowledged yet."""
        return len(self._emitted)

    def _send(self, message: Message) -> None:
        """Send a message whose root id may come from a caller's `next_id`, which is checked here."""
        if len(self._ackers) == 1 and (self._draws or _is_int64(message.root_id)):
            self._deliver(message)
        else:
            self._choose_and_send(message)

    def _choose_and_send(self, message: Message) -> None:
        self._ackers[acker_of(message.root_id, len(self._ackers))](message)


def _monotonic_ms(clock_ns: Callable[[], int] = time.monotonic_ns) -> int:
    return clock_ns() // 1_000_000


def _is_int64(number: object) -> bool:
    """Return whether this is surely an int64; False is no answer."""
    return type(number) is int and INT64_MIN <= number <= INT64_MAX


def _parse_id(tuple_id: object, place: int | None = None) -> _Id | None:
    """Return root id and tuple id of an encoded id, None for an unanchored one; refuse what no `TupleTree` makes."""
    if not isinstance(tuple_id, str):
        name = "tuple_id" if place is None else f"tuple_ids[{place}]"
        hint = ": call it once for each of the ids that a tuple carries" if isinstance(tuple_id, (list, tuple)) else ""
        raise ArgumentTypeError(f"{name}: expected one encoded id, a str, got {type(tuple_id).__name__}{hint}")
    parsed = parse_tuple_id(tuple_id)
    if parsed is None and parse_tuple_id("0:" + tuple_id) is None:
        name = "tuple_id" if place is None else f"tuple_ids[{place}]"
        raise ArgumentValueError(
            f"{name}: expected an encoded id as mk_ids() returns it, 'root_id:tuple_id' in decimal or 'tuple_id' alone"
            f" where nothing is tracked, got {tuple_id!r}"
        )
    return parsed


def _settled_error(each: _Id) -> TupleStateError:
    return TupleStateError(
        f"the input {encode_tuple_id(*each)!r} was acknowledged; nothing can be anchored to it any more"
    )


def _parse_ids(tuple_ids: object) -> list[_Id]:
    """Return root ids and tuple ids of encoded ids, without the unanchored ones."""
    if isinstance(tuple_ids, (str, bytes)) or not isinstance(tuple_ids, Iterable):
        raise ArgumentTypeError(f"tuple_ids: expected a sequence of encoded ids, got {type(tuple_ids).__name__}")
    parsed = [_parse_id(tuple_id, place) for place, tuple_id in enumerate(tuple_ids)]
    return [each for each in parsed if each is not None]


class Tracking:
    """One tree that a spout begins; see `TupleTree.track`. Calling it returns the ids of one delivery.

    If the ``with`` block raises, the tree is failed: some deliveries may have been sent, and the spout must know.
    """

    __slots__ = (
        "__weakref__",
        "_closed",
        "_deliveries",
        "_emitted",
        "_message_id",
        "_root_id",
        "_since_ms",
        "_task_id",
        "_tree",
    )

    def __init__(self, tree: TupleTree, task_id: int, message_id: int | None) -> None:
        self._tree = tree
        self._task_id = task_id
        self._message_id = message_id
        self._root_id = root = tree._next_id()
        self._emitted = 0
        self._deliveries = 0
        if message_id is None:
            self._closed = True
            return
        self._closed = False
        self._since_ms = tree._now_ms()
        tree._trackings[root] = _weak(self)
        if tree._one_by_one:
            tree._send(Message(Kind.TRACK, root, 0, task_id, message_id))

    def __call__(self) -> list[str]:
        """Return the encoded ids of one more delivery."""
        tree = self._tree
        tuple_id = tree._next_id()
        if self._message_id is None:
            return [str(tuple_id)]
        if self._closed:
            raise TupleStateError("the tree was closed; its TRACK was sent and can take no further tuple id")
        self._emitted ^= tuple_id
        self._deliveries += 1
        if tree._one_by_one:
            tree._send(Message(Kind.ANCHOR, self._root_id, tuple_id))
        if tree._draws:
            return [f"{self._root_id}:{tuple_id}"]
        return [encode_tuple_id(self._root_id, tuple_id)]

    def close(self) -> None:
        """Send the last message of the spout, after the last delivery. A second call does nothing."""
        if self._closed or self._message_id is None:
            return
        self._closed = True
        tree, root = self._tree, self._root_id
        tree._trackings.pop(root, None)
        if not tree._one_by_one:
            track = _new(Message, (_TRACK, root, self._emitted, self._task_id, self._message_id))
            if tree._draws:
                tree._deliver(track)
            else:
                tree._send(track)
        elif self._deliveries == 0:
            # No bolt reads the stream. A TRACK alone never finishes a tree here, and OK does if the ack val is 0.
            tree._send(Message(Kind.OK, root, 0))

    def _fail(self) -> None:
        if self._closed:
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
        if getattr(self, "_closed", True):
            return
        self._tree._trackings.pop(self._root_id, None)
        if not self._tree._one_by_one:
            warnings.warn(
                f"a tree of message id {self._message_id} was never closed: no TRACK was sent, its spout hears nothing",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )


class Anchoring:
    """The trees that a bolt's outputs belong to; see `TupleTree.anchor`. Calling it returns the ids of one delivery."""

    __slots__ = ("_anchors", "_inputs", "_tree")

    def __init__(self, tree: TupleTree, tuple_ids: Sequence[str]) -> None:
        self._tree = tree
        self._inputs = _parse_ids(tuple_ids)
        acknowledged = tree._acknowledged
        # Root id -> the input whose OK carries the emitted ids. One is enough if several inputs share a root: the acker
        # sees the xor of all.
        self._anchors: dict[int, _Id] = {}
        for each in self._inputs:
            if each in acknowledged:
                raise _settled_error(each)
            self._anchors.setdefault(each[0], each)
        tree._begin(self._inputs)

    def __call__(self) -> list[str]:
        """Return the encoded ids of one more delivery."""
        tree = self._tree
        tuple_id = tree._next_id()
        emitted, anchors = tree._emitted, self._anchors
        for anchor in anchors.values():
            if anchor not in emitted:
                raise _settled_error(anchor)
        if not anchors:
            return [str(tuple_id)]
        for root, anchor in anchors.items():
            if tree._one_by_one:
                tree._send(Message(Kind.ANCHOR, root, tuple_id))
            else:
                emitted[anchor] ^= tuple_id
        if tree._draws:
            return [f"{root}:{tuple_id}" for root in anchors]
        return [encode_tuple_id(root, tuple_id) for root in anchors]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tree = self._tree
        acknowledge = tree.mk_ack(Kind.OK if kind is None else Kind.FAIL)
        for each in self._inputs:
            if each in tree._emitted:  # Else it was acknowledged inside the block.
                acknowledge(encode_tuple_id(*each))
