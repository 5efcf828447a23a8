"""oldest(n): which trees were begun first, how old they are, and what is left of them, in an order without ties."""

import random
import threading

import pytest

from acker import Acker, BusyError, Kind, PendingTree, ReferenceAcker, ShardedAcker
from acker.errors import ArgumentTypeError, ArgumentValueError
from tests.native_testing import fail_allocations_after

TRACK, OK, FAIL = Kind.TRACK, Kind.OK, Kind.FAIL
MAKERS = {
    "native": Acker,
    "reference": ReferenceAcker,
    "sharded": lambda **options: ShardedAcker(3, 1, **options),
}


@pytest.fixture(params=MAKERS.values(), ids=MAKERS)
def make(request):
    """Every acker of the contract."""
    return request.param


def test_the_oldest_come_first_with_what_a_log_line_needs(make):
    a = make()
    a.ingest(TRACK, [7], [1 ^ 2], [3], [42], now_ms=1000)
    a.ingest([OK, FAIL], [8, -9], [5, 0], now_ms=1500)
    a.rotate(now_ms=2000)
    a.ingest([TRACK, OK], [10, 7], [4, 1], [1, 0], [43, 0], now_ms=2500)
    assert a.oldest() == [
        PendingTree(42, 1500, "tracked", 7, 3, 2, 2),
        PendingTree(None, 1000, "failed", -9, None, 0, 2),
        PendingTree(None, 1000, "untracked", 8, None, 5, 2),
        PendingTree(43, 0, "tracked", 10, 1, 4, 3),
    ]
    assert [tree.age_ms for tree in a.oldest(now_ms=3000)] == [2000, 1500, 1500, 500]
    assert [tree.message_id for tree in a.oldest(1)] == [42]
    assert a.oldest(0) == []
    assert (len(a), a.stats().open) == (4, 2), "nothing was changed"


def test_before_the_first_call_the_clock_is_not_known(make):
    a = make()
    assert a.oldest() == []
    a.ingest(TRACK, [1], [5], [0], [42], now_ms=10**12)
    b = Acker.restore(a.snapshot()) if not isinstance(a, ReferenceAcker) else ReferenceAcker.restore(a.snapshot())
    assert [tree.age_ms for tree in b.oldest()] == [0]
    assert [tree.age_ms for tree in b.oldest(now_ms=10**12 + 7)] == [7]
    b.rotate(now_ms=10**12 + 9)
    assert [(tree.age_ms, tree.rotations_left) for tree in b.oldest()] == [(9, 2)]


@pytest.mark.parametrize("protocol", ["storm", "storm-0.9", "fsshelter"])
def test_all_ackers_say_the_same(protocol):
    rng = random.Random(protocol)
    ackers = [make(protocol=protocol, buckets=4, seed=1) for make in MAKERS.values()]
    for step in range(200):
        size = rng.randrange(40)
        kinds = [rng.choice(list(Kind)) for _ in range(size)]
        roots = [rng.randrange(300) - 150 for _ in range(size)]
        values = [rng.randrange(4) for _ in range(size)]
        for a in ackers:
            a.ingest(kinds, roots, values, [step] * size, [step] * size, now_ms=step * 10)
            if step % 20 == 19:
                a.rotate(now_ms=step * 10)
        n = rng.choice([0, 1, 5, 50, 10**6, 2**63 - 1])
        expected = ackers[1].oldest(n)
        assert len(expected) == min(n, len(ackers[1]))
        assert all(a.oldest(n) == expected for a in ackers)
        assert [tree.age_ms for tree in expected] == sorted((tree.age_ms for tree in expected), reverse=True)


@pytest.mark.parametrize(
    ("n", "error"), [(-1, ArgumentValueError), (1.0, ArgumentTypeError), (2**63, ArgumentValueError)]
)
def test_what_is_no_number_is_refused(make, n, error):
    with pytest.raises(error, match="n: expected an integer from 0"):
        make().oldest(n)


def test_a_table_of_many_segments_is_looked_at_whole():
    a = Acker()
    rows = 100_000
    a.ingest(TRACK, range(rows), [5] * rows, [0] * rows, range(rows), now_ms=50)
    a.ingest(TRACK, [-1, -2], [5, 5], [0, 0], [-1, -2], now_ms=0)
    assert [(tree.message_id, tree.age_ms) for tree in a.oldest(3, now_ms=60)] == [(-2, 60), (-1, 60), (0, 10)]


@pytest.mark.native_testing
def test_no_memory_is_an_error(scarce_memory):

    a = Acker()
    a.ingest(TRACK, [1], [5], [0])
    fail_allocations_after(0)
    with pytest.raises(MemoryError, match="no memory for"):
        a.oldest()
    fail_allocations_after(-1)
    assert len(a.oldest()) == 1


def test_a_second_thread_is_refused():
    """The file of a snapshot asks while it is written, so that somebody is inside for sure."""
    a, said = Acker(), []

    class File:
        def write(self, data):
            if not said:
                thread = threading.Thread(target=ask)
                thread.start()
                thread.join()
            return len(data)

    def ask():
        try:
            a.oldest()
        except BusyError as error:
            said.append(str(error))

    a.snapshot_to(File())
    assert len(said) == 1 and "another thread is inside this Acker" in said[0]
