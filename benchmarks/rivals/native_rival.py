"""Rivals compiled to libraries of one interface: as much of an acker as ingest and rotate need.

A library exports ``rival_new(buckets)``, ``rival_delete``, ``rival_ingest``, ``rival_rotate`` and ``rival_bytes``
(plain_table.cpp has their types). Compilers write below build/rivals in the checkout.
"""

import ctypes
import os
import shlex
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np

from acker import Acker
from benchmarks.suite.ingest import Checker, feed, fill, windows
from benchmarks.suite.measure import Alternation, Ratio, Result, per
from benchmarks.suite.workloads import SEED, WORKLOADS

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build/rivals"
BATCH_ROWS = 10_000
BUCKETS = 3


@cache
def cpp_library(source, *defines):
    """Compile a file of C++ with the flags of the shipped module."""
    BUILD.mkdir(parents=True, exist_ok=True)
    target = BUILD / ("-".join([Path(source).stem, *defines]) + ".so")
    flags = ["-std=c++17", "-O3", "-shared", "-fPIC", *(f"-D{each}" for each in defines)]
    subprocess.run([*compiler(), *flags, "-o", target, HERE / source], check=True)
    return loaded(target)


def compiler():
    """Return the command of the C++ compiler that Python was built with, or that CXX names."""
    return shlex.split(os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++")


@cache
def rust_library(crate):
    """Compile a crate of this folder, in a copy, since cargo writes beside its sources."""
    copy = BUILD / crate
    shutil.copytree(HERE / crate, copy, dirs_exist_ok=True)
    subprocess.run(["cargo", "build", "--release", "--quiet"], check=True, cwd=copy)
    return loaded(next((copy / "target/release").glob(f"lib{crate}.*o")))


def loaded(path):
    library = ctypes.CDLL(str(path))
    library.rival_new.restype = ctypes.c_void_p
    library.rival_bytes.restype = library.rival_ingest.restype = library.rival_rotate.restype = ctypes.c_size_t
    return library


@dataclass
class Finished:
    root_id: np.ndarray
    message_id: np.ndarray
    task_id: np.ndarray

    def __len__(self):
        return self.root_id.size


class RivalAcker:
    """An acker over a rival's library; it takes columns of the right type only."""

    buckets = BUCKETS

    def __init__(self, library):
        self._library = library
        self._acker = ctypes.c_void_p(library.rival_new(ctypes.c_size_t(BUCKETS)))

    def ingest(self, kind, root_id, value, task_id, message_id):
        rows = kind.size
        done = np.empty(rows, np.int64), np.empty(rows, np.int64), np.empty(rows, np.int32)
        columns = (kind, root_id, value, task_id, message_id, *done)
        pointers = [ctypes.c_void_p(column.ctypes.data) for column in columns]
        finished = self._library.rival_ingest(self._acker, ctypes.c_size_t(rows), *pointers)
        return Finished(*(column[:finished].copy() for column in done))

    def rotate(self):
        return range(self._library.rival_rotate(self._acker))

    @property
    def nbytes(self):
        return self._library.rival_bytes(self._acker)

    def __del__(self):
        self._library.rival_delete(self._acker)


def against(name, library, workload, scale):
    """Time a rival and the native acker on one stream in its steady state."""
    shape = WORKLOADS[workload]
    native, rival = fill(Acker(seed=SEED), shape.stream(scale)), RivalAcker(library())
    stream = shape.stream(scale)
    fill(rival, stream)
    rows = scale.size(shape.window_rows, BATCH_ROWS)
    sides = {name: partial(feed, rival), "native": partial(feed, native)}
    samples = Alternation(sides, Checker().check).run(windows(stream, rows, BATCH_ROWS, scale.pairs + 1))
    sizes = {"pending": len(native), "native_bytes": native.nbytes, f"{name}_bytes": rival.nbytes}
    parameters = {"workload": workload, "batch_rows": BATCH_ROWS, "window_rows": rows, "seed": SEED, **sizes}
    return Result("ns/message", per(samples, rows), [Ratio(name, "native")], parameters, stream.expected._asdict())
