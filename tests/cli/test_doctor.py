"""`acker doctor`: what it says of a machine where something is missing, and of one where everything works."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import acker
from acker import __version__


def test_the_doctor_says_what_is_missing(invoke, machine, monkeypatch) -> None:
    machine()
    real = importlib.metadata.version

    def version(package: str) -> str:
        if package == "protobuf":
            raise importlib.metadata.PackageNotFoundError(package)
        return real(package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    answer = invoke("doctor")
    assert answer.exit_code == 1
    lines = [" ".join(line.split()) for line in answer.output.splitlines()]
    assert "NO protobuf not installed: pip install 'acker[spark]'" in lines
    assert any(line.startswith("NO spark Spark needs a JDK 17 or newer, and there is none") for line in lines)
    assert any(line.startswith("ok driver ") and f"acker {__version__}" in line for line in lines)
    assert lines[-1] == "not everything is fine"


@pytest.fixture
def without_pyspark(machine, monkeypatch):
    machine(jdk="17")
    find_spec = importlib.util.find_spec

    def find_others(name, *more):
        return None if name == "pyspark" else find_spec(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", find_others)
    monkeypatch.setattr("acker.cli.doctor.find_spec", find_others)


def test_everything_is_fine_without_spark_which_is_optional(invoke, without_pyspark) -> None:
    answer = invoke("doctor")
    lines = [" ".join(line.split()) for line in answer.output.splitlines()]
    assert "ok spark not installed, and only acker.spark needs it: pip install 'acker[spark]'" in lines
    assert lines[-1] == "all fine" and answer.exit_code == 0


def test_the_doctor_says_that_spark_is_missing_to_whom_asks_for_it(invoke, without_pyspark) -> None:
    answer = invoke("doctor", "--master", "spark://head:7077")
    assert answer.exit_code == 1 and answer.exception.__class__ is SystemExit
    assert "NO spark pyspark is not installed: pip install 'acker[spark]'" in " ".join(answer.output.split())


def test_the_doctor_knows_which_python_jobs_would_run(invoke, machine, monkeypatch, tmp_path) -> None:
    machine()
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho 3.9.1\n")
    other.chmod(0o755)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    output = " ".join(invoke("doctor").output.split())
    assert f"NO workers jobs would run {other}, Python 3.9.1, since PYSPARK_PYTHON is not set" in output
    for named in (["--python", sys.executable], ["--master", "spark://head:7077"]):
        assert "workers" not in invoke("doctor", *named).output
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert "workers" not in invoke("doctor").output


@pytest.mark.spark
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
    about = f"acker {acker.__version__}, {info['kernel']}, {info['abi']}; at "
    for line in (executor, *[line for line in lines if line.startswith("ok driver ")]):
        assert f"python {platform.python_version()} at {sys.executable}; {about}" in line


@pytest.mark.spark
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
