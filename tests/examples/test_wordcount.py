"""The word count of `make run`: on both runtimes, as a stream whose driver is killed, and what it shows."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from examples.make_run.account import PlainCount
from examples.make_run.faults import KILLED_AFTER
from examples.wordcount import lines_of, text_files

ROOT = Path(__file__).resolve().parents[2]
LONG = 600.0  # no wait is for a time; one that comes to this is a failure
LINES = 3000
WORDS = 1010  # different ones: numbers, and those of the sentence
PLAIN = "the plain loop"
EXACT = f"nothing: each of {WORDS:,} different words was counted as often as by {PLAIN}"


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


def command(folder: Path, *arguments: object) -> list[str]:
    program = [sys.executable, ROOT / "examples/wordcount.py", *arguments, "--output", folder / "output"]
    return list(map(str, program))


def on_terminal(folder: Path, *arguments: object, keys_at: str = "", keys: bytes = b"") -> tuple[int, str]:
    """Run the word count on a terminal, type keys once a text is seen; return the exit code and all that was shown."""
    environ = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environ |= {"TERM": "xterm", "COLUMNS": "80"}
    words = command(folder, *arguments)
    pid, terminal = pty.fork()
    if pid == 0:  # Nothing more: another thread may have had a lock at the fork.
        os.chdir(folder)
        os.execve(sys.executable, words, environ)
    shown = ""
    try:
        while chunk := os.read(terminal, 1 << 16):
            shown += chunk.decode("utf-8", "replace")
            if keys and keys_at in shown:
                os.write(terminal, keys)
                keys = b""
    except OSError:  # The program has closed its side.
        pass
    finally:
        os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown


class Program:
    """The word count in a process group of its own, which can be killed with its JVM."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.log = folder / "told"
        with self.log.open("ab") as stream:
            self.process = subprocess.Popen(
                command(folder, *arguments), cwd=folder, stdout=stream, stderr=stream, start_new_session=True
            )

    def wait_for(self, folder: Path, number: int) -> None:
        """Wait until a folder of the journal has the file of a micro-batch, or of a later one."""
        deadline = time.monotonic() + LONG
        while not any(int(found[1]) >= number for found in map(JOURNALED.fullmatch, names_in(folder)) if found):
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

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
    assert figures["lost"] == f"nothing: each of {WORDS:,} different words was counted at least as often as by {PLAIN}"
    assert figures["dead letters"].startswith("1 line failed 4 times")
    letter = json.loads((tmp_path / "output/dead-letters.jsonl").read_text())
    assert (letter["place"], letter["line"]) == ("latin.txt:1", "th\N{REPLACEMENT CHARACTER} au lait")
    assert letter["component"] == "split" and "not UTF-8 (attempt 4)" in letter["reason"]


@pytest.mark.spark
def test_counts_are_exact_although_lines_fail_half_way_and_a_worker_is_killed(texts: Path, tmp_path: Path) -> None:
    program = Program(tmp_path, "--input", texts, "--master", "local[2,4]")
    figures = program.end()
    assert figures["lost"] == EXACT
    assert figures["dead letters"].startswith("1 line failed 4 times")
    assert (tmp_path / "output/report.html").read_text().count("</html>") == 1
    shown = program.log.read_text()
    killed = re.search(r"^A worker is killed now: process (\d+), after (\S+) lines of its task\.$", shown, re.MULTILINE)
    again = re.search(r"^Its lines came again: process (\d+) has split the same (\S+)\.$", shown, re.MULTILINE)
    assert killed and again and killed[1] != again[1] and killed.start() < again.start(), shown
    assert killed[2] == again[2] and int(killed[2].replace(",", "")) >= KILLED_AFTER, shown
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", shown), "no control characters outside of a terminal"
    assert "has no effect" not in shown + (tmp_path / "output/run.log").read_text()


def test_on_a_terminal_a_bar_is_drawn_and_taken_away(texts: Path, tmp_path: Path) -> None:
    code, shown = on_terminal(tmp_path, "--on", "local", "--input", texts)
    assert code == 0
    assert "\N{BOX DRAWINGS HEAVY HORIZONTAL}" in shown and f"of {LINES + 2:,} lines; a second" in shown, shown
    last = re.split(r"\x1b\[[\d;?]*[a-zA-Z]", shown)[-1]
    assert "a second" not in last, shown


@pytest.mark.parametrize("runtime", ["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow])])
def test_ctrl_c_ends_the_run_with_one_line(runtime: str, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    many = 1_000_000  # more than it can count before the key
    (tmp_path / "texts/many.txt").write_text("some words of a line\n" * many)
    arguments, bar = ("--on", runtime, "--input", tmp_path / "texts"), f" of {many + 1:,} lines; "
    code, shown = on_terminal(tmp_path, *arguments, keys_at=bar, keys=b"\x03")
    assert code == 130, shown
    *_, last = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]|\^C", "", shown).split(bar)
    told = [line for line in last.replace("\r", "\n").splitlines()[1:] if line.strip()]
    assert len(told) == 1 and told[0].startswith("Interrupted: "), shown


def test_wrong_arguments_have_an_exit_code_of_their_own(tmp_path: Path) -> None:
    done = subprocess.run(command(tmp_path, "--input", "nowhere"), capture_output=True, check=False, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("error: --input nowhere: there is no such folder\n")


@pytest.mark.minutes(2)
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
    assert figures["lost"] == EXACT
    assert figures["dead letters"].startswith("1 line failed 4 times")


def test_a_wrong_count_is_named(texts: Path) -> None:
    assert text_files(texts) == ["0.txt", "1.txt", "2.txt", "latin.txt"]
    assert lines_of(texts / "latin.txt") == ["th\N{REPLACEMENT CHARACTER} au lait", ""]
    expected = Counter(word for name in text_files(texts) for line in lines_of(texts / name) for word in line.split())
    dead = ["th\N{REPLACEMENT CHARACTER} au lait"]
    expected.subtract(dead[0].split())
    plain = PlainCount(texts)
    assert plain.lines == LINES + 2, "with the empty one behind the last newline"
    assert plain.compare(+expected, dead, exact=True) is None
    more = +expected + Counter(fox=1)
    assert plain.compare(more, dead, exact=False) is None
    assert plain.compare(more, dead, exact=True) == "1 word was counted wrong: 'fox' 3,001 times, expected 3,000"
    assert "'0' 0 times, expected 3" in str(plain.compare(Counter({"fox": 3000}), dead, exact=False))
