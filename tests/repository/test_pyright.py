"""Pyright accepts what mypy accepts of typed programs; `make lint` has mypy."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(("line", "code"), [("", 0), ("Consumer(7)\n", 1)])
def test_pyright_checks_a_typed_consumer(tmp_path, line, code):
    program = tmp_path / "program.py"
    text = (ROOT / "tests/typing/consumer_usage.py").read_text(encoding="utf-8")
    program.write_text(text + line, encoding="utf-8")
    env = os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(program)]
    found = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == code, found.stdout + found.stderr
