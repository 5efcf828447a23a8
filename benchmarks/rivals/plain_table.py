"""Does one table for all buckets pay? Native ingest against one open-addressing table per bucket, in C++ too."""

import ctypes
import os
import shlex
import subprocess
import sysconfig
import tempfile
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np

from acker import Acker
from benchmarks.suite.ingest import Checker, feed, fill, windows
from benchmarks.suite.measure import Alternation, Case, Goal, Ratio, Result, per
from benchmarks.suite.memory import growths
from benchmarks.suite.workloads import SEED, WORKLOADS

BATCH_ROWS = 10_000
GROWN_TREES = 16_000_000


@cache
def library():
    """Compile the plain table with the flags of the shipped module."""
    folder = tempfile.mkdtemp(prefix="acker-rivals-")
    target = Path(folder) / "plain_table.so"
    compiler = shlex.split(os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++")
    source = Path(__file__).with_name("plain_table.cpp")
    subprocess.run([*compiler, "-std=c++17", "-O3", "-shared", "-fPIC", "-o", target, source], check=True)
    loaded = ctypes.CDLL(str(target))
    loaded.plain_new.restype = ctypes.c_void_p
    loaded.plain_bytes.restype = loaded.plain_ingest.restype = loaded.plain_rotate.restype = ctypes.c_size_t
    return loaded


@dataclass
class Finished:
    root_id: np.ndarray
    message_id: np.ndarray
    task_id: np.ndarray

    def __len__(self):
        return self.root_id.size


class PlainAcker:
    """As much of the acker as ingest needs; columns of the right type only."""

    buckets = 3

    def __init__(self):
        self._library = library()
        self._acker = ctypes.c_void_p(self._library.plain_new(ctypes.c_size_t(self.buckets)))

    def ingest(self, kind, root_id, value, task_id, message_id):
        rows = kind.size
        done = np.empty(rows, np.int64), np.empty(rows, np.int64), np.empty(rows, np.int32)
        columns = (kind, root_id, value, task_id, message_id, *done)
        pointers = [ctypes.c_void_p(column.ctypes.data) for column in columns]
        finished = self._library.plain_ingest(self._acker, ctypes.c_size_t(rows), *pointers)
        return Finished(*(column[:finished].copy() for column in done))

    def rotate(self):
        return range(self._library.plain_rotate(self._acker))

    @property
    def nbytes(self):
        return self._library.plain_bytes(self._acker)

    def __del__(self):
        self._library.plain_delete(self._acker)


def against_plain(workload, scale):
    """Time both on one stream in its steady state."""
    shape = WORKLOADS[workload]
    native, plain = fill(Acker(seed=SEED), shape.stream(scale)), PlainAcker()
    stream = shape.stream(scale)
    fill(plain, stream)
    rows = scale.size(shape.window_rows, BATCH_ROWS)
    sides = {"plain": partial(feed, plain), "native": partial(feed, native)}
    samples = Alternation(sides, Checker().check).run(windows(stream, rows, BATCH_ROWS, scale.pairs + 1))
    sizes = {"pending": len(native), "native_bytes": native.nbytes, "plain_bytes": plain.nbytes}
    parameters = {"workload": workload, "batch_rows": BATCH_ROWS, "window_rows": rows, "seed": SEED, **sizes}
    return Result("ns/message", per(samples, rows), [Ratio("plain", "native")], parameters, stream.expected._asdict())


def growing(scale):
    """Time calls of 1,000 TRACKs while both grow from nothing, in memory that was touched before."""
    trees, times = scale.size(GROWN_TREES, 2000), min(3, scale.pairs)
    plain = growths(lambda: PlainAcker().ingest, trees, times, touched=True)
    native = growths(lambda: Acker(seed=SEED).ingest, trees, times, touched=True)
    samples = {
        "plain longest": [growth.quantile(1) for growth in plain],
        "native longest": [growth.quantile(1) for growth in native],
        "plain 99.9 %": [growth.quantile(0.999) for growth in plain],
        "native 99.9 %": [growth.quantile(0.999) for growth in native],
    }
    faults = {"plain": [growth.faults for growth in plain], "native": [growth.faults for growth in native]}
    ratios = [Ratio("plain longest", "native longest"), Ratio("plain 99.9 %", "native 99.9 %")]
    goal = scale.goal(Goal(at_least=200_000))
    goals = {"plain longest": goal} if goal else {}
    parameters = {"pending": trees, "batch_rows": 1000, "page_faults": faults, "seed": SEED}
    return Result("µs/call", samples, ratios, parameters, {"completions": trees}, goals)


CASES = [
    *(
        Case(f"plain/{workload}", "What does one table per bucket cost?", partial(against_plain, workload))
        for workload in ("m1", "m2", "k20", "s20k", "p100")
    ),
    Case("plain/growth", "How long does a call wait while a table is doubled, or a segment split?", growing),
]
