"""Blocks: the format, every sort of damage, and where Spark puts a shard."""

import struct

import numpy as np
import pytest
from pyspark.sql import functions as F  # noqa: N812

from acker import _core
from acker._engine.columns import check_columns
from acker._engine.combiner import Cohorts, Combiner, Partials, shard_of
from acker._engine.protocol import INT64_MAX, INT64_MIN, Kind
from acker.errors import ArgumentValueError
from acker.spark import blocks
from acker.spark.blocks import (
    BlockHeader,
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
    header = struct.pack("<8sIIQQQQq", b"ACKERBLK", 4, 128, 2, 1, 258, 4, -5)
    # Root ids and message ids need all their bytes; the xors are alike, as is what one open tree has.
    layout = struct.pack("<7q7Bx", 0, 9, 0, 9, 5, 3, 0, 8, 0, 8, 0, 1, 0, 0)
    columns = [struct.pack("<qq", INT64_MAX, -1), b"", struct.pack("<qq", -3, INT64_MIN), b"", b"\x00\x01", b""]
    checksum = _core.xxh64(header, 0)
    for part in (layout, *columns):
        checksum = _core.xxh64(part, checksum)
    assert block == header + struct.pack("<Q", checksum) + layout + b"".join(columns) + bytes(6)


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


def test_a_block_of_oks_alone_takes_16_bytes_a_tree_and_ids_that_are_near_each_other_take_fewer():
    rng = np.random.default_rng(5)
    root_ids, values = rng.integers(INT64_MIN, INT64_MAX, (2, 1000))
    for ids, size_bytes in ((root_ids, 16), (np.arange(1000) + INT64_MAX - 1000, 10)):
        combiner = Combiner()
        combiner.add(Kind.OK, ids, values)
        ((_, block),) = encode_blocks(combiner, 1)
        assert len(block) == blocks.HEADER_BYTES + size_bytes * 1000
        merged = Combiner()
        merged.merge(decode_block(block)[0])
        assert [column.tolist() for column in merged.partials()[0][:6]] == [
            column.tolist() for column in combiner.partials()[0][:6]
        ]


def test_a_block_with_event_times_is_of_version_5():
    timed = PARTIALS._replace(event_ms=EXTREMES - 1)
    block = encode_block(timed, event_ms=9)
    assert (block[8], len(block)) == (5, len(encode_block(PARTIALS)) + 8 * len(EXTREMES))
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
    with pytest.raises(ArgumentValueError, match="block: expected 304 bytes for 5 trees, 4 of them open, got 305"):
        decode_block(block + b"\0")


def test_what_no_combiner_writes_is_refused_though_the_checksum_fits():
    for lie in (PARTIALS._replace(flags=PARTIALS.flags + 8), PARTIALS._replace(task_id=-1 - PARTIALS.task_id)):
        with pytest.raises(ArgumentValueError, match="flags or task ids that no combiner writes"):
            decode_block(encode_block(lie))
    for counts in ({"messages": 2**63}, {"duplicates": 2**49}, {"event_ms": 2**62}, {"event_ms": 1 - 2**63}):
        with pytest.raises(ArgumentValueError, match="block: counts or an event time that no combiner writes: "):
            decode_block(encode_block(PARTIALS, **counts))
    later = bytearray(encode_block(PARTIALS))
    later[8] = 6
    with pytest.raises(ArgumentValueError, match="block: expected version 4 or 5, got 6"):
        read_header(later)
    for trees, open_trees in ((2**63, 0), (0, 1), (2**64 - 1, 2**64 - 1)):
        huge = struct.pack("<8sIIQQQQqQ", b"ACKERBLK", 4, 128, trees, open_trees, 0, 0, 0, 0) + bytes(64)
        with pytest.raises(ArgumentValueError, match=r"got \d{3}"):
            decode_block(huge)
    wide = struct.pack("<8sIIQQQQqQ", b"ACKERBLK", 4, 128, 0, 0, 0, 0, 0, 0) + bytes(56) + b"\3" + bytes(7)
    with pytest.raises(ArgumentValueError, match="expected columns of 0, 1, 2, 4, 8 bytes a row, got"):
        decode_block(wide)


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


@pytest.mark.spark
def test_spark_reads_the_latest_event_time_of_blocks(spark):
    times = [0, 1, -1, 255, 256, 1_700_000_000_123, -62_135_596_800_000, 253_402_300_799_999, -(2**61), 2**61, None]
    combiner = Combiner(cohorts=Cohorts(0, 2))
    combiner.add_unchecked(check_columns([Kind.OK], [7], [5]), np.array([3]))
    (partials,) = combiner.partials()
    rows = [(at, bytearray(blocks.encode_block(partials, event_ms=at))) for at in times]
    frame = spark.createDataFrame(rows, "at long, block binary")
    found = frame.select("at", blocks.latest_event_ms(F.col("block")).alias("found")).collect()
    assert [row.found for row in found] == [row.at for row in found] == times
