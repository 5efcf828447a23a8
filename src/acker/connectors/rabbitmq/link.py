"""One connection of pika with one channel, moved on by whichever thread uses it: for the RabbitMQ source and publisher.

pika's `BlockingConnection` costs a turn of its loop for each ack, and waits for the confirms of messages one by one. So
this drives a `SelectConnection`, whose acks and messages go out together.
"""

from __future__ import annotations

import contextlib
import re
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias

from acker.errors import (
    AckerError,
    ArgumentTypeError,
    ArgumentValueError,
    ConnectionLostError,
    SourceError,
    exception_text,
)

try:
    import pika
    from pika import exceptions, frame, spec
    from pika.adapters.select_connection import IOLoop, SelectConnection
except ImportError as error:
    raise ImportError("acker.connectors.rabbitmq needs pika: pip install 'acker[rabbitmq]'") from error

__all__ = [
    "UNREADABLE",
    "Parameters",
    "RabbitMQLink",
    "decode_properties",
    "encodable",
    "kept_properties",
    "parse_parameters",
    "pika",
    "queue_options",
]

# The types of `parameters`; pika tries several in turn, as for the nodes of a cluster.
Parameters: TypeAlias = str | pika.connection.Parameters | Sequence[pika.connection.Parameters]

# The longest wait for the answer to one request, and for the end of the connection.
_ANSWER_SECS: Final = 30.0
_CLOSE_SECS: Final = 5.0
# A wait is made of shorter ones, so that a deadline is kept.
_STEP_SECS: Final = 1.0

# Reply codes of AMQP for requests that fail again: access refused, not found, precondition failed, not allowed, not
# implemented ...
_FINAL_CODES: Final = frozenset({403, 404, 406, 503, 530, 540})
# ... unless the text says that another time may do: a node that is down, a limit that is reached, or a queue that
# another consumer has for itself. A missing queue or exchange says "no queue" or "no exchange".
_PASSING: Final = re.compile(r"NOT_FOUND - (?!no )|limit|exclusive use|inaccessible|is down", re.IGNORECASE)
_REPLY: Final = re.compile(r"ConnectionClosedByBroker: \((\d+)\) (.*)", re.DOTALL)


def parse_parameters(given: Parameters) -> tuple[pika.connection.Parameters, ...]:
    """Return the parameters as pika takes them.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        The text holds nothing of a URL, whose password it may not show.
    """
    if isinstance(given, str):
        try:
            return (pika.URLParameters(given),)
        except (ValueError, TypeError, LookupError, SyntaxError):
            raise ArgumentValueError(
                "pika cannot read this URL of RabbitMQ (which is not shown for the sake of its password); expected"
                " amqp://user:password@host:5672/vhost, with characters such as / and @ in the password written as %2F"
                " and %40"
            ) from None
    listed = (given,) if isinstance(given, pika.connection.Parameters) else tuple(given)
    if not listed or not all(isinstance(each, pika.connection.Parameters) for each in listed):
        raise ArgumentTypeError("parameters: expected a URL, or one or more pika.ConnectionParameters")
    return listed


def queue_options(declare: Mapping[str, Any] | str | None) -> dict[str, Any] | None:
    """Return the options of ``queue_declare``."""
    if isinstance(declare, str):
        if declare != "quorum":
            raise ArgumentValueError(f"declare: expected 'quorum' or the options of a queue, got {declare!r}")
        return {"durable": True, "arguments": {"x-queue-type": declare}}
    return None if declare is None else dict(declare)


def explain(error: BaseException, name: str, *, opening: bool) -> AckerError:
    """Return the error of acker for one of pika.

    While a connection runs, each error is a lost connection: the next `open` finds out whether it can succeed.
    """
    if isinstance(error, AckerError):
        return error
    text = f"{name}: {_text_of(error)}"
    return SourceError(text) if opening and _is_final(error) else ConnectionLostError(text)


def _text_of(error: BaseException) -> str:
    if isinstance(error, exceptions.ConnectionClosed | exceptions.ChannelClosed):
        return f"{error.reply_text} ({error.reply_code})"
    if isinstance(error, exceptions.AMQPError) and (reply := _REPLY.search(str(error))):
        return f"{reply[2][1:-1]} ({reply[1]})"  # pika wraps the broker's words, quoted, into its guess of the cause
    return exception_text(error)


def _is_final(error: BaseException) -> bool:
    """Return whether the broker would refuse the same request again."""
    if isinstance(error, exceptions.ConnectionClosed | exceptions.ChannelClosed):
        return error.reply_code in _FINAL_CODES and not _PASSING.search(error.reply_text)
    if isinstance(error, exceptions.ProbableAuthenticationError | exceptions.ProbableAccessDeniedError):
        reply = _REPLY.search(str(error))  # none where the connection was cut at that moment
        return reply is not None and int(reply[1]) in _FINAL_CODES and not _PASSING.search(reply[2])
    if isinstance(error, exceptions.IncompatibleProtocolError):
        return "StreamLostError" not in str(error)
    if isinstance(error, ssl.SSLError):
        return isinstance(error, ssl.SSLCertVerificationError) or error.reason == "WRONG_VERSION_NUMBER"
    return isinstance(error, exceptions.AuthenticationError | exceptions.ProtocolVersionMismatch)


def _causes_of(error: BaseException) -> list[BaseException]:
    """Return what went wrong in each attempt to connect; pika wraps it once or twice."""
    found = []
    for attempt in getattr(error, "exceptions", [error]):
        cause = getattr(attempt, "exception", attempt)
        found.append(cause if isinstance(cause, BaseException) else attempt)
    return found


class RabbitMQLink:
    """A connection and its channel.

    Parameters
    ----------
    parameters : tuple of pika.connection.Parameters
        Tried in turn.
    name : str
        Whose connection it is, for errors.

    Attributes
    ----------
    channel : pika.channel.Channel
        After `open`.
    error : AckerError or None
        Why the connection or its channel can no longer be used. `step` and `call` raise it.
    is_opening : bool
        Set it to False when all is set up: errors are lost connections from then on.
    blocked : str
        Why the broker takes no messages for the moment; empty while it does.
    """

    def __init__(self, parameters: tuple[pika.connection.Parameters, ...], name: str) -> None:
        self.channel: Any = None
        self.error: AckerError | None = None
        self.blocked = ""
        self._parameters = parameters
        addresses = " or ".join(f"{each.host}:{each.port}, vhost {each.virtual_host!r}" for each in parameters)
        self._name = f"{name} at {addresses}"
        self.is_opening = True
        self._connection: Any = None
        self._loop = IOLoop()
        self._loop.activate_poller()

    def open(self) -> None:
        """Connect and open the channel.

        Raises
        ------
        SourceError, ConnectionLostError
            As `Source.open` does.
        """
        answers: list[Any] = []
        workflow = _Connection.create_connection(self._parameters, on_done=answers.append, custom_ioloop=self._loop)
        try:
            while not answers:
                self._turn(_STEP_SECS)
        except ValueError as error:
            # pika raises it when the other side resets a connection before pika has looked at its socket.
            workflow.abort()
            raise ConnectionLostError(f"{self._name}: the connection was lost while it began: {error}") from None
        except BaseException:
            workflow.abort()
            raise
        answer = answers[0]
        if isinstance(answer, BaseException):
            errors = [explain(each, self._name, opening=True) for each in _causes_of(answer)]
            raise next((each for each in errors if isinstance(each, SourceError)), errors[-1]) from None
        self._connection = answer
        self._connection.add_on_close_callback(self._on_closed)
        self._connection.add_on_connection_blocked_callback(self._on_blocked)
        self._connection.add_on_connection_unblocked_callback(self._on_unblocked)
        opened: list[Any] = []
        with self._errors_of_acker():
            channel = self._connection.channel(on_open_callback=opened.append)
        channel.add_on_close_callback(self._on_closed)
        self._until(lambda: bool(opened), "a channel")
        self.channel = channel

    def take_deliveries(self, receive: Receive | None) -> None:
        """Give deliveries to `receive` from now on, those of large messages left out, which pika assembles."""
        self._connection.receiving_channel = self.channel.channel_number
        self._connection.receive = receive

    def call(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a method of the channel, and return what the broker answers."""
        answers: list[Any] = []
        with self._errors_of_acker():
            method(*args, callback=answers.append, **options)
        self._until(lambda: bool(answers), method.__name__)
        return answers[0]

    @contextlib.contextmanager
    def _errors_of_acker(self) -> Iterator[None]:
        """Raise this project's errors: for a connection that was lost in the turn before, or a bad argument."""
        try:
            yield
        except (exceptions.ConnectionWrongStateError, exceptions.ChannelWrongStateError) as error:
            raise self.error or ConnectionLostError(f"{self._name}: {_text_of(error)}") from None
        except exceptions.AMQPError as error:
            raise SourceError(f"{self._name}: {_text_of(error)}") from None

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _ANSWER_SECS
        while not condition():
            if time.monotonic() > deadline:
                raise ConnectionLostError(f"{self._name}: no answer to {what} within {_ANSWER_SECS:g} s{self.blocked}")
            self.step(_STEP_SECS)

    def step(self, wait_secs: float) -> None:
        """Send and receive; wait at most so long, and less if something arrives.

        Raises
        ------
        ConnectionLostError, SourceError
        """
        if self.error is None:
            self._turn(wait_secs)
        if self.error is not None:
            raise self.error

    def _turn(self, wait_secs: float) -> None:
        timer = self._loop.call_later(wait_secs, _do_nothing)
        try:
            self._loop.poll()
            self._loop.process_timeouts()
        finally:
            self._loop.remove_timeout(timer)

    def wake(self) -> None:
        """End a `step` that waits. Any thread may call this, at any time."""
        with contextlib.suppress(OSError):
            self._loop.add_callback_threadsafe(_do_nothing)

    def close(self, answer_secs: float = _CLOSE_SECS) -> None:
        """Send what waits and disconnect; the broker has so long to answer."""
        connection = self._connection
        self._connection = None
        try:
            if connection is not None and not connection.is_closed:
                if connection.is_open:
                    connection.close()
                self._wait_for_end(connection, answer_secs)
            if connection is not None and not connection.is_closed:
                # pika has no public way to drop a connection whose other side no longer answers.
                connection._terminate_stream(exceptions.StreamLostError("the broker did not answer"))
                self._wait_for_end(connection, _STEP_SECS)
        finally:
            if self.error is None:
                self.error = ConnectionLostError(f"{self._name}: closed")
            self._loop.close()

    def _wait_for_end(self, connection: Any, secs: float) -> None:
        deadline = time.monotonic() + secs
        while not connection.is_closed and (left_secs := deadline - time.monotonic()) > 0:
            self._turn(min(left_secs, _STEP_SECS))

    def _on_closed(self, _closed: Any, error: BaseException) -> None:
        """Keep the first reason: a channel is closed before its connection."""
        if self.error is None and self._connection is not None:
            self.error = explain(error, self._name, opening=self.is_opening)

    def _on_blocked(self, _connection: Any, method: Any) -> None:
        self.blocked = f"; the broker takes no messages for the moment: {method.method.reason}"

    def _on_unblocked(self, _connection: Any, _method: Any) -> None:
        self.blocked = ""


def _do_nothing() -> None:
    pass


# ---- frames, and headers of any type --------------------------------------------------------------------------------


# Takes the delivery tag, whether the message was delivered before, the encoded exchange and routing key, the encoded
# properties, and the body.
Receive = Callable[[int, bool, bytes, bytes, bytes], None]


class _Connection(SelectConnection):  # type: ignore[misc]  # pika has no types
    """pika's connection, with a short way for deliveries, and a reader of headers that no message can end.

    pika makes an object of each of the three frames of a message, which takes three quarters of the time that a
    message takes. Here a delivery whose body is in one frame goes to `receive` at once. All else goes pika's way.

    pika 1.4 makes integers of floats in headers. It ends the connection at a timestamp after the year 9999, at a float
    that is infinite or no number, and at types that it does not know: such a message would come again and again.

    If another pika calls these methods no more, all goes its own way, and still comes to the consumer.
    """

    receive: Receive | None = None
    receiving_channel = 0
    _rest = b""

    def _on_data_available(self, data_in: bytes) -> None:
        """Take what has come, until it ends or the last frame is not whole; pika keeps nothing."""
        if not self.receiving_channel:
            super()._on_data_available(data_in)
            return
        buffer = self._rest + data_in
        offset = 0
        while offset < len(buffer):
            end = _OTHER if self.receive is None else self._deliver(buffer, offset)
            if end == _OTHER:
                end = self._pass_on(buffer, offset)
            if end == _INCOMPLETE:
                break
            offset = end
        self._rest = buffer[offset:]

    def _pass_on(self, buffer: bytes, offset: int) -> int:
        """Give a whole frame to pika, with its headers read; return where it ends."""
        if len(buffer) < offset + spec.FRAME_HEADER_SIZE:
            return _INCOMPLETE
        end: int = offset + _LONG.unpack_from(buffer, offset + 3)[0] + _FRAME_SIZE
        if len(buffer) < end:
            return _INCOMPLETE
        if buffer[offset] != spec.FRAME_HEADER or buffer[end - 1] != _END:
            super()._on_data_available(buffer[offset:end])
            return end
        _, channel, _, _, body_size = _CONTENT_HEAD.unpack_from(buffer, offset)
        properties = decode_properties(buffer[offset + _CONTENT_HEAD.size : end - 1])
        self.bytes_received += end - offset
        self._process_frame(frame.Header(channel, body_size, properties))
        return end

    def _deliver(self, buffer: bytes, offset: int) -> int:
        """Give a message that begins at an offset to `receive`; return where it ends."""
        if buffer[offset] != spec.FRAME_METHOD:
            return _OTHER
        size = len(buffer)
        if size < offset + _METHOD_HEAD.size:
            return _INCOMPLETE
        _, channel, method_size, method = _METHOD_HEAD.unpack_from(buffer, offset)
        if method != spec.Basic.Deliver.INDEX or channel != self.receiving_channel:
            return _OTHER
        header = offset + method_size + _FRAME_SIZE
        if size < header + _CONTENT_HEAD.size:
            return _INCOMPLETE
        header_type, _, header_size, _, body_size = _CONTENT_HEAD.unpack_from(buffer, header)
        body: int = header + header_size + _FRAME_SIZE
        end = body
        if body_size:
            if size < body + spec.FRAME_HEADER_SIZE:
                return _INCOMPLETE
            if _LONG.unpack_from(buffer, body + 3)[0] != body_size:
                return _OTHER  # a body in several frames
            end = body + body_size + _FRAME_SIZE
        if size < end:
            return _INCOMPLETE
        if header_type != spec.FRAME_HEADER or not buffer[header - 1] == buffer[body - 1] == buffer[end - 1] == _END:
            return _OTHER  # pika says what is wrong
        self.bytes_received += end - offset
        self.frames_received += 3 if body_size else 2
        at = offset + _METHOD_HEAD.size
        at += 1 + buffer[at]  # behind the consumer tag
        assert self.receive is not None
        self.receive(
            _LONG_LONG.unpack_from(buffer, at)[0],
            buffer[at + 8] & 1 == 1,
            buffer[at + 9 : header - 1],
            buffer[header + _CONTENT_HEAD.size : body - 1],
            buffer[body + spec.FRAME_HEADER_SIZE : end - 1] if body_size else b"",
        )
        return end


_OTHER: Final = -1
_INCOMPLETE: Final = -2
_END: Final[int] = spec.FRAME_END
# Of a frame without content.
_FRAME_SIZE: Final[int] = spec.FRAME_HEADER_SIZE + spec.FRAME_END_SIZE
# The type of a frame, its channel and its size; then the number of the method, or the class and the size of the body.
_METHOD_HEAD: Final = struct.Struct(">BHLL")
_CONTENT_HEAD: Final = struct.Struct(">BHLLQ")
_SHORT: Final = struct.Struct(">H")
_LONG: Final = struct.Struct(">L")
_LONG_LONG: Final = struct.Struct(">Q")
_WITH_TYPE: Final = spec.BasicProperties.FLAG_CONTENT_TYPE
_WITH_ENCODING: Final = spec.BasicProperties.FLAG_CONTENT_ENCODING
_WITH_HEADERS: Final = spec.BasicProperties.FLAG_HEADERS

# Not the headers, which a copy has as such; nor those by which the broker could drop it (``expiration``,
# ``delivery_mode``) or refuse it (``user_id``, of another user).
_KEPT: Final = (
    "content_type",
    "content_encoding",
    "priority",
    "correlation_id",
    "reply_to",
    "message_id",
    "timestamp",
    "type",
    "app_id",
)

# The one header of a message whose properties are damaged.
UNREADABLE: Final = "x-acker-unreadable-properties"

# Types of fixed size, by their letter in RabbitMQ's dialect of AMQP 0-9-1.
_FIXED: Final = {
    letter: struct.Struct(">" + code)
    for letter, code in {
        "t": "?", "b": "b", "B": "B", "s": "h", "U": "h", "u": "H", "I": "i", "i": "I", "L": "q", "l": "q",
        "f": "f", "d": "d",
    }.items()
}  # fmt: skip


def decode_properties(encoded: bytes) -> Any:
    """Return the properties of a message. pika reads all of them but the headers."""
    try:
        flags = _SHORT.unpack_from(encoded)[0]
        if not flags & _WITH_HEADERS:
            return spec.BasicProperties().decode(encoded)
        start = _SHORT.size
        for before in (_WITH_TYPE, _WITH_ENCODING):
            if flags & before:
                start += 1 + encoded[start]
        end = start + _LONG.size + _LONG.unpack_from(encoded, start)[0]
        others = _SHORT.pack(flags & ~_WITH_HEADERS) + encoded[_SHORT.size : start] + encoded[end:]
        properties = spec.BasicProperties().decode(others)
        properties.headers = _decode_table(encoded[start + _LONG.size : end])
    except (struct.error, LookupError, ArithmeticError, RecursionError):
        properties = spec.BasicProperties(headers={UNREADABLE: encoded})
    return properties


def kept_properties(properties: Any) -> dict[str, Any]:
    """Return the properties that a copy of a message has too."""
    found = {name: getattr(properties, name) for name in _KEPT}
    return {name: value for name, value in found.items() if value is not None}


def _decode_table(encoded: bytes) -> dict[str, Any]:
    """Return a table of AMQP; what follows a type that nobody knows is left out, as its size is unknown."""
    table: dict[str, Any] = {}
    offset = 0
    while offset < len(encoded):
        size = encoded[offset]
        name = encoded[offset + 1 : offset + 1 + size].decode(errors="backslashreplace")
        value, offset = _decode_value(encoded, offset + 1 + size)
        table[name] = value
    return table


def _decode_value(encoded: bytes, offset: int) -> tuple[Any, int]:
    """Return the value that begins with its type at an offset, and the offset behind it."""
    kind = chr(encoded[offset]) if offset < len(encoded) else ""
    offset += 1
    if kind in _FIXED:
        return _FIXED[kind].unpack_from(encoded, offset)[0], offset + _FIXED[kind].size
    if kind == "T":
        return _time_of(_LONG_LONG.unpack_from(encoded, offset)[0]), offset + _LONG_LONG.size
    if kind == "D":
        decimals, number = struct.unpack_from(">Bi", encoded, offset)
        return Decimal(number).scaleb(-decimals), offset + 5
    if kind == "V":
        return None, offset
    if kind not in {"S", "x", "A", "F"}:
        return encoded[offset - 1 :], len(encoded)
    start = offset + _LONG.size
    end = start + _LONG.unpack_from(encoded, offset)[0]
    content = encoded[start:end]
    if kind == "F":
        return _decode_table(content), end
    if kind == "A":
        items = []
        offset = 0
        while offset < len(content):
            value, offset = _decode_value(content, offset)
            items.append(value)
        return items, end
    if kind == "S":
        with contextlib.suppress(UnicodeDecodeError):
            return content.decode(), end
    return content, end


def _time_of(seconds: int) -> datetime | int:
    """Return a time; the number where the calendar ends before, as it does for milliseconds."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return seconds


def encodable(value: Any) -> Any:
    """Return a value of a header as pika can write it: floats as texts, and other containers as lists and dicts."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return {str(name): encodable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [encodable(each) for each in value]
    return value
