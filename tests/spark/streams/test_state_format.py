"""The format of the state: version 4 as it is written down, byte by byte, since old checkpoints must stay readable."""

import struct

import numpy as np
import pytest

from acker._engine.combiner import xxh64
from acker._engine.open_trees import TreeCounts, TreeEntries
from acker.errors import CheckpointError
from acker.spark.streams.state_format import (
    CHUNK_ROWS_MAX,
    ChunkSize,
    Head,
    decode_chunk,
    decode_head,
    encode_chunk,
    encode_head,
)

HEAD = Head(
    token=bytes(range(16)),
    batch_id=1,
    shard=2,
    shards=8,
    partitions=4,
    event_time=0,
    clock_ms=-5,
    time_ms=6,
    expired_ms=-(2**63),
    rotation=7,
    oldest_ms=8,
    credit_rows=9,
    entries=2,
    open=1,
    first_chunk=3,
    counts=TreeCounts(*range(10, 21)),
    chunks=(ChunkSize(3, 100), ChunkSize(1, 80)),
)
ENTRIES = TreeEntries(
    root_id=np.array([7, -(2**63)]),
    value=np.array([5, 2**63 - 1]),
    message_id=np.array([42, 0]),
    start_ms=np.array([1000, 2000]),
    since_ms=np.array([1000, 3000]),
    task_id=np.array([3, -2], np.int32),
)
GONE = np.array([[11, -12], [1, 2**62]])


def checked(content):
    return content + struct.pack("<Q", xxh64(np.frombuffer(content, np.uint8)))


def golden_head():
    numbers = [1, 2, 8, 4, 0, -5, 6, -(2**63), 7, 8, 9, 2, 1, 3, *range(10, 21)]
    return checked(
        b"ACKERHED"
        + struct.pack("<II", 4, 16 + 16 + 8 * len(numbers))
        + bytes(range(16))
        + struct.pack(f"<{len(numbers)}q", *numbers)
        + struct.pack("<4I", 3, 100, 1, 80)
    )


WIDTHS = (1, 8, 8, 8, 1, 2, 2, 1)


def golden_chunk(leasts=(-12, 0, 0, 0, 0, 1000, 0, -2), widths=WIDTHS, tasks=(5, 0)):
    return checked(
        b"ACKERLOG"
        + struct.pack("<II", 4, 104)
        + struct.pack("<QQ", 2, 2)
        + struct.pack("<8q", *leasts)
        + bytes(widths)
        + struct.pack("<2B2q", 23, 0, 1, 2**62)
        + struct.pack("<4q", 7, -(2**63), 5, 2**63 - 1)
        + struct.pack("<2B4H2B", 42, 0, 0, 1000, 0, 1000, *tasks)
    )


def test_version_4_is_what_it_was():
    assert encode_head(HEAD) == golden_head()
    assert encode_chunk(ENTRIES, GONE) == golden_chunk()
    assert decode_head(golden_head()) == HEAD
    entries, gone = decode_chunk(golden_chunk())
    assert gone.tolist() == GONE.tolist()
    for found, expected in zip(entries, ENTRIES, strict=True):
        assert found.dtype == expected.dtype
        assert found.tolist() == expected.tolist()


@pytest.mark.parametrize(("data", "decode"), [(golden_head(), decode_head), (golden_chunk(), decode_chunk)])
def test_what_cannot_be_read_is_refused(data, decode):
    for place in range(len(data)):
        for flip in (1, 128):
            damaged = bytearray(data)
            damaged[place] ^= flip
            with pytest.raises(CheckpointError):
                decode(bytes(damaged))
    for size in range(len(data)):
        with pytest.raises(CheckpointError):
            decode(data[:size])
    with pytest.raises(CheckpointError):
        decode(data + b"\0")
    earlier = checked(data[:8] + struct.pack("<I", 3) + data[12:-8])
    with pytest.raises(
        CheckpointError, match="expected format version 4, got 3: it was written by another release of acker;"
    ):
        decode(earlier)


@pytest.mark.parametrize("name", ["clock_ms", "time_ms", "rotation", "entries", "credit_rows"])
@pytest.mark.parametrize("number", [2**62, 2**63 - 1, -(2**62), -(2**63)])
def test_numbers_of_a_head_that_would_overflow_are_refused(name, number):
    with pytest.raises(
        CheckpointError, match=f"head: expected {name} within .* of 0, got {number}, which no shard writes"
    ):
        decode_head(encode_head(HEAD._replace(**{name: number})))


@pytest.mark.parametrize("count", [2**62, 2**63 - 1, -1])
def test_counts_of_a_head_that_would_overflow_are_refused(count):
    with pytest.raises(CheckpointError, match=f"head: expected a count acked from 0 to .*, got {count}"):
        decode_head(encode_head(HEAD._replace(counts=HEAD.counts._replace(acked=count))))


@pytest.mark.parametrize("name", ["start_ms", "since_ms"])
@pytest.mark.parametrize("time_ms", [2**62, -(2**63)])
def test_times_of_entries_that_would_overflow_are_refused(name, time_ms):
    entries = ENTRIES._replace(**{name: np.array([1, time_ms])})
    with pytest.raises(CheckpointError, match=f"chunk: a {name} that no shard writes"):
        decode_chunk(encode_chunk(entries, GONE))


def test_lengths_that_do_not_fit_are_refused_whatever_the_checksum_says():
    for rows, gone in ((3, 2), (2, 3), (2**62, 0), (0, 2**61), (CHUNK_ROWS_MAX + 1, 0)):
        with pytest.raises(CheckpointError, match="do not hold"):
            decode_chunk(checked(golden_chunk()[:16] + struct.pack("<QQ", rows, gone) + golden_chunk()[32:-8]))
    with pytest.raises(CheckpointError, match="do not hold"):
        decode_head(checked(golden_head()[:-12]))
    for place, width in ((2, 3), (4, 0), (5, 4), (7, 255)):
        with pytest.raises(CheckpointError, match="do not hold"):
            decode_chunk(golden_chunk(widths=(*WIDTHS[:place], width, *WIDTHS[place + 1 :])))
    # A column without bytes does not bound the rows.
    with pytest.raises(CheckpointError, match="do not hold 1152921504606846976 entries"):
        decode_chunk(checked(golden_chunk()[:16] + struct.pack("<QQ", 2**60, 0) + bytes(72)))


@pytest.mark.parametrize(("least", "task"), [(-3, 0), (-5, 0), (2**31 - 2, 5), (2**63 - 1, 1)])
def test_task_ids_that_no_shard_writes_are_refused(least, task):
    with pytest.raises(CheckpointError, match="a task id that no shard writes"):
        decode_chunk(golden_chunk(leasts=(-12, 0, 0, 0, 0, 1000, 0, least), tasks=(task, 5)))


def test_task_ids_that_shards_write_are_read():
    reset, _ = decode_chunk(golden_chunk(leasts=(-12, 0, 0, 0, 0, 1000, 0, -4), tasks=(7, 0)))
    assert reset.task_id.tolist() == [3, -4]


@pytest.mark.parametrize("times", [1, 2**8, 2**16, 2**32, 2**40])
@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_columns_of_any_width_come_back(rows, times):
    rng = np.random.default_rng(rows)
    narrow = rng.integers(-times, times, (7, rows))
    tasks = np.minimum(rng.integers(-2, times + 2, rows), 2**31 - 1).astype(np.int32)
    entries = TreeEntries(*narrow[:5], tasks)
    data = encode_chunk(entries, narrow[5:])
    found, gone = decode_chunk(data)
    assert gone.tolist() == narrow[5:].tolist()
    for column, expected in zip(found, entries, strict=True):
        assert column.tolist() == expected.tolist()
