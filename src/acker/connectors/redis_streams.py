"""Redis Streams: a consumer group as a source, and a publisher. The client is redis-py."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from acker.connectors.headers import header_text
from acker.connectors.leases import Leases, check_lease_secs, owner_name
from acker.connectors.link import Link, ServerAddress
from acker.connectors.publisher import Outgoing, Publisher, unconfirmed
from acker.connectors.source import Delivery, Origin, Source, SourceEvents
from acker.connectors.stored_messages import StoredMessages
from acker.errors import AckerError, ArgumentValueError, ConnectionLostError, PublishError, SourceError

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as error:
    raise ImportError("acker.connectors.redis_streams needs redis-py: pip install 'acker[redis]'") from error

__all__ = ["RedisStreams", "RedisStreamsPublisher"]

_log: Final = logging.getLogger("acker.connectors")

_URL: Final = "redis://localhost:6379"
# A server that answers nothing for so long counts as lost, unless the client's own socket_timeout says otherwise.
_SOCKET_TIMEOUT_SECS: Final = 10.0
# A script holds up the whole server, so it gets few ids at a time; so does a batch of acks or of new entries.
_BATCH: Final = 500
# So often at least a source looks for entries whose lease is over: of consumers that died, or that gave them back.
_CLAIM_SECS_MAX: Final = 5.0
# Errors that a later attempt may not meet.
_PASSING: Final = (
    redis.BusyLoadingError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.MasterDownError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.TryAgainError,
)
_PASSING_CODES: Final = ("BUSY ", "MISCONF", "NOGROUP", "NOREPLICAS", "UNBLOCKED", "no such key")

# Sets the idle time of the entries that still belong to this consumer. Answers for each id: 1 it does, 0 someone else
# has it or will get it, 2 it is neither pending nor in the stream, 3 it was delivered and is pending for nobody. XCLAIM
# alone would take entries back from a consumer that claimed them; and JUSTID leaves their count of deliveries as it is.
_SET_IDLE: Final = """
local claim, answer = {'XCLAIM', KEYS[1], ARGV[1], ARGV[2], '0'}, {}
local function parts(id)
  local ms, seq = string.match(id, '(%d+)-(%d+)')
  return tonumber(ms), tonumber(seq)
end
local last_ms, last_seq = 0, 0
for _, told in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local group = {}
  for i = 1, #told, 2 do group[told[i]] = told[i + 1] end
  if group.name == ARGV[1] then last_ms, last_seq = parts(group['last-delivered-id']) end
end
local function was_delivered(id)
  local ms, seq = parts(id)
  return ms < last_ms or ms == last_ms and seq <= last_seq
end
for i = 5, #ARGV do
  local id = ARGV[i]
  if redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1, ARGV[2])[1] then
    claim[#claim + 1] = id
    answer[i - 4] = 1
  elseif redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1)[1] then
    answer[i - 4] = 0
  elseif redis.call('XRANGE', KEYS[1], id, id)[1] then
    answer[i - 4] = was_delivered(id) and 3 or 0
  else
    answer[i - 4] = 2
  end
end
if #claim > 5 then
  for _, word in ipairs({ARGV[3], ARGV[4], 'JUSTID'}) do claim[#claim + 1] = word end
  local claimed = {}
  for _, id in ipairs(redis.call(unpack(claim))) do claimed[id] = true end
  for i = 5, #ARGV do
    if answer[i - 4] == 1 and not claimed[ARGV[i]] then answer[i - 4] = 2 end
  end
end
return answer
"""
# Acks the entries that still belong to this consumer; returns how many.
_ACK_OWN: Final = """
local count = 0
for i = 3, #ARGV do
  if redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])[1] then
    count = count + redis.call('XACK', KEYS[1], ARGV[1], ARGV[i])
  end
end
return count
"""
# Removes the consumer unless entries are pending for it: they would be lost with it.
_LEAVE: Final = """
if not redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2])[1] then
  redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
end
"""
# Removes consumers that nothing is pending for and that have not been seen for a day: killed ones leave their names.
_SWEEP: Final = """
for _, told in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local consumer = {}
  for i = 1, #told, 2 do consumer[told[i]] = told[i + 1] end
  if consumer.pending == 0 and consumer.idle > 86400000 then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer.name)
  end
end
"""


@dataclass(slots=True, eq=False)
class EntryReceipt:
    """The name of an entry, and when its lease was last known to be renewed."""

    stream: str
    entry_id: bytes
    renewed: float
    is_trimmed: bool = False  # The entry is no longer in the stream.


class RedisStreams(Source):
    """Entries of Redis streams, read as one consumer of a consumer group.

    The group is created where there is none, with an empty stream if need be. An entry belongs to this consumer until
    it is acked or its lease ends: then any consumer of the group may take it over, and this one forgets it.

    One field of an entry is the value of the message. The other fields are its headers: texts, or bytes where they
    are not UTF-8. An entry without that field has an empty value, and all its fields are headers.

    Parameters
    ----------
    server : str or redis.Redis
        A URL of redis-py (``redis://``, ``rediss://`` or ``unix://``), or a client whose settings are used.
    stream : str or sequence of str
    group : str
    consumer : str, optional
        The name in the group. No two running processes may share it. By default a new one is made of the host, the
        process and a random part.
    start : str
        Where a new group begins: ``"0"`` is the first entry of the stream, ``"$"`` the next one that is added.
    field : str, optional
        The field that holds the value. None: the value is the whole entry as a JSON object.
    lease_secs : float
        Entries that have been idle for so long are taken over from other consumers. The same for the whole group.
    **options
        More options of ``redis.Redis.from_url``, such as ``ssl_ca_certs`` or ``password``.

    Attributes
    ----------
    trimmed_count : int
        Entries that were removed from the stream (``MAXLEN``, ``XDEL``) before they were done and while nobody had
        their contents: lost. A warning names them.
    """

    def __init__(
        self,
        server: str | redis.Redis = _URL,
        *,
        stream: str | Sequence[str],
        group: str,
        consumer: str | None = None,
        start: str = "0",
        field: str | None = "value",
        lease_secs: float = 60.0,
        **options: Any,
    ) -> None:
        self._streams = [stream] if isinstance(stream, str) else list(dict.fromkeys(stream))
        if not self._streams:
            raise ArgumentValueError("stream= names no stream")
        self._group, self._start, self._field = group, start, field
        self._address = ServerAddress(server, options)
        self._wanted = None if field is None else field.encode()
        self._consumer = consumer or owner_name()
        named = ", ".join(map(repr, self._streams))
        self.name = f"Redis stream{'s' * (len(self._streams) > 1)} {named}, group {group!r}"
        self.lease_secs: float = check_lease_secs(lease_secs)
        self.trimmed_count = 0
        self._link = _RedisLink(self.name, server, options)
        self._woken = threading.Event()
        self._leases = _EntryLeases(self._link, group, self._consumer, lease_secs)
        self._opened: set[str] = set()
        # Streams whose entries of this consumer are still to be looked at, from where; likewise those of the group.
        self._own: dict[str, bytes] = {}
        self._idle: dict[str, bytes] = {}
        self._claim_secs = min(lease_secs / 4, _CLAIM_SECS_MAX)
        self._claim_due = 0.0

    # ---- connection -------------------------------------------------------------------------------------------------

    def open(self, events: SourceEvents, limit: int) -> None:  # noqa: ARG002
        """Connect, create the groups that are missing, and find out which deliveries still belong to this consumer."""
        self._leases.begin(events)  # The messages that another consumer had open are delivered anew.
        self._link.open()
        for stream in self._streams:
            self._make_group(stream)
            self._opened.add(stream)
            self._link.send(("EVAL", _SWEEP, "1", stream, self._group))  # An error is no harm: names stay.
        self._leases.renew_all()
        # A lost connection may have taken entries with it that were on their way.
        self._own = dict.fromkeys(self._streams, b"-")
        self._claim_due = 0.0

    def _make_group(self, stream: str) -> None:
        """Create the group where there is none. A server without memory refuses that, and still answers for a group."""
        (reply,) = self._link.send(("XPENDING", stream, self._group))
        again = stream in self._opened
        if isinstance(reply, redis.ResponseError) and "NOGROUP" in str(reply):
            # A group that is gone, with a server that lost its data, is made anew from the first entry on.
            start = "0" if again else self._start
            (reply,) = self._link.send(("XGROUP", "CREATE", stream, self._group, start, "MKSTREAM"))
            if not isinstance(reply, redis.ResponseError):
                level = logging.WARNING if again else logging.INFO
                done = "was gone and is created again" if again else "is created"
                _log.log(level, "%s: group %r of stream %r %s, from %s on", self.name, self._group, stream, done, start)
        if isinstance(reply, redis.ResponseError) and not str(reply).startswith("BUSYGROUP"):
            raise self._link.translated(reply)

    def close(self) -> None:
        """Send acks that wait, leave the group if nothing is pending, and disconnect."""
        try:
            if self._link.is_open:
                self._leases.send_acks()
                leave = [("EVAL", _LEAVE, "1", stream, self._group, self._consumer) for stream in self._streams]
                self._link.send(*leave)  # An error is no harm: the name stays in the group.
        except AckerError as error:
            _log.warning("%s: closed without sending the acks that wait: %s", self.name, error)
        finally:
            self._link.close()
        if self._leases.waiting_count:
            _log.warning(
                "%s: %d acks wait for the next connection; without one the messages come again",
                self.name,
                self._leases.waiting_count,
            )

    def count_unacked(self, done: Sequence[Delivery]) -> int:
        """Count the acks that wait for the next call of the server, too."""
        return len({*done, *self._leases.waiting_acks()})

    def wake(self) -> None:
        """End a `poll` that waits with a limit of 0."""
        self._woken.set()

    # ---- reading ----------------------------------------------------------------------------------------------------

    def poll(self, limit: int, wait_secs: float) -> Sequence[Delivery]:
        """Return entries of this consumer that are not open, else some whose lease is over, else new ones."""
        if limit <= 0:
            self._leases.send_acks()
            self._woken.wait(wait_secs)
            self._woken.clear()
            return ()
        limit = min(limit, _BATCH)
        return self._read_own(limit) or self._read_idle(limit) or self._read_new(limit, wait_secs)

    def _read_new(self, limit: int, wait_secs: float) -> list[Delivery]:
        """Send acks that wait, and read entries that nobody has."""
        streams = self._streams[: min(limit, len(self._streams))]
        self._streams = self._streams[len(streams) :] + streams  # So that each has its turn where the limit is small.
        block_ms = int(min(wait_secs, self.wait_secs_max) * 1000)
        block = ("BLOCK", str(block_ms)) if block_ms else ()  # 0 would be for ever.
        # COUNT is for each stream.
        count = str(limit // len(streams))
        read = ("XREADGROUP", "GROUP", self._group, self._consumer, "COUNT", count, *block, "STREAMS", *streams)
        now = time.monotonic()
        *acked, found = self._link.send(*self._leases.ack_commands(), (*read, *[">"] * len(streams)))
        self._leases.forget_acked(acked)
        self._link.check([found])
        pairs = found.items() if isinstance(found, Mapping) else found or ()
        named = [(name.decode(), entries) for name, entries in pairs]
        return [self._deliver(stream, entry, 1, now) for stream, entries in named for entry in entries]

    def _read_own(self, limit: int) -> list[Delivery]:
        """Read what is pending for this consumer's name and not open: from an earlier run, or a lost connection."""
        found: list[Delivery] = []
        while self._own and not found:
            stream, begin = next(iter(self._own.items()))
            (rows,) = self._link.call(("XPENDING", stream, self._group, begin, "+", str(limit), self._consumer))
            if len(rows) < limit:
                del self._own[stream]
            else:
                self._own[stream] = b"(" + rows[-1][0]
            counts = {row[0]: row[3] + 1 for row in rows if not self._leases.has_key((stream, row[0]))}
            if counts:
                now = time.monotonic()
                (entries,) = self._link.call(("XCLAIM", stream, self._group, self._consumer, "0", *counts))
                entries = [entry for entry in entries if entry]
                self._report_trimmed(stream, set(counts) - {entry[0] for entry in entries})
                found = [self._deliver(stream, entry, counts[entry[0]], now) for entry in entries]
        return found

    def _read_idle(self, limit: int) -> list[Delivery]:
        """Take over entries whose lease is over, from whatever consumer of the group."""
        now = time.monotonic()
        if not self._idle:
            if now < self._claim_due:
                return []
            late = self._claim_due and now - self._claim_due > self.lease_secs
            self._claim_due = now + self._claim_secs
            self._leases.send_acks()  # Else entries that are done could be among them.
            if late and self._leases:
                return []  # This process stood still: let its own leases be renewed first.
            self._idle = dict.fromkeys(self._streams, b"0-0")
        stream, cursor = next(iter(self._idle.items()))
        idle_ms = str(int(self.lease_secs * 1000))
        (reply,) = self._link.call(
            ("XAUTOCLAIM", stream, self._group, self._consumer, idle_ms, cursor, "COUNT", str(limit))
        )
        self._idle[stream] = reply[0]
        if reply[0] == b"0-0":
            del self._idle[stream]
        self._report_trimmed(stream, reply[2] if len(reply) > 2 else ())  # Redis 6.2 says nothing of them.
        entries = [entry for entry in reply[1] if entry]
        if not entries:
            return []
        told = self._link.call(*(("XPENDING", stream, self._group, id_, id_, "1") for id_, _ in entries))
        _log.info("%s: took over %d entries of stream %r, whose lease was over", self.name, len(entries), stream)
        return [
            self._deliver(stream, entry, rows[0][3] if rows else 1, now)
            for entry, rows in zip(entries, told, strict=True)
        ]

    def _deliver(self, stream: str, entry: Any, attempt: int, renewed: float) -> Delivery:
        """Return the delivery of an entry, as Redis writes one: its id and its fields."""
        entry_id, pairs = entry
        fields = _fields_in(pairs)
        value, headers = _message_of(fields, self._wanted)
        receipt = EntryReceipt(stream, entry_id, renewed)
        delivery = Delivery(f"{stream}/{entry_id.decode()}", value, headers, attempt, fields, receipt)
        self._leases.add(delivery)
        return delivery

    def _report_trimmed(self, stream: str, ids: Iterable[bytes]) -> None:
        """Count and log entries that were removed from the stream before anybody was done with them."""
        names = sorted(id_.decode() for id_ in ids)
        if names:
            self.trimmed_count += len(names)
            _log.warning(
                "%s: %d entries of stream %r were trimmed or deleted before they were done, and are lost: %s%s;"
                " allow the stream a greater length",
                self.name,
                len(names),
                stream,
                ", ".join(names[:5]),
                ", ..." * (len(names) > 5),
            )

    # ---- settling ---------------------------------------------------------------------------------------------------

    @property
    def late_acks(self) -> int:  # type: ignore[override]
        """How many acks came too late; see `Source`."""
        return self._leases.late

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Keep the acks for the next `poll`, which sends them along with its own command, or send many at once."""
        if not self._link.is_open:
            raise ConnectionLostError(f"{self.name}: not connected, so nothing can be acked")
        if self._leases.ack_later(deliveries) >= _BATCH:
            self._leases.send_acks()

    def holds(self, delivery: Delivery) -> bool:
        """Return whether the entry still belongs to this consumer: also while it is not connected."""
        return delivery in self._leases

    def extend(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Begin the leases anew; return the deliveries whose entries another consumer has claimed or acked."""
        return self._leases.renew(deliveries)

    def release(self, deliveries: Sequence[Delivery]) -> None:
        """Let the leases end now, so that the next consumer that looks for such entries takes them."""
        self._leases.end(deliveries)

    def origin(self, delivery: Delivery) -> Origin:
        """Return the stream of an entry."""
        return Origin(delivery.receipt.stream)

    def publisher(self) -> RedisStreamsPublisher:
        """Return a publisher to the first of these streams. Entries that were read whole (``field=None``) have none."""
        if self._field is None:
            raise ArgumentValueError(
                f"{self.name}: field is None, and no publisher writes such entries; give one by to="
            )
        to = self._address
        return RedisStreamsPublisher(to.server, stream=self._streams[0], field=self._field, **to.options)


class _EntryLeases(Leases[tuple[str, bytes]]):
    """The deliveries that belong to one consumer of a group, and those of them whose acks wait."""

    def __init__(self, link: _RedisLink, group: str, consumer: str, lease_secs: float) -> None:
        super().__init__(lambda receipt: (receipt.stream, receipt.entry_id))
        self._link, self._name, self._who, self._lease_secs = link, link.name, (group, consumer), lease_secs
        self.late = 0  # acks that came too late
        self._acked: dict[Delivery, None] = {}  # in their order

    @property
    def waiting_count(self) -> int:
        """How many acks wait."""
        return len(self._acked)

    def waiting_acks(self) -> Iterable[Delivery]:
        """Return a copy of the acks that wait, on any thread."""
        return self._acked.copy()

    def begin(self, events: SourceEvents) -> bool:
        """Begin to serve a consumer; see `Leases.begin`."""
        is_other = super().begin(events)
        if is_other:
            self._acked.clear()
        return is_other

    def ack_later(self, deliveries: Iterable[Delivery]) -> int:
        """Keep acks for `ack_commands`; return how many wait."""
        self._acked.update(dict.fromkeys(deliveries))
        return len(self._acked)

    def send_acks(self) -> None:
        """Send the acks that wait. After an error they still do."""
        self.forget_acked(self._link.send(*self.ack_commands()))

    def ack_commands(self) -> list[tuple[Any, ...]]:
        """Return the commands that ack what waits: by a script that checks the owner where a lease may be over."""
        sure_after = time.monotonic() - self._lease_secs * 0.8
        commands: list[tuple[Any, ...]] = []
        for stream, group in _by_stream(delivery for delivery in self._acked if delivery in self):
            ids = [delivery.receipt.entry_id for delivery in group]
            if min(delivery.receipt.renewed for delivery in group) > sure_after:
                commands.append(("XACK", stream, self._who[0], *ids))
            else:
                commands.append(("EVAL", _ACK_OWN, "1", stream, *self._who, *ids))
        return commands

    def forget_acked(self, replies: Sequence[Any]) -> None:
        """Read the answers to `ack_commands`. Where one is an error, all acks stay for the next time."""
        self._link.check(replies)
        late = sum(not delivery.receipt.is_trimmed for delivery in self._acked) - sum(replies)
        self.forget(self._acked)
        self._acked.clear()
        if late > 0:
            self.late += late
            _log.warning("%s: %d acks came too late: others have the entries and do the work again", self._name, late)

    def renew_all(self) -> None:
        """Renew all leases, and forget the deliveries that are lost."""
        self.renew(self)

    def renew(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Begin leases anew; forget the deliveries that are lost, and return them."""
        lost = self._set_idle(deliveries, "IDLE", "0")
        if lost:
            _log.warning("%s: %d leases are lost: others have the entries, or have done them", self._name, len(lost))
        return lost

    def end(self, deliveries: Sequence[Delivery]) -> None:
        """End leases, and forget the deliveries."""
        self._set_idle(deliveries, "TIME", "1")  # a millisecond after 1970
        self.forget(deliveries)

    def _set_idle(self, deliveries: Iterable[Delivery], option: str, number: str) -> list[Delivery]:
        held: list[Delivery] = []
        lost: list[Delivery] = []
        for delivery in deliveries:
            (held if delivery in self else lost).append(delivery)
        for stream, group in _by_stream(held):
            now = time.monotonic()
            receipts: list[EntryReceipt] = [delivery.receipt for delivery in group]
            ids = [receipt.entry_id for receipt in receipts]
            (answers,) = self._link.call(("EVAL", _SET_IDLE, "1", stream, *self._who, option, number, *ids))
            answers = self._take_back(stream, receipts, answers, (option, number))
            gone = [delivery for delivery, answer in zip(group, answers, strict=True) if answer == 0]
            self.forget(gone)
            lost += gone
            trimmed = []
            for receipt, answer in zip(receipts, answers, strict=True):
                if answer == 0:
                    continue
                receipt.renewed = now
                if answer == 2 and not receipt.is_trimmed:
                    receipt.is_trimmed = True
                    trimmed.append(receipt.entry_id.decode())
            if trimmed:
                _log.warning(
                    "%s: %d open messages of stream %r are no longer in it and live in this process alone: %s",
                    self._name,
                    len(trimmed),
                    stream,
                    ", ".join(trimmed[:5]),
                )
        return lost

    def _take_back(
        self, stream: str, receipts: Sequence[EntryReceipt], answers: Sequence[int], idle: tuple[str, str]
    ) -> list[int]:
        """Take back what is pending for nobody, though its lease is not over; return the answers after that.

        Nobody can have claimed it, so somebody removed this consumer from the group, and its entries with it. Where the
        lease may be over, another consumer has claimed and acked the entry.
        """
        sure_after = time.monotonic() - self._lease_secs
        gone = [
            receipt.entry_id
            for receipt, answer in zip(receipts, answers, strict=True)
            if answer == 3 and receipt.renewed > sure_after
        ]
        back: set[bytes] = set()
        if gone:
            (taken,) = self._link.call(("XCLAIM", stream, *self._who, "0", *gone, *idle, "FORCE", "JUSTID"))
            back.update(taken)
            _log.warning(
                "%s: %d open messages of stream %r were pending for nobody, as after XGROUP DELCONSUMER; %r has taken"
                " them back",
                self._name,
                len(back),
                stream,
                self._who[1],
            )
        return [
            answer if answer != 3 else int(receipt.entry_id in back)
            for receipt, answer in zip(receipts, answers, strict=True)
        ]


class RedisStreamsPublisher(Publisher):
    """Adds entries to a Redis stream, as `RedisStreams` reads them: a field for the value, and one for each header.

    Redis confirms an entry when it is in memory; whether it outlives a crash is up to the server's ``appendfsync``.
    The key of a message becomes a field ``key``.

    Parameters
    ----------
    server : str or redis.Redis
        As for `RedisStreams`.
    stream : str
        For the messages whose `Outgoing.to` is None.
    field : str
        The field that holds the value.
    maxlen : int, optional
        About how many entries the stream keeps (``MAXLEN ~``). Entries that nobody has read yet are removed, too.
    replicas : int
        So many replicas must have the entries before they count as written (``WAIT``).
    replicas_secs : float
        For how long to wait for the replicas; less than the client's ``socket_timeout``.
    **options
        More options of ``redis.Redis.from_url``.
    """

    def __init__(
        self,
        server: str | redis.Redis = _URL,
        *,
        stream: str,
        field: str = "value",
        maxlen: int | None = None,
        replicas: int = 0,
        replicas_secs: float = 2.0,
        **options: Any,
    ) -> None:
        self._stream, self._field = stream, field
        self._address = ServerAddress(server, options)
        self._trim = () if maxlen is None else ("MAXLEN", "~", str(maxlen))
        self._replicas, self._wait = replicas, ("WAIT", str(replicas), str(int(replicas_secs * 1000)))
        super().__init__(f"Redis stream {stream!r}")
        self._link = _RedisLink(self.name, server, options)
        if replicas and replicas_secs >= self._link.answer_secs:
            raise ArgumentValueError(
                f"{self.name}: replicas_secs is {replicas_secs:g} and the client's socket_timeout is"
                f" {self._link.answer_secs:g}, so the connection would end before the replicas have answered; lower"
                " replicas_secs, or raise socket_timeout"
            )

    def connect(self) -> None:
        """Connect."""
        self._link.open()

    def write(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Add entries with XADD, many at a time, and wait for the server's answer to each."""
        outcomes: list[Exception | None] = []
        for begin in range(0, len(messages), _BATCH):
            outcomes += self._publish(messages[begin : begin + _BATCH])
        return outcomes

    def _publish(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        commands = [
            ("XADD", message.to or self._stream, *self._trim, "*", *_fields_of(message, self._field))
            for message in messages
        ]
        try:
            self._link.ensure_open()
            replies = self._link.send(*commands, *([self._wait] if self._replicas else []))
        except AckerError as error:
            return [unconfirmed(error) for _ in messages]
        count = replies.pop() if self._replicas else 0
        outcomes: list[Exception | None] = [
            unconfirmed(self._link.translated(reply)) if isinstance(reply, Exception) else None for reply in replies
        ]
        if isinstance(count, Exception) or count < self._replicas:
            had = f"{count} of {self._replicas} replicas have it"
            outcomes = [outcome or PublishError(f"{self.name}: {had}") for outcome in outcomes]
        return outcomes

    def reader(self, *, lease_secs: float = 60.0) -> Source:  # noqa: ARG002
        """Return a source of all entries of the stream, whatever groups have done with them. An ack deletes one."""
        return StreamEntries(self._address.server, self._stream, self._field, self._address.options)

    def disconnect(self) -> None:
        """Disconnect."""
        self._link.close()


class StreamEntries(StoredMessages):
    """All entries of a stream, without a group. They have no lease; an ack deletes them.

    Parameters
    ----------
    server : str or redis.Redis
    stream : str
    field : str
    options : mapping
        As for `RedisStreams`.
    """

    def __init__(self, server: str | redis.Redis, stream: str, field: str, options: Mapping[str, Any]) -> None:
        super().__init__(f"Redis stream {stream!r}")
        self._stream, self._wanted = stream, field.encode()
        self._link = _RedisLink(self.name, server, options)
        self._begin = b"-"

    def connect(self) -> None:
        """Connect."""
        self._begin = b"-"
        self._link.open()

    def read(self, limit: int) -> Sequence[Delivery]:
        """Return the next entries."""
        (rows,) = self._link.call(("XRANGE", self._stream, self._begin, "+", "COUNT", str(min(limit, _BATCH))))
        if rows:
            self._begin = b"(" + rows[-1][0]
        return [self._deliver(*row) for row in rows]

    def _deliver(self, entry_id: bytes, pairs: Sequence[bytes]) -> Delivery:
        fields = _fields_in(pairs)
        return Delivery(f"{self._stream}/{entry_id.decode()}", *_message_of(fields, self._wanted), 1, fields, entry_id)

    def remove(self, deliveries: Sequence[Delivery]) -> None:
        """Delete entries."""
        for begin in range(0, len(deliveries), _BATCH):
            chunk = deliveries[begin : begin + _BATCH]
            self._link.call(("XDEL", self._stream, *(delivery.receipt for delivery in chunk)))

    def check_removal(self) -> None:
        """Delete an entry that no stream can have: the server looks whether this user may."""
        self._link.call(("XDEL", self._stream, "0-0"))

    def close(self) -> None:
        """Disconnect."""
        self._link.close()


class _RedisLink(Link[Any]):
    """One connection to Redis. It sends nothing twice by itself: entries that are read twice would belong to nobody."""

    def __init__(self, name: str, server: str | redis.Redis, options: Mapping[str, Any]) -> None:
        if isinstance(server, str):
            server = _client_of(name, server, options)
        elif options:
            raise ArgumentValueError(f"{name}: options go with a URL, not with a client: {', '.join(sorted(options))}")
        pool = server.connection_pool
        self._options = {**pool.connection_kwargs, "retry": Retry(NoBackoff(), 0)}
        for option in ("socket_timeout", "socket_connect_timeout"):
            if self._options.get(option) is None:
                self._options[option] = _SOCKET_TIMEOUT_SECS
        self.answer_secs: float = self._options["socket_timeout"]
        self._connection_class = pool.connection_class
        self._connection_class(**self._options)  # An unknown option is an error now, not when the consumer runs.
        super().__init__(name, [self._options.get("password")])

    def connect(self) -> Any:
        connection = self._connection_class(**self._options)
        try:
            connection.connect()
        except redis.RedisError as error:
            raise self.translated(error) from error
        return connection

    def disconnect(self, client: Any) -> None:
        client.disconnect()

    def send(self, *commands: Sequence[Any]) -> list[Any]:
        """Send commands in one go; return the answer to each, which may be a `redis.ResponseError`."""
        connection = self.client
        done = False
        try:
            connection.send_packed_command(connection.pack_commands(commands))
            replies = [self._reply(connection) for _ in commands]
            done = True
        except redis.RedisError as error:
            raise self.translated(error) from error
        finally:
            if not done:  # An answer that is still to come would be taken for that to the next command.
                self.close()
        return replies

    @staticmethod
    def _reply(connection: Any) -> Any:
        try:
            return connection.read_response(disable_decoding=True)
        except redis.ResponseError as error:
            return error

    def call(self, *commands: Sequence[Any]) -> list[Any]:
        """Send commands in one go; return the answers, or raise the first error among them."""
        replies = self.send(*commands)
        self.check(replies)
        return replies

    def check(self, replies: Iterable[Any]) -> None:
        """Raise the first error among these answers."""
        for reply in replies:
            if isinstance(reply, redis.ResponseError):
                raise self.translated(reply) from reply

    def translated(self, error: Exception) -> AckerError:
        """Return what a consumer makes of an error of redis-py."""
        text = self.hide(error)
        if isinstance(error, redis.AuthenticationError):
            return SourceError(f"{self.name}: Redis refuses the credentials: {text}")
        text = f"{self.name}: {text}"
        passing = isinstance(error, _PASSING) or any(code in text for code in _PASSING_CODES)
        if isinstance(error, redis.ResponseError) and not passing:
            return SourceError(text)
        return ConnectionLostError(text)


def _client_of(name: str, url: str, options: Mapping[str, Any]) -> redis.Redis:
    with contextlib.suppress(ValueError):
        return redis.Redis.from_url(url, **options)
    # The client's own error may show what follows a character of the password that is not encoded.
    raise ArgumentValueError(
        f"{name}: not a URL of redis-py, such as redis://user:password@host:6379/0; write characters such as"
        " / and # of a password as %2F and %23"
    )


def _by_stream(deliveries: Iterable[Delivery]) -> Iterator[tuple[str, list[Delivery]]]:
    """Yield deliveries, those of one stream together, at most `_BATCH` at a time."""
    found: dict[str, list[Delivery]] = {}
    for delivery in deliveries:
        found.setdefault(delivery.receipt.stream, []).append(delivery)
    for stream, all_ in found.items():
        for begin in range(0, len(all_), _BATCH):
            yield stream, all_[begin : begin + _BATCH]


def _fields_in(pairs: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return the fields of an entry, which Redis writes as their names and contents in turn."""
    flat = iter(pairs)
    return dict(zip(flat, flat))  # noqa: B905 - these are pairs


def _message_of(fields: Mapping[bytes, bytes], wanted: bytes | None) -> tuple[bytes, dict[str, Any]]:
    """Return the value and the headers of an entry."""
    if wanted is None:
        names = {
            name.decode(errors="surrogateescape"): content.decode(errors="surrogateescape")
            for name, content in fields.items()
        }
        return json.dumps(names).encode(), {}
    if len(fields) == 1 and wanted in fields:
        return fields[wanted], {}
    headers = {
        name.decode(errors="backslashreplace"): _text_of(content) for name, content in fields.items() if name != wanted
    }
    return fields.get(wanted, b""), headers


def _text_of(content: bytes) -> str | bytes:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def _fields_of(message: Outgoing, field: str) -> Iterator[str | bytes]:
    """Yield the fields of an entry and their contents in turn."""
    for name, content in message.headers.items():
        yield _bytes_of(name)
        yield _bytes_of(content)
    if message.key is not None:
        yield "key"
        yield message.key
    yield field
    yield message.value


def _bytes_of(content: Any) -> bytes:
    return content if isinstance(content, bytes) else header_text(content).encode(errors="backslashreplace")
