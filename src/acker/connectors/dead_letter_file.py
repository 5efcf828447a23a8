"""Dead letters in a file: `DeadLetterFile` appends them, and `FileLetters` reads and removes them."""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import itertools
import json
import logging
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from acker.connectors.headers import header_text
from acker.connectors.publisher import Outgoing, Publisher
from acker.connectors.source import Delivery, Source
from acker.connectors.stored_messages import StoredMessages
from acker.errors import ArgumentValueError, PublishError, SourceError

logger: Final = logging.getLogger("acker.connectors")

# Of filesystems without locks. There, letters must not be removed while a consumer writes.
_NO_LOCKS: Final = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class DeadLetterFile(Publisher):
    """Dead letters as lines of JSON in a file, synced to the disk before they count as written.

    Each line holds ``value`` as text if it is UTF-8, else ``value_base64``; and ``headers``. If somebody moves or
    removes the file, the next letter goes to a new one. A last line without an end, as after a power cut, gets one.
    Processes may share the file: each writes under a lock of it (``flock``).

    Parameters
    ----------
    path : path
        Created if missing, for its owner only; lines are appended. Its folder must exist.

    Raises
    ------
    ArgumentValueError
        There is no such folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        if not self._path.parent.is_dir():
            raise ArgumentValueError(f"path: there is no folder {self._path.parent} for {self._path.name}; create it")
        super().__init__(f"file {self._path}")
        self._file: BinaryIO | None = None

    def connect(self) -> None:
        """Open the file.

        Raises
        ------
        SourceError
            It cannot be written.
        """
        self.disconnect()
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SourceError(f"{self.name}: {error.strerror}") from error
        self._file = os.fdopen(descriptor, "ab", buffering=0)
        sync_folder(self._path.parent)

    def write(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Append messages; see `Publisher`. After an error, as of a full disk, the file has its former length."""
        lines = b"".join(json_line(message) for message in messages)
        try:
            while not self._append(lines):
                pass  # The file was removed meanwhile.
        except SourceError as error:
            return [PublishError(str(error))] * len(messages)
        except OSError as error:
            return [PublishError(f"{self.name}: {error.strerror}; make room, or give another path")] * len(messages)
        return [None] * len(messages)

    def reader(self, *, lease_secs: float = 60.0) -> Source:  # noqa: ARG002
        """Return a source of the letters in the file."""
        return FileLetters(self._path)

    def _append(self, lines: bytes) -> bool:
        """Write lines to the file at the path; return False if it has no name any more. An error leaves no line."""
        file = self._file_at_path()
        with _locked(file):
            if not self._is_at_path(file):
                return False  # Letters were removed from it while this waited for the lock: there is a new file.
            return self._append_locked(file, lines)

    def _file_at_path(self) -> BinaryIO:
        """Return the file that is at the path now: what is written to another one is nowhere, or soon."""
        if self._file is not None and not self._is_at_path(self._file):
            self.disconnect()
            if self._path.exists():
                logger.info("%s: another file is there now, and gets the next dead letters", self.name)
            else:
                logger.warning("%s was moved or removed; the next dead letters go to a new one", self.name)
        if self._file is None:
            self.connect()
        assert self._file is not None
        return self._file

    def _is_at_path(self, file: BinaryIO) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(file.fileno()), self._path.stat())
        return False

    @staticmethod
    def _append_locked(file: BinaryIO, lines: bytes) -> bool:
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode) and status.st_size and os.pread(file.fileno(), 1, status.st_size - 1) != b"\n":
            lines = b"\n" + lines
        left = memoryview(lines)
        try:
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        except OSError:
            os.ftruncate(file.fileno(), status.st_size)
            raise
        return os.fstat(file.fileno()).st_nlink > 0

    def disconnect(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class FileLetters(StoredMessages):
    """The letters in a file of `DeadLetterFile`, which consumers may append to meanwhile.

    To remove some, the file is written anew without them, beside the old one, which it then replaces: under the lock
    of the file, so that no letter is written to the old one meanwhile. A crash leaves the old file or the new one.

    Parameters
    ----------
    path : path
        A file; a link is followed.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(f"file {path}")
        self._path = Path(os.path.realpath(path))
        self._deliveries: Iterator[Delivery] = iter(())

    def connect(self) -> None:
        """Read the file.

        Raises
        ------
        SourceError
            It cannot be read.
        """
        lines: list[bytes] = []
        try:
            is_there = self._path.exists()
        except OSError as error:  # as of a folder of another owner
            raise SourceError(f"{self.name}: {error.strerror}") from error
        if is_there:  # else there was no letter yet
            with self._locked_file(fcntl.LOCK_SH) as file:
                lines = file.readlines()
        self._deliveries = self._deliveries_of(lines)

    def read(self, limit: int) -> Sequence[Delivery]:
        """Return the next letters."""
        return list(itertools.islice(self._deliveries, limit))

    def remove(self, deliveries: Sequence[Delivery]) -> None:
        """Write the file anew without these letters."""
        gone = Counter(delivery.receipt for delivery in deliveries)
        with self._locked_file(fcntl.LOCK_EX) as file:
            kept = []
            for line in file.readlines():
                if gone[line] > 0:
                    gone[line] -= 1
                else:
                    kept.append(line)
            self._replace(os.fstat(file.fileno()), kept)

    def close(self) -> None:
        """Do nothing: the file is open only while it is read or written anew."""

    def _deliveries_of(self, lines: Sequence[bytes]) -> Iterator[Delivery]:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                value = base64.b64decode(row["value_base64"]) if "value_base64" in row else row["value"].encode()
                yield Delivery(f"{self._path.name}:{number}", value, dict(row["headers"]), 1, row, line)
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                logger.warning("%s, line %d: no dead letter, so it stays (%r)", self.name, number, error)

    @contextlib.contextmanager
    def _locked_file(self, how: int) -> Iterator[BinaryIO]:
        """Open the file at the path under its lock: not one that was replaced while this waited for the lock."""
        while True:
            try:
                if not stat.S_ISREG(self._path.stat().st_mode):
                    raise SourceError(f"{self.name} is no regular file")
                with self._path.open("rb") as file:
                    fcntl.flock(file, how)
                    if os.path.samestat(os.fstat(file.fileno()), self._path.stat()):
                        yield file
                        return
            except OSError as error:
                raise SourceError(f"{self.name}: {error.strerror}") from error

    def _replace(self, status: os.stat_result, lines: Sequence[bytes]) -> None:
        """Put a file with these lines in the place of the old one, for the same owner."""
        new = self._path.with_name(f".{self._path.name}.new")  # One name: what a crash leaves is overwritten.
        try:
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
                if (os.geteuid(), os.getegid()) != (status.st_uid, status.st_gid):
                    os.fchown(file.fileno(), status.st_uid, status.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode))
                file.writelines(lines)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        sync_folder(self._path.parent)


@contextlib.contextmanager
def _locked(file: BinaryIO) -> Iterator[None]:
    """Hold the lock of a file; where there are no locks, go on without."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        yield
        return
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def sync_folder(path: Path) -> None:
    """Sync a folder to the disk, so that a new file in it outlives a power cut; where the system can."""
    with contextlib.suppress(OSError):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def value_json(value: bytes) -> dict[str, str]:
    """Return a body as a field of JSON: ``value`` if it is UTF-8, else ``value_base64``."""
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}


def json_line(message: Outgoing) -> bytes:
    """Return a message as one line of JSON."""
    row: dict[str, Any] = {**value_json(message.value)}
    if message.key is not None:
        row["key"] = message.key.decode(errors="backslashreplace")
    row["headers"] = {str(name): _json_value(value) for name, value in message.headers.items()}
    try:
        text = json.dumps(row, default=str)
    except (TypeError, ValueError, RecursionError):  # keys of inner mappings that JSON has not, or a cycle
        row["headers"] = {name: repr(value) for name, value in row["headers"].items()}
        text = json.dumps(row)
    return text.encode() + b"\n"


def _json_value(content: Any) -> Any:
    """Return bytes, as Kafka's headers are, as the text that they are on their way back."""
    return header_text(content) if isinstance(content, bytes) else content
