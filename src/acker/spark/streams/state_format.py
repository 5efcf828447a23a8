"""The state of a shard in Spark's state store: a head and a log of chunks. This is format version 4.

The log alone tells which trees are open: a chunk holds entries as they were after some micro-batch, and names those
that were gone then. Root id and start identify an entry: by event time a root has one for its tree and one for each
cohort of messages that belong to no tree. To read the state, go through the chunks from the oldest to the newest; in
each, first remove the entries that are gone, then add its entries. The last version of an entry counts. Then leave out
entries whose `since` is before the head's `expired`. A micro-batch adds a chunk, so its cost depends on what it changed
and not on what is held. `acker.spark.streams.micro_batch` removes the oldest chunks little by little, and writes their
live entries again.

Spark keeps one state variable for each shard, `log`, a map from an int (`chunk`) to a binary column (`bytes`). Number 0
is the head; numbers from 1 are the chunks. Number -n, where a pipeline has text ids, has those of the entries in chunk
n. The key `partition_key` is an int that Spark's hash puts into partition shard modulo partitions. All numbers are
little-endian.

A head:

========== ==========================================================================================================
bytes      content
========== ==========================================================================================================
8          ``ACKERHED``
4, 4       version, 4; size of everything before the sizes of chunks
16         token: random, a new one in each version of the state
14 * 8     int64: batch id, shard, shards, partitions, event time (0 or 1), clock, time, expired, rotation, oldest,
           credit, entries, open, first chunk
11 * 8     int64: tracked, acked, failed, timed out, rejected, duplicates, unknown, orphans, dropped, resets, empty
n * (4, 4) uint32: rows and bytes of each chunk, the oldest first
8          checksum: XXH64 of all before it, seed 0
========== ==========================================================================================================

A chunk:

=========== =========================================================================================================
bytes       content
=========== =========================================================================================================
8           ``ACKERLOG``
4, 4        version, 4; size of the header, 104
8, 8        number of entries, n; number of entries that are gone, m; at most 32,768 each
8 * 8       int64: the least value of each of the eight columns below; 0 where the width is 8
8 * 1       the width of each column: 0, 1, 2, 4 or 8 bytes a row
m rows each two columns of the entries that are gone: root id, start
n rows each six columns of entries: root id, value (the xor of all messages), message id, start (ms), since (when its
            time last began anew) minus start, task id (-1 without a TRACK, -2 without a TRACK but with a FAIL, -4, by
            event time, without a TRACK but with a RESET_TIMEOUT)
8           checksum, as above
=========== =========================================================================================================

A column holds what is above its least value, as unsigned numbers of its width; with width 8 as int64, and with width 0
nothing, as all rows are alike. Times, task ids and often message ids of one micro-batch are near each other, while root
ids and xors are random: so a new entry takes about 20 bytes instead of 44.
"""

from __future__ import annotations

import operator
import struct
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from acker._engine.codes import UNTRACKED, UNTRACKED_FAILED, UNTRACKED_RESET
from acker._engine.combiner import xxh64
from acker._engine.open_trees import TOKEN_BYTES, TreeCounts, TreeEntries
from acker._engine.protocol import INT32_MAX, INT64_MIN
from acker.errors import CheckpointError
from acker.spark.narrow_columns import WIDTHS, narrow, widen, width_of

VERSION: Final = 4
# The state variable, a map. One map for head and chunks: a second variable would make each commit of Spark's about a
# tenth longer.
VARIABLE: Final = "log"
# Key of the head in the map; chunks are numbered from 1.
HEAD_KEY: Final = 0

# Bound of the numbers in a head and of the times of entries: the sum or the difference of two is an int64.
NUMBER_MAX: Final = 2**62 - 1

# Keeps a chunk below 1.4 MB: it is written in one piece, and removed in one.
CHUNK_ROWS_MAX: Final = 32_768

_PREFIX: Final = struct.Struct("<8sII")
_HEAD_MAGIC: Final = b"ACKERHED"
_CHUNK_MAGIC: Final = b"ACKERLOG"
_CHECKSUM: Final = struct.Struct("<Q")
_LENGTHS: Final = struct.Struct("<QQ")


class Store(Protocol):
    """The store of a shard's state: the head at `HEAD_KEY`, and the chunks of the log at their numbers."""

    def get(self, key: int) -> bytes | None:
        """Return the bytes at a key, None if there are none."""

    def put(self, key: int, data: bytes) -> None:
        """Write the bytes at a key."""

    def remove(self, key: int) -> None:
        """Remove the bytes at a key."""


class ChunkSize(NamedTuple):
    """The rows of a chunk, including those that name entries that are gone, and its bytes."""

    rows: int
    size_bytes: int


class Head(NamedTuple):
    """The state of a shard without its trees. All fields but the token are int64.

    Attributes
    ----------
    token : bytes
        16 random bytes, new in each version of the state: a native table with another token belongs to another state.
    batch_id : int
        The micro-batch that wrote it.
    shard, shards, partitions : int
        Number of the shard, of all shards, and of Spark's shuffle partitions; they cannot change.
    event_time : int
        1 if the clock is the watermark, 0 if it is the time of the micro-batch.
    clock_ms : int
        The last time of that clock.
    time_ms : int
        The shard's own clock, which does not go back.
    expired_ms : int
        Entries placed before it are gone, even if the log has them.
    rotation : int
        Number of the last rotation, ``time_ms`` divided by the time between two.
    oldest_ms : int
        Start of the oldest entry at the last rotation.
    credit_rows : int
        How many rows of old chunks may be removed.
    entries, open : int
        Entries held, and how many of them have a TRACK.
    first_chunk : int
        Number of the oldest chunk of the log; the others follow without a gap.
    counts : TreeCounts
        Since the beginning.
    chunks : tuple of ChunkSize
        One for each chunk of the log, the oldest first.
    """

    token: bytes
    batch_id: int
    shard: int
    shards: int
    partitions: int
    event_time: int
    clock_ms: int
    time_ms: int
    expired_ms: int
    rotation: int
    oldest_ms: int
    credit_rows: int
    entries: int
    open: int
    first_chunk: int
    counts: TreeCounts
    chunks: tuple[ChunkSize, ...]

    @property
    def next_chunk(self) -> int:
        """Number of the next chunk."""
        return self.first_chunk + len(self.chunks)

    @property
    def log_rows(self) -> int:
        """Rows in all chunks."""
        return sum(chunk.rows for chunk in self.chunks)

    @property
    def log_bytes(self) -> int:
        """Bytes of all chunks."""
        return sum(chunk.size_bytes for chunk in self.chunks)


_NUMBERS: Final = len(Head._fields) - 3
_HEAD: Final = struct.Struct(f"<{TOKEN_BYTES}s{_NUMBERS + len(TreeCounts._fields)}q")
# The columns of a chunk: two of the entries that are gone, and six of the others.
_COLUMNS: Final = ("gone_root_id", "gone_start_ms", *TreeEntries._fields)
_GONE_COLUMNS: Final = len(_COLUMNS) - len(TreeEntries._fields)
# The least value of each column, and its bytes a row.
_LAYOUT: Final = struct.Struct(f"<{len(_COLUMNS)}q{len(_COLUMNS)}B")
_CHUNK_SIZE: Final = np.dtype("<u4")


def encode_head(head: Head) -> bytes:
    """Pack a head."""
    content = b"".join(
        [
            _PREFIX.pack(_HEAD_MAGIC, VERSION, _PREFIX.size + _HEAD.size),
            _HEAD.pack(*head[: 1 + _NUMBERS], *head.counts),
            np.array(head.chunks, _CHUNK_SIZE).tobytes(),
        ]
    )
    return content + _CHECKSUM.pack(_checksum(content))


def decode_head(data: Any) -> Head:
    """Unpack a head.

    Raises
    ------
    CheckpointError   the bytes are not an undamaged head of a version that this release reads.
    """
    content = _verify(data, _HEAD_MAGIC, "head")
    sizes = len(content) - _PREFIX.size - _HEAD.size
    if sizes < 0 or sizes % (2 * _CHUNK_SIZE.itemsize):
        raise CheckpointError(f"head: {len(content)} bytes do not hold one")
    values = _HEAD.unpack_from(content, _PREFIX.size)
    chunks = np.frombuffer(content, _CHUNK_SIZE, offset=_PREFIX.size + _HEAD.size).reshape(-1, 2).tolist()
    for name, number in zip(Head._fields[1 : 1 + _NUMBERS], values[1:], strict=False):
        if abs(number) > NUMBER_MAX and (name, number) != ("expired_ms", INT64_MIN):
            raise CheckpointError(
                f"head: expected {name} within {NUMBER_MAX} of 0, got {number}, which no shard writes"
            )
    counts = TreeCounts(*values[1 + _NUMBERS :])
    for name, count in counts._asdict().items():
        if not 0 <= count <= NUMBER_MAX:
            raise CheckpointError(
                f"head: expected a count {name} from 0 to {NUMBER_MAX}, got {count}, which no shard writes"
            )
    return Head._make([*values[: 1 + _NUMBERS], counts, tuple(ChunkSize(*chunk) for chunk in chunks)])


def encode_chunk(entries: TreeEntries, gone: npt.NDArray[np.int64]) -> bytes:
    """Pack a chunk of the log: entries as they are, and root ids and starts (2, m) of entries that are gone."""
    # Most entries were placed when they began.
    relative = entries._replace(since_ms=entries.since_ms - entries.start_ms)
    leasts, columns = zip(*map(narrow, (*gone, *relative)), strict=True)
    content = b"".join(
        [
            _PREFIX.pack(_CHUNK_MAGIC, VERSION, _PREFIX.size + _LENGTHS.size + _LAYOUT.size),
            _LENGTHS.pack(len(entries.root_id), gone.shape[1]),
            _LAYOUT.pack(*leasts, *map(width_of, columns)),
            *(column.tobytes() for column in columns),
        ]
    )
    return content + _CHECKSUM.pack(_checksum(content))


def decode_chunk(data: Any) -> tuple[TreeEntries, npt.NDArray[np.int64]]:
    """Unpack a chunk of the log into entries, and root ids and starts (2, m) of those that are gone.

    Raises
    ------
    CheckpointError   the bytes are not an undamaged chunk of a version that this release reads.
    """
    content = _verify(data, _CHUNK_MAGIC, "chunk")
    lengths = _LENGTHS.unpack_from(content, _PREFIX.size)
    offset = _PREFIX.size + _LENGTHS.size + _LAYOUT.size
    # A column without bytes says nothing about the rows.
    if max(lengths) > CHUNK_ROWS_MAX or len(content) < offset:
        raise CheckpointError(
            f"chunk: {len(content)} bytes do not hold {lengths[0]} entries and {lengths[1]} that are gone"
        )
    rows, gone_rows = lengths
    layout = _LAYOUT.unpack_from(content, _PREFIX.size + _LENGTHS.size)
    leasts, widths = layout[: len(_COLUMNS)], layout[len(_COLUMNS) :]
    counts = [gone_rows] * _GONE_COLUMNS + [rows] * len(TreeEntries._fields)
    if not set(widths) <= set(WIDTHS) or len(content) != offset + sum(map(operator.mul, counts, widths)):
        raise CheckpointError(
            f"chunk: {len(content)} bytes do not hold {rows} entries and {gone_rows} that are gone in columns of"
            f" {widths} bytes"
        )
    columns = []
    for least, width, count in zip(leasts, widths, counts, strict=True):
        columns.append(widen(content, offset, count, least, width))
        offset += width * count
    root_id, value, message_id, start_ms, since_ms, task_id = columns[_GONE_COLUMNS:]
    since_ms += start_ms
    _check_times(start_ms=start_ms, since_ms=since_ms)
    entries = TreeEntries(root_id, value, message_id, start_ms, since_ms, _check_tasks(task_id))
    return entries, np.array(columns[:_GONE_COLUMNS])


def _check_times(**columns: npt.NDArray[Any]) -> None:
    for name, column in columns.items():
        if len(column) and not -NUMBER_MAX <= column.min() <= column.max() <= NUMBER_MAX:
            raise CheckpointError(f"chunk: a {name} that no shard writes")


def _check_tasks(task_id: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    is_known = (task_id >= 0) & (task_id <= INT32_MAX)
    if not (is_known | np.isin(task_id, (UNTRACKED, UNTRACKED_FAILED, UNTRACKED_RESET))).all():
        raise CheckpointError("chunk: a task id that no shard writes")
    return task_id.astype(np.int32)


def _verify(data: Any, magic: bytes, what: str) -> memoryview:
    """Check magic, version and checksum, and return the bytes before the checksum."""
    view = memoryview(data).cast("B")
    if len(view) < _PREFIX.size + _LENGTHS.size + _CHECKSUM.size:
        raise CheckpointError(f"{what}: {len(view)} bytes are too few")
    found, version, _ = _PREFIX.unpack_from(view)
    if found != magic:
        raise CheckpointError(f"{what}: expected it to begin with {magic!r}, got {found!r}: not the state of an acker")
    if version != VERSION:
        raise CheckpointError(
            f"{what}: expected format version {VERSION}, got {version}: it was written by another release of acker;"
            " run the query with that one, or begin with a new checkpoint"
        )
    content = view[: -_CHECKSUM.size]
    if _CHECKSUM.unpack_from(view, len(content))[0] != _checksum(content):
        raise CheckpointError(f"{what}: the checksum does not fit the bytes: the checkpoint is damaged")
    return content


def _checksum(content: Any) -> int:
    return xxh64(np.frombuffer(content, np.uint8))
