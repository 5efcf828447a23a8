"""ShardedAcker: the contract of Acker on several threads. What is about threads alone is tested without Python too."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import acker
from acker import Acker, BusyError, Completions, Kind, ReferenceAcker, ShardedAcker, _core, acker_of
from acker._engine.protocol import INT64_MAX, INT64_MIN
from acker.errors import ArgumentValueError
from acker.testing import TreeStream
from tests.native_testing import check_invariants, core, fail_allocations_after, probes

SEED = 7
LONG_SECS = 60.0
PROTOCOLS = ["storm", "storm-0.9", "fsshelter"]
ROOTS = [0, 1, -1, 2, -2, 3, 5, -6, 7, INT64_MIN, INT64_MIN + 1, INT64_MAX]
SHAPES = [(1, 1), (2, 1), (2, 2), (3, 3), (5, 2), (8, 5)]  # shards and threads

Columns = tuple[npt.NDArray[np.generic], ...]


def by_root(done: Completions) -> dict[int, list[tuple[int, ...]]]:
    """Return the completions of each root, in their order: what the number of shards does not change."""
    found = defaultdict(list)
    for row in done.rows():
        found[row[0]].append(row)
    return dict(found)


def random_columns(rows: int, seed: int, roots: int = 20_000) -> Columns:
    rng = np.random.default_rng(seed)
    pool = np.concatenate([ROOTS, rng.integers(INT64_MIN, INT64_MAX, roots, np.int64, endpoint=True)])
    return (
        rng.choice(5, rows, p=[0.4, 0.1, 0.4, 0.05, 0.05]).astype(np.int8),
        rng.choice(pool, rows),
        rng.choice(np.array([1, 2, 3], np.int64), rows),
        rng.integers(0, 9, rows, dtype=np.int32),
        rng.integers(INT64_MIN, INT64_MAX, rows, np.int64, endpoint=True),
    )


def fill(shards: int = 3, threads: int = 2, rows: int = 5_000, **options: object) -> ShardedAcker:
    held = ShardedAcker(shards, threads, seed=SEED, **options)  # type: ignore[arg-type]
    held.ingest(*random_columns(rows, seed=1), now_ms=1)
    return held


# ---- the same trees as one acker ----


@given(data=st.data(), shape=st.sampled_from(SHAPES), protocol=st.sampled_from(PROTOCOLS), buckets=st.integers(2, 15))
@settings(deadline=None)
def test_it_finishes_the_trees_that_the_reference_finishes(
    data: st.DataObject, shape: tuple[int, int], protocol: str, buckets: int
) -> None:
    held = ShardedAcker(*shape, protocol=protocol, buckets=buckets, seed=SEED)
    expected = ReferenceAcker(protocol=protocol, buckets=buckets)
    message = st.tuples(
        st.sampled_from(list(Kind)),
        st.sampled_from(ROOTS),
        st.integers(0, 3),
        st.integers(0, 2**31 - 1),
        st.integers(0, 9),
    )
    for now_ms, batch in enumerate(data.draw(st.lists(st.lists(message, max_size=40), max_size=8))):
        columns = [list(column) for column in zip(*batch, strict=True)] or [[]] * 5
        done = held.ingest(*columns, now_ms=now_ms)
        assert by_root(done) == by_root(expected.ingest(*columns, now_ms=now_ms))
        if len(batch) % 3 == 0:
            assert sorted(held.rotate(now_ms=now_ms).rows()) == sorted(expected.rotate(now_ms=now_ms).rows())
        assert held.stats() == expected.stats()
        assert len(held) == len(expected)
        assert all((root in held) == (root in expected) for root in ROOTS)
    check_invariants(held)


@pytest.mark.parametrize("kernel", _core.kernels())
@pytest.mark.parametrize("shape", SHAPES)
def test_large_batches(shape: tuple[int, int], kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACKER_KERNEL", kernel)
    held, expected = ShardedAcker(*shape, seed=SEED), Acker(seed=SEED)
    for now_ms, rows in enumerate((50_000, 10_000, 1, 70_000)):
        columns = random_columns(rows, seed=now_ms)
        assert by_root(held.ingest(*columns, now_ms=now_ms)) == by_root(expected.ingest(*columns, now_ms=now_ms))
        assert sorted(held.rotate(now_ms=now_ms).rows()) == sorted(expected.rotate(now_ms=now_ms).rows())
        assert held.stats() == expected.stats()
        check_invariants(held)


def test_a_stream_of_trees_is_finished() -> None:
    stream, held = TreeStream(3_000, 4, fail_share=0.05, reset_share=0.05, seed=3), ShardedAcker(2, 2)
    done = [held.ingest(*batch) for batch in stream.prefill()]
    done += [held.ingest(*stream.take(1_000)) for _ in range(60)]
    assert sum(map(len, done)) == stream.expected.completions > 0


def test_columns_that_are_left_out_and_arrow() -> None:
    held = ShardedAcker(2, 2)
    held.ingest(Kind.TRACK, [1, 2], [5, 6], [3, 4])
    assert len(held.ingest(Kind.ANCHOR, [1], [0])) == 0
    batch = pa.table({"kind": pa.array([2, 2], pa.int8()), "root_id": [1, 2], "value": [5, 6]})
    assert sorted(held.ingest_arrow(batch, now_ms=9).rows()) == [(1, 0, 3, 0, 9), (2, 0, 4, 0, 9)]
    assert len(held.ingest([], [], [])) == 0


@pytest.mark.native_testing
def test_every_root_id_has_the_shard_that_acker_of_names() -> None:
    roots = np.concatenate([np.array(ROOTS, np.int64), random_columns(2_000, seed=5)[1]])
    for shards in [*range(1, 70), 255, 256, 1000, 2**31, 2**31 + 1, 2**62, 2**62 + 1, 2**63 - 1]:
        near = np.array(
            [n for k in (1, 2, 3) for n in (k * shards - 1, k * shards, -k * shards) if abs(n) < 2**63], np.int64
        )
        column = np.concatenate([roots, near])
        assert (core.shard_of(column, shards) == acker.acker_of(column, shards)).all()
        assert [acker.acker_of(int(root), shards) for root in near] == core.shard_of(near, shards).tolist()


@pytest.mark.native_testing
def test_shards_probe_as_little_as_one_acker() -> None:
    for roots in (random_columns(100_000, seed=2)[1], np.arange(60_000), np.arange(60_000) << 20):
        one, several = Acker(seed=SEED), ShardedAcker(4, 2, seed=SEED)
        for held in (one, several):
            held.ingest(Kind.TRACK, roots, np.ones(len(roots), np.int64), np.zeros(len(roots), np.int32))
        assert probes(several) <= 1.1 * probes(one)


# ---- options and errors ----


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0,), "shards: expected an integer from 1 to 256, got 0"),
        ((257,), "shards: expected an integer from 1 to 256, got 257"),
        ((2, 3), "threads: expected an integer from 1 to 2, got 3"),
        ((2, 0), "threads: expected an integer from 1 to 2, got 0"),
        ((2, 1.0), "threads: expected an integer from 1 to 2, got float"),
        (("2",), "shards: expected an integer from 1 to 256, got str"),
    ],
)
def test_numbers_of_shards_and_threads_that_make_no_sense(arguments: tuple[int, ...], text: str) -> None:
    blob = Acker().snapshot()
    for make in (ShardedAcker, lambda *given: ShardedAcker.restore(blob, *given)):
        with pytest.raises((TypeError, ValueError)) as caught:
            make(*arguments)
        assert str(caught.value) == text
    with pytest.raises(ValueError, match="protocol"):
        ShardedAcker(2, protocol="none")


def test_threads_are_as_many_as_cores_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores in (1, 2, 6):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)), raising=False)
        assert [ShardedAcker(shards).threads for shards in (1, 2, 8)] == [1, min(2, cores), min(8, cores)]
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert ShardedAcker(8).threads == 1
    held = ShardedAcker(8, 3, protocol="storm-0.9", buckets=5, high_water=9)
    assert (held.shards, held.threads, held.protocol, held.buckets, held.high_water) == (8, 3, "storm-0.9", 5, 9)
    assert repr(held) == ("ShardedAcker(protocol='storm-0.9', buckets=5, high_water=9): 0 pending, 8 shards, 3 threads")


def test_bad_columns_are_refused_before_anything_is_applied() -> None:
    held, twin = fill(), Acker()
    before = held.snapshot()
    for bad in (([9], [1], [1]), ([0], [1], [1]), ([2], [1.5], [1]), ([2, 2], [1], [1]), ([0], [1], [1], [-1])):
        with pytest.raises((TypeError, ValueError)) as expected:
            twin.ingest(*bad)
        with pytest.raises(type(expected.value)) as caught:
            held.ingest(*bad)
        assert str(caught.value) == str(expected.value)
    with pytest.raises(TypeError, match="now_ms"):
        held.rotate(now_ms="now")  # type: ignore[arg-type]
    assert held.snapshot() == before


# ---- memory ----


@pytest.mark.native_testing
@pytest.mark.parametrize("rows", [50, 200_000])
def test_a_batch_without_memory_changes_nothing(rows: int, scarce_memory: None) -> None:
    columns = random_columns(rows, seed=2, roots=150_000)
    failures = 0
    for successes in range(100):
        held = fill()
        before = held.snapshot()
        fail_allocations_after(successes)
        try:
            held.ingest(*columns, now_ms=2)
            break
        except acker.AckerMemoryError as error:
            failure = error
        fail_allocations_after(-1)
        failures += 1
        assert failure.rows_applied == 0 and len(failure.completions) == 0
        assert held.snapshot() == before
        check_invariants(held)
        expected = Acker.restore(before)
        assert by_root(held.ingest(*columns, now_ms=2)) == by_root(expected.ingest(*columns, now_ms=2))
    else:
        pytest.fail("the batch never went through")
    assert failures >= (6 if rows > 1_000 else 0)


@pytest.mark.native_testing
def test_the_first_batch_may_find_no_memory_at_all(scarce_memory: None) -> None:
    held = ShardedAcker(2, 2)
    for successes in range(20):
        fail_allocations_after(successes)
        try:
            held.ingest(*random_columns(100, seed=1))
            break
        except MemoryError:
            assert (len(held), held.stats().tracked) == (0, 0)
    assert successes > 3
    check_invariants(held)


@pytest.mark.native_testing
def test_making_and_restoring_without_memory(scarce_memory: None) -> None:
    blob = fill(rows=50_000).snapshot()
    for successes in range(3):
        fail_allocations_after(successes)
        with pytest.raises(MemoryError):
            ShardedAcker.restore(blob, 3)
    fail_allocations_after(0)
    with pytest.raises(MemoryError, match="3 shards"):
        ShardedAcker(3)


@pytest.mark.native_testing
def test_an_acker_that_memory_failed_in_a_batch_says_so_for_good(scarce_memory: None, native_hash: type) -> None:
    held = ShardedAcker(2, 2, seed=SEED)
    roots = random_columns(30_000, seed=1)[1]
    held.ingest(Kind.TRACK, roots, np.ones(len(roots), np.int64), np.zeros(len(roots), np.int32))
    blob = held.snapshot()
    hash_of_seed = native_hash(SEED)  # one line of one table is to get more than it can take
    meet = np.array([hash_of_seed.root_of((0xABC << 52) | number) for number in range(10_000)], np.int64)
    meeting = meet[meet % 2 == 0][:2_000]
    columns = Kind.TRACK, meeting, np.ones(len(meeting), np.int64), np.zeros(len(meeting), np.int32)
    fail_allocations_after(0)
    with pytest.raises(
        acker.UnusableError, match="in the middle of a batch; restore this ShardedAcker from a snapshot"
    ):
        held.ingest(*columns)
    fail_allocations_after(-1)
    calls = (
        lambda: held.ingest(Kind.OK, [1], [1]),
        held.rotate,
        held.snapshot,
        lambda: 1 in held,
        lambda: check_invariants(held),
    )
    for call in calls:
        with pytest.raises(RuntimeError, match="restore this ShardedAcker"):
            call()
    assert held.stats().tracked >= len(np.unique(roots)) and held.nbytes > 0
    restored = ShardedAcker.restore(blob, 2, 2)
    restored.ingest(*columns)
    assert len(restored) == len(np.unique(roots)) + len(meeting)
    check_invariants(restored)


def test_memory_of_a_large_batch_is_given_back() -> None:
    held = ShardedAcker(2, 2)
    held.ingest(*random_columns(1_000, seed=1, roots=50))
    before = held.nbytes
    held.ingest(*random_columns(1_000_000, seed=2, roots=50))
    assert held.nbytes < before + 3 * 10**6


# ---- high_water ----


@pytest.mark.parametrize(
    ("shards", "high_water"), [(1, 0), (1, 1), (2, 1), (3, 1), (1, 10), (2, 10), (7, 10), (1, 100), (3, 100), (7, 100)]
)
def test_all_shards_together_hold_what_one_acker_would(shards: int, high_water: int) -> None:
    held = ShardedAcker(shards, 1, high_water=high_water, seed=SEED)
    rng = np.random.default_rng(1)
    for _ in range(6):
        for kind in (Kind.TRACK, Kind.OK):
            roots = rng.integers(INT64_MIN, INT64_MAX, 2_000)
            held.ingest(kind, roots, roots | 1, np.zeros(len(roots), np.int32))
        assert held.stats().open <= 2 * high_water + 1
        assert held.stats().pending - held.stats().open <= 4 * high_water + 1
        held.rotate()
    assert held.stats().rejected > 0 and held.stats().dropped > 0


@pytest.mark.parametrize(("shards", "high_water", "least"), [(3, 0, 1), (8, 2, 4), (256, 100, 128), (2, 0, 1)])
def test_each_shard_has_a_seat_or_the_acker_is_refused(shards: int, high_water: int, least: int) -> None:
    text = (
        f"^high_water: {high_water} allows {2 * high_water + 1} open trees, and each of {shards} shards needs room for"
        f" one; expected high_water >= {least}, or at most {2 * high_water + 1} shards$"
    )
    with pytest.raises(ArgumentValueError, match=text):
        ShardedAcker(shards, high_water=high_water)
    blob = Acker(high_water=high_water).snapshot()
    with pytest.raises(ArgumentValueError, match=text):
        ShardedAcker.restore(blob, shards)
    for held in (ShardedAcker(shards, high_water=least), ShardedAcker.restore(blob, 2 * high_water + 1)):
        for root in range(held.shards):
            assert acker_of(root, held.shards) == root
            assert len(held.ingest(Kind.TRACK, [root], [1], [0])) == 0
            assert held.ingest(Kind.OK, [root], [1]).outcome.tolist() == [0]
        assert held.stats().rejected == 0


def test_an_acker_that_is_restored_and_never_rotated_deals_its_seats_again() -> None:
    one = Acker(high_water=1)
    one.ingest(Kind.TRACK, [0, 3, 6], [1, 1, 1], [0, 0, 0])
    held = ShardedAcker.restore(one.snapshot(), 3)
    assert held.ingest(Kind.TRACK, [1, 2], [1, 1], [0, 0]).outcome.tolist() == [3, 3]  # shard 0 has all three seats
    assert len(held.ingest(Kind.OK, [0, 3, 6], [1, 1, 1])) == 3
    assert len(held.ingest(Kind.TRACK, [1, 2, 0], [1, 1, 1], [0, 0, 0])) == 0
    assert held.stats().open == 3


def test_seats_follow_what_a_restored_acker_holds() -> None:
    high_water = 100
    one = Acker(high_water=high_water)
    even = np.arange(2, 404, 2)
    one.ingest(Kind.TRACK, even, even, np.zeros(len(even), np.int32))
    assert one.stats().open == 2 * high_water + 1
    held = ShardedAcker.restore(one.snapshot(), 2, 2)
    odd = np.arange(1, 1_001, 2)
    for _ in range(2 * held.buckets):  # all seats are taken in one shard; the other has none until those expire
        held.ingest(Kind.TRACK, odd, odd, np.zeros(len(odd), np.int32))
        assert held.stats().open <= 2 * high_water + 1
        assert Acker.restore(held.snapshot()).stats() == held.stats()
        held.rotate()
    assert held.stats().tracked > len(even)
    held.ingest(Kind.TRACK, odd, odd, np.zeros(len(odd), np.int32))
    assert high_water <= held.stats().open <= high_water + 1  # an equal part of the seats again


# ---- snapshots ----


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_snapshot_is_that_of_any_acker(protocol: str) -> None:
    held = fill(3, 2, protocol=protocol, buckets=4)
    held.rotate(now_ms=2)
    held.ingest(*random_columns(3_000, seed=4), now_ms=3)
    blob = held.snapshot()
    assert blob == held.snapshot()
    restored = [
        Acker.restore(blob),
        ReferenceAcker.restore(blob),
        ShardedAcker.restore(blob, 1),
        ShardedAcker.restore(blob, shards=8, threads=3),
        ShardedAcker.restore(ReferenceAcker.restore(blob).snapshot(), 2),
        ShardedAcker.restore(ShardedAcker.restore(blob, 5).snapshot(), 3, 2),
    ]
    columns = random_columns(3_000, seed=5)
    expected, expired = by_root(held.ingest(*columns, now_ms=4)), sorted(held.rotate(now_ms=5).rows())
    for other in restored:
        assert by_root(other.ingest(*columns, now_ms=4)) == expected
        assert sorted(other.rotate(now_ms=5).rows()) == expired
        assert other.stats() == held.stats()


def test_a_snapshot_in_a_file(tmp_path) -> None:
    held = fill()
    held.snapshot_to(tmp_path / "snapshot")
    restored = ShardedAcker.restore_from(tmp_path / "snapshot", 2, 1)
    assert (restored.shards, restored.threads, restored.stats()) == (2, 1, held.stats())
    check_invariants(restored)
    damaged = bytearray(held.snapshot())
    damaged[-20] ^= 1
    with pytest.raises(acker.SnapshotError):
        ShardedAcker.restore(damaged, 2)


# ---- threads and processes ----


def test_a_second_thread_is_refused() -> None:
    held = ShardedAcker(2, 2)
    columns = Kind.RESET_TIMEOUT, np.full(500_000, 1 << 40), np.zeros(500_000, np.int64)
    stop, begins, batches = threading.Event(), threading.Event(), []

    def ingest() -> None:
        while not stop.is_set():
            begins.set()
            try:
                held.ingest(*columns)
            except BusyError:
                continue
            batches.append(1)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(ingest)
        try:
            for call in (held.rotate, held.snapshot, lambda: 7 in held, lambda: held.ingest(Kind.ANCHOR, [7], [0])):
                while True:  # either it is refused, or the other thread was between two batches
                    # Calls without a pause would keep the other thread from the GIL, and so from its next batch.
                    begins.clear()
                    assert begins.wait(60)
                    try:
                        call()
                    except BusyError:
                        break
                assert len(held) in (0, 1) and held.stats().unknown % 500_000 == 0
        finally:
            stop.set()
        running.result()
    assert held.stats().unknown == len(batches) * 500_000


def test_several_at_once_from_several_threads() -> None:
    def work(seed: int) -> None:
        held, expected = ShardedAcker(4, 1 + seed % 4, seed=seed), Acker()
        for number in range(6):
            columns = random_columns(4_000, seed=seed + number)
            assert by_root(held.ingest(*columns)) == by_root(expected.ingest(*columns))
        assert held.stats() == expected.stats()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, seed) for seed in range(8)]:
            done.result()


def test_helpers_come_with_the_first_batch_and_leave_with_the_acker() -> None:
    tasks = Path("/proc/self/task")  # elsewhere than on Linux there is nothing to count

    def threads() -> set[str]:
        return {task.name for task in tasks.iterdir()} if tasks.is_dir() else set()

    before = threads()
    held = ShardedAcker(4, 4)
    assert (threads() - before, held._core.helpers()) == (set(), 0)
    held.ingest(*random_columns(100, seed=1))
    helpers = threads() - before  # other threads of the process may end meanwhile
    assert held._core.helpers() == 3
    assert not tasks.is_dir() or len(helpers) == 3
    del held
    gc.collect()
    # The system lists a thread for a moment after it has been joined.
    deadline = time.monotonic() + LONG_SECS
    while left := helpers & threads():
        assert time.monotonic() < deadline, f"of the helpers {helpers} are left: {left}"
        time.sleep(0.01)


def _ingest_in_child(held: ShardedAcker, columns: Columns, results: object) -> None:
    done = held.ingest(*columns, now_ms=7)
    results.put((sorted(done.rows()), held.stats(), held._core.helpers()))  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_goes_on_with_helpers_of_its_own() -> None:
    if "fork" not in multiprocessing.get_all_start_methods():
        return  # nothing to go wrong
    held, columns = fill(4, 3), random_columns(5_000, seed=9)
    expected = Acker.restore(held.snapshot())
    done = sorted(expected.ingest(*columns, now_ms=7).rows())
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_ingest_in_child, args=(held, columns, results))
    child.start()
    assert results.get(timeout=60) == (done, expected.stats(), 2)
    child.join(60)
    assert child.exitcode == 0

    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = int(sorted(held.ingest(*columns, now_ms=7).rows()) != done)
            del held
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert sorted(held.ingest(*columns, now_ms=7).rows()) == done
    assert held.stats() == expected.stats()


def run_python(code: str, *arguments: str) -> None:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_python_ends_with_helpers_that_wait() -> None:
    run_python(
        "import acker, sys\n"
        "kept = acker.ShardedAcker(4, 4)\n"
        "sys.never_collected = kept, acker.ShardedAcker(2, 2)\n"
        "for a in sys.never_collected: a.ingest(acker.Kind.OK, [1, 2, 3, 4], [1, 1, 1, 1])\n"
        "print('done')\n"
    )


WITH_LARGE_STACKS = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_STACK, (2**30, resource.getrlimit(resource.RLIMIT_STACK)[1]))
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""
WITHOUT_THREADS = """
import acker, resource
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 3 * 10**8, resource.RLIM_INFINITY))
a = acker.ShardedAcker(4, 4)
a.ingest(acker.Kind.TRACK, range(100), range(1, 101), [0] * 100)
assert len(a.ingest(acker.Kind.OK, range(100), range(1, 101))) == 100
assert a._core.helpers() == 0, a._core.helpers()
print("done")
"""


def test_without_threads_the_caller_does_all_the_work() -> None:
    # A thread takes addresses for its stack. Here that is more than there are, which can be arranged on Linux.
    if sys.platform == "linux":
        run_python(WITH_LARGE_STACKS, WITHOUT_THREADS)
