"""ReferenceAcker: the acker in plain Python dicts and integers. It is the specification, the oracle and the baseline.

The comments in angle brackets name the rules of the acker protocol that a line implements; docs/protocol.md has their
text. Speed is no concern here, reading is.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice, repeat
from typing import TYPE_CHECKING, SupportsIndex

from acker._engine.columns import Columns, check_columns, check_now_ms, columns_from_arrow, find_root_id
from acker._engine.completions import Completions
from acker._engine.protocol import (
    COUNTERS,
    INT64_MAX,
    Kind,
    Outcome,
    PendingTree,
    Stats,
    check_integer,
    check_options,
    check_seed,
    elapsed_ms,
    start_tick,
    track_rank,
)
from acker._engine.rotation import LONG_MS, MANY, RotationWatch, warn_never_rotated
from acker._engine.single_entry import Alone
from acker._engine.snapshot import (
    BLOCK_ENTRIES,
    FAILED,
    TRACKED,
    UNTRACKED,
    BlockReader,
    Entries,
    Header,
    Reading,
    pieces_of,
    source_of,
)
from acker._engine.storage import Readable, Writable, opened, write

if TYPE_CHECKING:
    import numpy.typing as npt

# Plain integers: comparing with the members of an IntEnum, row by row, would make the baseline slower than it need be.
_TRACK, _ANCHOR, _OK, _FAIL, _RESET_TIMEOUT = (
    int(kind) for kind in (Kind.TRACK, Kind.ANCHOR, Kind.OK, Kind.FAIL, Kind.RESET_TIMEOUT)
)
_ACKED, _FAILED, _TIMED_OUT, _REJECTED, _PENDING = map(int, Outcome)
_COUNTER_OF_OUTCOME = {int(outcome): outcome.name.lower() for outcome in Outcome}

# One finished tree: root id, message id, task id, outcome, elapsed ms.
_Row = tuple[int, int, int, int, int]


class _Entry:
    """What is known of one tree."""

    __slots__ = ("ack_val", "failed", "message_id", "start", "task_id")

    def __init__(self, start: int) -> None:
        self.ack_val = 0
        self.failed = False
        self.message_id = 0
        self.task_id: int | None = None  # None until the TRACK
        self.start = start

    def end(self, root_id: int, outcome: int, now_ms: int) -> _Row:
        """Return the completion of a tracked entry."""
        assert self.task_id is not None
        return root_id, self.message_id, self.task_id, outcome, elapsed_ms(self.start, now_ms)


_Bucket = dict[int, _Entry]
_ENTRY_BYTES = sys.getsizeof(_Entry(0))


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
        self._every_message_refreshes = self._options.protocol == "storm-0.9"
        # From the nursery to death row.
        self._buckets: deque[_Bucket] = deque({} for _ in range(self._options.buckets))
        self._counts = dict.fromkeys(COUNTERS, 0)
        self._open = 0  # entries with a task id
        self._inside = Alone("Acker")
        self._watch = RotationWatch()
        self._publish()

    @property
    def protocol(self) -> str:
        """Which rules hold."""
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
        """Apply one batch of acker messages in row order; return the trees that it finishes.

        Parameters
        ----------
        kind : (n,) int8, or one Kind for all rows
        root_id : (n,) int64
            Tree the row belongs to. Any value, 0 and negatives included.
        value : (n,) int64
            TRACK: xor of the tuple ids the spout sent. OK: the finished tuple's id xor the ids emitted under it.
        task_id : (n,) int32, >= 0
            Spout task to notify. Read on TRACK rows only; may be left out where there is none.
        message_id : (n,) int64
            The spout's own id. Read on TRACK rows only; left out reads 0.
        now_ms : int
            Milliseconds since any fixed epoch; becomes the start of new trees and ends finished ones.

        Returns
        -------
        Completions
            One row a finished tree, in the order in which the rows finished them.

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
        """Apply one batch of Arrow columns, found by name; otherwise as `ingest`.

        Parameters
        ----------
        batch : object with ``__arrow_c_array__`` or ``__arrow_c_stream__``
            The columns of ``MESSAGE_SCHEMA``; others are ignored.
        now_ms : int

        Returns
        -------
        Completions
        """
        columns = columns_from_arrow(batch)
        return self._ingest(columns, check_now_ms(now_ms))

    def rotate(self, *, now_ms: SupportsIndex = 0) -> Completions:
        """Empty death row and let it be the nursery; return what timed out, in any order.

        Parameters
        ----------
        now_ms : int

        Returns
        -------
        Completions
            One row, TIMED_OUT, for each tracked entry of death row. Entries without a TRACK are counted as orphans.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            `now_ms` is no int64; nothing done.
        BusyError
            Another thread is inside this acker; nothing done.
        """
        now = check_now_ms(now_ms)
        with self._alone():
            self._watch.rotated(now)
            death_row = self._buckets.pop()
            self._buckets.appendleft({})
            rows = []
            for root, entry in death_row.items():
                if entry.task_id is None:
                    self._counts["orphans"] += 1
                else:
                    rows.append(self._finish(root, entry, _TIMED_OUT, now))
            return Completions.from_rows(rows)

    def oldest(self, n: SupportsIndex = 10, *, now_ms: SupportsIndex | None = None) -> list[PendingTree]:
        """Return the `n` trees that were begun first, the oldest first; see `Acker.oldest`.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            `n` is no integer >= 0, or `now_ms` no int64.
        BusyError
            Another thread is inside this acker.
        """
        most = check_integer("n", n, 0, INT64_MAX)
        now = None if now_ms is None else check_now_ms(now_ms)
        with self._alone():
            return self._oldest(most, self._watch.now_ms if now is None else now)

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

        The acker is unchanged whatever happens, and so is the file of a path until all has been written; see
        `Acker.snapshot_to`.

        Raises
        ------
        BusyError
            Another thread is inside this acker.
        ArgumentTypeError
            `target` is neither.
        OSError
            It cannot be written to.
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
        return cls._read(Reading(source_of(blob)))

    @classmethod
    def restore_from(cls, source: str | os.PathLike[str] | Readable) -> ReferenceAcker:
        """Return an acker in the state of a snapshot in a file, which is read to its end.

        Raises
        ------
        SnapshotError
            The bytes are damaged.
        ArgumentTypeError
            `source` is neither a path nor a binary file object.
        OSError
            It cannot be read.
        """
        with opened(source) as bytes_of:
            return cls._read(Reading(bytes_of))

    @classmethod
    def _read(cls, reading: Reading) -> ReferenceAcker:
        header = reading.header
        acker = cls(**header.options._asdict())
        acker._counts.update(dict(zip(COUNTERS, header.counters, strict=True)))
        reading.fill(BlockReader(reading, acker._put_back))
        acker._publish()
        return acker

    def __len__(self) -> int:
        return self.stats().pending

    def __contains__(self, root_id: object) -> bool:
        root = find_root_id(root_id)
        with self._alone():
            return root is not None and self._find(root)[1] is not None

    def __repr__(self) -> str:
        options = self._options
        return (
            f"{type(self).__name__}(protocol={options.protocol!r}, buckets={options.buckets}, "
            f"high_water={options.high_water}): {len(self)} pending"
        )

    def check_invariants(self) -> None:
        """Raise AssertionError when the buckets contradict the counts or each other."""
        with self._alone():
            entries = [(root, entry) for bucket in self._buckets for root, entry in bucket.items()]
            ended = sum(self._counts[name] for name in ("acked", "failed", "timed_out"))
            if (
                len({root for root, _ in entries}) < len(entries)
                or sum(entry.task_id is not None for _, entry in entries) != self._open
                or self._counts["tracked"] != ended + self._open
            ):
                raise AssertionError("the buckets of this acker contradict themselves")

    @property
    def nbytes(self) -> int:
        """About the bytes that the entries take: the dicts and the entry objects, without the integers in them."""
        return self._published_bytes

    def _ingest(self, columns: Columns, now_ms: int) -> Completions:
        with self._alone():
            self._look_for_rotations(now_ms)
            apply = self._apply_fsshelter if self._options.protocol == "fsshelter" else self._apply_storm
            return Completions.from_rows(list(_apply_rows(apply, columns, now_ms)))

    def _look_for_rotations(self, now_ms: int) -> None:
        """Warn, if there is reason to, that nobody rotates: before a batch, so that the warning may be an error."""
        held, ended = self._held(), self._counts["acked"] + self._counts["failed"]
        if not self._watch.look(now_ms, held, self._open, ended):
            return
        age_ms = self._oldest(1, now_ms)[0].age_ms
        if age_ms < LONG_MS and not (self._open >= MANY and ended == 0):
            self._watch.look_again(age_ms)
            return
        self._watch.end()
        warn_never_rotated(held, self._open, ended, age_ms)

    def _oldest(self, most: int, now_ms: int | None) -> list[PendingTree]:
        trees = (
            PendingTree(
                message_id=None if entry.task_id is None else entry.message_id,
                age_ms=0 if now_ms is None else elapsed_ms(entry.start, now_ms),
                state="tracked" if entry.task_id is not None else "failed" if entry.failed else "untracked",
                root_id=root,
                task_id=entry.task_id,
                ack_val=entry.ack_val,
                rotations_left=len(self._buckets) - age,
            )
            for age, bucket in enumerate(self._buckets)
            for root, entry in bucket.items()
        )
        return sorted(trees, key=lambda tree: (-tree.age_ms, tree.rotations_left, tree.root_id))[:most]

    def _apply_storm(self, kind: int, root: int, value: int, task: int, message: int, now_ms: int) -> _Row | None:
        """Apply one message under protocol "storm" or "storm-0.9"; return the tree that it ends, if it ends one.

        Storm 2.x daemon/Acker.java, execute; Storm 0.9.7, Acking framework implementation.
        """
        bucket, entry = self._find(root)

        if kind == _RESET_TIMEOUT:  # <storm 1>
            self._reset_timeout(root, bucket, entry)
            return None
        if kind == _TRACK:
            if entry is not None and entry.task_id is not None:  # <storm 2>
                self._counts["duplicates"] += 1
                return None
            if self._is_full():  # <capacity, first rule>
                return self._reject(root, task, message)
        elif entry is None and self._is_crowded():  # <capacity, second rule>
            self._counts["dropped"] += 1
            return None

        is_new = entry is None
        if entry is None:  # <storm 3>, and <storm 8> when the tree is finished already
            bucket, entry = self._buckets[0], _Entry(start_tick(now_ms))
            bucket[root] = entry
        elif kind == _FAIL or self._every_message_refreshes:  # <storm 6>, <storm-0.9>
            bucket = self._move_to_nursery(root, bucket, entry)

        if kind == _FAIL:  # <storm 6>
            entry.failed = True
        else:  # <storm 4>, <storm 5>
            entry.ack_val ^= value
        if kind == _TRACK:  # <storm 4>
            self._accept(entry, task, message)

        if entry.task_id is None:  # <storm 7>: it waits for its TRACK
            return None
        if entry.ack_val == 0:  # <storm 7>: 0 wins over failed
            outcome = _ACKED
            self._counts["empty"] += is_new  # <storm 4>: by its TRACK alone
        elif entry.failed:
            outcome = _FAILED
        else:
            return None
        del bucket[root]
        return self._finish(root, entry, outcome, now_ms)

    def _apply_fsshelter(self, kind: int, root: int, value: int, task: int, message: int, now_ms: int) -> _Row | None:
        """Apply one message under protocol "fsshelter"; return the tree that it ends, if it ends one.

        FsShelter, Acker algorithm: TRACK first, and every ANCHOR before the OK of the tuple it came from.
        """
        bucket, entry = self._find(root)

        if kind == _TRACK:  # <fsshelter 1>
            if entry is not None:
                self._counts["duplicates"] += 1
                return None
            if self._is_full():  # <capacity, first rule>
                return self._reject(root, task, message)
            self._buckets[0][root] = entry = _Entry(start_tick(now_ms))
            self._accept(entry, task, message)
            return None
        if kind == _RESET_TIMEOUT:  # <fsshelter 4>
            self._reset_timeout(root, bucket, entry)
            return None
        if entry is None:  # <fsshelter 5>
            self._counts["unknown"] += 1
            return None
        if kind == _FAIL:  # <fsshelter 4>
            outcome = _FAILED
        else:  # <fsshelter 2>, <fsshelter 3>
            entry.ack_val ^= value
            if kind == _ANCHOR or entry.ack_val != 0:
                return None
            outcome = _ACKED
        del bucket[root]
        return self._finish(root, entry, outcome, now_ms)

    def _find(self, root: int) -> tuple[_Bucket, _Entry | None]:
        """Return the bucket that holds a root and its entry; of an unknown root, the nursery and None."""
        for bucket in self._buckets:
            entry = bucket.get(root)
            if entry is not None:
                return bucket, entry
        return self._buckets[0], None

    def _move_to_nursery(self, root: int, bucket: _Bucket, entry: _Entry) -> _Bucket:
        nursery = self._buckets[0]
        del bucket[root]
        nursery[root] = entry
        return nursery

    def _reset_timeout(self, root: int, bucket: _Bucket, entry: _Entry | None) -> None:
        if entry is None:
            self._counts["unknown"] += 1
            return
        self._move_to_nursery(root, bucket, entry)
        self._counts["resets"] += 1

    def _is_full(self) -> bool:
        return self._options.high_water is not None and self._open > 2 * self._options.high_water

    def _is_crowded(self) -> bool:
        return self._options.high_water is not None and self._held() > 4 * self._options.high_water

    def _held(self) -> int:
        return sum(map(len, self._buckets))

    def _accept(self, entry: _Entry, task: int, message: int) -> None:
        entry.task_id, entry.message_id = task, message
        self._counts["tracked"] += 1
        self._open += 1

    def _reject(self, root: int, task: int, message: int) -> _Row:
        self._counts["rejected"] += 1
        return root, message, task, _REJECTED, 0

    def _finish(self, root: int, entry: _Entry, outcome: int, now_ms: int) -> _Row:
        self._counts[_COUNTER_OF_OUTCOME[outcome]] += 1
        self._open -= 1
        return entry.end(root, outcome, now_ms)

    def _pieces(self) -> Iterator[bytes]:
        header = Header(self._options, tuple(self._counts.values()), self._held())
        return pieces_of(header, self._blocks())

    def _blocks(self) -> Iterator[Entries]:
        rows = (
            (
                root,
                entry.ack_val,
                entry.message_id,
                entry.task_id or 0,
                entry.start,
                TRACKED if entry.task_id is not None else FAILED if entry.failed else UNTRACKED,
                age,
            )
            for age, bucket in enumerate(self._buckets)
            for root, entry in bucket.items()
        )
        while block := list(islice(rows, BLOCK_ENTRIES)):
            yield Entries.from_rows(block)

    def _put_back(self, entries: Entries) -> None:
        columns = (column.tolist() for column in entries)
        for root, ack_val, message, task, start, state, age in zip(*columns, strict=True):
            entry = self._buckets[age][root] = _Entry(start)
            entry.ack_val = ack_val
            entry.failed = state == FAILED
            if state == TRACKED:
                entry.task_id, entry.message_id = task, message
                self._open += 1

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._inside:
            try:
                yield
            finally:
                self._publish()

    def _publish(self) -> None:
        """Let `stats`, `len` and `nbytes` show this moment: another thread may ask while the next call is under way."""
        self._published = (*self._counts.values(), self._held(), self._open)
        self._published_bytes = sum(sys.getsizeof(bucket) + len(bucket) * _ENTRY_BYTES for bucket in self._buckets)


def _apply_rows(
    apply: Callable[[int, int, int, int, int, int], _Row | None], columns: Columns, now_ms: int
) -> Iterator[_Row]:
    """Apply the rows one by one; yield the trees that end."""
    tasks = repeat(0) if columns.task_id is None else columns.task_id.tolist()
    messages = repeat(0) if columns.message_id is None else columns.message_id.tolist()
    rows = zip(columns.kind.tolist(), columns.root_id.tolist(), columns.value.tolist(), tasks, messages, strict=False)
    for kind, root, value, task, message in rows:
        ended = apply(kind, root, value, task, message, now_ms)
        if ended is not None:
            yield ended


def combined(
    kind: npt.ArrayLike,
    root_id: npt.ArrayLike,
    value: npt.ArrayLike,
    task_id: npt.ArrayLike | None = None,
    message_id: npt.ArrayLike | None = None,
    *,
    include_pending: bool = False,
) -> Completions:
    """Settle the messages of each root as one set, in plain Python: the oracle of combined messages.

    The xor of all OK and ANCHOR values and of one TRACK's value decides: 0 is ACKED, else FAILED if there was a FAIL.
    Of several TRACKs of one root the one of least `track_rank` counts, so that the order of the rows has no say;
    RESET_TIMEOUT has no meaning in a set.

    Parameters
    ----------
    kind, root_id, value, task_id, message_id : as in `ReferenceAcker.ingest`
    include_pending : bool
        Also report the tracked trees that are still open, as PENDING.

    Returns
    -------
    Completions
        By ascending root id; ``elapsed_ms`` is 0.
    """
    columns = check_columns(kind, root_id, value, task_id, message_id)
    ack_vals: dict[int, int] = {}
    failed: set[int] = set()
    tracks: dict[int, tuple[int, int, int]] = {}

    def gather(kind: int, root: int, value: int, task: int, message: int, _: int) -> None:
        if kind == _TRACK:
            track = (value, task, message)
            tracks[root] = min(tracks.get(root, track), track, key=lambda each: track_rank(*each))
        elif kind == _FAIL:
            failed.add(root)
        elif kind in (_ANCHOR, _OK):
            ack_vals[root] = ack_vals.get(root, 0) ^ value

    for _ in _apply_rows(gather, columns, 0):
        pass
    rows = []
    for root, (first_edges, task, message) in sorted(tracks.items()):
        if ack_vals.get(root, 0) ^ first_edges == 0:
            outcome = _ACKED
        elif root in failed:
            outcome = _FAILED
        elif include_pending:
            outcome = _PENDING
        else:
            continue
        rows.append((root, message, task, outcome, 0))
    return Completions.from_rows(rows)
