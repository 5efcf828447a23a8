"""The word count with injected faults: lines fail half-way, some are never acked, a worker of Spark is killed."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from acker.topology import Bolt, Grouping, Stream
from examples.wordcount import Split, WordCount

FORGOTTEN, HALF_WAY = 0.001, 0.005  # shares of the lines
KILLED_AFTER = 500  # lines of one task on Spark, or with the batch in which it has these


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

    def count(self, lines: int) -> None:
        """Count some lines of the Spark task that runs."""
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        if task.taskAttemptId() != self._attempt:
            self._attempt, self._lines = task.taskAttemptId(), 0
        before, self._lines = self._lines, self._lines + lines
        if before < KILLED_AFTER <= self._lines:
            if task.attemptNumber() == 0:
                self._kill()
            else:
                self._write("a", f"Its lines came again: process {os.getpid()} has split the same {self._lines:,}.")

    def _kill(self) -> None:
        with suppress(FileExistsError):
            told = f"A worker is killed now: process {os.getpid()}, after {self._lines:,} lines of its task."
            self._write("x", told)
            os.kill(os.getpid(), signal.SIGKILL)

    def _write(self, mode: str, note: str) -> None:
        with self._notes.open(mode) as file:
            file.write(note + "\n")


class FaultySplit(Split):
    """Emits the words of each line, and of some only half; tells `faults` which lines fail or are never acked."""

    outputs = [Stream(Split.outputs), Stream({"fault": pa.string()}, name="faults")]  # type: ignore[assignment]

    def initialize(self, conf: Any, context: Any) -> None:
        self.drill = Drill(Path(conf["user.drill"])) if conf["user.drill"] else None

    def process_rows(self, batch: Any) -> None:
        super().process_rows(batch)
        if self.drill is not None:
            self.drill.count(len(batch))

    def emit_words(self, words: Any, rows: Any) -> None:
        lines = np.unique(rows)
        chance = np.random.default_rng().random(len(lines))
        half_way, forgotten = lines[chance < HALF_WAY], lines[chance > 1 - FORGOTTEN]
        emitted = ~np.isin(rows, half_way) | (np.arange(len(rows)) % 2 == 0)
        super().emit_words(words.filter(emitted), rows.filter(emitted))
        for fault, faulty in (("half-way", half_way), ("never acked", forgotten)):
            self.emit_batch({"fault": [fault] * len(faulty)}, parents=faulty, stream="faults")


class Faults(Bolt):
    """Fails the lines of which half of the words were emitted, and acks none."""

    auto_ack = False

    def process(self, tup: Any) -> None:
        if tup.fault == "half-way":
            self.fail(tup, "injected: half of the words were emitted")
        # Else the tree of the line stays open until it times out.


class FaultyWordCount(WordCount):
    """The word count with injected faults."""

    split = FaultySplit.spec(inputs={"lines": Grouping.shuffle()}, par=4)
    faults = Faults.spec(inputs=["split:faults"])
