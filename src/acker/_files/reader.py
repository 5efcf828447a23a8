"""Files of messages, Parquet and Arrow IPC: what their footers say, and their rows as batches of columns.

The footers are read first, so that a file of the wrong shape is refused before any work starts. They cut the files into
units (row groups, record batches), which are dealt out in order: neighbours in a file are often of the same trees.

No file is mapped into memory: if another program cuts such a file, the system ends the process that reads it.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from acker._engine.schemas import MESSAGE_COLUMNS
from acker.errors import ArgumentValueError, ColumnTypeError, ColumnValueError

if TYPE_CHECKING:
    from collections.abc import Callable

    # Returns the batches of one unit of a file that is open.
    _Reader = Callable[["Unit"], Iterable[pa.RecordBatch]]

_BATCH_ROWS: Final = 131_072
# What is read of a column at once, so that a large row group takes no more memory than a small one.
_READ_BYTES: Final = 1 << 20
_FOOTER_THREADS: Final = 8
# Bytes of a message in Arrow's memory, to estimate the messages of a file that does not tell.
_MESSAGE_BYTES: Final = 29

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


def inspect_files(files: Iterable[tuple[fs.FileSystem, str]]) -> list[Unit]:
    """Return the units of files, in order, whose footers several threads read; see `inspect_file`."""
    with ThreadPoolExecutor(_FOOTER_THREADS) as pool:
        return [unit for found in pool.map(lambda file: inspect_file(*file), files) for unit in found]


def inspect_file(filesystem: fs.FileSystem, path: str, event_time: str | None = None) -> list[Unit]:
    """Read a file's footer, check its columns and that of event times if one is asked for, and return its units.

    Raises
    ------
    ArgumentValueError                  not a Parquet or Arrow IPC file, or a damaged one.
    OSError                             it cannot be read now, which says nothing of what is in it.
    ColumnTypeError, ColumnValueError   the file, the column, what was expected and found.
    """
    with _open(filesystem, path) as native:
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
        except (pa.ArrowException, OSError) as error:
            raise ArgumentValueError(f"{path}: damaged: {error}; write it again, or leave it out") from error
    raise ArgumentValueError(
        f"{path}: expected a Parquet or Arrow IPC file, got one that begins with {start!r}; leave it out, for"
        " example by a pattern such as *.parquet"
    )


def _open(filesystem: fs.FileSystem, path: str) -> pa.NativeFile:
    if isinstance(filesystem, fs.LocalFileSystem):
        filesystem = fs.LocalFileSystem(use_mmap=False)
    return filesystem.open_input_file(path)


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
            raise ColumnValueError(
                f"{path}: {name}: expected a column of {type_}, got {found} of that name; write one, the columns are"
                " found by name"
            )
        found_type = schema.field(indices[0]).type
        if not pa.types.is_integer(found_type) and not (name == event_time and pa.types.is_timestamp(found_type)):
            raise ColumnTypeError(
                f"{path}: {name}: expected {type_}, got {found_type}; cast the column before you write the file"
            )


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


def read_units(
    units: Iterable[Unit], event_time: str | None = None
) -> Iterator[tuple[pa.RecordBatch, Callable[[int], str]]]:
    """Yield the batches of units, each with a function that returns where one of its rows is.

    A file is opened, and its footer read, once for all of its units that follow each other.

    Raises
    ------
    ArgumentValueError   a file is damaged, or has changed since it was inspected.
    OSError              it cannot be read now.
    """
    for _, of_file in groupby(units, lambda unit: (id(unit.filesystem), unit.path, unit.kind)):
        first = next(of_file)
        with ExitStack() as stack:
            with _errors_of(first):
                source = stack.enter_context(_open(first.filesystem, first.path))
                read = stack.enter_context(_READERS[first.kind](first, source, event_time))
            for unit in chain([first], of_file):
                with _errors_of(unit):
                    yield from _located(unit, read(unit))


def _located(unit: Unit, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, Callable[[int], str]]]:
    first_row = unit.first_row
    unit_name = f", record batch {unit.number}" if unit.kind == ARROW_FILE else ""
    for batch in batches:

        def locate(row: int, first_row: int = first_row) -> str:
            return f"{unit.path}{unit_name}, row {first_row + row}"

        yield batch, locate
        first_row += batch.num_rows


@contextmanager
def _errors_of(unit: Unit) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, KeyError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            error.add_note(f"acker: while it read {unit.path}")
            raise
        piece = "" if unit.kind == ARROW_STREAM else f", {_PIECES[unit.kind]} {unit.number}"
        raise ArgumentValueError(
            f"{unit.path}{piece}: damaged, or changed while it was read: {error}; write it again, or leave it out"
        ) from error


def _names_of(event_time: str | None) -> list[str]:
    """Return the names of the columns to read."""
    names = [column.name for column in MESSAGE_COLUMNS]
    return names if event_time is None or event_time in names else [*names, event_time]


@contextmanager
def _parquet_reader(unit: Unit, source: Any, event_time: str | None) -> Iterator[_Reader]:
    # Threads would take the cores of other tasks. Only remote reads gain from pre-buffering.
    is_local = isinstance(unit.filesystem, fs.LocalFileSystem)
    names = _names_of(event_time)
    with pq.ParquetFile(source, pre_buffer=not is_local, buffer_size=_READ_BYTES if is_local else 0) as file:

        def read(unit: Unit) -> Iterable[pa.RecordBatch]:
            _check_pieces(unit, file.num_row_groups)
            _check_rows(unit, file.metadata.row_group(unit.number).num_rows)
            return file.iter_batches(_BATCH_ROWS, row_groups=[unit.number], columns=names, use_threads=False)

        yield read


@contextmanager
def _arrow_file_reader(_: Unit, source: Any, event_time: str | None) -> Iterator[_Reader]:
    with pa.ipc.open_file(source) as file:
        options = _ipc_options(file.schema, event_time)
    with pa.ipc.open_file(source, options=options) as file:

        def read(unit: Unit) -> Iterable[pa.RecordBatch]:
            _check_pieces(unit, file.num_record_batches)
            return [file.get_batch(unit.number)]

        yield read


@contextmanager
def _arrow_stream_reader(_: Unit, source: Any, event_time: str | None) -> Iterator[_Reader]:
    yield lambda unit: _read_streams(unit.path, source, event_time)


def _read_streams(path: str, source: Any, event_time: str | None) -> Iterator[pa.RecordBatch]:
    """Yield the batches of all streams of a file: who appends to it writes one after the other."""
    begin = 0
    while begin < source.size():
        source.seek(begin)
        with pa.ipc.open_stream(source) as stream:
            _check_schema(path, stream.schema, event_time)
            options = _ipc_options(stream.schema, event_time)
        source.seek(begin)
        with pa.ipc.open_stream(source, options=options) as stream:
            yield from stream
        begin = source.tell()


_PIECES: Final = {PARQUET: "row group", ARROW_FILE: "record batch"}
_READERS: Final = {
    PARQUET: _parquet_reader,
    ARROW_FILE: _arrow_file_reader,
    ARROW_STREAM: _arrow_stream_reader,
}


def _ipc_options(schema: pa.Schema, event_time: str | None) -> pa.ipc.IpcReadOptions:
    fields = [schema.get_field_index(name) for name in _names_of(event_time)]
    return pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)


def _check_rows(unit: Unit, rows: int) -> None:
    if rows != unit.messages:
        _refuse_change(unit, f"row group {unit.number} had {unit.messages} rows before, now {rows}")


def _check_pieces(unit: Unit, pieces: int) -> None:
    if pieces != unit.pieces:
        _refuse_change(unit, f"{unit.pieces} pieces before, now {pieces}")


def _refuse_change(unit: Unit, what: str) -> NoReturn:
    raise ArgumentValueError(
        f"{unit.path}: changed while it was read: {what}; read files that nobody writes to any more"
    )
