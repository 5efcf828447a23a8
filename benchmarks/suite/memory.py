"""Benchmarks of memory: bytes of a pending tree, and the time of a call while the table grows.

Memory is the growth of the process's resident size, which counts everything: tables, buffers and what the allocator
keeps. Each case runs in its own process, so that no memory freed earlier is counted.

Growth is timed twice. In memory that the process has touched before, all time is the acker's own. In fresh memory the
system adds its own: it finds pages and clears them, two megabytes at a time, and a virtual machine may have to ask its
host for them.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import re
import sys
import time
from collections.abc import Callable, Iterator, Sized
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from acker._engine.acker import Acker
from acker._engine.columns import Columns
from acker._engine.reference import ReferenceAcker
from acker.testing.streams import TreeStream
from benchmarks.suite.ingest import cut
from benchmarks.suite.measure import Case, Goal, Ratio, Result, Scale, expect
from benchmarks.suite.workloads import SEED

if sys.platform != "win32":
    import resource

_TREES: Final = 16_000_000
_REFERENCE_TREES: Final = 400_000
_BATCH_ROWS: Final = 1000
_PART_ROWS: Final = 100_000
# The worst moment is looked for from here on: of a small table the result would be what any process needs.
_WORST_FROM: Final = 1_000_000
_GROWTHS: Final = 3
_WARMING_GROWTHS: Final = 2  # the second still finds holes that the first has left


class Resident(NamedTuple):
    """The resident size of this process in bytes: now, and at most since `forget_peak`."""

    now: int
    peak: int

    @classmethod
    def read(cls) -> Resident | None:
        """Return the sizes; None where the system does not tell (it does on Linux)."""
        try:
            status = Path("/proc/self/status").read_text()
        except OSError:
            return None
        sizes = dict(re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB$", status, re.MULTILINE))
        return cls(int(sizes["VmRSS"]) * 1024, int(sizes["VmHWM"]) * 1024)

    @staticmethod
    def forget_peak() -> None:
        """Let the peak be the present size; without effect where the system does not allow it."""
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def _parts(trees: int) -> Iterator[Columns]:
    """Make the TRACKs of this many trees, a part at a time."""
    return TreeStream(trees, 1, seed=SEED).prefill(min(_PART_ROWS, trees))


class Filled(NamedTuple):
    """Bytes a tree of an acker that was filled: by its own count, and by the process's growth."""

    counted: float
    resident: float | None
    resident_at_worst: float | None


def fill(acker_type: type[Acker | ReferenceAcker], trees: int) -> Filled:
    """Fill an acker and look at its size; for a process that has done nothing else."""
    # A first part is made and dropped, so that what its making takes is resident before the count begins.
    sum(part.kind.size for part in _parts(min(trees, _PART_ROWS)))
    acker, before, worst = acker_type(seed=SEED), Resident.read(), 0.0
    for part in _parts(trees):
        Resident.forget_peak()
        for batch in cut(part, _BATCH_ROWS):
            acker.ingest(*batch)
        after = Resident.read()
        if before is not None and after is not None and len(acker) >= min(_WORST_FROM, trees):
            worst = max(worst, (after.peak - before.now) / len(acker))
    expect("pending trees", len(acker), trees)
    counted = acker.nbytes / trees
    if before is None or after is None:
        return Filled(counted, None, None)
    return Filled(counted, (after.now - before.now) / trees, worst)


def fill_apart(acker_type: type[Acker | ReferenceAcker], trees: int) -> Filled:
    """Fill an acker in a new process: memory that an earlier acker gave back would be missing from the growth."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(fill, acker_type, trees).result()


def bytes_a_tree(scale: Scale) -> Result:
    """Count the resident bytes of a native acker and of a ReferenceAcker."""
    trees, few = scale.size(_TREES, 1000), scale.size(_REFERENCE_TREES, 1000)
    native, reference = fill_apart(Acker, trees), fill_apart(ReferenceAcker, few)
    samples = {"native nbytes": [native.counted]}
    ratios = []
    if native.resident is not None and native.resident_at_worst is not None and reference.resident is not None:
        samples |= {
            "native": [native.resident],
            "native at worst": [native.resident_at_worst],
            "reference": [reference.resident],
        }
        # A small table may fit into memory that the process held before.
        ratios = [Ratio("reference", "native")] if native.resident > 0 else []
    goals = {"native": scale.goal(Goal(at_most=80)), "native at worst": scale.goal(Goal(at_most=100))}
    return Result(
        "B/tree",
        samples,
        ratios,
        {"pending": trees, "reference_pending": few, "seed": SEED},
        {"pending": trees},
        {side: goal for side, goal in goals.items() if goal and side in samples},
    )


class Growth(NamedTuple):
    """Calls of 1,000 TRACKs that let an acker grow from nothing: the microseconds of each, and their page faults."""

    calls: list[float]
    faults: int

    @classmethod
    def of(cls, ingest: Callable[..., Sized], trees: int) -> Growth:
        """Time the calls of an acker's `ingest`."""
        calls, faults = [], 0
        for part in _parts(trees):
            for batch in cut(part, _BATCH_ROWS):
                faults_before, start = _page_faults(), time.thread_time_ns()
                finished = ingest(*batch)
                calls.append((time.thread_time_ns() - start) / 1000)
                faults += _page_faults() - faults_before
                expect("trees that a TRACK finished", len(finished), 0)
        expect("trees that were tracked", len(calls) * _BATCH_ROWS, trees)
        return cls(calls, faults)

    def quantile(self, share: float) -> float:
        """Return the microseconds that this share of the calls took at most."""
        return float(np.quantile(self.calls, share))


def _page_faults() -> int:
    """Count the pages that this process has touched first; 0 where the system does not tell."""
    return 0 if sys.platform == "win32" else resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@contextmanager
def keep_freed_memory() -> Iterator[bool]:
    """Let this process keep memory that it frees, where the allocator can be told so (glibc's can); give whether.

    What one acker has touched is then there for the next one: the system need not find pages and clear them.
    """
    # The names and the usual values of <malloc.h>.
    m_mmap_max, m_trim_threshold, usual_mmap_max, usual_trim_threshold, never = -4, -1, 65536, 128 * 1024, -1
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        yield False
        return
    try:
        yield bool(mallopt(m_mmap_max, 0) and mallopt(m_trim_threshold, never))
    finally:
        mallopt(m_mmap_max, usual_mmap_max)
        mallopt(m_trim_threshold, usual_trim_threshold)


def growths(new_ingest: Callable[[], Callable[..., Sized]], trees: int, times: int, *, touched: bool) -> list[Growth]:
    """Let ackers grow, one after the other; when `touched`, in memory that others before them have touched."""
    if not touched:
        return [Growth.of(new_ingest(), trees) for _ in range(times)]
    with keep_freed_memory():
        for _ in range(_WARMING_GROWTHS):
            Growth.of(new_ingest(), trees)
        return [Growth.of(new_ingest(), trees) for _ in range(times)]


def growth(scale: Scale, *, touched: bool) -> Result:
    """Time each call of 1,000 TRACKs while an acker grows from nothing."""
    trees = scale.size(_TREES, 2000)
    taken = growths(lambda: Acker(seed=SEED).ingest, trees, min(_GROWTHS, scale.pairs), touched=touched)
    shares = {"median": 0.5, "99.9 %": 0.999, "longest": 1.0}
    samples = {name: [each.quantile(share) for each in taken] for name, share in shares.items()}
    goals = {"99.9 %": scale.goal(Goal(at_most=500)), "longest": scale.goal(Goal(at_most=10_000))} if touched else {}
    faults = [each.faults for each in taken]
    return Result(
        "µs/call",
        samples,
        [],
        {"pending": trees, "batch_rows": _BATCH_ROWS, "page_faults": faults, "seed": SEED},
        {"pending": trees},
        {side: goal for side, goal in goals.items() if goal},
    )


CASES: Final = [
    Case("memory/tree", "How many resident bytes does a pending tree take?", bytes_a_tree),
    Case(
        "memory/growth",
        "How long does a call of 1,000 TRACKs take while the table grows, in memory that was touched before?",
        partial(growth, touched=True),
    ),
    Case("memory/growth-fresh", "And in memory that the system finds for it?", partial(growth, touched=False)),
]
