"""One acker is used by one thread at a time: a second one is refused and changes nothing; asking is always allowed.

These tests run on builds with and without the GIL, where threads meet in more places. What they expect does not depend
on who comes first.
"""

import contextlib
import io
import os
import subprocess
import sys
import sysconfig
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

import acker
from acker import BusyError, IdGenerator, Kind, Outcome
from acker._engine.combiner import Combiner
from acker.errors import ColumnValueError
from tests.native_testing import check_invariants

UNKNOWN_ROOT = 1 << 40
ONE_OK = pa.table({"kind": pa.array([2], pa.int8()), "root_id": [7], "value": [5]})

CALLS = {
    "ingest": lambda a: a.ingest(Kind.OK, [7], [5]),
    "ingest_arrow": lambda a: a.ingest_arrow(ONE_OK),
    "rotate": lambda a: a.rotate(),
    "snapshot": lambda a: a.snapshot(),
    "snapshot_to": lambda a: a.snapshot_to(io.BytesIO()),
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


THREADS = 4

# Without a GIL nothing else takes the core from a thread that tries again and again, and gives it to the one inside.
give_way = getattr(os, "sched_yield", lambda: None)


@pytest.fixture
def frequent_switches():
    """Let the threads of a build with the GIL take turns often: they meet more, and wait less for each other."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def together(*works):
    """Run each function on a thread of its own, all from one moment on; return what they return."""
    start = threading.Barrier(len(works))

    def run(work):
        start.wait(60)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result() for future in [pool.submit(run, work) for work in works]]


def until_let_in(call, *arguments, **options):
    """Return what the call returns, once no other thread is inside."""
    while True:
        try:
            return call(*arguments, **options)
        except BusyError:
            give_way()


def watch(ask, *works):
    """Run the functions on threads while two others ask all the time; return what the functions return."""
    left = [len(works)]
    lock, over = threading.Lock(), threading.Event()

    def work_off(work):
        try:
            return work()
        finally:
            with lock:
                left[0] -= 1
                if left[0] == 0:
                    over.set()

    def watch():
        while True:
            last = over.is_set()
            ask()
            if last:
                return
            give_way()

    results = together(*(lambda work=work: work_off(work) for work in works), watch, watch)
    return results[: len(works)]


def ask_acker(a, trees, most):
    """Look at an acker that tracks `trees` at once and holds at most `most`, whoever is inside."""
    s = a.stats()
    assert s.tracked == s.acked + s.failed + s.timed_out + s.open
    assert s.tracked % trees == 0, "half of a batch"
    assert s.open <= s.pending
    assert 0 <= len(a) <= most
    assert a.nbytes > 0


@pytest.mark.parametrize("protocol", ["storm", "storm-0.9", "fsshelter"])
def test_of_many_threads_none_loses_anything(acker_type, protocol, frequent_switches):
    a, trees, batches = acker_type(protocol=protocol), 64, 20

    def work(thread):
        rng = np.random.default_rng(thread)
        done = []
        for batch in range(batches):
            roots = np.arange(trees) + trees * (batches * thread + batch)
            values = rng.integers(1, 2**62, trees)
            done += until_let_in(a.ingest, Kind.TRACK, roots, values, np.full(trees, thread), roots, now_ms=1).rows()
            if protocol == "fsshelter":
                until_let_in(a.ingest, Kind.ANCHOR, roots, values)
            kinds = np.where(np.arange(trees) % 8 == 0, Kind.FAIL, Kind.OK).astype(np.int8)
            done += until_let_in(a.ingest, kinds, roots, values, now_ms=4).rows()
        return done

    workers = [lambda thread=thread: work(thread) for thread in range(THREADS)]
    results = watch(lambda: ask_acker(a, trees, THREADS * trees), *workers)
    for thread, done in enumerate(results):
        first = trees * batches * thread
        assert done == [
            (root, root, thread, Outcome.FAILED if root % 8 == 0 else Outcome.ACKED, 3)
            for root in range(first, first + trees * batches)
        ]
    s, tracked = a.stats(), THREADS * batches * trees
    assert (s.tracked, s.acked, s.failed, s.open, s.pending) == (tracked, tracked - tracked // 8, tracked // 8, 0, 0)
    assert (s.timed_out, s.rejected, s.duplicates, s.unknown, s.orphans, s.dropped) == (0, 0, 0, 0, 0, 0)


def test_rotations_and_snapshots_among_batches_report_every_tree_once(acker_type, frequent_switches):
    a, trees, batches, snapshots = acker_type(buckets=2), 64, 20, 10
    most = (THREADS - 2) * batches * trees

    def work(thread):
        ended = []
        for batch in range(batches):
            roots = np.arange(trees) + trees * (batches * thread + batch)
            until_let_in(a.ingest, Kind.TRACK, roots, np.ones(trees, np.int64), np.zeros(trees, np.int32))
            ended += until_let_in(a.ingest, Kind.OK, roots[::2], np.ones(trees // 2, np.int64)).rows()
        return ended

    def rotate():
        return [row for _ in range(batches) for row in until_let_in(a.rotate).rows()]

    def save():
        for _ in range(snapshots):
            blob = until_let_in(a.snapshot)
            restored = acker_type.restore(blob)
            assert len(restored.snapshot()) == len(blob)
            ask_acker(restored, trees, most)
            assert len(restored) == restored.stats().pending
            assert restored.stats().open == sum(len(restored.rotate()) for _ in range(2))
        return []

    workers = [lambda thread=thread: work(thread) for thread in range(THREADS - 2)]
    results = watch(lambda: ask_acker(a, trees, most), *workers, rotate, save)
    ended = Counter(row[0] for rows in results for row in rows)
    ended.update(row[0] for _ in range(2) for row in a.rotate().rows())
    # An OK that came after its tree had timed out begins an entry of its own, which no TRACK ends.
    assert ended == Counter(range(most))
    s = a.stats()
    assert s.acked + s.timed_out == s.tracked == most
    assert s.pending == 0


def test_ackers_side_by_side_do_what_they_do_alone(acker_type):
    def work(seed):
        rng = np.random.default_rng(seed)
        a = acker_type(seed=seed, high_water=200)
        done = []
        for batch in range(30):
            kinds = rng.integers(0, 5, 500).astype(np.int8)
            roots, values = rng.integers(-300, 300, 500), rng.integers(1, 3, 500)
            done.append(a.ingest(kinds, roots, values, np.full(500, seed, np.int32), roots * 7, now_ms=batch))
            if batch % 5 == 4:
                done.append(a.rotate(now_ms=batch))
        return [part.rows() for part in done], a.stats(), a.snapshot()

    seeds = range(2 * THREADS)
    alone = [work(seed) for seed in seeds]
    assert together(*(lambda seed=seed: work(seed) for seed in seeds)) == alone


def test_columns_that_change_meanwhile_harm_no_table(frequent_switches):
    a, rows = acker.Acker(high_water=1000), 3000
    rng = np.random.default_rng(1)
    columns = kind, root_id, value, task_id, message_id = (
        rng.integers(0, 5, rows).astype(np.int8),
        rng.integers(0, 500, rows),
        rng.integers(1, 3, rows),
        np.zeros(rows, np.int32),
        np.zeros(rows, np.int64),
    )
    over = threading.Event()

    def scribble():
        rng = np.random.default_rng(2)
        while not over.is_set():
            # Unknown kinds and negative task ids stand there for a moment only, so that the check lets some through.
            row = rng.integers(0, rows)
            kind[row], task_id[row] = rng.integers(-128, 128), -1
            root_id[row], value[row], message_id[row] = rng.integers(0, 500), 1, row
            kind[row], task_id[row] = row % 5, 0

    def ingest():
        try:
            for _ in range(300):
                with contextlib.suppress(ColumnValueError):
                    a.ingest(*columns)
                check_invariants(a)
        finally:
            over.set()

    together(ingest, scribble, scribble)
    for _ in range(3):
        a.rotate()
    check_invariants(a)
    assert len(a) == 0


def test_results_may_outlive_their_acker_on_other_threads():
    roots = np.arange(1000)

    def work():
        kept = []
        for _ in range(50):
            a = acker.Acker()
            a.ingest(Kind.TRACK, roots, roots + 1, np.zeros(len(roots), np.int32))
            kept.append(a.ingest(Kind.OK, roots, roots + 1))
        return kept

    for done in [done for kept in together(*[work] * THREADS) for done in kept]:
        assert (done.root_id == roots).all()


def test_a_combiner_of_many_threads_loses_nothing(frequent_switches):
    combiner, trees, batches = Combiner(), 200, 10

    def work(thread):
        rng = np.random.default_rng(thread)
        for batch in range(batches):
            roots = np.arange(trees) + trees * batch
            values = rng.integers(-(2**62), 2**62, trees)
            until_let_in(combiner.add, Kind.OK, roots, values)
            until_let_in(combiner.add, Kind.ANCHOR, roots, values)
            if thread == 0:
                until_let_in(combiner.add, Kind.TRACK, roots, roots * 0, roots * 0, roots)
        other = Combiner()
        other.add(Kind.OK, np.arange(trees * batches), values[0] + np.zeros(trees * batches, np.int64))
        for part in other.partials(3) + other.partials(2):
            until_let_in(combiner.merge, part)

    def ask():
        assert 0 <= len(combiner) <= trees * batches
        assert combiner.nbytes >= 0 and combiner.native_ns >= 0
        assert combiner.messages % trees == 0

    watch(ask, *(lambda thread=thread: work(thread) for thread in range(THREADS)))
    assert combiner.messages == trees * batches * (2 * THREADS + 1)
    assert len(combiner) == trees * batches
    done = combiner.settle()
    assert sorted(done.message_id.tolist()) == list(range(trees * batches))
    assert (done.outcome == Outcome.ACKED).all()


def test_threads_that_share_a_generator_never_get_an_id_twice(frequent_switches):
    ids = IdGenerator(seed=1)

    def work():
        given = []
        for _ in range(40):
            given += [ids.next() for _ in range(150)]
            given += ids.take(7).tolist()
        return given

    given = [each for some in together(*[work] * THREADS) for each in some]
    assert len(given) == len(set(given)) == THREADS * 40 * 157


def test_the_module_does_not_ask_for_the_gil():
    ask = "import acker, sys; print(getattr(sys, '_is_gil_enabled', lambda: True)())"
    environ = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    told = subprocess.run(
        [sys.executable, "-W", "error", "-c", ask], capture_output=True, check=False, env=environ, text=True
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout.split() == [str(not sysconfig.get_config_var("Py_GIL_DISABLED"))]
