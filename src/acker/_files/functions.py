"""The public functions that turn files of messages into completions without Spark."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, SupportsIndex, TypeAlias

from acker._engine.completions import Completions
from acker._engine.protocol import INT64_MAX, check_integer
from acker._engine.sharded import cores

if TYPE_CHECKING:
    from pyarrow import fs

Paths: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"

_THREADS_MAX = 1024
_MEMORY_LEAST = 2**20


def completions_from_files(
    paths: Paths,
    *,
    include_pending: bool = False,
    filesystem: fs.FileSystem | None = None,
    threads: SupportsIndex | None = None,
    memory_bytes: SupportsIndex = 2**31,
    spill_folder: str | os.PathLike[str] | None = None,
) -> Completions:
    """Settle the messages in Parquet and Arrow IPC files, all of them as one set, on this machine.

    The rules are those of *Combined messages* (docs/protocol.md): neither the order of messages nor the files that they
    lie in matter, and nothing times out. `acker.spark.completions_from_files` gives the same rows. Needs pyarrow.

    Parameters
    ----------
    paths : path or paths
        Files, directories (searched to the bottom, without hidden names such as ``_SUCCESS``) and patterns with ``*``,
        ``?``, ``[...]`` and ``**``; local, or URIs of a filesystem that pyarrow knows. A path that exists as written is
        no pattern. Where a file sink of Structured Streaming wrote, only the files in its log count; a file that is
        named itself is read all the same, with a warning. A file with several names is read once. The first bytes of a
        file tell its format. Columns as in `acker.MESSAGE_SCHEMA`, found by name, further ones ignored; integers of
        another width are converted when no value changes, in each file for itself; task_id and message_id may be null
        where no row is a TRACK.
    include_pending : bool
        Report the trees that are still open too, with outcome PENDING.
    filesystem : pyarrow.fs.FileSystem, optional
        Where the paths are; URIs are none then.
    threads : int, 1 to 1024, optional
        How many threads read and settle; by default one for each core that this process may use. A row group, or a
        record batch, is the work of one thread.
    memory_bytes : int, at least 2**20
        How much combined messages and the tables of trees may take. What passes it goes to a temporary file, 37 bytes
        for each tree or part of one. On top come 64 MiB for each thread, and 32 MiB.
    spill_folder : path, optional
        The folder of the temporary file; by default that of the system, which may be in memory. The file has no name,
        so nothing is left of it, even if the process is killed.

    Returns
    -------
    Completions
        One row for each finished tree that had a TRACK, in no particular order; `elapsed_ms` is 0. It takes 29 bytes a
        tree, beside `memory_bytes`; `completion_batches_from_files` yields it in parts.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        A wrong argument; paths that name no file; a file of another format, or a damaged one.
    ColumnTypeError, ColumnValueError
        The file, the row, the column, what was expected and what was found.
    OSError
        A file that cannot be read now; a temporary file that cannot be written.
    ImportError
        pyarrow is missing.

    Examples
    --------
    >>> import acker
    >>> done = acker.completions_from_files("messages/*.parquet")                                       # doctest: +SKIP
    >>> (done.outcome == acker.Outcome.FAILED).sum()                                                    # doctest: +SKIP
    """
    return Completions.concat(
        completion_batches_from_files(
            paths,
            include_pending=include_pending,
            filesystem=filesystem,
            threads=threads,
            memory_bytes=memory_bytes,
            spill_folder=spill_folder,
        )
    )


def completion_batches_from_files(
    paths: Paths,
    *,
    include_pending: bool = False,
    filesystem: fs.FileSystem | None = None,
    threads: SupportsIndex | None = None,
    memory_bytes: SupportsIndex = 2**31,
    spill_folder: str | os.PathLike[str] | None = None,
) -> Iterator[Completions]:
    """Settle the messages in files as `completions_from_files` does, and yield the completions in parts.

    For more trees than memory holds: each part takes its share of `memory_bytes`. The footers are read by the call
    itself, the messages before the first part. Threads and temporary file last until the iterator ends or is closed.

    Parameters
    ----------
    paths, include_pending, filesystem, threads, memory_bytes, spill_folder
        As for `completions_from_files`.

    Yields
    ------
    Completions
        Of some trees, each of which is in one part only.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError, ColumnTypeError, ColumnValueError, OSError, ImportError
        See `completions_from_files`.
    ForkedError
        The iterator was begun before a fork, and the child goes on with it.

    Examples
    --------
    >>> import pyarrow as pa, acker
    >>> with pa.OSFile("done.arrow", "wb") as file, pa.ipc.new_file(file, acker.COMPLETION_SCHEMA) as out:
    ...     for part in acker.completion_batches_from_files("messages"):
    ...         out.write(part.to_arrow())                                                              # doctest: +SKIP
    """
    most = None if threads is None else check_integer("threads", threads, 1, _THREADS_MAX)
    memory = check_integer("memory_bytes", memory_bytes, _MEMORY_LEAST, INT64_MAX)
    folder = None if spill_folder is None else os.fspath(spill_folder)
    try:
        from acker._files.paths import list_files
        from acker._files.reader import inspect_files
        from acker._files.settlement import Resources, settle_units
    except ImportError as error:
        raise ImportError("files of messages need pyarrow: pip install 'acker[arrow]'") from error
    units = inspect_files(list_files(paths, filesystem=filesystem))
    resources = Resources(most or max(min(cores(), len(units)), 1), memory, folder)
    return settle_units(units, resources, include_pending=bool(include_pending))
