"""The command line without Spark: help, exit codes, and what it loads."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys

import pytest


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
