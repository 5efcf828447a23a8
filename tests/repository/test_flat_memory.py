"""The soak of memory at a small size, and that it can fail."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.repository

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/flat_memory.py"


@pytest.fixture
def flat_memory() -> ModuleType:
    spec = importlib.util.spec_from_file_location("flat_memory", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_memory_is_flat_while_trees_come_and_go() -> None:
    command = [sys.executable, SCRIPT, "--trees", "200000", "--pending", "4000"]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    told = re.search(r"flat memory: ([\d,]+) trees in (\d+) rotations", done.stdout)
    assert told is not None
    assert int(told[1].replace(",", "")) >= 200_000 and int(told[2]) >= 30


@pytest.mark.parametrize("column", ["nbytes", "resident", "lines_a_look_up"])
def test_what_grows_is_noticed(flat_memory: ModuleType, column: str) -> None:
    flat = [flat_memory.Sample(i, 1000, 5 << 20, 1.1) for i in range(12)]
    assert flat_memory.faults(flat) == []
    grown = [*flat[:11], flat[11]._replace(**{column: getattr(flat[11], column) * 3})]
    assert [fault.split()[0] for fault in flat_memory.faults(grown)] == [column]


def test_too_short_a_run_tells_nothing() -> None:
    command = [sys.executable, SCRIPT, "--trees", "1000", "--pending", "1000"]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert done.returncode != 0
    assert "1 rotations are too few to tell" in done.stderr
