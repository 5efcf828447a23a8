"""Expiry: buckets, rotation, and the deadline that follows from them."""

from fractions import Fraction

import numpy as np
import pytest

from acker import Kind, Outcome
from acker._engine.protocol import INT64_MAX, INT64_MIN, PROTOCOLS

every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)
every_count = pytest.mark.parametrize("buckets", range(2, 16))


def track(a, roots, now=0, value=5):
    n = len(roots)
    return a.ingest(Kind.TRACK, roots, [value] * n, [1] * n, roots, now_ms=now)


@every_protocol
@every_count
def test_an_untouched_tree_times_out_at_the_rotation_that_empties_its_bucket(acker_type, protocol, buckets):
    a = acker_type(protocol=protocol, buckets=buckets)
    for turn in range(3 * buckets):
        track(a, [turn], now=turn * 10)
        done = a.rotate(now_ms=turn * 10 + 9)
        born = turn - buckets + 1  # the rotation right after a TRACK is the first of `buckets`
        expected = [(born, born, 1, Outcome.TIMED_OUT, (buckets - 1) * 10 + 9)] if born >= 0 else []
        assert done.rows() == expected
    assert len(a) == buckets - 1


@every_count
def test_the_deadline_law(acker_type, buckets):
    """With P = T / (buckets - 1) a tree times out in (T, T * buckets / (buckets - 1)], wherever in P it was born."""
    timeout = 2520  # a multiple of 1 to 10
    period = Fraction(timeout, buckets - 1)
    for offset in (Fraction(0), period / 3, period / 2, period * 999 / 1000):
        a = acker_type(buckets=buckets)
        track(a, [1])
        rotations = next(turn for turn in range(1, 2 * buckets) if len(a.rotate()) == 1)
        age = rotations * period - offset
        assert timeout < age <= Fraction(timeout * buckets, buckets - 1)


@every_protocol
def test_rotate_reports_every_tracked_tree_of_death_row_once(acker_type, protocol):
    a = acker_type(protocol=protocol, buckets=2)
    roots = [0, -1, INT64_MIN, INT64_MAX, *range(1, 5000)]
    track(a, roots, now=100)
    a.rotate()
    track(a, range(10_000, 10_010), now=100)
    done = a.rotate(now_ms=107)
    assert sorted(done.root_id.tolist()) == sorted(roots)
    assert done.message_id.tolist() == done.root_id.tolist()
    assert set(done.task_id.tolist()) == {1}
    assert set(done.outcome.tolist()) == {Outcome.TIMED_OUT}
    assert set(done.elapsed_ms.tolist()) == {7}
    assert [
        column.dtype for column in (done.root_id, done.message_id, done.task_id, done.outcome, done.elapsed_ms)
    ] == [
        np.int64,
        np.int64,
        np.int32,
        np.int8,
        np.int64,
    ]
    assert (len(a), a.stats().open, a.stats().timed_out) == (10, 10, len(roots))


@pytest.mark.parametrize("protocol", ["storm", "storm-0.9"])
def test_entries_without_a_track_leave_as_orphans(acker_type, protocol):
    a = acker_type(protocol=protocol, buckets=2)
    a.ingest([Kind.OK, Kind.ANCHOR, Kind.FAIL], [1, 2, 3], [5, 5, 0])
    track(a, [4])
    assert len(a.rotate()) == 0
    assert a.rotate().rows() == [(4, 4, 1, Outcome.TIMED_OUT, 0)]
    assert (a.stats().orphans, a.stats().timed_out, len(a)) == (3, 1, 0)


def test_the_emptied_bucket_becomes_the_nursery(acker_type):
    a = acker_type(buckets=2)
    track(a, [1])
    a.rotate()
    track(a, [2])
    assert a.rotate().root_id.tolist() == [1]
    track(a, [3])
    assert a.rotate().root_id.tolist() == [2]
    assert a.rotate().root_id.tolist() == [3]


def test_a_timed_out_root_can_be_tracked_anew(acker_type):
    a = acker_type(buckets=2)
    for attempt in range(5):
        track(a, [1], now=attempt)
        a.rotate(now_ms=attempt)
        assert a.rotate(now_ms=attempt).rows() == [(1, 1, 1, Outcome.TIMED_OUT, 0)]
    assert (a.stats().tracked, a.stats().timed_out, a.stats().duplicates) == (5, 5, 0)


@every_protocol
def test_reset_timeout_keeps_a_slow_tree_for_ever(acker_type, protocol):
    a = acker_type(protocol=protocol, buckets=3)
    track(a, [1, 2])
    timed_out = []
    for _ in range(50):
        timed_out += a.rotate().root_id.tolist()
        a.ingest(Kind.RESET_TIMEOUT, [1], [0])
    assert timed_out == [2]
    assert 1 in a


def test_rotating_an_empty_acker_reports_nothing(acker_type):
    a = acker_type(buckets=15)
    before = a.stats()
    for _ in range(40):
        assert len(a.rotate(now_ms=-1)) == 0
    assert a.stats() == before


@pytest.mark.parametrize("now", [True, 1.0, "1", None, 2**63, -(2**63) - 1])
def test_a_bad_clock_is_refused_and_changes_nothing(acker_type, now):
    a = acker_type(buckets=2, seed=1)
    track(a, [1])
    a.rotate()
    before = a.snapshot()
    for call in (lambda: a.rotate(now_ms=now), lambda: a.ingest(Kind.OK, [1], [5], now_ms=now)):
        error = ValueError if isinstance(now, int) and not isinstance(now, bool) else TypeError
        with pytest.raises(error, match=f"now_ms: expected an integer from {INT64_MIN} to {INT64_MAX}, got"):
            call()
    assert a.snapshot() == before
    assert len(a.rotate(now_ms=np.int64(-5))) == 1
