"""Report: what the acker of one shard did in one micro-batch, and what it holds after it."""

from __future__ import annotations

from typing import Final, NamedTuple

# The name of an acker's observation, unless it is given another.
DEFAULT_NAME: Final = "acker"
# The field of an observation that holds the reports, one row a shard.
SHARDS: Final = "shards"
# Of files that were skipped there is an observation of its own: its name is the acker's with this behind it.
SKIPPED_SUFFIX: Final = ".files"
SKIPPED: Final = "skipped"


class Report(NamedTuple):
    """One shard, one micro-batch. What is counted is counted in this micro-batch alone.

    Attributes
    ----------
    batch_id, shard, shards : int
        Through Spark Connect the batch id is -1: workers are not told it.
    messages : int
        Acker messages that came in, RESET_TIMEOUTs included.
    tracked, acked, failed, timed_out, rejected, duplicates, unknown, orphans, dropped, resets, empty : int
        As in `acker.Stats`.
    pending, open : int
        Entries held after it, and those of them that have a TRACK.
    oldest_age_ms : int
        Age of the oldest entry that there was at the last rotation; 0 when nothing is held.
    state_bytes, chunks : int
        The live part of the log in Spark's state store, and in how many values it lies.
    bytes_written, chunks_cleaned : int
        What this micro-batch added to the log, and how many old chunks it did away with.
    resident, rebuilt : int
        1 where the native table was found in the worker's memory, or built from the state. 0 and 0: a shard's first.
    native_ns : int
        Nanoseconds in native code, those of the map side left out.
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
    pending: int
    open: int
    oldest_age_ms: int
    state_bytes: int
    chunks: int
    bytes_written: int
    chunks_cleaned: int
    resident: int
    rebuilt: int
    native_ns: int
    table_bytes: int
    time_ms: int
