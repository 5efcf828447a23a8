"""The acker on several cores: every root id belongs to one of its shards."""

from __future__ import annotations

import os
from typing import Self, SupportsIndex

from acker._engine.acker import NativeAcker
from acker._engine.native import core, kernel
from acker._engine.protocol import PROTOCOLS, AckerOptions, check_integer, check_options, check_seats
from acker._engine.snapshot import SnapshotReader, input_of
from acker._engine.storage import Readable, open_input


class ShardedAcker(NativeAcker):
    """An acker that applies each batch on several threads, each with its own shards of the trees.

    A tree belongs to shard ``acker_of(root_id, shards)``. The completions are those of an `Acker`, in order within a
    root but not across roots. It is faster if the tables are larger than the caches and the batches have
    thousands of rows; a batch of a few rows costs more than in an `Acker`.

    Parameters
    ----------
    shards : int, 1 to 256
        The number of tables. A snapshot may be restored with another number.
    threads : int, 1 to `shards`, optional
        The number of threads that apply a batch, the calling one included. None: one for each shard, at most one for
        each core that this process may use. If the system refuses threads, the calling one does their part.
    protocol, buckets, seed
        As in `Acker`.
    high_water : int >= 0, optional
        Limits all shards together as it would limit one `Acker`. Each shard has an equal part of its
        ``2 * high_water + 1`` seats for open trees, and rejects when its own are taken, even if others are free. Each
        shard needs a seat, so `high_water` is at least ``shards // 2``.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        An argument of the wrong type or out of range, or more shards than `high_water` has seats.
    MemoryError
        No memory for the shards.

    Notes
    -----
    Use it from one thread at a time, as `Acker`. The first batch starts the helper threads, in a forked process too.
    After a batch they spin for about 50 microseconds, then sleep; they never hold the GIL.

    All shards apply a batch or, if memory is missing, none: memory is reserved before the first row. It is not touched,
    and not counted in `nbytes`, until a table grows into it. So the ``rows_applied`` of an `AckerMemoryError` is 0, or
    a multiple of 2**20 where the batch has more rows: it is applied in slices, with a look at signals in between. If
    memory runs out in spite of the reserve, which takes more than a hundred root ids on one line of a table, `ingest`
    raises `UnusableError`: some shards have applied the batch, and the acker must be restored from a snapshot.

    Examples
    --------
    >>> from acker import Kind, ShardedAcker
    >>> a = ShardedAcker(4)
    >>> len(a.ingest(Kind.TRACK, [1, 2, 3], [8, 9, 10], [0, 0, 0], [41, 42, 43]))
    0
    >>> done = a.ingest(Kind.OK, [3, 1], [10, 8])
    >>> sorted(done.message_id.tolist())
    [41, 43]
    """

    __slots__ = ("_shards", "_threads")

    def __init__(
        self,
        shards: SupportsIndex,
        threads: SupportsIndex | None = None,
        *,
        protocol: str = "storm",
        buckets: int = 3,
        high_water: int | None = None,
        seed: int | None = None,
    ) -> None:
        self._divide(shards, threads)
        self._open(check_options(protocol, buckets, high_water), seed)

    def _divide(self, shards: SupportsIndex, threads: SupportsIndex | None) -> None:
        self._shards = check_integer("shards", shards, 1, core.SHARDS_MAX)
        most = min(self._shards, cores()) if threads is None else threads
        self._threads = check_integer("threads", most, 1, self._shards)

    def _make_core(self, options: AckerOptions, seed: int) -> core.Core:
        protocol, buckets, high_water = options
        check_seats(self._shards, high_water)
        code = PROTOCOLS.index(protocol)
        return core.Core(code, buckets, high_water, seed, kernel(), self._shards, self._threads)

    @property
    def shards(self) -> int:
        """The number of tables."""
        return self._shards

    @property
    def threads(self) -> int:
        """The number of threads that apply a batch, the calling one included."""
        return self._threads

    @classmethod
    def restore(
        cls, blob: bytes | bytearray | memoryview, shards: SupportsIndex, threads: SupportsIndex | None = None
    ) -> ShardedAcker:
        """Return an acker in the state of a snapshot, of an `Acker` or of any number of shards.

        Parameters
        ----------
        blob : bytes
            What `snapshot` has returned.
        shards, threads
            As of a new acker: a snapshot does not hold them. Its `high_water` must have a seat for each shard.

        Raises
        ------
        SnapshotError
            The bytes are damaged, of an unknown version, or no snapshot.
        ArgumentTypeError, ArgumentValueError
            `shards` or `threads` is of the wrong type or out of range, or `high_water` has fewer seats than shards.
        """
        return cls._new(shards, threads)._read(SnapshotReader(input_of(blob)))

    @classmethod
    def restore_from(
        cls,
        source: str | os.PathLike[str] | Readable,
        shards: SupportsIndex,
        threads: SupportsIndex | None = None,
    ) -> ShardedAcker:
        """Return an acker in the state of a snapshot in a file.

        Parameters
        ----------
        source : path or binary file object
            As in `Acker.restore_from`, as are the further errors.
        shards, threads
            As in `restore`.
        """
        made = cls._new(shards, threads)
        with open_input(source) as bytes_of:
            return made._read(SnapshotReader(bytes_of))

    @classmethod
    def _new(cls, shards: SupportsIndex, threads: SupportsIndex | None) -> Self:
        made = cls.__new__(cls)
        made._divide(shards, threads)
        return made

    def __repr__(self) -> str:
        return f"{super().__repr__()}, {self._shards} shards, {self._threads} threads"


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
