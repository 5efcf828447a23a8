"""Memory of a pending tree, and how long a call waits while the table grows.

Memory is the growth of the process's resident size, which counts everything: tables, buffers and what the allocator
keeps. Each case runs in a process of its own, so that nothing freed before is in it.
"""

from __future__ import annotations

import multiprocessing
import re
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from acker.bench.ingest import cut
from acker.bench.measure import Case, Ratio, Result, Scale, expect
from acker.bench.workloads import SEED
from acker.columns import Columns
from acker.engine import Acker
from acker.reference import ReferenceAcker
from acker.testing.streams import TreeStream

_TREES: Final = 16_000_000
_REFERENCE_TREES: Final = 400_000
_BATCH_ROWS: Final = 1000
_PART_ROWS: Final = 100_000
# The worst moment is looked for from here on: of a small table the result would be what any process needs.
_WORST_FROM: Final = 1_000_000
_GROWTHS: Final = 3


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
    """Make TRACKs of so many trees, a part at a time."""
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
    """Fill an acker in a process of its own: memory that one before it gave back would be counted to neither."""
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
    return Result(
        "B/tree", samples, ratios, {"pending": trees, "reference_pending": few, "seed": SEED}, {"pending": trees}
    )


def growth(scale: Scale) -> Result:
    """Time each call of 1,000 TRACKs while an acker grows from nothing."""
    trees = scale.size(_TREES, 2000)
    samples: dict[str, list[float]] = {"median": [], "99.9 %": [], "longest": []}
    for _ in range(min(_GROWTHS, scale.pairs)):
        acker, taken = Acker(seed=SEED), []
        for part in _parts(trees):
            for batch in cut(part, _BATCH_ROWS):
                start = time.thread_time_ns()
                acker.ingest(*batch)
                taken.append(time.thread_time_ns() - start)
        expect("pending trees", len(acker), trees)
        for name, share in (("median", 0.5), ("99.9 %", 0.999), ("longest", 1.0)):
            samples[name].append(float(np.quantile(taken, share)) / 1000)
    parameters = {"pending": trees, "batch_rows": _BATCH_ROWS, "seed": SEED}
    return Result("µs/call", samples, [], parameters, {"pending": trees})


CASES: Final = [
    Case("memory/tree", "How many resident bytes does a pending tree take?", bytes_a_tree),
    Case("memory/growth", "How long does a call of 1,000 TRACKs take while the table grows?", growth),
]
