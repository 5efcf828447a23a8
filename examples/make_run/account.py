"""The account of a run: its files, a plain count of the same words, what failed and how long it took."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import acker.local
from acker.observe.durations import format_ns
from acker.observe.run_report import RunReport
from acker.observe.summary import quantity
from examples.wordcount import Lines, text_files

LETTERS_SHOWN = 3


class PlainCount:
    """Counts the same words by a plain loop: what the topology must come to."""

    def __init__(self, root: Path, *, deep: bool = True) -> None:
        self.lines = 0
        self.words: Counter[str] = Counter()
        for name in text_files(root, deep=deep):
            text = (root / name).read_bytes().decode("utf-8", "replace")
            self.lines += text.count("\n") + 1
            self.words.update(text.split())

    def compare(self, counts: Counter[str], dead: list[str], *, exact: bool) -> str | None:
        """Compare counts with those of the loop, but for the words of dead letters; return what is wrong."""
        expected = self.words.copy()
        for line in dead:
            expected.subtract(line.split())
        expected = +expected
        if dict(counts) == dict(expected) or (not exact and counts >= expected):  # Counters take longer to compare.
            return None
        wrong = sorted(word for word in counts.keys() | expected.keys() if counts[word] != expected[word])
        examples = [f"{word!r} {counts[word]:,} times, expected {expected[word]:,}" for word in wrong[:5]]
        were = "word was" if len(wrong) == 1 else "words were"
        return f"{len(wrong):,} {were} counted wrong: {', '.join(examples)}"


class Files:
    """The files of a run, in its output folder; those of the last run go."""

    def __init__(self, options: argparse.Namespace) -> None:
        folder: Path = options.output
        folder.mkdir(parents=True, exist_ok=True)
        self.states, self.drill, self.page = folder / "wordcount.state", folder / "drill", folder / "report.html"
        self.log, self.log_of_spark = folder / "run.log", folder / "spark.log"
        # A stream that goes on has dead letters already. In an object store nothing can be added to a file.
        beside = None if "://" in (options.checkpoint or "") else options.checkpoint
        self.letters = Path(beside or folder, "dead-letters.jsonl")
        old = [self.states, self.drill, self.page]
        for path in old if options.checkpoint else [*old, self.letters]:
            path.unlink(missing_ok=True)
        self.letters.parent.mkdir(parents=True, exist_ok=True)
        self.letters.touch()

    def counts(self) -> Counter[str]:
        """Return how often each word was counted."""
        counts: Counter[str] = Counter()
        for state in acker.local.read_state(self.states)["count"]:
            counts.update(state)
        return counts

    def dead_letters(self) -> list[dict[str, str]]:
        """Return the dead letters, each line once: a driver that is killed may hand one over again."""
        return list({each["place"]: each for each in map(json.loads, self.letters.read_text().splitlines())}.values())


def story(report: RunReport, dead: list[dict[str, str]], files: Files) -> Iterator[tuple[str, str]]:
    """Yield what was injected, what came of it, and how long the trees took: each a name and a line."""
    lines = report.stats.components()["lines"]
    attempts = Lines.attempts_max or 1
    half_way = lines.failed - attempts * lines.dead_letters
    killed = ", a worker was killed" if files.drill.exists() else ""
    yield (
        "injected",
        f"{half_way:,} times a line failed half-way, {lines.timed_out:,} times it was never acked{killed}",
    )
    yield "came again", f"{lines.failed + lines.timed_out - lines.dead_letters:,} times a line, until it was acked"
    yield (
        "dead letters",
        f"{quantity(len(dead), 'line')} failed {attempts} times, in {files.letters}" if dead else "none",
    )
    for letter in dead[:LETTERS_SHOWN]:
        yield "", f"  {letter['place']}: {letter['reason']}"
    latency = lines.complete_latency
    half, most, all_of_them = (format_ns(latency.quantile(share)) for share in (0.5, 0.99, 1.0))
    yield "latency", f"of trees: {half} or less for half of them, {most} for 99 of 100, {all_of_them} for all"
    yield "tuples", f"{report.stats.totals.transferred:,} between components in {report.seconds:.1f} s"
    for stall in report.stalls:
        yield "stood still", stall
    yield "report", str(files.page)
