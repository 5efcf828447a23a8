"""The word count that gets killed: a spout over a file, a bolt that splits, and one that counts in its state.

It is there twice: tuple by tuple, and in columns.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyarrow.fs import FileSystem

from acker.spark.topologies import bolt_state
from acker.topology import ArrowBolt, Bolt, Grouping, Reason, ReliableSpout, StatefulBolt, Topology
from tests.torture.kills import processes

FOLDER: Final = "user.kills.folder"

LINES, ACKED, DEAD = "lines", "acked", "dead"
# As long as there is a file of this name, the spout does not finish.
HOLD = "hold"

# What happens to a line with such a word. The first two always fail, the others once.
BAD, SOUR, FLAKY = "bad", "sour", "flaky"
KILL_WORKER, KILL_EXECUTOR, KILL_COUNTING = "kill-worker", "kill-executor", "kill-counting"
# Before the file of state is written, and when it is there and Spark does not know it.
KILL_WRITING, KILL_WRITTEN = "kill-writing", "kill-written"


def read_log(path: Path) -> list[int]:
    """Return the numbers in a file; one that a killed process did not finish to write does not count."""
    return (
        [int(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if path.exists()
        else []
    )


def is_first(folder: Path, name: str) -> bool:
    """Return whether no process of any run has asked this before."""
    try:
        (folder / f"once-{name}").open("x").close()
    except FileExistsError:
        return False
    return True


class Lines(ReliableSpout):
    """The lines of a file, by their numbers; those that were acked or given up are in two other files."""

    outputs: ClassVar[Any] = ("line",)
    attempts_max = 3
    backoff_secs = 0.05

    def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Read the files."""
        self._folder = Path(conf[FOLDER])
        ended = {number for name in (ACKED, DEAD) for number in read_log(self._folder / name)}
        lines = (self._folder / LINES).read_text().splitlines()
        self._todo = deque((number, line) for number, line in enumerate(lines) if number not in ended)

    def next_tuple(self) -> None:
        """Emit a line."""
        if not self._todo:
            if not (self._folder / HOLD).exists():
                self.finish()
            return
        number, line = self._todo.popleft()
        self.emit([line], tup_id=number)

    def ack(self, tup_id: Any) -> None:
        """Keep that a line was acked."""
        self._keep(ACKED, tup_id)
        super().ack(tup_id)

    def dead_letter(self, tup_id: Any, values: Sequence[Any], reason: Reason) -> None:
        """Keep that a line was given up."""
        self._keep(DEAD, tup_id)
        super().dead_letter(tup_id, values, reason)

    def _keep(self, name: str, number: int) -> None:
        with (self._folder / name).open("a") as log:
            log.write(f"{number}\n")


class Split(Bolt):
    """The words of lines."""

    outputs: ClassVar[Any] = ("word",)

    def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Take the folder."""
        self._folder = Path(conf[FOLDER])

    def process(self, tup: Any) -> None:
        """Emit the words; fail or die at some."""
        for word in tup.line.split():
            if word == BAD or (word.startswith(FLAKY) and is_first(self._folder, word)):
                raise ValueError(word)
            self._die_at(word)
            self.emit([word])

    def _die_at(self, word: str) -> None:
        if word.startswith(KILL_WORKER) and is_first(self._folder, word):
            os.kill(os.getpid(), signal.SIGKILL)
        if word.startswith(KILL_EXECUTOR) and is_first(self._folder, word):
            executor = processes.executor_of(os.getpid())
            assert executor is not None
            os.kill(executor, signal.SIGKILL)


class Count(StatefulBolt):
    """How often each word came."""

    def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Take the folder."""
        self._folder = Path(conf[FOLDER])

    def process(self, tup: Any) -> None:
        """Count; fail or die at some words, when they have been counted."""
        self.state[tup.word] = self.state.get(tup.word, 0) + 1
        if tup.word == SOUR:
            raise ValueError(tup.word)
        if tup.word.startswith(KILL_COUNTING) and is_first(self._folder, tup.word):
            os.kill(os.getpid(), signal.SIGKILL)
        if tup.word.startswith((KILL_WRITING, KILL_WRITTEN)) and is_first(self._folder, tup.word):
            die_at_state(written=tup.word.startswith(KILL_WRITTEN))


def die_at_state(*, written: bool) -> None:
    """Let this worker die before it writes a file of state, or when it has written one."""
    write = bolt_state.write_file

    def call(filesystem: FileSystem, path: str, content: bytes) -> None:
        if written:
            write(filesystem, path, content)
        os.kill(os.getpid(), signal.SIGKILL)

    bolt_state.write_file = call


class WordCount(Topology):
    """Lines, split, count."""

    config = {"topology.max.spout.pending": 40, "topology.message.timeout.secs": 120}

    lines = Lines.spec()
    split = Split.spec(inputs=[lines], par=2)
    count = Count.spec(inputs={split: Grouping.fields("word")}, par=2)


class LinesInBatches(Lines):
    """The lines, eight at once."""

    outputs: ClassVar[Any] = {"line": pa.string()}

    def next_tuple(self) -> None:
        """Emit a batch."""
        if not self._todo:
            self.finish()
            return
        numbers, lines = zip(*(self._todo.popleft() for _ in range(min(8, len(self._todo)))), strict=True)
        self.emit_batch({"line": lines}, tup_ids=numbers)


class SplitRows(ArrowBolt, Split):
    """The words of a batch of lines."""

    outputs: ClassVar[Any] = {"word": pa.string()}

    def process_rows(self, batch: pa.RecordBatch) -> None:
        """Emit the words; raise, fail or die at some."""
        words: list[str] = []
        parents: list[int] = []
        for row, line in enumerate(batch.column("line").to_pylist()):
            of_line = str(line).split()
            if BAD in of_line:
                raise ValueError(BAD)
            if any(word.startswith(FLAKY) and is_first(self._folder, word) for word in of_line):
                self.fail_rows([row], FLAKY)
                continue
            for word in of_line:
                self._die_at(word)
            words += of_line
            parents += [row] * len(of_line)
        self.emit_batch({"word": words}, parents=parents)


class CountRows(ArrowBolt, Count):
    """How often each word came, in batches."""

    def process_rows(self, batch: pa.RecordBatch) -> None:
        """Count; fail or die at some words, when they have been counted."""
        words = [str(word) for word in batch.column("word").to_pylist()]
        for word in words:
            self.state[word] = self.state.get(word, 0) + 1
        self.fail_rows([row for row, word in enumerate(words) if word == SOUR], SOUR)
        if any(word.startswith(KILL_COUNTING) and is_first(self._folder, word) for word in words):
            os.kill(os.getpid(), signal.SIGKILL)


class WordCountInColumns(Topology):
    """The same in columns."""

    config = WordCount.config

    lines = LinesInBatches.spec()
    split = SplitRows.spec(inputs=[lines], par=2)
    count = CountRows.spec(inputs={split: Grouping.fields("word")}, par=2)


TOPOLOGIES: Final = {each.__name__: each for each in (WordCount, WordCountInColumns)}
