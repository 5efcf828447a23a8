"""One acker is used by one thread at a time: a second one is refused and changes nothing; asking is always allowed."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

import acker
from acker import BusyError, Kind

UNKNOWN_ROOT = 1 << 40
ONE_OK = pa.table({"kind": pa.array([2], pa.int8()), "root_id": [7], "value": [5]})

CALLS = {
    "ingest": lambda a: a.ingest(Kind.OK, [7], [5]),
    "ingest_arrow": lambda a: a.ingest_arrow(ONE_OK),
    "rotate": lambda a: a.rotate(),
    "snapshot": lambda a: a.snapshot(),
    "in": lambda a: 7 in a,
}


class Ingesting:
    """A thread that is inside `a.ingest` nearly all the time, with messages that change one counter only."""

    def __init__(self, a):
        self.acker = a
        # Long enough for a thread switch in the middle of the reference's loop; the native one lets the GIL go.
        self.rows = 20_000 if isinstance(a, acker.ReferenceAcker) else 500_000
        self.batch = (
            np.full(self.rows, Kind.RESET_TIMEOUT, np.int8),
            np.full(self.rows, UNKNOWN_ROOT, np.int64),
            np.zeros(self.rows, np.int64),
        )
        self.applied = 0
        self.refused = 0
        self.errors = []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stop.is_set():
            try:
                self.acker.ingest(*self.batch)
            except BusyError:
                self.refused += 1
            except BaseException as error:  # noqa: BLE001 - told by the test, in its own thread
                self.errors.append(error)
                return
            else:
                self.applied += 1

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        assert self.errors == []


@pytest.mark.parametrize("name", CALLS)
def test_a_second_thread_is_refused(acker_type, name):
    a = acker_type(buckets=15)
    call = CALLS[name]
    succeeded = 0
    with Ingesting(a) as other:
        while True:
            # No sleeping: either it is refused, or the other thread was between two batches and we try again.
            try:
                call(a)
            except BusyError as error:
                refusal = error
                break
            succeeded += 1
        # Asking is allowed whoever is inside, and shows the moment between two calls.
        assert len(a) in (0, 1)
        assert a.stats().pending in (0, 1)
        assert a.stats().unknown % other.rows == 0
        assert a.nbytes > 0
    assert isinstance(refusal, RuntimeError)
    assert str(refusal) == "another thread is inside this Acker; one Acker is used from one thread at a time"
    s = a.stats()
    assert s.unknown == other.applied * other.rows  # no batch was lost, none was applied in part
    if name in ("ingest", "ingest_arrow"):
        # A refused OK is not there: val is 5 for each that was accepted.
        left = a.ingest(Kind.TRACK, [7], [5 * (succeeded % 2) ^ 1], [0])
        assert len(left) == 0
        assert a.ingest(Kind.OK, [7], [1]).outcome.tolist() == [acker.Outcome.ACKED]
    # And the acker is free again.
    a.rotate()
    assert acker_type.restore(a.snapshot()).stats() == a.stats()


def test_an_error_leaves_the_acker_free(acker_type):
    a = acker_type()
    for bad in ([9], [[1]], [1.5]):
        with pytest.raises((TypeError, ValueError)):
            a.ingest(bad, [1], [1])
        with pytest.raises((TypeError, ValueError)):
            a.ingest(np.array([9], np.int8), np.array([1]), np.array([1]))
        with pytest.raises(TypeError):
            a.rotate(now_ms="now")
    assert len(a.ingest(Kind.OK, [1], [1])) == 0
    assert len(a.rotate()) == 0
    a.snapshot()


def test_ackers_of_different_threads_do_not_meet(acker_type):
    def work(seed):
        rng = np.random.default_rng(seed)
        a = acker_type(seed=seed)
        roots = rng.integers(-(2**63), 2**63, 3000)
        acked = 0
        for _ in range(5):
            a.ingest(Kind.TRACK, roots, roots | 1, np.zeros(len(roots), np.int32))
            acked += len(a.ingest(Kind.OK, roots, roots | 1))
        return acked, a.stats()

    with ThreadPoolExecutor(4) as pool:
        for acked, stats in pool.map(work, range(8)):
            assert acked == stats.acked == stats.tracked == 15_000
            assert stats.pending == 0
