"""The benchmark of free-threaded Python at a tiny size, with this Python on both sides: the work is checked."""

import sys

import pytest

from benchmarks.suite.free_threaded import FREE, GIL, VARIABLES, WAYS, compare, obstacle, throughput, why_not
from benchmarks.suite.measure import TINY

HAS_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()


@pytest.mark.minutes(2)
@pytest.mark.soak
def test_both_sides_do_the_same_work():
    result = compare(TINY, {GIL: sys.executable, FREE: sys.executable})
    names = [f"{side} {way}" for way in WAYS for side in (GIL, FREE)]
    assert list(result.samples) == [*names, *(f"{name}, a core" for name in names)]
    assert all(len(taken) == TINY.pairs and min(taken) > 0 for taken in result.samples.values())
    assert len(result.ratios) == 2 * len(WAYS) and not any(ratio.goal for ratio in result.ratios)
    assert set(result.parameters["python"].values()) == {sys.version.split()[0]}


def test_without_a_free_threaded_python_the_case_is_left_out(monkeypatch):
    monkeypatch.setenv(VARIABLES[GIL], sys.executable)
    monkeypatch.setenv(VARIABLES[FREE], sys.executable)
    assert obstacle() == f"{sys.executable} runs acker {'with' if HAS_GIL else 'without'} a GIL"
    assert why_not(FREE, None) == "ACKER_FREE_THREADED_PYTHON names no Python"
    with pytest.raises(RuntimeError, match="they cannot be compared here"):
        throughput(TINY)


def test_a_python_without_acker(tmp_path):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'import acker.nothing'\n")
    program.chmod(0o755)
    assert why_not(GIL, str(program)) == f"{program} has no acker: ModuleNotFoundError: No module named 'acker.nothing'"
