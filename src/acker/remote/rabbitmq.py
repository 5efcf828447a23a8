"""Replies over RabbitMQ: a queue for each process that waits. The client is pika."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from acker.errors import ArgumentValueError, ConnectionLostError, exception_text
from acker.remote.ledger import JOBS_MAX
from acker.remote.replies import GoneError, Inbox, Replies, check_expiry

try:
    import pika
    from pika import exceptions
except ImportError as error:
    raise ImportError("acker.remote.rabbitmq needs pika: pip install 'acker[rabbitmq]'") from error

__all__ = ["RabbitMQReplies"]

_HEARTBEAT_SECS: Final = 10
_ANSWER_SECS: Final = 10.0
_CLOSE_SECS: Final = 5.0
_READ_MAX: Final = 500
_NOT_FOUND: Final = 404
_PERSISTENT: Final = pika.BasicProperties(delivery_mode=2)
_NOTHING: Final = pika.BasicProperties(delivery_mode=1, expiration="0")

_Connect = Callable[[], Any]


class RabbitMQReplies(Replies):
    """Reports that go through RabbitMQ, with publisher confirms.

    Each process that waits reads a durable queue, which outlives its connection and a restart of the broker, and
    expires when nobody has read it for a while. So what a killed process leaves behind goes by itself, and jobs learn
    that nobody waits any more: their reports lead to no queue. If the queue is lost, all open trees fail at once.

    Parameters
    ----------
    url : str
        Of pika, such as ``amqp://user:password@host:5672/vhost``. The same broker and vhost for all processes.
    prefix : str
        Of the names of the queues. The same for all processes.
    expiry_secs : float
        A process that waits and is not connected for so long loses its queue.
    report_secs : float
        How long a job tries to report when the broker does not answer. Its tree times out after that.
    jobs_max : int
        A tree with more jobs fails.
    secret, skip_gone
        See `acker.remote.Replies`.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "acker.replies.",
        expiry_secs: float = 60.0,
        report_secs: float = 30.0,
        jobs_max: int = JOBS_MAX,
        secret: str | bytes | None = None,
        skip_gone: bool = False,
    ) -> None:
        super().__init__("replies over RabbitMQ", report_secs, jobs_max, secret, skip_gone)
        check_expiry(expiry_secs)
        self._connect = _connector(url)
        self._prefix = prefix
        self._expiry_ms = round(1000 * expiry_secs)
        # One in each process, as a connection does not survive a fork.
        self._senders: dict[int, _Sender] = {}

    def _queue(self, address: bytes) -> str:
        return self._prefix + address.hex()

    def _sender(self) -> _Sender:
        process = os.getpid()
        return self._senders.get(process) or self._senders.setdefault(process, _Sender(self._connect))

    def send(self, address: bytes, report: bytes) -> bool:
        """Store a report, unless its queue is gone."""
        return self._publish(address, report, _PERSISTENT)

    def has(self, address: bytes) -> bool:
        """Return whether a queue is still there."""
        # A look at the queue would put off its expiry; a message that nobody takes does not.
        return self._publish(address, b"", _NOTHING)

    def _publish(self, address: bytes, body: bytes, properties: Any) -> bool:
        name = self._queue(address)

        def publish(channel: Any) -> bool:
            try:
                channel.basic_publish("", name, body, properties, mandatory=True)
            except exceptions.UnroutableError:
                return False
            return True

        return self._sender().call(publish)

    def open_inbox(self) -> Inbox:
        """Make a queue."""
        return _RabbitMQInbox(self._connect, self._prefix, self._expiry_ms)

    def close(self) -> None:
        """Fail the trees that are open in this process, remove its queue, and disconnect."""
        super().close()
        sender = self._senders.pop(os.getpid(), None)
        if sender is not None:
            sender.close()


class _Sender:
    """The thread that publishes for the jobs of a process: a connection belongs to one thread, and needs heartbeats."""

    def __init__(self, connect: _Connect) -> None:
        self._connect = connect
        self._connection: Any = None
        self._channel: Any = None
        self._calls: queue.SimpleQueue[tuple[Future[bool], Callable[[Any], bool]] | None] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def call(self, work: Callable[[Any], bool]) -> bool:
        """Let the thread call something with its channel; return what that returns."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="acker reports to RabbitMQ", daemon=True)
                self._thread.start()
        future: Future[bool] = Future()
        self._calls.put((future, work))
        try:
            return future.result(_ANSWER_SECS)
        except TimeoutError:
            raise ConnectionLostError(f"replies over RabbitMQ: no answer within {_ANSWER_SECS:g} s") from None

    def _run(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=_HEARTBEAT_SECS / 4)
            except queue.Empty:
                self._beat()
                continue
            if call is None:
                break
            future, work = call
            try:
                with _translated():
                    future.set_result(work(self._open_channel()))
            except BaseException as error:  # noqa: BLE001 - whoever called gets it
                self._drop()
                future.set_exception(error)
        self._drop()

    def _open_channel(self) -> Any:
        if self._connection is None or not self._connection.is_open:
            self._connection = self._connect()
        if self._channel is None or not self._channel.is_open:
            self._channel = self._connection.channel()
            self._channel.confirm_delivery()
        return self._channel

    def _beat(self) -> None:
        if self._connection is not None:
            try:
                with _translated():
                    self._connection.process_data_events(0)
            except ConnectionLostError:
                self._drop()

    def _drop(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        _close(connection)

    def close(self) -> None:
        self._calls.put(None)
        if self._thread is not None:
            self._thread.join(_CLOSE_SECS)


class _RabbitMQInbox(Inbox):
    def __init__(self, connect: _Connect, prefix: str, expiry_ms: int) -> None:
        super().__init__()
        self._connect = connect
        self._queue = prefix + self.address.hex()
        self._found: list[bytes] = []
        self._seen = 0  # the tag up to which all was read
        self._tag = ""
        self._is_cancelled = self._is_woken = False
        self._connection: Any = None
        self._channel: Any = None
        with _translated():
            self._open({"x-expires": expiry_ms})

    def _open(self, arguments: dict[str, Any] | None) -> None:
        """Connect and subscribe; make the queue if there are arguments, or else raise GoneError if it is gone."""
        self._found, self._seen, self._is_cancelled = [], 0, False
        self._connection = self._connect()
        channel = self._channel = self._connection.channel()
        if arguments is not None:
            channel.queue_declare(self._queue, durable=True, arguments=arguments)
        elif not _is_there(channel, self._queue):
            raise GoneError(
                "the reply queue is gone: it was deleted, RabbitMQ has lost its data, or this process was not connected"
                " for longer than expiry_secs"
            )
        channel.basic_qos(prefetch_count=_READ_MAX)
        channel.add_on_cancel_callback(self._on_cancel)
        self._tag = channel.basic_consume(self._queue, self._on_message)

    def _on_message(self, _channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        if body:
            self._found.append(body)
        self._seen = method.delivery_tag

    def _on_cancel(self, _frame: Any) -> None:
        self._is_cancelled = True  # the queue was deleted, or its node is down

    def read(self, wait_secs: float) -> list[bytes]:
        try:
            with _translated():
                return self._read(wait_secs)
        except ConnectionLostError:
            self._drop()
            raise

    def _read(self, wait_secs: float) -> list[bytes]:
        if self._connection is None:
            self._open(None)
        if self._seen:
            self._channel.basic_ack(self._seen, multiple=True)
            self._seen = 0
        self._connection.process_data_events(0 if self._is_woken else wait_secs)
        self._is_woken = False
        if self._is_cancelled:
            self._drop()
            return []
        found, self._found = self._found, []
        return found

    def wake(self) -> None:
        self._is_woken = True
        if (connection := self._connection) is not None:
            with contextlib.suppress(exceptions.AMQPError, OSError):
                connection.add_callback_threadsafe(lambda: None)

    def _drop(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        _close(connection)

    def close(self) -> None:
        with contextlib.suppress(exceptions.AMQPError, OSError, ValueError):
            if self._channel is not None and self._channel.is_open:
                self._channel.basic_cancel(self._tag)
                self._channel.queue_delete(self._queue)
        self._drop()


def _connector(url: str) -> _Connect:
    """Return a function that connects. The URL, which may hold a password, stays within it."""
    try:
        parameters = pika.URLParameters(url)
        options = parse_qs(urlsplit(url).query)
    except (ValueError, TypeError, LookupError, SyntaxError, AttributeError):
        raise ArgumentValueError(
            "pika cannot read this URL of RabbitMQ (which is not shown for the sake of its password); expected"
            " amqp://user:password@host:5672/vhost"
        ) from None
    # This class tries again by itself, and finds out soon that a broker hangs.
    if "heartbeat" not in options:
        parameters.heartbeat = _HEARTBEAT_SECS
    if "blocked_connection_timeout" not in options:
        parameters.blocked_connection_timeout = _ANSWER_SECS
    return lambda: pika.BlockingConnection(parameters)


def _is_there(channel: Any, name: str) -> bool:
    """Return whether there is a queue; if not, the channel is closed."""
    try:
        channel.queue_declare(name, passive=True)
    except exceptions.ChannelClosedByBroker as closed:
        if closed.reply_code == _NOT_FOUND:
            return False
        raise
    return True


def _close(connection: Any) -> None:
    with contextlib.suppress(exceptions.AMQPError, OSError, ValueError):
        if connection is not None and connection.is_open:
            connection.close()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (exceptions.AMQPError, OSError, ValueError) as error:
        # pika raises a ValueError for a connection that is reset while it begins.
        raise ConnectionLostError(f"replies over RabbitMQ: {exception_text(error)}") from error
