"""Spout and bolts of the word count, as they run in Spark's Python workers.

Faults are drawn from run seed, file, line and attempt, so that runs can be repeated and a replayed line gets a new
chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from acker._engine.ids import draw
from acker.spark.pipelines.tracked import Tracked, spout
from acker.spark.pipelines.transforms import Flow
from acker.spark.pipelines.user_functions import Outputs
from examples.wordcount.corpus import Corpus, read_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from acker.spark.pipelines.collector import MessageCollector

# The lines as the spout sends them. `lose` is where in the line a word gets lost, from 0 to below 1; null for nowhere.
LINES: Final = "file int, line long, attempt int, text string, fault boolean, lose double"

# What `tally` yields.
COUNTS: Final = "word string, n long"

INJECTED: Final = "injected by --fail-rate"

BATCH_ROWS: Final = 20_000


class InjectedFault(Exception):  # noqa: N818  It is injected, no error.
    """Raised by the split bolt for the lines that --fail-rate selects."""


@dataclass(frozen=True)
class Faults:
    """The rates of injected faults, and the seed that selects their lines."""

    seed: int
    fail_rate: float
    drop_rate: float


# Of each file to replay: its line numbers, ascending. None: all lines of all files, the first round.
Replays = dict[int, NDArray[np.int64]]


def read(
    corpus: Corpus,
    chunks: list[list[int]],
    faults: Faults,
    attempt: int,
    replays: Replays | None,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Read the files of the chunks with these numbers, and draw the faults of each line."""
    for batch in batches:
        for chunk in batch.column(0).to_numpy().tolist():
            held: list[pa.RecordBatch] = []
            for file in chunks[chunk]:
                texts = read_lines(corpus.path(file))
                number = np.arange(1, len(texts) + 1)
                if replays is not None:
                    number = replays[file][replays[file] <= len(texts)]
                    texts = [texts[place] for place in (number - 1).tolist()]
                held.append(draw_faults(file, number, texts, faults, attempt))
                if sum(part.num_rows for part in held) >= BATCH_ROWS:
                    yield from join_batches(held)
                    held = []
            yield from join_batches(held)


def draw_faults(file: int, line: NDArray[np.int64], texts: list[str], faults: Faults, attempt: int) -> pa.RecordBatch:
    """Draw the faults of some lines of a file; return them as LINES."""
    fails = draw(faults.seed, "fail", file, line, attempt) < faults.fail_rate
    drops = draw(faults.seed, "drop", file, line, attempt) < faults.drop_rate
    where = draw(faults.seed, "lose", file, line, attempt)
    return pa.RecordBatch.from_pydict(
        {
            "file": pa.array(np.full(line.size, file, np.int32)),
            "line": pa.array(line),
            "attempt": pa.array(np.full(line.size, attempt, np.int32)),
            "text": pa.array(texts, pa.string()),
            "fault": pa.array(fails),
            "lose": pa.array(where, mask=~drops),
        }
    )


def join_batches(parts: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield small batches as one large one, which Spark handles faster."""
    if parts:
        yield from pa.Table.from_batches(parts).combine_chunks().to_batches()


def split(line: Any) -> list[tuple[str, bool]]:
    """Emit each word of a line, and whether it arrives: the split bolt."""
    if line.fault:
        raise InjectedFault(INJECTED)
    words = line.text.split()
    if line.lose is None:
        return [(word, True) for word in words]
    lost = int(line.lose * len(words))
    return [(word, place != lost) for place, word in enumerate(words)]


class LossyNetwork:
    """Loses the words that do not arrive at the count bolt: no message is sent for them, so their trees stay open."""

    def run(self, flows: Iterator[Flow], collector: MessageCollector) -> Iterator[Flow]:
        """Drop the rows that are not kept."""
        for rows, anchors in flows:
            arrives = rows.column("kept").to_numpy(zero_copy_only=False)
            if arrives.any():
                yield Flow(rows.filter(pa.array(arrives)), anchors.take(np.flatnonzero(arrives)))


def count(batch: pa.RecordBatch) -> Outputs:
    """Keep each word for its tree until the tree's outcome is known: the count bolt."""
    return Outputs({"word": batch.column("word")}, np.arange(batch.num_rows))


def tally(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add up the words of a partition, as COUNTS; the fields grouping brought all of a word to one."""
    parts = []
    for batch in batches:
        counts: Any = pc.value_counts(batch.column("word"))
        parts.append(pa.RecordBatch.from_arrays(counts.flatten(), ["word", "n"]))
    if parts:
        total = pa.Table.from_batches(parts).group_by("word").aggregate([("n", "sum")])
        yield from total.select(["word", "n_sum"]).rename_columns(["word", "n"]).to_batches(BATCH_ROWS)


def pipeline(
    spark: SparkSession, corpus: Corpus, faults: Faults, attempt: int, replays: Replays | None, partitions: int
) -> Tracked:
    """Build one round: spout -> split -> fields grouping on the word -> count."""
    if replays is None:
        chunks = corpus.chunks(partitions)
    else:
        files = sorted(replays)
        size = math.ceil(len(files) / partitions)
        chunks = [files[start : start + size] for start in range(0, len(files), size)]

    def read_lines(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return read(corpus, chunks, faults, attempt, replays, batches)

    spouted = spout(
        spark.range(0, len(chunks), 1, numPartitions=len(chunks)).mapInArrow(read_lines, LINES),
        message_id="line",
        source="file",
        task_id="file",
        attempt="attempt",
        run_seed=faults.seed,
        component="lines",
    )
    return count_words(spouted)


def count_words(lines: Tracked) -> Tracked:
    """Add the bolts: split -> fields grouping on the word -> count."""
    sent = lines.bolt(split, schema="word string, kept boolean")
    words = Tracked(sent.plan.transform(LossyNetwork())).select("word")
    return words.grouped("word").bolt(count, schema="word string", by="batch", sink=True)
