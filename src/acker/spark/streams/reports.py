"""Reports of a streaming acker: the counts of one micro-batch, and the state after it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

# The field of an observation that holds the reports, one row a shard.
SHARDS: Final = "shards"
# Skipped files have an observation of their own, with the acker's name and this suffix.
SKIPPED_SUFFIX: Final = ".files"
SKIPPED: Final = "skipped"
# The field of a shard's row with the last trees that were not acked, and how many all shards together tell at most
# (each shard tells of one at least).
FAILURES: Final = "failures"
FAILURES_MAX: Final = 50
FAILURES_DDL: Final = (
    "array<struct<message_id string, task_id bigint, outcome bigint, elapsed_ms bigint, root_id bigint,"
    " component string, reason string, attempt bigint>>"
)


class ShardFailure(NamedTuple):
    """A tree of a shard that was not acked.

    Attributes
    ----------
    message_id : str or None
        As text.
    task_id, outcome, elapsed_ms, root_id : int
    component, reason : str or None
        Of a pipeline: the bolt that failed it, and why.
    attempt : int
        Of a pipeline whose spout has attempts, if the tree began in this micro-batch; else 0.
    """

    message_id: str | None
    task_id: int
    outcome: int
    elapsed_ms: int
    root_id: int
    component: str | None = None
    reason: str | None = None
    attempt: int = 0


# The field of a shard's row with its open trees by age.
AGES: Final = "ages"
AGES_DDL: Final = "array<bigint>"


class ShardDetails(NamedTuple):
    """What a shard tells of a micro-batch beside its report, for whoever looks on.

    Attributes
    ----------
    failures : list of ShardFailure
        The last trees that were not acked.
    ages : tuple of int, or None
        How many open trees are younger than each of `acker._engine.open_trees.AGES_MS`, and not younger than the one
        before, and how many are older than all; as of a rotation, None if there was none in this micro-batch.
    """

    failures: list[ShardFailure]
    ages: tuple[int, ...] | None

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the shard's row."""
        return {FAILURES: [each._asdict() for each in self.failures], AGES: self.ages}


class MicroBatchReport(NamedTuple):
    """The work of an acker in one micro-batch, of one shard or of all together. Counts are of this micro-batch only.

    A shard to which nothing came sends no report, and holds what it held before. So what all shards hold together is
    None in a `batch_report` that lacks a shard: `pending`, `open`, `oldest_age_ms`, `state_bytes`, `chunks` and
    `table_bytes`. An `AckerListener` remembers the last report of each shard.

    Attributes
    ----------
    batch_id, shard, shards : int
        The shard is -1 for all shards together. With Spark Connect the batch id is -1, as workers do not know it.
    messages : int
        Messages received, including RESET_TIMEOUTs.
    tracked, acked, failed, timed_out, rejected, duplicates, unknown, orphans, dropped, resets, empty : int
        As in `acker.Stats`.
    pending, open : int
        Entries held after it, and how many of them have a TRACK.
    oldest_age_ms : int
        Age of the oldest entry at the last rotation; 0 if nothing is held.
    state_bytes, chunks : int
        Bytes of the log in Spark's state store, and the number of its chunks.
    bytes_written, chunks_cleaned : int
        Bytes added to the log, and old chunks removed from it.
    cached, rebuilt : int
        Native tables found in the cache, and tables rebuilt from the state. Both 0: a shard's first micro-batch.
    native_ns : int
        Nanoseconds in native code, without those of the tasks that combined the messages.
    table_bytes : int
        Memory of the native table.
    time_ms : int
        The shard's clock after it, see docs/streaming.md.
    """

    batch_id: int
    shard: int
    shards: int
    messages: int
    tracked: int
    acked: int
    failed: int
    timed_out: int
    rejected: int
    duplicates: int
    unknown: int
    orphans: int
    dropped: int
    resets: int
    empty: int
    pending: int | None
    open: int | None
    oldest_age_ms: int | None
    state_bytes: int | None
    chunks: int | None
    bytes_written: int
    chunks_cleaned: int
    cached: int
    rebuilt: int
    native_ns: int
    table_bytes: int | None
    time_ms: int
