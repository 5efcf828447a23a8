"""Capacity: what high_water refuses, what it never drops, and how an overloaded acker comes back."""

import numpy as np
import pytest

from acker import Kind, Outcome
from acker._engine.protocol import HIGH_WATER_MAX, PROTOCOLS

every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)
any_order = pytest.mark.parametrize("protocol", ["storm", "storm-0.9"])


def track(a, roots, value=5, now=0):
    roots = list(roots)
    n = len(roots)
    return a.ingest(Kind.TRACK, roots, [value] * n, [1] * n, roots, now_ms=now).rows()


def rejection(root, message=None):
    return (root, root if message is None else message, 1, Outcome.REJECTED, 0)


@every_protocol
@pytest.mark.parametrize("high_water", [0, 1, 5])
def test_a_track_is_rejected_while_more_than_2h_trees_are_open(acker_type, protocol, high_water):
    a = acker_type(protocol=protocol, high_water=high_water)
    fits = 2 * high_water + 1
    assert track(a, range(fits + 3), now=9) == [rejection(root) for root in range(fits, fits + 3)]
    assert (len(a), a.stats().open, a.stats().tracked, a.stats().rejected) == (fits, fits, fits, 3)
    # One leaves, one fits.
    a.ingest(Kind.FAIL, [0], [0])
    assert track(a, [100, 101]) == [rejection(101)]


@every_protocol
def test_a_duplicate_is_ignored_and_not_rejected(acker_type, protocol):
    a = acker_type(protocol=protocol, high_water=0)
    track(a, [1])
    assert track(a, [1]) == []
    assert (a.stats().duplicates, a.stats().rejected) == (1, 0)


@any_order
def test_a_track_with_value_0_is_rejected_too(acker_type, protocol):
    a = acker_type(protocol=protocol, high_water=0)
    track(a, [1])
    assert track(a, [2], value=0) == [rejection(2)]


@any_order
def test_a_rejected_track_changes_nothing(acker_type, protocol):
    a = acker_type(protocol=protocol, high_water=0, buckets=2)
    a.ingest(Kind.OK, [7], [5])
    a.rotate()
    track(a, [1])
    # Root 7 is known and has no TRACK: it stays as it is, where it is.
    assert track(a, [7]) == [rejection(7)]
    a.rotate()
    assert 7 not in a
    assert a.stats().orphans == 1


@any_order
def test_entries_without_a_track_do_not_cause_rejections(acker_type, protocol):
    a = acker_type(protocol=protocol, high_water=1)
    a.ingest(Kind.OK, range(100, 105), [1] * 5)
    assert (len(a), a.stats().open) == (5, 0)
    assert track(a, [1, 2, 3]) == []
    assert track(a, [4]) == [rejection(4)]


@any_order
@pytest.mark.parametrize("kind", [Kind.OK, Kind.ANCHOR, Kind.FAIL])
@pytest.mark.parametrize("high_water", [0, 1, 5])
def test_a_message_about_an_unknown_root_is_dropped_above_4h_entries(acker_type, protocol, kind, high_water):
    a = acker_type(protocol=protocol, high_water=high_water)
    fits = 4 * high_water + 1
    assert len(a.ingest(kind, range(fits + 2), [1] * (fits + 2))) == 0
    assert (len(a), a.stats().dropped, a.stats().unknown) == (fits, 2, 0)
    assert fits not in a


@any_order
def test_what_is_held_is_never_dropped(acker_type, protocol):
    a = acker_type(protocol=protocol, high_water=0)
    track(a, [1])
    a.ingest(Kind.OK, [2], [5])
    assert (len(a), a.stats().dropped) == (1, 1)
    assert a.ingest(Kind.OK, [1], [5]).outcome.tolist() == [Outcome.ACKED]


def test_a_tree_whose_message_was_dropped_times_out(acker_type):
    a = acker_type(high_water=0, buckets=2)
    a.ingest(Kind.OK, [2, 1], [9, 5])  # 2 is held, so 1 is dropped
    assert track(a, [1]) == []
    a.rotate()
    assert a.rotate().rows() == [(1, 1, 1, Outcome.TIMED_OUT, 0)]


@every_protocol
def test_reset_timeout_of_an_unknown_root_is_unknown_and_not_dropped(acker_type, protocol):
    a = acker_type(protocol=protocol, high_water=0)
    track(a, [1])
    a.ingest(Kind.RESET_TIMEOUT, [2], [0])
    assert (a.stats().unknown, a.stats().dropped) == (1, 0)


@every_protocol
@pytest.mark.parametrize("high_water", [None, HIGH_WATER_MAX])
def test_without_high_water_there_is_no_limit(acker_type, protocol, high_water):
    a = acker_type(protocol=protocol, high_water=high_water)
    assert track(a, range(20_000)) == []
    assert (len(a), a.stats().rejected) == (20_000, 0)


@every_protocol
def test_after_ten_periods_of_overload_a_normal_load_is_accepted_again(acker_type, protocol):
    """Trees that nobody finishes, at 50 times the capacity, with late messages of the rejected ones; then 10 a turn."""
    buckets, high_water, rows = 3, 50, 5000
    a = acker_type(protocol=protocol, buckets=buckets, high_water=high_water, seed=1)
    next_root = 0
    held, sizes = [], []
    for _ in range(10):
        for _ in range(4):
            batch = np.arange(next_root, next_root + rows)
            next_root += rows
            a.ingest(Kind.TRACK, batch, batch + 1, np.zeros(rows, np.int32))
            a.ingest(Kind.OK, batch, np.ones(rows, np.int64))
            held.append(len(a))
            sizes.append(a.nbytes)
        a.rotate()
    assert a.stats().rejected > 10 * 4 * (rows - 2 * high_water - 2)
    assert max(held) <= 6 * high_water + 2  # (2h + 1) tracked ones and (4h + 1) without a TRACK
    assert max(sizes) < 2**20  # all that came would take more than 6 MB

    rejections = []
    for _ in range(3 * buckets):
        before = a.stats().rejected
        for _ in range(10):
            track(a, [next_root])
            a.ingest(Kind.ANCHOR, [next_root], [0])
            a.ingest(Kind.OK, [next_root], [0 if protocol == "fsshelter" else 5])
            next_root += 1
        rejections.append(a.stats().rejected - before)
        a.rotate()
    assert rejections[buckets:] == [0] * (2 * buckets)
    assert len(a) == 0
