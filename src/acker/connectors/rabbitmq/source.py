"""A queue of RabbitMQ as a source, classic or quorum."""

from __future__ import annotations

import importlib
import math
import secrets
import time
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from acker.connectors.rabbitmq.link import (
    Parameters,
    RabbitMQLink,
    decode_properties,
    kept_properties,
    parse_parameters,
    pika,
    queue_options,
)
from acker.connectors.source import Delivery, Origin, Source, SourceEvents
from acker.errors import AckerError, ArgumentValueError, ConnectionLostError

# The most that AMQP can say.
_PREFETCH_MAX: Final = 65_535
# One ack may cover all tags below it. Acks that this does not reach wait for it, until they are this part of the
# prefetch or no delivery is there.
_WAITING_ACKS: Final = 4
# In the two bytes that say which properties there are.
_HEADERS_FLAG: Final = pika.BasicProperties.FLAG_HEADERS >> 8
_MESSAGE_ID_FLAG: Final = pika.BasicProperties.FLAG_MESSAGE_ID


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
            consumer_tag, tag, is_redelivered, route = self._method
            end = 1 + route[0]
            names = (route[1:end].decode(errors="backslashreplace"), route[end + 1 :].decode(errors="backslashreplace"))
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
        self._declare = queue_options(declare)
        self._arguments = dict(arguments or {})
        declared = (self._declare or {}).get("arguments") or {}
        self._gives_up = dead_letter_exchange or "x-dead-letter-exchange" in declared
        self._link: RabbitMQLink | None = None
        self._channel: Any = None
        self._consumer_tags: list[str] = []  # of the subscriptions, the latest at the end
        self._waiting_acks_max = self._most_unacked = 1
        self._subscribed = 0  # how many unacked messages the broker may send now
        self._first_until: int | None = None  # the last tag that an ended subscription may have brought
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
        link = RabbitMQLink(self._parameters, self.name)
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

    def _subscribe(self, link: RabbitMQLink, prefetch: int) -> None:
        """Let the broker send so many unacked messages.

        A `poll` for the only message gets no others into this process: when it ends, a quorum queue counts a delivery
        of each that was sent here. A later `poll` for more subscribes again.
        """
        first = self._consumer_tags.pop() if self._consumer_tags else ""
        first_open = next(iter(self._unsettled), None)
        # The message of the first subscription may be open for long.
        self._consume(link, prefetch - bool(first))
        self._subscribed = prefetch
        if first:
            self._first_until = first_open
            # If its message is settled, it may bring another one until it ends.
            self._channel.basic_cancel(first, callback=self._on_first_ended if first_open is None else None)

    def _consume(self, link: RabbitMQLink, prefetch: int) -> None:
        self._consumer_tags.append(f"acker-{secrets.token_hex(8)}")
        try:
            link.call(self._channel.basic_qos, prefetch_count=prefetch)
            options = {"arguments": self._arguments, "consumer_tag": self._consumer_tags[-1]}
            link.is_opening = True  # what the broker refuses here is a mistake
            link.call(self._channel.basic_consume, self._queue, self._on_message, **options)
            link.is_opening = False
        except AckerError:
            self._forget()
            raise

    def _on_first_ended(self, _method: Any) -> None:
        self._first_until = next(reversed(self._unsettled), 0)

    def _fill_first_place(self, link: RabbitMQLink) -> None:
        """Once the message of the first subscription is settled, subscribe for one more in its place.

        A subscription keeps its prefetch, and one for all places would not count what the others have brought.
        """
        first_open = next(iter(self._unsettled), math.inf)
        if self._first_until is not None and first_open > self._first_until:
            self._first_until = None
            self._consume(link, 1)

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        """Take a message that pika has assembled."""
        if channel is self._channel:
            self._keep(method.delivery_tag, method.redelivered, Received(method, properties), body, has_names=True)

    def _on_delivery(self, tag: int, is_redelivered: bool, route: bytes, properties: bytes, body: bytes) -> None:
        """Take a message that pika has not touched, and decode only those properties that the delivery needs."""
        # With two subscriptions, it may be of the other one.
        consumer_tag = self._consumer_tags[-1] if self._consumer_tags else ""
        received = Received((consumer_tag, tag, is_redelivered, route), properties)
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
        if self._channel is None:
            return  # The broker says it of each subscription.
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
        elif limit:
            self._fill_first_place(link)
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

    def _linked(self) -> RabbitMQLink:
        if self._link is None or self._channel is None:
            raise ConnectionLostError(f"{self.name}: not connected")
        return self._link

    def _step(self, link: RabbitMQLink, wait_secs: float) -> None:
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
        self._consumer_tags.clear()
        self._subscribed = 0
        self._first_until = None
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
        if self._consumer_tags:
            self._link.take_deliveries(None)  # pika gives back what comes until the broker has heard
        while self._consumer_tags:
            self._channel.basic_cancel(self._consumer_tags.pop())
        self._first_until = None
        for delivery in (*deliveries, *self._buffer):
            if (tag := self._settled(delivery)) is not None:
                self._channel.basic_nack(tag, requeue=True)
        self._buffer.clear()

    def holds(self, delivery: Delivery) -> bool:
        """Return whether the channel of a delivery is open, and the delivery not settled."""
        channel, tag = delivery.receipt
        return channel is self._channel and tag in self._unsettled

    def origin(self, delivery: Delivery) -> Origin:
        """Return the queue, not the exchange, which may lead to other queues as well; and most properties."""
        return Origin(self._queue, properties=kept_properties(delivery.raw.properties))

    def publisher(self) -> Any:
        """Return a publisher to this queue, past all exchanges."""
        # By name: the publisher's module needs this one for its reader.
        made = importlib.import_module("acker.connectors.rabbitmq.publisher").RabbitMQPublisher
        return made(self._parameters, routing_key=self._queue)

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
        if self._channel is not None and link.error is None:
            self._send_acks(all_done=True)
        self._forget()
        link.close()
