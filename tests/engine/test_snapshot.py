"""Snapshots: what comes back, what is refused, and that nothing hostile gets through or takes memory."""

import copy
import io
import pickle
import struct
import tracemalloc

import numpy as np
import pytest

import acker
from acker import Kind, SnapshotError, _core
from acker._engine.protocol import COUNTERS, INT64_MAX, INT64_MIN, PROTOCOLS
from acker._engine.snapshot import BLOCK_ENTRIES, HEADER_BYTES, SnapshotEntries, block_bytes
from acker.errors import ArgumentTypeError
from tests.native_testing import check_invariants, fail_allocations_after
from tests.oracles import State, decode, encode

BOTH = (acker.Acker, acker.ReferenceAcker)
EXTREMES = [0, -1, 1, INT64_MIN, INT64_MAX]


def fill(acker_type, protocol="storm", buckets=3, high_water=40):
    """Return an acker with something of every sort in every bucket, the extreme root ids among them."""
    a = acker_type(protocol=protocol, buckets=buckets, high_water=high_water, seed=2**64 - 3)
    for turn in range(2 * buckets):
        roots = [root ^ (2 * buckets - 1 - turn) << 8 for root in EXTREMES]
        a.ingest(Kind.TRACK, roots, [INT64_MIN] * 5, [2**31 - 1] * 5, roots, now_ms=turn - 5)
        a.ingest([2, 3, 1, 2, 4], [300 + turn, 400 + turn, 100 + turn, 200, 0], [7, 8, 9, INT64_MIN, 0], now_ms=turn)
        if turn >= buckets:
            a.rotate(now_ms=turn)
    return a


def drain(a):
    """Return everything an acker holds, as rotations tell it."""
    told = [sorted(a.rotate(now_ms=1000 + turn).rows()) for turn in range(a.buckets)]
    return told, a.stats()


def seal(blob):
    """Return a snapshot with the right checksums, whatever its contents."""
    sealed_bytes, checksum = bytearray(blob), 0
    (left,) = struct.unpack_from("<Q", blob, HEADER_BYTES - 16)
    start, end = 0, HEADER_BYTES - 8
    while end + 8 <= len(blob):
        checksum = _core.xxh64(sealed_bytes[start:end], checksum)
        struct.pack_into("<Q", sealed_bytes, end, checksum)
        start, rows = end + 8, min(left, BLOCK_ENTRIES)
        end, left = start + 34 * rows, left - rows
        if rows == 0:
            break
    return bytes(sealed_bytes)


def restore_both_ways(acker_type, blob):
    """Restore from bytes, and from a file that knows as little of itself as a pipe does."""
    return acker_type.restore(blob), acker_type.restore_from(io.BytesIO(blob))


def refuse_both_ways(acker_type, blob, match=None):
    """Return what the two ways to restore say about a snapshot that they refuse."""
    texts = []
    for restore in (acker_type.restore, lambda data: acker_type.restore_from(io.BytesIO(data))):
        with pytest.raises(SnapshotError, match=match) as caught:
            restore(blob)
        texts.append(str(caught.value))
    return texts


# --- what comes back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("buckets", [2, 3, 15])
@pytest.mark.parametrize("high_water", [None, 0, 7])
@pytest.mark.parametrize("target", BOTH)
def test_a_restored_acker_goes_on_where_the_other_stood(acker_type, target, protocol, buckets, high_water):
    a = fill(acker_type, protocol, buckets, high_water)
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
    assert drain(b) == drain(a)


def test_a_snapshot_changes_nothing_and_is_the_same_again(acker_type):
    a = fill(acker_type)
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
    assert len(blob) == HEADER_BYTES == 128
    b = acker_type.restore(blob)
    assert (len(b), b.snapshot()) == (0, blob)


def test_restore_takes_any_bytes(acker_type):
    blob = fill(acker_type).snapshot()
    doubled = np.repeat(np.frombuffer(blob, np.uint8), 2)
    for data in (bytearray(blob), memoryview(blob), memoryview(b"x" + blob)[1:], memoryview(doubled)[::2]):
        assert drain(acker_type.restore(data)) == drain(acker_type.restore(blob))


def test_a_restored_acker_does_not_hold_on_to_the_buffer(acker_type):
    buffer = bytearray(fill(acker_type).snapshot())
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
    """Written by hand after the tables in docs/snapshot.md, so that a change of the format is a decision."""
    a = acker.ReferenceAcker(protocol="storm-0.9", buckets=4, high_water=6)
    a.ingest([0, 3, 2], [-2, 8, 9], [5, 0, 6], [3, 3, 3], [42, 42, 42], now_ms=-1)
    a.rotate()
    a.ingest(Kind.TRACK, [9], [1], [4], [43])
    header = b"ACKERSNP" + struct.pack("<IBBHq", 3, 1, 4, 0, 6)
    header += struct.pack("<11Q", 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    header += struct.pack("<Q", 3)
    block = struct.pack("<3q", 9, -2, 8)  # root_id: 9 in the nursery, the others one rotation older
    block += struct.pack("<3q", 7, 5, 0)  # ack_val
    block += struct.pack("<3q", 43, 42, 0)  # message_id
    block += struct.pack("<3i", 4, 3, 0)  # task_id
    block += struct.pack("<3I", 2**32 - 1, 2**32 - 1, 2**32 - 1)  # start
    block += bytes([1, 1, 2])  # state
    block += bytes([0, 1, 1])  # age
    checksum = _core.xxh64(header, 0)
    checksums = struct.pack("<Q", checksum), struct.pack("<Q", _core.xxh64(block, checksum))
    assert a.snapshot() == header + checksums[0] + block + checksums[1]
    assert acker.Acker.restore(a.snapshot()).stats() == a.stats()


@pytest.mark.parametrize("entries", [1, BLOCK_ENTRIES - 1, BLOCK_ENTRIES, BLOCK_ENTRIES + 1, 2 * BLOCK_ENTRIES])
@pytest.mark.parametrize("target", BOTH)
def test_blocks_of_any_number_come_back(acker_type, target, entries):
    a = acker_type(seed=3)
    roots = np.arange(entries)
    a.ingest(Kind.TRACK, roots, roots + 1, roots % 5, -roots, now_ms=7)
    blob = a.snapshot()
    blocks = -(-entries // BLOCK_ENTRIES)
    assert len(blob) == HEADER_BYTES + 34 * entries + 8 * blocks
    assert seal(blob) == blob
    for b in restore_both_ways(target, blob):
        assert b.stats() == a.stats()
        done = b.ingest(Kind.OK, roots, roots + 1, now_ms=8)
        assert (done.message_id == -roots).all()
        assert (done.task_id == roots % 5).all()
        assert len(done) == entries


def test_a_snapshot_is_the_same_written_to_a_file(acker_type):
    for a in (acker_type(seed=2), fill(acker_type)):
        file = io.BytesIO()
        assert a.snapshot_to(file) == len(a.snapshot())
        assert file.getvalue() == a.snapshot()


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def blob():
    return fill(acker.Acker).snapshot()


def test_every_truncation_is_refused(acker_type, blob):
    assert len(blob) > 500
    for size in range(len(blob)):
        refuse_both_ways(acker_type, blob[:size], f"bytes.*, got {size}$")


def test_every_flipped_byte_is_refused(acker_type, blob):
    for offset in range(len(blob)):
        damaged = bytearray(blob)
        for flip in (0x01, 0x80, 0xFF):
            damaged[offset] = blob[offset] ^ flip
            refuse_both_ways(acker_type, bytes(damaged))


def test_trailing_bytes_are_refused(acker_type, blob):
    for tail in (b"\0", b"\n", blob, bytes(34)):
        texts = refuse_both_ways(acker_type, blob + tail, rf"expected {len(blob)} bytes for \d+ entries, got")
        assert texts[0].endswith(f"got {len(blob + tail)}")
        assert texts[1].endswith("got more")


def test_swapped_entries_are_refused(acker_type, blob):
    damaged = bytearray(blob)
    a, b = HEADER_BYTES, HEADER_BYTES + 8
    damaged[a:b], damaged[b : b + 8] = blob[b : b + 8], blob[a:b]
    refuse_both_ways(acker_type, bytes(damaged), "entries 0 to .*checksum")


def test_blocks_in_another_order_are_refused(acker_type):
    entries = 3 * BLOCK_ENTRIES + 1
    a = acker.Acker(seed=3)
    a.ingest(Kind.TRACK, np.arange(entries), np.full(entries, 5), np.zeros(entries, int))
    blob, size = a.snapshot(), block_bytes(BLOCK_ENTRIES)
    head, body = blob[:HEADER_BYTES], blob[HEADER_BYTES:]
    blocks, last = [body[i * size :][:size] for i in range(3)], body[3 * size :]
    assert b"".join([head, *blocks, last]) == blob
    for order, bad in (([1, 0, 2], 0), ([0, 2, 1], 1), ([0, 0, 2], 1), ([0, 1, 1], 2)):
        damaged = b"".join([head, *(blocks[i] for i in order), last])
        first = bad * BLOCK_ENTRIES
        for text in refuse_both_ways(acker_type, damaged):
            assert text == (
                f"snapshot: entries {first} to {first + BLOCK_ENTRIES - 1}: the checksum does not fit the bytes"
            )
    for missing in ([0, 1], [1, 2], []):
        refuse_both_ways(acker_type, b"".join([head, *(blocks[i] for i in missing), last]))
    # The same entries under another header.
    other = acker.Acker(buckets=4)
    other.ingest(Kind.TRACK, np.arange(entries), np.full(entries, 5), np.zeros(entries, int))
    refuse_both_ways(acker_type, other.snapshot()[:HEADER_BYTES] + blob[HEADER_BYTES:], "entries 0 to .*checksum")


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
    legal = State("storm", 3, None, counters, SnapshotEntries(*columns))
    return legal._replace(**changes)


DTYPES = (np.int64, np.int64, np.int64, np.int32, np.uint32, np.uint8, np.uint8)
UNTRACKED = {"state": 0, "task_id": 0, "message_id": 0}


def patch(offset, layout, *values, entries=({},)):
    """Return a sealed snapshot with some of its bytes replaced."""
    blob = bytearray(encode(state(entries)))
    struct.pack_into(layout, blob, offset, *values)
    return seal(bytes(blob))


def test_the_helper_makes_legal_states():
    for entries in ([], [{}], [{}, {**UNTRACKED, "root_id": 8, "ack_val": 0}, {**UNTRACKED, "root_id": 9, "state": 2}]):
        for each in BOTH:
            assert len(each.restore(encode(state(entries)))) == len(entries)


@pytest.mark.parametrize(
    ("hostile", "text"),
    [
        (patch(0, "<8s", b"ACKERSNQ"), "expected to begin with b'ACKERSNP', got b'ACKERSNQ'"),
        (patch(8, "<I", 2), "expected version 3, got version 2"),
        (patch(8, "<I", 0), "expected version 3, got version 0"),
        (patch(12, "<B", 3), "expected a protocol below 3, got 3"),
        (patch(13, "<B", 1), "expected 2 to 15 buckets, got 1"),
        (patch(13, "<B", 16), "expected 2 to 15 buckets, got 16"),
        (patch(14, "<H", 1), "expected 0 in the reserved bytes, got 1"),
        (patch(16, "<q", -2), f"expected a high_water from -1 to {2**61 - 1}, got -2"),
        (patch(16, "<q", 2**61), f"expected a high_water from -1 to {2**61 - 1}, got {2**61}"),
        (patch(24, "<Q", 2), "expected 1 TRACKs by the other counters, got 2"),
        (patch(24, "<Q", 0), "expected 1 TRACKs by the other counters, got 0"),
        (patch(32, "<Q", 1), "expected 2 TRACKs by the other counters, got 1"),
        (patch(24, "<2Q", 2**63, 2**63 - 1), f"expected a counter tracked of at most {2**62}, got {2**63}"),
        (
            patch(24, "<2Q", 2**62 + 1, 2**62),
            f"expected a counter tracked of at most {2**62}, got {2**62 + 1}",
        ),
        (patch(96, "<Q", 2**63 - 1), f"expected a counter resets of at most {2**62}, got {2**63 - 1}"),
        (
            patch(HEADER_BYTES - 24, "<Q", 2**64 - 1),
            f"expected a counter empty of at most {2**62}, got {2**64 - 1}",
        ),
        (patch(HEADER_BYTES - 24, "<Q", 1), "expected no more empty trees than acked ones, got 1"),
        (encode(state([{"state": 3}])), "entry 0: expected a state from 0 to 2, got 3"),
        (encode(state([{}, {"root_id": 8, "age": 3}])), "entry 1: expected an age below 3, got 3"),
        (encode(state([{"task_id": -1}])), "entry 0: expected a task id >= 0, got -1"),
        (encode(state([{"ack_val": 0}])), "entry 0: expected no tracked entry that is finished, got 0"),
        (encode(state([{}, {"age": 1}])), "entry 1: expected each root id once, got 7"),
        (encode(state([{}, {"root_id": 8, "age": 3, "task_id": -1}])), "entry 1: expected an age below 3, got 3"),
        (encode(state([{}, {"age": 3}, {"state": 3}, {}])), "entry 1: expected an age below 3, got 3"),
        (encode(state([{}, {}, {"root_id": 8, "state": 255}])), "entry 2: expected a state from 0 to 2, got 255"),
        (
            encode(state([{"root_id": root} for root in [*range(BLOCK_ENTRIES + 5), 3]])),
            f"entry {BLOCK_ENTRIES + 5}: expected each root id once, got 3",
        ),
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
    assert refuse_both_ways(acker_type, hostile) == ["snapshot: " + text] * 2


@pytest.mark.parametrize(("column", "size"), [("message_id", 8), ("task_id", 4)])
def test_ids_without_a_track_are_refused(acker_type, column, size):
    blob = bytearray(encode(state([UNTRACKED])))
    offset = HEADER_BYTES + (16 if column == "message_id" else 24)
    blob[offset : offset + size] = (1).to_bytes(size, "little")
    text = f"entry 0: expected {column.replace('_', ' ')} 0 without a TRACK, got 1"
    refuse_both_ways(acker_type, seal(bytes(blob)), text)


def test_an_fsshelter_entry_may_read_0(acker_type):
    a = acker_type.restore(encode(state([{"ack_val": 0}], protocol="fsshelter")))
    assert a.ingest(Kind.OK, [7], [0]).rows() == [(7, 42, 3, 0, 0)]


@pytest.mark.parametrize("count", [2, 10**6, 2**31, 2**48, 2**60, 2**64 - 1])
def test_a_huge_claimed_count_takes_no_memory(acker_type, count):
    hostile = patch(HEADER_BYTES - 16, "<Q", count)
    size = HEADER_BYTES + 34 * count + 8 * -(-count // BLOCK_ENTRIES)
    tracemalloc.start()
    try:
        for text in refuse_both_ways(acker_type, hostile):
            assert text == f"snapshot: expected {size} bytes for {count} entries, got {HEADER_BYTES + 34 + 8}"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200_000


def sparse_file(path, start, entries):
    """Write a file that begins with some blocks of a snapshot and is zeros, which take no disk, to its claimed end."""
    header = bytearray(start[:HEADER_BYTES])
    struct.pack_into("<Q", header, HEADER_BYTES - 16, entries)
    with path.open("wb") as file:
        file.write(seal(bytes(header) + start[HEADER_BYTES:]))
        file.truncate(HEADER_BYTES + 34 * entries + 8 * -(-entries // BLOCK_ENTRIES))
    return path


SPARSE_ENTRIES = 2**25  # 1.1 GB of file; a table of as many takes 3


@pytest.mark.native_testing
@pytest.mark.parametrize("blocks", [0, 1])
@pytest.mark.parametrize("way", ["path", "file object"])
def test_the_size_of_a_sparse_file_is_not_believed(restoring, scarce_memory, tmp_path, blocks, way):
    a = acker.Acker(seed=1)
    roots = np.arange(blocks * BLOCK_ENTRIES)
    a.ingest(Kind.TRACK, roots, roots + 1, np.zeros(len(roots), int))
    path = sparse_file(tmp_path / "sparse", a.snapshot(), SPARSE_ENTRIES)
    first = blocks * BLOCK_ENTRIES
    text = f"^snapshot: entries {first} to {first + BLOCK_ENTRIES - 1}: the checksum does not fit the bytes$"
    # Enough for four times the entries of the good blocks, in one shard or in each of three.
    fail_allocations_after(40 * blocks + 6)
    with path.open("rb") as file, pytest.raises(SnapshotError, match=text):
        restoring(path if way == "path" else file)


@pytest.fixture(params=["Acker", "ReferenceAcker", "ShardedAcker"])
def restoring(request):
    """The three ways to restore from a file."""
    if request.param == "ShardedAcker":
        return lambda source: acker.ShardedAcker.restore_from(source, 3, 2)
    return getattr(acker, request.param).restore_from


def test_the_last_counts_are_counted_on(acker_type):
    """Counters are bounded where a restored acker can count as many events again."""
    most = 2**62
    for at, name in enumerate(COUNTERS[4:-1], 4):  # the others are bounded by sums
        blob = patch(24 + 8 * at, "<Q", most)
        for a in restore_both_ways(acker_type, blob):
            assert getattr(a.stats(), name) == most
    a = acker_type.restore(patch(24, "<2Q", most, most - 1))
    b = acker.ShardedAcker.restore(patch(24, "<2Q", most, most - 1), 3)
    for each in (a, b):
        done = each.ingest([2, 0, 2], [7, 8, 8], [5, 1, 1], [0, 0, 0])
        assert len(done) == 2
        assert (each.stats().tracked, each.stats().acked) == (most + 1, most + 1)
        assert each.snapshot() == each.snapshot()


def test_a_snapshot_holds_no_seed():
    """What two ackers say differs in the order of the entries alone, and each restored one draws its own seed."""
    roots = np.arange(200)
    made = [acker.Acker(seed=seed) for seed in (1, 2, None, None)]
    for a in made:
        a.ingest(Kind.TRACK, roots, roots + 1, roots % 5, -roots, now_ms=7)
    snapshots = [a.snapshot() for a in made]
    assert len({blob[:HEADER_BYTES] for blob in snapshots}) == 1
    assert len({blob[HEADER_BYTES:] for blob in snapshots}) == len(made)
    assert len({acker.Acker.restore(snapshots[0]).snapshot() for _ in range(4)}) == 4
    assert len({acker.ShardedAcker.restore(snapshots[0], 2).snapshot() for _ in range(4)}) == 4
    held = [{tuple(row) for row in zip(*(c.tolist() for c in decode(blob).entries), strict=True)} for blob in snapshots]
    assert held[0] == held[1] == held[2] == held[3]


@pytest.mark.parametrize("count", [5, 129, 1000])
def test_a_forged_snapshot_takes_no_more_memory_than_another(native_hash, count):
    """Root ids that met on one line under the seed which stood in the snapshot itself made a table grow for ever."""
    seed = native_hash(1)
    forged = encode(state([{"root_id": seed.root_of((0xABC << 52) | (i << 24) | 5)} for i in range(count)]))
    usual = encode(state([{"root_id": root} for root in range(count)]))
    for restore in (acker.Acker.restore, lambda blob: acker.ShardedAcker.restore(blob, 3)):
        held, other = restore(forged), restore(usual)
        check_invariants(held)
        assert len(held) == count
        assert held.nbytes <= max(2 * other.nbytes, 100_000 if count < 200 else 3 * 2_200_000)


@pytest.mark.native_testing
def test_a_file_is_not_believed_how_many_entries_it_has(scarce_memory):
    """Room is made for what has been read, so a claim of 2^40 entries fails for want of bytes and not of memory."""
    a = acker.Acker(seed=1)
    roots = np.arange(3 * BLOCK_ENTRIES)
    a.ingest(Kind.TRACK, roots, roots + 1, np.zeros(len(roots), int))
    hostile = bytearray(a.snapshot())
    struct.pack_into("<Q", hostile, HEADER_BYTES - 16, 2**40)
    fail_allocations_after(40)
    with pytest.raises(SnapshotError, match=rf"for {2**40} entries, got {len(hostile)}"):
        acker.Acker.restore_from(io.BytesIO(seal(bytes(hostile))))


def test_random_bytes_behind_a_right_checksum_never_crash(acker_type):
    rng = np.random.default_rng(1)
    refused = 0
    legal = encode(state([{"root_id": root} for root in range(8)]))
    for _ in range(500):
        blob = bytearray(legal)
        for offset in rng.integers(0, len(blob), 3):
            blob[offset] = rng.integers(0, 256)
        try:
            a = acker_type.restore(seal(bytes(blob)))
        except SnapshotError:
            refused += 1
        else:
            assert a.snapshot() == a.snapshot()
            assert acker_type.restore(a.snapshot()).stats() == a.stats()
            drain(a)
            assert len(a) == 0
    assert 0 < refused < 500


def test_all_ackers_say_the_same_about_damage():
    """Several things are wrong at once: both look in the same order."""
    rng = np.random.default_rng(2)
    names = list(ENTRY)
    hostile_values = {"ack_val": [0], "task_id": [-1, 4], "message_id": [0, 9], "state": [0, 2, 7], "age": [0, 3, 200]}
    for _ in range(300):
        entries = [{"root_id": int(rng.integers(0, 40))} for _ in range(10)]
        for _ in range(3):
            name = names[rng.integers(1, len(names))]
            entries[rng.integers(0, 10)][name] = int(rng.choice(hostile_values.get(name, [1])))
        protocol = PROTOCOLS[rng.integers(0, 3)]
        said = []
        for each in BOTH:
            try:
                each.restore(encode_as_is(state(entries, protocol=protocol)))
            except SnapshotError as error:
                said.append(str(error))
            else:
                said.append("")
        assert said[0] == said[1]


def encode_as_is(given):
    """Encode, without clearing what entries without a TRACK should not have."""
    blob = bytearray(encode(given))
    n = len(given.entries.root_id)
    blob[HEADER_BYTES + 16 * n : HEADER_BYTES + 24 * n] = given.entries.message_id.astype("<i8").tobytes()
    blob[HEADER_BYTES + 24 * n : HEADER_BYTES + 28 * n] = given.entries.task_id.astype("<i4").tobytes()
    return seal(bytes(blob))


@pytest.mark.native_testing
@pytest.mark.parametrize("from_file", [False, True])
def test_restoring_survives_every_failing_allocation(scarce_memory, from_file):
    a = acker.Acker(seed=1)
    roots = np.arange(60_000)
    a.ingest(Kind.TRACK, roots, roots + 1, np.zeros(len(roots), int))
    blob = a.snapshot()
    failures = 0
    while True:
        fail_allocations_after(failures)
        try:
            b = acker.Acker.restore_from(io.BytesIO(blob)) if from_file else acker.Acker.restore(blob)
        except MemoryError:
            failures += 1
        else:
            break
    assert failures >= 8
    fail_allocations_after(-1)
    check_invariants(b)
    assert b.stats() == a.stats()


# --- the codec --------------------------------------------------------------------------------------------------------


def test_decode_gives_back_what_encode_was_given():
    entries = [{"root_id": root, "ack_val": INT64_MIN, "start": 2**32 - 1, "age": 2} for root in EXTREMES]
    given = state(entries, protocol="storm-0.9", high_water=9)
    taken = decode(encode(given))
    assert taken[:-1] == given[:-1]
    for got, expected, dtype in zip(taken.entries, given.entries, DTYPES, strict=True):
        assert got.dtype == dtype
        assert np.array_equal(got, expected)


def test_encode_clears_ids_without_a_track_and_takes_any_layout():
    entries = state([{"state": 0, "task_id": 9, "message_id": 9}, {"root_id": 8}]).entries
    strided = SnapshotEntries(*(np.repeat(column, 2)[::2] for column in entries))
    for given in (entries, strided):
        taken = decode(encode(state()._replace(counters=(1,) + (0,) * 10, entries=given))).entries
        assert taken.task_id.tolist() == [0, 3]
        assert taken.message_id.tolist() == [0, 42]
    assert entries.task_id.tolist() == [9, 3]


def test_both_codecs_cut_blocks_alike():
    a = acker.Acker(seed=1)
    roots = np.arange(2 * BLOCK_ENTRIES + 3)
    a.ingest(Kind.TRACK, roots, roots + 1, roots % 3, roots)
    assert encode(decode(a.snapshot())) == a.snapshot()


@pytest.mark.parametrize("made", [acker.Acker, lambda: acker.ShardedAcker(2)], ids=["Acker", "ShardedAcker"])
@pytest.mark.parametrize("send", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_acker_is_copied_by_snapshots_only(made, send):
    with pytest.raises(TypeError, match=r"Acker cannot be copied or pickled: use snapshot\(\) and restore\(\)"):
        send(made())
