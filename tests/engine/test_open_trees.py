"""Open trees against the rules in Python, and against the acker that takes messages one by one."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker import Acker, Kind
from acker._engine.columns import check_columns
from acker._engine.combiner import Cohorts, Combiner, Partials
from acker._engine.open_trees import OpenTrees, PrivateMemory, TreeCounts, TreeEntries
from acker._engine.protocol import INT64_MAX, INT64_MIN
from tests.native_testing import check_invariants
from tests.torture.micro_batches import TRACKED, Gathered, MicroBatches, Track
from tests.torture.timed_micro_batches import TimedMicroBatches

COLUMNS = ("i8", "i8", "u1", "i8", "i4", "i8")


def partials(rows):
    """Return partials of (root id, value, flags, track value, task id, message id) rows."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(COLUMNS)
    return Partials(*(np.array(column, dtype) for column, dtype in zip(columns, COLUMNS, strict=True)))


def rows_of(done):
    """Return completions as sorted tuples."""
    columns = (done.root_id, done.message_id, done.task_id, done.outcome, done.elapsed_ms)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


class Log:
    """What a log would keep: chunks of entries and of roots that are gone."""

    def __init__(self):
        self.chunks = {}
        self.next = 1

    def write(self, trees, changed, gone):
        self.chunks[self.next] = (trees.take(changed, self.next), gone.copy())
        self.next += 1

    def clean(self, trees):
        """Drop the oldest chunk, and write what only it showed once more."""
        number = min(self.chunks)
        entries, _ = self.chunks.pop(number)
        kept = trees.logged_before(number + 1, len(entries.root_id))
        assert trees.logged_before(number + 1, len(trees) + 1).tolist() == kept.tolist()
        self.write(trees, kept, np.empty((2, 0), np.int64))

    def read(self, before):
        trees = OpenTrees(seed=9)
        for number, (entries, gone) in sorted(self.chunks.items()):
            trees.erase(gone)
            trees.put(entries, number)
        trees.expire(before, before)
        return trees


def random_batch(rng, roots):
    chosen = rng.sample(range(-roots, roots), rng.randrange(min(60, roots)))
    return [
        (root, rng.randrange(4), rng.choice((0, 0, 1, 1, 2, 3, 4, 5, 7)), rng.randrange(4), rng.randrange(3), root + 5)
        for root in chosen
    ]


@pytest.mark.parametrize("high_water", [None, 0, 10])
@pytest.mark.parametrize("every_message_refreshes", [False, True], ids=["storm", "storm-0.9"])
@pytest.mark.parametrize("seed", range(6))
def test_it_does_what_the_model_does_and_the_log_gives_it_back(seed, every_message_refreshes, high_water):
    rng = random.Random(seed)
    model = MicroBatches(high_water=high_water, every_message_refreshes=every_message_refreshes)
    trees, log = OpenTrees(seed=seed), Log()
    counts, horizon = TreeCounts(), 0
    for now in range(0, 1200, 10):
        rows = random_batch(rng, 300)
        rows = [row if row[2] & TRACKED else (*row[:3], 0, 0, 0) for row in rows]
        merged = trees.merge(
            partials(rows), time_ms=now, high_water=high_water, every_message_refreshes=every_message_refreshes
        )
        expected = [
            done
            for root, value, flags, *track in rows
            for done in model.merge(root, Gathered(value, flags, Track(*track)), now)
        ]
        assert rows_of(merged.completions) == sorted(expected)
        counts = counts.plus(merged.counts)
        log.write(trees, merged.changed, merged.gone)
        if rng.random() < 0.3:
            horizon = max(horizon, now - rng.randrange(50))
            expired = trees.expire(horizon, now)
            assert rows_of(expired.completions) == sorted(model.expire(horizon, now))
            assert expired.oldest_ms == min((entry.start_ms for entry in model.entries.values()), default=now)
            counts = counts.plus(expired.counts)
        if rng.random() < 0.7:
            log.clean(trees)
        if rng.random() < 0.2:
            trees = log.read(horizon)
        check_invariants(trees)
        assert (len(trees), trees.open) == (len(model.entries), model.open)
        assert counts._asdict() == model.counts
    assert counts.acked > 100
    assert all(root in trees for root in model.entries)
    assert 10**9 not in trees


TIMED_MESSAGE = st.tuples(
    st.sampled_from([0, 0, 1, 2, 2, 3, 4]),
    st.sampled_from([0, -1, INT64_MIN, INT64_MAX, 1, 2, 1 << 40]),
    st.sampled_from([0, 1, 2, 3, -1, INT64_MIN]),
    st.sampled_from([0, 1, 2**31 - 1]),
    st.sampled_from([0, 1, 2, 3, -1, INT64_MIN]),
    st.integers(-40, 40),
)


def timed_partials(messages, cohorts):
    """Return the partials of (kind, root id, value, task id, message id, event time) rows."""
    combiner = Combiner(resets=True, cohorts=cohorts)
    if messages:
        *columns, event_ms = map(list, zip(*messages, strict=True))
        combiner.add_unchecked(check_columns(*columns), np.array(event_ms, np.int64))
    return combiner.partials()[0]


def gathered_by_root(timed):
    """Yield each root with what timed partials say of it in the order of their times."""
    rows = sorted(zip(*(column.tolist() for column in timed), strict=True), key=lambda row: (row[0], row[-1]))
    for root, of_root in itertools.groupby(rows, key=lambda row: row[0]):
        yield root, [(at, Gathered(value, flags, Track(*track))) for _, value, flags, *track, at in of_root]


@given(
    st.lists(st.lists(TIMED_MESSAGE, max_size=30), max_size=4),
    st.sampled_from([Cohorts(0, 2), Cohorts(10, 2), Cohorts(7, 5)]),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
)
def test_with_event_times_it_does_what_the_model_does(batches, cohorts, high_water, every_message_refreshes):
    model = TimedMicroBatches(cohorts, high_water=high_water, every_message_refreshes=every_message_refreshes)
    trees, log, counts = OpenTrees(seed=5), Log(), TreeCounts()
    for number, messages in enumerate(batches, 1):
        timed = timed_partials(messages, cohorts)
        merged = trees.merge(
            timed, time_ms=0, high_water=high_water, every_message_refreshes=every_message_refreshes, cohorts=cohorts
        )
        expected = [done for root, said in gathered_by_root(timed) for done in model.merge(root, said)]
        assert merged.completions.rows() == expected
        log.write(trees, merged.changed, merged.gone)
        horizon = 10 * number - 40
        expired = trees.expire(horizon, 40)
        assert rows_of(expired.completions) == sorted(model.expire(horizon, 40))
        counts = counts.plus(merged.counts).plus(expired.counts)
        check_invariants(trees)
        held = sorted(model.held())
        assert (len(trees), trees.open) == (len(model), model.open)
        # All of them were logged, so these are all positions.
        columns = trees.take(trees.logged_before(log.next, len(trees) + 1), number)
        assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == held
        assert len(log.read(horizon)) == len(held)
    assert counts._asdict() == model.counts


def test_entries_are_known_by_root_and_start():
    trees = OpenTrees()
    roots = np.arange(6, dtype=np.int64)
    task_id = np.array([0, 1, -1, -2, 2, 3], np.int32)
    trees.put(TreeEntries(roots, roots, roots, roots, roots, task_id), 1)
    trees.erase(np.array([[1, 99, 4, 5], [1, 99, 4, 4]]))
    assert (len(trees), trees.open) == (4, 2)
    later = roots[:2] + 7
    trees.put(TreeEntries(roots[:2], later, later, roots[:2], later, np.array([-1, 5], np.int32)), 2)
    columns = trees.take(trees.logged_before(9, 10), 3)
    assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == [
        (0, 7, 7, 0, 7, -1),
        (1, 8, 8, 1, 8, 5),
        (2, 2, 2, 2, 2, -1),
        (3, 3, 3, 3, 3, -2),
        (5, 5, 5, 5, 5, 3),
    ]
    assert (len(trees), trees.open) == (5, 2)


@pytest.mark.parametrize("protocol", ["storm", "storm-0.9"])
def test_one_message_a_micro_batch_is_the_acker_of_one_message_after_the_other(protocol):
    rng = random.Random(protocol)
    trees, acker = OpenTrees(), Acker(protocol=protocol, buckets=2)
    refreshes = protocol == "storm-0.9"
    counts = TreeCounts()
    for step in range(4000):
        now = step * 10
        root, value = rng.randrange(60), rng.randrange(1, 4)
        kind = rng.choice(list(Kind))
        combiner = Combiner(resets=True)
        combiner.add([kind], [root], [value], [1], [7])
        merged = trees.merge(combiner.partials()[0], time_ms=now, every_message_refreshes=refreshes)
        assert rows_of(merged.completions) == rows_of(acker.ingest([kind], [root], [value], [1], [7], now_ms=now))
        counts = counts.plus(merged.counts)
        if step % 50 == 49:  # Two buckets: what was placed before the last rotation but one goes.
            expired = trees.expire(now - 490, now)
            assert rows_of(expired.completions) == rows_of(acker.rotate(now_ms=now))
            counts = counts.plus(expired.counts)
    stats = acker.stats()
    assert {name: getattr(stats, name) for name in TreeCounts._fields} == counts._asdict()
    assert (len(trees), trees.open) == (stats.pending, stats.open)
    assert counts.orphans > 100


def test_a_table_grows_shrinks_and_keeps_everything():
    trees = OpenTrees()
    roots = np.random.default_rng(1).permutation(np.arange(50_000, dtype=np.int64))
    for number, part in enumerate(np.array_split(roots, 20)):
        zeros = np.zeros(len(part), np.int64)
        trees.put(TreeEntries(part, part, zeros, zeros, zeros + number, np.full(len(part), 1, np.int32)), 1)
        check_invariants(trees)
    assert len(trees) == trees.open == 50_000
    grown = trees.nbytes
    expired = trees.expire(10, 10)
    assert len(trees) == 25_000
    assert len(expired.completions) == 25_000
    trees.shrink()
    assert trees.nbytes == grown, "half of it is used"
    trees.erase(np.array([roots, np.ones_like(roots)]))
    check_invariants(trees)
    assert len(trees) == 25_000, "an entry is known by its start too"
    trees.erase(np.array([roots[:-300], np.zeros_like(roots[:-300])]))
    assert trees.nbytes == grown
    trees.shrink()
    check_invariants(trees)
    kept = set(roots[-300:].tolist())
    assert len(trees) == 300 and all(root in trees for root in kept)
    assert trees.nbytes == OpenTrees().nbytes
    trees.expire(20, 20)
    trees.shrink()
    assert (len(trees), trees.nbytes) == (0, OpenTrees().nbytes)


def test_an_expiry_counts_the_trees_that_stay_by_age():
    trees, now = OpenTrees(), 10**9
    ages = [0, 999, 1_000, 9_999, 10_000, 59_999, 60_000, 599_999, 10**8, 2 * 10**8]
    starts = np.array([now - age for age in ages])
    roots = np.arange(len(ages))
    task_id = np.full(len(ages), 3, np.int32)
    task_id[1] = -1  # without a TRACK
    task_id[-1] = -2
    since = np.full(len(ages), now)
    since[3] = 0
    trees.put(TreeEntries(roots, roots, roots, starts, since, task_id), 1)
    expired = trees.expire(1, now)
    assert expired.completions.elapsed_ms.tolist() == [9_999]
    assert expired.ages == (1, 1, 2, 2, 0, 0, 0, 1)
    assert expired.oldest_ms == now - 2 * 10**8
    assert sum(expired.ages) == trees.open


def test_rows_that_settle_at_once_or_are_known_take_no_room():
    trees = OpenTrees()
    empty = trees._table.capacity
    roots = range(50_000)
    done = trees.merge(partials([(root, 5, 1, 5, 0, root) for root in roots]), time_ms=1)
    assert len(done.completions) == 50_000 and trees._table.capacity == empty
    trees.merge(partials([(root, 1, 1, 5, 0, root) for root in roots]), time_ms=2)
    held = trees._table.capacity
    assert len(trees) == 50_000
    done = trees.merge(partials([(root, 4, 0, 0, 0, 0) for root in roots]), time_ms=3)
    assert len(done.completions) == 50_000 and trees._table.capacity == held
    # Some of each, one row more than there is room for.
    capacity = held
    trees.merge(partials([(root, 1, 1, 5, 0, root) for root in range(capacity)]), time_ms=4)
    assert trees._table.capacity == held
    mixed = [(0, 4, 0, 0, 0, 0), (capacity, 5, 1, 5, 0, 1), (capacity + 1, 3, 0, 0, 0, 0)]
    trees.merge(partials(mixed), time_ms=5)
    check_invariants(trees)
    assert len(trees) == capacity and trees._table.capacity > held and capacity + 1 in trees


def test_memory_can_be_handed_on():
    handed = PrivateMemory(10)
    with pytest.raises(ValueError, match="no table"):
        OpenTrees.attach(handed)
    trees = OpenTrees()
    trees.merge(partials([(7, 1, 0, 0, 0, 0)]), time_ms=5)
    trees.token = bytes(range(16))
    with pytest.raises(ValueError, match="16 bytes"):
        trees.token = b"short"
    again = OpenTrees.attach(trees.memory)
    assert 7 in again
    assert again.token == bytes(range(16))
    assert len(again) == 1


def test_no_memory_leaves_it_as_it_was():
    def refuse(size_bytes):
        if size_bytes > 1_000_000:
            raise MemoryError
        return PrivateMemory(size_bytes)

    trees = OpenTrees(refuse)
    trees.merge(partials([(7, 1, 0, 0, 0, 0)]), time_ms=5)
    with pytest.raises(MemoryError):
        trees.merge(partials([(root, 1, 0, 0, 0, 0) for root in range(50_000)]), time_ms=6)
    check_invariants(trees)
    assert len(trees) == 1
    with pytest.raises(ValueError, match="no room for so many rows"):
        trees._table.merge(*partials([(root, 1, 0, 0, 0, 0) for root in range(50_000)]), 6, None, False, None)
    assert len(trees) == 1


def test_a_table_that_cannot_be_made_smaller_stays(monkeypatch):
    trees = OpenTrees()
    roots = np.arange(50_000)
    trees.merge(partials([(root, 1, 0, 0, 0, 0) for root in roots.tolist()]), time_ms=5)
    trees.erase(np.array([roots[1:], np.full(len(roots) - 1, 5)]))
    grown = trees.nbytes

    def refuse(size_bytes):
        raise OSError("no descriptor is left")

    monkeypatch.setattr(trees, "_allocate", refuse)
    trees.shrink()
    assert (len(trees), trees.nbytes) == (1, grown) and 0 in trees


def test_the_time_since_any_start_fits_an_int64():
    trees = OpenTrees()
    trees.merge(partials([(7, 5, TRACKED, 1, 2, 3)]), time_ms=-(2**63))
    done = trees.merge(partials([(7, 4, 0, 0, 0, 0)]), time_ms=2**63 - 1).completions
    assert done.elapsed_ms.tolist() == [2**63 - 1]
