"""Completions of messages in files that keep coming into one directory.

Spark's file source watches the directory and remembers what it has seen. It brings paths and sizes only: its binary
format reads no content when nobody asks for it. The workers read the files as in a batch, a large one in slices that
several of them take, and what they combined goes on as blocks.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, unquote

import pyarrow as pa
from pyarrow import fs

from acker._engine.protocol import INT32_MAX, INT64_MAX, check_integer
from acker.errors import ArgumentTypeError, ArgumentValueError, ColumnTypeError, ColumnValueError
from acker.spark.blocks import BLOCKS_DDL, place_of
from acker.spark.files import deal, follows_logs, gather_units, inspect_file, parallelism_of
from acker.spark.paths import Directories, locate, resolve
from acker.spark.session_checks import carried
from acker.spark.sink_log import LOG
from acker.spark.streams.reports import DEFAULT_NAME, SKIPPED, SKIPPED_SUFFIX
from acker.spark.streams.rows import TIMED_BLOCKS_DDL, block_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from acker._engine.combiner import Cohorts
    from acker.spark.files import Unit

BINARY_FILES_DDL: Final = "path string, modificationTime timestamp, length long, content binary"
# About 200,000 messages in Parquet: less is not worth a task of its own.
_SLICE_BYTES: Final = 4 << 20

# Options of Spark's source of files that make sense here, by Spark's names.
SOURCE_OPTIONS: Final = (
    "maxFilesPerTrigger",
    "maxBytesPerTrigger",
    "maxFileAge",
    "latestFirst",
    "fileNameOnly",
    "pathGlobFilter",
    "cleanSource",
    "sourceArchiveDir",
    "maxCachedFiles",
    "discardCachedInputRatio",
)
# Spark passes over files that are a week older than the latest, and says nothing: their messages would be lost.
_ANY_AGE: Final = f"{INT64_MAX}ms"
_HOST: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?")
# What Hadoop takes for a pattern, unless a backslash stands before it.
_HADOOP_MAGIC: Final = re.compile(r"[*?\[\]{}\\]")

_log: Final = logging.getLogger("acker.spark")


def completions_from_directory(
    spark: SparkSession,
    directory: Any,
    *,
    shards: int | None,
    max_files_per_trigger: int | None = None,
    timeout: str | float | None = None,
    buckets: int = 3,
    event_time: str | None = None,
    source_options: Mapping[str, Any] | None = None,
    skip_foreign_files: bool = False,
    **options: Any,
) -> DataFrame:
    """Settle the messages of the files that come into a directory; see `acker.spark.completions_from_files`."""
    from acker.spark.streams.plan import cohorts_of, completions_from_block_stream, default_shards

    split = shards or default_shards(spark)
    blocks = blocks_from_directory(
        spark,
        directory,
        split,
        max_files_per_trigger=max_files_per_trigger,
        event_time=event_time,
        source_options=source_options,
        skip_foreign_files=skip_foreign_files,
        name=options.get("name", DEFAULT_NAME),
        cohorts=None if event_time is None else cohorts_of(timeout, buckets),
    )
    return completions_from_block_stream(
        blocks, shards=split, timeout=timeout, buckets=buckets, event_time=event_time is not None, **options
    )


def blocks_from_directory(
    spark: SparkSession,
    directory: Any,
    shards: int,
    *,
    max_files_per_trigger: int | None = None,
    event_time: str | None = None,
    source_options: Mapping[str, Any] | None = None,
    skip_foreign_files: bool = False,
    name: str = DEFAULT_NAME,
    cohorts: Cohorts | None = None,
) -> DataFrame:
    """Return a streaming DataFrame of the blocks of the files that come into a directory."""
    options = _source_options(source_options, max_files_per_trigger)
    path, filesystem, watched = _check_directory(directory)
    follow = follows_logs(spark)
    if follow:
        _check_followed(filesystem, watched)
    if event_time is not None and not isinstance(event_time, str):
        raise ArgumentTypeError(f"event_time: expected the name of a column, got {type(event_time).__name__}")
    reader = spark.readStream.format("binaryFile").schema(BINARY_FILES_DDL).option("recursiveFileLookup", "true")
    slices = _slices(reader.options(**options).load(path), parallelism_of(spark))
    look = _Look(event_time, watched if follow else None, bool(skip_foreign_files))

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        skipped: list[str] = []
        units = _units(batches, look, skipped)
        for combiner, event_ms in gather_units(units, resets=True, event_time=event_time, cohorts=cohorts):
            yield from block_batches(combiner, shards, timed=event_time is not None, event_ms=event_ms)
        if skipped:
            yield _told(skipped, timed=event_time is not None)

    blocks = slices.mapInArrow(carried(run), BLOCKS_DDL if event_time is None else TIMED_BLOCKS_DDL)
    return _observed(blocks, name) if skip_foreign_files else blocks


def _source_options(given: Mapping[str, Any] | None, max_files_per_trigger: int | None) -> dict[str, Any]:
    """Check options of Spark's file source, and return them with what stands where they say nothing."""
    if given is not None and not isinstance(given, Mapping):
        raise ArgumentTypeError(f"source_options: expected a mapping of names to values, got {type(given).__name__}")
    names = {name.lower(): name for name in SOURCE_OPTIONS}
    options = {}
    for name, value in (given or {}).items():
        if str(name).lower() not in names:
            raise ArgumentValueError(
                f"source_options: expected options of Spark's file source, {', '.join(SOURCE_OPTIONS)}, got {name!r}"
            )
        options[names[name.lower()]] = value
    if max_files_per_trigger is not None:
        if "maxFilesPerTrigger" in options:
            raise ArgumentValueError("max_files_per_trigger: expected it once, got it in source_options too")
        options["maxFilesPerTrigger"] = check_integer("max_files_per_trigger", max_files_per_trigger, 1, INT32_MAX)
    return {"maxFileAge": _ANY_AGE, **options}


def _check_directory(directory: Any) -> tuple[str, fs.FileSystem, str]:
    """Return the directory as Spark is to find it, its filesystem, and its path there."""
    expected = "paths: with streaming=True expected one directory that exists, without patterns"
    if not isinstance(directory, (str, os.PathLike)):
        raise ArgumentTypeError(f"{expected}, got {type(directory).__name__}")
    text = os.fspath(directory)
    filesystem, root, pattern = resolve(text)
    if pattern or filesystem.get_file_info(root).type != fs.FileType.Directory:
        raise ArgumentValueError(f"{expected}, got {text!r}")
    host, path = "file://", root
    match = _HOST.match(text)
    if not isinstance(filesystem, fs.LocalFileSystem) and match is not None:
        host, path = match[0], unquote(text[match.end() :])
    return host + _HADOOP_MAGIC.sub(r"\\\g<0>", path), filesystem, root


def _check_followed(filesystem: fs.FileSystem, watched: str) -> None:
    """Refuse a directory of a file sink whose log Spark's source would not follow, as it does in that directory."""
    root = Directories(filesystem).governing(watched)
    if root is not None and (root != watched or _HADOOP_MAGIC.search(root)):
        mend = f"watch {root} itself" if root != watched else "give it a name without any of * ? [ ] { } \\"
        raise ArgumentValueError(
            f"paths: a file sink wrote to {root}, and in {watched} Spark's source of files would not follow its log"
            f" ({root}/{LOG}): {mend}"
        )


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


class _Look(NamedTuple):
    """What a worker has to know of the files to come: the column of event times, the directory, what to skip."""

    event_time: str | None
    watched: str | None
    skip: bool


def _units(batches: Iterator[pa.RecordBatch], look: _Look, skipped: list[str]) -> Iterator[Unit]:
    """Yield the units of the slices in rows of (path, slices, slice); runs in Spark's Python workers."""
    rows = [row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)]
    directories: dict[str, Directories] = {}
    # Sorted, since they come in any order, and a task that is run again has to put out the same blocks.
    for path, slices, number in sorted(rows):
        filesystem, file = _located(path)
        searched = directories.setdefault(filesystem.type_name, Directories(filesystem))
        if look.watched is not None:
            _check_no_log_between(searched, file, look.watched)
        try:
            units = inspect_file(filesystem, file, look.event_time)
        except (ArgumentValueError, ColumnTypeError, ColumnValueError) as fault:
            if not look.skip:
                raise
            if number == 0:
                _log.warning("skipped: %s", fault)
                skipped.append(str(fault))
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


def _told(skipped: list[str], *, timed: bool) -> pa.RecordBatch:
    """Return rows that say what was skipped: blocks of no shard."""
    columns: list[pa.Array[Any]] = [pa.nulls(len(skipped), pa.int32()), pa.array(skipped).cast(pa.binary())]
    names = ["shard", "block"]
    if timed:
        columns.append(pa.nulls(len(skipped), pa.int64()))
        names.append("event_ms")
    return pa.RecordBatch.from_arrays(columns, names=names)


def _observed(blocks: DataFrame, name: str) -> DataFrame:
    """Let the rows about skipped files leave by an observation."""
    from pyspark.sql import functions as F  # noqa: N812

    is_told = F.col("shard").isNull()
    texts = F.collect_list(F.when(is_told, F.col("block").cast("string")))
    return blocks.observe(f"{name}{SKIPPED_SUFFIX}", texts.alias(SKIPPED)).where(~is_told)


def _located(path: str) -> tuple[fs.FileSystem, str]:
    """Return the filesystem and the path on it of what Spark calls a path: a URI in which nothing is escaped."""
    scheme, _, rest = path.partition(":")
    return locate(rest if scheme == "file" else f"{scheme}:{quote(rest)}")
