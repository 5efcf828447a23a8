"""The combiner against the plain-Python oracle, and what must never change: shards and ranks."""

import functools
import itertools
import operator
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker import AckerMemoryError, BusyError, Kind, _core
from acker._engine.columns import check_columns
from acker._engine.combiner import SHARDS_MAX, Cohorts, Combiner, Partials, shard_of
from acker._engine.protocol import INT64_MAX, INT64_MIN
from acker.errors import ArgumentTypeError, ArgumentValueError, ColumnTypeError, ColumnValueError
from tests.native_testing import fail_allocations_after
from tests.oracles import settle_as_sets, track_rank

# Few, so that messages of one tree meet and TRACKs are doubled; the extremes by name.
ROOTS = [0, -1, INT64_MIN, INT64_MAX, 1, 2, 1 << 40, 2 << 40]
VALUES = [0, 1, 2, 3, -1, INT64_MIN, INT64_MAX]

rows = st.tuples(
    st.sampled_from([0, 0, 1, 2, 2, 3, 4]),
    st.sampled_from(ROOTS),
    st.sampled_from(VALUES),
    st.sampled_from([0, 1, 2**31 - 1]),
    st.sampled_from([0, 42, INT64_MIN, INT64_MAX]),
)


def columns_of(some):
    """Return rows as columns."""
    kind, root_id, value, task_id, message_id = zip(*some, strict=True) if some else [()] * 5
    return (
        np.array(kind, np.int8),
        np.array(root_id, np.int64),
        np.array(value, np.int64),
        np.array(task_id, np.int32),
        np.array(message_id, np.int64),
    )


def combiner_of(some, **options):
    combiner = Combiner(**options)
    combiner.add(*columns_of(some))
    return combiner


def settled_rows(combiner, **options):
    return sorted(combiner.settle(**options).rows())


@given(st.lists(rows, max_size=60), st.booleans())
def test_a_set_of_messages_is_judged_as_by_the_reference(some, include_pending):
    expected = settle_as_sets(*columns_of(some), include_pending=include_pending).rows()
    assert settled_rows(combiner_of(some), include_pending=include_pending) == expected


@given(st.data(), st.lists(rows, max_size=60), st.integers(1, 5), st.sampled_from([1, 2, 7, 100]))
def test_neither_order_nor_partitions_nor_shards_have_a_say(data, some, parts, shards):
    part_of = data.draw(st.lists(st.integers(0, parts - 1), min_size=len(some), max_size=len(some)))
    shuffled = data.draw(st.permutations(list(zip(part_of, some, strict=True))))
    pieces = [combiner_of([row for part, row in shuffled if part == i]).partials(shards) for i in range(parts)]
    merged = []
    for shard in range(shards):
        combiner = Combiner()
        for piece in data.draw(st.permutations(pieces)):
            combiner.merge(piece[shard])
        assert not set(combiner.partials()[0].root_id) & {root for root, *_ in merged}
        merged += combiner.settle(include_pending=True).rows()
    assert sorted(merged) == settle_as_sets(*columns_of(some), include_pending=True).rows()


def test_a_doubled_track_is_harmless():
    tree = [(0, 7, 5, 1, 42), (2, 7, 6, 0, 0), (2, 7, 3, 0, 0)]
    assert settled_rows(combiner_of(tree)) == [(7, 42, 1, 0, 0)]
    assert settled_rows(combiner_of([*tree, tree[0]])) == [(7, 42, 1, 0, 0)]
    # With the OKs missing, two equal TRACKs must not cancel each other: Storm acks such a tree.
    assert settled_rows(combiner_of([tree[0], tree[0]])) == []
    assert settled_rows(combiner_of([tree[0], tree[0]]), include_pending=True) == [(7, 42, 1, 4, 0)]


def test_of_different_tracks_the_one_of_least_rank_counts_whole():
    tracks = [(5, 1, 42), (5, 1, 43), (5, 2, 42), (-5, 1, 42), (INT64_MIN, 2**31 - 1, INT64_MAX)]
    for chosen in (tracks[:2], tracks[1:3], tracks[2:], tracks):
        value, task_id, message_id = min(chosen, key=lambda track: track_rank(*track))
        for order in (chosen, chosen[::-1]):
            part = combiner_of([(0, 7, v, t, m) for v, t, m in order]).partials()[0]
            assert (part.track_value[0], part.task_id[0], part.message_id[0]) == (value, task_id, message_id)


def test_acked_wins_over_failed_and_failed_over_pending():
    done = settled_rows(
        combiner_of([(0, 1, 0, 0, 10), (3, 1, 0, 0, 0), (3, 2, 0, 0, 0), (0, 2, 9, 0, 20), (0, 3, 9, 0, 30)])
    )
    assert done == [(1, 10, 0, 0, 0), (2, 20, 0, 1, 0)]


def test_reset_timeout_makes_no_root_known():
    combiner = combiner_of([(4, 7, 1, 0, 0), (2, 8, 1, 0, 0)])
    assert len(combiner) == 1
    assert combiner.messages == 2


def test_resets_are_gathered_on_request():
    messages = [(4, 7, 1, 0, 0), (4, 7, 2, 0, 0), (0, 8, 5, 1, 9), (4, 8, 1, 0, 0), (2, 8, 5, 0, 0), (3, 9, 1, 0, 0)]
    combiner = combiner_of(messages, resets=True)
    part = combiner.partials()[0]
    # What a RESET_TIMEOUT carries is not read, and a tree that had one is more than finished.
    columns = (part.root_id, part.flags, part.value, part.track_value)
    assert [column.tolist() for column in columns] == [[7, 8, 9], [4, 5, 2], [0, 5, 0], [0, 5, 0]]
    assert settled_rows(combiner, include_pending=True) == [(8, 9, 1, 0, 0)]
    merged = Combiner()
    merged.merge(part)
    merged.merge(part)
    assert merged.partials()[0].flags.tolist() == [4, 5, 2]


def test_duplicates_are_tracks_of_roots_that_had_one():
    tracks = [(0, 7, 5, 1, 42), (0, 8, 5, 1, 42), (0, 7, 6, 0, 1), (2, 7, 5, 0, 0), (0, 7, 5, 1, 42)]
    combiner = combiner_of(tracks)
    assert combiner.duplicates == 2
    combiner.add(*columns_of(tracks))
    assert combiner.duplicates == 6
    merged = Combiner()
    merged.merge(combiner.partials()[0])
    assert merged.duplicates == 0
    merged.merge(combiner_of([(0, 7, 5, 1, 42), (2, 8, 0, 0, 0), (0, 9, 0, 0, 0)]).partials()[0])
    assert merged.duplicates == 1


@given(st.lists(rows, max_size=60), st.lists(st.integers(0, 2), max_size=60))
def test_duplicates_and_resets_do_not_depend_on_who_saw_what(some, part_of):
    whole = combiner_of(some, resets=True)
    merged, own = Combiner(), 0
    for part in range(3):
        places = [*part_of, *[0] * len(some)]
        piece = combiner_of([row for place, row in zip(places, some, strict=False) if place == part], resets=True)
        merged.merge(piece.partials()[0])
        own += piece.duplicates
    assert own + merged.duplicates == whole.duplicates
    assert len(merged) == len(whole) == len({root for _, root, *_ in some})
    flags = [dict(zip(*map(np.ndarray.tolist, one.partials()[0][:3:2]), strict=True)) for one in (merged, whole)]
    assert flags[0] == flags[1]


def test_a_scalar_kind_and_left_out_columns():
    combiner = Combiner()
    combiner.add(Kind.OK, [1, 2], [3, 4])
    combiner.add(Kind.TRACK, [1], [3], [0])
    assert combiner.settle().rows() == [(1, 0, 0, 0, 0)]
    combiner.add([], [], [])
    assert (len(combiner), combiner.messages) == (2, 3)


def test_many_roots_grow_the_table():
    rng = np.random.default_rng(5)
    root_id = rng.integers(INT64_MIN, INT64_MAX, 50_000)
    combiner = Combiner()
    combiner.add(Kind.OK, root_id, root_id)
    before = combiner.nbytes
    combiner.add(Kind.TRACK, root_id[::-1], root_id[::-1], np.zeros(50_000, np.int32), root_id[::-1])
    assert len(combiner) == 50_000 and combiner.nbytes == before
    done = combiner.settle()
    assert np.array_equal(done.root_id, root_id) and np.array_equal(done.message_id, root_id)
    assert not done.outcome.any() and not done.elapsed_ms.any()
    assert combiner.native_ns > 0


@pytest.mark.parametrize("stride", [1, 1 << 32, 1 << 40, 1 << 54])
def test_structured_roots_spread_over_shards(stride):
    root_id = np.arange(4096, dtype=np.int64) * stride
    counts = np.bincount(shard_of(np.unique(root_id), 8), minlength=8)
    # A fair spread of n over 8 stays within 6 standard deviations of n / 8.
    share = len(np.unique(root_id)) / 8
    assert abs(counts - share).max() <= 6 * share**0.5


def test_shards_are_what_they_have_always_been():
    # Written down from SplitMix64 as published: the seed 0 gives E220A8397B1DCDAF first.
    assert shard_of([0], SHARDS_MAX).tolist() == [0xE220 >> 6]
    roots = [0, 1, 2, -1, INT64_MIN, INT64_MAX]
    assert shard_of(roots, SHARDS_MAX).tolist() == [904, 580, 605, 915, 288, 169]
    assert shard_of(roots, 7).tolist() == [6, 3, 4, 6, 1, 1]
    assert shard_of(roots, 1).tolist() == [0] * 6
    assert len(shard_of([], 3)) == 0


def test_ranks_are_what_they_have_always_been():
    assert track_rank(0, 1, 2) == 2360248972619621018
    assert track_rank(-1, 2**31 - 1, INT64_MIN) == -1707086678468058895
    assert track_rank(5, 1, 2) ^ track_rank(0, 1, 2) == 5


def test_pieces_of_bytes_are_hashed_each_by_itself():
    data = np.frombuffer("abcünï".encode() + bytes(range(100)), np.uint8)
    ends = np.array([0, 0, 1, 3, 3, 8, 108])
    expected = [_core.xxh64(data[begin:end], 42) for begin, end in itertools.pairwise(ends.tolist())]
    hashes = _core.xxh64_each(data, ends, 42)
    assert hashes.dtype == np.int64 and hashes.view(np.uint64).tolist() == expected
    assert _core.xxh64_each(data[:0], np.array([0]), 42).tolist() == []
    for wrong in ([], [0, 110], [3, 2], [-1, 4], [0, 2**62]):
        with pytest.raises(ValueError, match="ends: "):
            _core.xxh64_each(data, np.array(wrong, np.int64), 42)


def test_xxh64_gives_the_published_hashes():
    # The test vectors of the xxHash library: empty input, and texts shorter and longer than its 32-byte stripe.
    assert _core.xxh64(b"", 0) == 0xEF46DB3751D8E999
    assert _core.xxh64(b"a", 0) == 0xD24EC4F1A98C6E5B
    assert _core.xxh64(b"abc", 0) == 0x44BC2CF5AD770999
    assert _core.xxh64(b"The quick brown fox jumps over the lazy dog", 0) == 0x0B242D361FDA71BC


def test_in_partials_the_finished_trees_come_first():
    tracks = [(0, root, 0 if root % 3 else 1, 0, root) for root in range(20)]
    fails = [(3, root, 0, 0, 0) for root in range(0, 20, 5)]
    part = combiner_of([(2, 100, 0, 0, 0), *tracks, *fails]).partials()[0]
    finished = [root for root in range(20) if root % 3 and root % 5]
    others = [100, *(root for root in range(20) if not (root % 3 and root % 5))]
    assert part.root_id.tolist() == finished + others


def test_partials_are_split_by_shard_in_order_of_first_messages():
    root_id = np.arange(1000)
    combiner = Combiner(seed=3)
    combiner.add(Kind.ANCHOR, root_id, root_id + 1)
    parts = combiner.partials(16)
    assert len(parts) == 16
    for shard, part in enumerate(parts):
        assert (shard_of(part.root_id, 16) == shard).all()
        assert (np.diff(part.root_id) > 0).all()
        assert np.array_equal(part.value, part.root_id + 1)
    assert sum(len(part.root_id) for part in parts) == 1000


def test_an_empty_combiner():
    combiner = Combiner()
    assert len(combiner) == 0
    assert len(combiner.settle(include_pending=True)) == 0
    assert [len(part.root_id) for part in combiner.partials(3)] == [0, 0, 0]
    combiner.merge(combiner.partials()[0])
    assert len(combiner) == 0


@pytest.mark.parametrize(
    ("columns", "error", "text"),
    [
        (([0, 5], [1, 1], [1, 1], [0, 0]), ColumnValueError, "kind: row 1: expected a kind from 0 to 4, got 5"),
        (([2, 2], [1], [1, 1]), ColumnValueError, "root_id: expected 2 rows as in kind, got 1"),
        (([2], [1.0], [1]), ColumnTypeError, "root_id: row 0: expected int64, got float"),
        (([2], [1], [2**63]), ColumnValueError, "value: row 0: expected int64"),
        (([0], [1], [1], [-1]), ColumnValueError, "task_id: row 0: expected an int32 >= 0, got -1"),
        (([2, 0], [1, 1], [1, 1]), ColumnValueError, "task_id: row 1: expected an int32 >= 0 for a TRACK"),
        (([0], [1], [1], [0], [True]), ColumnTypeError, "message_id: row 0: expected int64, got bool"),
    ],
)
def test_bad_columns_are_named_and_nothing_is_added(columns, error, text):
    combiner = combiner_of([(2, 1, 1, 0, 0)])
    with pytest.raises(error) as caught:
        combiner.add(*columns)
    assert str(caught.value).startswith(text)
    assert (len(combiner), combiner.messages) == (1, 1)


def test_bad_arguments():
    for shards, error in ((0, ArgumentValueError), (SHARDS_MAX + 1, ArgumentValueError), (1.0, ArgumentTypeError)):
        with pytest.raises(error, match="shards: expected an integer from 1 to 1024"):
            Combiner().partials(shards)
        with pytest.raises(error, match="shards: expected an integer from 1 to 1024"):
            shard_of([1], shards)
    for seed, error in ((-1, ArgumentValueError), (2**64, ArgumentValueError), ("1", ArgumentTypeError)):
        with pytest.raises(error, match="seed: expected an integer"):
            Combiner(seed=seed)


def test_partials_that_are_none():
    good = combiner_of([(0, 1, 1, 0, 0)]).partials()[0]
    combiner = Combiner()
    for bad, error, text in (
        (good[:5], ColumnValueError, "partials: expected 6 columns, or 7 with event times, got 5"),
        (good._replace(event_ms=np.zeros(2, np.int64)), ColumnValueError, "event_ms: expected shape (1,), got (2,)"),
        (good._replace(value=good.value.astype(np.int32)), ColumnTypeError, "value: expected a NumPy array of int64"),
        (good._replace(flags=[1]), ColumnTypeError, "flags: expected a NumPy array of uint8, got list"),
        (good._replace(task_id=np.zeros(2, np.int32)), ColumnValueError, "task_id: expected shape (1,), got (2,)"),
        (
            good._replace(root_id=np.zeros((1, 1), np.int64)),
            ColumnValueError,
            "root_id: expected shape (n,), got (1, 1)",
        ),
    ):
        with pytest.raises(error) as caught:
            combiner.merge(bad)
        assert str(caught.value).startswith(text)
    assert len(combiner) == 0


@pytest.fixture
def failing_allocations():
    yield fail_allocations_after
    fail_allocations_after(-1)


@pytest.mark.native_testing
@pytest.mark.parametrize("successes", range(6))
def test_out_of_memory_says_how_far_it_came_and_harms_nothing(failing_allocations, successes):
    root_id = np.arange(20_000)
    combiner = Combiner(seed=1)
    combiner.add(Kind.TRACK, root_id[:10], root_id[:10], np.zeros(10, np.int32))
    failing_allocations(successes)
    with pytest.raises(AckerMemoryError) as caught:
        combiner.add(Kind.OK, root_id, root_id)
    applied = caught.value.rows_applied
    failing_allocations(-1)
    assert 10 <= len(combiner) == max(applied, 10) < 20_000
    assert combiner.messages == 10 + applied
    combiner.add(Kind.OK, root_id[applied:], root_id[applied:])
    assert combiner.settle().rows() == [(root, 0, 0, 0, 0) for root in range(10)]
    assert len(combiner) == 20_000


@pytest.mark.native_testing
def test_out_of_memory_in_merge(failing_allocations):
    partials = combiner_of([(2, root, 1, 0, 0) for root in range(3000)]).partials()[0]
    combiner = Combiner()
    failing_allocations(3)
    with pytest.raises(AckerMemoryError) as caught:
        combiner.merge(partials)
    failing_allocations(-1)
    applied = caught.value.rows_applied
    assert 0 < applied == len(combiner) < 3000
    combiner.merge(partials.rows(applied, 3000))
    assert len(combiner) == 3000


def test_a_second_thread_is_refused(monkeypatch):
    combiner = combiner_of([(0, 1, 0, 0, 0)])
    inside, leave = threading.Event(), threading.Event()

    class SlowTable:
        add, partials, nbytes = combiner._table.add, combiner._table.partials, combiner._table.nbytes
        duplicates = added = 0

        def __len__(self):
            return 1

        def settle(self, include_pending):
            inside.set()
            assert leave.wait(60)
            return [np.zeros(0, np.int64)] * 4

    monkeypatch.setattr(combiner, "_table", SlowTable())
    thread = threading.Thread(target=combiner.settle)
    thread.start()
    assert inside.wait(60)
    for call in (combiner.settle, combiner.partials, lambda: combiner.add(Kind.OK, [1], [1])):
        with pytest.raises(BusyError, match="another thread is inside this Combiner"):
            call()
    leave.set()
    thread.join()


def test_a_combiner_with_cohorts_wants_event_times():
    combiner = Combiner(cohorts=Cohorts(timeout_ms=10, buckets=3))
    with pytest.raises(ColumnValueError, match="event_ms: expected a column, since trees expire by event time"):
        combiner.merge(combiner_of([(0, 1, 1, 0, 0)]).partials()[0])
    assert len(combiner) == 0


@given(st.lists(st.tuples(rows, st.integers(-40, 40)), max_size=40), st.sampled_from([(0, 2), (10, 2), (7, 5)]))
def test_with_cohorts_each_root_has_a_row_for_each_cohort(some, cohorts):
    timeout_ms, buckets = cohorts
    combiner, merged = (Combiner(resets=True, cohorts=Cohorts(*cohorts)) for _ in range(2))
    combiner.add_unchecked(check_columns(*columns_of([row for row, _ in some])), np.array([at for _, at in some], "i8"))
    for _ in range(2):
        merged.merge(combiner.partials()[0])
    expected = {}
    for row, at in some:
        cohort = at * (buckets - 1) // timeout_ms if timeout_ms else 0
        expected.setdefault((row[1], cohort), []).append((row, at))
    for held, times in ((combiner, 1), (merged, 2)):
        found = zip(*map(np.ndarray.tolist, held.partials()[0]), strict=True)
        assert sorted((root, at, value, flags) for root, value, flags, *_, at in found) == sorted(
            (
                root,
                min(at for _, at in of_cohort),
                functools.reduce(operator.xor, (row[2] for row, _ in of_cohort if row[0] in (1, 2)), 0) * (2 - times),
                functools.reduce(operator.or_, ({0: 1, 3: 2, 4: 4}.get(row[0], 0) for row, _ in of_cohort)),
            )
            for (root, _), of_cohort in expected.items()
        )


def test_partials_are_what_they_say():
    part = combiner_of([(0, 1, 9, 2, 3), (2, 1, 5, 0, 0), (3, 1, 0, 0, 0), (1, 2, 4, 0, 0)]).partials()[0]
    assert isinstance(part, Partials)
    assert [column.dtype.str[1:] for column in part[:6]] == ["i8", "i8", "u1", "i8", "i4", "i8"]
    assert part.event_ms is None
    assert [column.tolist() for column in part[:6]] == [[1, 2], [5, 4], [3, 0], [9, 0], [2, 0], [3, 0]]
