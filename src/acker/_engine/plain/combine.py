"""The table of combined messages in NumPy, with the sharding of root ids and XXH64.

A dict maps each root to its row, in the order of first messages; everything else works on whole columns, so that a
message costs some tenths of a microsecond.
"""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from acker._engine import xxh64 as _xxh64
from acker._engine.codes import FAILED, RESET, TRACKED
from acker._engine.plain.checks import PARTIALS, check_rows
from acker._engine.plain.cohorts import check_cohorts, cohorts_of
from acker._engine.protocol import Kind, Outcome, track_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    _Int64 = npt.NDArray[np.int64]
    _Int32 = npt.NDArray[np.int32]
    _Int8 = npt.NDArray[np.int8]
    _UInt8 = npt.NDArray[np.uint8]
    _UInt32 = npt.NDArray[np.uint32]
    # root id, value, flags, track value, task id, message id, event time
    _Partials = tuple[_Int64, _Int64, _UInt8, _Int64, _Int32, _Int64, _Int64 | None]

_CAPACITY_MIN: Final = 1024
_DICT_SLOT_BYTES: Final = 150  # of the index: a key, a place, and the dict's own share


def shards_of(root_id: _Int64, shards: int) -> _UInt32:
    """Return the shard of each root as a uint32 array: the upper half of SplitMix64, scaled."""
    z = root_id.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return ((z >> np.uint64(32)) * np.uint64(shards) >> np.uint64(32)).astype(np.uint32)


def xxh64(data: _UInt8, seed: int) -> int:
    """Return the XXH64 hash of some bytes."""
    return _xxh64.xxh64(bytes(data), seed)


def xxh64_each(data: _UInt8, ends: _Int64, seed: int) -> _Int64:
    """Return the XXH64 hash of each piece of some bytes, as an int64 array: piece i is data[ends[i]:ends[i + 1]]."""
    if not len(ends):
        raise ValueError("ends: expected one number at least")
    content, places = bytes(data), [int(end) for end in ends.tolist()]
    hashes = np.empty(len(places) - 1, np.uint64)
    for piece, (begin, end) in enumerate(itertools.pairwise(places)):
        if not 0 <= begin <= end <= len(content):
            raise ValueError(f"ends: piece {piece} is not within the {len(content)} bytes")
        hashes[piece] = _xxh64.xxh64(content[begin:end], seed)
    return hashes.view(np.int64)


class CombineTable:
    """The table of an `acker._engine.combiner.Combiner`, with the calls and results of the compiled one."""

    def __init__(self, seed: int, resets: bool, cohorts: tuple[int, int] | None = None) -> None:
        del seed  # a Python dict hashes by itself
        if cohorts is not None:
            check_cohorts(cohorts)
        self._resets = resets
        self._cohorts = cohorts
        self._place: dict[int | tuple[int, int], int] = {}  # by root, or by root and cohort
        self._event_ms = np.zeros(0, np.int64)
        self._root_id, self._value, self._track_value, self._message_id = (np.zeros(0, np.int64) for _ in range(4))
        self._flags, self._task_id = np.zeros(0, np.uint8), np.zeros(0, np.int32)
        self.duplicates = 0
        self.added = 0
        self.merged = 0

    def __len__(self) -> int:
        return len(self._place)

    @property
    def nbytes(self) -> int:
        """The approximate number of bytes that the table takes."""
        columns = (self._root_id, self._value, self._track_value, self._message_id, self._flags, self._task_id)
        return sys.getsizeof(self._place) + len(self._place) * _DICT_SLOT_BYTES + sum(map(sys.getsizeof, columns))

    def add(
        self,
        kind: _Int8,
        root_id: _Int64,
        value: _Int64,
        task_id: _Int32 | None,
        message_id: _Int64 | None,
        event_ms: _Int64 | None = None,
    ) -> int:
        """Add messages; return how many there were."""
        names, dtypes = "kind root_id value task_id? message_id?", "i1 i8 i8 i4 i8"
        check_rows(names, dtypes, kind, root_id, value, task_id, message_id)
        rows = len(root_id)
        if not self._resets and (kind == Kind.RESET_TIMEOUT).any():
            wanted = np.flatnonzero(kind != Kind.RESET_TIMEOUT)
            kind, root_id, value = kind[wanted], root_id[wanted], value[wanted]
            task_id = None if task_id is None else task_id[wanted]
            message_id = None if message_id is None else message_id[wanted]
            event_ms = None if event_ms is None else event_ms[wanted]
        place = self._places(root_id, event_ms)
        self._flags[place[kind == Kind.FAIL]] |= FAILED
        self._flags[place[kind == Kind.RESET_TIMEOUT]] |= RESET
        ok = (kind == Kind.ANCHOR) | (kind == Kind.OK)
        np.bitwise_xor.at(self._value, place[ok], value[ok])
        tracks = np.flatnonzero(kind == Kind.TRACK)
        if len(tracks):
            nothing = np.zeros(len(root_id), np.int64)
            tasks = nothing.astype(np.int32) if task_id is None else task_id
            messages = nothing if message_id is None else message_id
            self._take_tracks(place[tracks], value[tracks], tasks[tracks], messages[tracks])
        self.added += rows
        return rows

    def merge(
        self,
        root_id: _Int64,
        value: _Int64,
        flags: _UInt8,
        track_value: _Int64,
        task_id: _Int32,
        message_id: _Int64,
        event_ms: _Int64 | None = None,
    ) -> int:
        """Merge partials; return how many rows there were."""
        check_rows(*PARTIALS, root_id, value, flags, track_value, task_id, message_id)
        place = self._places(root_id, event_ms)
        np.bitwise_xor.at(self._value, place, value)
        np.bitwise_or.at(self._flags, place, flags & (FAILED | RESET))
        tracks = np.flatnonzero(flags & TRACKED)
        self._take_tracks(place[tracks], track_value[tracks], task_id[tracks], message_id[tracks])
        self.merged += len(root_id)
        return len(root_id)

    def partials(self, shards: int) -> tuple[_Partials, _Int64]:
        """Return seven columns with the trees of a shard side by side, and where each shard ends in them."""
        if shards < 1:
            raise ValueError(f"shards: expected 1 or more, got {shards}")
        rows = len(self)
        is_open = (self._flags[:rows] != TRACKED) | (self._value[:rows] != self._track_value[:rows])
        # Two groups a shard: first the trees that look finished, then the others.
        group = 2 * shards_of(self._root_id[:rows], shards).astype(np.int64) + is_open
        order = np.argsort(group, kind="stable")
        ends = np.cumsum(np.bincount(group, minlength=2 * shards))[1::2].astype(np.int64)
        columns = (
            self._root_id[order],
            self._value[order],
            self._flags[order],
            self._track_value[order],
            self._task_id[order],
            self._message_id[order],
            None if self._cohorts is None else self._event_ms[order],
        )
        return columns, ends

    def settle(self, include_pending: bool) -> tuple[_Int64, _Int64, _Int32, _Int8]:
        """Return the columns root_id, message_id, task_id, outcome of the trees that have an outcome."""
        rows = len(self)
        flags = self._flags[:rows]
        acked = self._value[:rows] == self._track_value[:rows]
        failed = (flags & FAILED) != 0
        outcome = np.where(acked, int(Outcome.ACKED), np.where(failed, int(Outcome.FAILED), int(Outcome.PENDING)))
        reported = np.flatnonzero(((flags & TRACKED) != 0) & (acked | failed | include_pending))
        return (
            self._root_id[reported],
            self._message_id[reported],
            self._task_id[reported],
            outcome[reported].astype(np.int8),
        )

    def _places(self, root_id: _Int64, event_ms: _Int64 | None) -> npt.NDArray[np.intp]:
        """Return the row of each root, or of each root and cohort; new ones get the next rows."""
        if (event_ms is None) != (self._cohorts is None) or (event_ms is not None and len(event_ms) != len(root_id)):
            raise ValueError("event_ms: expected one value for each row with cohorts, and None without")
        known, place = len(self._place), self._place
        keys: list[Any] = root_id.tolist()
        if event_ms is not None and self._cohorts is not None:
            keys = list(zip(keys, cohorts_of(event_ms, self._cohorts), strict=True))
        found = np.array([place.setdefault(key, len(place)) for key in keys], np.intp)
        if len(place) > len(self._root_id):
            self._grow(max(len(place), 2 * len(self._root_id), _CAPACITY_MIN))
        new = found >= known
        self._root_id[found[new]] = root_id[new]
        if event_ms is not None:
            self._event_ms[found[new]] = event_ms[new]
            np.minimum.at(self._event_ms, found, event_ms)
        return found

    def _grow(self, capacity: int) -> None:
        names = ("_root_id", "_value", "_track_value", "_message_id", "_flags", "_task_id", "_event_ms")
        for name in names:
            column = getattr(self, name)
            grown = np.zeros(capacity, column.dtype)
            grown[: len(column)] = column
            setattr(self, name, grown)

    def _take_tracks(self, place: npt.NDArray[np.intp], value: _Int64, task_id: _Int32, message_id: _Int64) -> None:
        """Take TRACKs: the first one of each tree, then the others one by one; the one of least rank counts."""
        is_first = np.zeros(len(place), bool)
        is_first[np.unique(place, return_index=True)[1]] = True
        is_first &= (self._flags[place] & TRACKED) == 0
        chosen = place[is_first]
        self._flags[chosen] |= TRACKED
        self._track_value[chosen] = value[is_first]
        self._task_id[chosen] = task_id[is_first]
        self._message_id[chosen] = message_id[is_first]
        for row in np.flatnonzero(~is_first).tolist():
            self._take_again(int(place[row]), (int(value[row]), int(task_id[row]), int(message_id[row])))

    def _take_again(self, place: int, track: tuple[int, int, int]) -> None:
        self.duplicates += 1
        held: Sequence[int] = (
            int(self._track_value[place]),
            int(self._task_id[place]),
            int(self._message_id[place]),
        )
        if track_rank(*track) < track_rank(*held):
            self._track_value[place], self._task_id[place], self._message_id[place] = track
