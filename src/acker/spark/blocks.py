"""Blocks: what a task of Spark knows of some trees, packed into one binary value.

Rows that cross between the JVM and Python cost as much as aggregating them, so between stages messages travel combined
by root, and many trees in one row. All numbers are little-endian:

    offset  bytes
         0      8    magic, "ACKERBLK"
         8      4    version: 2, or 3 where the messages have event times
        12      4    size of this header, 64
        16      8    trees, n
        24      8    how many of them, m, are open; the first n - m look finished
        32      8    messages that were combined into the block, or 0 where another block counts them
        40      8    TRACKs among them of roots that had one already, likewise
        48      8    latest event time among all of them, in ms (signed); -2**63 where there is none
        56      8    checksum: XXH64 of the first 56 bytes (seed 0), then of each column (seed: the checksum so far)
        64     8n    root ids
               8n    xor of the OK and ANCHOR values
               8n    the TRACK's message id
               8n    of version 3: the earliest event time, in ms
               8m    the TRACK's value
               4n    the TRACK's task id
                m    flags: 1 TRACK seen, 2 FAIL seen, 4 RESET_TIMEOUT seen
           0 to 7    zeros, up to a multiple of 8 bytes

A tree looks finished when of the flags its TRACK's is set alone, and the xor equals the TRACK's value, which therefore
is not written twice. Most trees do, where the messages of a tree are near each other. With event times a tree has a row
for each cohort in which something was said of it.

The same messages in the same order give the same bytes, and nothing in them says when or how fast they were made: Spark
does not go on where a task that is run again puts out something else.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

import numpy as np
import pyarrow as pa

from acker._engine.codes import FAILED, RESET, TRACKED
from acker._engine.combiner import SHARDS_MAX, Combiner, Partials, check_shards, shard_of, xxh64
from acker._engine.protocol import INT64_MIN
from acker.errors import ArgumentTypeError, ArgumentValueError
from acker.spark.messages import quoted, shared_ids
from acker.spark.session_checks import carried

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Unpack

    import numpy.typing as npt
    from pyspark.sql import Column, DataFrame

    from acker._engine.completions import Completions

MAGIC: Final = b"ACKERBLK"
VERSION: Final = 2
TIMED_VERSION: Final = 3

_HEADER: Final = struct.Struct("<8sIIQQQQq")
_CHECKSUM: Final = struct.Struct("<Q")
HEADER_BYTES: Final = _HEADER.size + _CHECKSUM.size
_NO_EVENT: Final = INT64_MIN
# So that sums over the blocks of a micro-batch, and a clock that goes on from an event time, stay int64.
_COUNT_MAX: Final = 2**48
_EVENT_MS_MAX: Final = 2**61
# The columns in the order of the block, and whether they hold the open trees only. The widest come first, so that each
# is aligned in an aligned block.
_COLUMNS: Final = (
    ("root_id", np.dtype("<i8"), False),
    ("value", np.dtype("<i8"), False),
    ("message_id", np.dtype("<i8"), False),
    ("track_value", np.dtype("<i8"), True),
    ("task_id", np.dtype("<i4"), False),
    ("flags", np.dtype("u1"), True),
)
_TIMED_COLUMNS: Final = (*_COLUMNS[:3], ("event_ms", np.dtype("<i8"), False), *_COLUMNS[3:])
_ALIGNMENT_BYTES: Final = 8
# A block stays near 1 MB: larger ones make the JVM allocate and copy humongous arrays, smaller ones are more rows.
BLOCK_TREES_MAX: Final = 32_768
_COMPLETION_BATCH_ROWS: Final = 131_072

# What the frames of blocks hold.
BLOCKS_DDL: Final = "shard int, block binary"
BLOCK_SCHEMA: Final = pa.schema({"shard": pa.int32(), "block": pa.binary()})  # type: ignore[arg-type]
# Columns that may be null would be asked for each value of each row whether it is one.
COMPLETIONS_DDL: Final = (
    "root_id long not null, message_id long not null, task_id int not null, outcome tinyint not null,"
    " elapsed_ms long not null"
)


class BlockHeader(NamedTuple):
    """What a block says about itself.

    Attributes
    ----------
    trees : int
    open : int
        Of the trees, those that do not look finished.
    messages : int
        Messages combined into it. Where one combiner made several blocks the first one counts for all.
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
    if is_open[:first_open].any():  # not as a combiner gives them
        order = np.argsort(is_open, kind="stable")
        partials = partials.at(order)
    counts = (trees, trees - first_open, messages, duplicates)
    header = _HEADER.pack(MAGIC, version, HEADER_BYTES, *counts, _NO_EVENT if event_ms is None else event_ms)
    columns = [
        np.ascontiguousarray(getattr(partials, name)[first_open if of_open else 0 :], dtype)
        for name, dtype, of_open in layout
    ]
    content_bytes = HEADER_BYTES + sum(column.nbytes for column in columns)
    padding = bytes(_size_bytes(layout, trees, trees - first_open) - content_bytes)
    return b"".join([header, _CHECKSUM.pack(_checksum(header, columns)), *columns, padding])


def encode_blocks(combiner: Combiner, shards: int, event_ms: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield (shard, block) of everything a combiner holds; shards that hold nothing are left out.

    The messages and duplicates of the combiner stand in its first block, `event_ms` in each.
    """
    parts = combiner.partials(shards)
    counts = {"messages": combiner.messages, "duplicates": combiner.duplicates}
    for shard, part in enumerate(parts):
        for first in range(0, len(part.root_id), BLOCK_TREES_MAX):
            piece = part.rows(first, first + BLOCK_TREES_MAX)
            yield shard, encode_block(piece, **counts, event_ms=event_ms)
            counts = {}


def block_row(shard: int, block: bytes) -> pa.RecordBatch:
    """Return a block as a row of `BLOCK_SCHEMA`, which borrows it."""
    offsets = pa.py_buffer(np.array([0, len(block)], np.int32))
    column: pa.Array[Any] = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(block)])
    return pa.RecordBatch.from_arrays([pa.array([shard], pa.int32()), column], schema=BLOCK_SCHEMA)


def latest_event_ms(block: Column) -> Column:
    """Return the latest event time of each block in a column, as its header says, without a way into Python."""
    from pyspark.sql import functions as F  # noqa: N812

    size = 8
    digits = F.hex(F.substring(block, HEADER_BYTES - _CHECKSUM.size - size + 1, size))
    turned = F.concat(*(F.substring(digits, 2 * place + 1, 2) for place in reversed(range(size))))
    # To base -10: a number with a sign.
    return F.conv(turned, 16, -10).cast("bigint")


def read_header(block: Any) -> BlockHeader:
    """Return the header of a block, without looking at its columns.

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
    expected = _size_bytes(_columns_of(version), trees, open_trees)
    if open_trees > trees or len(view) != expected:
        raise ArgumentValueError(
            f"block: expected {expected} bytes for {trees} trees, {open_trees} of them open, got {len(view)}"
        )
    event = None if event_ms == _NO_EVENT else event_ms
    if max(messages, duplicates) > _COUNT_MAX or abs(event or 0) > _EVENT_MS_MAX:
        raise ArgumentValueError(
            f"block: counts or an event time that no combiner writes: {messages}, {duplicates}, {event}"
        )
    return BlockHeader(trees, open_trees, messages, duplicates, event, version == TIMED_VERSION)


def decode_block(block: Any) -> tuple[Partials, BlockHeader]:
    """Unpack a block; its columns are views of the bytes where those are aligned.

    Parameters
    ----------
    block : bytes-like

    Raises
    ------
    ArgumentValueError   the bytes are not an undamaged block of a version that this release reads.
    """
    header = read_header(block)
    view = memoryview(block).cast("B")
    columns: dict[str, npt.NDArray[Any]] = {}
    offset = HEADER_BYTES
    for name, dtype, of_open in _columns_of(TIMED_VERSION if header.timed else VERSION):
        columns[name] = np.frombuffer(view, dtype, header.open if of_open else header.trees, offset)
        offset += columns[name].nbytes
    (checksum,) = _CHECKSUM.unpack_from(view, _HEADER.size)
    if checksum != _checksum(view[: _HEADER.size], list(columns.values())) or any(view[offset:]):
        raise ArgumentValueError("block: the checksum does not fit the bytes")
    if (columns["flags"] > TRACKED | FAILED | RESET).any() or (columns["task_id"] < 0).any():
        raise ArgumentValueError("block: flags or task ids that no combiner writes")
    first_open = header.trees - header.open
    columns["track_value"] = np.concatenate([columns["value"][:first_open], columns["track_value"]])
    columns["flags"] = np.concatenate([np.full(first_open, TRACKED, np.uint8), columns["flags"]])
    native = {name: np.require(column, column.dtype.newbyteorder("="), "A") for name, column in columns.items()}
    return Partials(**native), header


class StreamOptions(TypedDict, total=False):
    """What only a stream of blocks has; as in `acker.spark.completions`."""

    timeout: str | float | None
    protocol: str
    buckets: int
    high_water: int | None
    name: str


def completions_from_blocks(
    blocks: DataFrame,
    *,
    column: str = "block",
    shard: str = "shard",
    shards: int | None = None,
    include_pending: bool = False,
    **streaming: Unpack[StreamOptions],
) -> DataFrame:
    """Merge blocks and settle every tree: the last stage of `completions_from_files` and of tracked pipelines.

    Parameters
    ----------
    blocks : DataFrame
        With a binary column of blocks and an integer column with the shard of each. All blocks must have been split
        into the same number of shards, so that the parts of a tree meet. Of a streaming one each micro-batch is settled
        as a set, and what stays open waits in the state.
    column, shard : str
        Names of the two columns; others are ignored.
    shards : int, 1 to 1024, optional
        How many there are. When given, each shard gets a partition of its own and its blocks are checked to belong to
        it. When left out, Spark's shuffle partitions take the shards as their hashes fall. A stream must be told.
    include_pending : bool
        Batch only: report the trees that are still open too, with outcome PENDING.
    timeout, protocol, buckets, high_water, name
        Streaming only, as in `acker.spark.completions`.

    Returns
    -------
    DataFrame
        Columns of `acker.COMPLETION_SCHEMA`, one row a tree that had a TRACK and is finished; `elapsed_ms` is 0 in a
        batch.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        What is wrong with an argument. A damaged block fails the job with an error that says so.
    """
    for name, types in ((column, ("binary",)), (shard, ("tinyint", "smallint", "int", "bigint"))):
        found = dict(blocks.dtypes).get(name)
        if found is None:
            raise ArgumentValueError(f"blocks: there is no column {name!r}; there are {', '.join(blocks.columns)}")
        if found not in types:
            raise ArgumentTypeError(f"blocks: expected column {name!r} of type {' or '.join(types)}, got {found}")
    if shards is not None:
        shards = check_shards(shards)
    for name in streaming.keys() - StreamOptions.__annotations__.keys():
        raise ArgumentTypeError(
            f"{name}: expected none but {', '.join(StreamOptions.__annotations__)} of the options of a stream"
        )
    rows = _checked_rows(blocks, column, shard, shards)
    if blocks.isStreaming:
        if shards is None or include_pending:
            raise ArgumentValueError(
                "blocks: a streaming DataFrame needs the number of shards, and has nothing PENDING"
            )
        from acker.spark.streams.plan import completions_from_block_stream

        return completions_from_block_stream(rows, shards=shards, **streaming)
    if streaming:
        raise ArgumentTypeError(f"{next(iter(streaming))}: of a streaming DataFrame only, and blocks is a batch one")
    return settle_rows(rows, shards, include_pending=include_pending)


def settle_rows(rows: DataFrame, shards: int | None, *, include_pending: bool, unique_ids: bool = False) -> DataFrame:
    """Settle a batch of rows (shard, block).

    Parameters
    ----------
    unique_ids : bool
        The messages are those of a pipeline: a tree with two TRACKs is an error, see `shared_ids`.
    """
    if shards is None:
        placed = rows.repartition("shard")
    else:
        placed = rows.repartition(shards, place_of(rows.shard, shards))

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return settle_blocks(batches, shards, include_pending, unique_ids=unique_ids)

    return placed.mapInArrow(carried(run), COMPLETIONS_DDL)


def _checked_rows(blocks: DataFrame, column: str, shard: str, shards: int | None) -> DataFrame:
    """Return rows of (shard, block). One that is not legal fails the job before Spark looks for its partition."""
    from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.

    number, block = F.col(quoted(shard)), F.col(quoted(column))
    nothing = F.lit("blocks: expected a shard and a block in each row, got null")
    fault = F.when(number.isNull() | block.isNull(), nothing)
    if shards is not None:
        expected = (
            f"blocks: expected a shard from 0 to {shards - 1} in column {shard!r}, since shards is {shards}, got "
        )
        hint = ": give the number of shards into which the blocks were split"
        text = F.concat(F.lit(expected), number.cast("string"), F.lit(hint))
        fault = fault.when(~number.between(0, shards - 1), text)
    checked = F.when(fault.isNull(), number.cast("int")).otherwise(F.raise_error(fault).cast("int"))
    return blocks.select(checked.alias("shard"), block.alias("block"))


def settle_blocks(
    batches: Iterator[pa.RecordBatch], shards: int | None, include_pending: bool, *, unique_ids: bool = False
) -> Iterator[pa.RecordBatch]:
    """Merge the blocks of one partition and yield its completions; runs in Spark's Python workers."""
    combiner = Combiner()
    tracks: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
    for batch in batches:
        for number, block in zip(batch.column(0), batch.column(1), strict=True):
            partials, _ = decode_block(block.as_buffer())
            if shards is not None and (shard_of(partials.root_id, shards) != number.as_py()).any():
                raise ArgumentValueError(f"blocks: a block of shard {number.as_py()} of {shards} holds other trees")
            combiner.merge(partials)
            if unique_ids:
                tracks.append(tracks_of(partials))
                if combiner.duplicates:
                    raise ArgumentValueError(f"message_id: {shared_ids(tracks)}")
    yield from completion_batches(combiner.settle(include_pending))


def tracks_of(partials: Partials) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the root ids and the message ids of the trees that have a TRACK."""
    is_tracked = partials.flags & TRACKED != 0
    return partials.root_id[is_tracked], partials.message_id[is_tracked]


def completion_batches(done: Completions) -> Iterator[pa.RecordBatch]:
    """Yield the completions as Arrow batches of a size that Spark takes well."""
    batch = done.to_arrow()
    for first in range(0, len(done), _COMPLETION_BATCH_ROWS):
        yield batch.slice(first, _COMPLETION_BATCH_ROWS)


def place_of(number: Column, partitions: int) -> Column:
    """Return what Spark's hash partitioning puts into the partition of that number.

    More partitions than there can be shards take what falls to them: an array of places would weigh more than an uneven
    spread does. The place of a shard does not depend on how many there are, so a query that has another number of them
    than its checkpoint meets the state that says so.
    """
    from pyspark.sql import functions as F  # noqa: N812

    if partitions > SHARDS_MAX:
        return number
    return F.element_at(F.array(*map(F.lit, placements(partitions).tolist())), number + 1)


def placements(shards: int) -> npt.NDArray[np.int32]:
    """Return for each shard an int that Spark's ``hash`` maps to the shard's number.

    So hash partitioning puts shard s into partition s modulo the number of partitions, whatever that is. The hash is
    Murmur3 (x86, 32 bits) of one int with seed 42; each of its steps can be undone. Were it another one, shards would
    merely share partitions: results do not depend on it.
    """

    def unfold(mixed: Any, bits: int) -> Any:
        """Undo ``mixed ^= mixed >> bits``, for 11 bits or more."""
        once = mixed ^ (mixed >> np.uint32(bits))
        return once if bits >= 16 else mixed ^ (once >> np.uint32(bits))

    def unrotate(word: Any, bits: int) -> Any:
        return (word >> np.uint32(bits)) | (word << np.uint32(32 - bits))

    def inverse(odd: int) -> np.uint32:
        return np.uint32(pow(odd, -1, 2**32))

    mixed = unfold(np.arange(shards, dtype=np.uint32), 16) * inverse(0xC2B2AE35)
    mixed = unfold(mixed, 13) * inverse(0x85EBCA6B)
    mixed = unfold(mixed, 16) ^ np.uint32(4)  # the length in bytes
    mixed = unrotate((mixed - np.uint32(0xE6546B64)) * inverse(5), 13) ^ np.uint32(42)
    mixed = unrotate(mixed * inverse(0x1B873593), 15) * inverse(0xCC9E2D51)
    return mixed.view(np.int32)  # type: ignore[no-any-return]


def _columns_of(version: int) -> tuple[tuple[str, np.dtype[Any], bool], ...]:
    return _TIMED_COLUMNS if version == TIMED_VERSION else _COLUMNS


def _size_bytes(columns: tuple[tuple[str, np.dtype[Any], bool], ...], trees: int, open_trees: int) -> int:
    columns_bytes = sum(dtype.itemsize * (open_trees if of_open else trees) for _, dtype, of_open in columns)
    return HEADER_BYTES + -(-columns_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _checksum(header: Any, columns: list[Any]) -> int:
    checksum = xxh64(header)
    for column in columns:
        checksum = xxh64(column.view(np.uint8), checksum)
    return checksum
