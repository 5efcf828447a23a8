"""The contract of `Acker` in plain Python: the specification, the oracle of tests and the baseline of benchmarks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, SupportsIndex

from acker._engine.columns import Columns, check_columns, check_now_ms, columns_from_arrow, find_root_id
from acker._engine.completions import Completions
from acker._engine.protocol import COUNTERS, INT64_MAX, PendingTree, Stats, check_integer, check_options, check_seed
from acker._engine.rotation import LONG_MS, MANY, RotationWatch, warn_never_rotated
from acker._engine.rules import TreeTable
from acker._engine.single_entry import SingleEntry
from acker._engine.snapshot import BlockReader, Header, SnapshotReader, encode_pieces, input_of
from acker._engine.storage import Readable, Writable, open_input, write

if TYPE_CHECKING:
    import numpy.typing as npt


class ReferenceAcker:
    """Decides when every tuple tree is finished; the contract of `Acker` in plain Python.

    Parameters
    ----------
    protocol : {"storm", "storm-0.9", "fsshelter"}
        "storm": messages of a tree in any order. "storm-0.9": so too, and every message restarts the timeout.
        "fsshelter": TRACK first, then ANCHOR before OK.
    buckets : int, 2 to 15
        How many cohorts expire in turn. Rotated every ``timeout / (buckets - 1)``, a tree times out after more than
        ``timeout`` and at most ``timeout * buckets / (buckets - 1)``.
    high_water : int >= 0, or None
        Bounds what is held; None: no limit.
    seed : int, 0 to 2**64 - 1, or None
        Of the native acker's hash; checked here, and not used.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        An option of the wrong type or out of range.

    Examples
    --------
    A spout sends one tuple, whose id is 5, to a bolt, which finishes it:

    >>> from acker import Kind, ReferenceAcker
    >>> acker = ReferenceAcker()
    >>> acker.ingest(Kind.TRACK, [1], [5], task_id=[0], message_id=[42], now_ms=1000)
    Completions(root_id=[], message_id=[], task_id=[], outcome=[], elapsed_ms=[])
    >>> acker.ingest(Kind.OK, [1], [5], now_ms=1007)
    Completions(root_id=[1], message_id=[42], task_id=[0], outcome=[0], elapsed_ms=[7])
    """

    def __init__(
        self,
        *,
        protocol: str = "storm",
        buckets: int = 3,
        high_water: int | None = None,
        seed: int | None = None,
    ) -> None:
        self._options = check_options(protocol, buckets, high_water)
        check_seed(seed)
        self._trees = TreeTable(self._options)
        self._inside = SingleEntry("Acker")
        self._watch = RotationWatch()
        self._publish()

    @property
    def protocol(self) -> str:
        """The name of the rules that hold."""
        return self._options.protocol

    @property
    def buckets(self) -> int:
        """How many cohorts there are."""
        return self._options.buckets

    @property
    def high_water(self) -> int | None:
        """The bound on what is held, in tracked trees; None: no limit."""
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
        """Apply one batch of acker messages in row order; return the trees that it finishes. See `Acker.ingest`.

        Raises
        ------
        ColumnTypeError, ColumnValueError
            The column, the first bad row, what was expected; nothing applied.
        ArgumentTypeError, ArgumentValueError
            `now_ms` is no int64; nothing applied.
        BusyError
            Another thread is inside this acker; nothing applied.

        Notes
        -----
        O(n * buckets).
        """
        columns = check_columns(kind, root_id, value, task_id, message_id)
        return self._ingest(columns, check_now_ms(now_ms))

    def ingest_arrow(self, batch: object, *, now_ms: SupportsIndex = 0) -> Completions:
        """Apply one batch of Arrow columns, found by name; otherwise as `ingest`. See `Acker.ingest_arrow`."""
        columns = columns_from_arrow(batch)
        return self._ingest(columns, check_now_ms(now_ms))

    def rotate(self, *, now_ms: SupportsIndex = 0) -> Completions:
        """Empty death row, which becomes the nursery; return what timed out, in any order. See `Acker.rotate`."""
        now = check_now_ms(now_ms)
        with self._alone():
            self._watch.rotated(now)
            return Completions.from_rows(self._trees.rotate(now))

    def oldest(self, n: SupportsIndex = 10, *, now_ms: SupportsIndex | None = None) -> list[PendingTree]:
        """Return the `n` trees that were begun first, the oldest first. See `Acker.oldest`."""
        most = check_integer("n", n, 0, INT64_MAX)
        now = None if now_ms is None else check_now_ms(now_ms)
        with self._alone():
            return self._trees.oldest(most, self._watch.now_ms if now is None else now)

    def stats(self) -> Stats:
        """Return the counts since creation and the numbers of entries held now. May be called at any time."""
        return Stats(*self._published)

    def snapshot(self) -> bytes:
        """Return everything that this acker holds as bytes; docs/snapshot.md describes them.

        Raises
        ------
        BusyError
            Another thread is inside this acker.
        """
        with self._alone():
            return b"".join(self._pieces())

    def snapshot_to(self, target: str | os.PathLike[str] | Writable) -> int:
        """Write everything that this acker holds to a path or a binary file object; return how many bytes that takes.

        See `Acker.snapshot_to`.
        """
        with self._alone():
            return write(target, self._pieces())

    @classmethod
    def restore(cls, blob: bytes | bytearray | memoryview) -> ReferenceAcker:
        """Return an acker in the state of a snapshot, whichever implementation took it.

        Raises
        ------
        SnapshotError
            The bytes are damaged.
        ArgumentTypeError
            `blob` is not bytes.
        """
        return cls._read(SnapshotReader(input_of(blob)))

    @classmethod
    def restore_from(cls, source: str | os.PathLike[str] | Readable) -> ReferenceAcker:
        """Return an acker in the state of a snapshot in a file, which is read to its end. See `Acker.restore_from`."""
        with open_input(source) as opened:
            return cls._read(SnapshotReader(opened))

    @classmethod
    def _read(cls, reader: SnapshotReader) -> ReferenceAcker:
        header = reader.header
        acker = cls(**header.options._asdict())
        acker._trees.counts.update(dict(zip(COUNTERS, header.counters, strict=True)))
        reader.fill(BlockReader(reader, acker._trees.restore_block))
        acker._publish()
        return acker

    def __len__(self) -> int:
        return self.stats().pending

    def __contains__(self, root_id: object) -> bool:
        root = find_root_id(root_id)
        with self._alone():
            return root is not None and root in self._trees

    def __repr__(self) -> str:
        options = self._options
        return (
            f"{type(self).__name__}(protocol={options.protocol!r}, buckets={options.buckets}, "
            f"high_water={options.high_water}): {len(self)} pending"
        )

    @property
    def nbytes(self) -> int:
        """About the bytes that the trees take, without those of the integers in them."""
        return self._published_bytes

    def _ingest(self, columns: Columns, now_ms: int) -> Completions:
        with self._alone():
            self._look_for_rotations(now_ms)
            return Completions.from_rows(self._trees.apply(columns, now_ms))

    def _look_for_rotations(self, now_ms: int) -> None:
        """Warn, if there is reason to, that nobody rotates: before a batch, so that the warning may be an error."""
        trees = self._trees
        held, ended = len(trees), trees.counts["acked"] + trees.counts["failed"]
        if not self._watch.look(now_ms, held, trees.open, ended):
            return
        age_ms = trees.oldest(1, now_ms)[0].age_ms
        if age_ms < LONG_MS and not (trees.open >= MANY and ended == 0):
            self._watch.look_again(age_ms)
            return
        self._watch.end()
        warn_never_rotated(held, trees.open, ended, age_ms)

    def _pieces(self) -> Iterator[bytes]:
        header = Header(self._options, tuple(self._trees.counts.values()), len(self._trees))
        return encode_pieces(header, self._trees.blocks())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._inside:
            try:
                yield
            finally:
                self._publish()

    def _publish(self) -> None:
        """Let `stats`, `len` and `nbytes` show this moment: another thread may read them during the next call."""
        trees = self._trees
        self._published = (*trees.counts.values(), len(trees), trees.open)
        self._published_bytes = trees.nbytes
