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

from collections.abc import Callable, Sequence
from typing import Final, NoReturn, SupportsIndex

from acker._engine.misuse import copy_error
from acker._engine.native import core
from acker._engine.protocol import INT64_MAX, PROTOCOLS, Kind, Message, PendingTree, check_integer
from acker.errors import ArgumentTypeError, ArgumentValueError

Tracking = core.Tracking
Anchoring = core.Anchoring

# An enum's attributes take longer to find than a module's.
_OK: Final = Kind.OK
_FAIL: Final = Kind.FAIL


class TupleTree(core.TreeBase):
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
        try:
            targets = (ackers,) if callable(ackers) else tuple(ackers)
        except TypeError:
            targets = ()
        if not targets or not all(map(callable, targets)):
            raise ArgumentTypeError("ackers: expected a callable or a sequence of at least one callable")
        super().__init__(targets, protocol == "fsshelter", next_id, now_ms)

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
        return self._track(task_id, message_id)

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
        return self._anchor(tuple_ids)

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
        self._acknowledge(_OK, tuple_id)

    def fail(self, tuple_id: str) -> None:
        """Fail an input tuple that cannot be processed, by one of its encoded ids; otherwise as `ok`."""
        self._acknowledge(_FAIL, tuple_id)

    def reset_timeout(self, tuple_ids: Sequence[str]) -> None:
        """Ask for more time for the trees of an input tuple: RESET_TIMEOUT, once for each.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            One of them is no encoded id; nothing is sent.
        """
        self._reset_timeout(tuple_ids)

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
        most = check_integer("n", n, 0, INT64_MAX)
        return sorted(self._waiting(), key=lambda tree: (-tree.age_ms, tree.root_id))[:most]

    def __reduce__(self) -> NoReturn:
        raise copy_error("TupleTree")
