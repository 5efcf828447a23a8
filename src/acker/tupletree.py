"""TupleTree: what a spout and a bolt call so that the right messages reach the acker.

The names and the calls are those of FsShelter's TupleTree (`track`, `anchor`, `mk_ack`), for every protocol:

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

import warnings
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple, Self, SupportsIndex

from acker.errors import AckerError, ArgumentTypeError, ArgumentValueError
from acker.ids import IdGenerator
from acker.protocol import (
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    PROTOCOLS,
    Kind,
    acker_of,
    check_integer,
    encode_tuple_id,
    parse_tuple_id,
)


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
        What takes a `Message`, one for each acker; ``list.append`` will do. Of several, `acker_of` chooses by root id.
    protocol : {"storm", "storm-0.9", "fsshelter"}
        The protocol of those ackers.
    next_id : callable, optional
        Returns a non-zero random int64 each time; left out, an `IdGenerator` of its own.

    Notes
    -----
    Use one for each task, on one thread. With the storm protocols it remembers the inputs between `anchor` and their
    acknowledgement; ``len(tree)`` says how many those are. As in Storm, every input has to be acked or failed.

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
    ) -> None:
        if protocol not in PROTOCOLS:
            names = ", ".join(map(repr, PROTOCOLS))
            raise ArgumentValueError(f"protocol: expected one of {names}, got {protocol!r}")
        self._ackers = (ackers,) if callable(ackers) else tuple(ackers)
        if not self._ackers or not all(map(callable, self._ackers)):
            raise ArgumentTypeError("ackers: expected a callable or a sequence of at least one callable")
        self._one_by_one = protocol == "fsshelter"
        self._next_id = IdGenerator().next if next_id is None else next_id
        # Encoded id of an input, from anchor to ack -> xor of the tuple ids emitted under it, for its OK to carry.
        self._emitted: dict[str, int] = {}

    def track(self, task_id: SupportsIndex, message_id: SupportsIndex | None) -> Tracking:
        """Begin a tree, on the spout's side.

        Parameters
        ----------
        task_id : int32 >= 0
            The spout task that hears the outcome.
        message_id : int64, or None
            The spout's own id of the message; None: the message is not tracked.

        Returns
        -------
        Tracking
            Call it once for each delivery; it returns the encoded ids that the delivered tuple carries. Close it after
            the last delivery, best by using it as a context manager: with the storm protocols the TRACK, which carries
            the xor of the first tuple ids, leaves then.
        """
        task = check_integer("task_id", task_id, 0, INT32_MAX)
        message = None if message_id is None else check_integer("message_id", message_id, INT64_MIN, INT64_MAX)
        return Tracking(self, task, message)

    def anchor(self, tuple_ids: Sequence[str]) -> Anchoring:
        """Prepare to emit tuples that belong to the trees of the input, on the bolt's side.

        Parameters
        ----------
        tuple_ids : sequence of str
            The encoded ids that the input tuple carries; of several input tuples, all of theirs. Ids of no tree are
            allowed and do nothing.

        Returns
        -------
        Anchoring
            Call it once for each delivery; it returns the encoded ids that the delivered tuple carries. As a context
            manager it acknowledges the input at the end: OK, or FAIL when the block raises. Without ``with``, do so by
            the functions that `mk_ack` makes.
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
            Takes each encoded id of an input tuple once, after everything was emitted. An unanchored id does nothing.
        """
        if kind not in (Kind.OK, Kind.FAIL):
            raise ArgumentValueError(f"kind: expected Kind.OK or Kind.FAIL, got {kind!r}")

        def ack(tuple_id: str) -> None:
            parsed = parse_tuple_id(tuple_id)
            if parsed is None:
                return
            root, value = parsed
            emitted = self._emitted.pop(tuple_id, 0)
            if kind == Kind.OK:
                value ^= emitted
            self._send(Message(kind, root, value))

        return ack

    def reset_timeout(self, tuple_ids: Sequence[str]) -> None:
        """Ask for more time for the trees of an input tuple: RESET_TIMEOUT, once for each."""
        parsed = filter(None, map(parse_tuple_id, tuple_ids))
        for root in dict.fromkeys(root for root, _ in parsed):
            self._send(Message(Kind.RESET_TIMEOUT, root, 0))

    def __len__(self) -> int:
        """Return how many anchored ids of inputs are not acknowledged yet."""
        return len(self._emitted)

    def _send(self, message: Message) -> None:
        self._ackers[acker_of(message.root_id, len(self._ackers))](message)


class Tracking:
    """One tree that a spout begins; see `TupleTree.track`. Calling it returns the ids of one delivery.

    Left by an exception, the tree is failed: some deliveries may be under way, and the spout has to hear of it.
    """

    def __init__(self, tree: TupleTree, task_id: int, message_id: int | None) -> None:
        self._tree = tree
        self._task_id = task_id
        self._message_id = message_id
        self._root_id = tree._next_id()
        self._emitted = 0
        self._deliveries = 0
        self._closed = message_id is None
        if message_id is not None and tree._one_by_one:
            tree._send(Message(Kind.TRACK, self._root_id, 0, task_id, message_id))

    def __call__(self) -> list[str]:
        """Return the encoded ids of one more delivery."""
        tree, tuple_id = self._tree, self._tree._next_id()
        if self._message_id is None:
            return [str(tuple_id)]
        if self._closed:
            raise AckerError("the tree was closed; its TRACK is on the way and can take no further tuple id")
        self._emitted ^= tuple_id
        self._deliveries += 1
        if tree._one_by_one:
            tree._send(Message(Kind.ANCHOR, self._root_id, tuple_id))
        return [encode_tuple_id(self._root_id, tuple_id)]

    def close(self) -> None:
        """Send what the acker has to know after the last delivery. A second call does nothing."""
        if self._closed or self._message_id is None:
            return
        self._closed = True
        if not self._tree._one_by_one:
            track = Message(Kind.TRACK, self._root_id, self._emitted, self._task_id, self._message_id)
            self._tree._send(track)
        elif self._deliveries == 0:
            # Nobody reads the stream. TRACK alone never finishes here, and OK finishes a tree whose ack val is 0.
            self._tree._send(Message(Kind.OK, self._root_id, 0))

    def _fail(self) -> None:
        if self._closed:
            return
        # One more edge, which nobody will ever ack: without it the tree may read 0, and ACKED wins over FAILED.
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
        if not getattr(self, "_closed", True) and not self._tree._one_by_one:
            warnings.warn(
                f"a tree of message id {self._message_id} was never closed: no TRACK was sent, its spout hears nothing",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )


class Anchoring:
    """The trees that a bolt's outputs join; see `TupleTree.anchor`. Calling it returns the ids of one delivery."""

    def __init__(self, tree: TupleTree, tuple_ids: Sequence[str]) -> None:
        if isinstance(tuple_ids, str):
            raise ArgumentTypeError("tuple_ids: expected a sequence of encoded ids, got one str")
        self._tree = tree
        # Root id -> the input's id that answers for what is emitted. One is enough where a root comes with several
        # inputs: the acker sees the xor of all of them.
        self._anchors: dict[int, str] = {}
        self._tuple_ids: list[str] = []
        for tuple_id in tuple_ids:
            parsed = parse_tuple_id(tuple_id)
            if parsed is not None:
                self._tuple_ids.append(tuple_id)
                self._anchors.setdefault(parsed[0], tuple_id)
                tree._emitted.setdefault(tuple_id, 0)

    def __call__(self) -> list[str]:
        """Return the encoded ids of one more delivery."""
        tree, tuple_id = self._tree, self._tree._next_id()
        for anchor in self._anchors.values():
            if anchor not in tree._emitted:
                raise AckerError(f"the input {anchor!r} was acknowledged; nothing can be anchored to it any more")
        if not self._anchors:
            return [str(tuple_id)]
        for root, anchor in self._anchors.items():
            if tree._one_by_one:
                tree._send(Message(Kind.ANCHOR, root, tuple_id))
            else:
                tree._emitted[anchor] ^= tuple_id
        return [encode_tuple_id(root, tuple_id) for root in self._anchors]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ack = self._tree.mk_ack(Kind.OK if kind is None else Kind.FAIL)
        for tuple_id in self._tuple_ids:
            if tuple_id in self._tree._emitted:  # Else it was acknowledged inside the block.
                ack(tuple_id)
