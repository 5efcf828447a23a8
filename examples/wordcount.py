"""Count words on Spark, or in this process, and track each line as a tuple tree.

A spout emits the lines of all text files in a folder, one bolt splits them, another counts the words. A line that is
too long, or no UTF-8, fails each time and becomes a dead letter.

Run it: python examples/wordcount.py, which starts Spark in this program; with --checkpoint DIR, as a stream that may
be killed, and goes on where it was; with --on local, without Spark. `make_run/` beside this file then injects faults:
some lines fail half-way, some are never acked, and a worker of Spark is killed; the lines come again. On Spark the
state of `Count` only has the effects of acked lines, so the counts are exact: they are compared with those of a plain
loop over the same files. In one process a line that failed half-way is counted twice in part.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from acker.topology import Bolt, Grouping, ReliableSpout, StatefulBolt, Topology

STDLIB = Path(sysconfig.get_path("stdlib"))
NOT_TEXT = ("site-packages", "__pycache__")
LENGTH_MAX = 120  # characters of a line; a longer one becomes a dead letter


class Lines(ReliableSpout):
    """Emits each line, with file:number as its id."""

    outputs = ["line"]
    tup_id_column = "place"
    backoff_secs = 0.1

    def initialize(self, conf: Any, context: Any) -> None:
        self.letters = Path(conf["user.letters"])
        self.lines = self.read(Path(conf["user.folder"]), deep=conf["user.deep"])

    def read(self, root: Path, *, deep: bool) -> Iterator[tuple[str, str]]:
        for name in text_files(root, deep=deep):
            yield from ((f"{name}:{number}", line) for number, line in enumerate(lines_of(root / name), 1))

    def next_tuple(self) -> None:
        place, line = next(self.lines, (None, None))
        if place is None:
            self.finish()
        else:
            self.emit([line], tup_id=place)

    def dead_letter(self, tup_id: Any, values: Any, reason: Any) -> None:
        letter = {"place": tup_id, "line": values[0], "component": reason.component, "reason": str(reason)}
        with self.letters.open("a") as file:
            file.write(json.dumps(letter) + "\n")


class Split(Bolt):
    """Emits the words of a line."""

    outputs = ["word"]

    def process(self, tup: Any) -> None:
        for word in self.words(tup.line):
            self.emit([word])

    def words(self, line: str) -> Iterator[str]:
        if "\N{REPLACEMENT CHARACTER}" in line:
            raise UnicodeError("not UTF-8")
        if len(line) > LENGTH_MAX:
            raise ValueError(f"a line of {len(line):,} characters, more than {LENGTH_MAX}")
        yield from line.split()


class Count(StatefulBolt):
    """Counts words."""

    def process(self, tup: Any) -> None:
        self.state[tup.word] = self.state.get(tup.word, 0) + 1


class WordCount(Topology):
    """lines -> split -> count."""

    lines = Lines.spec()
    split = Split.spec(inputs={"lines": Grouping.shuffle()}, par=4)
    count = Count.spec(inputs={split: Grouping.fields("word")}, par=4)


class LinesOfWorkers(Lines):
    """Emits each line, as rows that the workers read: so a stream finds them again after its driver was killed."""

    def frame(self, spark: Any, conf: Any) -> Any:
        root = Path(conf["user.folder"])
        names = text_files(root, deep=conf["user.deep"])
        files = spark.createDataFrame([(name,) for name in names], "name string")
        spread = files.repartition(4 * spark.sparkContext.defaultParallelism)

        def read(batches: Any) -> Iterator[Any]:
            import pyarrow as pa

            for batch in batches:
                for name in batch.column("name").to_pylist():
                    lines = lines_of(root / name)
                    places = [f"{name}:{number}" for number in range(1, len(lines) + 1)]
                    yield pa.RecordBatch.from_pydict({"place": places, "line": lines})

        return spread.mapInArrow(read, "place string, line string")


class WordCountStream(WordCount):
    """The same, over lines that the workers of Spark read."""

    lines = LinesOfWorkers.spec()


def text_files(root: Path, *, deep: bool = True) -> list[str]:
    """Return the text files of a folder and, if `deep`, of those below it, but not of installed packages."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if deep and name not in NOT_TEXT)
        found += [path for name in sorted(names) if is_text(path := Path(folder, name))]
    return [str(path.relative_to(root)) for path in found]


def is_text(path: Path) -> bool:
    """Return whether there is no zero byte at the start of a file."""
    with path.open("rb") as file:
        return b"\0" not in file.read(8192)


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file; what is no UTF-8 reads as U+FFFD."""
    return path.read_bytes().decode("utf-8", "replace").split("\n")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where `examples` is
    from examples.make_run.command import main

    sys.exit(main())
