"""The main job: on a corpus with everything nasty in it, counts are exact whatever fails."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

from examples.wordcount.components import Faults
from examples.wordcount.corpus import find
from examples.wordcount.job import TIMED_OUT, WordCount

pytestmark = pytest.mark.spark

FILES = {
    "plain.txt": b"the quick brown fox\njumps over the lazy dog\n" * 40,
    "no_newline_at_end.txt": b"one two\nthree four",
    "empty.txt": b"",
    "only_newlines.txt": b"\n\n\n",
    "dos.txt": b"carriage return\r\nform\x0cfeed vertical\x0btab\r\n",
    "latin1.txt": "d\u00e9j\u00e0 vu na\u00efve\n".encode("latin-1") * 30,
    "broken.bin.txt": b"\xff\xfe\xf0\x9f ok\n\xc3\nok \xe2\x98\n",
    "deep/er/unicode.txt": "snow \u2603 snow\u00a0man \u2028 \U0001f984 e\u0301\n".encode() * 20,
    "separators.txt": b"a\x1cb\x1dc\x85d\n",
    "long.txt": b" ".join(b"w%d" % n for n in range(3000)),
    "tool.py": b"def f():\n    return 'x'  # the end\n" * 50,
    "image.png": b"\x89PNG\0\0binary is no text",
    "__pycache__/x.txt": b"never read",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("corpus")
    for name, content in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def texts() -> list[tuple[str, int, str]]:
    """File, number and text of each line, by a reading of the rules that shares no code with the program."""
    found = []
    for name, content in FILES.items():
        if b"\0" in content or name.startswith("__pycache__"):
            continue
        lines = content.split(b"\n")
        if lines[-1] == b"":
            del lines[-1]
        found += [(name, number, line.decode("utf-8", "replace")) for number, line in enumerate(lines, 1)]
    return found


class Silent:
    """Takes what a run has to say; may do something when a phase begins."""

    def __init__(self, **on_phase) -> None:
        self.notes: list[str] = []
        self.on_phase = on_phase

    @contextmanager
    def phase(self, name):
        for word, action in self.on_phase.items():
            if word in name:
                action()
        yield

    def note(self, text) -> None:
        self.notes.append(text)


def run(spark, folder, fail_rate, drop_rate, seed=3, max_attempts=50, progress=None):
    job = WordCount(spark, find(folder), Faults(seed, fail_rate, drop_rate), max_attempts, progress or Silent())
    job.run()
    return job


def check_sums(values: dict) -> None:
    """What must add up in every result."""
    assert values["trees"] == values["acked"] + values["failed"] + values["timed_out"]
    assert values["lines"] == values["acked"] + values["dead_lettered"]
    assert values["replayed"] == values["trees"] - values["lines"]
    assert sum(values["failed_by_reason"].values()) == values["failed"]
    for name in ("trees", "messages", "acked", "failed", "timed_out"):
        assert sum(this[name] for this in values["rounds"]) == values[name], name
    assert sum(this["words_counted"] for this in values["rounds"]) == values["words"]
    assert [this["attempt"] for this in values["rounds"]] == list(range(len(values["rounds"])))
    for before, after in zip(values["rounds"], values["rounds"][1:], strict=False):
        assert after["trees"] == before["failed"] + before["timed_out"]
    assert sum(values["tree_sizes"].values()) == values["trees"] - values["failed"]
    components = values["components"]
    assert sum(component["messages"] for component in components.values()) == values["messages"]
    assert components["lines"]["messages"] == values["trees"] == components["split"]["executed"]


def test_counts_are_exact_although_lines_fail_and_words_get_lost(spark, folder) -> None:
    job = run(spark, folder, 0.2, 0.2)
    result, lines = job.result, texts()
    assert job.counts == Counter(word for _, _, text in lines for word in text.split())
    assert result.verified and result.exit_code == 0 and not result.mismatches and not result.dead_letters
    assert (result.lines, result.files, result.binary_files) == (len(lines), 11, 1)
    assert result.failed > 20 and result.timed_out > 10 and len(result.rounds) > 2
    assert result.failed_by_reason == {"split: InjectedFault: injected by --fail-rate": result.failed}
    assert result.acker_messages_per_second > 0 and set(result.stages) == {
        "prepare",
        "evaluate",
        "settle",
        "add up",
        "verify",
    }
    check_sums(json.loads(json.dumps(result.to_json())))


def test_without_faults_one_round_is_enough(spark, folder) -> None:
    progress = Silent()
    job = run(spark, folder, 0, 0, max_attempts=1, progress=progress)
    result, lines = job.result, texts()
    assert job.counts == Counter(word for _, _, text in lines for word in text.split())
    assert result.verified and len(result.rounds) == 1 and result.failed == result.timed_out == 0
    assert result.messages == 2 * len(lines) + job.counts.total()
    sizes = Counter(1 + min(1024, len(text.split())) for _, _, text in lines)
    assert result.tree_sizes == sizes
    assert progress.notes[0].startswith(f"round 1: {len(lines)} trees, {len(lines)} acked, 0 failed, 0 timed out")


def test_lines_whose_words_are_always_lost_are_dead_lettered_as_timed_out(spark, folder) -> None:
    job = run(spark, folder, 0, 1, max_attempts=2)
    result = job.result
    with_words = sorted((name, number, text) for name, number, text in texts() if text.split())
    assert result.verified and result.exit_code == 3 and not job.counts
    assert result.timed_out == 2 * len(with_words) and result.failed == 0
    assert sorted((dead.file, dead.line, dead.text) for dead in result.dead_letters) == with_words
    assert {(dead.attempts, dead.reason) for dead in result.dead_letters} == {(2, TIMED_OUT)}
    check_sums(result.to_json())


def test_dead_letters_are_left_out_of_the_comparison_only(spark, folder) -> None:
    job = run(spark, folder, 0.4, 0.3, max_attempts=2)
    result = job.result
    dead = Counter((letter.file, letter.line) for letter in result.dead_letters)
    assert result.verified and result.exit_code == 3 and 20 < result.dead_lettered < result.lines
    assert set(dead.values()) == {1}
    alive = [text for name, number, text in texts() if (name, number) not in dead]
    assert job.counts == Counter(word for text in alive for word in text.split())
    assert {letter.reason for letter in result.dead_letters} == {
        TIMED_OUT,
        "split: InjectedFault: injected by --fail-rate",
    }
    check_sums(result.to_json())


def test_a_wrong_count_is_noticed(spark, folder, tmp_path) -> None:
    """The files change before they are compared: the run must not say that it is verified."""
    for name, content in (("a.txt", b"a b\n"), ("b.txt", b"b\n")):
        (tmp_path / name).write_bytes(content)
    progress = Silent(comparing=lambda: (tmp_path / "b.txt").write_bytes(b"b a\nc\n"))
    result = run(spark, tmp_path, 0, 0, progress=progress).result
    assert not result.verified and result.exit_code == 1
    assert result.mismatches == [
        "'a': counted 1, expected 2",
        "'c': counted 0, expected 1",
        "lines sent: 2, but the files have 3 lines",
        "acked and dead-lettered: 2, but the files have 3 lines",
    ]


def word_count(*arguments, cwd) -> subprocess.Popen:
    command = [sys.executable, "-m", "examples.wordcount", *map(str, arguments)]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


@pytest.fixture(scope="module")
def command(folder, tmp_path_factory):
    """The real command, once: what it said, where it wrote, how it ended."""
    cwd = tmp_path_factory.mktemp("run")
    rates = ["--fail-rate", "0.1", "--drop-rate", "0.1", "--max-attempts", "40"]
    process = word_count("--input", folder, "--seed", 11, *rates, "--json", "new/out.json", cwd=cwd)
    out, err = process.communicate()
    return process.returncode, out.decode(), err.decode(), cwd


def test_the_command_verifies_and_says_so(command, folder) -> None:
    code, out, err, cwd = command
    assert code == 0, err
    values = json.loads((cwd / "new/out.json").read_text())
    check_sums(values)
    assert values["exit_code"] == 0 and values["verified"] is True and values["seed"] == 11
    assert values["lines"] == len(texts()) and values["words"] == sum(len(text.split()) for _, _, text in texts())
    assert values["input"] == str(folder.resolve()) and values["stages"]["start Spark"] > 0
    shown = dict(
        [cell.strip() for cell in line.strip("\u2502 ").split("\u2502")]
        for line in out.splitlines()
        if "\u2502" in line
    )
    for name in ("lines", "trees", "messages", "acked", "failed", "timed out", "replayed", "dead-lettered"):
        assert shown[name] == f"{values[name.replace(' ', '_').replace('-', '_')]:,}", name
    assert shown["verified"] == "yes, equal to a plain count" and shown["rounds"] == str(len(values["rounds"]))
    told = [line for line in err.splitlines() if " rows failed so far, " not in line]  # comes whenever a task ends
    assert told[0].startswith("looking for text files under ") and "starting Spark, about ten seconds ..." in told
    waits = [line.removesuffix(" ...") for line in told[1:] if line.endswith(" ...")]
    assert "round 1: all lines through split and count" in waits
    for wait in waits:
        begun, name = told.index(f"{wait} ..."), wait.removesuffix(", about ten seconds")
        assert re.fullmatch(rf"{re.escape(name)} \([\d.]+ s\)", told[begun + 1]), wait
    assert "report: acker-report/report.html" in out and "round 1" not in out and "starting" not in out
    page = (cwd / "acker-report/report.html").read_text()
    assert page.count("<svg") == 3 and "verified: equal to a plain count" in page
    assert sorted(path.name for path in (cwd / "acker-report").iterdir()) == ["report.html", "spark.log"]
    assert sorted(path.name for path in cwd.iterdir()) == ["acker-report", "new"]


def test_the_same_seed_gives_the_same_numbers(command, spark, folder) -> None:
    """In another process, with other partitions: only times may differ."""
    first = json.loads((command[3] / "new/out.json").read_text())
    again = json.loads(json.dumps(run(spark, folder, 0.1, 0.1, seed=11, max_attempts=40).result.to_json()))
    other = json.loads(json.dumps(run(spark, folder, 0.1, 0.1, seed=12, max_attempts=40).result.to_json()))

    def numbers(values):
        rounds = [{name: n for name, n in this.items() if not name.endswith("seconds")} for this in values["rounds"]]
        components = {
            name: {key: n for key, n in counters.items() if key != "function_seconds"}
            for name, counters in values["components"].items()
        }
        kept = ("lines", "trees", "messages", "acked", "failed", "failed_by_reason", "timed_out", "words", "tree_sizes")
        return rounds, components, {name: values[name] for name in kept}

    assert numbers(first) == numbers(again)
    assert numbers(first)[0] != numbers(other)[0]


def test_the_command_dead_letters_what_never_succeeds(folder, tmp_path) -> None:
    (tmp_path / "out").mkdir()
    arguments = ["--fail-rate", 1, "--max-attempts", 2, "--output", "out", "--report", "my.html", "--json", "-"]
    process = word_count("--input", folder, *arguments, cwd=tmp_path)
    out, err = process.communicate()
    assert process.returncode == 3, err
    values = json.loads(out)  # Nothing else is on the standard output.
    check_sums(values)
    lines = texts()
    assert values["verified"] is True and values["exit_code"] == 3 and values["acked"] == values["words"] == 0
    assert values["dead_lettered"] == len(lines) and values["failed"] == 2 * len(lines)
    letters = [json.loads(line) for line in (tmp_path / "out/dead-letters.jsonl").read_bytes().split(b"\n")[:-1]]
    assert sorted((letter["file"], letter["line"], letter["text"]) for letter in letters) == sorted(lines)
    assert {letter["reason"] for letter in letters} == {"split: InjectedFault: injected by --fail-rate"}
    assert {letter["attempts"] for letter in letters} == {2}
    assert "dead letters: out/dead-letters.jsonl" in err.decode()
    assert "lines dead-lettered" in (tmp_path / "my.html").read_text()


def test_ctrl_c_stops_spark_and_the_command(folder, tmp_path) -> None:
    """As from a terminal, where the signal reaches all processes of the group."""
    process = word_count("--input", folder, "--fail-rate", 1, "--max-attempts", 1000, cwd=tmp_path)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(b"round 1:"):
            break
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate()  # Ends when the JVM, which holds the other end too, is gone.
    assert process.returncode == 130
    assert err.decode().strip().splitlines()[-1] == "acker: interrupted"
    assert "Traceback" not in err.decode()
