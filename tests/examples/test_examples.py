"""Every program in examples/ runs by itself and prints what its page says it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
LINES_MAX = 80


def run(folder: Path, *command: str) -> str:
    """Return what a program prints; its warnings are errors unless it starts Spark."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def program(name: str) -> str:
    return str(ROOT / "examples" / name)


def test_queue_consumer_acks_each_order_once(tmp_path: Path) -> None:
    printed = run(tmp_path, "-W", "error", program("queue_consumer.py"))
    assert sorted(printed.splitlines()) == [
        "order 1 (lamp lamp desk): ACKED",
        "order 2 (chair sofa): FAILED",
        "order 3 (rug): ACKED",
        "order 4 (chair sofa): ACKED",
    ]


def test_topology_counts_words_and_gives_one_line_up(tmp_path: Path) -> None:
    # Its threads print at the same time, so two texts may come before the ends of their lines.
    printed = run(tmp_path, "-W", "error", program("topology.py"))
    assert printed.endswith("drained: 3 of 4 lines were acked\n")
    assert "line 3 was given up: ValueError: '4' is no word" in printed
    assert all(count in printed for count in ("the: 3", "acker: 2", "storm: 1"))


def test_offsets_commits_the_end_of_the_log_and_never_goes_back(tmp_path: Path) -> None:
    printed = run(tmp_path, "-W", "error", program("offsets.py")).splitlines()
    assert printed[-1] == "at the end: {0: 5, 1: 5}"
    for partition in (0, 1):
        commits = [int(found) for found in re.findall(rf"\b{partition}: (\d+)", "\n".join(printed[:-1]))]
        assert commits == sorted(set(commits)) and commits[-1] == 5


def test_test_topology_passes() -> None:
    printed = run(ROOT, "-m", "pytest", "-q", program("test_topology.py"))
    assert "12 passed" in printed


@pytest.mark.spark
def test_spark_batch_counts_only_orders_that_are_done(tmp_path: Path) -> None:
    printed = run(tmp_path, program("spark_batch.py"))
    assert re.findall(r"order (\d): (\w+)", printed) == [("1", "ACKED"), ("2", "FAILED"), ("3", "ACKED")]
    assert "failed in pack: LookupError: no sofa is left" in printed
    assert re.findall(r"\|parcel with a (\w+) *\|(\d)", printed) == [("desk", "1"), ("lamp", "2"), ("rug", "1")]


@pytest.mark.spark
def test_spark_stream_sends_the_failed_order_again(tmp_path: Path) -> None:
    printed = run(tmp_path, program("spark_stream.py"))
    outcomes = re.findall(r"order (\d): (\w+)", printed)
    assert sorted(outcomes) == [("1", "ACKED"), ("2", "ACKED"), ("2", "FAILED"), ("3", "ACKED")]
    assert outcomes.index(("2", "FAILED")) < outcomes.index(("2", "ACKED"))


def test_every_program_is_short_is_run_here_and_is_linked_from_a_page() -> None:
    assert len(PROGRAMS) == 6
    tests = Path(__file__).read_text(encoding="utf-8")
    pages = "".join(path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    for name in PROGRAMS:
        text = (ROOT / "examples" / name).read_text(encoding="utf-8")
        assert len(text.splitlines()) <= LINES_MAX, name
        assert re.search(rf"^Run it: python .*examples/{name}", text, re.MULTILINE), (
            f"{name} does not say how to run it"
        )
        assert f'program("{name}")' in tests, name
        assert f"examples/{name})" in pages, f"{name}: no page links to it"
