"""One shard, one micro-batch: take the table up, apply the blocks, let trees time out, write the log, leave the table.

Nothing here knows Spark: the store is Spark's state in the operator, and a dictionary in tests.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np

from acker._engine.combiner import Cohorts, Combiner, Partials, shard_of
from acker._engine.completions import Completions
from acker._engine.open_trees import TOKEN_BYTES, OpenTrees, TreeCounts
from acker._engine.protocol import INT64_MIN
from acker.errors import ArgumentValueError, CheckpointError
from acker.spark.blocks import decode_block, tracks_of
from acker.spark.messages import shared_ids
from acker.spark.streams.reports import Report
from acker.spark.streams.state_format import (
    CHUNK_ROWS_MAX,
    ChunkSize,
    Head,
    decode_chunk,
    decode_head,
    encode_chunk,
    encode_head,
)
from acker.spark.streams.table_cache import Residents, borrowed

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

# An old chunk is done away with once the log has more rows than this many times the entries held, and some ...
_LOG_ROWS_PER_ENTRY: Final = 2
_LOG_ROWS_SPARE: Final = CHUNK_ROWS_MAX
# ... or more chunks than full ones would need, and some.
_CHUNKS_SPARE: Final = 64
# A table that is built from the log has room for so many times the rows that were read.
_ROOM_TIMES: Final = 8
# For each row written so many old ones may be looked at, and this many a micro-batch besides: the work of a micro-batch
# is bounded by its own size, and still the cleaning outruns the writing.
_CREDIT_PER_ROW: Final = 2
_CREDIT_PER_BATCH: Final = 1024
_CREDIT_MAX: Final = 4 * CHUNK_ROWS_MAX
# Without a timeout there are no rotations, and the oldest tree is looked for this often.
_LOOK_MS: Final = 60_000


class Store(Protocol):
    """Where a shard's state is."""

    def head(self) -> bytes | None:
        """Return the head, None when there is no state yet."""

    def put_head(self, data: bytes) -> None:
        """Write the head."""

    def chunk(self, number: int) -> bytes | None:
        """Return a chunk of the log."""

    def put_chunk(self, number: int, data: bytes) -> None:
        """Write a chunk."""

    def remove_chunk(self, number: int) -> None:
        """Remove a chunk."""


@dataclass(frozen=True)
class Options:
    """What a streaming acker was asked for.

    Attributes
    ----------
    shards, partitions : int
    timeout_ms : Fraction or None
    buckets : int
    high_water : int or None
        Of one shard.
    every_message_refreshes : bool
        The rule of protocol "storm-0.9".
    event_time : bool
        The clock is the watermark.
    unique_ids : bool
        Two TRACKs of one tree in a micro-batch are an error: the messages come from a pipeline.
    """

    shards: int
    partitions: int
    timeout_ms: Fraction | None = None
    buckets: int = 3
    high_water: int | None = None
    every_message_refreshes: bool = False
    event_time: bool = False
    unique_ids: bool = False

    @property
    def cohorts(self) -> Cohorts | None:
        """How event times are parted; None where there are none."""
        if not self.event_time:
            return None
        return Cohorts(0 if self.timeout_ms is None else int(self.timeout_ms), self.buckets)

    @property
    def cohorts_of_blocks(self) -> Cohorts | None:
        """How event times are parted while the blocks of a micro-batch are put together.

        Those of a pipeline are not: all that it says of a tree is in one micro-batch and has the time of the row that
        began it. So two rows that share a tree are told, whatever their times.
        """
        cohorts = self.cohorts
        return cohorts._replace(timeout_ms=0) if cohorts is not None and self.unique_ids else cohorts

    def rotation_at(self, time_ms: int) -> int:
        """Return how many rotations there were up to a moment: one each timeout / (buckets - 1), never rounded."""
        if self.timeout_ms is None:
            return time_ms // _LOOK_MS
        return int(time_ms * (self.buckets - 1) // self.timeout_ms)

    def expired_at(self, rotation: int) -> int:
        """Return the moment before which an entry must have been placed to be gone after a rotation."""
        if self.timeout_ms is None:
            return INT64_MIN
        # Placed in cohort c, gone with rotation c + buckets; so gone are those before cohort rotation - buckets + 1.
        return self._begin_ms(rotation - self.buckets + 1, self.timeout_ms)

    def next_rotation_ms(self, time_ms: int) -> int | None:
        """Return the moment of the first rotation after `time_ms`; None where there are none."""
        if self.timeout_ms is None:
            return None
        return self._begin_ms(self.rotation_at(time_ms) + 1, self.timeout_ms)

    def _begin_ms(self, rotation: int, timeout_ms: Fraction) -> int:
        """Return the first whole millisecond of a cohort, which is that of the rotation with its number."""
        return -int(-rotation * timeout_ms // (self.buckets - 1))


class Batch(NamedTuple):
    """One shard's part of a micro-batch.

    Attributes
    ----------
    batch_id : int
    blocks : list
        As `acker.spark.blocks` packs them.
    clock_ms : int
        The time of the micro-batch, or the watermark.
    """

    batch_id: int
    blocks: list[Any]
    clock_ms: int


def update(
    store: Store, residents: Residents, key: str, shard: int, batch: Batch, options: Options
) -> tuple[Completions, Report]:
    """Apply one micro-batch to one shard and write its state.

    Parameters
    ----------
    store : Store
    residents : Residents
        Where the shard's table may still be.
    key : str
        Names the shard among all shards of all queries.
    shard : int
    batch : Batch
    options : Options

    Returns
    -------
    (Completions, Report)

    Raises
    ------
    CheckpointError           the state is of another query, of another release, or damaged.
    ArgumentValueError   a block is damaged or of another shard.
    """
    data = store.head()
    if data is None:
        head = _first_head(shard, batch, options)
        ledger, resident, rebuilt = residents.new(), False, False
    else:
        head = decode_head(data)
        _check_same_query(head, shard, options)
        found = residents.take(key, head.token)
        resident, rebuilt = found is not None, found is None
        ledger = found if found is not None else _rebuild(store, residents, head)
    with borrowed(ledger):
        work = _Work(store, ledger, head, options)
        completions = work.run(batch)
        store.put_head(encode_head(work.head))
        report = work.report(resident=resident, rebuilt=rebuilt)
    residents.leave(key, work.head.token, ledger)
    return completions, report


def _first_head(shard: int, batch: Batch, options: Options) -> Head:
    return Head(
        token=bytes(TOKEN_BYTES),
        batch_id=batch.batch_id,
        shard=shard,
        shards=options.shards,
        partitions=options.partitions,
        event_time=int(options.event_time),
        clock_ms=batch.clock_ms,
        time_ms=batch.clock_ms,
        expired_ms=INT64_MIN,
        rotation=options.rotation_at(batch.clock_ms),
        oldest_ms=batch.clock_ms,
        # Shards that get as much each would all clean in the same micro-batch.
        credit_rows=shard * CHUNK_ROWS_MAX // options.shards,
        entries=0,
        open=0,
        first_chunk=1,
        counts=TreeCounts(),
        chunks=(),
    )


def _check_same_query(head: Head, shard: int, options: Options) -> None:
    way_out = "; Spark cannot move state, so set it back, or begin with a new checkpoint"
    for name, found, asked in (
        ("shards", head.shards, options.shards),
        ("spark.sql.shuffle.partitions", head.partitions, options.partitions),
    ):
        if found != asked:
            raise CheckpointError(f"{name}: the checkpoint was made with {found}, the query asks for {asked}{way_out}")
    if head.event_time != options.event_time:
        made, asks = ("the watermark" if flag else "the clock" for flag in (head.event_time, options.event_time))
        raise CheckpointError(
            f"event_time: trees of the checkpoint expire by {made}, the query asks for {asks}{way_out}"
        )
    if head.shard != shard:
        raise CheckpointError(f"head: expected the state of shard {shard}, got that of shard {head.shard}")


def _rebuild(store: Store, residents: Residents, head: Head) -> OpenTrees:
    """Make the table that the log describes."""
    ledger = residents.new()
    with borrowed(ledger):
        read = 0
        for number in range(head.first_chunk, head.next_chunk):
            data = store.chunk(number)
            if data is None:
                raise CheckpointError(f"chunk {number} of the log is missing: the checkpoint is damaged")
            entries, gone = decode_chunk(data)
            read += len(entries.root_id)
            # Room at once, but for what was read: a head may claim any number of entries.
            ledger.reserve(min(head.entries + CHUNK_ROWS_MAX, _ROOM_TIMES * read) - len(ledger))
            ledger.erase(gone)
            ledger.put(entries, number)
        ledger.expire(head.expired_ms, head.time_ms)
        if (len(ledger), ledger.open) != (head.entries, head.open):
            raise CheckpointError(
                f"shard {head.shard}: the log holds {len(ledger)} entries, {ledger.open} of them tracked, and the head"
                f" says {head.entries} and {head.open}: the checkpoint is damaged"
            )
    return ledger


class _Work:
    """What one micro-batch does to a shard; `head` is the new head in the end."""

    def __init__(self, store: Store, ledger: OpenTrees, head: Head, options: Options) -> None:
        self.head = head
        self._store = store
        self._ledger = ledger
        self._options = options
        self._counts = TreeCounts()
        self._messages = 0
        self._native_ns = 0
        self._bytes_written = 0
        self._chunks_cleaned = 0

    def run(self, batch: Batch) -> Completions:
        """Apply the micro-batch; messages first, then what is due expires."""
        head, options = self.head, self._options
        partials = self._combined(batch.blocks)
        # A clock that was set back stands still for one micro-batch, and then goes on from where it was.
        clock_ms = max(batch.clock_ms, head.clock_ms) if options.event_time else batch.clock_ms
        time_ms = head.time_ms + max(0, clock_ms - head.clock_ms)
        started_ns = time.perf_counter_ns()
        merged = self._ledger.merge(
            partials,
            time_ms=time_ms,
            high_water=options.high_water,
            every_message_refreshes=options.every_message_refreshes,
            cohorts=options.cohorts,
        )
        self._native_ns += time.perf_counter_ns() - started_ns
        self._counts = self._counts.plus(merged.counts)
        self.head = head._replace(clock_ms=clock_ms, time_ms=time_ms, batch_id=batch.batch_id)
        # Before anything expires: positions are good until the ledger changes again.
        self._write(merged.changed, merged.gone)
        self._earn(len(merged.changed), merged.gone.shape[1])
        completions = self._expire(merged.completions)
        self._clean()
        self._ledger.shrink()
        self.head = self.head._replace(
            token=os.urandom(TOKEN_BYTES),
            entries=len(self._ledger),
            open=self._ledger.open,
            counts=head.counts.plus(self._counts),
        )
        return completions

    def _combined(self, blocks: Iterable[Any]) -> Partials:
        """Return the whole of the micro-batch by root, or by root and cohort."""
        parts = []
        duplicates = 0
        for block in blocks:
            partials, header = decode_block(block)
            if (shard_of(partials.root_id, self.head.shards) != self.head.shard).any():
                raise ArgumentValueError(f"blocks: a block of shard {self.head.shard} holds trees of others")
            parts.append(partials)
            self._messages += header.messages
            duplicates += header.duplicates
            if self._options.event_time and not header.timed:
                raise ArgumentValueError("blocks: trees expire by event time, and a block has none")
        if len(parts) != 1:
            combiner = Combiner(resets=True, cohorts=self._options.cohorts_of_blocks)
            for partials in parts:
                combiner.merge(partials)
            if combiner.duplicates and self._options.unique_ids:
                raise ArgumentValueError(f"message_id: {shared_ids([tracks_of(partials) for partials in parts])}")
            duplicates += combiner.duplicates
            self._native_ns += combiner.native_ns
            parts = combiner.partials()
        self._counts = self._counts.plus(TreeCounts(duplicates=duplicates))
        partials = parts[0]
        if self._options.high_water is not None and not self._options.event_time:
            # Who is refused depends on the order, and that of blocks is another one when the micro-batch is run again.
            order = np.argsort(partials.root_id)
            partials = partials.at(order)
        return partials

    def _expire(self, completions: Completions) -> Completions:
        """Remove what is due, where there was a rotation since the last time."""
        head = self.head
        rotation = self._options.rotation_at(head.time_ms)
        if rotation == head.rotation:
            return completions
        expired_ms = max(self._options.expired_at(rotation), head.expired_ms)
        expired = self._ledger.expire(expired_ms, head.time_ms)
        self._counts = self._counts.plus(expired.counts)
        self.head = head._replace(rotation=rotation, expired_ms=expired_ms, oldest_ms=expired.oldest_ms)
        return Completions.concat([completions, expired.completions])

    def _write(self, changed: npt.NDArray[np.uint32], gone: npt.NDArray[np.int64]) -> None:
        """Append what changed to the log."""
        # What is gone comes first, since an entry may be gone and begin anew.
        ahead = max(-(-gone.shape[1] // CHUNK_ROWS_MAX) - 1, 0)
        behind = -(-len(changed) // CHUNK_ROWS_MAX)
        for place in range(ahead + max(behind, gone.shape[1] > 0)):
            number = self.head.next_chunk
            first = max(place - ahead, 0) * CHUNK_ROWS_MAX
            entries = self._ledger.take(changed[first : first + (CHUNK_ROWS_MAX if place >= ahead else 0)], number)
            part = gone[:, place * CHUNK_ROWS_MAX : (place + 1) * CHUNK_ROWS_MAX]
            data = encode_chunk(entries, part)
            self._store.put_chunk(number, data)
            self._bytes_written += len(data)
            size = ChunkSize(len(entries.root_id) + part.shape[1], len(data))
            self.head = self.head._replace(chunks=(*self.head.chunks, size))

    def _earn(self, changed: int, gone: int) -> None:
        """Allow so much cleaning as suits what was written."""
        credit = self.head.credit_rows + _CREDIT_PER_ROW * (changed + gone) + _CREDIT_PER_BATCH
        self.head = self.head._replace(credit_rows=min(credit, max(_CREDIT_MAX, _CREDIT_PER_ROW * max(changed, gone))))

    def _clean(self) -> None:
        """Do away with the oldest chunks while the log is too long; what only they show is written once more."""
        head = self.head
        chunks, credit_rows = list(head.chunks), head.credit_rows
        rows = head.log_rows
        cleaned = 0
        # What this micro-batch wrote stays.
        while len(chunks) > 1 and self._is_log_long(len(chunks), rows) and chunks[0].rows <= credit_rows:
            size = chunks.pop(0)
            rows -= size.rows
            credit_rows -= size.rows
            self._store.remove_chunk(head.first_chunk + cleaned)
            cleaned += 1
        if not cleaned:
            return
        first_chunk = head.first_chunk + cleaned
        self.head = head._replace(first_chunk=first_chunk, chunks=tuple(chunks), credit_rows=credit_rows)
        self._write(self._ledger.logged_before(first_chunk, head.log_rows - rows), np.empty((2, 0), np.int64))
        self._chunks_cleaned = cleaned

    def _is_log_long(self, chunks: int, rows: int) -> bool:
        entries = len(self._ledger)
        return (
            rows > _LOG_ROWS_PER_ENTRY * entries + _LOG_ROWS_SPARE
            or chunks > 2 * _LOG_ROWS_PER_ENTRY * entries // CHUNK_ROWS_MAX + _CHUNKS_SPARE
        )

    def report(self, *, resident: bool, rebuilt: bool) -> Report:
        """Return what this micro-batch did, once the head is written."""
        head = self.head
        return Report(
            batch_id=head.batch_id,
            shard=head.shard,
            shards=head.shards,
            messages=self._messages,
            **self._counts._asdict(),
            pending=head.entries,
            open=head.open,
            oldest_age_ms=max(0, head.time_ms - head.oldest_ms) if head.entries else 0,
            state_bytes=head.log_bytes,
            chunks=len(head.chunks),
            bytes_written=self._bytes_written,
            chunks_cleaned=self._chunks_cleaned,
            resident=int(resident),
            rebuilt=int(rebuilt),
            native_ns=self._native_ns,
            table_bytes=self._ledger.nbytes,
            time_ms=head.time_ms,
        )
