"""A stream of blocks, made from files of messages that keep arriving in one directory.

Spark's file source watches the directory and remembers the files that it has seen. It yields paths and sizes only: its
binary format reads no content that no query asks for. The workers read the files as in a batch, a large one in slices
by several workers, and send blocks.
"""

from __future__ import annotations

import logging
import os
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from acker._engine.protocol import INT64_MAX
from acker._files.object_stores import OBJECT_STORES
from acker._files.paths import Directories, locate, path_in_store, quote_uri, resolve
from acker._files.reader import deal, inspect_file
from acker._files.sink_log import LOG
from acker.errors import ArgumentTypeError, ArgumentValueError, ColumnTypeError, ColumnValueError
from acker.spark.blocks import BLOCKS_DDL
from acker.spark.files import follows_logs, gather_units, parallelism_of
from acker.spark.hadoop import opener_of
from acker.spark.partition_keys import partition_key
from acker.spark.streams.reports import SKIPPED, SKIPPED_SUFFIX
from acker.spark.streams.rows import TIMED_BLOCKS_DDL, block_batches
from acker.spark.versioned_pickle import pack_function

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from acker._files.paths import Opener
    from acker._files.reader import Unit
    from acker.spark.options import CompletionOptions, FileSourceOptions

BINARY_FILES_DDL: Final = "path string, modificationTime timestamp, length long, content binary"
# About 200,000 messages in Parquet: less is not worth a task of its own.
_SLICE_BYTES: Final = 4 << 20

# By default Spark skips files that are a week older than the latest, without a word: their messages would be lost.
_ANY_AGE: Final = f"{INT64_MAX}ms"
_HOST: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?")
# Characters of Hadoop's patterns; a backslash before one makes it an ordinary character.
_HADOOP_MAGIC: Final = re.compile(r"[*?\[\]{}\\]")

_log: Final = logging.getLogger("acker.spark")


def blocks_of_directory(
    spark: SparkSession, directory: Any, shards: int, source: FileSourceOptions, options: CompletionOptions
) -> DataFrame:
    """Return a streaming DataFrame of the blocks of the files that come into a directory."""
    path, filesystem, watched = _check_directory(directory, opener_of(spark))
    follow = follows_logs(spark)
    if follow:
        _check_followed(filesystem, watched)
    event_time, cohorts = options.event_time, options.cohorts
    reader = spark.readStream.format("binaryFile").schema(BINARY_FILES_DDL).option("recursiveFileLookup", "true")
    reader = reader.options(**{"maxFileAge": _ANY_AGE, **source.spark_options})
    slices = _slice_files(reader.load(path), parallelism_of(spark))
    checks = _FileChecks(filesystem, event_time, watched if follow else None, source.skip_foreign_files)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        skipped: list[str] = []
        units = _units_of_slices(batches, checks, skipped)
        for combiner, event_ms in gather_units(units, resets=True, event_time=event_time, cohorts=cohorts):
            yield from block_batches(combiner, shards, timed=event_time is not None, event_ms=event_ms)
        if skipped:
            yield _rows_of_skipped(skipped, timed=event_time is not None)

    blocks = slices.mapInArrow(pack_function(run, "read"), BLOCKS_DDL if event_time is None else TIMED_BLOCKS_DDL)
    return _observe_skipped(blocks, options.observation) if source.skip_foreign_files else blocks


def _check_directory(directory: Any, open_uri: Opener | None) -> tuple[str, fs.FileSystem, str]:
    """Return the path for Spark's source, the filesystem, and the path on it."""
    expected = "paths: with streaming=True expected one directory that exists, without patterns"
    if not isinstance(directory, (str, os.PathLike)):
        raise ArgumentTypeError(f"{expected}, got {type(directory).__name__}")
    text = os.fspath(directory)
    filesystem, root, pattern = resolve(text, open_uri=open_uri)
    if pattern or filesystem.get_file_info(root).type != fs.FileType.Directory:
        raise ArgumentValueError(f"{expected}, got {text!r}")
    host, path = "file://", root
    match = _HOST.match(text)
    if not isinstance(filesystem, fs.LocalFileSystem) and match is not None:
        host, path = match[0], unquote(text[match.end() :])
    return host + _HADOOP_MAGIC.sub(r"\\\g<0>", path), filesystem, root


def _check_followed(filesystem: fs.FileSystem, watched: str) -> None:
    """Refuse a directory in which Spark's source would not follow the log of a file sink."""
    root = Directories(filesystem).governing(watched)
    if root is not None and (root != watched or _HADOOP_MAGIC.search(root)):
        mend = f"watch {root} itself" if root != watched else "give it a name without any of * ? [ ] { } \\"
        raise ArgumentValueError(
            f"paths: a file sink wrote to {root}, and in {watched} Spark's source of files would not follow its log"
            f" ({root}/{LOG}): {mend}"
        )


def _slice_files(files: DataFrame, tasks: int) -> DataFrame:
    """Cut each file into slices that are each worth a task, at most `tasks`, and deal them out to the tasks."""
    from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.

    slices = F.least(F.ceil(F.col("length") / _SLICE_BYTES), F.lit(tasks))
    cut = files.select("path", F.greatest(slices, F.lit(1)).cast("int").alias("slices"))
    dealt = cut.select("path", "slices", F.explode(F.sequence(F.lit(0), F.col("slices") - 1)).alias("slice"))
    # The slices of one file go to different tasks. As long, since a sum of two ints may overflow, which is an error.
    task = F.pmod(F.hash("path").cast("long") + F.col("slice"), F.lit(tasks)).cast("int")
    return dealt.repartition(tasks, partition_key(task, tasks))


class _FileChecks(NamedTuple):
    """How workers check the files to come: where, the column of event times, the watched directory, what to skip."""

    filesystem: fs.FileSystem
    event_time: str | None
    watched: str | None
    skip: bool


def _units_of_slices(batches: Iterator[pa.RecordBatch], checks: _FileChecks, skipped: list[str]) -> Iterator[Unit]:
    """Yield the units of the slices in rows of (path, slices, slice); runs in Spark's Python workers."""
    rows = [row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)]
    filesystem = checks.filesystem
    directories = Directories(filesystem)
    # Sorted, since the order of rows may change, and a task that runs again must have the same output.
    for path, slices, number in sorted(rows):
        file = _path_on(filesystem, path)
        if checks.watched is not None:
            _check_no_log_between(directories, file, checks.watched)
        try:
            units = inspect_file(filesystem, file, checks.event_time)
        except (ArgumentValueError, ColumnTypeError, ColumnValueError) as error:
            if not checks.skip:
                raise
            if number == 0:
                _log.warning("skipped: %s", error)
                skipped.append(str(error))
            continue
        # A file of fewer pieces than slices leaves some of them empty.
        runs = deal(units, slices)
        yield from runs[number] if number < len(runs) else []


def _check_no_log_between(directories: Directories, file: str, watched: str) -> None:
    """Refuse a file below the watched directory into whose own directory a file sink writes."""
    root = directories.governing(file.rpartition("/")[0])
    if root is not None and root != watched:
        raise ArgumentValueError(
            f"{file}: a file sink wrote to {root}, and Spark's source of files does not follow its log ({root}/{LOG})"
            f" from {watched}: watch {root} itself, or keep it out of there"
        )


def _rows_of_skipped(skipped: list[str], *, timed: bool) -> pa.RecordBatch:
    """Return a row for each skipped file: a block of no shard, which holds the text."""
    columns: list[pa.Array[Any]] = [pa.nulls(len(skipped), pa.int32()), pa.array(skipped).cast(pa.binary())]
    names = ["shard", "block"]
    if timed:
        columns.append(pa.nulls(len(skipped), pa.int64()))
        names.append("event_ms")
    return pa.RecordBatch.from_arrays(columns, names=names)


def _observe_skipped(blocks: DataFrame, name: str) -> DataFrame:
    """Move the rows of skipped files from the blocks into an observation."""
    from pyspark.sql import functions as F  # noqa: N812

    is_skipped = F.col("shard").isNull()
    texts = F.collect_list(F.when(is_skipped, F.col("block").cast("string")))
    return blocks.observe(f"{name}{SKIPPED_SUFFIX}", texts.alias(SKIPPED)).where(~is_skipped)


def _path_on(filesystem: fs.FileSystem, path: str) -> str:
    """Return the path on the watched directory's filesystem of a path of Spark's: a URI in which nothing is escaped."""
    if isinstance(filesystem, fs.LocalFileSystem):
        return path.partition(":")[2]
    uri = quote_uri(path)
    return path_in_store(uri) if filesystem.type_name in OBJECT_STORES else locate(uri)[1]
