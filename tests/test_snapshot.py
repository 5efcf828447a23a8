"""Snapshots: what comes back, what is refused, and that nothing hostile gets through or takes memory."""

import hashlib
import struct
import tracemalloc

import numpy as np
import pytest

import acker
from acker import Kind, SnapshotError
from acker.errors import ArgumentTypeError
from acker.protocol import COUNTERS, INT64_MAX, INT64_MIN, PROTOCOLS
from acker.snapshot import MAGIC, Entries, State, decode, encode

BOTH = (acker.Acker, acker.ReferenceAcker)
EXTREMES = [0, -1, 1, INT64_MIN, INT64_MAX]


def filled(acker_type, protocol="storm", buckets=3, high_water=40):
    """Return an acker with something of every sort in every bucket, the extreme root ids among them."""
    a = acker_type(protocol=protocol, buckets=buckets, high_water=high_water, seed=2**64 - 3)
    for turn in range(2 * buckets):
        roots = [root ^ (2 * buckets - 1 - turn) << 8 for root in EXTREMES]
        a.ingest(Kind.TRACK, roots, [INT64_MIN] * 5, [2**31 - 1] * 5, roots, now_ms=turn - 5)
        a.ingest([2, 3, 1, 2, 4], [300 + turn, 400 + turn, 100 + turn, 200, 0], [7, 8, 9, INT64_MIN, 0], now_ms=turn)
        if turn >= buckets:
            a.rotate(now_ms=turn)
    return a


def drained(a):
    """Return everything an acker holds, as rotations tell it."""
    told = [sorted(a.rotate(now_ms=1000 + turn).rows()) for turn in range(a.buckets)]
    return told, a.stats()


def sealed(body):
    """Return a snapshot with the right checksum, whatever its contents."""
    return body + hashlib.blake2b(body, digest_size=16).digest()


# --- what comes back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("buckets", [2, 3, 15])
@pytest.mark.parametrize("high_water", [None, 0, 7])
@pytest.mark.parametrize("target", BOTH)
def test_a_restored_acker_goes_on_where_the_other_stood(acker_type, target, protocol, buckets, high_water):
    a = filled(acker_type, protocol, buckets, high_water)
    b = target.restore(a.snapshot())
    assert (b.protocol, b.buckets, b.high_water) == (protocol, buckets, high_water)
    assert (b.stats(), len(b)) == (a.stats(), len(a))
    for root in [*EXTREMES, 100, 200, 12345]:
        assert (root in b) == (root in a)
    failed_root = 400 + 2 * buckets - 1
    roots = [0, -1, 3, 100, 200, 77, failed_root]
    batch = ([0, 2, 3, 1, 4, 0, 0], roots, [1, 2, 3, 4, 5, 6, 7], [1] * 7, [9] * 7)
    if high_water is None and protocol != "fsshelter":
        assert failed_root in b
    assert b.ingest(*batch, now_ms=50) == a.ingest(*batch, now_ms=50)
    assert drained(b) == drained(a)


def test_a_snapshot_changes_nothing_and_is_the_same_again(acker_type):
    a = filled(acker_type)
    stats = a.stats()
    blob = a.snapshot()
    assert type(blob) is bytes
    assert a.snapshot() == blob
    assert a.stats() == stats
    # Reading does not change it either.
    assert 12345 not in a
    len(a)
    assert a.snapshot() == blob


def test_an_empty_acker_comes_back(acker_type):
    a = acker_type(seed=5)
    blob = a.snapshot()
    assert len(blob) == 120 + 16
    b = acker_type.restore(blob)
    assert (len(b), b.snapshot()) == (0, blob)


def test_restore_takes_any_bytes(acker_type):
    blob = filled(acker_type).snapshot()
    doubled = np.repeat(np.frombuffer(blob, np.uint8), 2)
    for data in (bytearray(blob), memoryview(blob), memoryview(b"x" + blob)[1:], memoryview(doubled)[::2]):
        assert drained(acker_type.restore(data)) == drained(acker_type.restore(blob))


def test_a_restored_acker_does_not_hold_on_to_the_buffer(acker_type):
    buffer = bytearray(filled(acker_type).snapshot())
    a = acker_type.restore(buffer)
    before = a.snapshot()
    buffer[:] = bytes(len(buffer))
    assert a.snapshot() == before


def test_many_entries_come_back(acker_type):
    n = 20_000
    roots = np.arange(n) * 0x10001
    a = acker_type(seed=1)
    a.ingest(Kind.TRACK, roots, roots + 1, np.arange(n) % 7, roots * 3, now_ms=10)
    b = acker_type.restore(a.snapshot())
    done = b.ingest(Kind.OK, roots, roots + 1, now_ms=11)
    assert done.message_id.tolist() == (roots * 3).tolist()
    assert done.task_id.tolist() == (np.arange(n) % 7).tolist()
    assert len(b) == 0


def test_the_format_is_the_documented_one():
    """Written by hand after the table in acker.snapshot, so that a change of the format is a decision."""
    a = acker.ReferenceAcker(protocol="storm-0.9", buckets=4, high_water=6, seed=0x0123456789ABCDEF)
    a.ingest([0, 3, 2], [-2, 8, 9], [5, 0, 6], [3, 3, 3], [42, 42, 42], now_ms=-1)
    a.rotate()
    a.ingest(Kind.TRACK, [9], [1], [4], [43])
    expected = b"ACKERSNP" + struct.pack("<IBBHqQ", 1, 1, 4, 0, 6, 0x0123456789ABCDEF)
    expected += struct.pack("<10Q", 2, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    expected += struct.pack("<Q", 3)
    expected += struct.pack("<3q", 9, -2, 8)  # root_id: 9 in the nursery, the others one rotation older
    expected += struct.pack("<3q", 7, 5, 0)  # ack_val
    expected += struct.pack("<3q", 43, 42, 0)  # message_id
    expected += struct.pack("<3i", 4, 3, 0)  # task_id
    expected += struct.pack("<3I", 2**32 - 1, 2**32 - 1, 2**32 - 1)  # start
    expected += bytes([1, 1, 2])  # state
    expected += bytes([0, 1, 1])  # age
    assert a.snapshot() == sealed(expected)
    assert acker.Acker.restore(a.snapshot()).stats() == a.stats()


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def blob():
    return filled(acker.Acker).snapshot()


def test_every_truncation_is_refused(acker_type, blob):
    assert len(blob) > 500
    for size in range(len(blob)):
        with pytest.raises(SnapshotError):
            acker_type.restore(blob[:size])


def test_every_flipped_byte_is_refused(acker_type, blob):
    for offset in range(len(blob)):
        damaged = bytearray(blob)
        for flip in (0x01, 0x80, 0xFF):
            damaged[offset] = blob[offset] ^ flip
            with pytest.raises(SnapshotError):
                acker_type.restore(damaged)


def test_trailing_bytes_are_refused(acker_type, blob):
    for tail in (b"\0", b"\n", blob, bytes(34)):
        with pytest.raises(SnapshotError, match=rf"expected {len(blob)} bytes for \d+ entries, got {len(blob + tail)}"):
            acker_type.restore(blob + tail)


def test_swapped_entries_are_refused(acker_type, blob):
    damaged = bytearray(blob)
    damaged[120:128], damaged[128:136] = blob[128:136], blob[120:128]
    with pytest.raises(SnapshotError, match="checksum"):
        acker_type.restore(damaged)


@pytest.mark.parametrize("junk", [b"", b"ACKERSNP", bytes(136), b"\xff" * 136, b"PK\x03\x04" * 60])
def test_junk_is_refused(acker_type, junk):
    with pytest.raises(SnapshotError):
        acker_type.restore(junk)
    with pytest.raises(ValueError, match=r"^snapshot: "):
        acker_type.restore(junk)


@pytest.mark.parametrize("nonsense", ["ACKERSNP", None, 5, [1, 2], np.zeros(136, np.uint8)])
def test_what_is_not_bytes_is_a_type_error(acker_type, nonsense):
    with pytest.raises(ArgumentTypeError, match="snapshot: expected bytes, got"):
        acker_type.restore(nonsense)


# --- well-formed lies: the checksum is right and the contents are not -------------------------------------------------

ENTRY = {"root_id": 7, "ack_val": 5, "message_id": 42, "task_id": 3, "start": 9, "state": 1, "age": 0}


def state(entries=(), **changes):
    """Return a state that is legal but for the changes; `tracked` is made to fit."""
    rows = [{**ENTRY, **entry} for entry in entries]
    columns = [np.array([row[name] for row in rows], dtype) for name, dtype in zip(ENTRY, DTYPES, strict=True)]
    tracked = sum(row["state"] == 1 for row in rows)
    counters = (tracked,) + (0,) * (len(COUNTERS) - 1)
    legal = State("storm", 3, None, 1, counters, Entries(*columns))
    return legal._replace(**changes)


DTYPES = (np.int64, np.int64, np.int64, np.int32, np.uint32, np.uint8, np.uint8)
UNTRACKED = {"state": 0, "task_id": 0, "message_id": 0}


def patched(offset, layout, *values, entries=({},)):
    """Return a sealed snapshot with some bytes of its header replaced."""
    body = bytearray(encode(state(entries))[:-16])
    struct.pack_into(layout, body, offset, *values)
    return sealed(bytes(body))


def test_the_helper_makes_legal_states():
    for entries in ([], [{}], [{}, {**UNTRACKED, "root_id": 8, "ack_val": 0}, {**UNTRACKED, "root_id": 9, "state": 2}]):
        for each in BOTH:
            assert len(each.restore(encode(state(entries)))) == len(entries)
    assert acker.Acker.restore(patched(24, "<Q", 2**64 - 1)).stats().open == 1


@pytest.mark.parametrize(
    ("hostile", "text"),
    [
        (patched(0, "<8s", b"ACKERSNQ"), "expected to begin with b'ACKERSNP', got b'ACKERSNQ'"),
        (patched(8, "<I", 2), "expected version 1, got 2"),
        (patched(8, "<I", 0), "expected version 1, got 0"),
        (patched(12, "<B", 3), "expected a protocol below 3, got 3"),
        (patched(13, "<B", 1), "expected 2 to 15 buckets, got 1"),
        (patched(13, "<B", 16), "expected 2 to 15 buckets, got 16"),
        (patched(14, "<H", 1), "expected 0 in the reserved bytes, got 1"),
        (patched(16, "<q", -2), f"expected a high_water from -1 to {2**61 - 1}, got -2"),
        (patched(16, "<q", 2**61), f"expected a high_water from -1 to {2**61 - 1}, got {2**61}"),
        (patched(32, "<Q", 2), "expected 1 TRACKs by the other counters, got 2"),
        (patched(32, "<Q", 0), "expected 1 TRACKs by the other counters, got 0"),
        (patched(40, "<Q", 1), "expected 2 TRACKs by the other counters, got 1"),
        (patched(32, "<2Q", 2**63 + 1, 2**63), f"expected a counter tracked that fits int64, got {2**63 + 1}"),
        (patched(104, "<Q", 2**63), f"expected a counter resets that fits int64, got {2**63}"),
        (encode(state([{"state": 3}])), "entry 0: expected a state from 0 to 2, got 3"),
        (encode(state([{}, {"root_id": 8, "age": 3}])), "entry 1: expected an age below 3, got 3"),
        (encode(state([{"task_id": -1}])), "entry 0: expected a task id >= 0, got -1"),
        (encode(state([{"ack_val": 0}])), "entry 0: expected no tracked entry that is finished, got 0"),
        (encode(state([{}, {"age": 1}])), "entry 0: expected each root id once, got 7"),
        (
            encode(state([UNTRACKED], protocol="fsshelter")),
            "entry 0: expected tracked entries only in protocol fsshelter, got 0",
        ),
        (
            encode(state([{"root_id": root} for root in range(4)], high_water=1)),
            "expected no more open trees than high_water allows, got 4",
        ),
        (
            encode(state([{**UNTRACKED, "root_id": root} for root in range(6)], high_water=1)),
            "expected no more entries than high_water allows, got 6",
        ),
    ],
)
def test_well_formed_lies_are_refused(acker_type, hostile, text):
    with pytest.raises(SnapshotError) as caught:
        acker_type.restore(hostile)
    assert str(caught.value) == "snapshot: " + text


@pytest.mark.parametrize(("column", "size"), [("message_id", 8), ("task_id", 4)])
def test_ids_without_a_track_are_refused(acker_type, column, size):
    body = bytearray(encode(state([UNTRACKED]))[:-16])
    offset = 120 + (16 if column == "message_id" else 24)
    body[offset : offset + size] = (1).to_bytes(size, "little")
    with pytest.raises(SnapshotError, match=f"entry 0: expected {column.replace('_', ' ')} 0 without a TRACK, got 1"):
        acker_type.restore(sealed(bytes(body)))


def test_an_fsshelter_entry_may_read_0(acker_type):
    a = acker_type.restore(encode(state([{"ack_val": 0}], protocol="fsshelter")))
    assert a.ingest(Kind.OK, [7], [0]).rows() == [(7, 42, 3, 0, 0)]


@pytest.mark.parametrize("count", [2, 10**6, 2**31, 2**48, 2**60, 2**64 - 1])
def test_a_huge_claimed_count_takes_no_memory(acker_type, count):
    hostile = patched(112, "<Q", count)
    tracemalloc.start()
    try:
        with pytest.raises(SnapshotError, match=f"bytes for {count} entries, got"):
            acker_type.restore(hostile)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200_000


def test_random_bytes_behind_a_right_checksum_never_crash(acker_type):
    rng = np.random.default_rng(1)
    refused = 0
    legal = bytearray(encode(state([{"root_id": root} for root in range(8)]))[:-16])
    for _ in range(500):
        body = bytearray(legal)
        for offset in rng.integers(0, len(body), 3):
            body[offset] = rng.integers(0, 256)
        try:
            a = acker_type.restore(sealed(bytes(body)))
        except SnapshotError:
            refused += 1
        else:
            assert acker_type.restore(a.snapshot()).snapshot() == acker_type.restore(a.snapshot()).snapshot()
            drained(a)
            assert len(a) == 0
    assert 0 < refused < 500


# --- the codec --------------------------------------------------------------------------------------------------------


def test_decode_gives_back_what_encode_was_given():
    entries = [{"root_id": root, "ack_val": INT64_MIN, "start": 2**32 - 1, "age": 2} for root in EXTREMES]
    given = state(entries, protocol="storm-0.9", high_water=9, seed=2**64 - 1)
    taken = decode(encode(given))
    assert taken[:-1] == given[:-1]
    for got, expected, dtype in zip(taken.entries, given.entries, DTYPES, strict=True):
        assert got.dtype == dtype
        assert not got.flags.writeable
        assert np.array_equal(got, expected)


def test_encode_clears_ids_without_a_track_and_takes_any_layout():
    entries = state([{"state": 0, "task_id": 9, "message_id": 9}, {"root_id": 8}]).entries
    strided = Entries(*(np.repeat(column, 2)[::2] for column in entries))
    for given in (entries, strided):
        taken = decode(encode(state()._replace(counters=(1,) + (0,) * 9, entries=given))).entries
        assert taken.task_id.tolist() == [0, 3]
        assert taken.message_id.tolist() == [0, 42]
    assert entries.task_id.tolist() == [9, 3]


def test_magic_and_size_of_an_entry():
    one, none = encode(state([{}])), encode(state())
    assert one[:8] == MAGIC
    assert len(one) - len(none) == 34
