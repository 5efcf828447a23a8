"""The command line without Spark: help, exit codes, and what it loads."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys

import pytest

from acker.cli import state


@pytest.mark.parametrize(
    ("command", "codes"),
    [
        ("", "0 2 4 130"),
        ("run", "0 1 2 3 4 130"),
        ("consume", "0 1 2 4 130"),
        ("letters", "0 1 2 4 130"),
        ("letters retry", "0 1 2 4 130"),
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


@pytest.mark.parametrize("checkpoint", ["none", "{folder}/none", "file:{folder}/none", "file://{folder}/none", "file"])
def test_a_checkpoint_that_is_not_there_is_refused_before_spark_starts(
    invoke, tmp_path, monkeypatch, checkpoint
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(state, "spark_session", None)
    for name in state._SETTINGS_IN:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))  # without settings
    path = checkpoint.format(folder=tmp_path)
    answer = invoke("state", "inspect", path)
    text = f"acker: {path}: expected the checkpointLocation of a query with state, found no folder there\n"
    assert (answer.exit_code, answer.output) == (2, text)


class AskedError(Exception):
    """Spark was to be started."""


@pytest.mark.parametrize(
    ("checkpoint", "options", "elsewhere"),
    [
        ("there", (), ""),
        ("file:{folder}/there", (), ""),
        ("file://{folder}/wi%20th", (), ""),
        ("hdfs://none", (), ""),
        ("s3a://bucket/none", (), ""),
        ("none", ("--master", "yarn"), ""),
        ("none", (), "HADOOP_CONF_DIR"),
        ("none", (), "SPARK_HOME"),
    ],
)
def test_what_may_be_elsewhere_is_left_to_spark(invoke, tmp_path, monkeypatch, checkpoint, options, elsewhere) -> None:
    def start(*_arguments, **_options):
        raise AskedError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(state, "spark_session", start)
    for name in state._SETTINGS_IN:
        monkeypatch.delenv(name, raising=False)
    if elsewhere:
        monkeypatch.setenv(elsewhere, str(tmp_path))
    for name in ("there", "wi th", "conf"):
        (tmp_path / name).mkdir()
    (tmp_path / "core-site.xml").touch()
    (tmp_path / "conf" / "spark-defaults.conf").touch()
    answer = invoke("state", "inspect", checkpoint.format(folder=tmp_path), *options)
    assert isinstance(answer.exception, AskedError)
