"""Slow and plain ways to compute what the engine computes, for tests and benchmarks to compare with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from acker._engine.columns import check_columns
from acker._engine.completions import Completions
from acker._engine.protocol import INT64_MAX, AckerOptions, Kind, Outcome
from acker._engine.rules import message_rows
from acker._engine.snapshot import (
    BLOCK_ENTRIES,
    BlockReader,
    Header,
    SnapshotEntries,
    SnapshotReader,
    encode_pieces,
    input_of,
)
from acker._engine.xxh64 import xxh64

if TYPE_CHECKING:
    import numpy.typing as npt


def settle_as_sets(
    kind: npt.ArrayLike,
    root_id: npt.ArrayLike,
    value: npt.ArrayLike,
    task_id: npt.ArrayLike | None = None,
    message_id: npt.ArrayLike | None = None,
    *,
    include_pending: bool = False,
) -> Completions:
    """Settle the messages of each root as one set.

    The xor of all OK and ANCHOR values and of one TRACK's value decides: 0 is ACKED, else FAILED if there was a FAIL.
    Of several TRACKs of one root the one of least `track_rank` counts, so that the order of the rows has no say;
    RESET_TIMEOUT has no meaning in a set.

    Parameters
    ----------
    kind, root_id, value, task_id, message_id : as in `ReferenceAcker.ingest`
    include_pending : bool
        Also report the tracked trees that are still open, as PENDING.

    Returns
    -------
    Completions
        By ascending root id; ``elapsed_ms`` is 0.
    """
    columns = check_columns(kind, root_id, value, task_id, message_id)
    ack_vals: dict[int, int] = {}
    failed: set[int] = set()
    tracks: dict[int, tuple[int, int, int]] = {}

    for each, root, said, task, message in message_rows(columns):
        if each == Kind.TRACK:
            track = (said, task, message)
            tracks[root] = min(tracks.get(root, track), track, key=lambda track: track_rank(*track))
        elif each == Kind.FAIL:
            failed.add(root)
        elif each in (Kind.ANCHOR, Kind.OK):
            ack_vals[root] = ack_vals.get(root, 0) ^ said
    rows = []
    for root, (first_edges, task, message) in sorted(tracks.items()):
        if ack_vals.get(root, 0) ^ first_edges == 0:
            outcome = Outcome.ACKED
        elif root in failed:
            outcome = Outcome.FAILED
        elif include_pending:
            outcome = Outcome.PENDING
        else:
            continue
        rows.append((root, message, task, outcome, 0))
    return Completions.from_rows(rows)


def track_rank(value: int, task_id: int, message_id: int) -> int:
    """Return the rank of a TRACK among several of one root in a set of messages; the one of least rank counts.

    ``value ^ XXH64(message_id, seed=XXH64(task_id, seed=42))`` as an int64, the numbers hashed as 8 and 4 little-endian
    bytes: in Spark ``value ^ xxhash64(task_id, message_id)``. A set has no first TRACK, so some order must choose, and
    an aggregate of Spark's holds no key longer than 64 bits. TRACKs that differ in one column never have the same rank,
    others with chance 2^-64.
    """
    seed = xxh64(task_id.to_bytes(4, "little", signed=True), 42)
    rank = value % 2**64 ^ xxh64(message_id.to_bytes(8, "little", signed=True), seed)
    return rank - 2**64 if rank > INT64_MAX else rank


class State(NamedTuple):
    """Everything that a snapshot holds; ``counters`` has one int for each name in `COUNTERS`."""

    protocol: str
    buckets: int
    high_water: int | None
    counters: tuple[int, ...]
    entries: SnapshotEntries


def encode(state: State) -> bytes:
    """Return a state as a snapshot. ``message_id`` and ``task_id`` of entries without a TRACK read 0 there."""
    options = AckerOptions(state.protocol, state.buckets, state.high_water)
    header = Header(options, state.counters, len(state.entries.root_id))
    firsts = range(0, header.entries, BLOCK_ENTRIES)
    blocks = (
        SnapshotEntries(*(column[first : first + BLOCK_ENTRIES] for column in state.entries))  # type: ignore[arg-type]
        for first in firsts
    )
    return b"".join(encode_pieces(header, blocks))


def decode(blob: bytes | bytearray | memoryview) -> State:
    """Return the state that a snapshot holds.

    Raises
    ------
    SnapshotError       the bytes are damaged, cut short, too long, of another version, or hold what no acker can hold.
    ArgumentTypeError   `blob` is not bytes.
    """
    reading = SnapshotReader(input_of(blob))
    blocks: list[SnapshotEntries] = [SnapshotEntries.from_rows([])]
    reading.fill(BlockReader(reading, blocks.append))
    columns: list[Any] = [np.concatenate(parts) for parts in zip(*blocks, strict=True)]
    return State(*reading.header.options, reading.header.counters, SnapshotEntries(*columns))
