"""The files of a word count that runs as a stream, without Spark.

    drop/         input of the stream: text files, named by their number, and tickets, which name lines to send again
    results/      one file a micro-batch and partition: the words that arrived, each with its tree
    completions/  one file a micro-batch: the trees that ended
    batches/      one file a micro-batch, written last: how many ended how
    checkpoint/   Spark's
    settings.json
    failed.txt    the error, if the stream failed

A micro-batch that runs again, as after a crash, writes files of the same names with the same content. Each file is
written under another name, which Spark ignores, and renamed, so that it appears whole.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Container, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Int64s = NDArray[np.int64]

# A message id holds the line and the attempt, so that a completion alone says what to send again.
_ATTEMPT_BITS: Final = 10
ATTEMPTS_MAX: Final = 1 << _ATTEMPT_BITS

_TEXT: Final = re.compile(r"(\d{9})\.txt")
_TICKET: Final = re.compile(r"again-(\d{9})\.jsonl")


def message_ids(line: Int64s, attempt: int) -> Int64s:
    """Return the spout's own ids of some lines of a file, unique within the file."""
    return line << _ATTEMPT_BITS | attempt


def line_and_attempt(message_id: Int64s) -> tuple[Int64s, Int64s]:
    """Return line and attempt of message ids; the inverse of `message_ids`."""
    return message_id >> _ATTEMPT_BITS, message_id & (ATTEMPTS_MAX - 1)


@dataclass(frozen=True)
class Settings:
    """The settings of one stream, the same over all restarts.

    Attributes
    ----------
    seed : int
        Seed of the faults and of all ids.
    fail_rate, drop_rate : float
    max_attempts : int
    timeout_seconds : float
    partitions : int
        Shuffle partitions of the session, and shards of the acker. Both are fixed by the checkpoint.
    """

    seed: int
    fail_rate: float
    drop_rate: float
    max_attempts: int
    timeout_seconds: float
    partitions: int


class Batch(NamedTuple):
    """The trees that ended in one micro-batch, by outcome; `again` of them are sent again, `dead` are dead-lettered."""

    batch: int
    acked: int
    failed: int
    timed_out: int
    again: int
    dead: int
    ended_at: float


class Lines(NamedTuple):
    """Lines of one file to send as attempt number `attempt`; `line` None means all."""

    file: int
    attempt: int
    line: Int64s | None


@dataclass(frozen=True)
class Folder:
    """The folder, and the names in it."""

    root: Path

    def make(self, settings: Settings) -> None:
        """Make the folder and its subfolders; it may exist if it is empty."""
        for name in ("drop", "results", "completions", "batches"):
            (self.root / name).mkdir(parents=True)
        write_whole(self.root / "settings.json", json.dumps(asdict(settings)).encode())

    def settings(self) -> Settings:
        """Read the settings."""
        return Settings(**json.loads((self.root / "settings.json").read_text()))

    @property
    def drop(self) -> Path:
        """The folder that the stream reads."""
        return self.root / "drop"

    @property
    def checkpoint(self) -> Path:
        """The checkpoint of the query."""
        return self.root / "checkpoint"

    @property
    def failure(self) -> Path:
        """The file that says why the stream failed."""
        return self.root / "failed.txt"

    def text(self, file: int) -> Path:
        """Return the path of a dropped text file."""
        return self.drop / f"{file:09d}.txt"

    def ticket(self, batch: int) -> Path:
        """Return the path of the ticket of a micro-batch."""
        return self.drop / f"again-{batch:09d}.jsonl"

    def lines_of(self, name: str) -> Iterator[Lines]:
        """Yield the lines that a dropped file requests; it is given by its name or its path."""
        name = name.rpartition("/")[2]
        text = _TEXT.fullmatch(name)
        if text is not None:
            yield Lines(int(text[1]), 0, None)
        elif _TICKET.fullmatch(name) is not None:
            for entry in (self.drop / name).read_bytes().splitlines():
                file, attempt, line = json.loads(entry)
                yield Lines(file, attempt, np.array(line, np.int64))

    def write_ticket(self, batch: int, file: Int64s, line: Int64s, attempt: Int64s) -> None:
        """Request lines again, each as the attempt after `attempt`. Without lines there is no ticket."""
        order = np.lexsort((line, attempt, file))
        file, line, attempt = file[order], line[order], attempt[order]
        first = np.flatnonzero((np.diff(file, prepend=-1) != 0) | (np.diff(attempt, prepend=-1) != 0))
        parts = zip(first.tolist(), np.split(line, first[1:]), strict=False)
        entries = [
            json.dumps([int(file[place]), int(attempt[place]) + 1, numbers.tolist()]) for place, numbers in parts
        ]
        if line.size:
            write_whole(self.ticket(batch), "\n".join(entries).encode())

    def write_results(self, batch: int, partition: int, results: pa.Table) -> None:
        """Write the words, failures and counters of one task of a micro-batch."""
        self._write_table("results", f"{batch:09d}-{partition:05d}", results)

    def results(self) -> Iterator[pa.Table]:
        """Read all results, file by file."""
        yield from self._tables("results")

    def write_completions(self, batch: int, done: pa.Table) -> None:
        """Write the trees that ended in a micro-batch."""
        self._write_table("completions", f"{batch:09d}", done)

    def completions(self) -> Iterator[pa.Table]:
        """Read all completions, micro-batch by micro-batch."""
        yield from self._tables("completions")

    def write_batch(self, batch: Batch) -> None:
        """Note that a micro-batch has written everything."""
        write_whole(self.root / "batches" / f"{batch.batch:09d}.json", json.dumps(batch).encode())

    def batches(self, known: Container[int]) -> list[Batch]:
        """Read the micro-batches that are not known yet, in order."""
        paths = sorted((self.root / "batches").glob("[!.]*"))
        return [Batch(*json.loads(path.read_bytes())) for path in paths if int(path.stem) not in known]

    def _write_table(self, kind: str, name: str, table: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        write_whole(self.root / kind / f"{name}.arrows", sink.getvalue())

    def _tables(self, kind: str) -> Iterator[pa.Table]:
        for path in sorted((self.root / kind).glob("[!.]*")):
            with pa.ipc.open_stream(path.read_bytes()) as reader:
                yield reader.read_all()


def write_whole(path: Path, content: Any) -> None:
    """Write or replace a file atomically, so that readers never see a part of it."""
    new = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    new.write_bytes(content)
    new.replace(path)
