"""One micro-batch of one shard: blocks are applied to its table, trees time out, and the changes go to the log.

Nothing here knows Spark: the store is Spark's state in the operator, and a dictionary in tests.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from acker._engine.combiner import Combiner, Partials
from acker._engine.completions import Completions
from acker._engine.open_trees import TOKEN_BYTES, OpenTrees, TreeCounts
from acker._engine.protocol import INT64_MIN, Outcome
from acker.errors import ArgumentValueError, CheckpointError
from acker.observe.failures import shortened, shown_id
from acker.spark.blocks import decode_block_of, tracks_of
from acker.spark.messages import describe_shared_ids
from acker.spark.notes import Notes, is_note
from acker.spark.pipelines.completions import PipelineCompletions
from acker.spark.streams.reports import FAILURES_MAX, MicroBatchReport, ShardDetails, ShardFailure
from acker.spark.streams.shard_rules import ShardRules
from acker.spark.streams.state_format import (
    CHUNK_ROWS_MAX,
    HEAD_KEY,
    ChunkSize,
    Head,
    Store,
    decode_chunk,
    decode_head,
    encode_chunk,
    encode_head,
)
from acker.spark.streams.table_cache import TableCache, close_on_error
from acker.spark.streams.text_log import TextLog
from acker.spark.text_ids import text_type

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

# An old chunk is removed once the log has more rows than this many times the entries held, plus some spare ones ...
_LOG_ROWS_PER_ENTRY: Final = 2
_LOG_ROWS_SPARE: Final = CHUNK_ROWS_MAX
# ... or more chunks than full ones would need, plus some spare ones.
_CHUNKS_SPARE: Final = 64
# Room in a table that is rebuilt, for each row that was read.
_ROOM_TIMES: Final = 8
# Old rows that may be cleaned for each row written, and for each micro-batch: this bounds the work of a micro-batch by
# its own size, and still cleaning outruns writing.
_CREDIT_PER_ROW: Final = 2
_CREDIT_PER_BATCH: Final = 1024
_CREDIT_MAX: Final = 4 * CHUNK_ROWS_MAX


class ShardBatch(NamedTuple):
    """The part of a micro-batch for one shard.

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
    store: Store, cache: TableCache, key: str, shard: int, batch: ShardBatch, rules: ShardRules
) -> tuple[Completions, MicroBatchReport, ShardDetails]:
    """Apply one micro-batch to one shard and write its state.

    Parameters
    ----------
    store : Store
    cache : TableCache
        May still have the shard's table.
    key : str
        Names the shard among all shards of all queries.
    shard : int
    batch : ShardBatch
    rules : ShardRules

    Returns
    -------
    (Completions, MicroBatchReport, ShardDetails)

    Raises
    ------
    CheckpointError           the state is of another query, of another release, or damaged.
    ArgumentValueError   a block is damaged or of another shard.
    """
    data = store.get(HEAD_KEY)
    if data is None:
        head = _first_head(shard, batch, rules)
        table, cached, rebuilt = cache.new(), False, False
    else:
        head = decode_head(data)
        _check_same_query(head, shard, rules)
        found = cache.take(key, head.token)
        cached, rebuilt = found is not None, found is None
        table = found if found is not None else _rebuild(store, cache, head)
    with close_on_error(table):
        work = _MicroBatch(store, table, head, rules)
        completions = work.run(batch)
        store.put(HEAD_KEY, encode_head(work.head))
        report = work.report(cached=cached, rebuilt=rebuilt)
    cache.put(key, work.head.token, table)
    return completions, report, ShardDetails(work.last_failures(completions), work.ages)


def _first_head(shard: int, batch: ShardBatch, rules: ShardRules) -> Head:
    return Head(
        token=bytes(TOKEN_BYTES),
        batch_id=batch.batch_id,
        shard=shard,
        shards=rules.shards,
        partitions=rules.partitions,
        event_time=int(rules.event_time),
        clock_ms=batch.clock_ms,
        time_ms=batch.clock_ms,
        expired_ms=INT64_MIN,
        rotation=rules.rotation_at(batch.clock_ms),
        oldest_ms=batch.clock_ms,
        # With equal credit, shards of equal load would all clean in the same micro-batch.
        credit_rows=shard * CHUNK_ROWS_MAX // rules.shards,
        entries=0,
        open=0,
        first_chunk=1,
        counts=TreeCounts(),
        chunks=(),
    )


def _check_same_query(head: Head, shard: int, rules: ShardRules) -> None:
    remedy = "; Spark cannot move state, so set it back, or begin with a new checkpoint"
    for name, found, asked in (
        ("shards", head.shards, rules.shards),
        ("spark.sql.shuffle.partitions", head.partitions, rules.partitions),
    ):
        if found != asked:
            raise CheckpointError(f"{name}: the checkpoint was made with {found}, the query asks for {asked}{remedy}")
    if head.event_time != rules.event_time:
        made, asks = ("the watermark" if flag else "the clock" for flag in (head.event_time, rules.event_time))
        raise CheckpointError(
            f"event_time: trees of the checkpoint expire by {made}, the query asks for {asks}{remedy}"
        )
    if head.shard != shard:
        raise CheckpointError(f"head: expected the state of shard {shard}, got that of shard {head.shard}")


def _rebuild(store: Store, cache: TableCache, head: Head) -> OpenTrees:
    """Build the table that the log describes."""
    table = cache.new()
    with close_on_error(table):
        read = 0
        for number in range(head.first_chunk, head.next_chunk):
            data = store.get(number)
            if data is None:
                raise CheckpointError(f"chunk {number} of the log is missing: the checkpoint is damaged")
            entries, gone = decode_chunk(data)
            read += len(entries.root_id)
            # Bounded by the rows that were read, as a damaged head may claim any number of entries.
            table.reserve(min(head.entries + CHUNK_ROWS_MAX, _ROOM_TIMES * read) - len(table))
            table.erase(gone)
            table.put(entries, number)
        table.expire(head.expired_ms, head.time_ms)
        if (len(table), table.open) != (head.entries, head.open):
            raise CheckpointError(
                f"shard {head.shard}: the log holds {len(table)} entries, {table.open} of them tracked, and the head"
                f" says {head.entries} and {head.open}: the checkpoint is damaged"
            )
    return table


class _MicroBatch:
    """One micro-batch of one shard; after `run` `head` is the new head, and `ages` has the open trees by age.

    They are counted where a rotation looks at each tree anyway; without one `ages` is None.
    """

    def __init__(self, store: Store, table: OpenTrees, head: Head, rules: ShardRules) -> None:
        self.head = head
        self._store = store
        self._table = table
        self._rules = rules
        self._counts = TreeCounts()
        self._messages = 0
        self._native_ns = 0
        self._bytes_written = 0
        self._chunks_cleaned = 0
        self._notes = Notes()
        self._texts: TextLog | None = None
        self.ages: tuple[int, ...] | None = None

    def run(self, batch: ShardBatch) -> Completions:
        """Apply the messages, then let trees time out."""
        head, rules = self.head, self._rules
        partials = self._combine(batch.blocks if rules.ids is None else self._read_notes(batch.blocks))
        # A clock that was set back stands still for one micro-batch, and then continues.
        clock_ms = max(batch.clock_ms, head.clock_ms) if rules.event_time else batch.clock_ms
        time_ms = head.time_ms + max(0, clock_ms - head.clock_ms)
        started_ns = time.perf_counter_ns()
        merged = self._table.merge(
            partials,
            time_ms=time_ms,
            high_water=rules.high_water,
            every_message_refreshes=rules.every_message_refreshes,
            cohorts=rules.cohorts,
        )
        self._native_ns += time.perf_counter_ns() - started_ns
        self._counts = self._counts.plus(merged.counts)
        if self._texts is not None and merged.counts.duplicates:
            self._texts.refuse_collisions()
        self.head = head._replace(clock_ms=clock_ms, time_ms=time_ms, batch_id=batch.batch_id)
        # Before anything expires, as positions are valid until the table changes.
        self._write(merged.changed, merged.gone)
        self._add_credit(len(merged.changed), merged.gone.shape[1])
        completions = self._as_pipeline_completions(self._expire(merged.completions))
        self._clean()
        self._table.shrink()
        self.head = self.head._replace(
            token=os.urandom(TOKEN_BYTES),
            entries=len(self._table),
            open=self._table.open,
            counts=head.counts.plus(self._counts),
        )
        return completions

    def _read_notes(self, blocks: Iterable[Any]) -> list[Any]:
        """Take the notes of a pipeline from among the blocks; return the others."""
        blocks = list(blocks)
        for note in filter(is_note, blocks):
            self._notes.add(note)
        type_ = text_type(self._rules.ids)
        if type_ is not None:
            chunks = range(self.head.first_chunk, self.head.next_chunk)
            self._texts = TextLog(self._store, type_, self._notes.text_ids(), chunks)
        return [block for block in blocks if not is_note(block)]

    def _as_pipeline_completions(self, done: Completions) -> Completions:
        """Return completions of a pipeline with their own message ids, and with why trees failed."""
        if self._rules.ids is None:
            return done
        ids = done.message_id if self._texts is None else self._texts.of(done.root_id).to_numpy(zero_copy_only=False)
        why = (column.to_numpy(zero_copy_only=False) for column in self._notes.failed(done.root_id))
        return PipelineCompletions.of(done, ids, *why)

    def last_failures(self, done: Completions) -> list[ShardFailure]:
        """Return the last of some trees that were not acked, for whoever looks on."""
        most = max(1, FAILURES_MAX // self._rules.shards)
        done = done.at(np.flatnonzero(done.outcome != Outcome.ACKED)[-most:])
        ids = [None if each is None else shown_id(each) for each in done.message_id.tolist()]
        columns = [ids, *(each.tolist() for each in (done.task_id, done.outcome, done.elapsed_ms, done.root_id))]
        if isinstance(done, PipelineCompletions):
            reasons = [None if each is None else shortened(each) for each in done.reason.tolist()]
            columns += [done.component.tolist(), reasons, self._notes.attempts_of(done.root_id).tolist()]
        return [ShardFailure(*row) for row in zip(*columns, strict=True)]

    def _combine(self, blocks: Iterable[Any]) -> Partials:
        """Return the messages of the micro-batch combined by root, or by root and cohort."""
        parts = []
        duplicates = 0
        for block in blocks:
            partials, header = decode_block_of(self.head.shard, self.head.shards, block)
            parts.append(partials)
            self._messages += header.messages
            duplicates += header.duplicates
            if self._rules.event_time and not header.timed:
                raise ArgumentValueError("blocks: trees expire by event time, and a block has no event times")
        if len(parts) != 1:
            combiner = Combiner(resets=True, cohorts=self._rules.cohorts_of_blocks)
            for partials in parts:
                combiner.merge(partials)
            if combiner.duplicates and self._rules.ids is not None:
                tracks = [tracks_of(partials) for partials in parts]
                raise ArgumentValueError(f"message_id: {describe_shared_ids(tracks, self._notes.text_ids())}")
            duplicates += combiner.duplicates
            self._native_ns += combiner.native_ns
            parts = combiner.partials()
        self._counts = self._counts.plus(TreeCounts(duplicates=duplicates))
        partials = parts[0]
        if self._rules.high_water is not None and not self._rules.event_time:
            # The order decides which trees are rejected, and blocks may come in another one when it runs again.
            partials = partials.at(np.argsort(partials.root_id))
        return partials

    def _expire(self, completions: Completions) -> Completions:
        """Remove the entries whose time is over, if there was a rotation since the last micro-batch."""
        head = self.head
        rotation = self._rules.rotation_at(head.time_ms)
        if rotation == head.rotation:
            return completions
        expired_ms = max(self._rules.expired_at(rotation), head.expired_ms)
        expired = self._table.expire(expired_ms, head.time_ms)
        self._counts = self._counts.plus(expired.counts)
        self.ages = expired.ages
        self.head = head._replace(rotation=rotation, expired_ms=expired_ms, oldest_ms=expired.oldest_ms)
        return Completions.concat([completions, expired.completions])

    def _write(self, changed: npt.NDArray[np.uint32], gone: npt.NDArray[np.int64]) -> None:
        """Append changed entries, and those that are gone, to the log."""
        gone_parts = [gone[:, first : first + CHUNK_ROWS_MAX] for first in range(0, gone.shape[1], CHUNK_ROWS_MAX)]
        changed_parts = [changed[first : first + CHUNK_ROWS_MAX] for first in range(0, len(changed), CHUNK_ROWS_MAX)]
        # Entries that are gone come first, since one may begin anew; the last of them share a chunk with the first
        # changed ones.
        for part in gone_parts[:-1]:
            self._write_chunk(changed[:0], part)
        last_gone = gone_parts[-1] if gone_parts else gone
        if changed_parts:
            self._write_chunk(changed_parts[0], last_gone)
        elif gone_parts:
            self._write_chunk(changed, last_gone)
        for rows in changed_parts[1:]:
            self._write_chunk(rows, gone[:, :0])

    def _write_chunk(self, changed: npt.NDArray[np.uint32], gone: npt.NDArray[np.int64]) -> None:
        number = self.head.next_chunk
        entries = self._table.take(changed, number)
        data = encode_chunk(entries, gone)
        self._store.put(number, data)
        size_bytes = len(data) + (0 if self._texts is None else self._texts.write(number, entries))
        self._bytes_written += size_bytes
        size = ChunkSize(len(entries.root_id) + gone.shape[1], size_bytes)
        self.head = self.head._replace(chunks=(*self.head.chunks, size))

    def _add_credit(self, changed: int, gone: int) -> None:
        """Allow cleaning in proportion to what was written."""
        credit = self.head.credit_rows + _CREDIT_PER_ROW * (changed + gone) + _CREDIT_PER_BATCH
        self.head = self.head._replace(credit_rows=min(credit, max(_CREDIT_MAX, _CREDIT_PER_ROW * max(changed, gone))))

    def _clean(self) -> None:
        """Remove the oldest chunks while the log is too long; entries that only they show are written again."""
        head = self.head
        chunks, credit_rows = list(head.chunks), head.credit_rows
        rows = head.log_rows
        cleaned = 0
        # The chunk of this micro-batch stays.
        while len(chunks) > 1 and self._is_log_long(len(chunks), rows) and chunks[0].rows <= credit_rows:
            size = chunks.pop(0)
            rows -= size.rows
            credit_rows -= size.rows
            self._store.remove(head.first_chunk + cleaned)
            if self._texts is not None:
                self._texts.remove(head.first_chunk + cleaned)
            cleaned += 1
        if not cleaned:
            return
        first_chunk = head.first_chunk + cleaned
        self.head = head._replace(first_chunk=first_chunk, chunks=tuple(chunks), credit_rows=credit_rows)
        self._write(self._table.logged_before(first_chunk, head.log_rows - rows), np.empty((2, 0), np.int64))
        self._chunks_cleaned = cleaned

    def _is_log_long(self, chunks: int, rows: int) -> bool:
        entries = len(self._table)
        return (
            rows > _LOG_ROWS_PER_ENTRY * entries + _LOG_ROWS_SPARE
            or chunks > 2 * _LOG_ROWS_PER_ENTRY * entries // CHUNK_ROWS_MAX + _CHUNKS_SPARE
        )

    def report(self, *, cached: bool, rebuilt: bool) -> MicroBatchReport:
        """Return the report of this micro-batch, once the head is written."""
        head = self.head
        return MicroBatchReport(
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
            cached=int(cached),
            rebuilt=int(rebuilt),
            native_ns=self._native_ns,
            table_bytes=self._table.nbytes,
            time_ms=head.time_ms,
        )
