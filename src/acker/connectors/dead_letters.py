"""Dead letters: messages that failed too often, written somewhere and confirmed before their ack."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import queue
import stat
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from acker.connectors.attempts import Attempt
from acker.connectors.options import MessageOptions
from acker.connectors.publisher import Outgoing, Publisher
from acker.errors import AckerError, PublishError, SourceError, exception_text
from acker.observe.backoff import backoff

logger: Final = logging.getLogger("acker.connectors")

_BATCH_MAX: Final = 100
_BACKOFF_SECS: Final = 0.5
_BACKOFF_SECS_MAX: Final = 30.0
_STOP_SECS: Final = 5.0


def dead_letter_of(attempt: Attempt, source: str) -> Outgoing:
    """Return the message that keeps a dead letter: the same body, and headers that say what happened.

    The headers "acker-reason", "acker-attempts", "acker-key" and "acker-source" are added to those of the message.
    """
    own = {
        "acker-reason": str(attempt.reason),
        "acker-attempts": attempt.number,
        "acker-key": attempt.delivery.key,
        "acker-source": source,
    }
    return Outgoing(attempt.delivery.value, headers={**attempt.delivery.headers, **own})


def why_no_replay(options: MessageOptions) -> str | None:
    """Return why dead letters cannot be replayed from here, and what to do instead; None if there are none."""
    if options.publisher is not None:
        return (
            f"They lie at {options.publisher.name}, and are acked at the broker, which does not deliver them again:"
            " publish them again from there."
        )
    if options.dead_letters is None:
        return None
    return "The broker has moved them to its own place for dead letters: publish them again from there."


class _SharedPublisher:
    """A publisher and the writers that share it: one calls it at a time, and each opens it again if another closed it.

    Attributes
    ----------
    lock : Lock
    is_open : bool
    """

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher  # as long as this lives, no other publisher has its id
        self.lock = threading.Lock()
        self.is_open = False


_shared: weakref.WeakValueDictionary[int, _SharedPublisher] = weakref.WeakValueDictionary()
_sharing = threading.Lock()


def _shared_of(publisher: Publisher) -> _SharedPublisher:
    with _sharing:
        found = _shared.get(id(publisher))
        if found is None:
            found = _shared[id(publisher)] = _SharedPublisher(publisher)
        return found


class DeadLetterWriter:
    """A thread that publishes dead letters until each is confirmed, so that a slow target does not stop the I/O thread.

    Those that are refused are written again after a back-off, and meanwhile do not stop others.

    Parameters
    ----------
    publisher : Publisher
        Several writers may share it.
    source : str
        The name of the source.
    confirm : callable
        Called by this thread with each attempt whose dead letter is confirmed.
    logger : logging.Logger
    """

    def __init__(
        self, publisher: Publisher, source: str, confirm: Callable[[Attempt], None], logger: logging.Logger
    ) -> None:
        self._publisher = publisher
        self._shared = _shared_of(publisher)
        self._source = source
        self._confirm = confirm
        self._logger = logger
        self._queue: queue.SimpleQueue[Attempt | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._is_broken = False  # the last call raised something
        self._thread: threading.Thread | None = None

    def write(self, attempt: Attempt) -> None:
        """Write the dead letter of an attempt, some time later."""
        self._queue.put(attempt)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"acker {self._publisher.name}", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread; what is not confirmed by now is not written again."""
        self._stopping.set()
        self._queue.put(None)
        if self._thread is None:
            return
        self._thread.join(_STOP_SECS)
        if self._thread.is_alive():
            text = (
                "%s: no answer within %g s; this thread is left behind, and its dead letters of %s count as not written"
            )
            self._logger.error(text, self._publisher.name, _STOP_SECS, self._source)

    def _run(self) -> None:
        refused: list[Attempt] = []
        retry_at, failures, most = 0.0, 0, _BATCH_MAX
        try:
            while True:
                if self._is_broken:
                    self._stopping.wait(max(0.0, retry_at - time.monotonic()))
                batch = self._next_batch(max(0.0, retry_at - time.monotonic()) if refused else None, most)
                if self._stopping.is_set():
                    return
                if not batch:
                    batch, refused = refused[:most], refused[most:]
                # An attempt that has ended meanwhile belongs to another consumer now.
                left, error = self._try([attempt for attempt in batch if attempt.state == "dead"])
                if left:
                    refused += left
                    failures += 1
                    retry_at = time.monotonic() + backoff(failures, _BACKOFF_SECS, _BACKOFF_SECS_MAX)
                    self._report(len(left), error, failures)
                    # After an exception maybe one message is the cause: it must not stop the others.
                    most = 1 if self._is_broken else _BATCH_MAX
                elif not refused:
                    failures, most = 0, _BATCH_MAX
        finally:
            with self._shared.lock:
                self._shared.is_open = False
                self._publisher.close()

    def _next_batch(self, wait_secs: float | None, most: int) -> list[Attempt]:
        """Return new dead letters; none if the time is over, or at the end."""
        found: list[Attempt | None] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._queue.get(wait_secs != 0, wait_secs))
            while len(found) < most:
                found.append(self._queue.get(False))
        return [attempt for attempt in found if attempt is not None]

    def _try(self, batch: list[Attempt]) -> tuple[list[Attempt], BaseException | None]:
        """Publish some dead letters once; return those that are not confirmed, and why not."""
        if not batch:
            return [], None
        with self._shared.lock:
            try:
                if not self._shared.is_open:
                    self._publisher.open()
                    self._shared.is_open = True
                errors = self._publisher.publish([dead_letter_of(attempt, self._source) for attempt in batch])
                answers = list(zip(batch, errors, strict=True))
            except BaseException as error:  # noqa: BLE001 - whatever it is, the message must not be acked
                self._is_broken, self._shared.is_open = True, False
                return batch, error
        self._is_broken = False
        for attempt, refusal in answers:
            if refusal is None:
                self._confirm(attempt)
        left = [(attempt, refusal) for attempt, refusal in answers if refusal is not None]
        return [attempt for attempt, _ in left], left[0][1] if left else None

    def _report(self, messages: int, error: BaseException | None, failures: int) -> None:
        text = "%s: %d dead letters of %s are not confirmed (attempt %d), and stay unacked: %s"
        is_expected = isinstance(error, AckerError) and not isinstance(error, SourceError)
        level = logging.WARNING if is_expected else logging.ERROR
        why = None if error is None else exception_text(error)
        self._logger.log(level, text, self._publisher.name, messages, self._source, failures, why)


class DeadLetterFile(Publisher):
    """Dead letters as lines of JSON in a file, synced to the disk before they count as written.

    Each line holds ``value`` as text if it is UTF-8, else ``value_base64``; and ``headers``. If somebody moves or
    removes the file, the next letter goes to a new one. A last line without an end, as after a power cut, gets one.

    Parameters
    ----------
    path : path
        Created if missing, for its owner only; lines are appended. Use one file for each process.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
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
            while not self._append(self._file_at_path(), lines):
                pass  # The file was removed meanwhile.
        except SourceError as error:
            return [PublishError(str(error))] * len(messages)
        except OSError as error:
            return [PublishError(f"{self.name}: {error.strerror}; make room, or give another path")] * len(messages)
        return [None] * len(messages)

    def _file_at_path(self) -> BinaryIO:
        """Return the file that is at the path now: what is written to another one is nowhere, or soon."""
        if self._file is not None:
            try:
                is_there = os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
            except FileNotFoundError:
                is_there = False
            if not is_there:
                logger.warning("%s was moved or removed; the next dead letters go to a new one", self.name)
                self.disconnect()
        if self._file is None:
            self.connect()
        assert self._file is not None
        return self._file

    def _append(self, file: BinaryIO, lines: bytes) -> bool:
        """Write lines to the disk; return False if the file has no name any more. After an error nothing is written."""
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


def sync_folder(path: Path) -> None:
    """Sync a folder to the disk, so that a new file in it outlives a power cut; where the system can."""
    with contextlib.suppress(OSError):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def json_line(message: Outgoing) -> bytes:
    """Return a message as one line of JSON."""
    try:
        row: dict[str, Any] = {"value": message.value.decode()}
    except UnicodeDecodeError:
        row = {"value_base64": base64.b64encode(message.value).decode()}
    if message.key is not None:
        row["key"] = message.key.decode(errors="backslashreplace")
    row["headers"] = {str(name): value for name, value in message.headers.items()}
    try:
        text = json.dumps(row, default=str)
    except (TypeError, ValueError, RecursionError):  # keys of inner mappings that JSON has not, or a cycle
        row["headers"] = {name: repr(value) for name, value in row["headers"].items()}
        text = json.dumps(row)
    return text.encode() + b"\n"
