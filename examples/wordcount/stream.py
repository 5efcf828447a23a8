"""The streaming query of the word count, from the dropped files to the completions.

    dropped files -> spout -> split -> fields grouping -> count -> store -> acker -> completions

The worker that counts a word writes it with its tree in `store`, which passes on the messages for the acker alone. A
line that is sent again is a new tree, and only the words of acked trees count, so nothing is counted twice. The
completions are written together with the state of the acker. Lines whose trees were not acked become a ticket in the
drop folder, which the stream reads like any other file.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from acker._engine.protocol import Outcome
from acker.spark import completions_from_blocks
from acker.spark.blocks import BLOCKS_DDL
from acker.spark.parcel import pack_function
from acker.spark.pipelines import anchors as trees
from acker.spark.pipelines.collector import COUNTERS_SHARD, FAILURES_SHARD
from acker.spark.pipelines.stages import ANCHORS, BLOCK, SHARD, decode_failures
from acker.spark.pipelines.tracked import spout
from acker.spark.session_checks import PARTITIONS_CONF, PROVIDER, PROVIDER_CONF
from acker.spark.streams.file_source import BINARY_FILES_DDL
from acker.spark.streams.sinks import for_each_completion
from examples.wordcount.components import BATCH_ROWS, LINES, Faults, count_words, draw_faults, join_batches
from examples.wordcount.corpus import read_lines
from examples.wordcount.stream_files import Batch, Folder, Settings, line_and_attempt, message_ids

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from acker._engine.completions import Completions

# How often Spark lists the folder; without a pause that would keep a core busy.
_TRIGGER: Final = "1 second"

# The most text of one micro-batch, which bounds the memory of a worker.
_BATCH_BYTES: Final = 64_000_000

_MESSAGE: Final = "message"
_WORDS: Final = pa.schema({"root_id": pa.int64(), "word": pa.dictionary(pa.int32(), pa.string())})


def session_conf(partitions: int) -> dict[str, str]:
    """Return the settings of the stream's session."""
    return {
        PARTITIONS_CONF: str(partitions),
        PROVIDER_CONF: PROVIDER,
        # Files are shared out to the cores by their sizes: without this a file counts as 4 MB more than it has.
        "spark.sql.files.openCostInBytes": "4096",
    }


def read(folder: Folder, faults: Faults, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read the lines that dropped files request, and draw the faults of each."""
    for batch in batches:
        held: list[pa.RecordBatch] = []
        names: Any = batch.column(0).to_pylist()
        for name in names:
            for wanted in folder.lines_of(name):
                texts = read_lines(str(folder.text(wanted.file)))
                line = np.arange(1, len(texts) + 1)
                if wanted.line is not None:
                    line = wanted.line
                    texts = [texts[place] for place in (line - 1).tolist()]
                rows = draw_faults(wanted.file, line, texts, faults, wanted.attempt)
                held.append(rows.append_column(_MESSAGE, pa.array(message_ids(line, wanted.attempt))))
                if sum(part.num_rows for part in held) >= BATCH_ROWS:
                    yield from join_batches(held)
                    held = []
        yield from join_batches(held)


def store(folder: Folder, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write words, failures and counters of a partition; pass the messages on."""
    from pyspark import TaskContext

    words: list[pa.RecordBatch] = []
    failures: list[tuple[int, str, str]] = []
    counters: list[Any] = []
    for batch in batches:
        shard = batch.column(SHARD)
        rows = batch.filter(shard.is_null())
        if rows.num_rows:
            anchors = trees.from_arrow(rows.column(ANCHORS))
            columns = [pa.array(anchors.root_id), rows.column("word").dictionary_encode()]
            words.append(pa.RecordBatch.from_arrays(columns, schema=_WORDS))
        carriers = batch.filter(shard.is_valid())
        numbers = carriers.column(SHARD).to_numpy()
        told = carriers.filter(pa.array(numbers == FAILURES_SHARD))
        for part in decode_failures(iter([told])):
            failures += zip(
                *(part.column(name).to_pylist() for name in ("root_id", "component", "reason")), strict=True
            )
        reports: Any = carriers.filter(pa.array(numbers == COUNTERS_SHARD)).column(BLOCK).to_pylist()
        counters += map(json.loads, reports)
        yield carriers.filter(pa.array(numbers >= 0)).select([SHARD, BLOCK])
    if words or failures or counters:
        context = TaskContext.get()
        assert context is not None
        # One batch, so that who reads it meets each different word once.
        table = pa.Table.from_batches(words, _WORDS).unify_dictionaries().combine_chunks()
        table = table.replace_schema_metadata({"failures": json.dumps(failures), "counters": json.dumps(counters)})
        folder.write_results(int(str(context.getLocalProperty("streaming.sql.batchId"))), context.partitionId(), table)


class Sink:
    """Takes the completions of each micro-batch.

    Parameters
    ----------
    folder : Folder
    max_attempts : int
    clock : callable
        Returns the time in seconds since the epoch.
    """

    def __init__(self, folder: Folder, max_attempts: int, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._max_attempts = max_attempts
        self._clock = clock

    def __call__(self, done: Completions, batch_id: int) -> None:
        """Write the trees that ended, and request lines again that may be sent again."""
        left = done.outcome != Outcome.ACKED
        line, attempt = line_and_attempt(done.message_id[left])
        file = done.task_id[left].astype(np.int64)
        again = attempt + 1 < self._max_attempts
        if len(done):
            self._folder.write_completions(batch_id, pa.Table.from_batches([done.to_arrow()]))
            self._folder.write_ticket(batch_id, file[again], line[again], attempt[again])
        by_outcome = np.bincount(done.outcome, minlength=max(Outcome) + 1).tolist()
        self._folder.write_batch(
            Batch(
                batch=batch_id,
                acked=by_outcome[Outcome.ACKED],
                failed=by_outcome[Outcome.FAILED],
                timed_out=by_outcome[Outcome.TIMED_OUT],
                again=int(again.sum()),
                dead=int((~again).sum()),
                ended_at=self._clock(),
            )
        )


def completions(spark: SparkSession, folder: Folder, settings: Settings) -> DataFrame:
    """Build the stream of trees that ended."""
    faults = Faults(settings.seed, settings.fail_rate, settings.drop_rate)
    dropped = (
        # Paths, and no contents: the workers read the files themselves.
        spark.readStream.format("binaryFile")
        .schema(BINARY_FILES_DDL)
        .option("maxBytesPerTrigger", _BATCH_BYTES)
        .load(str(folder.drop))
    ).select("path")

    def read_lines(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return read(folder, faults, batches)

    spouted = spout(
        dropped.mapInArrow(read_lines, f"{LINES}, {_MESSAGE} long"),
        message_id=_MESSAGE,
        source="file",
        task_id="file",
        run_seed=settings.seed,
        shards=settings.partitions,
        component="lines",
    )
    blocks = count_words(spouted).dataframe.mapInArrow(pack_function(functools.partial(store, folder)), BLOCKS_DDL)
    return completions_from_blocks(blocks, shards=settings.partitions, timeout=settings.timeout_seconds)


def start(spark: SparkSession, root: Path) -> StreamingQuery:
    """Start the stream of a folder, or continue it."""
    folder = Folder(root)
    settings = folder.settings()
    sink = Sink(folder, settings.max_attempts)
    done = completions(spark, folder, settings)
    return (
        done.writeStream.foreachBatch(for_each_completion(sink, empty=True))
        .option("checkpointLocation", str(folder.checkpoint))
        .trigger(processingTime=_TRIGGER)
        .start()
    )
