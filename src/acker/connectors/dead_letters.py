"""Dead letters: messages that failed too often, written somewhere and confirmed before their ack."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from acker.connectors import headers
from acker.connectors.attempts import Attempt
from acker.connectors.options import MessageOptions
from acker.connectors.publisher import Outgoing, Publisher
from acker.connectors.source import Delivery, Origin
from acker.errors import AckerError, SourceError, exception_text
from acker.observe.backoff import backoff

_BASE64: Final = "base64:"
_BATCH_MAX: Final = 100
_BACKOFF_SECS: Final = 0.5
_BACKOFF_SECS_MAX: Final = 30.0
_STOP_SECS: Final = 5.0


def dead_letter_of(attempt: Attempt, source: str, origin: Origin, now: datetime) -> Outgoing:
    """Return the message that keeps a dead letter: the same body, and headers that say what happened.

    Those of `acker.connectors.headers` are added to the headers of the message.
    """
    delivery = attempt.delivery
    own: dict[str, Any] = {
        headers.REASON: str(attempt.reason),
        headers.ATTEMPTS: attempt.number,
        headers.KEY: delivery.key,
        headers.SOURCE: source,
        headers.TIME: now.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }
    if origin.to is not None:
        own[headers.TO] = origin.to
    if origin.key is not None:
        own[headers.TO_KEY] = key_text(origin.key)
    if origin.properties:
        own[headers.PROPERTIES] = json.dumps(origin.properties, default=headers.header_text)
    # A copy of an older letter has such headers, too.
    kept = {name: each for name, each in delivery.headers.items() if name not in headers.LETTER_HEADERS}
    return Outgoing(delivery.value, headers={**kept, **own})


def key_text(key: bytes) -> str:
    """Return the key of a message as a text, for any broker's headers."""
    with contextlib.suppress(UnicodeDecodeError):
        text = key.decode()
        if text.isprintable() and text and not text.startswith(_BASE64):
            return text
    return _BASE64 + base64.b64encode(key).decode()


def key_of_text(text: str) -> bytes:
    """Return the key that `key_text` has written."""
    if text.startswith(_BASE64):
        with contextlib.suppress(ValueError):
            return base64.b64decode(text.removeprefix(_BASE64), validate=True)
    return text.encode()


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
    origin : callable
        Returns where a delivery came from, as `Source.origin` does.
    confirm : callable
        Called by this thread with each attempt whose dead letter is confirmed.
    logger : logging.Logger
    """

    def __init__(
        self,
        publisher: Publisher,
        source: str,
        origin: Callable[[Delivery], Origin],
        confirm: Callable[[Attempt], None],
        logger: logging.Logger,
    ) -> None:
        self._publisher = publisher
        self._shared = _shared_of(publisher)
        self._source = source
        self._origin = origin
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
        now = datetime.now(UTC)
        with self._shared.lock:
            try:
                if not self._shared.is_open:
                    self._publisher.open()
                    self._shared.is_open = True
                letters = [
                    dead_letter_of(attempt, self._source, self._origin(attempt.delivery), now) for attempt in batch
                ]
                errors = self._publisher.publish(letters)
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
