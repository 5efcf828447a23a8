"""Private objects built or called by hand: exceptions, whatever is passed, and never a crash of the interpreter.

Each group runs in this process: before the checks that it tests, it ended it.
"""

import mmap
import random
import struct

import numpy as np
import pytest

from acker import Acker, Kind, _core
from acker._engine.combiner import Combiner
from acker._engine.open_trees import OpenTrees
from tests.native_testing import check_invariants, is_sound

ERRORS = (TypeError, ValueError, OverflowError, AssertionError, AttributeError, IndexError, MemoryError, BufferError)


def longs(*values):
    return np.array(values, np.int64)


def ints(*values):
    return np.array(values, np.int32)


def small(*values):
    return np.array(values, np.int8)


def flags(*values):
    return np.array(values, np.uint8)


def core():
    return _core.Core(0, 3, None, 1, "portable")


def refuses(*calls):
    for call in calls:
        with pytest.raises(ERRORS):
            call()


# --- the acker --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("buckets", [0, 1, 16, 2**31])
@pytest.mark.parametrize("protocol", [0, -1, 3])
def test_a_core_of_options_that_there_are_not(protocol, buckets):
    refuses(
        lambda: _core.Core(protocol, buckets, None, 1, "avx2"),
        lambda: _core.Core(protocol, buckets, None, 1, "avx2", 2, 1),
    )


@pytest.mark.parametrize(("shards", "threads"), [(0, 0), (0, 1), (1, 0), (257, 1), (2, 3), (2**32 - 1, 1), (-1, 1)])
def test_a_sharded_core_of_no_or_too_many_shards(shards, threads):
    refuses(lambda: _core.Core(0, 3, None, 1, "avx2", shards, threads))


def test_objects_without_their_init():
    kinds = [_core.Core, _core.CombineTable, _core.OpenTreesTable, _core.Gups]
    refuses(*kinds, *(lambda kind=kind: kind.__new__(kind) for kind in kinds))


@pytest.mark.parametrize("make", [core, lambda: _core.Core(0, 3, None, 1, "avx2", 2, 1)])
def test_counters_that_are_no_eleven(make):
    each = make()
    refuses(*(lambda bad=bad: each.set_counters(bad) for bad in (None, (), (1,) * 10, (1,) * 12, ("x",) * 11)))
    refuses(lambda: each.set_counters((2**63,) + (0,) * 10), lambda: each.rotate(None), lambda: each.contains(2**64))
    check_invariants(each)


@pytest.mark.parametrize(
    "cohorts", [(-1, 3), (2**63 // 16, 3), (-(2**63), 2), (1000, 1), (1000, 0), (1000, 16), (1,), 5]
)
def test_cohorts_that_no_moment_can_be_parted_by(cohorts):
    one = longs(1), longs(1), flags(0), longs(0), ints(-1), longs(0), longs(-(2**63)), 0, None, False
    table = _core.OpenTreesTable(bytearray(_core.open_trees_bytes(4)), 4, 1)
    refuses(lambda: _core.CombineTable(1, False, cohorts), lambda: table.merge(*one, cohorts))
    assert len(table) == 0


def test_a_shard_of_none():
    refuses(
        lambda: _core.shards_of(None, 3),
        lambda: _core.xxh64(None, 0),
        lambda: _core.xxh64_each(None, longs(0), 0),
        lambda: _core.xxh64_each(b"", None, 0),
    )


@pytest.mark.parametrize("make", [_core.SnapshotWriter, lambda: _core.SnapshotWriter.__new__(_core.SnapshotWriter)])
def test_a_snapshots_writer_made_by_hand(make):
    refuses(
        lambda: make().__enter__(),
        lambda: make().__exit__(None, None, None),
        lambda: make().begin(1),
        lambda: make().next_block(),
        lambda: make().whole(b""),
        lambda: make().entries,
        lambda: make().counters,
    )


def test_a_snapshots_writer_outside_of_its_block():
    a = Acker()
    a.ingest(Kind.TRACK, range(20_000), [5] * 20_000, [0] * 20_000)
    writer = a._core.writer()
    refuses(lambda: writer.__exit__(None, None, None))
    with writer:
        writer.begin(7)
        refuses(lambda: writer.begin(7), lambda: writer.whole(None))
        assert writer.next_block()
    refuses(writer.next_block, lambda: writer.__exit__(None, None, None))
    for _ in range(3):
        a.rotate()
    with writer:
        refuses(writer.next_block)
        writer.begin(7)
        assert writer.next_block() == b"", "it looks at the tables as they are now"
    assert len(a.ingest(Kind.OK, [1], [5])) == 0, "nobody is inside"


@pytest.mark.parametrize("make", [_core.SnapshotReader, lambda: _core.SnapshotReader.__new__(_core.SnapshotReader)])
def test_a_snapshots_reader_made_by_hand(make):
    refuses(lambda: make().read(bytes(42), 1), lambda: make().read(None, 1))


@pytest.mark.parametrize("entries", [0, 2, 8193, 2**63, 2**63 + 1, 2**64 - 1])
def test_a_snapshots_reader_of_another_number_of_entries(entries):
    for size in (0, 8, 42):
        refuses(lambda size=size: core().reader(1, 0).read(bytes(size), entries))


def test_gups_of_no_memory_and_columns_of_unequal_length():
    refuses(lambda: _core.Gups(2**64 - 1, 1), lambda: _core.Gups(2**62, 1))
    gups = _core.Gups(0, 1)
    refuses(lambda: gups.update(longs(1, 2), longs(1)), lambda: gups.update(None, None))
    gups.update(longs(1), longs(7))
    assert gups.checksum() == 7


# --- combiners and open trees ---------------------------------------------------------------------


COLUMNS = (small(0, 2), longs(1, 2), longs(3, 4), ints(0, 0), longs(5, 6))
PARTIALS = (longs(1, 2), longs(3, 4), flags(1, 1), longs(5, 6), ints(0, 0), longs(7, 8))
ENTRIES = (longs(1, 2), longs(3, 4), longs(5, 6), longs(0, 0), longs(0, 0), ints(0, 0))


def spoilt(columns, optional=()):
    """Yield the columns with one of them cut, lengthened, left out or of another type."""
    for place, column in enumerate(columns):
        others = [column[:1], column[:0], np.concatenate([column, column]), column.astype(np.float64), "no column"]
        for other in others if place in optional else [*others, None]:
            yield (*columns[:place], other, *columns[place + 1 :])


def test_a_combine_table_refuses_columns_that_do_not_belong_together():
    table = _core.CombineTable(1, False)
    for columns in spoilt(COLUMNS, optional={3, 4}):
        refuses(lambda columns=columns: table.add(*columns))
    for columns in spoilt(PARTIALS):
        refuses(lambda columns=columns: table.merge(*columns))
    assert len(table) == 0, "nothing was added"
    refuses(lambda: table.partials(0), lambda: table.partials(-1))
    combiner = Combiner()
    for columns in spoilt(COLUMNS, optional={3, 4}):
        refuses(lambda columns=columns: combiner.add_unchecked(columns))


def table_of(capacity=64):
    return _core.OpenTreesTable(mmap.mmap(-1, _core.open_trees_bytes(capacity)), capacity, 1)


def test_an_open_trees_table_refuses_columns_that_do_not_belong_together():
    table = table_of()
    for columns in spoilt(PARTIALS):
        refuses(lambda columns=columns: table.merge(*columns, None, 0, None, False, None))
    for columns in spoilt(ENTRIES):
        refuses(lambda columns=columns: table.put(*columns, 1))
    refuses(
        lambda: table.put(*ENTRIES[:5], ints(-3, 0), 1),
        lambda: table.erase(None, None),
        lambda: table.erase(longs(2), longs(0, 0)),
        lambda: table.copy_to(None),
        lambda: table.logged_before(1, -1),
        lambda: table.merge(*PARTIALS, None, 0, -1, False, None),
    )
    with pytest.raises(ERRORS):
        table.token = None
    assert len(table) == 0
    check_invariants(table)


def test_an_open_trees_table_gives_no_entry_that_is_not_there():
    table = table_of()
    table.put(*ENTRIES, 1)
    table.erase(longs(2), ENTRIES[3][ENTRIES[0] == 2])
    for bad in (1, 2, 63, 64, 2**31, 2**32 - 1):
        refuses(lambda bad=bad: table.take(np.array([0, bad], np.uint32), 5))
    refuses(lambda: table.take(None, 5))
    table.put(longs(9), longs(9), longs(9), longs(0), longs(0), ints(0), 1)
    check_invariants(table)
    assert len(table) == 2


@pytest.mark.parametrize("capacity", [2**31 + 1, 2**60, 2**62, 2**63, 2**64 - 1, 2**64, -1])
def test_a_table_of_a_capacity_that_overflows(capacity):
    refuses(
        lambda: _core.open_trees_bytes(capacity),
        lambda: _core.OpenTreesTable(mmap.mmap(-1, 4096), capacity, 1),
    )


def test_memory_that_is_none_or_too_small_or_not_aligned():
    memory = bytearray(_core.open_trees_bytes(8) + 8)
    address = np.frombuffer(memory, np.uint8).ctypes.data % 8
    refuses(
        lambda: _core.OpenTreesTable(None, 8),
        lambda: _core.OpenTreesTable(None),
        lambda: _core.OpenTreesTable(bytearray(8), 8),
        lambda: _core.OpenTreesTable(memoryview(memory)[(9 - address) % 8 or 8 : -1][: _core.open_trees_bytes(8)], 8),
        lambda: _core.OpenTreesTable(bytearray(4)),
        lambda: _core.OpenTreesTable(bytes(4096), 8),
    )


# --- flat memory that somebody has written to -------------------------------------------------------------------------


class Memory:
    def __init__(self, data):
        self.view = mmap.mmap(-1, len(data))
        self.view[:] = data

    def close(self):
        self.view.close()


def make_table():
    """Return the bytes of a table with used, vacant and untouched positions."""
    size = _core.open_trees_bytes(64)
    memory = mmap.mmap(-1, size)
    table = _core.OpenTreesTable(memory, 64, 1)
    roots = np.arange(40)
    zeros = np.zeros(40, np.int64)
    table.put(roots, roots, roots, zeros, zeros, (np.arange(40) % 5 - 2).astype(np.int32), 1)
    table.erase(np.arange(0, 40, 3), np.zeros(14, np.int64))
    return bytes(memory)


WHOLE = make_table()
FIELDS = {"capacity": 8, "slots": 16, "size": 32, "open": 40, "top": 48}


def attach(data):
    trees = OpenTrees.attach(Memory(data), lambda size: Memory(bytes(size)))
    check_invariants(trees)
    return trees


def refused():
    return pytest.raises((ValueError, AssertionError), match=r"the memory holds no table|contradict themselves")


def count_used(trees):
    """Call everything that reads the memory; return whether it agrees with itself."""
    trees.expire(10, 10) if len(trees) % 2 else None
    more = np.arange(1000, 1000 + 30)
    zeros = np.zeros(30, np.int64)
    trees.erase(np.array([np.arange(0, 45, 2), np.zeros(23, np.int64)]))
    trees.reserve(30)
    trees._table.put(more, more, more, zeros, zeros, np.zeros(30, np.int32), 2)
    position = trees.logged_before(3, 100)
    trees.take(position, 3)
    trees.expire(10, 10)
    return is_sound(trees)


@pytest.mark.native_testing
def test_whole_memory_is_attached_to():
    trees = attach(WHOLE)
    assert len(trees) == 26 and count_used(trees)


@pytest.mark.native_testing
@pytest.mark.parametrize("value", [0, 1, 2, 39, 41, 63, 65, 2**31, 2**31 + 1, 2**32, 2**61, 2**63, 2**64 - 1])
@pytest.mark.parametrize("field", FIELDS)
def test_a_header_that_lies_is_refused(field, value):
    data = bytearray(WHOLE)
    if struct.unpack_from("<Q", data, FIELDS[field])[0] == value:
        return
    struct.pack_into("<Q", data, FIELDS[field], value)
    with refused():
        attach(data)


@pytest.mark.native_testing
def test_an_index_that_is_full_or_points_elsewhere_is_refused():
    start = 128 + 64 * 48
    (slots,) = struct.unpack_from("<Q", WHOLE, FIELDS["slots"])
    for word in (1, 64, 65, 2**32 - 1, 2**32, 2**64 - 1):
        data = bytearray(WHOLE)
        struct.pack_into(f"<{slots}Q", data, start, *[word] * slots)
        with refused():
            attach(data)


@pytest.mark.native_testing
@pytest.mark.parametrize("position", [0, 1, 40, 41, 2**31, 2**32 - 2, 2**32 - 1])
def test_a_chain_of_free_positions_that_ends_elsewhere_is_refused(position):
    data = bytearray(WHOLE)
    struct.pack_into("<I", data, 56, position)
    if data == WHOLE:
        return
    with refused():
        attach(data)


@pytest.mark.native_testing
def test_hostile_bytes_end_in_an_exception_or_in_a_table_that_agrees_with_itself():
    rng = random.Random(5)
    refused = 0
    for _ in range(3000):
        data = bytearray(WHOLE)
        for _ in range(rng.randrange(1, 4)):
            place = rng.choice([rng.randrange(len(data)), rng.randrange(128), 128 + 64 * 48 + rng.randrange(1024)])
            data[min(place, len(data) - 1)] = rng.choice([0, 1, 255, rng.randrange(256)])
        try:
            trees = attach(data)
        except (ValueError, AssertionError):
            refused += 1
        else:
            assert count_used(trees)
    assert 500 < refused < 3000
