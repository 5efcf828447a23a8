"""Blocks: the format, every sort of damage, and where Spark puts a shard."""

import struct

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PythonException, SparkRuntimeException
from pyspark.sql import functions as F  # noqa: N812

from acker import AckerError, _core
from acker._engine.columns import check_columns
from acker._engine.combiner import Cohorts, Combiner, Partials, shard_of
from acker._engine.protocol import INT64_MAX, INT64_MIN, Kind
from acker.errors import ArgumentTypeError, ArgumentValueError
from acker.spark import blocks
from acker.spark.blocks import (
    BlockHeader,
    completions_from_blocks,
    decode_block,
    encode_block,
    encode_blocks,
    read_header,
)
from tests.oracles import settle_as_sets

EXTREMES = np.array([0, -1, INT64_MIN, INT64_MAX, 7], np.int64)
PARTIALS = Partials(
    root_id=EXTREMES,
    value=np.array([7, INT64_MAX, INT64_MIN, -1, 7]),
    flags=np.array([0, 5, 2, 7, 1], np.uint8),
    track_value=EXTREMES + 0,
    task_id=np.array([0, 1, 2**31 - 1, 5, 0], np.int32),
    message_id=EXTREMES ^ 5,
)


def columns(rows, seed=3):
    """Return random messages in which trees meet, TRACKs are doubled and nothing is null."""
    rng = np.random.default_rng(seed)
    return (
        rng.integers(0, 5, rows).astype(np.int8),
        rng.integers(-rows // 8, rows // 8, rows),
        rng.integers(0, 4, rows),
        rng.integers(0, 3, rows).astype(np.int32),
        rng.integers(0, 3, rows),
    )


def combiner_of(messages):
    combiner = Combiner()
    combiner.add(*messages)
    return combiner


def test_a_block_is_what_the_text_says_byte_by_byte():
    finished = (INT64_MAX, 9, 1, 9, 5, -3)
    failed = (-1, 9, 3, 9, 6, INT64_MIN)
    both = zip(failed, finished, PARTIALS[:6], strict=True)
    part = Partials(*(np.array([one, other], old.dtype) for one, other, old in both))
    block = encode_block(part, messages=258, duplicates=4, event_ms=-5)
    header = struct.pack("<8sIIQQQQq", b"ACKERBLK", 2, 64, 2, 1, 258, 4, -5)
    pairs = [(INT64_MAX, -1), (9, 9), (-3, INT64_MIN)]
    columns = [struct.pack("<qq", *pair) for pair in pairs]
    columns += [struct.pack("<q", 9), struct.pack("<ii", 5, 6), b"\x03"]
    checksum = _core.xxh64(header, 0)
    for column in columns:
        checksum = _core.xxh64(column, checksum)
    assert block == header + struct.pack("<Q", checksum) + b"".join(columns) + bytes(7)


def test_what_goes_in_comes_out():
    for part, finished, event_ms in (
        (PARTIALS, 1, None),
        (PARTIALS.rows(0, 0), 0, 0),
        (PARTIALS.rows(4, 5), 1, -(2**61)),
        (PARTIALS.rows(1, 4), 0, 2**61),
    ):
        block = encode_block(part, messages=11, duplicates=2**48, event_ms=event_ms)
        decoded, header = decode_block(block)
        trees = len(part.root_id)
        assert header == read_header(block) == BlockHeader(trees, trees - finished, 11, 2**48, event_ms, False)
        assert [column.dtype for column in decoded[:6]] == [column.dtype for column in part[:6]]
        rows, expected = (list(zip(*(column.tolist() for column in one[:6]), strict=True)) for one in (decoded, part))
        assert rows == [*expected[trees - finished :], *expected[: trees - finished]]  # the finished tree is the last


def test_a_block_with_event_times_is_of_version_3():
    timed = PARTIALS._replace(event_ms=EXTREMES - 1)
    block = encode_block(timed, event_ms=9)
    assert (block[8], len(block)) == (3, len(encode_block(PARTIALS)) + 8 * len(EXTREMES))
    decoded, header = decode_block(block)
    assert header.timed
    rows, expected = (list(zip(*(column.tolist() for column in one), strict=True)) for one in (decoded, timed))
    assert sorted(rows) == sorted(expected)
    for at in range(len(block)):
        damaged = bytearray(block)
        damaged[at] ^= 0x10
        with pytest.raises(ArgumentValueError, match=r"^block: "):
            decode_block(damaged)


def test_a_block_may_lie_at_any_address():
    block = encode_block(PARTIALS)
    for shift in range(8):
        decoded, _ = decode_block(memoryview(bytes(shift) + block)[shift:])
        combiner = Combiner()
        combiner.merge(decoded)
        assert len(combiner) == 5


def test_every_cut_and_every_flipped_byte_is_refused():
    block = encode_block(PARTIALS, messages=1)
    for size in range(len(block)):
        with pytest.raises(ArgumentValueError, match=r"^block: expected"):
            decode_block(block[:size])
    for at in range(len(block)):
        damaged = bytearray(block)
        damaged[at] ^= 0x10
        with pytest.raises(ArgumentValueError, match=r"^block: "):
            decode_block(damaged)
    with pytest.raises(ArgumentValueError, match="block: expected 240 bytes for 5 trees, 4 of them open, got 241"):
        decode_block(block + b"\0")


def test_what_no_combiner_writes_is_refused_though_the_checksum_fits():
    for lie in (PARTIALS._replace(flags=PARTIALS.flags + 8), PARTIALS._replace(task_id=-1 - PARTIALS.task_id)):
        with pytest.raises(ArgumentValueError, match="flags or task ids that no combiner writes"):
            decode_block(encode_block(lie))
    for counts in ({"messages": 2**63}, {"duplicates": 2**49}, {"event_ms": 2**62}, {"event_ms": 1 - 2**63}):
        with pytest.raises(ArgumentValueError, match="block: counts or an event time that no combiner writes: "):
            decode_block(encode_block(PARTIALS, **counts))
    later = bytearray(encode_block(PARTIALS))
    later[8] = 4
    with pytest.raises(ArgumentValueError, match="block: expected version 2 or 3, got 4"):
        read_header(later)
    for trees, open_trees in ((2**63, 0), (0, 1), (2**64 - 1, 2**64 - 1)):
        huge = struct.pack("<8sIIQQQQqQ", b"ACKERBLK", 2, 64, trees, open_trees, 0, 0, 0, 0)
        with pytest.raises(ArgumentValueError, match="got 64"):
            decode_block(huge)


def test_a_combiner_becomes_blocks_that_count_its_messages_once(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_TREES_MAX", 20)
    messages = columns(1000)
    combiner = combiner_of(messages)
    merged = Combiner()
    headers = []
    for shard, block in encode_blocks(combiner, 4, event_ms=77):
        part, header = decode_block(block)
        headers.append(header)
        assert 0 < header.trees <= 20 and (shard_of(part.root_id, 4) == shard).all()
        merged.merge(part)
    assert len(headers) > 8
    assert [header.messages for header in headers] == [1000] + [0] * (len(headers) - 1)
    assert [header.duplicates for header in headers] == [combiner.duplicates] + [0] * (len(headers) - 1)
    assert combiner.duplicates > 0 and {header.event_ms for header in headers} == {77}
    expected = settle_as_sets(*messages, include_pending=True).rows()
    assert sorted(merged.settle(include_pending=True).rows()) == expected
    assert list(encode_blocks(Combiner(), 4)) == []


@pytest.fixture(scope="module")
def block_rows():
    """Blocks of messages that were combined in five places, and what they come to."""
    messages = columns(2000)
    rows = []
    for part in np.array_split(np.random.default_rng(1).permutation(2000), 5):
        combiner = combiner_of([column[part] for column in messages])
        rows += [(shard, bytearray(block)) for shard, block in encode_blocks(combiner, 6)]
    return rows, messages


@pytest.mark.spark
@pytest.mark.parametrize("shards", [6, None])
@pytest.mark.parametrize("include_pending", [False, True])
def test_blocks_are_settled_on_spark(spark, block_rows, shards, include_pending):
    rows, messages = block_rows
    frame = spark.createDataFrame(rows, "`the.``number%s` bigint, `the ``block` binary").repartition(3)
    done = completions_from_blocks(
        frame, column="the `block", shard="the.`number%s", shards=shards, include_pending=include_pending
    )
    found = sorted(map(tuple, done.collect()))
    assert found == settle_as_sets(*messages, include_pending=include_pending).rows()
    assert done.dtypes == [
        ("root_id", "bigint"),
        ("message_id", "bigint"),
        ("task_id", "int"),
        ("outcome", "tinyint"),
        ("elapsed_ms", "bigint"),
    ]


@pytest.mark.spark
def test_each_shard_has_a_partition_of_its_own(spark):
    for shards in (1, 2, 5, 64):
        places = blocks.placements(shards)
        rows = [(int(place), shard) for shard, place in enumerate(places)]
        frame = spark.createDataFrame(rows, "place int, shard int").repartition(shards, "place")
        placed = frame.select(F.spark_partition_id(), "shard").collect()
        assert sorted(map(tuple, placed)) == [(shard, shard) for shard in range(shards)]


@pytest.mark.spark
def test_spark_reads_the_latest_event_time_of_blocks(spark):
    times = [0, 1, -1, 255, 256, 1_700_000_000_123, -62_135_596_800_000, 253_402_300_799_999, -(2**61), 2**61]
    combiner = Combiner(cohorts=Cohorts(0, 2))
    combiner.add_unchecked(check_columns([Kind.OK], [7], [5]), np.array([3]))
    (partials,) = combiner.partials()
    rows = [(at, bytearray(blocks.encode_block(partials, event_ms=at))) for at in times]
    frame = spark.createDataFrame(rows, "at long, block binary")
    found = frame.select("at", blocks.latest_event_ms(F.col("block")).alias("found")).collect()
    assert [row.found for row in found] == [row.at for row in found] == times


@pytest.mark.spark
def test_blocks_that_are_wrong_fail_the_job_and_say_why(spark, block_rows):
    rows, _ = block_rows
    shard, block = rows[0]
    damaged = bytearray(block)
    damaged[80] ^= 1
    for bad, shards, text in (
        ([(shard, damaged)], None, "block: the checksum does not fit the bytes"),
        ([(shard, None)], None, "expected a shard and a block in each row, got null"),
        ([(None, block)], 6, "expected a shard and a block in each row, got null"),
        ([((shard + 1) % 6, block)], 6, "of 6 holds other trees"),
        ([(5, block)], 5, "expected a shard from 0 to 4 in column 'shard', since shards is 5, got 5: give the number"),
        ([(-1, block)], 6, "expected a shard from 0 to 5 in column 'shard', since shards is 6, got -1"),
        ([(2**40, block)], 6, f"since shards is 6, got {2**40}: give the number of shards into which"),
    ):
        frame = spark.createDataFrame(bad, "shard long, block binary")
        with pytest.raises((PythonException, SparkRuntimeException), match=text):
            completions_from_blocks(frame, shards=shards).collect()


@pytest.mark.spark
def test_frames_without_blocks_are_refused(spark):
    frame = spark.createDataFrame([(1, "x")], "shard int, block string")
    with pytest.raises(ArgumentTypeError, match="expected column 'block' of type binary, got string"):
        completions_from_blocks(frame)
    with pytest.raises(ArgumentValueError, match="there is no column 'carrier'; there are shard, block"):
        completions_from_blocks(frame, column="carrier")
    good = spark.createDataFrame([(1, bytearray())], "shard int, block binary")
    with pytest.raises(ArgumentValueError, match="shards: expected an integer from 1 to 1024, got 0"):
        completions_from_blocks(good, shards=0)
    with pytest.raises(ArgumentTypeError, match="event_time: expected none but timeout, protocol, buckets, high_water"):
        completions_from_blocks(good, shards=1, event_time="at")
    assert issubclass(ArgumentValueError, AckerError)


def test_completions_leave_in_batches_that_spark_takes_well(monkeypatch):
    monkeypatch.setattr(blocks, "_COMPLETION_BATCH_ROWS", 100)
    combiner = Combiner()
    combiner.add(0, np.arange(250), np.zeros(250, np.int64), np.zeros(250, np.int32))
    batches = list(blocks.completion_batches(combiner.settle()))
    assert [batch.num_rows for batch in batches] == [100, 100, 50]
    assert pa.Table.from_batches(batches).column("root_id").to_pylist() == list(range(250))
