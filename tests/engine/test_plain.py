"""The twins in plain Python against what they stand for: the same calls give the same bytes, in the same order."""

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker import Acker, Kind, ReferenceAcker, ShardedAcker, _core
from acker._engine import plain
from acker._engine.protocol import INT64_MAX, INT64_MIN
from acker.errors import ArgumentValueError

ROOTS = st.sampled_from([0, -1, INT64_MIN, INT64_MAX, 1, 2, 1 << 40])
VALUES = st.sampled_from([0, 1, 2, 3, -1, INT64_MIN])
TASKS = st.sampled_from([0, 1, 2**31 - 1])
MESSAGE = st.tuples(st.sampled_from([0, 0, 1, 2, 2, 3, 4]), ROOTS, VALUES, TASKS, VALUES)
MESSAGE_DTYPES = ("i1", "i8", "i8", "i4", "i8")
PARTIAL = st.tuples(ROOTS, VALUES, st.integers(0, 7), VALUES, TASKS, VALUES)
PARTIAL_DTYPES = ("i8", "i8", "u1", "i8", "i4", "i8")
SEED = 5


def columns_of(rows, dtypes):
    columns = zip(*rows, strict=True) if rows else [()] * len(dtypes)
    return [np.array(column, dtype) for column, dtype in zip(columns, dtypes, strict=True)]


def assert_same(native, twin):
    """Compare what two calls returned: nested tuples of arrays and integers."""
    if isinstance(native, tuple):
        assert isinstance(twin, tuple)
        for one, other in zip(native, twin, strict=True):
            assert_same(one, other)
    elif isinstance(native, np.ndarray):
        assert (native.dtype, native.tolist()) == (twin.dtype, twin.tolist())
    else:
        assert native == twin


@given(st.lists(st.lists(MESSAGE, max_size=30), max_size=4), st.booleans(), st.integers(1, 9), st.booleans())
def test_combine_tables_hold_and_give_the_same(batches, resets, shards, include_pending):
    native, twin = (core.CombineTable(SEED, resets) for core in (_core, plain))
    merged = [core.CombineTable(SEED, resets) for core in (_core, plain)]
    for batch in batches:
        columns = columns_of(batch, MESSAGE_DTYPES)
        assert native.add(*columns) == twin.add(*columns)
        assert (len(native), native.duplicates) == (len(twin), twin.duplicates)
        for table, source in zip(merged, (native, twin), strict=True):
            table.merge(*source.partials(1)[0])
    for one, other in ((native, twin), merged):
        assert_same(one.partials(shards), other.partials(shards))
        assert_same(one.settle(include_pending), other.settle(include_pending))
        assert one.duplicates == other.duplicates


def test_columns_may_be_left_out():
    for core in (_core, plain):
        table = core.CombineTable(SEED, False)
        ones = np.ones(3, np.int64)
        table.add(np.full(3, Kind.OK, np.int8), ones, ones, None, None)
        table.add(np.zeros(3, np.int8), ones, ones, np.zeros(3, np.int32), None)
        assert [column.tolist() for column in table.settle(True)] == [[1], [0], [0], [0]]
        assert table.duplicates == 2
        assert table.nbytes > 0


@given(st.lists(st.integers(INT64_MIN, INT64_MAX)), st.integers(1, 1024))
def test_shards_are_the_same(roots, shards):
    roots = np.array(roots, np.int64)
    assert_same(_core.shards_of(roots, shards), plain.shards_of(roots, shards))


@given(st.binary(max_size=200), st.integers(0, 2**64 - 1))
def test_checksums_are_the_same(data, seed):
    for given_ in (data, np.frombuffer(data, np.uint8)):
        assert _core.xxh64(given_, seed) == plain.xxh64(given_, seed)


def both_tables():
    """Return one empty table of each kind."""
    return [core.OpenTreesTable(bytearray(core.open_trees_bytes(100)), 100, SEED) for core in (_core, plain)]


@given(
    st.lists(
        st.tuples(st.lists(PARTIAL, max_size=8, unique_by=lambda row: row[0]), st.integers(0, 3), st.booleans()),
        max_size=8,
    ),
    st.sampled_from([None, 0, 1]),
    st.booleans(),
)
def test_open_trees_tables_say_the_same_of_every_change(batches, high_water, every_message_refreshes):
    tables = both_tables()
    for number, (rows, age, take) in enumerate(batches, 1):
        columns, now = columns_of(rows, PARTIAL_DTYPES), 10 * number
        native, twin = (table.merge(*columns, None, now, high_water, every_message_refreshes, None) for table in tables)
        assert_same(native, twin)
        if take:
            assert_same(*(table.take(native[1], number) for table in tables))
        assert_same(*(table.logged_before(number, 3) for table in tables))
        assert_same(*(table.expire(now - 10 * age, now) for table in tables))
        assert all(table.check_invariants() for table in tables)
        assert len({(len(table), table.open) for table in tables}) == 1


def test_open_trees_tables_put_erase_and_copy_the_same():
    copies = both_tables()
    for table, copy in zip(both_tables(), copies, strict=True):
        roots = np.arange(6, dtype=np.int64)
        table.put(roots, roots, roots, roots, roots, np.array([0, 1, -1, -2, 2, 3], np.int32), 1)
        table.erase(np.array([1, 99, 4, 5]), np.array([1, 99, 4, 4]))
        later = roots[:2] + 7
        table.put(roots[:2], later, later, roots[:2], later, np.array([-1, 5], np.int32), 2)
        table.copy_to(copy)
        with pytest.raises(ValueError, match="an empty table"):
            table.copy_to(copy)
    held = [copy.take(copy.logged_before(9, 10), 3) for copy in copies]
    assert_same(held[0], held[1])
    assert [copy.open for copy in copies] == [2, 2]


@given(
    st.lists(st.lists(st.tuples(MESSAGE, st.integers(-40, 40)), max_size=30), max_size=4),
    st.sampled_from([(0, 2), (10, 2), (7, 5)]),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
)
def test_tables_with_event_times_do_the_same(batches, cohorts, high_water, every_message_refreshes):
    tables = both_tables()
    for number, batch in enumerate(batches, 1):
        times = np.array([at for _, at in batch], np.int64)
        combined = []
        for core in (_core, plain):
            combiner = core.CombineTable(SEED, True, cohorts)
            merged = core.CombineTable(SEED, True, cohorts)
            combiner.add(*columns_of([message for message, _ in batch], MESSAGE_DTYPES), times)
            for _ in range(2):
                merged.merge(*combiner.partials(1)[0])
            assert len(merged) == len(combiner)
            combined.append(combiner.partials(3))
        assert_same(*combined)
        partials = combined[0][0]
        order = np.lexsort((partials[6], partials[0]))
        columns = [column[order] for column in partials]
        found = [table.merge(*columns, 0, high_water, every_message_refreshes, cohorts) for table in tables]
        assert_same(found[0][0], found[1][0])
        assert_same(found[0][3], found[1][3])
        assert sorted(found[0][2].T.tolist()) == sorted(found[1][2].T.tolist())
        taken = [
            sorted(zip(*table.take(one[1], number), strict=True)) for table, one in zip(tables, found, strict=True)
        ]
        assert taken[0] == taken[1]
        assert_same(*(table.expire(10 * number - 40, 40)[1:] for table in tables))
        assert all(table.check_invariants() for table in tables)
        assert len({(len(table), table.open) for table in tables}) == 1


def test_an_open_trees_table_keeps_its_token_and_is_found_by_nobody_else():
    memory = bytearray(plain.open_trees_bytes(1000))
    table = plain.OpenTreesTable(memory, 1000)
    assert table.token == bytes(16)
    table.token = bytes(range(16))
    assert table.token == bytes(range(16))
    with pytest.raises(ValueError, match="16 bytes"):
        table.token = b"short"
    with pytest.raises(ValueError, match="holds no table"):
        plain.OpenTreesTable(memory)


@pytest.mark.parametrize(("compiled", "twin"), [(Acker, ReferenceAcker), (ShardedAcker, plain.ShardedAcker)])
def test_ackers_can_be_called_alike(compiled, twin):
    names = [name for name in dir(compiled) if not name.startswith("_")]
    assert len(names) > 10
    for name in [*names, "__init__"]:
        native, other = getattr(compiled, name), getattr(twin, name)
        if callable(native):
            parameters = [inspect.signature(one).parameters.values() for one in (native, other)]
            shapes = [[(one.name, one.kind, one.default) for one in each] for each in parameters]
            assert shapes[0] == shapes[1], name


@given(st.lists(st.lists(MESSAGE, max_size=20), max_size=4), st.sampled_from(["storm", "storm-0.9", "fsshelter"]))
def test_the_sharded_twin_ends_the_trees_of_each_root_alike(batches, protocol):
    native = ShardedAcker(3, 1, protocol=protocol, seed=SEED)
    twin = plain.ShardedAcker(3, 1, protocol=protocol, seed=SEED)
    for now, batch in enumerate(batches):
        columns = columns_of(batch, MESSAGE_DTYPES)
        ended = [one.ingest(*columns, now_ms=now).rows() for one in (native, twin)]
        # Sorted by root alone, which keeps the order among the trees of one.
        assert sorted(ended[0], key=lambda row: row[0]) == sorted(ended[1], key=lambda row: row[0])
        assert native.stats() == twin.stats()
        twin.check_invariants()
        late = [sorted(one.rotate(now_ms=now).rows()) for one in (native, twin)]
        assert late[0] == late[1]


def test_the_sharded_twin_checks_its_arguments_and_passes_snapshots_on(tmp_path):
    assert plain.sharded.SHARDS_MAX == _core.SHARDS_MAX
    for shards, threads in ((0, None), (257, None), (2, 3)):
        for make in (ShardedAcker, plain.ShardedAcker):
            with pytest.raises(ArgumentValueError, match=r"(shards|threads): expected an integer from 1 to \d+"):
                make(shards, threads)
    twin = plain.ShardedAcker(2, seed=SEED)
    twin.ingest(Kind.TRACK, [1, 2, 3], [4, 5, 6], [0, 1, 2])
    twin.snapshot_to(tmp_path / "snapshot")
    for again in (
        plain.ShardedAcker.restore(twin.snapshot(), 4, 2),
        plain.ShardedAcker.restore_from(tmp_path / "snapshot", 4, 2),
        ShardedAcker.restore(twin.snapshot(), 4, 2),
    ):
        assert (again.shards, again.threads, len(again)) == (4, 2, 3)
        assert sorted(again.ingest(Kind.OK, [3, 1], [6, 4]).rows()) == [(1, 0, 0, 0, 0), (3, 0, 2, 0, 0)]
    assert repr(twin) == "ShardedAcker(protocol='storm', buckets=3, high_water=None): 3 pending, 2 shards, 1 threads"


def test_the_invariants_of_the_reference_can_fail():
    for spoil in (
        lambda acker: acker._trees.buckets[1].update(acker._trees.buckets[0]),
        lambda acker: acker._trees.counts.update(tracked=7),
        lambda acker: setattr(acker._trees, "open", 0),
    ):
        acker = ReferenceAcker()
        acker.ingest(Kind.TRACK, [1], [2], [3])
        acker.check_invariants()
        spoil(acker)
        with pytest.raises(AssertionError, match="contradict themselves"):
            acker.check_invariants()
