"""Amazon SQS: a queue as a source, and a publisher. The client is boto3."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import math
import re
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from acker.connectors.headers import header_json
from acker.connectors.leases import Leases
from acker.connectors.link import Link, ServerAddress
from acker.connectors.publisher import Outgoing, Publisher, unconfirmed
from acker.connectors.source import Delivery, Origin, Source, SourceEvents
from acker.errors import AckerError, ArgumentValueError, ConnectionLostError, PublishError, SourceError

try:
    import boto3.session
    from botocore import exceptions
    from botocore.config import Config
except ImportError as error:
    raise ImportError("acker.connectors.sqs needs boto3: pip install 'acker[sqs]'") from error

__all__ = ["SQS", "SQSPublisher"]

_log: Final = logging.getLogger("acker.connectors")

_BATCH: Final = 10  # entries in a call
_BATCH_BYTES_MAX: Final = 256 << 10
_IDLE_SECS: Final = 1  # the shortest wait of SQS
_LEASE_SECS_MAX: Final = 12 * 3600  # from the first receipt on
# boto3's own patience, five attempts of a minute each, would hold up acks and leases.
_NETWORK: Final = Config(connect_timeout=5, read_timeout=25, retries={"max_attempts": 2, "mode": "standard"})
_MISTAKES: Final = (
    exceptions.NoCredentialsError,
    exceptions.NoRegionError,
    exceptions.ParamValidationError,
    exceptions.PartialCredentialsError,
    exceptions.ProfileNotFound,
    exceptions.UnknownServiceError,
)
_PASSING_CODES: Final = re.compile(
    "Throttl|TooManyRequests|SlowDown|LimitExceeded|Expired|Timeout|Unavailable|Internal"
)
# Bodies of SQS are texts, of these characters, and not empty. Others travel as base64, and this attribute says so.
_BODY: Final = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")
_ENCODING: Final = ("Content-Transfer-Encoding", "base64")
_EMPTY: Final = "="
# Headers that are no attributes of SQS travel as JSON, in an attribute of this name.
_HEADERS: Final = "acker-headers"
_ATTRIBUTES_MAX: Final = 10
_ATTRIBUTE_NAME: Final = re.compile(r"(?!\.|aws\.|amazon\.|.*\.\.|.*\.$)[A-Za-z0-9_.-]{1,256}", re.IGNORECASE)


@dataclass(slots=True, eq=False)
class SQSReceipt:
    """The data that settle a delivery, when it came, and when its lease ends."""

    message_id: str
    handle: str
    began: float
    until: float


class SQS(Source):
    """Messages of an SQS queue, standard or FIFO.

    A message stays invisible to others while it is open: the lease is its visibility timeout. A failed message is
    visible again after its back-off, so another consumer may have the next attempt. SQS does not say when a message
    has gone to someone else, so a lease that could not be renewed in time counts as lost.

    Bodies are UTF-8; message attributes are the headers: texts, numbers and bytes. What `SQSPublisher` has encoded is
    decoded.

    Parameters
    ----------
    queue_url : str
    lease_secs : float
        The visibility timeout: whole seconds, at least 1 and at most 12 hours. A message that is still open 12 hours
        after it came is delivered again: that is a limit of SQS.
    **options
        What ``boto3.client`` takes, such as ``region_name``, ``endpoint_url`` or ``config``. Credentials are found as
        boto3 finds them.
    """

    # `wake` ends the waits of this process, and none of SQS: there is one only while nothing is held.
    wait_secs_max = 1.0

    redelivers = True

    def __init__(self, queue_url: str, *, lease_secs: float = 60.0, **options: Any) -> None:
        if not 1 <= lease_secs <= _LEASE_SECS_MAX:
            raise ArgumentValueError(f"lease_secs must be 1 to {_LEASE_SECS_MAX}, not {lease_secs}")
        self._address = ServerAddress(queue_url, options)
        self._queue = queue_url.rpartition("/")[2]
        self.keeps_order = self._queue.endswith(".fifo")
        self.name = f"SQS queue {self._queue!r}"
        self.lease_secs: float = math.floor(lease_secs)
        self._link = _SQSLink(self.name, queue_url, options)
        self._woken = threading.Event()
        self._leases: Leases[str] = Leases(lambda receipt: receipt.message_id)
        self._acked: dict[str, Delivery] = {}

    def open(self, events: SourceEvents, limit: int) -> None:  # noqa: ARG002
        """Look for the queue."""
        if self._leases.begin(events):
            self._acked.clear()
        self._link.open()

    def close(self) -> None:
        """Send acks that wait, and disconnect."""
        try:
            if self._link.is_open:
                self._send_acks()
        except AckerError as error:
            _log.warning("%s: closed without sending the acks that wait: %s", self.name, error)
        finally:
            self._link.close()
        if self._acked:
            _log.warning("%s: %d acks are not sent; their messages may come again", self.name, len(self._acked))

    def wake(self) -> None:
        """End a `poll` that waits, unless it waits for an answer of SQS."""
        self._woken.set()

    def poll(self, limit: int, wait_secs: float) -> Sequence[Delivery]:
        """Send acks that wait, and receive messages: at most 10 at a time.

        SQS itself waits for whole seconds. So it waits for one while nothing is held: then only a stop waits for it.
        """
        self._send_acks()
        if limit <= 0:
            self._wait(wait_secs)
            return ()
        now = time.monotonic()
        sqs_secs = _IDLE_SECS if wait_secs > 0 and not self._leases else 0
        reply = self._link.call(
            "receive_message",
            MaxNumberOfMessages=min(limit, _BATCH),
            VisibilityTimeout=int(self.lease_secs),
            WaitTimeSeconds=sqs_secs,
            AttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        found = [self._deliver(message, now) for message in reply.get("Messages", ())]
        if not found and not sqs_secs:
            self._wait(wait_secs)
        return found

    def _wait(self, secs: float) -> None:
        self._woken.wait(secs)
        self._woken.clear()

    def _deliver(self, message: dict[str, Any], now: float) -> Delivery:
        message_id = message["MessageId"]
        receipt = SQSReceipt(message_id, message["ReceiptHandle"], now, now + self.lease_secs)
        value, headers = _message_of(message)
        attempt = int(message.get("Attributes", {}).get("ApproximateReceiveCount", 1))
        delivery = Delivery(f"{self._queue}/{message_id}", value, headers, attempt, message, receipt)
        self._leases.add(delivery)
        return delivery

    def order_key(self, delivery: Delivery) -> str | None:
        """Return the message group; a standard queue has none."""
        group: str | None = delivery.raw.get("Attributes", {}).get("MessageGroupId")
        return group

    # ---- settling ---------------------------------------------------------------------------------------------------

    def count_unacked(self, done: Sequence[Delivery]) -> int:
        """Count the acks that wait for their call, or for another one, too."""
        return len({*done, *self._acked.copy().values()})

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Delete messages, ten in a call; what SQS cannot do now is sent again by the next `poll`."""
        if not self._link.is_open:
            raise ConnectionLostError(f"{self.name}: not connected, so nothing can be acked")
        self._acked.update((delivery.receipt.message_id, delivery) for delivery in deliveries)
        if len(self._acked) >= _BATCH:
            self._send_acks()

    def _send_acks(self) -> None:
        late = [delivery for delivery in self._acked.values() if not self.holds(delivery)]
        if late:
            self.late_acks += len(late)
            _log.warning("%s: %d acks came too late: their leases were over", self.name, len(late))
        for delivery in late:
            del self._acked[delivery.receipt.message_id]
        for chunk in _chunks(list(self._acked.values())):
            failed = self._change("delete_message_batch", chunk)
            for delivery in chunk:
                refusal = failed.get(delivery.receipt.message_id)
                if refusal is None or refusal.is_final:
                    self._acked.pop(delivery.receipt.message_id)
                    self._leases.forget([delivery])

    def retry(self, delivery: Delivery, delay_secs: float) -> bool:
        """Make the message visible after the delay. Without a connection the consumer keeps it."""
        left_secs = _LEASE_SECS_MAX - math.ceil(time.monotonic() - delivery.receipt.began) - 1
        secs = max(0, min(math.ceil(delay_secs), left_secs))
        if self.holds(delivery):
            try:
                self._change("change_message_visibility_batch", [delivery], secs)
            except ConnectionLostError:
                return False
            self._leases.forget([delivery])
        return True

    def release(self, deliveries: Sequence[Delivery]) -> None:
        """Make messages visible at once."""
        for chunk in _chunks([delivery for delivery in deliveries if self.holds(delivery)]):
            self._change("change_message_visibility_batch", chunk, 0)
            self._leases.forget(chunk)

    def extend(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Begin the visibility timeouts anew; return the deliveries whose timeouts were over."""
        held = [delivery for delivery in deliveries if self.holds(delivery)]
        for chunk in _chunks(held):
            now = time.monotonic()
            failed = self._change("change_message_visibility_batch", chunk, int(self.lease_secs))
            for delivery in chunk:
                refusal = failed.get(delivery.receipt.message_id)
                if refusal is None:
                    delivery.receipt.until = now + self.lease_secs
                elif refusal.is_final:
                    self._leases.forget([delivery])
        lost = [delivery for delivery in deliveries if not self.holds(delivery)]
        self._leases.forget(lost)
        if lost:
            _log.warning("%s: %d leases are lost: the messages come again", self.name, len(lost))
        return lost

    def _change(self, operation: str, deliveries: Sequence[Delivery], secs: int | None = None) -> dict[str, _Refusal]:
        """Call a batch operation; return the errors of the entries that failed, by message id."""
        option = {} if secs is None else {"VisibilityTimeout": secs}
        entries = [
            {"Id": str(number), "ReceiptHandle": delivery.receipt.handle, **option}
            for number, delivery in enumerate(deliveries)
        ]
        failed = self._link.call(operation, Entries=entries).get("Failed", ())
        refusals = {}
        for entry in failed:
            delivery, refusal = deliveries[int(entry["Id"])], _Refusal(entry)
            refusals[delivery.receipt.message_id] = refusal
            _log.warning("%s: %s failed for %s: %s", self.name, operation, delivery.key, refusal)
        return refusals

    def holds(self, delivery: Delivery) -> bool:
        """Return whether the lease lasts, by this machine's clock: also while SQS cannot be reached."""
        return delivery in self._leases and time.monotonic() < delivery.receipt.until

    def origin(self, delivery: Delivery) -> Origin:
        """Return the group of a message in a FIFO queue."""
        group = self.order_key(delivery)
        return Origin(None, None if group is None else group.encode())

    def publisher(self) -> SQSPublisher:
        """Return a publisher to this queue."""
        return SQSPublisher(self._address.server, **self._address.options)


class _Refusal:
    """The error of SQS for one entry of a batch."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self._text = f"{entry.get('Code')}: {entry.get('Message', 'no reason is given')}"
        self.is_final = bool(entry.get("SenderFault")) and not _PASSING_CODES.search(str(entry.get("Code")))

    def __str__(self) -> str:
        return self._text


class SQSPublisher(Publisher):
    """Sends messages to an SQS queue, at most 10 in a call.

    Headers become message attributes. Those that SQS does not take (more than 10, an empty text, a name with a space)
    are sent as JSON in one attribute, ``acker-headers``. A body that SQS does not take, because it is empty or not
    UTF-8, is sent as base64 with an attribute ``Content-Transfer-Encoding``. `SQS` reads both. In a FIFO queue the key
    of a message is its group.

    Parameters
    ----------
    queue_url : str
        For the messages whose `Outgoing.to`, another URL, is None.
    batch_bytes_max : int
        The most bytes in a call.
    **options
        What ``boto3.client`` takes.
    """

    def __init__(self, queue_url: str, *, batch_bytes_max: int = _BATCH_BYTES_MAX, **options: Any) -> None:
        self._address, self._bytes_max = ServerAddress(queue_url, options), batch_bytes_max
        super().__init__(f"SQS queue {queue_url.rpartition('/')[2]!r}")
        self._link = _SQSLink(self.name, queue_url, options)

    def connect(self) -> None:
        """Look for the queue."""
        self._link.open()

    def write(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Send messages, and read SQS's answer to each."""
        outcomes: list[Exception | None] = [None] * len(messages)
        for url, entries in self._batches(messages):
            for number, outcome in self._send(url, entries).items():
                outcomes[number] = outcome
        return outcomes

    def _batches(self, messages: Sequence[Outgoing]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Yield URLs and the entries of one call each; the id of an entry is the number of its message."""
        entries: list[dict[str, Any]] = []
        size, url = 0, self._address.server
        for number, message in enumerate(messages):
            to = message.to or self._address.server
            entry = {"Id": str(number), **_entry_of(message, is_fifo=to.endswith(".fifo"))}
            entry_size = _size_of(entry)
            if entries and (len(entries) == _BATCH or size + entry_size > self._bytes_max or to != url):
                yield url, entries
                entries, size = [], 0
            entries.append(entry)
            size, url = size + entry_size, to
        if entries:
            yield url, entries

    def _send(self, url: str, entries: list[dict[str, Any]]) -> dict[int, Exception]:
        """Send one batch; return the errors. A batch that is refused as a whole is sent one by one."""
        try:
            self._link.ensure_open()
            failed = self._link.call("send_message_batch", QueueUrl=url, Entries=entries).get("Failed", ())
        except AckerError as error:
            if isinstance(error, SourceError) and len(entries) > 1 and self._link.is_open:
                return {number: refusal for entry in entries for number, refusal in self._send(url, [entry]).items()}
            return {int(entry["Id"]): unconfirmed(error) for entry in entries}
        return {int(entry["Id"]): PublishError(f"{self.name}: {_Refusal(entry)}") for entry in failed}

    def reader(self, *, lease_secs: float = 60.0) -> SQS:
        """Return a source of this queue. What it receives, nobody else sees until it is given back."""
        return SQS(self._address.server, lease_secs=lease_secs, **self._address.options)

    def disconnect(self) -> None:
        """Disconnect."""
        self._link.close()


def _message_of(message: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """Return the value and the headers of a message."""
    headers = {name: _header_of(attribute) for name, attribute in message.get("MessageAttributes", {}).items()}
    # There is none, or it is somebody else's.
    with contextlib.suppress(KeyError, TypeError, ValueError, RecursionError):
        headers |= json.loads(headers[_HEADERS])
        del headers[_HEADERS]
    body = message["Body"]
    if headers.get(_ENCODING[0]) == _ENCODING[1]:
        try:
            value = b"" if body == _EMPTY else base64.b64decode(body, validate=True)
        except ValueError:  # Somebody else's attribute.
            return body.encode(), headers
        del headers[_ENCODING[0]]
        return value, headers
    return body.encode(), headers


def _header_of(attribute: Mapping[str, Any]) -> Any:
    kind = attribute["DataType"].partition(".")[0]
    if kind == "Binary":
        return attribute["BinaryValue"]
    text = attribute["StringValue"]
    if kind == "Number":
        for number in (int, float):
            try:
                return number(text)
            except ValueError:
                continue
    return text


def _entry_of(message: Outgoing, *, is_fifo: bool) -> dict[str, Any]:
    """Return what SQS calls an entry of a batch, but for its id."""
    try:
        body = message.value.decode()
    except UnicodeDecodeError:
        body = ""
    attributes = {}
    if not _BODY.fullmatch(body):
        body = base64.b64encode(message.value).decode() or _EMPTY
        attributes[_ENCODING[0]] = _attribute_of(_ENCODING[1])
    attributes |= _attributes_of(message.headers, _ATTRIBUTES_MAX - len(attributes))
    entry: dict[str, Any] = {"MessageBody": body, "MessageAttributes": attributes}
    if is_fifo:
        group = (message.key or b"").decode(errors="backslashreplace") or "none"
        entry |= {"MessageGroupId": group, "MessageDeduplicationId": uuid.uuid4().hex}
    return entry


def _attributes_of(headers: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Return headers as attributes, at most `most`. The last one holds, as JSON, those that cannot be attributes."""
    found = {
        name: attribute
        for name, content in headers.items()
        if _ATTRIBUTE_NAME.fullmatch(name) and (attribute := _attribute_of(content)) is not None
    }
    if len(found) < len(headers) or len(found) > most:
        found = dict(list(found.items())[: most - 1])
        rest = {name: header_json(content) for name, content in headers.items() if name not in found}
        found[_HEADERS] = {"DataType": "String", "StringValue": json.dumps(rest)}
    return found


def _attribute_of(content: Any) -> dict[str, Any] | None:
    """Return a header as an attribute; None if SQS takes no such value."""
    if isinstance(content, bytes):
        return {"DataType": "Binary", "BinaryValue": content} if content else None
    if isinstance(content, bool) or content is None:
        return None
    if isinstance(content, int | float):
        # Numbers of SQS have 38 digits.
        is_number = abs(content) < 1e37 and (isinstance(content, int) or abs(content) > 1e-37 or content == 0)
        return {"DataType": "Number", "StringValue": str(content)} if is_number else None
    text = str(content)
    return {"DataType": "String", "StringValue": text} if _BODY.fullmatch(text) else None


def _size_of(entry: Mapping[str, Any]) -> int:
    """Return how many bytes of an entry count."""
    size = len(entry["MessageBody"].encode())
    for name, attribute in entry["MessageAttributes"].items():
        content = attribute.get("BinaryValue") or attribute["StringValue"].encode()
        size += len(name.encode()) + len(attribute["DataType"]) + len(content)
    return size


def _chunks(deliveries: Sequence[Delivery]) -> Iterable[Sequence[Delivery]]:
    return (deliveries[begin : begin + _BATCH] for begin in range(0, len(deliveries), _BATCH))


class _SQSLink(Link[Any]):
    """A client of SQS for one queue."""

    def __init__(self, name: str, queue_url: str, options: Mapping[str, Any]) -> None:
        super().__init__(name, [options.get(option) for option in ("aws_secret_access_key", "aws_session_token")])
        self._url = queue_url
        self._options = {**options, "config": _NETWORK.merge(options.get("config") or Config())}

    def open(self) -> None:
        """Make a client, with credentials found anew, and look for the queue."""
        super().open()
        try:
            self.call("get_queue_attributes", AttributeNames=["QueueArn"])
        except AckerError:
            self.close()
            raise

    def connect(self) -> Any:
        try:
            # A session of its own: the one that boto3.client shares belongs to one thread.
            return boto3.session.Session().client("sqs", **self._options)
        except (exceptions.BotoCoreError, ValueError) as error:
            raise self._translated(error) from error

    def disconnect(self, client: Any) -> None:
        client.close()

    def call(self, operation: str, **parameters: Any) -> Any:
        """Call an operation on the queue."""
        client = self.client
        try:
            return getattr(client, operation)(**{"QueueUrl": self._url, **parameters})
        except (exceptions.BotoCoreError, exceptions.ClientError) as error:
            translated = self._translated(error)
            if isinstance(translated, ConnectionLostError):
                self.close()
            raise translated from error

    def _translated(self, error: Exception) -> AckerError:
        """Return what a consumer makes of an error of boto3."""
        text = f"{self.name}: {self.hide(error)}"
        if isinstance(error, exceptions.ClientError):
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            code = str(error.response.get("Error", {}).get("Code"))
            refused = 400 <= status < 500 and not _PASSING_CODES.search(code)
        else:
            refused = isinstance(error, (*_MISTAKES, ValueError))
        return SourceError(text) if refused else ConnectionLostError(text)
