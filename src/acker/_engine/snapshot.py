"""The snapshot format of docs/snapshot.md: a header, then blocks of entries.

All implementations share `Header` and `SnapshotReader`, which check everything outside the blocks. `encode_pieces` and
`BlockReader` write and read the blocks with NumPy; the native core has a faster way of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Protocol

import numpy as np

from acker._engine.protocol import (
    BUCKETS_MAX,
    BUCKETS_MIN,
    COUNTER_MAX,
    COUNTERS,
    HIGH_WATER_MAX,
    PROTOCOLS,
    AckerOptions,
    divide_up,
)
from acker._engine.storage import ByteInput, MemoryInput
from acker._engine.xxh64 import xxh64
from acker.errors import ArgumentTypeError, SnapshotError

if TYPE_CHECKING:
    import numpy.typing as npt

MAGIC: Final = b"ACKERSNP"
VERSION: Final = 3
BLOCK_ENTRIES: Final = 8192  # of every block but the last

UNTRACKED: Final = 0
TRACKED: Final = 1
FAILED: Final = 2

_HEADER: Final = struct.Struct(f"<8sIBBHq{len(COUNTERS)}QQ")
_CHECKSUM: Final = struct.Struct("<Q")
HEADER_BYTES: Final = _HEADER.size + _CHECKSUM.size
# Of the columns of a block, the widest first: in an aligned block each is aligned.
_DTYPES: Final = tuple(np.dtype(dtype) for dtype in ("<i8", "<i8", "<i8", "<i4", "<u4", "u1", "u1"))
ENTRY_BYTES: Final = sum(dtype.itemsize for dtype in _DTYPES)


class SnapshotEntries(NamedTuple):
    """The trees that an acker holds, one row each, in any order; every column has n rows."""

    root_id: npt.NDArray[np.int64]
    ack_val: npt.NDArray[np.int64]
    message_id: npt.NDArray[np.int64]
    task_id: npt.NDArray[np.int32]
    start: npt.NDArray[np.uint32]
    state: npt.NDArray[np.uint8]
    age: npt.NDArray[np.uint8]

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[int, ...]]) -> SnapshotEntries:
        """Return rows of seven numbers as columns."""
        if not rows:
            return cls(*(np.empty(0, dtype) for dtype in _DTYPES))
        return cls(*(np.array(column, dtype) for column, dtype in zip(zip(*rows, strict=True), _DTYPES, strict=True)))


class Header(NamedTuple):
    """The header of a snapshot: the options, the counters, and the number of entries."""

    options: AckerOptions
    counters: tuple[int, ...]
    entries: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole snapshot."""
        blocks = divide_up(self.entries, BLOCK_ENTRIES)
        return HEADER_BYTES + self.entries * ENTRY_BYTES + blocks * _CHECKSUM.size

    def blocks(self) -> Iterator[int]:
        """Yield the number of entries in each block."""
        for first in range(0, self.entries, BLOCK_ENTRIES):
            yield min(BLOCK_ENTRIES, self.entries - first)

    def pack(self) -> bytes:
        """Return the header as bytes, the last eight of which are its checksum."""
        high_water = -1 if self.options.high_water is None else self.options.high_water
        protocol = PROTOCOLS.index(self.options.protocol)
        fields = protocol, self.options.buckets, 0, high_water, *self.counters, self.entries
        packed = _HEADER.pack(MAGIC, VERSION, *fields)
        return packed + _CHECKSUM.pack(xxh64(packed))

    @classmethod
    def unpack(cls, data: bytes) -> Header:
        """Return the header that stands at the beginning of a snapshot.

        Raises
        ------
        SnapshotError   it is damaged, cut short, of another version, or holds values that no acker writes.
        """
        if len(data) < HEADER_BYTES:
            raise SnapshotError(f"snapshot: expected at least {HEADER_BYTES} bytes, got {len(data)}")
        magic, version, code, buckets, zero, high_water, *counters, entries = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise SnapshotError(f"snapshot: expected to begin with {MAGIC!r}, got {magic!r}")
        if version != VERSION:
            raise SnapshotError(f"snapshot: expected version {VERSION}, got version {version}")
        if checksum_at_end(data) != xxh64(data[: _HEADER.size]):
            raise SnapshotError("snapshot: the checksum of the header does not fit its bytes")
        _expect(code < len(PROTOCOLS), f"a protocol below {len(PROTOCOLS)}", code)
        _expect(BUCKETS_MIN <= buckets <= BUCKETS_MAX, f"{BUCKETS_MIN} to {BUCKETS_MAX} buckets", buckets)
        _expect(zero == 0, "0 in the reserved bytes", zero)
        _expect(-1 <= high_water <= HIGH_WATER_MAX, f"a high_water from -1 to {HIGH_WATER_MAX}", high_water)
        for name, count in zip(COUNTERS, counters, strict=True):
            _expect(count <= COUNTER_MAX, f"a counter {name} of at most {COUNTER_MAX}", count)
        options = AckerOptions(PROTOCOLS[code], buckets, None if high_water == -1 else high_water)
        return cls(options, tuple(counters), entries)


def block_bytes(entries: int) -> int:
    """Return the size in bytes of a block of this many entries."""
    return entries * ENTRY_BYTES + _CHECKSUM.size


def checksum_at_end(data: bytes | memoryview) -> int:
    """Return the checksum that a header or a block ends with."""
    (checksum,) = _CHECKSUM.unpack(data[-_CHECKSUM.size :])
    return int(checksum)


class BlockLoader(Protocol):
    """Takes over the entries of a snapshot, block by block: `BlockReader`, or the reader of the native core."""

    def read(self, block: Any, entries: int, /) -> tuple[int, int] | None:
        """Check a block and take it over; return the index of the fault in `FAULTS`, and the entry, if there is one."""

    @property
    def open(self) -> int:
        """The number of tracked entries so far."""


class _EntryFault(NamedTuple):
    expected: str
    column: str
    fails: Callable[[SnapshotEntries, AckerOptions], npt.NDArray[np.bool_]]


# The faults of a single entry, in the order of the checks; the native core returns their indexes.
FAULTS: Final = (
    _EntryFault("a state from 0 to 2", "state", lambda entries, _: entries.state > FAILED),
    _EntryFault("an age below {buckets}", "age", lambda entries, options: entries.age >= options.buckets),
    _EntryFault("a task id >= 0", "task_id", lambda entries, _: entries.task_id < 0),
    _EntryFault(
        "task id 0 without a TRACK", "task_id", lambda entries, _: _untracked(entries) & (entries.task_id != 0)
    ),
    _EntryFault(
        "message id 0 without a TRACK", "message_id", lambda entries, _: _untracked(entries) & (entries.message_id != 0)
    ),
    _EntryFault(
        "tracked entries only in protocol fsshelter",
        "state",
        lambda entries, options: _untracked(entries) & (options.protocol == "fsshelter"),
    ),
    _EntryFault(
        "no tracked entry that is finished",
        "ack_val",
        lambda entries, options: ~_untracked(entries) & (entries.ack_val == 0) & (options.protocol != "fsshelter"),
    ),
)
ROOT_TWICE: Final = len(FAULTS)
CHECKSUM_WRONG: Final = ROOT_TWICE + 1


def _untracked(entries: SnapshotEntries) -> npt.NDArray[np.bool_]:
    untracked: npt.NDArray[np.bool_] = entries.state != TRACKED
    return untracked


class SnapshotReader:
    """A snapshot whose header has been read; `fill` reads the blocks.

    Attributes
    ----------
    header : Header
    checksum : int
        Checksum of the header, which seeds that of the first block.

    Raises
    ------
    SnapshotError   see `Header.unpack`; or the source is known to be too short or too long.
    """

    def __init__(self, source: ByteInput) -> None:
        self._source = source
        packed = bytes(source.take(HEADER_BYTES))
        self.header = Header.unpack(packed)
        self.checksum = checksum_at_end(packed)
        if source.size_bytes is not None and source.size_bytes != self.header.size_bytes:
            self._refuse_size(source.size_bytes)

    def fill(self, filler: BlockLoader) -> None:
        """Read all blocks into `filler`, which holds some of the entries when this raises.

        Raises
        ------
        SnapshotError   the bytes are damaged, cut short, too many, or hold values that no acker writes.
        """
        first = 0
        for entries in self.header.blocks():
            block = self._source.take(block_bytes(entries))
            if len(block) < block_bytes(entries):
                self._refuse_size(self._source.taken_bytes)
            fault = filler.read(block, entries)
            if fault is not None:
                self._refuse_block(block, entries, first, *fault)
            first += entries
        if self._source.take(1):
            self._refuse_size("more")
        self._check_counters(filler.open)

    def _refuse_size(self, got: int | str) -> NoReturn:
        header = self.header
        raise SnapshotError(f"snapshot: expected {header.size_bytes} bytes for {header.entries} entries, got {got}")

    def _refuse_block(self, block: bytes | memoryview, entries: int, first: int, fault: int, entry: int) -> NoReturn:
        if fault == CHECKSUM_WRONG:
            last = first + entries - 1
            raise SnapshotError(f"snapshot: entries {first} to {last}: the checksum does not fit the bytes")
        if fault == ROOT_TWICE:
            expected, column = "each root id once", "root_id"
        else:
            expected, column, _ = FAULTS[fault]
        got = getattr(_columns(block, entries), column)[entry]
        expected = expected.format(buckets=self.header.options.buckets)
        raise SnapshotError(f"snapshot: entry {first + entry}: expected {expected}, got {got}")

    def _check_counters(self, tracked: int) -> None:
        header = self.header
        counts = dict(zip(COUNTERS, header.counters, strict=True))
        expected = counts["acked"] + counts["failed"] + counts["timed_out"] + tracked
        _expect(counts["tracked"] == expected, f"{expected} TRACKs by the other counters", counts["tracked"])
        _expect(counts["empty"] <= counts["acked"], "no more empty trees than acked ones", counts["empty"])
        high_water = header.options.high_water
        if high_water is not None:
            # protocol.md, Capacity: the last TRACK is accepted at 2h open trees, the last other new root at 4h entries.
            _expect(tracked <= 2 * high_water + 1, "no more open trees than high_water allows", tracked)
            untracked = header.entries - tracked
            _expect(untracked <= 4 * high_water + 1, "no more entries than high_water allows", untracked)


def _expect(holds: bool, expected: str, got: int) -> None:
    if not holds:
        raise SnapshotError(f"snapshot: expected {expected}, got {got}")


def _columns(block: bytes | memoryview, entries: int) -> SnapshotEntries:
    columns: list[Any] = []
    offset = 0
    for dtype in _DTYPES:
        stored = np.frombuffer(block, dtype, entries, offset)
        columns.append(stored.astype(dtype.newbyteorder("="), copy=False))
        offset += stored.nbytes
    return SnapshotEntries(*columns)


def input_of(blob: object) -> ByteInput:
    """Return the bytes of a snapshot as a source.

    Raises
    ------
    ArgumentTypeError   `blob` is not bytes.
    """
    if not isinstance(blob, (bytes, bytearray, memoryview)):
        raise ArgumentTypeError(f"snapshot: expected bytes, got {type(blob).__name__}")
    return MemoryInput(bytes(blob))  # Bytes are not copied; writable buffers are.


def encode_pieces(header: Header, blocks: Iterable[SnapshotEntries]) -> Iterator[bytes]:
    """Yield a snapshot: its header, then its blocks, given as columns of `Header.blocks` rows."""
    packed = header.pack()
    yield packed
    checksum = checksum_at_end(packed)
    for entries in blocks:
        tracked = entries.state == TRACKED
        cleared = entries._replace(message_id=entries.message_id * tracked, task_id=entries.task_id * tracked)
        columns = zip(cleared, _DTYPES, strict=True)
        content = b"".join(np.ascontiguousarray(column, dtype).tobytes() for column, dtype in columns)
        checksum = xxh64(content, checksum)
        yield content + _CHECKSUM.pack(checksum)


class BlockReader:
    """Checks blocks in plain Python and hands their entries on.

    Parameters
    ----------
    reading : Reading
    take : callable
        Gets the entries of each good block.
    """

    def __init__(self, reading: SnapshotReader, take: Callable[[SnapshotEntries], None]) -> None:
        self._options = reading.header.options
        self._checksum = reading.checksum
        self._take = take
        self._roots: set[int] = set()
        self.open = 0

    def read(self, block: bytes | memoryview, entries: int) -> tuple[int, int] | None:
        """Check a block and take it over; see `BlockLoader.read`."""
        content = block[: -_CHECKSUM.size]
        self._checksum = xxh64(content, self._checksum)
        if checksum_at_end(block) != self._checksum:
            return CHECKSUM_WRONG, 0
        columns = _columns(block, entries)
        failing = np.array([fault.fails(columns, self._options) for fault in FAULTS])
        if failing.any():
            entry = int(np.argmax(failing.any(axis=0)))
            return int(np.argmax(failing[:, entry])), entry
        for entry, root in enumerate(columns.root_id.tolist()):
            if root in self._roots:
                return ROOT_TWICE, entry
            self._roots.add(root)
        self.open += int(np.count_nonzero(columns.state == TRACKED))
        self._take(columns)
        return None
