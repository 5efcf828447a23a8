"""Hostile user code gets exceptions from the native half of topologies, and never crashes the interpreter."""

import subprocess
import sys
from collections import Counter

import pytest

from tests.marks import slow_after
from tests.torture.hostile import __main__ as command

SEEDS = 16
CHUNK = 8


@pytest.mark.parametrize("first", slow_after(1, range(0, SEEDS, CHUNK)))
def test_user_code_at_its_worst_gets_exceptions(first):
    run = [sys.executable, "-m", "tests.torture.hostile", "--seeds", f"{first}:{first + CHUNK}"]
    done = subprocess.run(run, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"{CHUNK} seeds, "), "each seed was run to its end"


def test_a_crash_is_told_with_its_seed(capsys, monkeypatch):
    monkeypatch.setattr(command.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess((), -11, "seed 3\nbad"))
    assert command.main(["--seeds", "3:5"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "seed 3 ended the interpreter with code -11",
        "bad",
        "replay: python -m tests.torture.hostile --seed 3",
    ]


def test_an_internal_error_is_no_exception_that_users_may_get(capsys, monkeypatch):
    monkeypatch.setattr(command, "run_seed", lambda _: Counter({"SystemError: no error set": 1, "returned": 5}))
    monkeypatch.setattr(command, "_expect_the_worst", lambda: None)
    monkeypatch.setattr(command.faulthandler, "dump_traceback_later", lambda *_, **__: None)
    assert command.main(["--seed", "3"]) == 1
    assert "SystemError: no error set" in capsys.readouterr().out
