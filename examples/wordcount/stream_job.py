"""The control of a streaming word count: it drops files, kills and restarts the stream, and verifies the result.

The stream runs in another process and reports by the files that it writes. This module imports pyspark only after the
stream has ended.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from acker._engine.protocol import Outcome
from acker.errors import AckerError
from examples.wordcount.corpus import Corpus
from examples.wordcount.job import Progress, Totals
from examples.wordcount.stream_files import Batch, Folder, Int64s, Settings, line_and_attempt, write_whole

TIMED_OUT: Final = "timed out"

_LOOK_SECONDS: Final = 0.1

# Files are dropped in lots of at most this much, however short the time.
_LOT_BYTES: Final = 16_000_000


class StreamFailedError(AckerError):
    """The process of the stream ended without a kill."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the stream ended with exit code {code}")
        self.code = code


class Stream(Protocol):
    """The process of the stream; see `examples.wordcount.stream_process`."""

    def start(self) -> None:
        """Start it, or go on from the checkpoint."""

    def exit_code(self) -> int | None:
        """Return the exit code if it ended."""

    def stop(self) -> int:
        """Stop it after the present micro-batch."""

    def kill(self) -> int:
        """Kill it with SIGKILL."""

    def kill_worker(self, draw: float) -> bool:
        """Kill one of its workers with SIGKILL, if there is one."""


@dataclass(frozen=True)
class Plan:
    """The drops and kills of a run.

    Attributes
    ----------
    spread_seconds : float
        The files are dropped over this time.
    lots : int
        The number of lots, more if they would be large.
    kills, worker_kills : int
        How often the driver and a Python worker are killed.
    stalled_seconds : float
        Fail when no tree ended for this time and ten timeouts.
    """

    spread_seconds: float
    lots: int = 20
    kills: int = 0
    worker_kills: int = 0
    stalled_seconds: float = 600.0


class Kill(NamedTuple):
    """One kill: its target, its time, the micro-batches before it, and the time until the next one ended."""

    what: str
    after_seconds: float
    batches: int
    back_seconds: float


class Attempt(NamedTuple):
    """How the trees of one attempt ended, over all micro-batches."""

    attempt: int
    trees: int
    acked: int
    failed: int
    timed_out: int
    failed_by_reason: dict[str, int]


class Ended(NamedTuple):
    """The trees that ended in a micro-batch, and the seconds since the start at which they were seen."""

    seconds: float
    batch: int
    acked: int
    failed: int
    timed_out: int


@dataclass
class StreamResult(Totals):
    """The counts of a run as a stream."""

    timeout_seconds: float = 0.0
    attempts: list[Attempt] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    batches: list[Ended] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return everything but the dead letters; named tuples as objects."""
        named = {name: [row._asdict() for row in getattr(self, name)] for name in ("attempts", "kills", "batches")}
        return {**super().to_json(), **named}


class StreamWordCount:
    """One run.

    Parameters
    ----------
    corpus : Corpus
    settings : Settings
    folder : Folder
        New; `run` makes it.
    stream : Stream
        Of that folder, not started.
    plan : Plan
    progress : Progress
    clock : callable
        Returns seconds; never goes back.
    wait : callable
        Sleeps this many seconds.

    Attributes
    ----------
    counts : Counter
        The words of acked trees.
    result : StreamResult
    """

    def __init__(
        self,
        corpus: Corpus,
        settings: Settings,
        folder: Folder,
        stream: Stream,
        plan: Plan,
        progress: Progress,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._corpus = corpus
        self._settings = settings
        self._folder = folder
        self._stream = stream
        self._progress = progress
        self._clock = clock
        self._wait = wait
        self._plan = plan
        kills = plan.kills + plan.worker_kills
        self._lots = corpus.chunks(max(plan.lots, kills + 1, math.ceil(sum(corpus.sizes) / _LOT_BYTES)))
        self._random = np.random.default_rng(settings.seed)
        what = self._random.permutation(["driver"] * plan.kills + ["worker"] * plan.worker_kills).tolist()
        # Spread over the lots. The next lot waits for the kill, so that there is always something left to do.
        self._orders = [(what[place], (place + 1) * len(self._lots) // (kills + 1)) for place in range(kills)]
        self._due: float | None = None
        self._batches_before = 0  # those that ended before the order that waits was given, or before the last start
        self._start = 0.0
        self._dropped_lots = 0
        self._dropped_lines = 0
        self._batches: dict[int, Batch] = {}
        self.counts: Counter[str] = Counter()
        self.result = StreamResult(
            input=corpus.root,
            files=len(corpus.paths),
            binary_files=corpus.binary,
            bytes=sum(corpus.sizes),
            seed=settings.seed,
            fail_rate=settings.fail_rate,
            drop_rate=settings.drop_rate,
            max_attempts=settings.max_attempts,
            timeout_seconds=settings.timeout_seconds,
        )

    def count_ended_lines(self) -> tuple[int, int]:
        """Return the number of lines that are acked or dead-lettered, and an estimate of the total."""
        share = self._dropped_lots / len(self._lots)
        total = int(self._dropped_lines / share) if share else 0
        return sum(batch.acked + batch.dead for batch in list(self._batches.values())), total

    def run(self) -> StreamResult:
        """Run until every line is acked or dead-lettered; then compare with a plain count."""
        self._start = self._clock()
        self._folder.make(self._settings)
        try:
            with self._phase("start", "starting Spark, and the stream up to its first micro-batch"):
                self._stream.start()
                self._first_batch()
            with self._phase("stream", f"dropping {len(self._lots)} lots of files, until every line is acked"):
                self._drain()
            with self._phase("stop", "stopping the stream"):
                self._stream.stop()
        except BaseException:
            self._stream.kill()
            raise
        with self._phase("verify", "comparing with a plain count of the same files"):
            self._collect()
            self.result.verify(self._corpus, self.counts)
        self.result.wall_seconds = self._clock() - self._start
        return self.result

    def _first_batch(self) -> None:
        """Drop a first lot, and wait for the first micro-batch."""
        self._drop()
        while not self._batches:
            self._wait(_LOOK_SECONDS)
            self._look()

    def _drain(self) -> None:
        last = self._clock()
        first_drop = last
        stalled = self._plan.stalled_seconds + 10 * self._settings.timeout_seconds
        while True:
            now = self._clock()
            ended, _ = self.count_ended_lines()
            everything_dropped = self._dropped_lots == len(self._lots)
            if everything_dropped and not self._orders and ended >= self._dropped_lines:
                return
            if now - last > stalled:
                self.result.mismatches.append(
                    f"lines that ended: {ended} of {self._dropped_lines} dropped, and no more for {stalled:g} s"
                )
                return
            due = first_drop + self._plan.spread_seconds * self._dropped_lots / len(self._lots)
            if not everything_dropped and now >= due and not self._order_waits():
                self._drop()
            self._sabotage(now)
            if self._look():
                last = now
            self._wait(_LOOK_SECONDS)

    def _drop(self) -> None:
        """Drop the next lot of files, each of them whole."""
        for file in self._lots[self._dropped_lots]:
            content = Path(self._corpus.path(file)).read_bytes()
            self._dropped_lines += content.count(b"\n") + (content[-1:] not in (b"\n", b""))
            write_whole(self._folder.text(file), content)
        self._dropped_lots += 1
        self._batches_before = len(self._batches)

    def _look(self) -> bool:
        """Read which micro-batches ended; tell whether a tree did."""
        code = self._stream.exit_code()
        if code is not None:
            raise StreamFailedError(code)
        new = self._folder.batches(self._batches.keys())
        seconds = round(self._clock() - self._start, 3)
        for batch in new:
            self._batches[batch.batch] = batch
            self.result.batches.append(Ended(seconds, batch.batch, batch.acked, batch.failed, batch.timed_out))
        if new and self.result.kills and not self.result.kills[-1].back_seconds:
            last = self.result.kills[-1]
            self.result.kills[-1] = last._replace(back_seconds=round(seconds - last.after_seconds, 3))
            self._progress.note(f"the next micro-batch ended {self.result.kills[-1].back_seconds:.1f} s later")
        return any(batch.acked or batch.failed or batch.timed_out for batch in new)

    def _order_waits(self) -> bool:
        return bool(self._orders) and self._dropped_lots >= self._orders[0][1]

    def _sabotage(self, now: float) -> None:
        """Kill what is to be killed, at a random time of a micro-batch."""
        if not self._order_waits():
            return
        if self._due is None:
            # The stream must be at work: a micro-batch ended since the lot was dropped, or since the last start.
            if len(self._batches) > self._batches_before:
                self._due = now + self._random.uniform(0, 1.5 * self._batch_seconds())
            return
        if now < self._due:
            return
        what, _ = self._orders[0]
        if what == "worker" and not self._stream.kill_worker(float(self._random.random())):
            return
        if what == "driver":
            self._progress.note("killing the driver, and starting Spark again ...")
            self._stream.kill()
            self._stream.start()
        self._due = None
        self._orders.pop(0)
        self._batches_before = len(self._batches)
        kill = Kill(what, round(now - self._start, 3), len(self._batches), 0.0)
        self.result.kills.append(kill)
        self._progress.note(f"killed the {what} at {kill.after_seconds:.1f} s, after {kill.batches} micro-batches")

    def _batch_seconds(self) -> float:
        """Return how long the last micro-batch took, or a guess."""
        times = [batch.ended_at for batch in list(self._batches.values())[-2:]]
        return min(max(0.5, times[-1] - times[0]), 10.0)

    def _collect(self) -> None:
        """Read the output of the stream, and check that each tree ended once."""
        result = self.result
        tables = list(self._folder.completions())
        root_id, message_id, file, outcome = (
            np.concatenate([np.empty(0, np.int64), *(table.column(name).to_numpy() for table in tables)])
            for name in ("root_id", "message_id", "task_id", "outcome")
        )
        line, attempt = line_and_attempt(message_id)
        result.trees = root_id.size
        by_outcome = np.bincount(outcome, minlength=max(Outcome) + 1).tolist()
        result.acked, result.failed = by_outcome[Outcome.ACKED], by_outcome[Outcome.FAILED]
        result.timed_out = by_outcome[Outcome.TIMED_OUT]
        reasons = self._read_results(np.sort(root_id[outcome == Outcome.ACKED]))
        left = np.flatnonzero(outcome != Outcome.ACKED)
        reason = {
            place: reasons.get(root, "no reason was written") if end == Outcome.FAILED else TIMED_OUT
            for place, root, end in zip(left.tolist(), root_id[left].tolist(), outcome[left].tolist(), strict=True)
        }
        self._check_trees(root_id, file << 32 | line, attempt, outcome)
        self._account(attempt, outcome, reason)
        dead = left[attempt[left] == self._settings.max_attempts - 1].tolist()
        result.dead_letter(self._corpus, ((int(file[place]), int(line[place]), reason[place]) for place in dead))

    def _read_results(self, acked: Int64s) -> dict[int, str]:
        """Count the words of acked trees, given in order; return the reasons of failed ones."""
        import json

        from acker.spark.pipelines.counters import sum_counters

        reasons: dict[int, str] = {}
        reports: list[dict[str, Any]] = []
        for table in self._folder.results():
            metadata = table.schema.metadata
            reports += json.loads(metadata[b"counters"])
            for root, component, text in sorted(json.loads(metadata[b"failures"]), reverse=True):
                reasons[root] = f"{component}: {text}"
            for batch in table.to_batches():
                root_id = batch.column("root_id").to_numpy()
                place = np.minimum(np.searchsorted(acked, root_id), max(acked.size - 1, 0))
                counts = acked[place] == root_id if acked.size else np.zeros(root_id.size, np.bool_)
                words: Any = batch.column("word")
                times = np.bincount(words.indices.to_numpy()[counts], minlength=len(words.dictionary))
                for word, number in zip(words.dictionary.to_pylist(), times.tolist(), strict=True):
                    if number:
                        self.counts[word] += number
        self.result.add_counters(sum_counters(reports))
        return reasons

    def _check_trees(self, root_id: Int64s, line: Int64s, attempt: Int64s, outcome: Int64s) -> None:
        """Check that each line was sent, sent again while it was not acked, and never after that."""
        result = self.result
        twice = root_id.size - np.unique(root_id).size
        if twice:
            result.mismatches.append(f"trees that ended more than once: {twice}")
        sent = int(self.result.components.get("lines", {}).get("messages", 0))
        if sent != root_id.size:
            result.mismatches.append(f"trees: {sent} sent, {root_id.size} ended")
        expected = np.unique(line[attempt == 0])
        result.lines = expected.size
        result.replayed = result.trees - result.lines
        for number in range(max(1, _attempts(attempt))):
            found = np.sort(line[attempt == number])
            if not np.array_equal(found, expected):
                result.mismatches.append(
                    f"attempt {number + 1}: {found.size} trees ended, but {expected.size} lines were to be sent"
                )
            expected = np.sort(line[(attempt == number) & (outcome != Outcome.ACKED)])

    def _account(self, attempt: Int64s, outcome: Int64s, reason: dict[int, str]) -> None:
        for number in range(_attempts(attempt)):
            these = np.flatnonzero(attempt == number)
            ends = np.bincount(outcome[these], minlength=max(Outcome) + 1).tolist()
            failed = these[outcome[these] == Outcome.FAILED].tolist()
            self.result.attempts.append(
                Attempt(
                    attempt=number,
                    trees=these.size,
                    acked=ends[Outcome.ACKED],
                    failed=ends[Outcome.FAILED],
                    timed_out=ends[Outcome.TIMED_OUT],
                    failed_by_reason=dict(Counter(reason[place] for place in failed).most_common()),
                )
            )
        by_reason: Counter[str] = Counter()
        for row in self.result.attempts:
            by_reason.update(row.failed_by_reason)
        self.result.failed_by_reason = dict(by_reason.most_common())

    @contextmanager
    def _phase(self, stage: str, text: str) -> Iterator[None]:
        start = self._clock()
        with self._progress.phase(text):
            yield
        self.result.stages[stage] = self._clock() - start


def _attempts(attempt: Int64s) -> int:
    return int(np.max(attempt)) + 1 if attempt.size else 0
