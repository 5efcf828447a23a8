"""The word count of `make run`: on both runtimes, and as a stream whose driver is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from examples.wordcount import lines_of, text_files, verify

ROOT = Path(__file__).resolve().parents[2]
LONG = 600.0  # no wait is for a time; one that comes to this is a failure
LINES = 3000


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder with a few files: one has a line that is no UTF-8, and one is binary."""
    folder = tmp_path / "texts"
    (folder / "site-packages").mkdir(parents=True)
    for file in range(3):
        lines = (f"line {number} of file {file}: the quick brown fox" for number in range(LINES // 3))
        (folder / f"{file}.txt").write_text("\n".join(lines))
    (folder / "latin.txt").write_bytes(b"th\xe9 au lait\n")
    (folder / "binary").write_bytes(b"a\0b")
    (folder / "site-packages" / "other.py").write_text("not counted")
    return folder


# A file of the journal: of a lease, a micro-batch, and the number of the file if there is a second one.
JOURNALED = re.compile(r"\d+-(\d+)(?:\.\d+)?")


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("*")]


class Program:
    """The word count in a process group of its own, which can be killed with its JVM."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        command = [sys.executable, ROOT / "examples/wordcount.py", *arguments, "--output", folder / "output"]
        self.log = folder / "told"
        with self.log.open("ab") as stream:
            self.process = subprocess.Popen(
                list(map(str, command)), cwd=folder, stdout=stream, stderr=stream, start_new_session=True
            )

    def wait_for(self, folder: Path, number: int) -> None:
        """Wait until a folder of the journal has the file of a micro-batch, or of a later one."""
        deadline = time.monotonic() + LONG
        while not any(int(found[1]) >= number for found in map(JOURNALED.fullmatch, names_in(folder)) if found):
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> dict[str, str]:
        """Wait for the end; return the figures that were printed."""
        code = self.process.wait(LONG)
        text = self.log.read_text()
        assert code == 0, text
        return dict(re.findall(r"^ +(\S[^\n]*?)  (\S.*)$", text, re.MULTILINE))


def test_counts_are_at_least_once_in_one_process(texts: Path, tmp_path: Path) -> None:
    figures = Program(tmp_path, "--on", "local", "--input", texts).end()
    assert figures["verified"] == "yes, each word at least once"
    assert int(figures["acked"].replace(",", "")) == LINES + 1, "and the empty one behind the last newline"
    assert figures["dead letters"].startswith("1 in ")
    letter = json.loads((tmp_path / "output/dead-letters.jsonl").read_text())
    assert (letter["place"], letter["line"]) == ("latin.txt:1", "th\N{REPLACEMENT CHARACTER} au lait")
    assert "UnicodeError: not UTF-8 (attempt 4)" in letter["reason"]


@pytest.mark.spark
def test_counts_are_exact_although_lines_fail_half_way(texts: Path, tmp_path: Path) -> None:
    figures = Program(tmp_path, "--input", texts, "--master", "local[2]").end()
    assert figures["verified"] == "yes, equal to a plain count"
    assert int(figures["acked"].replace(",", "")) == LINES + 1
    assert figures["dead letters"].startswith("1 in ")
    assert int(figures["words counted"].replace(",", "")) == 9 * LINES
    assert (tmp_path / "output/report.html").read_text().count("</html>") == 1


@pytest.mark.slow
@pytest.mark.spark
def test_counts_are_exact_although_the_driver_is_killed(texts: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    arguments = ["--input", texts, "--master", "local[2]", "--checkpoint", checkpoint]
    for folder, number in (("plans", 0), ("commits", 0), ("plans", 2)):
        program = Program(tmp_path, *arguments)
        program.wait_for(checkpoint / folder, number)
        program.kill()
    figures = Program(tmp_path, *arguments).end()
    assert figures["verified"] == "yes, equal to a plain count"
    assert figures["dead letters"].startswith("1 in ")
    assert int(figures["words counted"].replace(",", "")) == 9 * LINES


def test_a_wrong_count_is_named(texts: Path) -> None:
    assert text_files(texts) == ["0.txt", "1.txt", "2.txt", "latin.txt"]
    assert lines_of(texts / "latin.txt") == ["th\N{REPLACEMENT CHARACTER} au lait", ""]
    expected = Counter(word for name in text_files(texts) for line in lines_of(texts / name) for word in line.split())
    dead = ["th\N{REPLACEMENT CHARACTER} au lait"]
    expected.subtract(dead[0].split())
    assert verify(+expected, texts, dead, exact=True) is None
    more = +expected + Counter(fox=1)
    assert verify(more, texts, dead, exact=False) is None
    assert verify(more, texts, dead, exact=True) == "1 words were counted wrong: 'fox' 3,001 times, expected 3,000"
    assert "'0' 0 times, expected 3" in str(verify(Counter({"fox": 3000}), texts, dead, exact=False))
