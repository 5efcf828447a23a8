"""The command lines of the word counts: help, exit codes, and one sentence where something is missing."""

from __future__ import annotations

import importlib.util
import re

import pytest
from click.testing import CliRunner

from examples.wordcount.__main__ import batch, stream
from examples.wordcount.cli import was_interrupted

COMMANDS = pytest.mark.parametrize("command", [batch, stream], ids=["batch", "stream"])


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(command, *arguments):
        return CliRunner().invoke(command, [str(argument) for argument in arguments])

    return run


@COMMANDS
def test_each_command_has_help_with_its_own_exit_codes(invoke, command) -> None:
    answer = invoke(command, "--help")
    assert answer.exit_code == 0 and "Usage: " in answer.output
    assert invoke(command, "-h").output == answer.output
    codes = dict(re.findall(r"^ +(\d+)  (\S.*)$", answer.output.partition("Exit codes")[2], re.MULTILINE))
    assert " ".join(codes) == "0 1 2 3 4 5 130" and codes["0"].startswith("success")
    assert codes["3"].startswith("verified, with dead-lettered lines")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--fail-rate", "1.5"], "1.5 is not in the range 0<=x<=1"),
        (["--drop-rate", "-0.1"], "-0.1 is not in the range 0<=x<=1"),
        (["--max-attempts", "0"], "0 is not in the range 1<=x<=1000"),
        (["--seed", "-1"], "-1 is not in the range"),
        (["--input", "nowhere"], "nowhere is not a folder"),
        (["--input", "."], "no text file under"),
        (["--output", "file"], "'file' is a file"),
        (["--colour"], "No such option"),
    ],
)
def test_what_cannot_be_is_a_usage_error(invoke, tmp_path, arguments, text) -> None:
    if "file" in arguments:
        (tmp_path / "file").touch()
    answer = invoke(batch, *arguments)
    assert answer.exit_code == 2 and text in answer.output
    assert sorted(path.name for path in tmp_path.iterdir()) in ([], ["file"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--timeout", "0"], "0.0 is not in the range x>0"),
        (["--kills", "-1"], "-1 is not in the range x>=0"),
        (["--master", "yarn"], "--master: expected a local one, such as local[2,4], got 'yarn'"),
        (["--work", "."], "--work: expected a new or an empty folder, . is not empty"),
        (["--input", "nowhere"], "nowhere is not a folder"),
    ],
)
def test_what_a_stream_cannot_be_is_a_usage_error(invoke, tmp_path, arguments, text) -> None:
    (tmp_path / "file").touch()
    answer = invoke(stream, *arguments)
    assert answer.exit_code == 2 and text in answer.output
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("command", "module", "hint"),
    [
        (stream, "pyspark", "pyspark is not installed: pip install 'acker[spark]'"),
        (stream, "pyarrow", "pyarrow is not installed: pip install 'acker[spark]'"),
        (batch, "pyspark", "pyspark is not installed: pip install 'acker[spark]'"),
        (batch, "pyarrow", "pyarrow is not installed: pip install 'acker[spark]'"),
        (batch, "rich", "rich is not installed: pip install 'acker[cli]'"),
        (batch, "matplotlib", "matplotlib is not installed: pip install matplotlib"),
    ],
)
def test_a_missing_package_is_named_with_what_brings_it(invoke, monkeypatch, command, module, hint) -> None:
    # All the others are there, whatever the environment of the tests has.
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else importlib.util)
    answer = invoke(command)
    assert answer.exit_code == 4 and answer.output.splitlines()[1:] == [f"acker: {hint}"]


def test_an_interrupt_is_known_behind_what_spark_raises() -> None:
    def cancelled() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("job cancelled")

    with pytest.raises(RuntimeError, match="job cancelled") as caught:
        cancelled()
    assert was_interrupted(caught.value)
    assert not was_interrupted(RuntimeError("job failed"))
