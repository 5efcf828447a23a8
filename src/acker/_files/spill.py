"""Combined messages that wait for their settlement, shard by shard: in memory, beyond a limit in a temporary file."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from acker._engine.combiner import PARTIALS_DTYPES, Partials

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

_FIELDS: Final = Partials._fields[:-1]
_RECORD: Final = np.dtype([(name, getattr(PARTIALS_DTYPES, name)) for name in _FIELDS])


class PartialStore:
    """Keeps the partials of many combiners, each of which has split them into the same number of shards.

    Parameters
    ----------
    memory_bytes : int
        How much is kept in memory. What passes it goes to a temporary file, which has no name, so that nothing is left
        of it whatever ends the process.
    folder : str, optional
        Of the file; by default that of the system.

    Notes
    -----
    Any thread may call it; nothing is added once something was read. A partial takes 37 bytes, in memory and in the
    file.
    """

    def __init__(self, memory_bytes: int, folder: str | None) -> None:
        self._memory_bytes = memory_bytes
        self._folder = folder
        self._lock = threading.Lock()
        self._kept: list[Sequence[Partials]] = []
        self._kept_rows = 0
        self._file: IO[bytes] | None = None
        # The first record of each shard in each part of the file, and the end of the part.
        self._bounds: list[npt.NDArray[np.int64]] = []

    def add(self, parts: Sequence[Partials]) -> None:
        """Keep the partials of a combiner, item i those of shard i.

        Raises
        ------
        OSError   the folder is full, or cannot be written to; the text names it and what to do.
        """
        with self._lock:
            self._kept.append(parts)
            self._kept_rows += sum(len(part.root_id) for part in parts)
            if self._kept_rows * _RECORD.itemsize > self._memory_bytes:
                self._write_kept()

    def pieces(self, shard: int) -> Iterator[Partials]:
        """Yield what was added of a shard."""
        for bounds in self._bounds:
            first, end = bounds[shard : shard + 2].tolist()
            if first < end:
                yield self._read(first, end)
        for parts in self._kept:
            yield parts[shard]

    def close(self) -> None:
        """Remove the file."""
        if self._file is not None:
            # A full disk refuses the rest of a buffer, which nobody needs any more.
            with contextlib.suppress(OSError):
                self._file.close()

    def _write_kept(self) -> None:
        """Write all that is kept, side by side what is of one shard."""
        folder = self._folder or tempfile.gettempdir()
        shards = list(zip(*self._kept, strict=True))
        counts = [sum(len(part.root_id) for part in parts) for parts in shards]
        bounds = np.cumsum([self._bounds[-1][-1] if self._bounds else 0, *counts])
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  Closed by `close`.
            self._file.seek(int(bounds[0]) * _RECORD.itemsize)
            for parts in shards:
                for part in parts:
                    records = np.empty(len(part.root_id), _RECORD)
                    for name in _FIELDS:
                        records[name] = getattr(part, name)
                    self._file.write(memoryview(records).cast("B") if len(records) else b"")
            self._file.flush()
        except OSError as error:
            text = (
                f"{folder}: {self._kept_rows:,} trees cannot be written to a temporary file:"
                f" {error.strerror or error}; make room there, or name another folder as `spill_folder`, or give more"
                " `memory_bytes`"
            )
            raise type(error)(error.errno, text) from error
        self._bounds.append(bounds)
        self._kept, self._kept_rows = [], 0

    def _read(self, first: int, end: int) -> Partials:
        records = np.empty(end - first, _RECORD)
        with self._lock:
            file: Any = self._file
            file.seek(first * _RECORD.itemsize)
            found = file.readinto(records)
        if found != records.nbytes:
            raise OSError(f"{self._folder or tempfile.gettempdir()}: another program has cut the temporary file")
        columns: list[Any] = [np.ascontiguousarray(records[name]) for name in _FIELDS]
        return Partials(*columns)
