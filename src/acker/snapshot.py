"""The snapshot format: everything that an acker holds, as bytes; one codec for every implementation.

All numbers are little-endian. A snapshot is a header, the entries column by column, and a checksum:

======  ====  =================================================================================================
offset  size  field
======  ====  =================================================================================================
0       8     magic, ``b"ACKERSNP"``
8       4     version, 1
12      1     protocol: the index in `PROTOCOLS`
13      1     buckets
14      2     0
16      8     high_water, int64; -1 where there is none
24      8     seed of the hash, uint64
32      80    the ten counters since creation, uint64 each, in the order of `COUNTERS`
112     8     n, the number of entries, uint64
120     8n    root_id, int64 each
        8n    ack_val, int64 each
        8n    message_id, int64 each; 0 where the entry has no TRACK
        4n    task_id, int32 each; 0 where the entry has no TRACK
        4n    start, uint32 each: the low 32 bits of the clock in milliseconds
        n     state, uint8 each: 0 without a TRACK, 1 tracked, 2 without a TRACK and failed
        n     age, uint8 each: 0 in the nursery to ``buckets - 1`` in death row
        16    checksum: BLAKE2b, 16 bytes, over all that stands before it
======  ====  =================================================================================================

Entries come in any order; the same acker, unchanged, gives them in the same one.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from acker.errors import ArgumentTypeError, SnapshotError
from acker.protocol import BUCKETS_MAX, BUCKETS_MIN, COUNTERS, HIGH_WATER_MAX, INT64_MAX, PROTOCOLS

MAGIC: Final = b"ACKERSNP"
VERSION: Final = 1

UNTRACKED: Final = 0
TRACKED: Final = 1
FAILED: Final = 2

_HEADER: Final = struct.Struct(f"<8sIBBHqQ{len(COUNTERS)}QQ")
_CHECKSUM_BYTES: Final = 16
_DTYPES: Final = (np.int64, np.int64, np.int64, np.int32, np.uint32, np.uint8, np.uint8)
_ENTRY_BYTES: Final = sum(np.dtype(dtype).itemsize for dtype in _DTYPES)


class Entries(NamedTuple):
    """The trees that an acker holds, one row each, in any order; every column has n rows."""

    root_id: npt.NDArray[np.int64]
    ack_val: npt.NDArray[np.int64]
    message_id: npt.NDArray[np.int64]
    task_id: npt.NDArray[np.int32]
    start: npt.NDArray[np.uint32]
    state: npt.NDArray[np.uint8]
    age: npt.NDArray[np.uint8]


class State(NamedTuple):
    """Everything that a snapshot holds; ``counters`` has one int for each name in `COUNTERS`."""

    protocol: str
    buckets: int
    high_water: int | None
    seed: int
    counters: tuple[int, ...]
    entries: Entries


def encode(state: State) -> bytes:
    """Return a state as bytes, at memory speed. ``message_id`` and ``task_id`` of entries without a TRACK read 0."""
    entries = state.entries
    tracked = entries.state == TRACKED
    columns = entries._replace(message_id=entries.message_id * tracked, task_id=entries.task_id * tracked)
    header = _HEADER.pack(
        MAGIC,
        VERSION,
        PROTOCOLS.index(state.protocol),
        state.buckets,
        0,
        -1 if state.high_water is None else state.high_water,
        state.seed,
        *state.counters,
        len(entries.root_id),
    )
    parts: list[Any] = [header]
    for column, dtype in zip(columns, _DTYPES, strict=True):
        parts.append(np.ascontiguousarray(column, np.dtype(dtype).newbyteorder("<")).view(np.uint8))
    checksum = hashlib.blake2b(digest_size=_CHECKSUM_BYTES)
    for part in parts:
        checksum.update(part)
    return b"".join([*parts, checksum.digest()])


def decode(blob: bytes | bytearray | memoryview) -> State:
    """Return the state that `encode` turned into these bytes; its columns are read-only.

    Allocates in proportion to ``len(blob)`` and never by what the bytes claim.

    Raises
    ------
    SnapshotError       the bytes are damaged, cut short, too long, of another version, or hold what no acker can hold.
    ArgumentTypeError   `blob` is not bytes.
    """
    if not isinstance(blob, (bytes, bytearray, memoryview)):
        raise ArgumentTypeError(f"snapshot: expected bytes, got {type(blob).__name__}")
    data = bytes(blob)  # No copy of bytes; a copy of what somebody could still write to.
    if len(data) < _HEADER.size + _CHECKSUM_BYTES:
        raise SnapshotError(f"snapshot: expected at least {_HEADER.size + _CHECKSUM_BYTES} bytes, got {len(data)}")
    magic, version, code, buckets, zero, high_water, seed, *numbers = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise SnapshotError(f"snapshot: expected to begin with {MAGIC!r}, got {magic!r}")
    if version != VERSION:
        raise SnapshotError(f"snapshot: expected version {VERSION}, got {version}")
    count = numbers.pop()
    size = _HEADER.size + count * _ENTRY_BYTES + _CHECKSUM_BYTES
    if len(data) != size:
        raise SnapshotError(f"snapshot: expected {size} bytes for {count} entries, got {len(data)}")
    body = memoryview(data)[:-_CHECKSUM_BYTES]
    if hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES).digest() != data[-_CHECKSUM_BYTES:]:
        raise SnapshotError("snapshot: the checksum does not fit the bytes")
    _expect(code < len(PROTOCOLS), f"a protocol below {len(PROTOCOLS)}", code)
    _expect(BUCKETS_MIN <= buckets <= BUCKETS_MAX, f"{BUCKETS_MIN} to {BUCKETS_MAX} buckets", buckets)
    _expect(zero == 0, "0 in the reserved bytes", zero)
    _expect(-1 <= high_water <= HIGH_WATER_MAX, f"a high_water from -1 to {HIGH_WATER_MAX}", high_water)
    state = State(
        PROTOCOLS[code],
        buckets,
        None if high_water == -1 else high_water,
        seed,
        tuple(numbers),
        _read_entries(data, count),
    )
    _check_entries(state)
    _check_counters(state)
    return state


def _read_entries(data: bytes, count: int) -> Entries:
    columns: list[Any] = []
    offset = _HEADER.size
    for dtype in _DTYPES:
        stored = np.frombuffer(data, np.dtype(dtype).newbyteorder("<"), count, offset)
        columns.append(stored.astype(dtype, copy=False))
        offset += stored.nbytes
    return Entries(*columns)


def _check_entries(state: State) -> None:
    """Refuse what no acker can hold: the bytes may come from somebody who knows how to make a checksum."""
    entries = state.entries
    _expect_all(entries.state <= FAILED, "a state from 0 to 2", entries.state)
    _expect_all(entries.age < state.buckets, f"an age below {state.buckets}", entries.age)
    _expect_all(entries.task_id >= 0, "a task id >= 0", entries.task_id)
    tracked = entries.state == TRACKED
    _expect_all(tracked | (entries.task_id == 0), "task id 0 without a TRACK", entries.task_id)
    _expect_all(tracked | (entries.message_id == 0), "message id 0 without a TRACK", entries.message_id)
    if state.protocol == "fsshelter":
        _expect_all(tracked, "tracked entries only in protocol fsshelter", entries.state)
    else:
        _expect_all(~tracked | (entries.ack_val != 0), "no tracked entry that is finished", entries.ack_val)
    roots = np.sort(entries.root_id)
    _expect_all(roots[1:] != roots[:-1], "each root id once", roots[1:])


def _check_counters(state: State) -> None:
    counts = dict(zip(COUNTERS, state.counters, strict=True))
    for name, count in counts.items():
        _expect(count <= INT64_MAX, f"a counter {name} that fits int64", count)
    pending = len(state.entries.state)
    tracked = int(np.count_nonzero(state.entries.state == TRACKED))
    ended = counts["acked"] + counts["failed"] + counts["timed_out"]
    _expect(counts["tracked"] == ended + tracked, f"{ended + tracked} TRACKs by the other counters", counts["tracked"])
    if state.high_water is not None:
        # protocol.md, Capacity: the last TRACK is accepted at 2h open trees, the last other new root at 4h entries.
        _expect(tracked <= 2 * state.high_water + 1, "no more open trees than high_water allows", tracked)
        untracked = pending - tracked
        _expect(untracked <= 4 * state.high_water + 1, "no more entries than high_water allows", untracked)


def _expect(holds: bool, expected: str, got: int) -> None:
    if not holds:
        raise SnapshotError(f"snapshot: expected {expected}, got {got}")


def _expect_all(holds: npt.NDArray[np.bool_], expected: str, column: npt.NDArray[Any]) -> None:
    if not holds.all():
        entry = int(np.argmin(holds))
        raise SnapshotError(f"snapshot: entry {entry}: expected {expected}, got {column[entry]}")
