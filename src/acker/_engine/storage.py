"""Files, binary file objects and bytes that snapshots are written to and read from.

A path is written completely or not at all. A file object is written and read piece by piece, with one piece in memory.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from acker.errors import ArgumentTypeError

if TYPE_CHECKING:
    from pathlib import Path


class Writable(Protocol):
    """A binary file to write to; `write` returns the number of bytes that it took, or None for all of them."""

    def write(self, data: memoryview, /) -> int | None:
        """Write some of the bytes, or all of them."""


class Readable(Protocol):
    """A binary file to read from; `read` returns b"" at the end and nowhere else."""

    def read(self, size: int, /) -> bytes:
        """Return up to this many bytes."""


# The errors of systems and file systems that cannot sync a folder.
_NOT_SYNCED: Final = {errno.EINVAL, errno.ENOTSUP}


def write(target: str | os.PathLike[str] | Writable, pieces: Iterable[bytes], *, temporary: str = ".acker-") -> int:
    """Write all pieces to a path or to a binary file object; return the number of bytes.

    A file at the path is replaced atomically, after everything has reached the disk: readers find the old content or
    the new one, even if the process or the machine dies. After an error the old file remains. Only its owner may read
    and write a new file; a replaced one keeps its permissions. Devices and named pipes are written to directly.
    A killed process leaves a file behind whose name begins with `temporary` and ends with ".tmp".

    Raises
    ------
    ArgumentTypeError   `target` is neither.
    OSError             raised by the system or the file object.
    """
    if isinstance(target, (str, os.PathLike)):
        return _write_path(target, pieces, temporary)
    if not callable(getattr(target, "write", None)):
        raise ArgumentTypeError(f"target: expected a path or a binary file object, got {type(target).__name__}")
    return _write_file(target, pieces)


def _write_file(file: Writable, pieces: Iterable[bytes]) -> int:
    size_bytes = 0
    for piece in pieces:
        rest = memoryview(piece)
        size_bytes += len(rest)
        while rest:
            taken = file.write(rest)
            if taken is None and not isinstance(file, io.RawIOBase):
                break
            if not taken:
                raise BlockingIOError(errno.EAGAIN, "target: it accepts no bytes now; expected a blocking file object")
            if not 0 < taken <= len(rest):
                raise OSError(f"target: expected write to return at most {len(rest)}, got {taken}")
            rest = rest[taken:]
    return size_bytes


def _write_path(target: str | os.PathLike[str], pieces: Iterable[bytes], prefix: str) -> int:
    # Both take long to import, next to the rest of acker.
    import tempfile
    from pathlib import Path

    path = Path(target).resolve()
    mode = path.stat().st_mode if path.exists() else None
    if mode is not None and not stat.S_ISREG(mode):
        with path.open("wb", buffering=0) as file:
            return _write_file(file, pieces)
    with _sync_afterwards(path.parent):
        # mkstemp gives access to the owner alone.
        descriptor, name = tempfile.mkstemp(prefix=prefix, suffix=".tmp", dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                size_bytes = _write_file(file, pieces)
                os.fsync(descriptor)
            if mode is not None:
                temporary.chmod(stat.S_IMODE(mode))
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    return size_bytes


@contextmanager
def _sync_afterwards(folder: Path) -> Iterator[None]:
    """Sync a folder at the end, so that renames in it survive a crash of the machine, where the system can do that."""
    if os.name != "posix":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield
        _sync_folder(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: int) -> None:
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in _NOT_SYNCED:
            raise


class ByteInput:
    """Bytes to read from the front, piece by piece.

    Attributes
    ----------
    size_bytes : int or None
        The number of all bytes, if it is known beforehand.
    taken_bytes : int
        The number of bytes taken so far.
    """

    size_bytes: int | None = None
    taken_bytes = 0

    def take(self, count: int) -> bytes | memoryview:
        """Return the next bytes: fewer than `count` only where the source ends."""
        piece = self._take(count)
        self.taken_bytes += len(piece)
        return piece

    def _take(self, count: int) -> bytes | memoryview:
        raise NotImplementedError


class MemoryInput(ByteInput):
    """Bytes in memory, taken without a copy."""

    def __init__(self, data: bytes) -> None:
        self.size_bytes = len(data)
        self._data = memoryview(data)

    def _take(self, count: int) -> memoryview:
        return self._data[self.taken_bytes : self.taken_bytes + count]


class FileInput(ByteInput):
    """A binary file, read from its present position."""

    def __init__(self, file: Readable, size_bytes: int | None = None) -> None:
        self.size_bytes = size_bytes
        self._file = file

    def _take(self, count: int) -> bytes:
        pieces: list[bytes] = []
        while count > 0:
            piece: Any = self._file.read(count)
            if piece is None:
                raise BlockingIOError(errno.EAGAIN, "source: it has no bytes now; expected a blocking file object")
            if not isinstance(piece, bytes):
                raise ArgumentTypeError(f"source: expected a file that reads bytes, got {type(piece).__name__}")
            if len(piece) > count:
                raise OSError(f"source: expected read to return at most {count} bytes, got {len(piece)}")
            if not piece:
                break
            pieces.append(piece)
            count -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@contextmanager
def open_input(source: str | os.PathLike[str] | Readable) -> Iterator[ByteInput]:
    """Open a path, or read a binary file object from its present position, which stays open.

    Raises
    ------
    ArgumentTypeError   `source` is neither.
    OSError             raised by the system or the file object.
    """
    if isinstance(source, (str, os.PathLike)):
        with open(source, "rb", buffering=0) as file:  # noqa: PTH123  pathlib is imported where it is needed
            state = os.fstat(file.fileno())
            yield FileInput(file, state.st_size if stat.S_ISREG(state.st_mode) else None)
        return
    if not callable(getattr(source, "read", None)):
        raise ArgumentTypeError(f"source: expected a path or a binary file object, got {type(source).__name__}")
    yield FileInput(source)
