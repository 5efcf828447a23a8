"""Completions of messages at rest: Spark's Python workers read the files, combine by root and send blocks.

Message rows never enter the JVM. The driver looks at the footers, so that a file of the wrong shape is refused before
a job starts, and cuts the files into units (row groups, record batches) that it deals out in order: neighbours in a
file are often of the same trees, and what one task combines needs no shuffle.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.errors import PySparkException

from acker._engine.combiner import SHARDS_MAX, Cohorts, Combiner
from acker._engine.schemas import MESSAGE_COLUMNS
from acker.errors import ArgumentValueError, ColumnTypeError, ColumnValueError
from acker.spark.blocks import BLOCKS_DDL, block_row, completions_from_blocks, encode_blocks
from acker.spark.messages import check_options, columns_of, event_times_of, latest_of
from acker.spark.paths import list_files
from acker.spark.session_checks import carried

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

_BATCH_ROWS: Final = 131_072
# A task of more messages than this would need more memory than a worker should take; more tasks than cores do no harm.
_TASK_MESSAGES_MAX: Final = 16_000_000
# What a combiner may hold before it leaves as blocks.
_TASK_ROOTS_MAX: Final = 4_000_000
_FOOTER_THREADS: Final = 8
# What a message takes in Arrow's memory, to guess the messages of a file that does not say.
_MESSAGE_BYTES: Final = 29
# Spark's own way of reading all that lies in the directory of a file sink.
_IGNORE_LOGS_CONF: Final = "spark.sql.streaming.fileStreamSink.ignoreMetadata"

PARQUET: Final = "parquet"
ARROW_FILE: Final = "arrow file"
ARROW_STREAM: Final = "arrow stream"


class Unit(NamedTuple):
    """A piece of a file that one task reads.

    Attributes
    ----------
    filesystem : pyarrow.fs.FileSystem
    path : str
    kind : str
        `PARQUET`, `ARROW_FILE` or `ARROW_STREAM`.
    number : int
        Of the row group or record batch; 0 for a stream, which is read whole.
    pieces : int
        How many of them the file had when it was looked at.
    first_row : int
        Row of the file at which the piece begins; 0 where the footer does not say.
    messages : int
        How many rows it has, or about how many.
    """

    filesystem: fs.FileSystem
    path: str
    kind: str
    number: int
    pieces: int
    first_row: int
    messages: int


def completions_from_files(
    spark: SparkSession,
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    shards: int | None = None,
    timeout: str | float | None = None,
    protocol: str = "storm",
    include_pending: bool = False,
    streaming: bool = False,
    max_files_per_trigger: int | None = None,
    source_options: Mapping[str, Any] | None = None,
    skip_foreign_files: bool = False,
    buckets: int | None = None,
    high_water: int | None = None,
    event_time: str | None = None,
    watermark_delay: str | None = None,
    name: str | None = None,
) -> DataFrame:
    """Settle the messages in Parquet and Arrow IPC files, all of them taken as one set; or those that keep coming.

    The workers read the files themselves, so these must be reachable from every executor. This is the fast way: no
    message becomes a row of Spark's.

    With ``streaming=True`` the files are those of one directory, present and future, and the DataFrame is a streaming
    one: the messages of the files of each micro-batch are one set, and trees stay open from one to the next. A file
    must appear whole, as one that is moved in does, and must not change. Its format and columns are looked at when it
    comes: one that is not as expected fails the query.

    Parameters
    ----------
    spark : SparkSession
    paths : path or paths
        Files, directories (searched to the bottom; what Spark takes for hidden, such as ``_SUCCESS``, is left out) and
        patterns with ``*``, ``?``, ``[...]`` and ``**``; local, or URIs of a filesystem that pyarrow knows. What exists
        under its very name is no pattern. Where a file sink of Structured Streaming wrote, only what its log holds
        counts; a file that is named itself is read all the same, with a warning. The first bytes of a file tell its
        format. With `streaming` one directory that exists. Columns as in `acker.MESSAGE_SCHEMA`, found by name, further
        ones ignored; integers of another width are converted when no value changes; task_id and message_id may be null
        where no row is a TRACK.
    shards : int, 1 to 1024, optional
        Into how many parts the trees are split before they are settled. By default the larger of the session's
        parallelism and one shard for 16 million messages, each by one task; with `streaming` as many as Spark's shuffle
        partitions, at most 1024.
    timeout : str or number, optional
        "90 seconds", or seconds above 0. In a batch checked and of no effect: there nothing times out.
    protocol : {"storm", "storm-0.9"}
        The same for a set of messages. "fsshelter" needs an order.
    include_pending : bool
        Report the trees that are still open too, with outcome PENDING. Not with `streaming`.
    streaming : bool
        Watch one directory. The options that follow are refused without it.
    max_files_per_trigger : int, optional
        The most files that one micro-batch takes. By default all that are there.
    source_options : mapping of str to object, optional
        Options of Spark's source of files by Spark's own names: `acker.spark.streams.file_source.SOURCE_OPTIONS`.
        `maxFileAge`
        stands for any age unless given: files that are old are taken like others.
    skip_foreign_files : bool
        A file of another format, that lacks columns or is damaged where its footer stands does not end the query: it is
        passed over, logged as a warning by the worker, counted by `AckerListener` and told by `skipped_files`.
    event_time : str, optional
        A column of the files, of timestamps or of integers in milliseconds since 1970, by which trees time out.
    buckets, high_water, watermark_delay, name : optional
        As in `completions` of a streaming DataFrame.

    Returns
    -------
    DataFrame
        Columns of `acker.COMPLETION_SCHEMA`, one row a tree that had a TRACK and is finished; `elapsed_ms` is 0 in a
        batch. Evaluating a batch again reads the files again.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        What is wrong with an argument; paths that match nothing; a file of another format.
    ColumnTypeError, ColumnValueError
        The file, the column, what was expected and what the footer says. A bad value inside a file fails the job with
        an error that names the file, the row, the column and the root id.

    Examples
    --------
    >>> import acker.spark as aspark
    >>> aspark.completions_from_files(spark, "messages/*.parquet").groupBy("outcome").count().show()    # doctest: +SKIP
    """
    shards = check_options(protocol, timeout, shards)
    options = {
        "max_files_per_trigger": max_files_per_trigger,
        "source_options": source_options,
        "skip_foreign_files": skip_foreign_files or None,
        "buckets": buckets,
        "high_water": high_water,
        "event_time": event_time,
        "watermark_delay": watermark_delay,
        "name": name,
    }
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if streaming:
        from acker.spark.streams.file_source import completions_from_directory

        if include_pending:
            raise ArgumentValueError("include_pending: expected False with streaming=True: what is open stays so")
        return completions_from_directory(spark, paths, shards=shards, timeout=timeout, protocol=protocol, **given)
    if given:
        raise ArgumentValueError(f"{next(iter(given))}: expected nothing without streaming=True")
    files = list_files(paths, logs=follows_logs(spark))
    with ThreadPoolExecutor(_FOOTER_THREADS) as pool:
        units = [unit for found in pool.map(lambda file: inspect_file(*file), files) for unit in found]
    messages = sum(unit.messages for unit in units)
    parallelism = parallelism_of(spark)
    needed = max(parallelism, math.ceil(messages / _TASK_MESSAGES_MAX))
    split = shards or min(needed, SHARDS_MAX)
    work = deal(units, needed)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_numpy():
                yield from combine_units(work[task], split)

    blocks = spark.range(0, len(work), 1, len(work)).mapInArrow(carried(run), BLOCKS_DDL)
    return completions_from_blocks(blocks, shards=split, include_pending=include_pending)


def inspect_file(filesystem: fs.FileSystem, path: str, event_time: str | None = None) -> list[Unit]:
    """Look at a file's footer: check its columns, and that of event times if there is to be one; return its units.

    Raises
    ------
    ArgumentValueError                  not a Parquet or Arrow IPC file, or a damaged one.
    ColumnTypeError, ColumnValueError   the file, the column, what was expected and found.
    """
    with filesystem.open_input_file(path) as source:
        start = source.read(8)
        source.seek(0)
        try:
            if start[:4] == b"PAR1":
                return _inspect_parquet(filesystem, path, source, event_time)
            if start[:6] == b"ARROW1":
                return _inspect_arrow(filesystem, path, source, event_time)
            if start[:4] == b"\xff\xff\xff\xff":
                with pa.ipc.open_stream(source) as stream:
                    _check_schema(path, stream.schema, event_time)
                return [Unit(filesystem, path, ARROW_STREAM, 0, 1, 0, source.size() // _MESSAGE_BYTES)]
        except (pa.ArrowInvalid, OSError) as error:
            raise ArgumentValueError(f"{path}: damaged: {error}") from error
    raise ArgumentValueError(f"{path}: expected a Parquet or Arrow IPC file, got one that begins with {start!r}")


def _inspect_parquet(filesystem: fs.FileSystem, path: str, source: Any, event_time: str | None) -> list[Unit]:
    with pq.ParquetFile(source) as file:
        _check_schema(path, file.schema_arrow, event_time)
        groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    units = []
    first_row = 0
    for i, rows in enumerate(groups):
        units.append(Unit(filesystem, path, PARQUET, i, len(groups), first_row, rows))
        first_row += rows
    return units


def _inspect_arrow(filesystem: fs.FileSystem, path: str, source: Any, event_time: str | None) -> list[Unit]:
    with pa.ipc.open_file(source) as file:
        _check_schema(path, file.schema, event_time)
        pieces = file.num_record_batches
    each = source.size() // _MESSAGE_BYTES // max(pieces, 1)
    return [Unit(filesystem, path, ARROW_FILE, i, pieces, 0, each) for i in range(pieces)]


def _check_schema(path: str, schema: pa.Schema, event_time: str | None) -> None:
    expected = {column.name: str(column.dtype) for column in MESSAGE_COLUMNS}
    if event_time is not None:
        expected.setdefault(event_time, "timestamps or integers in milliseconds")
    for name, type_ in expected.items():
        indices = schema.get_all_field_indices(name)
        if len(indices) != 1:
            found = f"{len(indices)} columns" if indices else "no column"
            raise ColumnValueError(f"{path}: {name}: expected a column of {type_}, got {found} of that name")
        found_type = schema.field(indices[0]).type
        if not pa.types.is_integer(found_type) and not (name == event_time and pa.types.is_timestamp(found_type)):
            raise ColumnTypeError(f"{path}: {name}: expected {type_}, got {found_type}")


def deal(units: list[Unit], tasks: int) -> list[list[Unit]]:
    """Cut the units, in order, into at most `tasks` runs of about as many messages each; at least one, none empty."""
    total = sum(max(unit.messages, 1) for unit in units)
    runs: dict[int, list[Unit]] = {}
    before = 0
    for unit in units:
        weight = max(unit.messages, 1)
        runs.setdefault((2 * before + weight) * tasks // (2 * total), []).append(unit)
        before += weight
    return list(runs.values()) or [[]]


def combine_units(units: list[Unit], shards: int) -> Iterator[pa.RecordBatch]:
    """Read some units, combine their messages, and yield one block a row; runs in Spark's Python workers."""
    for combiner, _ in gather_units(units):
        for shard, block in encode_blocks(combiner, shards):
            yield block_row(shard, block)


def gather_units(
    units: Iterable[Unit], *, resets: bool = False, event_time: str | None = None, cohorts: Cohorts | None = None
) -> Iterator[tuple[Combiner, int | None]]:
    """Read some units and yield what was gathered, with the latest event time so far: once in the end, or oftener.

    A column of event times is read together with how they are parted.

    Nothing but the number of roots says when, so that a task that is dealt many files stays within its memory.
    """
    combiner = Combiner(resets=resets, cohorts=cohorts)
    latest_ms: int | None = None
    for unit in units:
        for batch, place in read_unit(unit, event_time):
            event_ms = None
            if event_time is not None:
                event_ms = event_times_of(batch.column(event_time), event_time, place)
                latest_ms = latest_of(latest_ms, event_ms)
            combiner.add_unchecked(columns_of(batch, place), event_ms)
        if len(combiner) > _TASK_ROOTS_MAX:
            yield combiner, latest_ms
            combiner = Combiner(resets=resets, cohorts=cohorts)
    yield combiner, latest_ms


def read_unit(unit: Unit, event_time: str | None = None) -> Iterator[tuple[pa.RecordBatch, Callable[[int], str]]]:
    """Yield the batches of a unit, each with a function that says where one of its rows stands."""
    names = [column.name for column in MESSAGE_COLUMNS]
    if event_time is not None and event_time not in names:
        names.append(event_time)
    with unit.filesystem.open_input_file(unit.path) as source:
        first_row = unit.first_row
        unit_name = f", record batch {unit.number}" if unit.kind == ARROW_FILE else ""
        for batch in _BATCHES[unit.kind](unit, source, names):

            def place(row: int, first_row: int = first_row) -> str:
                return f"{unit.path}{unit_name}, row {first_row + row}"

            yield batch, place
            first_row += batch.num_rows


def _parquet_batches(unit: Unit, source: Any, names: list[str]) -> Iterator[pa.RecordBatch]:
    # One core a task: threads would take those of other tasks. Only reads from afar gain from being bundled.
    is_local = isinstance(unit.filesystem, fs.LocalFileSystem)
    with pq.ParquetFile(source, pre_buffer=not is_local) as file:
        _check_pieces(unit, file.num_row_groups)
        yield from file.iter_batches(_BATCH_ROWS, row_groups=[unit.number], columns=names, use_threads=False)


def _arrow_file_batches(unit: Unit, source: Any, names: list[str]) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_file(source) as file:
        options = _ipc_options(file.schema, names)
    with pa.ipc.open_file(source, options=options) as file:
        _check_pieces(unit, file.num_record_batches)
        yield file.get_batch(unit.number)


def _arrow_stream_batches(_: Unit, source: Any, names: list[str]) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_stream(source) as stream:
        options = _ipc_options(stream.schema, names)
    source.seek(0)
    with pa.ipc.open_stream(source, options=options) as stream:
        yield from stream


_BATCHES: Final = {
    PARQUET: _parquet_batches,
    ARROW_FILE: _arrow_file_batches,
    ARROW_STREAM: _arrow_stream_batches,
}


def _ipc_options(schema: pa.Schema, names: list[str]) -> pa.ipc.IpcReadOptions:
    fields = [schema.get_field_index(name) for name in names]
    return pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)


def _check_pieces(unit: Unit, pieces: int) -> None:
    if pieces != unit.pieces:
        raise ArgumentValueError(f"{unit.path}: changed while it was read: {unit.pieces} pieces before, now {pieces}")


def follows_logs(spark: SparkSession) -> bool:
    """Tell whether the logs of file sinks are to be followed; Spark has an option to ignore them."""
    return spark.conf.get(_IGNORE_LOGS_CONF, "false") != "true"


def parallelism_of(spark: SparkSession) -> int:
    """Return how many tasks run at once."""
    try:
        return max(int(spark.sparkContext.defaultParallelism), 1)
    except PySparkException:  # Spark Connect has no context.
        return max(int(spark.conf.get("spark.sql.shuffle.partitions") or 1), 1)
