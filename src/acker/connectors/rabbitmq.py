"""RabbitMQ: a classic or quorum queue as a source, and a publisher with confirms. The client is pika."""

from __future__ import annotations

import secrets
import struct
import time
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from acker.connectors.publisher import Outgoing, Publisher
from acker.connectors.rabbitmq_link import Link, Parameters, decode_properties, encodable, parse_parameters, pika
from acker.connectors.source import Delivery, Source, SourceEvents
from acker.errors import AckerError, ArgumentValueError, ConnectionLostError, PublishError, exception_text

__all__ = ["RabbitMQ", "RabbitMQPublisher", "Received"]

# The most that AMQP can say.
_PREFETCH_MAX: Final = 65_535
# One ack may cover all tags below it. Acks that this does not reach wait for it, until they are this part of the
# prefetch or no delivery is there.
_WAITING_ACKS: Final = 4
# In the two bytes that say which properties there are.
_HEADERS_FLAG: Final = pika.BasicProperties.FLAG_HEADERS >> 8
_MESSAGE_ID_FLAG: Final = pika.BasicProperties.FLAG_MESSAGE_ID
# So often a batch looks for confirms while it is written.
_MESSAGES_A_STEP: Final = 100
_PRECONDITION_FAILED: Final = "(406)"


class Received:
    """The objects of pika for a delivery, made when they are asked for."""

    __slots__ = ("_method", "_properties")

    def __init__(self, method: Any, properties: Any) -> None:
        self._method = method
        self._properties = properties

    @property
    def method(self) -> Any:
        """pika.spec.Basic.Deliver: with ``exchange``, ``routing_key``, ``redelivered``."""
        if isinstance(self._method, tuple):
            consumer_tag, tag, is_redelivered, place = self._method
            end = 1 + place[0]
            names = (place[1:end].decode(errors="backslashreplace"), place[end + 1 :].decode(errors="backslashreplace"))
            self._method = pika.spec.Basic.Deliver(consumer_tag, tag, is_redelivered, *names)
        return self._method

    @property
    def properties(self) -> Any:
        """pika.BasicProperties: with ``content_type``, ``correlation_id``, ``reply_to`` and so on."""
        if isinstance(self._properties, bytes):
            self._properties = decode_properties(self._properties)
        return self._properties

    def __repr__(self) -> str:
        return f"Received({self.method}, {self.properties})"


def _queue_options(declare: Mapping[str, Any] | str | None) -> dict[str, Any] | None:
    """Return the options of ``queue_declare``."""
    if isinstance(declare, str):
        if declare != "quorum":
            raise ArgumentValueError(f"declare: expected 'quorum' or the options of a queue, got {declare!r}")
        return {"durable": True, "arguments": {"x-queue-type": declare}}
    return None if declare is None else dict(declare)


class RabbitMQ(Source):
    """A queue of RabbitMQ, classic or quorum.

    A message is with this consumer until it is acked or the connection ends; then the broker delivers it again. There
    is no lease, but brokers since 3.8.15 close the channel of a consumer that holds a message for longer than their
    ``consumer_timeout`` (30 minutes by default): choose a larger one for longer work.

    Parameters
    ----------
    parameters : str, pika.connection.Parameters, or a sequence of them
        A URL of pika such as ``amqp://user:password@host:5672/vhost?heartbeat=30`` (``amqps://`` for TLS), or pika's
        own parameters with its ``credentials`` and ``ssl_options``. Several are tried in turn.
    queue : str
        It must exist, unless `declare` is set.
    prefetch : int, optional
        The most unacked messages, those included that wait for a retry. By default ``open_max`` of the consumer.
    declare : "quorum" or a mapping, optional
        Declares the queue: a quorum queue, or one with these options of pika's ``queue_declare``. They must be those of
        a queue that exists.
    arguments : mapping, optional
        Arguments of the subscription, such as ``{"x-priority": 10}``.
    dead_letter_exchange : bool
        Say that the queue has a dead-letter exchange, so that messages can be given up by rejecting them. The broker
        drops them if it has none, and AMQP cannot ask. Known by itself where `declare` sets
        ``x-dead-letter-exchange``. RabbitMQ confirms such dead letters only where a quorum queue has the strategy
        ``at-least-once``, and they hold no reason: a `RabbitMQPublisher` is safer, and tells why.

    Notes
    -----
    A quorum queue counts deliveries, so `Delivery.attempt` goes on after a crash; a classic queue only says that a
    message was delivered before, which is attempt 2. Quorum queues drop a message or move it to their dead-letter
    exchange once it came back ``x-delivery-limit`` times (20 by default since RabbitMQ 4.0). Retries of a consumer
    happen in its process and do not count for that; lost connections do.
    """

    wait_secs_max = 1.0

    def __init__(
        self,
        parameters: Parameters,
        queue: str,
        *,
        prefetch: int | None = None,
        declare: Mapping[str, Any] | str | None = None,
        arguments: Mapping[str, Any] | None = None,
        dead_letter_exchange: bool = False,
    ) -> None:
        if not queue:
            raise ArgumentValueError("queue: expected the name of a queue, not ''")
        if prefetch is not None and not 1 <= prefetch <= _PREFETCH_MAX:
            raise ArgumentValueError(f"prefetch: expected 1 to {_PREFETCH_MAX}, not {prefetch}")
        self.name = f"RabbitMQ queue {queue!r}"
        self._parameters = parse_parameters(parameters)
        self._queue = queue
        self._prefetch = prefetch
        self._declare = _queue_options(declare)
        self._arguments = dict(arguments or {})
        declared = (self._declare or {}).get("arguments") or {}
        self._gives_up = dead_letter_exchange or "x-dead-letter-exchange" in declared
        self._link: Link | None = None
        self._channel: Any = None
        self._consumer_tag = ""
        self._waiting_acks_max = self._most_unacked = 1
        self._subscribed = 0  # how many unacked messages the broker may send now
        self._cancelled: AckerError | None = None
        self._buffer: deque[Delivery] = deque()
        # The tags of this channel that are not settled, in the order of the broker: ascending.
        self._unsettled: dict[int, None] = {}
        # Those that are done and not yet acked, because a lower one is not done.
        self._done: list[int] = []
        self._is_woken = False

    @property
    def can_give_up(self) -> bool:
        """Whether the queue has a dead-letter exchange, as far as this source was told."""
        return self._gives_up

    def open(self, events: SourceEvents, limit: int) -> None:  # noqa: ARG002 - a queue is never revoked
        """Connect and subscribe; see `Source.open`."""
        self.close()
        self._most_unacked = min(self._prefetch or limit, _PREFETCH_MAX)
        self._waiting_acks_max = max(1, self._most_unacked // _WAITING_ACKS)
        link = Link(self._parameters, self.name)
        self._link = link  # so that `wake` finds it
        try:
            link.open()
            channel = link.channel
            if self._declare is None:
                link.call(channel.queue_declare, self._queue, passive=True)
            else:
                link.call(channel.queue_declare, self._queue, **self._declare)
            channel.add_on_cancel_callback(self._on_cancel)
            self._channel = channel
            link.take_deliveries(self._on_delivery)
            link.is_opening = False
        except BaseException:
            self.close()
            raise

    def _subscribe(self, link: Link, prefetch: int) -> None:
        """Let the broker send so many unacked messages.

        A `poll` for the only message gets no others into this process: when it ends, a quorum queue counts a delivery
        of each that was sent here. A later `poll` for more subscribes again.
        """
        before, self._consumer_tag = self._consumer_tag, f"acker-{secrets.token_hex(8)}"
        try:
            # The message of the first subscription may be open for long.
            link.call(self._channel.basic_qos, prefetch_count=prefetch - bool(before))
            options = {"arguments": self._arguments, "consumer_tag": self._consumer_tag}
            link.is_opening = True  # what the broker refuses here is a mistake
            link.call(self._channel.basic_consume, self._queue, self._on_message, **options)
            link.is_opening = False
        except AckerError:
            self._forget()
            raise
        self._subscribed = prefetch
        if before:
            self._channel.basic_cancel(before)

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        """Take a message that pika has assembled."""
        if channel is self._channel:
            self._keep(method.delivery_tag, method.redelivered, Received(method, properties), body, has_names=True)

    def _on_delivery(self, tag: int, is_redelivered: bool, place: bytes, properties: bytes, body: bytes) -> None:
        """Take a message that pika has not touched, and decode only those properties that the delivery needs."""
        received = Received((self._consumer_tag, tag, is_redelivered, place), properties)
        has_names = bool(properties[0] & _HEADERS_FLAG or properties[1] & _MESSAGE_ID_FLAG)
        self._keep(tag, is_redelivered, received, body, has_names=has_names)

    def _keep(self, tag: int, is_redelivered: bool, received: Received, body: bytes, *, has_names: bool) -> None:
        if self._channel is None:
            return  # it came while the connection was closed
        headers: Mapping[str, Any] = {}
        # The tag is another one in each delivery; the checksum of the body finds the message again in a log.
        key = f"{self._queue}#{tag}-{zlib.crc32(body):08x}"
        attempt = 2 if is_redelivered else 1
        if has_names:
            properties = received.properties
            headers = properties.headers or {}
            if properties.message_id is not None:
                key = f"{self._queue}/{properties.message_id}"
            if isinstance(count := headers.get("x-delivery-count"), int):
                attempt = max(attempt, count + 1)
        self._unsettled[tag] = None
        self._buffer.append(Delivery(key, body, headers, attempt, received, (self._channel, tag)))

    def _on_cancel(self, _method: Any) -> None:
        # The next `open` finds out whether the queue is gone, or another node has taken it over.
        self._cancelled = ConnectionLostError(
            f"{self.name}: the broker has cancelled this consumer: the queue was deleted, or its node is down"
        )

    def poll(self, limit: int, wait_secs: float) -> Sequence[Delivery]:
        """Return deliveries; see `Source.poll`."""
        link = self._linked()
        self._step(link, 0.0)
        is_held = len(self._unsettled) > len(self._buffer)  # a message that was returned before
        wanted = self._most_unacked if limit > 1 or is_held else 1
        if limit and wanted > self._subscribed:
            self._subscribe(link, wanted)
        if not (limit and self._buffer):
            deadline = time.monotonic() + wait_secs
            # Nothing comes that these acks could wait for.
            self._send_acks(all_done=True)
            while not (self._is_woken or (limit and self._buffer)) and (left := deadline - time.monotonic()) > 0:
                self._step(link, left)
        self._is_woken = False
        buffer = self._buffer
        if limit >= len(buffer):
            taken = list(buffer)
            buffer.clear()
            return taken
        return [buffer.popleft() for _ in range(limit)]

    def _linked(self) -> Link:
        if self._link is None or self._channel is None:
            raise ConnectionLostError(f"{self.name}: not connected")
        return self._link

    def _step(self, link: Link, wait_secs: float) -> None:
        try:
            link.step(wait_secs)
            if self._cancelled is not None:
                raise self._cancelled
        except ConnectionLostError:
            self._forget()
            raise

    def _forget(self) -> None:
        """Drop what belongs to a channel that is gone; from now on `holds` says so."""
        self._channel = None
        self._cancelled = None
        self._consumer_tag = ""
        self._subscribed = 0
        self._buffer.clear()
        self._unsettled.clear()
        self._done.clear()

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Ack messages, several with one ack where no lower tag is open; see `Source.ack`."""
        self._linked()
        self._done += [tag for delivery in deliveries if (tag := self._settled(delivery)) is not None]
        self._send_acks(all_done=len(self._done) >= self._waiting_acks_max)

    def _settled(self, delivery: Delivery) -> int | None:
        """Return the tag of a delivery, once."""
        channel, tag = delivery.receipt
        if channel is not self._channel or tag not in self._unsettled:
            return None
        del self._unsettled[tag]
        return int(tag)

    def _send_acks(self, *, all_done: bool) -> None:
        """Ack all tags below the first open one with one ack; the others one by one, or later."""
        if not self._done or not self._channel.is_open:
            return
        first_open = next(iter(self._unsettled), None)
        below = [tag for tag in self._done if first_open is None or tag < first_open]
        if below:
            self._channel.basic_ack(max(below), multiple=True)
            above = [tag for tag in self._done if first_open is not None and tag > first_open]
            self._done = above
        if all_done:
            for tag in self._done:
                self._channel.basic_ack(tag)
            self._done.clear()

    def give_up(self, delivery: Delivery, reason: str) -> None:
        """Reject a message, so that the broker moves it to the dead-letter exchange of the queue.

        Raises
        ------
        NotImplementedError
            Nobody said that the queue has one: the broker would drop the message.
        """
        if not self._gives_up:
            super().give_up(delivery, reason)
        self._linked()
        if (tag := self._settled(delivery)) is not None and self._channel.is_open:
            self._channel.basic_reject(tag, requeue=False)

    def release(self, deliveries: Sequence[Delivery]) -> None:
        """Give messages back, and take no more: the broker would send the same ones again."""
        if self._link is None or self._channel is None or not self._channel.is_open:
            return
        if self._consumer_tag:
            self._link.take_deliveries(None)  # pika gives back what comes until the broker has heard
            self._channel.basic_cancel(self._consumer_tag)
            self._consumer_tag = ""
        for delivery in (*deliveries, *self._buffer):
            if (tag := self._settled(delivery)) is not None:
                self._channel.basic_nack(tag, requeue=True)
        self._buffer.clear()

    def holds(self, delivery: Delivery) -> bool:
        """Return whether the channel of a delivery is open, and the delivery not settled."""
        channel, tag = delivery.receipt
        return channel is self._channel and tag in self._unsettled

    def wake(self) -> None:
        """End a `poll` that waits; see `Source.wake`."""
        if self._is_woken:
            return
        self._is_woken = True
        link = self._link
        if link is not None:
            link.wake()

    def close(self) -> None:
        """Send acks that wait, and disconnect; see `Source.close`."""
        link, self._link = self._link, None
        if link is None:
            return
        if self._channel is not None and link.fault is None:
            self._send_acks(all_done=True)
        self._forget()
        link.close()


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
        they say ``{"delivery_mode": 1}``. The publisher sets ``message_id`` and ``headers`` itself.
    declare : "quorum" or a mapping, optional
        Declares the queue `routing_key`, for the default exchange; as for `RabbitMQ`.

    Notes
    -----
    `Outgoing.key` has no meaning here. pika cannot write floats, so headers hold them as texts.

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
        self._declare = _queue_options(declare)
        self._link: Link | None = None
        # Of this channel: the number of messages, and the batch whose confirms are awaited, by number.
        self._prefix = ""
        self._count = 0
        self._first_waiting = 1
        self._waiting: dict[int, int] = {}
        self._results: list[Exception | None] = []

    def connect(self) -> None:
        """Connect; see `Publisher.open`."""
        if self._link is not None and self._link.fault is None:
            return
        self.disconnect()
        link = Link(self._parameters, self.name)
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
        fault = self._publish(self._link, messages, results)
        unconfirmed = list(self._waiting.values())
        self._waiting = {}
        if not fault:
            return results
        self.disconnect()
        if _PRECONDITION_FAILED in fault and len(unconfirmed) > 1:
            # The broker refuses one of them, too large for example, and has not looked at those behind it.
            half = len(unconfirmed) // 2
            for part in (unconfirmed[:half], unconfirmed[half:]):
                for index, result in zip(part, self.write([messages[each] for each in part]), strict=True):
                    results[index] = result
            return results
        for index in unconfirmed:
            results[index] = results[index] or PublishError(f"not confirmed: {fault}")
        return results

    def _reopen(self) -> None:
        """Connect if need be, also if the broker has closed the connection since the last call."""
        if self._link is not None:
            try:
                self._link.step(0.0)
            except AckerError:
                self.disconnect()
        self.connect()

    def _publish(self, link: Link | None, messages: Sequence[Outgoing], results: list[Exception | None]) -> str:
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
        properties = pika.BasicProperties(
            message_id=f"{self._prefix}-{number}",
            headers={name: encodable(value) for name, value in message.headers.items()} or None,
            **self._properties,
        )
        key = self._routing_key if message.to is None else message.to
        try:
            channel.basic_publish(self._exchange, key, message.value, properties, mandatory=True)
        except (pika.exceptions.AMQPError, struct.error, AssertionError, TypeError, ValueError, OverflowError) as error:
            # Raised before anything is written, so that the channel still counts as this does.
            self._results[index] = PublishError(
                f"{self.name}: pika cannot write the message: {exception_text(error)}"[:500]
            )
            return
        self._count = number
        self._waiting[number] = index

    def _on_return(self, _channel: Any, method: Any, properties: Any, _body: bytes) -> None:
        """Note a message that leads to no queue. Its confirm follows."""
        prefix, _, number = str(properties.message_id).rpartition("-")
        if prefix == self._prefix and (index := self._waiting.get(int(number))) is not None:
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

    def disconnect(self) -> None:
        """Disconnect; see `Publisher.close`."""
        link, self._link = self._link, None
        if link is not None:
            link.close()
