"""Laws that need no oracle, for the acker and its reference."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import acker
from acker import Kind, Outcome
from acker._engine.completions import Completions
from acker._engine.protocol import INT64_MAX, INT64_MIN, PROTOCOLS
from tests.oracles import settle_as_sets, track_rank

both = pytest.mark.parametrize("cls", [acker.Acker, acker.ReferenceAcker], ids=["native", "reference"])

int64s = st.integers(INT64_MIN, INT64_MAX)
roots = st.sampled_from([0, -1, INT64_MIN, INT64_MAX, 1, 2, 3, 4]) | int64s
values = st.sampled_from([0, 1, 2, 3]) | int64s
rows = st.tuples(st.integers(0, 4), roots, values, st.integers(0, 2**31 - 1), int64s)
batches = st.lists(rows, max_size=60)
options = st.fixed_dictionaries(
    {
        "protocol": st.sampled_from(PROTOCOLS),
        "buckets": st.integers(2, 15),
        "high_water": st.sampled_from([None, 0, 1, 5]),
        "seed": st.integers(0, 2**64 - 1),
    }
)


def columns(batch):
    return list(zip(*batch, strict=True)) if batch else [[]] * 5


def drained(a):
    return [sorted(a.rotate(now_ms=99).rows()) for _ in range(a.buckets)], a.stats()


@both
@given(options=options, batch=batches, cuts=st.lists(st.integers(0, 60), max_size=5))
def test_one_batch_equals_any_split_of_it(cls, options, batch, cuts):
    whole, split = cls(**options), cls(**options)
    expected = whole.ingest(*columns(batch), now_ms=5)
    bounds = [0, *sorted(min(cut, len(batch)) for cut in cuts), len(batch)]
    parts = [split.ingest(*columns(batch[a:b]), now_ms=5) for a, b in itertools.pairwise(bounds)]
    assert Completions.concat(parts) == expected
    assert drained(split) == drained(whole)


@both
@given(options=options, batch=batches)
def test_one_batch_equals_its_rows_one_by_one(cls, options, batch):
    whole, one_by_one = cls(**options), cls(**options)
    parts = [one_by_one.ingest(*columns([row])) for row in batch]
    assert Completions.concat(parts) == whole.ingest(*columns(batch))
    assert drained(one_by_one) == drained(whole)


@both
@given(options=options, batch=batches)
def test_the_seed_has_no_say(cls, options, batch):
    one, other = cls(**options), cls(**{**options, "seed": options["seed"] ^ 1})
    assert one.ingest(*columns(batch)) == other.ingest(*columns(batch))
    assert drained(one) == drained(other)


@both
@given(options=options, before=batches, after=batches)
def test_a_restored_acker_goes_on_the_same(cls, options, before, after):
    a = cls(**options)
    a.ingest(*columns(before), now_ms=1)
    a.rotate(now_ms=2)
    b = cls.restore(a.snapshot())
    assert b.ingest(*columns(after), now_ms=3) == a.ingest(*columns(after), now_ms=3)
    assert drained(b) == drained(a)


@both
@given(batch=batches, order=st.randoms(use_true_random=False), protocol=st.sampled_from(PROTOCOLS))
def test_rows_of_different_roots_commute(cls, batch, order, protocol):
    by_root = {}
    for row in batch:
        by_root.setdefault(row[1], []).append(row)
    turns = [row[1] for row in batch]
    order.shuffle(turns)
    queues = {root: iter(of_root) for root, of_root in by_root.items()}
    shuffled = [next(queues[root]) for root in turns]
    one, other = cls(protocol=protocol), cls(protocol=protocol)
    reported = (a.ingest(*columns(some)).rows() for a, some in ((one, batch), (other, shuffled)))
    first, second = map(sorted, reported)
    assert first == second
    assert drained(one) == drained(other)


@st.composite
def trees(draw):
    """A tree with unique random ids: the values of its TRACK and of each tuple's OK."""
    parents = [draw(st.integers(-1, index - 1)) for index in range(draw(st.integers(1, 12)))]
    ids = draw(st.lists(st.integers(1, 2**63 - 1), min_size=len(parents), max_size=len(parents), unique=True))
    # Independent over GF(2), whatever Hypothesis draws: each has a bit of its own.
    ids = [(tuple_id >> 12 << 12) | 1 << index for index, tuple_id in enumerate(ids)]
    track, oks = 0, list(ids)
    for tuple_id, parent in zip(ids, parents, strict=True):
        if parent < 0:
            track ^= tuple_id
        else:
            oks[parent] ^= tuple_id
    return [(Kind.TRACK, track), *((Kind.OK, value) for value in oks)]


@both
@given(tree=trees(), root=roots, order=st.randoms(use_true_random=False))
@pytest.mark.parametrize("protocol", ["storm", "storm-0.9"])
def test_a_tree_is_acked_at_its_last_message_in_any_order(cls, protocol, tree, root, order):
    order.shuffle(tree)
    a = cls(protocol=protocol)
    reported = [a.ingest([kind], [root], [value], [3], [42]).rows() for kind, value in tree]
    assert reported == [[]] * (len(tree) - 1) + [[(root, 42, 3, Outcome.ACKED, 0)]]
    assert len(a) == 0


@both
@given(tree=trees(), lost=st.integers(0, 12), order=st.randoms(use_true_random=False))
def test_a_tree_that_lost_a_message_is_not_acked(cls, tree, lost, order):
    kind, _ = tree.pop(lost % len(tree))
    order.shuffle(tree)
    a = cls()
    kinds, tree_values = zip(*tree, strict=True) if tree else ([], [])
    assert len(a.ingest(kinds, [7] * len(tree), tree_values, [3] * len(tree))) == 0
    tracked = kind is not Kind.TRACK
    ended = [row for told in drained(a)[0] for row in told]
    assert ended == ([(7, 0, 3, Outcome.TIMED_OUT, 99)] if tracked else [])


@both
@given(options=options, batch=batches)
def test_every_track_is_answered_once_or_open(cls, options, batch):
    a = cls(**options)
    done = a.ingest(*columns(batch))
    told, stats = drained(a)
    ended = [*done.rows(), *(row for rows in told for row in rows)]
    tracks = sum(row[0] == Kind.TRACK for row in batch)
    assert len(ended) + stats.duplicates == tracks
    assert (stats.pending, stats.open) == (0, 0)


def in_any_order(done):
    return sorted(done.rows())


@given(batch=batches, order=st.randoms(use_true_random=False))
def test_combined_messages_have_no_order(batch, order):
    expected = settle_as_sets(*columns(batch), include_pending=True)
    order.shuffle(batch)
    assert settle_as_sets(*columns(batch), include_pending=True) == expected


@both
@given(forest=st.lists(trees(), max_size=5), fails=st.sets(st.integers(0, 4)), lost=st.sets(st.integers(0, 60)))
def test_combined_messages_equal_the_acker_with_each_track_moved_last(cls, forest, fails, lost):
    batch = [(kind, root, value, root + 1, root + 2) for root, tree in enumerate(forest) for kind, value in tree]
    batch = [row for index, row in enumerate(batch) if index not in lost]
    batch += [(Kind.FAIL, root, 0, 0, 0) for root in fails]
    a = cls()
    done = a.ingest(*columns(sorted(batch, key=lambda row: row[0] == Kind.TRACK)))
    assert in_any_order(done) == in_any_order(settle_as_sets(*columns(batch)))
    pending = settle_as_sets(*columns(batch), include_pending=True)
    open_trees = int(np.count_nonzero(pending.outcome == Outcome.PENDING))
    assert open_trees == a.stats().open


@given(tracks=st.lists(st.tuples(values, st.integers(0, 2**31 - 1), int64s), min_size=1, max_size=5))
def test_combined_takes_the_track_of_least_rank(tracks):
    value, task, message = min(tracks, key=lambda track: track_rank(*track))
    batch = [(Kind.TRACK, 7, *track) for track in tracks] + [(Kind.OK, 7, value, 0, 0)]
    assert settle_as_sets(*columns(batch)).rows() == [(7, message, task, Outcome.ACKED, 0)]


def test_combined_worked_by_hand():
    kinds = [0, 2, 0, 3, 0, 1, 2, 4, 0, 3, 2]
    some_roots = [3, 3, 1, 1, 2, 9, 9, 9, 5, 5, 5]
    some_values = [5, 5, 6, 0, 8, 1, 1, 0, 4, 0, 4]
    done = settle_as_sets(kinds, some_roots, some_values, [1] * 11, range(11), include_pending=True)
    assert done.rows() == [
        (1, 2, 1, Outcome.FAILED, 0),
        (2, 4, 1, Outcome.PENDING, 0),
        (3, 0, 1, Outcome.ACKED, 0),
        (5, 8, 1, Outcome.ACKED, 0),
    ]
    assert settle_as_sets([], [], []) == Completions.empty()
