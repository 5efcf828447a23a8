"""Dead letters: messages that failed too often, written somewhere and confirmed before their ack."""

from __future__ import annotations

import base64
import json
import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from acker.connectors.attempts import Attempt
from acker.connectors.publisher import Outgoing, Publisher
from acker.errors import AckerError, PublishError, SourceError
from acker.topology.backoff import backoff

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


class DeadLetterWriter:
    """A thread that publishes dead letters until each is confirmed, so that a slow target does not stop the intake.

    Parameters
    ----------
    publisher : Publisher
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
        self._source = source
        self._confirm = confirm
        self._logger = logger
        self._queue: queue.SimpleQueue[Attempt | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._is_open = False
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
        if self._thread is not None:
            self._thread.join(_STOP_SECS)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                batch = self._next_batch()
                failures = 0
                while batch and not self._stopping.is_set():
                    batch, fault = self._try(batch)
                    if batch:
                        failures += 1
                        self._report(len(batch), fault, failures)
                        self._stopping.wait(backoff(failures, _BACKOFF_SECS, _BACKOFF_SECS_MAX))
        finally:
            self._publisher.close()

    def _next_batch(self) -> list[Attempt]:
        found = [self._queue.get()]
        while len(found) < _BATCH_MAX and not self._queue.empty():
            found.append(self._queue.get())
        # An attempt that has ended meanwhile belongs to another consumer now.
        return [attempt for attempt in found if attempt is not None and attempt.state == "dead"]

    def _try(self, batch: list[Attempt]) -> tuple[list[Attempt], Exception | None]:
        """Publish some dead letters once; return those that are not confirmed, and why not."""
        try:
            if not self._is_open:
                self._publisher.open()
                self._is_open = True
            faults = self._publisher.publish([dead_letter_of(attempt, self._source) for attempt in batch])
        except Exception as fault:  # noqa: BLE001 - whatever it is, the message must not be acked
            self._is_open = False
            return batch, fault
        left = []
        for attempt, refusal in zip(batch, faults, strict=True):
            if refusal is None:
                self._confirm(attempt)
            else:
                left.append(attempt)
        return left, next((refusal for refusal in faults if refusal is not None), None)

    def _report(self, messages: int, fault: Exception | None, failures: int) -> None:
        text = "%s: %d dead letters of %s are not confirmed (attempt %d), and stay unacked: %s"
        is_expected = isinstance(fault, AckerError) and not isinstance(fault, SourceError)
        self._logger.log(
            logging.WARNING if is_expected else logging.ERROR,
            text,
            self._publisher.name,
            messages,
            self._source,
            failures,
            fault,
        )


class DeadLetterFile(Publisher):
    """Dead letters as lines of JSON in a file, synced to the disk before they count as written.

    Each line holds ``value`` as text if it is UTF-8, else ``value_base64``; and ``headers``.

    Parameters
    ----------
    path : path
        Created if missing, for its owner only; lines are appended. Use one file for each process.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self.name = f"file {self._path}"
        self._file: BinaryIO | None = None

    def open(self) -> None:
        """Open the file.

        Raises
        ------
        SourceError
            It cannot be written.
        """
        self.close()
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as fault:
            raise SourceError(f"{self.name}: {fault.strerror}") from fault
        self._file = os.fdopen(descriptor, "ab", buffering=0)

    def publish(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Append messages; see `Publisher`. After a fault, as of a full disk, the file has its former length."""
        if self._file is None:
            self.open()
        file = self._file
        assert file is not None
        before = os.fstat(file.fileno()).st_size
        lines = memoryview(b"".join(json_line(message) for message in messages))
        try:
            while lines:
                lines = lines[file.write(lines) :]
            os.fsync(file.fileno())
        except OSError as fault:
            os.ftruncate(file.fileno(), before)
            return [PublishError(f"{self.name}: {fault.strerror}; make room, or give another path")] * len(messages)
        return [None] * len(messages)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def json_line(message: Outgoing) -> bytes:
    """Return a message as one line of JSON."""
    try:
        row: dict[str, Any] = {"value": message.value.decode()}
    except UnicodeDecodeError:
        row = {"value_base64": base64.b64encode(message.value).decode()}
    if message.key is not None:
        row["key"] = message.key.decode(errors="backslashreplace")
    row["headers"] = dict(message.headers)
    return json.dumps(row, default=str).encode() + b"\n"
