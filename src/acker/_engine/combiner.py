"""The combiner: a native table that merges all messages of a root into one entry.

Spark guarantees no order, so a tree is judged by all of its messages (see *Combined messages* in the protocol): the xor
of its OK and ANCHOR values, its TRACK, and whether any message was a FAIL. A `Combiner` gathers these by root. They
leave it as `Partials`, split by shard, and other combiners merge them. Xor is associative and of several TRACKs the one
of least rank counts (docs/protocol.md), so the result does not depend on the order or the grouping.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from acker._engine.columns import Columns, check_columns
from acker._engine.completions import Completions
from acker._engine.interrupts import slices, tell_applied
from acker._engine.native import core
from acker._engine.protocol import check_integer, check_seed
from acker._engine.single_entry import SingleEntry
from acker.errors import AckerMemoryError, BusyError, ColumnTypeError, ColumnValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

SHARDS_MAX: Final = 1_024


class Partials(NamedTuple):
    """The combined messages of some roots: six columns of one length, one row for each root.

    Attributes
    ----------
    root_id : (n,) int64
    value : (n,) int64
        Xor of the OK and ANCHOR values, without the TRACK's, so that a second TRACK can still be recognized.
    flags : (n,) uint8
        Sum of 1: there was a TRACK; 2: a FAIL; 4: a RESET_TIMEOUT, if those are gathered.
    track_value, message_id : (n,) int64
    task_id : (n,) int32
        The columns of the TRACK of least rank; 0 without flag 1.
    event_ms : (n,) int64 or None
        Where a combiner gathers by event time: the earliest of the row's messages, of which all are of one cohort. A
        root has a row for each of its cohorts then.
    """

    root_id: npt.NDArray[np.int64]
    value: npt.NDArray[np.int64]
    flags: npt.NDArray[np.uint8]
    track_value: npt.NDArray[np.int64]
    task_id: npt.NDArray[np.int32]
    message_id: npt.NDArray[np.int64]
    event_ms: npt.NDArray[np.int64] | None = None

    def rows(self, first: int, end: int) -> Partials:
        """Return views of the rows from `first` to before `end`."""
        return self.at(slice(first, end))

    def at(self, rows: slice | npt.NDArray[Any]) -> Partials:
        """Return these rows, in their order."""
        return Partials(*(None if column is None else column[rows] for column in self))  # type: ignore[arg-type]


PARTIALS_DTYPES: Final = Partials(*map(np.dtype, ("i8", "i8", "u1", "i8", "i4", "i8", "i8")))  # type: ignore[arg-type]


class Cohorts(NamedTuple):
    """The division of event times: entries of one cohort expire together, `buckets` cohorts later.

    Attributes
    ----------
    timeout_ms : int >= 0
        A cohort is as long as ``timeout_ms / (buckets - 1)``. 0: all time is one cohort, and nothing expires.
    buckets : int >= 2
    """

    timeout_ms: int
    buckets: int


def check_shards(shards: object) -> int:
    """Return a checked number of shards as an int.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError   it is no integer from 1 to 1024.
    """
    return check_integer("shards", shards, 1, SHARDS_MAX)


def shard_of(root_id: npt.ArrayLike, shards: int) -> npt.NDArray[np.uint32]:
    """Return the shard of each root: ``(h * shards) >> 32``, h the upper half of SplitMix64 seeded with the root.

    The rule has no seed and does not change between releases, so all workers agree and stored partials stay valid.

    Parameters
    ----------
    root_id : (n,) int64
    shards : int, 1 to 1024

    Returns
    -------
    (n,) uint32, each below `shards`
    """
    shards = check_shards(shards)
    return core.shards_of(np.ascontiguousarray(root_id, np.int64), shards)


def in_shard(root_id: npt.NDArray[np.int64], shards: int, shard: int) -> npt.NDArray[np.bool_]:
    """Return which roots are of a shard, for any number of shards: shard i of n is shards 2i and 2i + 1 of 2n."""
    mask: npt.NDArray[np.bool_] = core.shards_of(root_id, shards) == shard
    return mask


class Combiner:
    """Gathers acker messages by root, as a set.

    Parameters
    ----------
    seed : int, 0 to 2**64 - 1, optional
        Of the hash that places roots in the table; drawn from the operating system when left out. Results do not depend
        on it.
    resets : bool
        Gather RESET_TIMEOUTs too, for a caller that lets trees expire: each makes its root known. By default they have
        no effect, since nothing expires in a set.
    cohorts : Cohorts, optional
        Gather by root and cohort: messages have event times then.

    Attributes
    ----------
    messages : int
        How many messages were added here (merged partials not counted).
    duplicates : int
        How many TRACKs came for roots that had one. A merged tree with a TRACK counts as one; the count of its own
        combiner is not in its partials.
    native_ns : int
        Nanoseconds spent inside the native table so far.

    Notes
    -----
    Used by one thread at a time; a second one gets `BusyError`. `len`, `nbytes` and the attributes may be read at any
    time and then show some recent moment. 40 bytes a root and 13 to 26 of index; expected O(1) a
    message. The GIL is released while the native code works.

    Examples
    --------
    >>> from acker import Kind
    >>> from acker._engine.combiner import Combiner
    >>> combiner = Combiner()
    >>> combiner.add([Kind.OK, Kind.TRACK], root_id=[7, 7], value=[5, 5], task_id=[0, 3], message_id=[0, 42])
    >>> done = combiner.settle()
    >>> done.message_id.tolist(), done.task_id.tolist(), done.outcome.tolist()
    ([42], [3], [0])
    """

    def __init__(self, *, seed: int | None = None, resets: bool = False, cohorts: Cohorts | None = None) -> None:
        self._timed = cohorts is not None
        self._table = core.CombineTable(check_seed(seed), bool(resets), cohorts)
        self._entered = SingleEntry("Combiner")
        self.native_ns = 0
        self._publish()

    def __len__(self) -> int:
        """Return the number of roots."""
        return self._published_size

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the native table holds."""
        return self._published_bytes

    def add(
        self,
        kind: npt.ArrayLike,
        root_id: npt.ArrayLike,
        value: npt.ArrayLike,
        task_id: npt.ArrayLike | None = None,
        message_id: npt.ArrayLike | None = None,
    ) -> None:
        """Add one batch of messages; columns and their checks are those of `Acker.ingest`.

        Parameters
        ----------
        kind : (n,) int8, or one Kind for all rows
        root_id, value : (n,) int64
        task_id : (n,) int32, >= 0
            May be left out where no row is a TRACK.
        message_id : (n,) int64
            Left out reads 0.

        Raises
        ------
        ColumnTypeError, ColumnValueError   the column, the first bad row, what was expected; nothing was added.
        AckerMemoryError                    the table could not grow; `rows_applied` leading rows were added.
        BusyError                           another thread is inside this combiner; nothing was added.
        """
        self.add_unchecked(check_columns(kind, root_id, value, task_id, message_id))

    def add_unchecked(self, columns: Columns, event_ms: npt.NDArray[np.int64] | None = None) -> None:
        """Add columns that were checked as by `check_columns`; task and message ids are read on TRACK rows only.

        Event times, in milliseconds, come along where the combiner has cohorts.
        """
        before = self._table.added
        try:
            with self._alone():
                self._apply(self._table.add, (*columns, event_ms), len(columns.root_id))
        except BusyError:
            raise
        except BaseException as error:
            tell_applied(error, self._table.added - before)
            raise

    def merge(self, partials: Partials) -> None:
        """Add the partials of another combiner.

        Raises
        ------
        ColumnTypeError, ColumnValueError   `partials` is not six columns of one length and the types of `Partials`.
        AckerMemoryError                    the table could not grow; `rows_applied` leading rows were merged.
        BusyError                           another thread is inside this combiner; nothing was merged.
        """
        checked = _check_partials(partials)
        if self._timed and checked.event_ms is None:
            raise ColumnValueError("event_ms: expected a column, since trees expire by event time")
        # Without expiry the time of a message does not matter.
        columns = checked if self._timed else checked._replace(event_ms=None)
        before = self._table.merged
        try:
            with self._alone():
                self._apply(self._table.merge, columns, len(columns.root_id))
        except BusyError:
            raise
        except BaseException as error:
            tell_applied(error, self._table.merged - before)
            raise

    def partials(self, shards: int = 1) -> list[Partials]:
        """Return everything gathered, split by `shard_of`: item i holds the trees of shard i.

        No tree is settled here: even a finished one is returned, so that a second TRACK or a late OK elsewhere in the
        data still finds it.

        Parameters
        ----------
        shards : int, 1 to 1024

        Returns
        -------
        list of Partials, `shards` long
            Views of arrays that they share. First the trees that look finished and did not fail, then the others, each
            in the order of their first messages.
        """
        shards = check_shards(shards)
        with self._alone():
            columns, ends = self._clocked(self._table.partials, (shards,))
        bounds = [0, *ends.tolist()]
        everything = Partials(*columns)
        return [everything.rows(bounds[i], bounds[i + 1]) for i in range(shards)]

    def settle(self, include_pending: bool = False) -> Completions:
        """Judge every tree that had a TRACK: xor zero is ACKED, else a FAIL is FAILED, else it is still open.

        Parameters
        ----------
        include_pending : bool
            Report the open trees too, with outcome PENDING.

        Returns
        -------
        Completions
            One row a tree, in the order of first messages; `elapsed_ms` is 0. The combiner is as before.
        """
        with self._alone():
            root_id, message_id, task_id, outcome = self._clocked(self._table.settle, (bool(include_pending),))
        return Completions(
            root_id=root_id,
            message_id=message_id,
            task_id=task_id,
            outcome=outcome,
            elapsed_ms=np.zeros(len(root_id), np.int64),
        )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._entered:
            try:
                yield
            finally:
                self._publish()

    def _publish(self) -> None:
        """Update what `len` and `nbytes` return: other threads may read it while the table changes."""
        self._published_size = len(self._table)
        self._published_bytes = int(self._table.nbytes)
        self.messages = self._table.added
        self.duplicates = self._table.duplicates

    def _clocked(self, native: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        start = time.perf_counter_ns()
        result = native(*arguments)
        self.native_ns += time.perf_counter_ns() - start
        return result

    def _apply(self, native: Callable[..., int], columns: Sequence[Any], rows: int) -> None:
        """Add or merge columns, slice by slice; AckerMemoryError where a slice could not be applied to its end."""
        applied = 0
        for part in slices(rows, columns):
            done = self._clocked(native, part)
            applied += done
            if done < len(part[0]):
                text = f"out of memory after {applied} of {rows} rows, with {len(self._table)} roots held"
                raise AckerMemoryError(text, applied, Completions.empty())


def xxh64(data: npt.NDArray[np.uint8], seed: int = 0) -> int:
    """Return the XXH64 of some bytes, the checksum of blocks of partials."""
    return core.xxh64(data, seed)


def xxh64_each(data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64], seed: int = 0) -> npt.NDArray[np.int64]:
    """Return the XXH64 of each piece of some bytes, as int64: piece i is ``data[ends[i]:ends[i + 1]]``."""
    return core.xxh64_each(data, ends, seed)


def _check_partials(partials: Partials) -> Partials:
    if len(partials) not in (6, 7):
        raise ColumnValueError(f"partials: expected 6 columns, or 7 with event times, got {len(partials)}")
    partials = Partials(*partials)
    rows = None
    for name, column, dtype in zip(Partials._fields, partials, PARTIALS_DTYPES, strict=True):
        if column is None and name == "event_ms":
            continue
        if not isinstance(column, np.ndarray) or column.dtype != dtype:
            found = column.dtype if isinstance(column, np.ndarray) else type(column).__name__
            raise ColumnTypeError(f"{name}: expected a NumPy array of {dtype}, got {found}")
        if column.ndim != 1 or (rows is not None and len(column) != rows):
            raise ColumnValueError(f"{name}: expected shape ({'n' if rows is None else rows},), got {column.shape}")
        rows = len(column)
    columns: list[Any] = [None if column is None else np.ascontiguousarray(column) for column in partials]
    return Partials(*columns)
