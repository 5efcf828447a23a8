"""What only the native core can get wrong: its tables, its memory, and what it does when there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import acker
from acker import Acker, Kind, ReferenceAcker, ShardedAcker, _core
from acker._engine.schemas import COMPLETION_DTYPES
from tests.native_testing import check_invariants, fail_allocations_after, probes

SEED = 20_140_917
ROWS = 40_000


def tracks(roots: np.ndarray, now_ms: int = 0, into: Any = None) -> Any:
    """Return an acker that holds one open tree a root id."""
    held = Acker(seed=SEED) if into is None else into
    ones = np.ones(len(roots), np.int64)
    held.ingest(Kind.TRACK, roots, ones, np.zeros(len(roots), np.int32), now_ms=now_ms)
    return held


def random_roots(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(2**63), 2**63, count, dtype=np.int64)


STRUCTURED = {
    "sequential": np.arange(ROWS, dtype=np.int64),
    "i << 32": np.arange(ROWS, dtype=np.int64) << 32,
    "i << 40": np.arange(ROWS, dtype=np.int64) << 40,
    "(i << 45) | 5": (np.arange(ROWS, dtype=np.int64) << 45) | 5,
    "i << 48": np.arange(ROWS, dtype=np.int64) << 48,
    "equal low bits": (random_roots(ROWS) & ~np.int64(0xFFFF)) | 7,
    "negated": -np.arange(ROWS, dtype=np.int64),
    "two blocks": np.concatenate([np.arange(ROWS // 2), np.arange(ROWS // 2) + 2**62]).astype(np.int64),
}


@pytest.mark.native_testing
@pytest.mark.parametrize("name", STRUCTURED)
def test_structured_root_ids_probe_as_little_as_random_ones(name: str) -> None:
    roots = np.unique(STRUCTURED[name])
    structured, at_random = tracks(roots), tracks(random_roots(len(roots)))
    assert len(structured) == len(at_random) == len(roots)
    assert probes(structured) <= 3 * probes(at_random)
    assert structured.nbytes <= 2 * at_random.nbytes


@pytest.mark.native_testing
def test_few_root_ids_that_differ_in_their_highest_bits_only() -> None:
    roots = np.arange(1024, dtype=np.int64) << 54
    structured, at_random = tracks(roots), tracks(random_roots(len(roots)))
    assert len(structured) == 1024
    assert probes(structured) <= 3 * probes(at_random)


@pytest.mark.native_testing
def test_a_crowded_line_overflows_far_and_is_cleared_again(native_hash: type) -> None:
    # 100 root ids with one home line reach over 25 lines: more entries pass over the first than its bits can count.
    held = tracks(random_roots(8_000))
    hash_of_seed = native_hash(SEED)
    crowd = np.array([hash_of_seed.root_of((0xABC << 52) | (i << 24) | 5) for i in range(100)], np.int64)
    quiet = probes(held)
    for start in range(0, 100, 10):
        tracks(crowd[start : start + 10], into=held)
        check_invariants(held)
    assert probes(held) > quiet + 800, "the root ids did not meet: is the hash still the one above?"
    assert all(int(root) in held for root in crowd)
    for root in np.random.default_rng(5).permutation(crowd):
        assert held.ingest([Kind.OK], [root], [1]).root_id.tolist() == [root]
        check_invariants(held)
    assert probes(held) == quiet


def chosen(native_hash: type, count: int, seed: int = SEED) -> np.ndarray:
    """Return root ids that meet on one line under a seed, and that no split of the table parts."""
    hash_of_seed = native_hash(seed)
    return np.array([hash_of_seed.root_of((0xABC << 52) | (i << 24) | 5) for i in range(count)], np.int64)


@pytest.mark.parametrize("high_water", [None, 10_000])
@pytest.mark.parametrize("others", [0, 8_000, 100_000])
def test_chosen_root_ids_under_a_known_seed_do_not_make_the_table_grow(
    native_hash: type, others: int, high_water: int | None
) -> None:
    """They are moved to another seed, and nothing but the time of one sweep tells."""
    roots, crowd = random_roots(others), chosen(native_hash, 1_000)
    for made in (Acker, lambda **options: ShardedAcker(2, 2, **options)):
        held = made(seed=SEED, high_water=high_water)
        expected = ReferenceAcker(high_water=high_water)
        if high_water is None:
            tracks(roots, into=held)
            tracks(roots, into=expected)
        size = held.nbytes
        for start in range(0, len(crowd), 50):
            tracks(crowd[start : start + 50], into=held)
            tracks(crowd[start : start + 50], into=expected)
            check_invariants(held)
        assert held.stats() == expected.stats()
        assert held.nbytes <= max(2 * size, 5_000_000)
        done = held.ingest(Kind.OK, crowd, np.ones(len(crowd), np.int64))
        assert sorted(done.root_id.tolist()) == sorted(crowd.tolist())
        check_invariants(held)
        for _ in range(held.buckets):
            held.rotate()
        assert len(held) == 0


@pytest.mark.native_testing
def test_few_chosen_root_ids_take_little(native_hash: type) -> None:
    held = tracks(chosen(native_hash, 129))
    assert len(held) == 129
    assert held.nbytes < 100_000
    assert probes(held) < 140


@pytest.mark.native_testing
def test_no_memory_to_move_chosen_root_ids_says_how_far_it_came(native_hash: type, scarce_memory: None) -> None:
    held = tracks(random_roots(4_000))
    crowd = chosen(native_hash, 400)
    fail_allocations_after(0)
    with pytest.raises(acker.AckerMemoryError) as caught:
        tracks(crowd, into=held)
    applied = caught.value.rows_applied
    assert 0 <= applied < 400
    fail_allocations_after(-1)
    check_invariants(held)
    assert len(held) == 4_000 + applied
    tracks(crowd[applied:], into=held)
    check_invariants(held)
    assert len(held) == 4_400


def test_every_entry_is_found_while_the_arena_grows_and_after_it_has_shrunk() -> None:
    held = Acker(seed=SEED, buckets=2)
    roots = random_roots(300_000)
    for start in range(0, len(roots), 7_000):
        tracks(roots[start : start + 7_000], into=held)
        check_invariants(held)
    peak = held.nbytes
    assert all(int(root) in held for root in roots[:: len(roots) // 500])
    held.rotate()
    late = random_roots(1_000, seed=2)
    tracks(late, into=held)
    expired = held.rotate()
    assert sorted(expired.root_id.tolist()) == sorted(roots.tolist())
    check_invariants(held)
    assert held.nbytes < peak / 20
    assert all(int(root) in held for root in late)
    assert not any(int(root) in held for root in roots[:100])


def test_memory_stays_flat_at_constant_pending() -> None:
    held = Acker(seed=SEED)
    roots = random_roots(600_000)
    sizes = []
    window = 20_000
    for start in range(0, len(roots), window):
        tracks(roots[start : start + window], into=held)
        if start:
            before = roots[start - window : start]
            done = held.ingest(Kind.OK, before, np.ones(window, np.int64))
            assert len(done) == window
        sizes.append(held.nbytes)
    assert max(sizes[len(sizes) // 2 :]) == sizes[len(sizes) // 2]
    check_invariants(held)


def test_an_empty_acker_is_small() -> None:
    assert Acker().nbytes < 2_000
    one = Acker()
    one.ingest([Kind.TRACK], [1], [1], [0])
    assert one.nbytes < 40_000


def messages(rows: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(3)
    kind = rng.choice(5, rows, p=[0.5, 0.1, 0.3, 0.05, 0.05]).astype(np.int8)
    roots = random_roots(rows)[rng.integers(0, rows, rows)]
    values = rng.choice(np.array([1, 2, 3], np.int64), rows)
    return kind, roots, values, rng.integers(0, 9, rows, dtype=np.int32), np.arange(rows, dtype=np.int64)


@pytest.mark.native_testing
def test_out_of_memory_at_any_allocation_says_how_far_it_came_and_keeps_the_acker_valid(scarce_memory: None) -> None:
    columns = messages(ROWS)
    failures = 0
    for successes in range(1_000):
        held, expected = Acker(seed=SEED), ReferenceAcker()
        fail_allocations_after(successes)
        try:
            held.ingest(*columns, now_ms=5)
            break
        except acker.AckerMemoryError as error:
            failure = error
        failures += 1
        applied, reported = failure.rows_applied, failure.completions
        assert f"after {applied} of {ROWS} rows" in str(failure)
        fail_allocations_after(-1)
        assert 0 <= applied < ROWS
        assert reported == expected.ingest(*(column[:applied] for column in columns), now_ms=5)
        check_invariants(held)
        assert held.stats() == expected.stats()
        rest = held.ingest(*(column[applied:] for column in columns), now_ms=6)
        assert rest == expected.ingest(*(column[applied:] for column in columns), now_ms=6)
        assert held.stats() == expected.stats()
    else:
        pytest.fail("the batch never went through")
    assert failures > 10, "the batch was to run out of memory in many places"


@pytest.mark.native_testing
def test_rotate_without_memory_to_shrink_loses_nothing(scarce_memory: None) -> None:
    held = Acker(seed=SEED, buckets=2)
    roots = random_roots(100_000)
    tracks(roots, into=held)
    held.rotate()
    tracks(np.arange(50, dtype=np.int64), into=held)
    size = held.nbytes
    fail_allocations_after(0)
    expired = held.rotate()
    assert len(expired) == len(roots)
    assert size / 20 < held.nbytes < size  # segments are merged where they stand; one that is smaller would be new
    check_invariants(held)
    assert all(root in held for root in range(50))
    fail_allocations_after(-1)
    tracks(np.arange(50, 100, dtype=np.int64), into=held)
    assert len(held.rotate()) == 50
    assert held.nbytes < size / 100
    assert all(root in held for root in range(50, 100))


@pytest.mark.native_testing
def test_rotate_without_memory_for_its_result_removes_nothing(scarce_memory: None) -> None:
    held = Acker(seed=SEED, buckets=2)
    roots = random_roots(300_000)
    tracks(roots, into=held)
    held.rotate()
    before = held.stats(), held.nbytes
    fail_allocations_after(0)
    with pytest.raises(MemoryError, match="300000 completions"):
        held.rotate()
    fail_allocations_after(-1)
    assert (held.stats(), held.nbytes) == before
    check_invariants(held)
    expired = held.rotate()
    assert sorted(expired.root_id.tolist()) == sorted(roots.tolist())


def test_columns_of_a_large_rotation_outlive_all_else() -> None:
    held = tracks(random_roots(300_000))
    for _ in range(held.buckets - 1):
        held.rotate()
    expired = held.rotate()
    del held
    # They share one block, which lives as long as any of them.
    kept = expired.root_id
    columns = (kept, expired.message_id, expired.task_id, expired.outcome, expired.elapsed_ms)
    assert all(column.flags.writeable and column.flags.aligned and column.size == 300_000 for column in columns)
    del columns
    expected = np.sort(kept)
    expired.outcome[:] = 7
    expired.elapsed_ms[:] = -1
    del expired
    assert np.array_equal(np.sort(kept), expected)
    assert len(np.unique(kept)) == 300_000


@pytest.mark.native_testing
def test_restoring_without_memory_raises_memory_error(scarce_memory: None) -> None:
    blob = tracks(random_roots(50_000)).snapshot()
    fail_allocations_after(2)
    with pytest.raises(MemoryError, match="50000 entries"):
        Acker.restore(blob)


def test_results_without_rows_are_whole_and_apart() -> None:
    held = tracks(np.arange(10, dtype=np.int64))
    row = np.array([99])
    first, second = held.ingest(np.array([Kind.OK], np.int8), row, row), held.ingest(Kind.OK, [99], [1])
    assert first == second == held.rotate() == acker.Completions.empty()
    for name, dtype in COMPLETION_DTYPES.items():
        column = getattr(first, name)
        assert column.dtype == dtype and column.shape == (0,) and column.flags.owndata and column.flags.writeable
    first.root_id = row
    assert len(second) == len(held.ingest(Kind.OK, [99], [1])) == 0


def test_completions_own_their_memory() -> None:
    held = tracks(np.arange(10, dtype=np.int64))
    done = held.ingest(Kind.OK, np.arange(10, dtype=np.int64), np.ones(10, np.int64))
    before = done.root_id.tolist()
    for column in (done.root_id, done.message_id, done.task_id, done.outcome, done.elapsed_ms):
        assert column.flags.owndata and column.flags.writeable
    tracks(random_roots(100_000), into=held)
    del held
    assert done.root_id.tolist() == before


@pytest.mark.parametrize("protocol", ["storm", "storm-0.9", "fsshelter"])
@pytest.mark.parametrize("kernel", _core.kernels())
def test_every_kernel_gives_the_same_as_the_reference(
    kernel: str, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACKER_KERNEL", kernel)
    assert acker.build_info()["kernel"] == kernel
    held, expected = Acker(protocol=protocol, seed=SEED), ReferenceAcker(protocol=protocol)
    columns = messages(ROWS)
    for now_ms, start in enumerate(range(0, ROWS, 5_000)):
        batch = [column[start : start + 5_000] for column in columns]
        assert held.ingest(*batch, now_ms=now_ms) == expected.ingest(*batch, now_ms=now_ms)
        if start % 15_000 == 0:
            assert sorted(held.rotate(now_ms=now_ms).rows()) == sorted(expected.rotate(now_ms=now_ms).rows())
        assert held.stats() == expected.stats()
    check_invariants(held)


def test_a_kernel_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACKER_KERNEL", "abacus")
    with pytest.raises(ValueError, match=r"ACKER_KERNEL: expected one of .*portable, got 'abacus'"):
        Acker()
    with pytest.raises(ValueError, match="ACKER_KERNEL"):
        acker.build_info()
