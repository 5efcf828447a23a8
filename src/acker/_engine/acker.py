"""The native acker: columns of messages in, columns of finished trees out."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from itertools import chain
from typing import TYPE_CHECKING, Final, NoReturn, Self, SupportsIndex

from acker._engine.columns import Columns, check_columns, check_now_ms, columns_from_arrow, find_root_id
from acker._engine.completions import Completions
from acker._engine.interrupts import slices, tell_ingested, tell_rotated
from acker._engine.native import core, kernel
from acker._engine.protocol import (
    INT64_MAX,
    PROTOCOLS,
    AckerOptions,
    PendingTree,
    Stats,
    check_integer,
    check_options,
    check_seed,
)
from acker._engine.snapshot import Header, SnapshotReader, checksum_at_end, input_of
from acker._engine.storage import Readable, Writable, open_input, write
from acker.errors import ColumnValueError

if TYPE_CHECKING:
    import numpy.typing as npt


class NativeAcker(ABC):
    """The methods that `Acker` and `ShardedAcker` share, over a native core that each of them makes."""

    __slots__ = ("_core", "_options")

    @abstractmethod
    def _make_core(self, options: AckerOptions, seed: int) -> core.Core:
        """Return a new core."""

    def _open(self, options: AckerOptions, seed: object = None) -> None:
        self._core = self._make_core(options, check_seed(seed))
        self._options = options

    def _read(self, reading: SnapshotReader) -> Self:
        self._open(reading.header.options)
        reading.fill(self._core.reader(reading.checksum, reading.header.entries))
        self._core.set_counters(reading.header.counters)
        return self

    @property
    def protocol(self) -> str:
        """The name of the protocol."""
        return self._options.protocol

    @property
    def buckets(self) -> int:
        """The number of buckets."""
        return self._options.buckets

    @property
    def high_water(self) -> int | None:
        """The limit on tracked trees; None: no limit."""
        return self._options.high_water

    def ingest(
        self,
        kind: npt.ArrayLike,
        root_id: npt.ArrayLike,
        value: npt.ArrayLike,
        task_id: npt.ArrayLike | None = None,
        message_id: npt.ArrayLike | None = None,
        *,
        now_ms: SupportsIndex = 0,
    ) -> Completions:
        """Apply one batch of acker messages in row order; return the trees it finishes.

        Row i has the effect of the i-th call of Storm's Acker.execute (Storm 2.x daemon/Acker.java), but for a second
        TRACK of a tracked root, which is ignored.

        Parameters
        ----------
        kind : (n,) int8, or one Kind for all rows
        root_id : (n,) int64
            Tree the row belongs to. Any value, 0 and negatives included.
        value : (n,) int64
            TRACK: xor of the tuple ids the spout sent. OK: the finished tuple's id xor the ids emitted under it. Not
            used by FAIL and RESET_TIMEOUT.
        task_id : (n,) int32, >= 0, optional
            Spout task to notify. Used in TRACK rows only; may be omitted if there are none.
        message_id : (n,) int64, optional
            The spout's own id. Used in TRACK rows only; 0 if omitted.
        now_ms : int64
            Milliseconds since any fixed epoch: the start time of new trees and the end time of finished ones.

        Returns
        -------
        Completions
            0 <= m <= n rows, in the order in which the messages finished the trees. The arrays own their memory.

        Raises
        ------
        ColumnTypeError, ColumnValueError
            The column, the first bad row, what was expected; nothing applied. Integers of another width are converted
            when no value changes.
        ArgumentTypeError, ArgumentValueError
            `now_ms` is no int64; nothing applied.
        AckerMemoryError
            The table could not grow; `rows_applied` leading rows took effect and `completions` are theirs.
        BusyError
            Another thread is inside this acker; nothing applied.
        KeyboardInterrupt, and whatever else a signal's handler raises
            Python looks at signals after every 2**20 rows. The exception has the attributes of `AckerMemoryError`:
            `rows_applied` leading rows took effect, and `completions` are theirs.

        Notes
        -----
        Expected O(n). Releases the GIL.
        """
        try:
            completions = self._core.ingest(kind, root_id, value, task_id, message_id, now_ms)
        except BaseException as error:
            tell_ingested(error, self._core.last_call)
            raise
        if completions is None:
            return self._ingest(check_columns(kind, root_id, value, task_id, message_id), check_now_ms(now_ms))
        return completions

    def ingest_arrow(self, batch: object, *, now_ms: SupportsIndex = 0) -> Completions:
        """Apply an Arrow batch, or a stream of batches as one; columns by the names of `MESSAGE_SCHEMA`.

        Parameters
        ----------
        batch : object with ``__arrow_c_array__`` or ``__arrow_c_stream__``
            A record batch, table or data frame of any library. Read without a copy where it is one batch with the types
            of `MESSAGE_SCHEMA`. Further columns are ignored; ``task_id`` and ``message_id`` may be missing as in
            `ingest`.
        now_ms : int64
            As in `ingest`, as are the result and the errors.
        """
        return self._ingest(columns_from_arrow(batch), check_now_ms(now_ms))

    def _ingest(self, columns: Columns, now_ms: int) -> Completions:
        parts: list[Completions] = []
        self._core.last_call.take()
        try:
            for part in slices(len(columns.root_id), columns):
                completions = self._core.ingest(*part, now_ms)  # type: ignore[call-arg]
                if completions is None:
                    raise ColumnValueError("a column changed after it was checked: another thread writes to it")
                parts.append(completions)
            return parts[0] if len(parts) == 1 else Completions.concat(parts)
        except BaseException as error:
            tell_ingested(error, self._core.last_call, parts)
            raise

    def rotate(self, *, now_ms: SupportsIndex = 0) -> Completions:
        """Empty death row, which becomes the nursery; return its trees as TIMED_OUT, in any order.

        Entries without a TRACK are removed too, and counted in ``stats().orphans``.

        Parameters
        ----------
        now_ms : int64
            End time of the trees, from which ``elapsed_ms`` is computed.

        Raises
        ------
        MemoryError
            No memory for the result; nothing was removed.
        BusyError
            Another thread is inside this acker; nothing was removed.
        KeyboardInterrupt, and whatever else a signal's handler raises
            If it has an attribute `completions`, the rotation was done and these are its trees.

        Notes
        -----
        O(1) if the bucket is empty, otherwise one sweep over the table, which shrinks when little is left in it.
        Releases the GIL.
        """
        now = check_now_ms(now_ms)
        self._core.last_call.take()
        try:
            return self._core.rotate(now)
        except BaseException as error:
            tell_rotated(error, self._core.last_call)
            raise

    def oldest(self, n: SupportsIndex = 10, *, now_ms: SupportsIndex | None = None) -> list[PendingTree]:
        """Return the `n` oldest trees, the oldest first, for a look when something hangs.

        Parameters
        ----------
        n : int >= 0
            The most trees to return.
        now_ms : int64, optional
            Ages are counted up to this time. If omitted: up to the `now_ms` of the last `ingest` or `rotate`; before
            the first of these calls, and after a restore, every age is 0.

        Returns
        -------
        list of PendingTree
            0 to `n` trees, entries without a TRACK included. Trees of one age are sorted by ``rotations_left``, then by
            root id.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            `n` is no integer >= 0, or `now_ms` no int64.
        MemoryError
            No memory for the result.
        BusyError
            Another thread is inside this acker.

        Notes
        -----
        One pass over the table: milliseconds for a million trees. Releases the GIL; takes memory for `n` trees.

        Examples
        --------
        >>> from acker import Acker, Kind
        >>> acker = Acker()
        >>> _ = acker.ingest(Kind.TRACK, [7, 8], [1 ^ 2, 4], [0, 0], [42, 43], now_ms=1_000)
        >>> _ = acker.ingest(Kind.OK, [7], [1], now_ms=3_000)
        >>> for tree in acker.oldest(1):
        ...     print(tree.message_id, tree.age_ms, tree.state, tree.ack_val)
        42 2000 tracked 2
        """
        most = check_integer("n", n, 0, INT64_MAX)
        rows = self._core.oldest(most, None if now_ms is None else check_now_ms(now_ms))
        return [_pending_tree(row) for row in rows]

    def stats(self) -> Stats:
        """Return the counts since creation and the numbers of trees now."""
        return Stats(*self._core.stats())

    def snapshot(self) -> bytes:
        """Return the whole state of this acker as bytes for `restore`; docs/snapshot.md describes the format.

        Raises
        ------
        MemoryError
            No memory for the result.
        BusyError
            Another thread is inside this acker.

        Notes
        -----
        One sweep over the table. Releases the GIL.
        """
        with self._core.writer() as writer:
            return writer.whole(self._header(writer))

    def snapshot_to(self, target: str | os.PathLike[str] | Writable) -> int:
        """Write the whole state of this acker to a file, block by block, with one block in memory.

        Parameters
        ----------
        target : path or binary file object
            The file at a path is replaced atomically, after everything has reached the disk: a reader finds the old
            snapshot or the new one, even after a crash. Of a file object only `write` is called; the caller flushes
            and closes it.

        Returns
        -------
        int
            The number of bytes written.

        Raises
        ------
        OSError
            Raised by the system or the file object. The file at a path is unchanged. A file object holds a part of a
            snapshot, which `restore_from` refuses.
        ArgumentTypeError
            `target` is neither.
        BusyError
            Another thread is inside this acker. Until this call returns, every other call gets this error.

        Notes
        -----
        Only its owner may read a new file, since a snapshot holds ids and is ordered by the hash; an existing file
        keeps its permissions. A killed process leaves a file named ``.acker-*.tmp`` behind.
        """
        with self._core.writer() as writer:
            header = self._header(writer)
            return write(target, chain([header], iter(writer.next_block, b"")))

    def _header(self, writer: core.SnapshotWriter) -> bytes:
        header = Header(self._options, writer.counters, writer.entries).pack()
        writer.begin(checksum_at_end(header))
        return header

    @property
    def nbytes(self) -> int:
        """The bytes of tables and buffers."""
        return self._core.nbytes

    def __len__(self) -> int:
        return self._core.pending

    def __contains__(self, root_id: object) -> bool:
        found = find_root_id(root_id)
        return found is not None and self._core.contains(found)

    def __reduce_ex__(self, version: SupportsIndex) -> NoReturn:
        """Refuse `copy` and `pickle`: a shallow copy would share the table of this acker."""
        raise TypeError(f"{type(self).__name__} cannot be copied or pickled: use snapshot() and restore()")

    def __repr__(self) -> str:
        options = self._options
        shown = f"protocol={options.protocol!r}, buckets={options.buckets}, high_water={options.high_water}"
        return f"{type(self).__name__}({shown}): {len(self)} pending"


# Indexed by the number that the core gives a state.
_STATES: Final = ("untracked", "failed", "tracked")


def _pending_tree(row: tuple[int, ...]) -> PendingTree:
    message_id, age_ms, state, root_id, task_id, ack_val, rotations_left = row
    is_tracked = _STATES[state] == "tracked"
    message, task = (message_id, task_id) if is_tracked else (None, None)
    return PendingTree(message, age_ms, _STATES[state], root_id, task, ack_val, rotations_left)


class Acker(NativeAcker):
    """Storm's XOR tuple-tree acker: finds out when everything derived from a message is finished.

    Parameters
    ----------
    protocol : {"storm", "storm-0.9", "fsshelter"}
        The rules to follow; see docs/protocol.md.
    buckets : int, 2 to 15
        The number of cohorts that expire in turn. With one `rotate` every P, a tree times out after more than
        (buckets - 1) P and at most buckets P.
    high_water : int >= 0, optional
        Limits the memory: while the acker holds more than twice this many tracked trees, it answers a TRACK with
        REJECTED. None: no limit.
    seed : int, 0 to 2^64 - 1, optional
        Seed of the hash that places root ids; by default drawn from the operating system. Keep it secret if others
        choose root ids: with it they could make the acker slow. Snapshots do not hold it; a restored acker draws a new
        one.

    Notes
    -----
    Use it from one thread at a time: a second thread gets `BusyError` and changes nothing. `len`, `stats` and `nbytes`
    may be called at any time and then show a recent moment.

    Examples
    --------
    >>> from acker import Acker, Kind
    >>> a = Acker()
    >>> len(a.ingest([Kind.TRACK, Kind.OK], [7, 7], [1 ^ 2, 1], [0, 0], [42, 0]))
    0
    >>> done = a.ingest([Kind.OK], [7], [2])
    >>> done.message_id.tolist(), done.outcome.tolist()
    ([42], [0])
    """

    __slots__ = ()

    def __init__(
        self,
        *,
        protocol: str = "storm",
        buckets: int = 3,
        high_water: int | None = None,
        seed: int | None = None,
    ) -> None:
        self._open(check_options(protocol, buckets, high_water), seed)

    def _make_core(self, options: AckerOptions, seed: int) -> core.Core:
        protocol = PROTOCOLS.index(options.protocol)
        return core.Core(protocol, options.buckets, options.high_water, seed, kernel())

    @classmethod
    def restore(cls, blob: bytes | bytearray | memoryview) -> Acker:
        """Return an acker in the state of a snapshot.

        Raises
        ------
        SnapshotError
            The bytes are damaged, of an unknown version, or no snapshot.
        MemoryError
            No memory for the table.
        """
        return cls.__new__(cls)._read(SnapshotReader(input_of(blob)))

    @classmethod
    def restore_from(cls, source: str | os.PathLike[str] | Readable) -> Acker:
        """Return an acker in the state of a snapshot in a file.

        Parameters
        ----------
        source : path or binary file object
            Read to its end, block by block, with one block in memory; bytes after the snapshot count as damage. A file
            object is read from its present position and stays open.

        Raises
        ------
        SnapshotError
            The bytes are damaged, of an unknown version, or no snapshot.
        OSError
            Raised by the system or the file object.
        ArgumentTypeError
            `source` is neither.
        MemoryError
            No memory for the table.
        """
        with open_input(source) as bytes_of:
            return cls.__new__(cls)._read(SnapshotReader(bytes_of))
