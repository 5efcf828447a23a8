"""`acker doctor` on a machine where everything works: the real command, in a process of its own."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import acker

pytestmark = pytest.mark.spark


def test_the_doctor_runs_a_task_on_each_core() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "acker", "doctor", "--master", "local[2]"], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0
    assert answer.stderr == "starting Spark at local[2] ...\nrunning 2 tasks, which look at acker ...\n"
    lines = [" ".join(line.split()) for line in answer.stdout.splitlines()]
    assert lines[-1] == "all fine" and all(line.startswith("ok ") for line in lines[:-1])
    (executor,) = [line for line in lines if line.startswith("ok executor ")]
    assert "tasks: 2; " in executor and "ok tasks 2 of 2 answered" in lines
    info = acker.build_info()
    about = f"acker {acker.__version__}, {info['implementation']}, {info['kernel']}, {info['abi']}; at "
    for line in (executor, *[line for line in lines if line.startswith("ok driver ")]):
        assert f"python {platform.python_version()} at {sys.executable}; {about}" in line


def test_a_spark_that_does_not_start_is_one_line_of_the_report(tmp_path) -> None:
    """A master that nobody can parse."""
    command = [sys.executable, "-m", "acker", "doctor", "--master", "local[x]"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (answer.returncode, answer.stderr) == (1, "starting Spark at local[x] ...\n")
    (line,) = [line for line in answer.stdout.splitlines() if line.startswith("  NO ")]
    assert "Spark did not start at local[x]: " in line and "Could not parse Master URL: 'local[x]'" in line
    assert answer.stdout.endswith("not everything is fine\n")
    log = Path(line.rpartition("(see ")[2].rstrip(")"))
    assert log.is_file()  # what the line names is there to be read
    shutil.rmtree(log.parent)
