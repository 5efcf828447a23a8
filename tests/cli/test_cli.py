"""The command line without Spark: help, exit codes, and one sentence where something is missing."""

from __future__ import annotations

import importlib.metadata
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from acker import ReferenceAcker, __version__
from acker.cli import environment, jdk
from acker.cli.commands import cli
from acker.cli.probe import prober


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        return CliRunner().invoke(cli, [str(argument) for argument in arguments])

    return run


@pytest.mark.parametrize(
    ("command", "codes"),
    [
        ("", "0 2 4 130"),
        ("run", "0 1 2 3 4 130"),
        ("state", "0 2 4 130"),
        ("state inspect", "0 1 2 4 130"),
        ("graph", "0 2"),
        ("doctor", "0 1 2 4 130"),
    ],
)
def test_each_command_has_help_with_its_own_exit_codes(invoke, command, codes) -> None:
    answer = invoke(*command.split(), "--help")
    assert answer.exit_code == 0 and "Usage: " in answer.output
    assert invoke(*command.split(), "-h").output == answer.output
    if command == "run":
        assert "MODULE:TOPOLOGY" in answer.output
    listed = dict(re.findall(r"^ +(\d+)  (\S.*)$", answer.output.partition("Exit codes")[2], re.MULTILINE))
    assert " ".join(listed) == codes and listed["0"].startswith("everything" if command == "doctor" else "success")
    if command == "run":
        assert listed["3"].startswith("a task hung")


def test_version(invoke) -> None:
    assert invoke("--version").output == f"acker, version {importlib.metadata.version('acker')}\n"


def test_click_itself_may_be_missing() -> None:
    code = "import sys; sys.modules['click'] = None; from acker.cli import main; main()"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (4, "click is not installed: pip install 'acker[cli]'\n")


def test_the_module_is_the_command() -> None:
    answer = subprocess.run([sys.executable, "-m", "acker", "--version"], capture_output=True, text=True, check=False)
    assert answer.returncode == 0 and answer.stdout.endswith(f"version {importlib.metadata.version('acker')}\n")


def test_the_command_line_loads_nothing_optional() -> None:
    code = (
        "import sys, acker.cli.commands; print(sorted({'pyspark', 'pyarrow', 'rich', 'matplotlib'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"


def java(folder: Path, version: str | None) -> Path:
    """Make something that answers like a Java of a version; None: one that does not run."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    release = re.match(r"(?:1\.)?\d+", version or "0")
    properties = {"home": folder, "version": version, "specification.version": release and release[0]}
    lines = [f"echo '    java.{name} = {value}' >&2" for name, value in properties.items()]
    program.write_text("\n".join(["#!/bin/sh", *(["exit 1"] if version is None else lines), ""]))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine that has these Javas and no other."""

    def have(**versions: str | None) -> dict[str, Path]:
        homes = {name: java(tmp_path / name, version) for name, version in versions.items()}
        programs = [home / "bin" / "java" for home in (tmp_path / "nothing", *homes.values())]
        monkeypatch.setattr(jdk, "_programs", lambda _path, _folders: iter(programs))
        monkeypatch.delenv("JAVA_HOME", raising=False)
        return homes

    return have


def test_the_first_jdk_that_will_do_is_taken(machine) -> None:
    homes = machine(broken=None, old="1.8.0_402", eleven="11.0.2", good="21.0.1", newer="25-ea")
    assert environment.find_jdk() == (homes["good"], 21, "21.0.1")


@pytest.mark.parametrize(
    ("version", "release"), [("17.0.15", 17), ("25-ea", 25), ("1.8.0_402", 8), ("21", 21), (None, None)]
)
def test_versions_of_java(tmp_path, version, release) -> None:
    found = jdk.inspect(java(tmp_path / "java", version) / "bin" / "java")
    assert (found and found.release) == release


@pytest.mark.spark
def test_without_a_jdk_one_sentence_says_what_to_do(machine, invoke) -> None:
    machine()
    answer = invoke("state", "inspect", "checkpoint")
    sentence = (
        "acker: Spark needs a JDK 17 or newer, and there is none: install one (such as openjdk-17-jre-headless) or set "
        "JAVA_HOME"
    )
    assert answer.exit_code == 4 and answer.output.splitlines()[-1] == sentence
    homes = machine(old="11.0.2", broken=None)
    with pytest.raises(environment.SetupError, match=f"and {homes['old']} is Java 11: install one"):
        environment.find_jdk()


def test_java_home_and_path_come_first(monkeypatch, tmp_path) -> None:
    named, on_path = java(tmp_path / "named", "25"), java(tmp_path / "on path", "21")
    monkeypatch.setenv("JAVA_HOME", str(named))
    monkeypatch.setenv("PATH", str(on_path / "bin"), prepend=os.pathsep)
    assert environment.find_jdk().version == "25"
    monkeypatch.setenv("JAVA_HOME", "")
    assert environment.find_jdk().version == "21"


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


def test_the_doctor_says_that_spark_is_missing(invoke, machine, monkeypatch) -> None:
    machine(jdk="17")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else importlib.util)
    answer = invoke("doctor")
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


def test_the_doctor_notices_a_native_module_that_counts_wrong(monkeypatch) -> None:
    look = prober()
    assert look()["fault"] is None
    real = ReferenceAcker.ingest
    monkeypatch.setattr(
        ReferenceAcker,
        "ingest",
        lambda self, kind, root_id, value, *rest, **now: real(self, kind, root_id, value ^ 1, *rest, **now),
    )
    assert look()["fault"] == "its results are not those of the reference"


def test_an_interrupt_is_known_behind_what_spark_raises() -> None:
    def cancelled() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("job cancelled")

    with pytest.raises(RuntimeError, match="job cancelled") as caught:
        cancelled()
    assert environment.was_interrupted(caught.value)
    assert not environment.was_interrupted(RuntimeError("job failed"))
