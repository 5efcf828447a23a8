"""stats(): every counter counts what it says, and only that; and the law that ties them together."""

import dataclasses
import random

import pytest

from acker import Kind, Stats
from acker._engine.protocol import COUNTERS

ZERO = Stats(**dict.fromkeys([*COUNTERS, "pending", "open"], 0))
TRACK, ANCHOR, OK, FAIL, RESET_TIMEOUT = Kind.TRACK, Kind.ANCHOR, Kind.OK, Kind.FAIL, Kind.RESET_TIMEOUT


def send(a, *messages):
    """Ingest messages (kind, root id, value), all of task 0."""
    kinds, roots, values = zip(*messages, strict=True)
    a.ingest(kinds, roots, values, [0] * len(kinds))


def test_a_new_acker_has_counted_nothing(acker_type):
    assert acker_type().stats() == ZERO


@pytest.mark.parametrize(
    ("protocol", "messages", "rotations", "expected"),
    [
        ("storm", [(TRACK, 1, 5)], 0, {"tracked": 1, "pending": 1, "open": 1}),
        ("storm", [(TRACK, 1, 5), (OK, 1, 5)], 0, {"tracked": 1, "acked": 1}),
        ("storm", [(TRACK, 1, 5), (FAIL, 1, 0)], 0, {"tracked": 1, "failed": 1}),
        ("storm", [(TRACK, 1, 5)], 3, {"tracked": 1, "timed_out": 1}),
        ("storm", [(TRACK, 1, 0)], 0, {"tracked": 1, "acked": 1, "empty": 1}),
        ("storm-0.9", [(TRACK, 0, 0), (TRACK, 0, 0)], 0, {"tracked": 2, "acked": 2, "empty": 2}),
        ("storm", [(OK, 1, 5), (TRACK, 1, 5)], 0, {"tracked": 1, "acked": 1}),
        ("storm", [(FAIL, 1, 0), (TRACK, 1, 0)], 0, {"tracked": 1, "acked": 1}),
        ("storm", [(OK, 1, 5), (OK, 1, 5), (TRACK, 1, 0)], 0, {"tracked": 1, "acked": 1}),
        ("fsshelter", [(TRACK, 1, 0)], 0, {"tracked": 1, "pending": 1, "open": 1}),
        ("fsshelter", [(TRACK, 1, 0), (OK, 1, 0)], 0, {"tracked": 1, "acked": 1}),
        ("storm", [(TRACK, 1, 5), (TRACK, 1, 5)], 0, {"tracked": 1, "duplicates": 1, "pending": 1, "open": 1}),
        ("storm", [(OK, 1, 5)], 0, {"pending": 1}),
        ("storm", [(OK, 1, 5)], 3, {"orphans": 1}),
        ("storm", [(RESET_TIMEOUT, 1, 0)], 0, {"unknown": 1}),
        ("storm", [(OK, 1, 5), (RESET_TIMEOUT, 1, 0)], 0, {"resets": 1, "pending": 1}),
        ("storm-0.9", [(TRACK, 1, 5), (OK, 1, 4)], 0, {"tracked": 1, "pending": 1, "open": 1}),
        ("fsshelter", [(OK, 1, 5), (ANCHOR, 1, 5), (FAIL, 1, 5), (RESET_TIMEOUT, 1, 5)], 0, {"unknown": 4}),
        ("fsshelter", [(TRACK, 1, 5), (TRACK, 1, 5)], 0, {"tracked": 1, "duplicates": 1, "pending": 1, "open": 1}),
        ("fsshelter", [(TRACK, 1, 5), (OK, 1, 0)], 0, {"tracked": 1, "acked": 1}),
        ("fsshelter", [(TRACK, 1, 5), (FAIL, 1, 0)], 0, {"tracked": 1, "failed": 1}),
        ("fsshelter", [(TRACK, 1, 5), (RESET_TIMEOUT, 1, 0)], 3, {"tracked": 1, "resets": 1, "timed_out": 1}),
    ],
)
def test_each_counter(acker_type, protocol, messages, rotations, expected):
    a = acker_type(protocol=protocol)
    send(a, *messages)
    for _ in range(rotations):
        a.rotate()
    assert a.stats() == dataclasses.replace(ZERO, **expected)
    assert a.stats().pending == len(a)


def test_rejected_and_dropped(acker_type):
    a = acker_type(high_water=0)
    send(a, (TRACK, 1, 5), (TRACK, 2, 5), (OK, 3, 5))
    assert a.stats() == dataclasses.replace(ZERO, tracked=1, rejected=1, dropped=1, pending=1, open=1)


@pytest.mark.parametrize("high_water", [None, 340])
def test_trees_of_no_edges_are_counted_apart_and_the_count_is_kept(acker_type, high_water):
    """Among many others, on the fast path and, with a high_water, on the slow one; in one batch of all kinds."""
    a = acker_type(high_water=high_water)
    roots = range(1000)
    for _ in range(2):
        a.ingest([TRACK] * 1000, roots, [root % 3 for root in roots], [0] * 1000)
        a.ingest(OK, [root for root in roots if root % 3], [root % 3 for root in roots if root % 3])
    assert a.stats().empty == 2 * 334 <= a.stats().acked
    assert acker_type.restore(a.snapshot()).stats() == a.stats()


def test_tracked_is_what_ended_and_what_is_open(acker_type):
    a = acker_type(buckets=2, high_water=40)
    rng = random.Random(1)
    for step in range(2000):
        send(a, (rng.choice(list(Kind)), rng.randrange(40), rng.randrange(3)))
        if step % 50 == 0:
            a.rotate()
        s = a.stats()
        assert s.tracked == s.acked + s.failed + s.timed_out + s.open
        assert s.empty <= s.acked
        assert s.open <= s.pending == len(a)
    assert min(s.acked, s.failed, s.timed_out, s.orphans, s.resets, s.unknown, s.duplicates, s.empty) > 0


def test_stats_are_a_value(acker_type):
    a = acker_type()
    before = a.stats()
    send(a, (TRACK, 1, 5))
    assert before == ZERO
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.tracked = 1
