"""Completions of messages at rest: Spark's Python workers read the files, combine by root and send blocks.

Message rows never enter the JVM. The driver looks at the footers, so that a file of the wrong shape is refused before
a job starts, and cuts the files into units (row groups, record batches) that it deals out in order: neighbours in a
file are often of the same trees, and what one task combines needs no shuffle.
"""

from __future__ import annotations

import fnmatch
import math
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.errors import PySparkException

from acker.combiner import SHARDS_MAX, Combiner
from acker.errors import ArgumentTypeError, ArgumentValueError, ColumnTypeError, ColumnValueError
from acker.spark.blocks import BLOCKS_DDL, completions_from_blocks, encode_blocks
from acker.spark.messages import FIELDS, check_options, columns_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

_BATCH_ROWS: Final = 131_072
# A task of more messages than this would need more memory than a worker should take; more tasks than cores do no harm.
_TASK_MESSAGES_MAX: Final = 16_000_000
_FOOTER_THREADS: Final = 8
# What a message takes in Arrow's memory, to guess the messages of a file that does not say.
_MESSAGE_BYTES: Final = 29
_MAGIC: Final = re.compile(r"[*?\[]")
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")

PARQUET: Final = "parquet"
ARROW_FILE: Final = "arrow file"
ARROW_STREAM: Final = "arrow stream"
_BLOCK_ARROW: Final = pa.schema({"shard": pa.int32(), "block": pa.binary()})  # type: ignore[arg-type]


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
) -> DataFrame:
    """Settle the messages in Parquet and Arrow IPC files, all of them taken as one set.

    The workers read the files themselves, so these must be reachable from every executor. This is the fast way: no
    message becomes a row of Spark's.

    Parameters
    ----------
    spark : SparkSession
    paths : path or paths
        Files, directories (searched to the bottom; names that begin with "_" or "." are left out) and patterns with
        ``*``, ``?``, ``[...]`` and ``**``; local, or URIs of a filesystem that pyarrow knows. The first bytes of a file
        tell its format. Columns as in `acker.MESSAGE_SCHEMA`, found by name, further ones ignored; integers of
        another width are converted when no value changes; task_id and message_id may be null where no row is a TRACK.
    shards : int, 1 to 65536, optional
        Into how many parts the trees are split before they are settled, each by one task. By default the larger of the
        session's parallelism and one shard for 16 million messages.
    timeout : str or number, optional
        "90 seconds", or seconds above 0. Checked and of no effect: in a batch nothing times out.
    protocol : {"storm", "storm-0.9"}
        The same for a set of messages. "fsshelter" needs an order.
    include_pending : bool
        Report the trees that are still open too, with outcome PENDING.

    Returns
    -------
    DataFrame
        Columns of `acker.COMPLETION_SCHEMA`, one row a tree that had a TRACK and is finished; `elapsed_ms` is 0.
        Evaluating it again reads the files again.

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
    files = list_files(paths)
    with ThreadPoolExecutor(_FOOTER_THREADS) as pool:
        units = [unit for found in pool.map(lambda file: inspect_file(*file), files) for unit in found]
    messages = sum(unit.messages for unit in units)
    parallelism = _parallelism(spark)
    needed = max(parallelism, math.ceil(messages / _TASK_MESSAGES_MAX))
    split = shards or min(needed, SHARDS_MAX)
    work = deal(units, needed)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_numpy():
                yield from combine_units(work[task], split)

    blocks = spark.range(0, len(work), 1, len(work)).mapInArrow(run, BLOCKS_DDL)
    return completions_from_blocks(blocks, shards=split, include_pending=include_pending)


def list_files(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> list[tuple[fs.FileSystem, str]]:
    """Return the files that `paths` name, in order, each once."""
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    if not isinstance(paths, Iterable):
        raise ArgumentTypeError(f"paths: expected a path or several, got {type(paths).__name__}")
    found: dict[str, tuple[fs.FileSystem, str]] = {}
    asked = 0
    for path in paths:
        if not isinstance(path, (str, os.PathLike)):
            raise ArgumentTypeError(f"paths: expected a path or several, got {type(path).__name__} among them")
        asked += 1
        filesystem, base, pattern = _resolve(os.fspath(path))
        files = sorted(_expand(filesystem, base, pattern))
        if not files:
            raise ArgumentValueError(f"paths: {os.fspath(path)!r} names no file")
        for file in files:
            found.setdefault(f"{filesystem.type_name}:{file}", (filesystem, file))
    if not asked:
        raise ArgumentValueError("paths: expected at least one path")
    return list(found.values())


def _resolve(path: str) -> tuple[fs.FileSystem, str, list[str]]:
    """Return a filesystem, a path on it, and the pattern's segments below that path."""
    is_uri = _URI.match(path) is not None
    segments = path.split("/") if is_uri or os.sep == "/" else re.split(r"[\\/]", path)
    plain = next((i for i, segment in enumerate(segments) if _MAGIC.search(segment)), len(segments))
    base = "/".join(segments[:plain])
    if is_uri:
        filesystem, root = fs.FileSystem.from_uri(base)
    else:
        filesystem = fs.LocalFileSystem()
        # The workers may have another working directory.
        root = str(Path(base or ("/" if path.startswith("/") else ".")).absolute())
    if isinstance(filesystem, fs.LocalFileSystem):
        filesystem = fs.LocalFileSystem(use_mmap=True)
    return filesystem, root, segments[plain:]


def _expand(filesystem: fs.FileSystem, base: str, pattern: list[str]) -> Iterator[str]:
    if not pattern:
        info = filesystem.get_file_info(base)
        if info.is_file:
            yield base
        elif info.type == fs.FileType.Directory:
            for entry in filesystem.get_file_info(fs.FileSelector(base, recursive=True)):
                below = entry.path[len(base) :].lstrip("/")
                if entry.is_file and not any(segment[0] in "._" for segment in below.split("/")):
                    yield entry.path
        return
    segment, rest = pattern[0], pattern[1:]
    if segment == "**":
        yield from _expand(filesystem, base, rest or ["*"])
    for entry in filesystem.get_file_info(fs.FileSelector(base, allow_not_found=True)):
        is_directory = entry.type == fs.FileType.Directory
        if entry.base_name[0] in "._":
            continue
        if segment == "**":
            if is_directory:
                yield from _expand(filesystem, entry.path, pattern)
        elif fnmatch.fnmatchcase(entry.base_name, segment) and (is_directory or not rest):
            yield from _expand(filesystem, entry.path, rest)


def inspect_file(filesystem: fs.FileSystem, path: str) -> list[Unit]:
    """Look at a file's footer: check its columns and return its units.

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
                return _inspect_parquet(filesystem, path, source)
            if start[:6] == b"ARROW1":
                return _inspect_arrow(filesystem, path, source)
            if start[:4] == b"\xff\xff\xff\xff":
                with pa.ipc.open_stream(source) as stream:
                    _check_schema(path, stream.schema)
                return [Unit(filesystem, path, ARROW_STREAM, 0, 1, 0, source.size() // _MESSAGE_BYTES)]
        except (pa.ArrowInvalid, OSError) as error:
            raise ArgumentValueError(f"{path}: damaged: {error}") from error
    raise ArgumentValueError(f"{path}: expected a Parquet or Arrow IPC file, got one that begins with {start!r}")


def _inspect_parquet(filesystem: fs.FileSystem, path: str, source: Any) -> list[Unit]:
    with pq.ParquetFile(source) as file:
        _check_schema(path, file.schema_arrow)
        groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    units = []
    first_row = 0
    for i, rows in enumerate(groups):
        units.append(Unit(filesystem, path, PARQUET, i, len(groups), first_row, rows))
        first_row += rows
    return units


def _inspect_arrow(filesystem: fs.FileSystem, path: str, source: Any) -> list[Unit]:
    with pa.ipc.open_file(source) as file:
        _check_schema(path, file.schema)
        pieces = file.num_record_batches
    each = source.size() // _MESSAGE_BYTES // max(pieces, 1)
    return [Unit(filesystem, path, ARROW_FILE, i, pieces, 0, each) for i in range(pieces)]


def _check_schema(path: str, schema: pa.Schema) -> None:
    for field in FIELDS:
        indices = schema.get_all_field_indices(field.name)
        if len(indices) != 1:
            found = f"{len(indices)} columns" if indices else "no column"
            raise ColumnValueError(
                f"{path}: {field.name}: expected a column of {field.arrow_type}, got {found} of that name"
            )
        found_type = schema.field(indices[0]).type
        if not pa.types.is_integer(found_type):
            raise ColumnTypeError(f"{path}: {field.name}: expected {field.arrow_type}, got {found_type}")


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
    combiner = Combiner()
    for unit in units:
        for batch, place in read_unit(unit):
            combiner.add_unchecked(columns_of(batch, place))
    for shard, block in encode_blocks(combiner, shards):
        yield pa.RecordBatch.from_arrays([pa.array([shard], pa.int32()), _binary(block)], schema=_BLOCK_ARROW)


def _binary(value: bytes) -> pa.Array[Any]:
    """Return an array of one binary value, which it borrows."""
    offsets = pa.py_buffer(np.array([0, len(value)], np.int32))
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(value)])


def read_unit(unit: Unit) -> Iterator[tuple[pa.RecordBatch, Callable[[int], str]]]:
    """Yield the batches of a unit, each with a function that says where one of its rows stands."""
    with unit.filesystem.open_input_file(unit.path) as source:
        first_row = unit.first_row
        unit_name = f", record batch {unit.number}" if unit.kind == ARROW_FILE else ""
        for batch in _BATCHES[unit.kind](unit, source):

            def place(row: int, first_row: int = first_row) -> str:
                return f"{unit.path}{unit_name}, row {first_row + row}"

            yield batch, place
            first_row += batch.num_rows


def _parquet_batches(unit: Unit, source: Any) -> Iterator[pa.RecordBatch]:
    # One core a task: threads would take those of other tasks. Only reads from afar gain from being bundled.
    is_local = isinstance(unit.filesystem, fs.LocalFileSystem)
    with pq.ParquetFile(source, pre_buffer=not is_local) as file:
        _check_pieces(unit, file.num_row_groups)
        names = [field.name for field in FIELDS]
        yield from file.iter_batches(_BATCH_ROWS, row_groups=[unit.number], columns=names, use_threads=False)


def _arrow_file_batches(unit: Unit, source: Any) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_file(source) as file:
        options = _ipc_options(file.schema)
    with pa.ipc.open_file(source, options=options) as file:
        _check_pieces(unit, file.num_record_batches)
        yield file.get_batch(unit.number)


def _arrow_stream_batches(_: Unit, source: Any) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_stream(source) as stream:
        options = _ipc_options(stream.schema)
    source.seek(0)
    with pa.ipc.open_stream(source, options=options) as stream:
        yield from stream


_BATCHES: Final = {
    PARQUET: _parquet_batches,
    ARROW_FILE: _arrow_file_batches,
    ARROW_STREAM: _arrow_stream_batches,
}


def _ipc_options(schema: pa.Schema) -> pa.ipc.IpcReadOptions:
    fields = [schema.get_field_index(field.name) for field in FIELDS]
    return pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)


def _check_pieces(unit: Unit, pieces: int) -> None:
    if pieces != unit.pieces:
        raise ArgumentValueError(f"{unit.path}: changed while it was read: {unit.pieces} pieces before, now {pieces}")


def _parallelism(spark: SparkSession) -> int:
    try:
        return max(int(spark.sparkContext.defaultParallelism), 1)
    except PySparkException:  # Spark Connect has no context.
        return max(int(spark.conf.get("spark.sql.shuffle.partitions") or 1), 1)
