"""An acker that nobody rotates: one warning with numbers, and none without evidence."""

import warnings

import pytest

from acker import Acker, Kind, ReferenceAcker, ShardedAcker
from acker._engine import rotation

TRACK, OK = Kind.TRACK, Kind.OK
HOUR_MS = 3_600_000


@pytest.fixture(params=[Acker, ReferenceAcker, lambda: ShardedAcker(2, 1)], ids=["native", "reference", "sharded"])
def a(request):
    """A new acker of each kind."""
    return request.param()


def warnings_of(call):
    """Return the texts of the warnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert all(each.category is RuntimeWarning for each in caught)
    return [str(each.message) for each in caught]


def begin(a, trees, now_ms):
    a.ingest(TRACK, range(trees), [5] * trees, [0] * trees, range(trees), now_ms=now_ms)


def test_trees_that_are_open_for_an_hour_are_told_once_with_numbers(a):
    begin(a, 1000, now_ms=10**12)
    assert warnings_of(lambda: a.ingest([], [], [], now_ms=10**12 + HOUR_MS - 1)) == []
    (text,) = warnings_of(lambda: a.ingest(OK, [0], [5], now_ms=10**12 + HOUR_MS))
    assert "never rotated" in text and "rotate(now_ms=...)" in text
    assert "1,000 held, 1,000 of them open trees, the oldest for 3,600 s, and 0 trees have ended" in text
    assert warnings_of(lambda: a.ingest([], [], [], now_ms=10**12 + 5 * HOUR_MS)) == []
    assert a.stats().acked == 1


def test_a_few_trees_are_told_when_many_batches_came(a):
    begin(a, 1, now_ms=0)
    texts = warnings_of(lambda: [a.ingest([], [], [], now_ms=minute * 60_000) for minute in range(200)])
    assert len(texts) == 1 and "1 held, 1 of them open trees, the oldest for 5,940 s" in texts[0]


def test_a_warning_that_is_an_error_comes_before_the_batch(a):
    begin(a, 1000, now_ms=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="never rotated"):
            a.ingest(OK, [1], [5], now_ms=HOUR_MS)
        assert (a.stats().acked, len(a)) == (0, 1000), "nothing was applied"
        assert len(a.ingest(OK, [1], [5], now_ms=HOUR_MS)) == 1


def test_young_trees_are_none_and_the_look_is_put_off(a):
    begin(a, 1000, now_ms=0)
    a.ingest(OK, range(1000), [5] * 1000, now_ms=1)
    a.ingest(TRACK, range(500), [5] * 500, [0] * 500, now_ms=HOUR_MS - 10)
    assert warnings_of(lambda: a.ingest([], [], [], now_ms=2 * HOUR_MS - 11)) == []
    assert len(warnings_of(lambda: a.ingest([], [], [], now_ms=2 * HOUR_MS - 10))) == 1


def test_who_rotates_or_tells_no_time_or_finishes_hears_nothing(a):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        begin(a, 1000, now_ms=0)
        a.rotate(now_ms=10)
        begin(a, 1000, now_ms=10 * HOUR_MS)
        untimed = Acker()
        for _ in range(300):
            begin(untimed, 1000, now_ms=0)
        busy = Acker()
        for hour in range(300):
            begin(busy, 200, now_ms=hour * HOUR_MS)
            busy.ingest(OK, range(200), [5] * 200, now_ms=hour * HOUR_MS)


def test_very_many_open_trees_of_which_none_ends_are_told_at_any_age(monkeypatch):
    a = Acker()
    rows = rotation.MANY
    begin(a, rows, now_ms=1000)
    assert warnings_of(lambda: a.ingest([], [], [], now_ms=1000)) == [], "a clock that stands is no evidence"
    (text,) = warnings_of(lambda: a.ingest([], [], [], now_ms=2000))
    assert "1,000,000 of them open trees, the oldest for 1 s, and 0 trees have ended" in text
    monkeypatch.setattr("acker._engine.reference.MANY", 10)
    monkeypatch.setattr("acker._engine.rotation.MANY", 10)
    reference = ReferenceAcker()
    begin(reference, 10, now_ms=1000)
    assert len(warnings_of(lambda: reference.ingest([], [], [], now_ms=2000))) == 1


def test_the_end_of_the_clock_overflows_nothing(a):
    begin(a, 1000, now_ms=2**63 - 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        a.ingest([], [], [], now_ms=2**63 - 2)
        a.ingest([], [], [], now_ms=-(2**63))
