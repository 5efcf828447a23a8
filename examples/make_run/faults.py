"""The word count with injected faults: lines fail half-way, some are never acked, a worker of Spark is killed."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from acker.topology import Grouping
from examples.wordcount import Split, WordCount, WordCountStream

FORGOTTEN, HALF_WAY = 0.001, 0.005  # shares of the lines
KILLED_AFTER = 500  # lines of one task on Spark


class Drill:
    """Kills one worker of Spark, once, and notes which other one has its lines then.

    Parameters
    ----------
    notes : Path
        The file for the notes, which must not exist.
    """

    def __init__(self, notes: Path) -> None:
        self._notes = notes
        self._attempt, self._lines = -1, 0

    def count(self) -> None:
        """Count a line of the Spark task that runs."""
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        if task.taskAttemptId() != self._attempt:
            self._attempt, self._lines = task.taskAttemptId(), 0
        self._lines += 1
        if self._lines == KILLED_AFTER:
            if task.attemptNumber() == 0:
                self._kill()
            else:
                self._write("a", f"Its lines came again: process {os.getpid()} has split the same {KILLED_AFTER}.")

    def _kill(self) -> None:
        with suppress(FileExistsError):
            told = f"A worker is killed now: process {os.getpid()}, after {KILLED_AFTER} lines of its task."
            self._write("x", told)
            os.kill(os.getpid(), signal.SIGKILL)

    def _write(self, mode: str, note: str) -> None:
        with self._notes.open(mode) as file:
            file.write(note + "\n")


class FaultySplit(Split):
    """Emits the words of a line, unless one of the injected faults comes first."""

    auto_ack = False

    def initialize(self, conf: Any, context: Any) -> None:
        self.drill = Drill(Path(conf["user.drill"])) if conf["user.drill"] else None

    def process(self, tup: Any) -> None:
        if self.drill is not None:
            self.drill.count()
        super().process(tup)
        if random.random() >= FORGOTTEN:
            self.ack(tup)  # Else its tree stays open until it times out.

    def words(self, line: str) -> Iterator[str]:
        words = list(super().words(line))
        if random.random() < HALF_WAY:
            yield from words[: len(words) // 2]
            raise RuntimeError("injected: half of the words were emitted")
        yield from words


class FaultyWordCount(WordCount):
    """The word count with injected faults."""

    split = FaultySplit.spec(inputs={"lines": Grouping.shuffle()}, par=4)


class FaultyWordCountStream(WordCountStream):
    """The same, over lines that the workers of Spark read."""

    split = FaultySplit.spec(inputs={"lines": Grouping.shuffle()}, par=4)
