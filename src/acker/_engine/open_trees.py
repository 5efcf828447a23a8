"""The trees of one shard that stay open across micro-batches, in a native table that processes can pass on.

Each micro-batch is a set of messages (see *Combined messages* in the protocol): a `Combiner` gathers it by root, and
`OpenTrees` holds the trees that are still open after it. It returns what a log must record of each change, and is
rebuilt from that log.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from acker._engine.completions import Completions
from acker._engine.native import core
from acker._engine.protocol import check_seed

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from acker._engine.combiner import Cohorts, Partials

TOKEN_BYTES = 16

# Open trees are counted by age: under a second, under ten, ..., a day or more.
AGES_MS = (1_000, 10_000, 60_000, 600_000, 3_600_000, 6 * 3_600_000, 24 * 3_600_000)
_AGES = np.array(AGES_MS, np.int64)

_CAPACITY_MIN = 1024


class Memory(Protocol):
    """Memory that is zero at first."""

    @property
    def view(self) -> mmap.mmap:
        """The bytes."""

    def close(self) -> None:
        """Give it back."""


class PrivateMemory:
    """Memory that only this process has."""

    def __init__(self, size_bytes: int) -> None:
        self.view = mmap.mmap(-1, size_bytes)

    def close(self) -> None:
        """Give it back."""
        self.view.close()


class TreeCounts(NamedTuple):
    """How often each event happened; the names are those of `acker.Stats`."""

    tracked: int = 0
    acked: int = 0
    failed: int = 0
    timed_out: int = 0
    rejected: int = 0
    duplicates: int = 0
    unknown: int = 0
    orphans: int = 0
    dropped: int = 0
    resets: int = 0
    empty: int = 0

    def plus(self, other: TreeCounts) -> TreeCounts:
        """Return the sums."""
        return TreeCounts(*(mine + others for mine, others in zip(self, other, strict=True)))


class TreeEntries(NamedTuple):
    """The columns of some entries, as a log keeps them.

    Attributes
    ----------
    root_id, value : (n,) int64
        The value is the xor of all messages, the TRACK included.
    message_id : (n,) int64
        0 where there was no TRACK.
    start_ms, since_ms : (n,) int64
        When the entry was created, and when it was last moved to the nursery.
    task_id : (n,) int32
        Of the TRACK; -1 where there was none, -2 where there was none but a FAIL, -4 where there was none but a
        RESET_TIMEOUT, which only event times keep.
    """

    root_id: npt.NDArray[np.int64]
    value: npt.NDArray[np.int64]
    message_id: npt.NDArray[np.int64]
    start_ms: npt.NDArray[np.int64]
    since_ms: npt.NDArray[np.int64]
    task_id: npt.NDArray[np.int32]


class MergeResult(NamedTuple):
    """The results of a micro-batch.

    Attributes
    ----------
    completions : Completions
    changed : (n,) uint32
        Positions of entries that differ from the log; valid until the table changes again.
    gone : (2, m) int64
        Root ids and starts of entries that are gone but still in the log.
    counts : TreeCounts
    """

    completions: Completions
    changed: npt.NDArray[np.uint32]
    gone: npt.NDArray[np.int64]
    counts: TreeCounts


class ExpireResult(NamedTuple):
    """The results of an expiry: completions, the start of the oldest entry left (or now), counts, open trees by age."""

    completions: Completions
    oldest_ms: int
    counts: TreeCounts
    ages: tuple[int, ...]


class OpenTrees:
    """The open trees of one shard.

    Parameters
    ----------
    allocate : callable
        Returns memory of at least the given number of bytes, all zero.
    seed : int, 0 to 2**64 - 1, optional
        Of the hash that places root ids; random by default.

    Notes
    -----
    48 bytes an entry and 12 to 24 of index; while the table grows or shrinks, the old one stands beside the new one.
    Expected O(1) a tree. One thread at a time.

    Examples
    --------
    >>> from acker import Kind
    >>> from acker._engine.combiner import Combiner
    >>> from acker._engine.open_trees import OpenTrees
    >>> trees = OpenTrees()
    >>> for kind, value in (Kind.TRACK, 5), (Kind.OK, 5):
    ...     combiner = Combiner()
    ...     combiner.add([kind], [7], [value], [3], [42])
    ...     done = trees.merge(combiner.partials()[0], time_ms=1000).completions
    >>> done.message_id.tolist(), done.outcome.tolist(), len(trees)
    ([42], [0], 0)
    """

    def __init__(self, allocate: Callable[[int], Memory] = PrivateMemory, *, seed: int | None = None) -> None:
        self._allocate = allocate
        self._open(_CAPACITY_MIN, check_seed(seed))

    def _open(self, capacity: int, seed: int) -> None:
        self.memory = self._allocate(core.open_trees_bytes(capacity))
        self._table = core.OpenTreesTable(self.memory.view, capacity, seed)

    @classmethod
    def attach(cls, memory: Memory, allocate: Callable[[int], Memory] = PrivateMemory) -> OpenTrees:
        """Return the open trees in some memory, as its holder left them between two calls.

        Does not look at the entries: that would take longer than a micro-batch.

        Raises
        ------
        ValueError   the memory holds no table.
        """
        trees = cls.__new__(cls)
        trees._allocate = allocate
        trees.memory = memory
        trees._table = core.OpenTreesTable(memory.view)
        return trees

    def close(self) -> None:
        """Release the memory, which other holders keep as it is. The object cannot be used afterwards."""
        del self._table
        self.memory.close()

    @property
    def open(self) -> int:
        """Entries that have a TRACK."""
        return self._table.open

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return len(self.memory.view)

    @property
    def token(self) -> bytes:
        """16 bytes of the owner's choice, stored with the table; zeros at first."""
        return self._table.token

    @token.setter
    def token(self, token: bytes) -> None:
        self._table.token = token

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, root_id: int) -> bool:
        return self._table.contains(root_id)

    def reserve(self, more: int) -> None:
        """Make room for `more` entries.

        Raises
        ------
        MemoryError, OSError   there is not enough memory; nothing has changed.
        """
        needed = len(self._table) + more
        if needed <= self._table.capacity:
            return
        self._move_to(max(needed, self._table.capacity + self._table.capacity // 2))

    def shrink(self) -> None:
        """Release memory if less than a quarter is used. Positions are invalid afterwards."""
        capacity = max(2 * len(self._table), _CAPACITY_MIN)
        if 2 * capacity < self._table.capacity:
            # If there is no memory for the smaller table, the larger one stays.
            with suppress(MemoryError, OSError):
                self._move_to(capacity)

    def _move_to(self, capacity: int) -> None:
        old_table, old_memory = self._table, self.memory
        self._open(capacity, old_table.seed)
        old_table.copy_to(self._table)
        del old_table
        old_memory.close()

    def merge(
        self,
        partials: Partials,
        *,
        time_ms: int,
        high_water: int | None = None,
        every_message_refreshes: bool = False,
        cohorts: Cohorts | None = None,
    ) -> MergeResult:
        """Apply one micro-batch, and settle each of its trees once.

        Parameters
        ----------
        partials : Partials
            One row a root, no root twice; with `cohorts` one row a root and cohort.
        time_ms : int64
            When the micro-batch is, on the table's clock, which must not go back. Not read with `cohorts`.
        high_water : int, optional
            While more than twice as many tracked entries are held a new TRACK is REJECTED, and while more than four
            times as many entries are held other messages of unknown roots are dropped. A tree that is finished inside
            the micro-batch is not held, so it is always ACKED.
        every_message_refreshes : bool
            The rule of protocol "storm-0.9".
        cohorts : Cohorts, optional
            Each message has its own time: see *Event time* in docs/streaming-reference.md. The same for all
            micro-batches of a table.

        Raises
        ------
        MemoryError, OSError   there is no room for what stays open; nothing has changed.
        """
        if cohorts is None:
            partials = partials._replace(event_ms=None)
        else:
            # Roots in ascending order, so that the same ones meet the limits when the micro-batch is applied again.
            partials = partials.at(np.lexsort((partials.event_ms, partials.root_id)))
        # Most trees end in the micro-batch in which they begin: these need no room.
        self.reserve(
            self._table.room_for(partials.root_id, partials.value, partials.flags, partials.track_value, cohorts)
        )
        rules = (time_ms, high_water, every_message_refreshes, cohorts)
        done, changed, gone, counts = self._table.merge(*partials, *rules)
        return MergeResult(Completions(*done), changed, gone, TreeCounts(*counts))

    def expire(self, before_ms: int, now_ms: int) -> ExpireResult:
        """Remove the entries last moved to the nursery before a moment: tracked ones time out, others are orphans."""
        done, oldest_ms, counts, ages = self._table.expire(before_ms, now_ms, _AGES)
        return ExpireResult(Completions(*done), oldest_ms, TreeCounts(*counts), tuple(ages.tolist()))

    def take(self, position: npt.NDArray[np.uint32], chunk: int) -> TreeEntries:
        """Return the entries at these positions, and note the chunk of the log, from 1, to which they go."""
        return TreeEntries(*self._table.take(position, chunk))

    def logged_before(self, chunk: int, most: int) -> npt.NDArray[np.uint32]:
        """Return the positions of at most `most` logged entries whose chunk is before this one.

        Looks only into parts of the table that may have one, so its time depends on the chunks and not on the table.
        """
        return self._table.logged_before(chunk, most)

    def put(self, entries: TreeEntries, chunk: int) -> None:
        """Insert the entries of a chunk of the log, or overwrite those with the same root and start."""
        self.reserve(len(entries.root_id))
        self._table.put(*entries, chunk)

    def erase(self, gone: npt.NDArray[np.int64]) -> None:
        """Remove the entries that a chunk of the log names by root id and start; unknown ones are ignored."""
        self._table.erase(gone[0], gone[1])
