"""The rounds of the word count: run, settle, replay lines that were not acked, dead-letter the last ones, verify."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from acker._engine.protocol import Outcome
from examples.wordcount.components import COUNTS, Faults, Replays, pipeline, tally
from examples.wordcount.corpus import Corpus, expected_counts, read_lines

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from acker.spark.pipelines.counters import PipelineCounters
    from acker.spark.pipelines.tracked import Tracked

TIMED_OUT: Final = "timed out: still open at the end of the round"

# How many words that were counted wrong the result names.
_MISMATCHES_SHOWN: Final = 20

# One task of the first round reads about this much.
_CHUNK_BYTES: Final = 8_000_000


class Progress(Protocol):
    """The display of a run's progress."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Show a phase until the context ends."""

    def note(self, text: str) -> None:
        """Show a line of text."""


@dataclass(frozen=True)
class Round:
    """The counts of one round. Each line that is sent is a new tree."""

    attempt: int
    trees: int
    messages: int
    acked: int
    failed: int
    timed_out: int
    failed_by_reason: dict[str, int]
    words_counted: int
    native_seconds: float
    wall_seconds: float


@dataclass(frozen=True)
class DeadLetter:
    """A line that was not acked within --max-attempts."""

    file: str
    line: int
    text: str
    attempts: int
    reason: str


@dataclass
class Totals:
    """The counts of a run; `trees == acked + failed + timed_out` and `lines == acked + dead_lettered`."""

    input: str
    files: int
    binary_files: int
    bytes: int
    seed: int
    fail_rate: float
    drop_rate: float
    max_attempts: int
    lines: int = 0
    trees: int = 0
    messages: int = 0
    acked: int = 0
    failed: int = 0
    failed_by_reason: dict[str, int] = field(default_factory=dict)
    timed_out: int = 0
    replayed: int = 0
    dead_lettered: int = 0
    words: int = 0
    distinct_words: int = 0
    acker_seconds: float = 0.0
    acker_messages_per_second: float = 0.0
    wall_seconds: float = 0.0
    verified: bool = False
    mismatches: list[str] = field(default_factory=list)
    tree_sizes: dict[int, int] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)
    components: dict[str, dict[str, float]] = field(default_factory=dict)
    dead_letters: list[DeadLetter] = field(default_factory=list, repr=False)

    @property
    def exit_code(self) -> int:
        """Return 0 when verified and nothing was dead-lettered, 3 when verified with dead letters, 1 otherwise."""
        if not self.verified:
            return 1
        return 3 if self.dead_lettered else 0

    def to_json(self) -> dict[str, Any]:
        """Return everything but the dead letters, which have a file of their own."""
        values = {name: value for name, value in asdict(self).items() if name != "dead_letters"}
        return {**values, "exit_code": self.exit_code}

    def add_counters(self, counters: PipelineCounters) -> None:
        """Add the counters of one evaluation of the pipeline."""
        self.messages += counters.messages
        self.acker_seconds += counters.native_ns / 1e9
        self.acker_messages_per_second = self.messages / self.acker_seconds if self.acker_seconds else 0.0
        # A component that saw no row has no counters.
        for name, component in counters.components.items():
            total = self.components.setdefault(name, {})
            for key in ("executed", "emitted", "failed", "messages"):
                total[key] = total.get(key, 0) + getattr(component, key)
            total["function_seconds"] = total.get("function_seconds", 0.0) + component.function_ns / 1e9
        if "split" in counters.components:
            for words, trees in counters.components["split"].fanout.items():
                self.tree_sizes[words + 1] = self.tree_sizes.get(words + 1, 0) + trees

    def dead_letter(self, corpus: Corpus, lines: Iterable[tuple[int, int, str]]) -> None:
        """Add dead letters, (file, line, reason) each."""
        texts: dict[int, list[str]] = {}
        for file, line, reason in sorted(lines):
            if file not in texts:
                texts = {file: read_lines(corpus.path(file))}  # In order of files: one is held at a time.
            text = texts[file][line - 1]
            self.dead_letters.append(DeadLetter(corpus.paths[file], line, text, self.max_attempts, reason))
        self.dead_lettered = len(self.dead_letters)

    def verify(self, corpus: Corpus, counts: Counter[str]) -> None:
        """Compare with a plain count of the same files. Mismatches that were noted before stay."""
        expected, lines = expected_counts(corpus, (letter.text for letter in self.dead_letters))
        self.words, self.distinct_words = counts.total(), len(counts)
        if counts != expected:
            wrong = sorted(word for word in counts.keys() | expected.keys() if counts[word] != expected[word])
            self.mismatches += [
                f"{word!r}: counted {counts[word]}, expected {expected[word]}" for word in wrong[:_MISMATCHES_SHOWN]
            ]
        for name, found in (
            ("lines sent", self.lines),
            ("acked and dead-lettered", self.acked + self.dead_lettered),
        ):
            if found != lines:
                self.mismatches.append(f"{name}: {found}, but the files have {lines} lines")
        self.verified = not self.mismatches


@dataclass
class Result(Totals):
    """The counts of a run in rounds."""

    rounds: list[Round] = field(default_factory=list)


@dataclass(frozen=True)
class _RoundOutcome:
    """The trees of a round that did not end ACKED, column by column, and how many did."""

    acked: int
    root_id: np.ndarray[Any, np.dtype[np.int64]]
    file: np.ndarray[Any, np.dtype[np.int64]]
    line: np.ndarray[Any, np.dtype[np.int64]]
    reason: list[str]

    def replays(self) -> Replays:
        """Return the lines to send again, by file."""
        order = np.lexsort((self.line, self.file))
        file, line = self.file[order], self.line[order]
        names, starts = np.unique(file, return_index=True)
        return dict(zip(names.tolist(), np.split(line, starts[1:]), strict=True))


class WordCount:
    """One run.

    Parameters
    ----------
    spark : SparkSession
    corpus : Corpus
        Its files must be readable where the workers run, under the same paths.
    faults : Faults
    max_attempts : int >= 1
        How often a line is sent before it is dead-lettered.
    progress : Progress

    Attributes
    ----------
    counts : Counter
        The words of the trees that were acked so far.
    result : Result
    """

    def __init__(
        self, spark: SparkSession, corpus: Corpus, faults: Faults, max_attempts: int, progress: Progress
    ) -> None:
        self._spark = spark
        self._corpus = corpus
        self._faults = faults
        self._progress = progress
        self.counts: Counter[str] = Counter()
        self.result = Result(
            input=corpus.root,
            files=len(corpus.paths),
            binary_files=corpus.binary,
            bytes=sum(corpus.sizes),
            seed=faults.seed,
            fail_rate=faults.fail_rate,
            drop_rate=faults.drop_rate,
            max_attempts=max_attempts,
        )

    def run(self) -> Result:
        """Run all rounds, then compare the counts with those of a plain loop over the same files."""
        start = time.perf_counter()
        replays: Replays | None = None
        for attempt in range(self.result.max_attempts):
            left = self._round(attempt, replays)
            if not left.root_id.size:
                break
            replays = left.replays()
        self.result.dead_letter(self._corpus, zip(left.file.tolist(), left.line.tolist(), left.reason, strict=True))
        with self._phase("verify", "comparing with a plain count of the same files"):
            self.result.verify(self._corpus, self.counts)
        self.result.wall_seconds = time.perf_counter() - start
        return self.result

    def _round(self, attempt: int, replays: Replays | None) -> _RoundOutcome:
        """Send lines, and settle their trees."""
        start = time.perf_counter()
        again = 0 if replays is None else sum(map(len, replays.values()))
        what = "all lines" if replays is None else "1 line again" if again == 1 else f"{again:,} lines again"
        partitions = self._partitions(replays)
        with self._phase("prepare", f"round {attempt + 1}: preparing Spark's plan"):
            tracked = pipeline(self._spark, self._corpus, self._faults, attempt, replays, partitions).persist()
        try:
            with self._phase("evaluate", f"round {attempt + 1}: {what} through split and count"):
                counters = tracked.counters()
            with self._phase("settle", f"round {attempt + 1}: the acker settles the trees"):
                settled = self._settle(tracked)
            with self._phase("add up", f"round {attempt + 1}: adding up the words of acked trees"):
                counted = self._add_up(tracked.data(settled.root_id).mapInArrow(tally, COUNTS).toArrow())
        finally:
            tracked.unpersist()
        self._account(attempt, counters, settled, counted, time.perf_counter() - start)
        return settled

    def _partitions(self, replays: Replays | None) -> int:
        cores = self._spark.sparkContext.defaultParallelism
        return cores if replays is not None else max(2 * cores, math.ceil(sum(self._corpus.sizes) / _CHUNK_BYTES))

    def _settle(self, tracked: Tracked) -> _RoundOutcome:
        done = tracked.completions(include_pending=True).persist()
        try:
            acked = done.where(f"outcome = {int(Outcome.ACKED)}").count()
            left = done.where(f"outcome <> {int(Outcome.ACKED)}").toArrow()
        finally:
            done.unpersist()
        return _join_failures(acked, left, tracked.failures().toArrow())

    def _add_up(self, tallies: pa.Table) -> int:
        words: Any = tallies.column("word").to_pylist()
        counts = tallies.column("n").to_numpy()
        for word, count in zip(words, counts.tolist(), strict=True):
            self.counts[word] += count
        return int(counts.sum())

    def _account(
        self,
        attempt: int,
        counters: PipelineCounters,
        settled: _RoundOutcome,
        counted: int,
        wall_seconds: float,
    ) -> None:
        by_reason = Counter(settled.reason)
        timed_out = by_reason.pop(TIMED_OUT, 0)
        components = counters.components
        this = Round(
            attempt=attempt,
            # A component that saw no row has no counters.
            trees=components["lines"].messages if "lines" in components else 0,
            messages=counters.messages,
            acked=settled.acked,
            failed=by_reason.total(),
            timed_out=timed_out,
            failed_by_reason=dict(by_reason.most_common()),
            words_counted=counted,
            native_seconds=counters.native_ns / 1e9,
            wall_seconds=wall_seconds,
        )
        result = self.result
        result.rounds.append(this)
        result.lines = result.rounds[0].trees
        result.trees += this.trees
        result.acked += this.acked
        result.failed += this.failed
        result.timed_out += this.timed_out
        result.failed_by_reason = dict((Counter(result.failed_by_reason) + by_reason).most_common())
        result.replayed = result.trees - result.lines
        result.add_counters(counters)
        self._progress.note(
            f"round {attempt + 1}: {this.trees:,} trees, {this.acked:,} acked, {this.failed:,} failed, "
            f"{this.timed_out:,} timed out, {wall_seconds:.1f} s"
        )

    @contextmanager
    def _phase(self, stage: str, text: str) -> Iterator[None]:
        start = time.perf_counter()
        with self._progress.phase(text):
            yield
        stages = self.result.stages
        stages[stage] = stages.get(stage, 0.0) + time.perf_counter() - start


def _join_failures(acked: int, left: pa.Table, failures: pa.Table) -> _RoundOutcome:
    """Join the trees that were not acked with the texts of their failures."""
    texts = sorted(
        zip(*(failures.column(name).to_pylist() for name in ("root_id", "component", "reason")), strict=True),
        reverse=True,
    )
    # Of several failures in one tree the first by name counts, so that a repeated run says the same.
    by_root = {root: f"{component}: {reason}" for root, component, reason in texts}
    outcomes = left.column("outcome").to_numpy()
    roots = left.column("root_id").to_numpy()
    reason = [
        by_root[root] if outcome == Outcome.FAILED else TIMED_OUT
        for root, outcome in zip(roots.tolist(), outcomes.tolist(), strict=True)
    ]
    file = left.column("task_id").to_numpy().astype(np.int64)
    return _RoundOutcome(acked, roots, file, left.column("message_id").to_numpy(), reason)


def write_dead_letters(letters: list[DeadLetter], path: Path) -> None:
    """Write one JSON object a line; without letters there is no file."""
    if not letters:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", errors="backslashreplace") as stream:
        for letter in letters:
            stream.write(json.dumps(asdict(letter), ensure_ascii=False) + "\n")
