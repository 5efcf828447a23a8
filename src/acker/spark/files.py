"""Files of messages, which Spark's Python workers read, combine by root and send as blocks.

No message row enters the JVM. The driver reads the footers, so that a file of the wrong shape is refused before a job
starts, and cuts the files into units (row groups, record batches) that it deals out in order: neighbours in a file are
often of the same trees, and what one task combines needs no shuffle.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.errors import PySparkException

from acker._engine.combiner import SHARDS_MAX, Cohorts, Combiner
from acker._engine.protocol import divide_up
from acker._engine.schemas import MESSAGE_COLUMNS
from acker.errors import ArgumentValueError, ColumnTypeError, ColumnValueError
from acker.spark.blocks import BLOCKS_DDL, block_row, encode_blocks
from acker.spark.messages import columns_of, event_times_of, latest_of
from acker.spark.paths import list_files
from acker.spark.versioned_pickle import pack_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

_BATCH_ROWS: Final = 131_072
# Bounds the memory of a worker; more tasks than cores do no harm.
_TASK_MESSAGES_MAX: Final = 16_000_000
# A combiner with more roots than this is written out as blocks.
_TASK_ROOTS_MAX: Final = 4_000_000
_FOOTER_THREADS: Final = 8
# Bytes of a message in Arrow's memory, to estimate the messages of a file that does not tell.
_MESSAGE_BYTES: Final = 29
# Makes Spark read all files in the directory of a file sink.
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
        The number of pieces in the file when it was inspected.
    first_row : int
        Row of the file at which the piece begins; 0 if the footer does not tell.
    messages : int
        The number of rows, exact or estimated.
    """

    filesystem: fs.FileSystem
    path: str
    kind: str
    number: int
    pieces: int
    first_row: int
    messages: int


def blocks_of_files(
    spark: SparkSession, paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], shards: int | None
) -> tuple[DataFrame, int]:
    """Return a DataFrame of the blocks of files, and the number of shards into which they are split.

    Parameters
    ----------
    spark : SparkSession
    paths : path or paths
    shards : int, optional
        By default the larger of the session's parallelism and one shard for 16 million messages.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError, ColumnTypeError, ColumnValueError
        See `acker.spark.completions_from_files`.
    """
    files = list_files(paths, logs=follows_logs(spark))
    with ThreadPoolExecutor(_FOOTER_THREADS) as pool:
        units = [unit for found in pool.map(lambda file: inspect_file(*file), files) for unit in found]
    messages = sum(unit.messages for unit in units)
    needed = max(parallelism_of(spark), divide_up(messages, _TASK_MESSAGES_MAX))
    split = shards or min(needed, SHARDS_MAX)
    work = deal(units, needed)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_numpy():
                yield from combine_units(work[task], split)

    return spark.range(0, len(work), 1, len(work)).mapInArrow(pack_function(run, "read"), BLOCKS_DDL), split


def inspect_file(filesystem: fs.FileSystem, path: str, event_time: str | None = None) -> list[Unit]:
    """Read a file's footer, check its columns and that of event times if one is asked for, and return its units.

    Raises
    ------
    ArgumentValueError                  not a Parquet or Arrow IPC file, or a damaged one.
    OSError                             it cannot be read now, which says nothing of what is in it.
    ColumnTypeError, ColumnValueError   the file, the column, what was expected and found.
    """
    with filesystem.open_input_file(path) as native:
        start = native.read(8)
        native.seek(0)
        source = _Readings(native)
        try:
            if start[:4] == b"PAR1":
                return _inspect_parquet(filesystem, path, source, event_time)
            if start[:6] == b"ARROW1":
                return _inspect_arrow(filesystem, path, source, event_time)
            if start[:4] == b"\xff\xff\xff\xff":
                with pa.ipc.open_stream(source) as stream:
                    _check_schema(path, stream.schema, event_time)
                return [Unit(filesystem, path, ARROW_STREAM, 0, 1, 0, source.size() // _MESSAGE_BYTES)]
        except _ReadError as error:
            raise error.error from None
        except (pa.ArrowInvalid, OSError) as error:
            raise ArgumentValueError(f"{path}: damaged: {error}") from error
    raise ArgumentValueError(f"{path}: expected a Parquet or Arrow IPC file, got one that begins with {start!r}")


class _ReadError(Exception):
    """Reading failed. Arrow tells of damage by an OSError, too."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class _Readings(io.RawIOBase):
    """A file as Arrow reads it, whose own errors can be told from those about its content."""

    def __init__(self, native: pa.NativeFile) -> None:
        self._native = native

    def read(self, size: int = -1) -> bytes:
        try:
            return self._native.read(None if size < 0 else size)
        except OSError as error:
            raise _ReadError(error) from error

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._native.seek(offset, whence)

    def tell(self) -> int:
        return self._native.tell()

    def size(self) -> int:
        """Return the number of bytes."""
        return self._native.size()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


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
    """Read some units; yield their messages combined, with the latest event time so far, once or in several parts.

    Only the number of roots decides on the parts, so that a task with many files stays within its memory.

    Parameters
    ----------
    units : iterable of Unit
    resets : bool
        Keep RESET_TIMEOUTs, as streams do.
    event_time : str, optional
        The column of event times; `cohorts` says how these are split.
    cohorts : Cohorts, optional
    """
    combiner = Combiner(resets=resets, cohorts=cohorts)
    latest_ms: int | None = None
    for unit in units:
        for batch, locate in read_unit(unit, event_time):
            event_ms = None
            if event_time is not None:
                event_ms = event_times_of(batch.column(event_time), event_time, locate)
                latest_ms = latest_of(latest_ms, event_ms)
            combiner.add_unchecked(columns_of(batch, locate), event_ms)
        if len(combiner) > _TASK_ROOTS_MAX:
            yield combiner, latest_ms
            combiner = Combiner(resets=resets, cohorts=cohorts)
    yield combiner, latest_ms


def read_unit(unit: Unit, event_time: str | None = None) -> Iterator[tuple[pa.RecordBatch, Callable[[int], str]]]:
    """Yield the batches of a unit, each with a function that returns where one of its rows is."""
    names = [column.name for column in MESSAGE_COLUMNS]
    if event_time is not None and event_time not in names:
        names.append(event_time)
    with unit.filesystem.open_input_file(unit.path) as source:
        first_row = unit.first_row
        unit_name = f", record batch {unit.number}" if unit.kind == ARROW_FILE else ""
        for batch in _BATCHES[unit.kind](unit, source, names):

            def locate(row: int, first_row: int = first_row) -> str:
                return f"{unit.path}{unit_name}, row {first_row + row}"

            yield batch, locate
            first_row += batch.num_rows


def _parquet_batches(unit: Unit, source: Any, names: list[str]) -> Iterator[pa.RecordBatch]:
    # Threads would take the cores of other tasks. Only remote reads gain from pre-buffering.
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
    """Return whether to follow the logs of file sinks, which an option of Spark turns off."""
    return spark.conf.get(_IGNORE_LOGS_CONF, "false") != "true"


def parallelism_of(spark: SparkSession) -> int:
    """Return the number of tasks that run at once."""
    try:
        return max(int(spark.sparkContext.defaultParallelism), 1)
    except PySparkException:  # A session of Spark Connect has no context.
        return max(int(spark.conf.get("spark.sql.shuffle.partitions") or 1), 1)
