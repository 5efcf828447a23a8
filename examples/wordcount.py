"""Count words on Spark, or in this process, and track each line as a tuple tree.

A spout emits the lines of all text files in a folder, one bolt splits them, another counts the words. All of them pass
Arrow batches, and each line is acked or failed by itself: one that is too long, or no UTF-8, fails each time and
becomes a dead letter. `topology.py` beside this file has tuples instead.

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
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from acker.topology import ArrowBolt, Grouping, ReliableSpout, StatefulBolt, Topology

STDLIB = Path(sysconfig.get_path("stdlib"))
NOT_TEXT = ("site-packages", "__pycache__")
BATCH_ROWS = 8192  # lines that are emitted at once, at most
LENGTH_MAX = 120  # characters of a line; a longer one becomes a dead letter


class Lines(ReliableSpout):
    """Emits lines in batches, each line with file:number as its id."""

    outputs = {"line": pa.string()}
    tup_id_column = "place"
    backoff_secs = 0.1

    def initialize(self, conf: Any, context: Any) -> None:
        self.letters = Path(conf["user.letters"])
        root = Path(conf["user.folder"])
        self.files = read_files(root, text_files(root, deep=conf["user.deep"]))

    def next_tuple(self) -> None:
        """Emit the next lines; in one process."""
        lines = next(self.files, None)
        if lines is None:
            self.finish()
        else:
            self.emit_batch(lines.select(["line"]), tup_ids=lines["place"])

    def frame(self, spark: Any, conf: Any) -> Any:
        """Let the workers of Spark read the files: so a stream finds the lines again after its driver was killed."""
        root = Path(conf["user.folder"])
        names = [(name,) for name in text_files(root, deep=conf["user.deep"])]
        spread = spark.createDataFrame(names, "name string").repartition(4 * spark.sparkContext.defaultParallelism)

        def read(batches: Iterable[Any]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield from read_files(root, batch["name"].to_pylist())

        return spread.mapInArrow(read, "place string, line string")

    def dead_letter(self, tup_id: Any, values: Any, reason: Any) -> None:
        letter = {"place": tup_id, "line": values[0], "component": reason.component, "reason": str(reason)}
        with self.letters.open("a") as file:
            file.write(json.dumps(letter) + "\n")


class Split(ArrowBolt):
    """Emits the words of each line."""

    outputs = {"word": pa.string()}

    def process_rows(self, batch: Any) -> None:
        lines = batch["line"]
        lengths = pc.utf8_length(lines)
        is_long = pc.greater(lengths, pa.scalar(LENGTH_MAX))
        no_text = pc.match_substring(lines, "\N{REPLACEMENT CHARACTER}")
        why = "a line of {:,} characters, more than {}".format
        self.fail_rows(is_long, [why(length, LENGTH_MAX) for length in lengths.filter(is_long).to_pylist()])
        self.fail_rows(no_text, "not UTF-8")
        good = pc.indices_nonzero(pc.invert(pc.or_(is_long, no_text)))
        split = pc.utf8_split_whitespace(lines.take(good))
        words, rows = pc.list_flatten(split), good.take(pc.list_parent_indices(split))
        is_word = pc.not_equal(words, pa.scalar(""))  # One is empty where a line begins or ends with white space.
        self.emit_words(words.filter(is_word), rows.filter(is_word))

    def emit_words(self, words: Any, rows: Any) -> None:
        """Emit words, each with the row of its line."""
        self.emit_batch({"word": words}, parents=rows)


class Count(ArrowBolt, StatefulBolt):
    """Counts words."""

    def process_rows(self, batch: Any) -> None:
        words, counts = pc.value_counts(batch["word"]).flatten()
        for word, count in zip(words.to_pylist(), counts.to_pylist(), strict=True):
            self.state[word] = self.state.get(word, 0) + count


class WordCount(Topology):
    """lines -> split -> count."""

    lines = Lines.spec()
    split = Split.spec(inputs={"lines": Grouping.shuffle()}, par=4)
    count = Count.spec(inputs={split: Grouping.fields("word")}, par=4)


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


def read_files(root: Path, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """Yield the lines of each file, and their places."""
    for name in names:
        lines = lines_of(root / name)
        places = [f"{name}:{number}" for number in range(1, len(lines) + 1)]
        batch = pa.RecordBatch.from_pydict({"place": places, "line": lines})
        yield from (batch.slice(begin, BATCH_ROWS) for begin in range(0, len(lines), BATCH_ROWS))


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file; what is no UTF-8 reads as U+FFFD."""
    return path.read_bytes().decode("utf-8", "replace").split("\n")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where `examples` is
    from examples.make_run.command import main

    sys.exit(main())
