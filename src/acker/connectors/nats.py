"""NATS JetStream: a stream read through a durable pull consumer, and a publisher. The client is nats-py."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from acker.connectors.headers import header_text
from acker.connectors.leases import Leases, check_lease_secs
from acker.connectors.link import ServerAddress
from acker.connectors.publisher import Outgoing, Publisher
from acker.connectors.source import Delivery, Origin, Source, SourceEvents
from acker.connectors.stored_messages import StoredMessages
from acker.errors import AckerError, ConnectionLostError, PublishError, SourceError

try:
    import nats.errors
    import nats.js.errors
    from nats.aio.msg import Msg
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

    from acker.remote.nats_link import ANSWER_SECS, LOOK_SECS, NATSLink
except ImportError as missing:  # pragma: no cover - the tests have it
    raise ImportError("acker.connectors.nats needs nats-py: pip install 'acker[nats]'") from missing

_URL: Final = "nats://127.0.0.1:4222"
_PULL_SECS: Final = 1.0  # how long a pull request stays with the server, and so a stop with what it gives back
_PULL_AGAIN_SECS: Final = 0.1  # after the server has refused one
_BATCH: Final = 500
_READ_COUNT: Final = 100  # each is a request
_NS: Final = 1_000_000_000
# Headers that are orders to the server, which it has obeyed: the stream it expected, the id it looked for, a rollup.
_ORDERS: Final = "Nats-"
# The server may give a message to someone else at the very end of its lease.
_LEASE_SHARE: Final = 0.95

_log = logging.getLogger("acker.connectors")

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class StreamReceipt:
    """The data that settle a delivery, and until when it is certainly with this consumer."""

    sequence: int
    reply: str  # the subject of its acks
    lease_end: float


class JetStream(Source):
    """Messages of a JetStream stream, pulled through a durable consumer, which processes may share.

    A message that is open keeps its lease by in-progress acks. A failed one comes again after its back-off, for which
    the server waits, so another process may have the next attempt. JetStream does not say when a message has gone to
    someone else, so a lease that could not be renewed in time counts as lost.

    Headers that begin with ``Nats-`` are orders to the server, which it has obeyed. Those of a message are in ``raw``
    only: a dead letter must not repeat them.

    Parameters
    ----------
    servers : str or list of str
        URLs of nats-py, such as ``nats://user:password@host:4222``.
    stream : str
        It must exist.
    durable : str
        The name of the consumer. It is created if it is missing, for all messages of the stream from the first on.
    subject : str, optional
        A new consumer gets messages of this subject only; wildcards are allowed.
    lease_secs : float
        The ``ack_wait`` of a new consumer. An existing one keeps its own.
    **options
        More options of ``nats.connect``, such as ``tls``, ``user_credentials`` or ``token``.
    """

    wait_secs_max = 1.0

    redelivers = True

    def __init__(
        self,
        servers: str | list[str] = _URL,
        *,
        stream: str,
        durable: str,
        subject: str | None = None,
        lease_secs: float = 60.0,
        **options: Any,
    ) -> None:
        self._stream, self._durable, self._subject = stream, durable, subject
        self._address = ServerAddress(servers, options)
        self.name = f"JetStream stream {stream!r}, consumer {durable!r}"
        self.lease_secs: float = check_lease_secs(lease_secs)
        self._link = NATSLink(self.name, servers, options)
        self._inbox = ""
        self._requested = 0  # messages that the server may still send for the pull request
        self._request_end = 0.0
        self._has_sent = False  # acks that the server may not have read yet
        # The loop's thread appends, the I/O thread takes.
        self._arrived: deque[Msg] = deque()
        self._news = threading.Event()
        # Messages that came and are not delivered yet; and deliveries that are not settled, by number in the stream.
        self._buffer: deque[Delivery] = deque()
        self._leases: Leases[int] = Leases(lambda receipt: receipt.sequence)
        # Deliveries to give back once no pull request is open; and whether the end has begun.
        self._back: list[Delivery] = []
        self._is_ending = False

    # ---- connection --------------------------------------------------------------------------------------------------

    def open(self, events: SourceEvents, limit: int) -> None:
        """Connect, and create the consumer if it is missing."""
        self._leases.begin(events)
        self._leases.forget(delivery for delivery in self._leases if not self.holds(delivery))
        self._arrived.clear()
        self._buffer.clear()
        self._back.clear()
        self._is_ending = False
        self._requested, self._request_end = 0, 0.0
        self._link.open(on_change=self._news.set)
        try:
            self._link.run(self._subscribe(limit))
        except AckerError:
            self._link.close()
            raise

    async def _subscribe(self, limit: int) -> None:
        manager = self._link.client.jsm(timeout=ANSWER_SECS)
        try:
            await manager.stream_info(self._stream)
        except nats.js.errors.NotFoundError:
            raise SourceError(f"{self.name}: there is no such stream; create it first") from None
        try:
            info = await manager.consumer_info(self._stream, self._durable)
        except nats.js.errors.NotFoundError:
            info = await manager.add_consumer(self._stream, self._new_consumer())
            _log.info("%s: the consumer is created", self.name)
        self._check(info.config, limit)
        self._inbox = self._link.client.new_inbox()
        await self._link.client.subscribe(self._inbox, cb=self._receive, pending_bytes_limit=0, pending_msgs_limit=0)
        await self._link.flush(ANSWER_SECS)

    def _new_consumer(self) -> ConsumerConfig:
        return ConsumerConfig(
            durable_name=self._durable,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=self.lease_secs,
            deliver_policy=DeliverPolicy.ALL,
            filter_subject=self._subject,
            max_ack_pending=-1,  # each process limits its own
        )

    def _check(self, config: ConsumerConfig, limit: int) -> None:
        """Take the lease from the consumer, and refuse one that would lose messages."""
        if config.deliver_subject:
            raise SourceError(f"{self.name}: a push consumer; a pull consumer is needed, under another name")
        if config.ack_policy != AckPolicy.EXPLICIT:
            raise SourceError(f"{self.name}: its ack policy is {config.ack_policy}, and has to be explicit")
        leases = [secs for secs in (config.ack_wait, *(config.backoff or ())) if secs]
        self.lease_secs = min(leases, default=30.0)
        if config.max_deliver is not None and config.max_deliver > 0:
            _log.warning(
                "%s: the server gives a message up after %d deliveries (max_deliver), and tells nobody; use"
                " attempts_max= and dead_letters= instead",
                self.name,
                config.max_deliver,
            )
        if config.max_ack_pending is not None and 0 < config.max_ack_pending < limit:
            _log.warning(
                "%s: the server keeps back all but %d messages (max_ack_pending), fewer than open_max, %d",
                self.name,
                config.max_ack_pending,
                limit,
            )

    def close(self) -> None:
        """Send acks that wait, give back what was not delivered, and disconnect."""
        try:
            if self._link.is_open:
                self._take_arrived()
                self._give_back(2 * _PULL_SECS)
                self._link.run(self._link.flush(ANSWER_SECS))
        except AckerError as error:
            _log.warning("%s: closed without sending what waits: %s", self.name, error)
        finally:
            self._buffer.clear()
            self._back.clear()
            self._link.close()

    def wake(self) -> None:
        """End a `poll` that waits."""
        self._news.set()

    # ---- reading -----------------------------------------------------------------------------------------------------

    async def _receive(self, message: Msg) -> None:
        self._arrived.append(message)
        self._news.set()

    def poll(self, limit: int, wait_secs: float) -> Sequence[Delivery]:
        """Return messages that came for a pull request; make one if there is none."""
        self._link.check()
        if limit <= 0 and self._has_sent:
            self._link.run(self._link.flush(ANSWER_SECS))
            self._has_sent = False
        self._take_arrived()
        if self._is_ending:
            self._give_back(0.0)
        elif limit > len(self._buffer):
            self._request(limit - len(self._buffer))
        if not (self._buffer and limit):
            self._news.wait(wait_secs)
        # Cleared after the wait: a wake that came before it counts.
        self._news.clear()
        self._link.check()
        self._take_arrived()
        found = [self._buffer.popleft() for _ in range(min(limit, len(self._buffer)))]
        for delivery in found:
            self._leases.add(delivery)
        return found

    def _request(self, count: int) -> None:
        """Ask for messages, unless the server has a request already."""
        now = time.monotonic()
        if self._requested > 0 and now < self._request_end + ANSWER_SECS:
            return
        if self._requested <= 0 and now < self._request_end:
            return  # the server has just refused one
        count = min(count, _BATCH)
        request = {"batch": count, "expires": int(_PULL_SECS * _NS)}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._durable}"
        self._requested, self._request_end = count, now + _PULL_SECS
        self._link.run(self._link.client.publish(subject, json.dumps(request).encode(), self._inbox))

    def _take_arrived(self) -> None:
        """Move what came into the buffer."""
        while self._arrived:
            message = self._arrived.popleft()
            # Any other message says how the request ended.
            if not message.reply.startswith("$JS.ACK."):
                self._end_request(message)
                continue
            self._requested -= 1
            if self._requested <= 0:
                self._request_end = 0.0
            self._buffer.append(self._delivery(message))

    def _end_request(self, message: Msg) -> None:
        headers = message.headers or {}
        status, text = headers.get("Status", ""), headers.get("Description", "")
        if status == "100":
            return  # the server lives
        self._requested = 0
        self._request_end = 0.0 if status == "408" else time.monotonic() + _PULL_AGAIN_SECS
        if status == "503" or "Deleted" in text:
            raise ConnectionLostError(f"{self.name}: the server does not know the consumer any more: {status} {text}")
        if status == "409" and "Exceeded" in text:
            _log.warning("%s: the server refuses to send messages: %s", self.name, text)

    def _delivery(self, message: Msg) -> Delivery:
        metadata = message.metadata
        sequence = metadata.sequence.stream
        receipt = StreamReceipt(sequence, message.reply, time.monotonic() + _LEASE_SHARE * self.lease_secs)
        headers = _own_headers(message.headers)
        delivery = Delivery(
            f"{self._stream}/{sequence}", message.data, headers, metadata.num_delivered, message, receipt
        )
        self._leases.revoke(sequence)  # what is held of it: its lease was over
        for waiting in [each for each in self._buffer if each.receipt.sequence == sequence]:
            self._buffer.remove(waiting)
        return delivery

    # ---- settling ----------------------------------------------------------------------------------------------------

    def _send(self, word: bytes, deliveries: Sequence[Delivery] | deque[Delivery]) -> None:
        replies = [delivery.receipt.reply for delivery in deliveries]
        if replies:
            self._link.run(self._publish_all(word, replies))
            self._has_sent = True

    async def _publish_all(self, word: bytes, replies: Sequence[str]) -> None:
        for reply in replies:
            await self._link.client.publish(reply, word)

    def _settle(self, word: bytes, deliveries: Sequence[Delivery]) -> None:
        self._send(word, [delivery for delivery in deliveries if self.holds(delivery)])
        self._leases.forget(deliveries)

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Ack messages. The server gets the acks soon; none of them has an answer."""
        self._settle(b"+ACK", deliveries)

    def retry(self, delivery: Delivery, delay_secs: float) -> bool:
        """Let the server deliver the message again after the delay."""
        self._settle(b'-NAK {"delay": %d}' % int(max(delay_secs, 0.001) * _NS), [delivery])
        return True

    def release(self, deliveries: Sequence[Delivery]) -> None:
        """Let the server deliver the messages again, within a second; this takes no more."""
        self._is_ending = True
        self._back += [delivery for delivery in deliveries if self.holds(delivery)]
        self._leases.forget(deliveries)

    def _give_back(self, wait_secs: float) -> None:
        """Give back what was released or not delivered, once no pull request is open; wait for that so long.

        The server would answer an open request with the very same messages, also when its inbox is gone: they would
        come again when their leases are over.
        """
        deadline = time.monotonic() + wait_secs
        while not self._is_request_over() and (self._back or self._buffer) and time.monotonic() < deadline:
            self._news.wait(LOOK_SECS)
            self._news.clear()
            self._link.check()
            self._take_arrived()
        if self._is_request_over():
            self._send(b"-NAK", [*self._back, *self._buffer])
            self._back.clear()
            self._buffer.clear()

    def _is_request_over(self) -> bool:
        return self._requested <= 0 or time.monotonic() > self._request_end + _PULL_SECS / 2

    def extend(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Send in-progress acks, also for what waits here."""
        now = time.monotonic()
        kept: list[Delivery] = []
        lost: list[Delivery] = []
        for delivery in deliveries:
            (kept if self.holds(delivery) else lost).append(delivery)
        self._send(b"+WPI", [*kept, *self._buffer])
        self._link.run(self._link.flush(min(ANSWER_SECS, self.lease_secs / 3)))
        for delivery in (*kept, *self._buffer):
            delivery.receipt.lease_end = now + _LEASE_SHARE * self.lease_secs
        self._leases.forget(lost)
        return lost

    def holds(self, delivery: Delivery) -> bool:
        """Return whether the message is held, and its lease was renewed in time. A new connection changes nothing."""
        return delivery in self._leases and time.monotonic() < delivery.receipt.lease_end

    def origin(self, delivery: Delivery) -> Origin:
        """Return the subject of a message."""
        return Origin(delivery.raw.subject)

    def publisher(self) -> JetStreamPublisher:
        """Return a publisher to this stream, for messages that name their subject."""
        subject = self._subject or self._stream
        to = self._address
        return JetStreamPublisher(to.server, subject=subject, stream=self._stream, **to.options)


class JetStreamPublisher(Publisher):
    """Publishes to a subject of a JetStream stream, and waits for the stream's answer to each message.

    All messages of a call are on their way at a time. Headers become texts, in one line each; None is left out. The
    key of a message becomes a header ``key``.

    Parameters
    ----------
    servers : str or list of str
    subject : str
        For the messages whose `Outgoing.to` is None.
    stream : str, optional
        The server refuses messages whose subject belongs to another stream.
    answer_secs : float
        How long to wait for an answer.
    **options
        More options of ``nats.connect``.
    """

    def __init__(
        self,
        servers: str | list[str] = _URL,
        *,
        subject: str,
        stream: str | None = None,
        answer_secs: float = ANSWER_SECS,
        **options: Any,
    ) -> None:
        self._subject, self._stream, self._answer_secs = subject, stream, answer_secs
        self._address = ServerAddress(servers, options)
        super().__init__(f"JetStream subject {subject!r}")
        self._link = NATSLink(self.name, servers, options)

    def connect(self) -> None:
        """Connect."""
        self._link.open()

    def write(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Publish messages, and wait for the answers."""
        outcomes: list[Exception | None] = []
        for begin in range(0, len(messages), _BATCH):
            chunk = messages[begin : begin + _BATCH]
            try:
                if not self._link.is_open:
                    self._link.open()
                outcomes += self._link.run(self._publish_all(chunk), 2 * self._answer_secs)
            except AckerError as error:
                outcomes += [PublishError(f"not confirmed: {error}") for _ in chunk]
        return outcomes

    async def _publish_all(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        context = self._link.client.jetstream(timeout=self._answer_secs)
        publishing = [self._publish(context, message) for message in messages]
        return await asyncio.gather(*publishing)

    async def _publish(self, context: Any, message: Outgoing) -> Exception | None:
        subject = message.to or self._subject
        try:
            await context.publish(subject, message.value, headers=_headers_of(message), stream=self._stream)
        except nats.js.errors.NoStreamResponseError:
            return PublishError(f"{self.name}: no stream takes the subject {subject!r}")
        except Exception as error:  # noqa: BLE001 - each message has its own
            return PublishError(f"{self.name}: {self._link.text_of(error)}")
        return None

    def reader(self, *, lease_secs: float = 60.0) -> Source:  # noqa: ARG002
        """Return a source of all messages of the subject, without a consumer at the server. An ack deletes one."""
        return SubjectMessages(self._address.server, self._subject, self._stream, self._address.options)

    def disconnect(self) -> None:
        """Disconnect."""
        self._link.close()


class SubjectMessages(StoredMessages):
    """All messages of a subject in its stream, read one by one. They have no lease; an ack deletes them.

    Parameters
    ----------
    servers : str or list of str
    subject : str
    stream : str or None
        By default the one that the subject belongs to.
    options : mapping
        As for `JetStream`.
    """

    def __init__(self, servers: str | list[str], subject: str, stream: str | None, options: Mapping[str, Any]) -> None:
        super().__init__(f"JetStream subject {subject!r}")
        self._subject, self._given, self._stream = subject, stream, ""
        self._link = NATSLink(self.name, servers, options)
        self._next = 1

    def connect(self) -> None:
        """Connect, and look for the stream."""
        self._next = 1
        self._link.open()
        try:
            self._stream = self._given or self._link.run(self._manager().find_stream_name_by_subject(self._subject))
        except SourceError:
            self._link.close()
            raise SourceError(f"{self.name}: no stream takes this subject; create it first") from None

    def read(self, limit: int) -> Sequence[Delivery]:
        """Return the next messages."""
        return self._link.run(self._read(min(limit, _READ_COUNT)), _READ_COUNT * ANSWER_SECS)

    async def _read(self, limit: int) -> list[Delivery]:
        found: list[Delivery] = []
        manager = self._manager()
        while len(found) < limit:
            try:
                raw = await manager.get_msg(self._stream, self._next, self._subject, next=True)
            except nats.js.errors.NotFoundError:
                break
            self._next = raw.seq + 1
            key = f"{self._stream}/{raw.seq}"
            found.append(Delivery(key, raw.data or b"", _own_headers(raw.headers), 1, raw, raw.seq))
        return found

    def remove(self, deliveries: Sequence[Delivery]) -> None:
        """Delete messages."""
        self._link.run(self._remove(deliveries), len(deliveries) * ANSWER_SECS)

    async def _remove(self, deliveries: Sequence[Delivery]) -> None:
        manager = self._manager()
        for delivery in deliveries:
            with contextlib.suppress(nats.js.errors.NotFoundError):
                await manager.delete_msg(self._stream, delivery.receipt)

    def check_removal(self) -> None:
        """Look whether the stream lets anybody delete messages."""
        if self._link.run(self._manager().stream_info(self._stream)).config.deny_delete:
            raise SourceError(f"{self.name}: the stream {self._stream} denies to delete messages (deny_delete)")

    def _manager(self) -> Any:
        return self._link.client.jsm(timeout=ANSWER_SECS)

    def close(self) -> None:
        """Disconnect."""
        self._link.close()


def _own_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    return {name: text for name, text in (headers or {}).items() if not name.startswith(_ORDERS)}


def _headers_of(message: Outgoing) -> dict[str, str] | None:
    """Return headers as NATS takes them: texts of one line."""
    found = {name: _line_of(content) for name, content in message.headers.items() if content is not None}
    if message.key is not None:
        found["key"] = _line_of(message.key)
    return found or None


def _line_of(content: Any) -> str:
    return " ".join(header_text(content).splitlines()).strip()
