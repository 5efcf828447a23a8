"""Completions of messages in files that keep coming into one directory.

Spark's file source watches the directory and remembers what it has seen. It brings paths and sizes only: its binary
format reads no content when nobody asks for it. The workers read the files as in a batch, a large one in slices that
several of them take, and what they combined goes on as blocks.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pyarrow as pa
from pyarrow import fs

from acker.errors import ArgumentTypeError, ArgumentValueError
from acker.protocol import INT64_MAX, check_integer
from acker.spark.blocks import BLOCKS_DDL, place_of
from acker.spark.files import deal, gather_units, inspect_file, locate, parallelism_of, resolve
from acker.spark.guards import carried
from acker.spark.rows import TIMED_BLOCKS_DDL, block_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from acker.spark.files import Unit

BINARY_FILES_DDL: Final = "path string, modificationTime timestamp, length long, content binary"
# About 200,000 messages in Parquet: less is not worth a task of its own.
_SLICE_BYTES: Final = 4 << 20


def completions_from_directory(
    spark: SparkSession,
    directory: Any,
    *,
    shards: int | None,
    max_files_per_trigger: int | None = None,
    event_time: str | None = None,
    **options: Any,
) -> DataFrame:
    """Settle the messages of the files that come into a directory; see `acker.spark.completions_from_files`."""
    from acker.spark.streaming import completions_from_block_stream, default_shards

    split = shards or default_shards(spark)
    blocks = blocks_from_directory(
        spark, directory, split, max_files_per_trigger=max_files_per_trigger, event_time=event_time
    )
    return completions_from_block_stream(blocks, shards=split, event_time=event_time is not None, **options)


def blocks_from_directory(
    spark: SparkSession,
    directory: Any,
    shards: int,
    *,
    max_files_per_trigger: int | None = None,
    event_time: str | None = None,
) -> DataFrame:
    """Return a streaming DataFrame of the blocks of the files that come into a directory."""
    path = _check_directory(directory)
    if event_time is not None and not isinstance(event_time, str):
        raise ArgumentTypeError(f"event_time: expected the name of a column, got {type(event_time).__name__}")
    reader = spark.readStream.format("binaryFile").schema(BINARY_FILES_DDL).option("recursiveFileLookup", "true")
    if max_files_per_trigger is not None:
        limit = check_integer("max_files_per_trigger", max_files_per_trigger, 1, INT64_MAX)
        reader = reader.option("maxFilesPerTrigger", limit)
    slices = _slices(reader.load(path), parallelism_of(spark))

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for combiner, event_ms in gather_units(_units(batches, event_time), resets=True, event_time=event_time):
            yield from block_batches(combiner, shards, timed=event_time is not None, event_ms=event_ms)

    return slices.mapInArrow(carried(run), BLOCKS_DDL if event_time is None else TIMED_BLOCKS_DDL)


def _check_directory(directory: Any) -> str:
    """Return the directory as Spark is to find it."""
    expected = "paths: with streaming=True expected one directory that exists, without patterns"
    if not isinstance(directory, (str, os.PathLike)):
        raise ArgumentTypeError(f"{expected}, got {type(directory).__name__}")
    text = os.fspath(directory)
    filesystem, root, pattern = resolve(text)
    if pattern or "{" in root or filesystem.get_file_info(root).type != fs.FileType.Directory:
        raise ArgumentValueError(f"{expected}, got {text!r}")
    return f"file://{root}" if isinstance(filesystem, fs.LocalFileSystem) else text


def _slices(files: DataFrame, tasks: int) -> DataFrame:
    """Cut each file into as many slices as are worth a task, at most `tasks`, and deal them out to as many tasks."""
    from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.

    slices = F.least(F.ceil(F.col("length") / _SLICE_BYTES), F.lit(tasks))
    cut = files.select("path", F.greatest(slices, F.lit(1)).cast("int").alias("slices"))
    dealt = cut.select("path", "slices", F.explode(F.sequence(F.lit(0), F.col("slices") - 1)).alias("slice"))
    # The slices of one file go to different tasks, and files of one slice to any.
    # As long: the sum of an int and a slice may be none, which Spark takes for an error.
    task = F.pmod(F.hash("path").cast("long") + F.col("slice"), F.lit(tasks)).cast("int")
    return dealt.repartition(tasks, place_of(task, tasks))


def _units(batches: Iterator[pa.RecordBatch], event_time: str | None) -> Iterator[Unit]:
    """Yield the units of the slices in rows of (path, slices, slice); runs in Spark's Python workers."""
    rows = [row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)]
    # Sorted, since they come in any order, and a task that is run again has to put out the same blocks.
    for path, slices, number in sorted(rows):
        # A file of fewer pieces than slices leaves some of them empty.
        runs = deal(inspect_file(*_located(path), event_time), slices)
        yield from runs[number] if number < len(runs) else []


def _located(path: str) -> tuple[fs.FileSystem, str]:
    """Return the filesystem and the path on it of what Spark calls a path: a URI in which nothing is escaped."""
    scheme, _, rest = path.partition(":")
    return locate(rest if scheme == "file" else f"{scheme}:{quote(rest)}")
