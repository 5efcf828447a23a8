"""A publisher to exchanges of RabbitMQ, with confirms."""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from acker.connectors.publisher import Outgoing, Publisher
from acker.connectors.rabbitmq.link import Parameters, RabbitMQLink, encodable, parse_parameters, pika, queue_options
from acker.connectors.rabbitmq.source import RabbitMQ
from acker.errors import AckerError, ArgumentValueError, PublishError, exception_text

# So often a batch looks for confirms while it is written.
_MESSAGES_A_STEP: Final = 100
_PRECONDITION_FAILED: Final = "(406)"


class RabbitMQPublisher(Publisher):
    """Publishes to an exchange of RabbitMQ with publisher confirms, many messages at a time.

    A message counts as written when the broker has confirmed it: it is in all queues that its routing key leads to,
    and on disk there if they are durable. A message that leads to no queue is an error.

    Parameters
    ----------
    parameters : str, pika.connection.Parameters, or a sequence of them
        As for `RabbitMQ`.
    exchange : str
        It must exist. The default exchange, ``""``, leads to the queue whose name is the routing key.
    routing_key : str
        For messages without `Outgoing.to`.
    timeout_secs : float
        For how long `publish` waits for the confirms of its messages.
    properties : mapping, optional
        Of ``pika.BasicProperties``, such as ``{"content_type": "application/json"}``. Messages are persistent unless
        they say ``{"delivery_mode": 1}``. `Outgoing.properties` come before these, for one message; without any, each
        has a random ``message_id``.
    declare : "quorum" or a mapping, optional
        Declares the queue `routing_key`, for the default exchange; as for `RabbitMQ`.

    Notes
    -----
    `Outgoing.key` becomes the header ``key``; the routing key is `Outgoing.to`. pika cannot write floats, so headers
    hold them as texts.

    Nobody sends heartbeats between two calls of `publish`. If the broker has closed the connection meanwhile, the next
    call connects again.
    """

    def __init__(
        self,
        parameters: Parameters,
        *,
        exchange: str = "",
        routing_key: str = "",
        timeout_secs: float = 30.0,
        properties: Mapping[str, Any] | None = None,
        declare: Mapping[str, Any] | str | None = None,
    ) -> None:
        if timeout_secs <= 0:
            raise ArgumentValueError(f"timeout_secs must be positive, not {timeout_secs}")
        if reserved := {"headers", "message_id"} & set(properties or {}):
            raise ArgumentValueError(f"properties: the publisher sets {', '.join(sorted(reserved))} itself")
        if declare is not None and (exchange or not routing_key):
            raise ArgumentValueError("declare: expected a routing_key, the name of the queue, and no exchange")
        super().__init__(f"RabbitMQ exchange {exchange!r}" if exchange else f"RabbitMQ queue {routing_key!r}")
        self._parameters = parse_parameters(parameters)
        self._exchange = exchange
        self._routing_key = routing_key
        self._timeout_secs = timeout_secs
        self._properties = {"delivery_mode": 2, **(properties or {})}
        pika.BasicProperties(**self._properties)  # raises TypeError for a name that it does not have
        self._declare = queue_options(declare)
        self._link: RabbitMQLink | None = None
        # Of this channel: the number of messages, and the batch whose confirms are awaited, by number.
        self._prefix = ""
        self._count = 0
        self._first_waiting = 1
        self._waiting: dict[int, int] = {}
        # Their numbers by message id, which those of users need not differ in.
        self._numbers: dict[bytes, list[int]] = {}
        self._results: list[Exception | None] = []

    def connect(self) -> None:
        """Connect; see `Publisher.open`."""
        if self._link is not None and self._link.error is None:
            return
        self.disconnect()
        link = RabbitMQLink(self._parameters, self.name)
        try:
            link.open()
            channel = link.channel
            if self._exchange:
                link.call(channel.exchange_declare, self._exchange, passive=True)
            if self._declare is not None:
                link.call(channel.queue_declare, self._routing_key, **self._declare)
            channel.add_on_return_callback(self._on_return)
            link.call(channel.confirm_delivery, self._on_confirm)
            link.is_opening = False
        except BaseException:
            link.close()
            raise
        self._prefix = secrets.token_hex(8)
        self._count = 0
        self._first_waiting = 1
        self._link = link

    def write(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Publish messages, and wait for the confirms of all; see `Publisher.publish`."""
        results: list[Exception | None] = [None] * len(messages)
        if not messages:
            return results
        try:
            self._reopen()
        except AckerError as error:
            return [PublishError(str(error)) for _ in messages]
        why = self._publish(self._link, messages, results)
        unconfirmed = list(self._waiting.values())
        self._waiting, self._numbers = {}, {}
        if not why:
            return results
        self.disconnect()
        if _PRECONDITION_FAILED in why and len(unconfirmed) > 1:
            # The broker refuses one of them, too large for example, and has not looked at those behind it.
            half = len(unconfirmed) // 2
            for part in (unconfirmed[:half], unconfirmed[half:]):
                for index, result in zip(part, self.write([messages[each] for each in part]), strict=True):
                    results[index] = result
            return results
        for index in unconfirmed:
            results[index] = results[index] or PublishError(f"not confirmed: {why}")
        return results

    def _reopen(self) -> None:
        """Connect if need be, also if the broker has closed the connection since the last call."""
        if self._link is not None:
            try:
                self._link.step(0.0)
            except AckerError:
                self.disconnect()
        self.connect()

    def _publish(self, link: RabbitMQLink | None, messages: Sequence[Outgoing], results: list[Exception | None]) -> str:
        """Write messages and wait; return why some in `self._waiting` are not confirmed, or nothing."""
        assert link is not None
        self._results = results
        deadline = time.monotonic() + self._timeout_secs
        try:
            for index, message in enumerate(messages):
                self._write(link.channel, index, message)
                if index % _MESSAGES_A_STEP == _MESSAGES_A_STEP - 1:
                    link.step(0.0)
            while self._waiting:
                if (left_secs := deadline - time.monotonic()) <= 0:
                    link.close(0.0)  # nobody is there who could answer
                    return f"{self.name}: no answer within {self._timeout_secs:g} s{link.blocked}"
                link.step(left_secs)
        except AckerError as error:
            # The rest was not written at all.
            self._waiting |= {-1 - rest: rest for rest in range(index + 1, len(messages))}
            return str(error)
        return ""

    def _write(self, channel: Any, index: int, message: Outgoing) -> None:
        number = self._count + 1
        headers = {name: encodable(value) for name, value in message.headers.items()}
        if message.key is not None:
            headers["key"] = _text_of(message.key)
        own: dict[str, Any] = {"message_id": f"{self._prefix}-{number}", **self._properties}
        own.update(message.properties or {})
        key = self._routing_key if message.to is None else message.to
        try:
            properties = pika.BasicProperties(headers=headers or None, **own)
            channel.basic_publish(self._exchange, key, message.value, properties, mandatory=True)
        except (pika.exceptions.AMQPError, struct.error, AssertionError, TypeError, ValueError, OverflowError) as error:
            # Raised before anything is written, so that the channel still counts as this does.
            self._results[index] = PublishError(
                f"{self.name}: pika cannot write the message: {exception_text(error)}"[:500]
            )
            return
        self._count = number
        self._waiting[number] = index
        self._numbers.setdefault(_bytes_of(own["message_id"]), []).append(number)

    def _on_return(self, _channel: Any, method: Any, properties: Any, _body: bytes) -> None:
        """Note a message that leads to no queue, and those with the same id. Its confirm follows."""
        for number in self._numbers.get(_bytes_of(properties.message_id), ()):
            if (index := self._waiting.get(number)) is not None:
                self._results[index] = PublishError(
                    f"{self.name}: no queue for routing key {method.routing_key!r}:"
                    f" {method.reply_text} ({method.reply_code})"
                )

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        if method.multiple:
            numbers = range(self._first_waiting, method.delivery_tag + 1)
            self._first_waiting = method.delivery_tag + 1
        else:
            numbers = range(method.delivery_tag, method.delivery_tag + 1)
        refused = isinstance(method, pika.spec.Basic.Nack)
        for number in numbers:
            index = self._waiting.pop(number, None)
            if refused and index is not None:
                self._results[index] = PublishError(f"{self.name}: the broker has refused the message (basic.nack)")

    def reader(self, *, lease_secs: float = 60.0) -> RabbitMQ:  # noqa: ARG002
        """Return a source of the queue `routing_key`, for the default exchange. It holds what it has looked at."""
        if self._exchange or not self._routing_key:
            raise ArgumentValueError(
                f"{self.name}: letters are read from a queue: give a RabbitMQPublisher(url, routing_key=QUEUE)"
            )
        return RabbitMQ(self._parameters, self._routing_key, declare=self._declare)

    def disconnect(self) -> None:
        """Disconnect; see `Publisher.close`."""
        link, self._link = self._link, None
        if link is not None:
            link.close()


def _text_of(key: bytes) -> str | bytes:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key


def _bytes_of(message_id: str | bytes | None) -> bytes:
    return message_id.encode() if isinstance(message_id, str) else message_id or b""
