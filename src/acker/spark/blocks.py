"""Blocks: the messages of many trees, combined by root and packed into one binary value.

A row that crosses between the JVM and Python costs as much as aggregating it, so between stages one row carries many
trees. All numbers are little-endian:

    offset  bytes
         0      8    magic, "ACKERBLK"
         8      4    version: 4, or 5 where the messages have event times
        12      4    size of this header, 128
        16      8    trees, n
        24      8    number m of open trees; the first n - m look finished
        32      8    messages that were combined into the block, or 0 where another block counts them
        40      8    TRACKs among them of roots that had one already, likewise
        48      8    latest event time among all of them, in ms (signed); -2**63 where there is none
        56      8    checksum: XXH64 of the first 56 bytes (seed 0), then of bytes 64 to 128 and of each column (seed:
                    the checksum so far)
        64   7 * 8    the least value of each column below; 0 where its width is 8, or it is not there
       120   7 * 1    how many bytes a row of the column takes: 0, 1, 2, 4 or 8
       127      1    0
       128      n    rows of the root ids
                n    xor of the OK and ANCHOR values
                n    the TRACK's message id
                n    of version 5: the earliest event time, in ms
                m    the TRACK's value
                n    the TRACK's task id
                m    flags: 1 TRACK seen, 2 FAIL seen, 4 RESET_TIMEOUT seen
           0 to 7    zeros, up to a multiple of 8 bytes

A tree looks finished when TRACK is its only flag and the xor equals the TRACK's value, which is then written once. Most
trees do, where the messages of a tree are near each other. With event times a tree has a row for each cohort in which
it got a message.

A column holds what is above its least value (`narrow_columns`). Where a worker saw OKs alone, a tree so takes 16 bytes.

The same messages in the same order give the same bytes, without any time of writing: Spark fails a job in which a task
that runs again has other output.
"""

from __future__ import annotations

import operator
import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from acker._engine.codes import FAILED, RESET, TRACKED
from acker._engine.combiner import Combiner, Partials, shard_of, xxh64
from acker._engine.protocol import INT32_MAX, INT64_MIN
from acker.errors import ArgumentValueError
from acker.spark.narrow_columns import WIDTHS, narrow, widen, width_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    from pyspark.sql import Column

MAGIC: Final = b"ACKERBLK"
VERSION: Final = 4
TIMED_VERSION: Final = 5

_HEADER: Final = struct.Struct("<8sIIQQQQq")
_CHECKSUM: Final = struct.Struct("<Q")
# The least value of each column, and its bytes a row.
_COLUMNS_MAX: Final = 7
_LAYOUT: Final = struct.Struct(f"<{_COLUMNS_MAX}q{_COLUMNS_MAX}Bx")
_LAYOUT_AT: Final = _HEADER.size + _CHECKSUM.size
HEADER_BYTES: Final = _LAYOUT_AT + _LAYOUT.size
_NO_EVENT: Final = INT64_MIN
# Bounds that keep sums over the blocks of a micro-batch, and clocks that follow an event time, within int64.
_COUNT_MAX: Final = 2**48
_EVENT_MS_MAX: Final = 2**61
# Name, and whether it holds the open trees only, in the order of the block.
_COLUMNS: Final = (
    ("root_id", False),
    ("value", False),
    ("message_id", False),
    ("track_value", True),
    ("task_id", False),
    ("flags", True),
)
_TIMED_COLUMNS: Final = (*_COLUMNS[:3], ("event_ms", False), *_COLUMNS[3:])
_FLAGS: Final = TRACKED | FAILED | RESET
_ALIGNMENT_BYTES: Final = 8
# Keeps a block below 1.2 MB: for larger ones the JVM allocates and copies humongous arrays, smaller ones are more rows.
# A block of more trees is refused: columns without bytes would let a few bytes stand for any number.
BLOCK_TREES_MAX: Final = 32_768

# The columns of a DataFrame of blocks.
BLOCKS_DDL: Final = "shard int, block binary"
BLOCK_SCHEMA: Final = pa.schema({"shard": pa.int32(), "block": pa.binary()})  # type: ignore[arg-type]


class BlockHeader(NamedTuple):
    """The header of a block.

    Attributes
    ----------
    trees : int
    open : int
        Of the trees, those that do not look finished.
    messages : int
        Messages combined into it. If one combiner made several blocks the first one counts for all.
    duplicates : int
        TRACKs of roots that had one, counted likewise.
    event_ms : int or None
        Latest event time of the messages, in each block of a combiner.
    timed : bool
        Whether each tree has event times.
    """

    trees: int
    open: int
    messages: int
    duplicates: int
    event_ms: int | None
    timed: bool


def encode_block(partials: Partials, *, messages: int = 0, duplicates: int = 0, event_ms: int | None = None) -> bytes:
    """Pack partials into a block; see the module's text for the format."""
    trees = len(partials.root_id)
    version = VERSION if partials.event_ms is None else TIMED_VERSION
    layout = _columns_of(version)
    is_open = (partials.flags != TRACKED) | (partials.value != partials.track_value)
    first_open = trees - int(np.count_nonzero(is_open))
    if is_open[:first_open].any():  # A combiner orders them, other callers may not.
        order = np.argsort(is_open, kind="stable")
        partials = partials.at(order)
    counts = (trees, trees - first_open, messages, duplicates)
    header = _HEADER.pack(MAGIC, version, HEADER_BYTES, *counts, _NO_EVENT if event_ms is None else event_ms)
    pairs = [narrow(getattr(partials, name)[first_open if of_open else 0 :]) for name, of_open in layout]
    leasts, columns = [least for least, _ in pairs], [np.ascontiguousarray(above) for _, above in pairs]
    absent = [0] * (_COLUMNS_MAX - len(layout))
    described = _LAYOUT.pack(*leasts, *absent, *map(width_of, columns), *absent)
    content: list[Any] = [described, *columns]
    padding = bytes(-sum(column.nbytes for column in columns) % _ALIGNMENT_BYTES)
    return b"".join([header, _CHECKSUM.pack(_checksum(header, content)), *content, padding])


def encode_blocks(combiner: Combiner, shards: int, event_ms: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield (shard, block) of everything that a combiner holds, without empty shards.

    The first block has the combiner's messages and duplicates, each has `event_ms`.
    """
    parts = combiner.partials(shards)
    counts = {"messages": combiner.messages, "duplicates": combiner.duplicates}
    for shard, part in enumerate(parts):
        for first in range(0, len(part.root_id), BLOCK_TREES_MAX):
            piece = part.rows(first, first + BLOCK_TREES_MAX)
            yield shard, encode_block(piece, **counts, event_ms=event_ms)
            counts = {}


def block_row(shard: int, block: bytes) -> pa.RecordBatch:
    """Return a block as a row of `BLOCK_SCHEMA`, without a copy."""
    offsets = pa.py_buffer(np.array([0, len(block)], np.int32))
    column: pa.Array[Any] = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(block)])
    return pa.RecordBatch.from_arrays([pa.array([shard], pa.int32()), column], schema=BLOCK_SCHEMA)


def latest_event_ms(block: Column) -> Column:
    """Return the latest event time in the header of each block, null where there is none; without a Python worker."""
    from pyspark.sql import functions as F  # noqa: N812

    size = 8
    digits = F.hex(F.substring(block, _HEADER.size - size + 1, size))
    big_endian = F.concat(*(F.substring(digits, 2 * index + 1, 2) for index in reversed(range(size))))
    # A negative base makes it a number with a sign.
    return F.nullif(F.conv(big_endian, 16, -10).cast("bigint"), F.lit(_NO_EVENT))


def read_header(block: Any) -> BlockHeader:
    """Return the header of a block, without reading its columns.

    Raises
    ------
    ArgumentValueError   the bytes are not a whole block of a version that this release reads.
    """
    view = memoryview(block).cast("B")
    if len(view) < HEADER_BYTES:
        raise ArgumentValueError(f"block: expected at least {HEADER_BYTES} bytes, got {len(view)}")
    fields = _HEADER.unpack_from(view)
    magic, version, header_bytes, trees, open_trees, messages, duplicates, event_ms = fields
    if magic != MAGIC:
        raise ArgumentValueError(f"block: expected it to begin with {MAGIC!r}, got {magic!r}")
    if version not in (VERSION, TIMED_VERSION) or header_bytes != HEADER_BYTES:
        raise ArgumentValueError(
            f"block: expected version {VERSION} or {TIMED_VERSION}, got {version} (header of {header_bytes} bytes)"
        )
    columns = _columns_of(version)
    _, widths = _layout_of(view, len(columns))
    if not set(widths) <= set(WIDTHS):
        raise ArgumentValueError(f"block: expected columns of {', '.join(map(str, WIDTHS))} bytes a row, got {widths}")
    counts = _counts_of(columns, trees, open_trees)
    content_bytes = sum(map(operator.mul, counts, widths))
    expected = HEADER_BYTES + content_bytes + -content_bytes % _ALIGNMENT_BYTES
    if open_trees > trees or len(view) != expected:
        raise ArgumentValueError(
            f"block: expected {expected} bytes for {trees} trees, {open_trees} of them open, got {len(view)}"
        )
    if trees > BLOCK_TREES_MAX:
        raise ArgumentValueError(f"block: expected at most {BLOCK_TREES_MAX} trees, got {trees}")
    event = None if event_ms == _NO_EVENT else event_ms
    if max(messages, duplicates) > _COUNT_MAX or abs(event or 0) > _EVENT_MS_MAX:
        raise ArgumentValueError(
            f"block: counts or an event time that no combiner writes: {messages}, {duplicates}, {event}"
        )
    return BlockHeader(trees, open_trees, messages, duplicates, event, version == TIMED_VERSION)


def decode_block(block: Any) -> tuple[Partials, BlockHeader]:
    """Unpack a block.

    Parameters
    ----------
    block : bytes-like

    Raises
    ------
    ArgumentValueError   the bytes are not an undamaged block of a version that this release reads.
    """
    header = read_header(block)
    view = memoryview(block).cast("B")
    layout = _columns_of(TIMED_VERSION if header.timed else VERSION)
    leasts, widths = _layout_of(view, len(layout))
    columns: dict[str, npt.NDArray[Any]] = {}
    content: list[Any] = [view[_LAYOUT_AT:HEADER_BYTES]]
    offset = HEADER_BYTES
    counts = _counts_of(layout, header.trees, header.open)
    for (name, _), count, least, width in zip(layout, counts, leasts, widths, strict=True):
        content.append(view[offset : offset + count * width])
        columns[name] = widen(view, offset, count, least, width)
        offset += count * width
    (checksum,) = _CHECKSUM.unpack_from(view, _HEADER.size)
    if checksum != _checksum(view[: _HEADER.size], content) or any(view[offset:]):
        raise ArgumentValueError("block: the checksum does not fit the bytes")
    flags, task_id = columns["flags"], columns["task_id"]
    if (flags & ~_FLAGS).any() or ((task_id < 0) | (task_id > INT32_MAX)).any():
        raise ArgumentValueError("block: flags or task ids that no combiner writes")
    columns["task_id"] = task_id.astype(np.int32)
    first_open = header.trees - header.open
    columns["track_value"] = np.concatenate([columns["value"][:first_open], columns["track_value"]])
    columns["flags"] = np.concatenate([np.full(first_open, TRACKED, np.uint8), flags.astype(np.uint8)])
    return Partials(**columns), header


def decode_block_of(shard: int, shards: int, block: Any) -> tuple[Partials, BlockHeader]:
    """Unpack a block of a shard; see `decode_block`.

    Raises
    ------
    ArgumentValueError   the block is damaged, or has trees of other shards.
    """
    partials, header = decode_block(block)
    if (shard_of(partials.root_id, shards) != shard).any():
        raise ArgumentValueError(f"blocks: a block of shard {shard} of {shards} holds other trees")
    return partials, header


def tracks_of(partials: Partials) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the root ids and the message ids of the trees that have a TRACK."""
    is_tracked = partials.flags & TRACKED != 0
    return partials.root_id[is_tracked], partials.message_id[is_tracked]


def _columns_of(version: int) -> tuple[tuple[str, bool], ...]:
    return _TIMED_COLUMNS if version == TIMED_VERSION else _COLUMNS


def _counts_of(columns: tuple[tuple[str, bool], ...], trees: int, open_trees: int) -> list[int]:
    """Return the number of rows of each column."""
    return [open_trees if of_open else trees for _, of_open in columns]


def _layout_of(view: memoryview, columns: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the least value of each column, and its bytes a row."""
    layout = _LAYOUT.unpack_from(view, _LAYOUT_AT)
    return layout[:columns], layout[_COLUMNS_MAX : _COLUMNS_MAX + columns]


def _checksum(header: Any, parts: list[Any]) -> int:
    checksum = xxh64(np.frombuffer(header, np.uint8))
    for part in parts:
        checksum = xxh64(np.frombuffer(part, np.uint8), checksum)
    return checksum
