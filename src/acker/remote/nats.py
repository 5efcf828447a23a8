"""Replies over NATS JetStream: a consumer of one stream for each process that waits. The client is nats-py."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

from acker.errors import AckerError, ArgumentValueError, ConnectionLostError, RuntimeStateError
from acker.remote.ledger import JOBS_MAX
from acker.remote.replies import GoneError, Inbox, Replies, check_expiry

try:
    from nats.aio.msg import Msg
    from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy, RetentionPolicy, StreamConfig
    from nats.js.errors import NotFoundError

    from acker.remote.nats_link import ANSWER_SECS, NATSLink
except ImportError as error:
    raise ImportError("acker.remote.nats needs nats-py: pip install 'acker[nats]'") from error

__all__ = ["NATSReplies"]

_PULL_SECS: Final = 2.0  # how long a pull request stays with the server
_ACK_WAIT_SECS: Final = 5.0  # after which reports come again that a lost connection has taken along
_READ_MAX: Final = 500
_NS: Final = 1_000_000_000
_STREAM_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")

_MakeLink = Callable[[], NATSLink]


class NATSReplies(Replies):
    """Reports that go through a JetStream stream of a NATS server, 2.9 or newer.

    The stream is made if it is missing. Each process that waits has a consumer of it, which outlives its connection
    and a restart of the server, and expires when nobody has read from it for a while. The stream keeps reports only
    while their consumer is there, so what a killed process leaves behind goes by itself, and jobs learn that nobody
    waits any more. If the consumer is lost, all open trees fail at once.

    They do not work where gevent has patched threads.

    Parameters
    ----------
    servers : str or list of str
        URLs of nats-py, such as ``nats://user:password@host:4222``. The same server or cluster for all processes.
    stream : str
        The name of the stream, and the first token of its subjects. The same for all processes. Make it yourself if it
        needs replicas or limits: with the subjects ``<stream>.*``, the retention policy interest, and where there are
        limits, the discard policy new.
    expiry_secs : float
        A process that waits and is not connected for so long loses its consumer.
    report_secs : float
        How long a job tries to report when the server does not answer. Its tree times out after that.
    jobs_max : int
        A tree with more jobs fails.
    secret, skip_gone
        See `acker.remote.Replies`.
    **options
        More options of ``nats.connect``, such as ``tls``, ``user_credentials`` or ``token``.
    """

    def __init__(
        self,
        servers: str | list[str],
        *,
        stream: str = "acker-replies",
        expiry_secs: float = 60.0,
        report_secs: float = 30.0,
        jobs_max: int = JOBS_MAX,
        secret: str | bytes | None = None,
        skip_gone: bool = False,
        **options: Any,
    ) -> None:
        super().__init__("replies over NATS", report_secs, jobs_max, secret, skip_gone)
        check_expiry(expiry_secs)
        if not _STREAM_NAME.fullmatch(stream):
            raise ArgumentValueError(f"stream: expected letters, digits, - and _, got {stream!r}")
        _refuse_gevent()
        # The URLs and options, which may hold passwords, stay within it.
        self._make_link: _MakeLink = lambda: NATSLink(self.name, servers, options)
        self._stream = stream
        self._expiry_secs = expiry_secs
        # One in each process, as neither a connection nor its thread survives a fork.
        self._links: dict[int, _SharedLink] = {}

    def _shared_link(self) -> _SharedLink:
        process = os.getpid()
        return self._links.get(process) or self._links.setdefault(process, _SharedLink(self._make_link))

    def send(self, address: bytes, report: bytes) -> bool:
        """Store a report, unless its consumer is gone."""
        return self._shared_link().call(lambda link: _send(link, self._stream, address, report))

    def has(self, address: bytes) -> bool:
        """Return whether a consumer is still there."""
        return self._shared_link().call(lambda link: _has(link, self._stream, address))

    def open_inbox(self) -> Inbox:
        """Make a consumer, and the stream if it is missing."""
        return _NATSInbox(self._make_link(), self._stream, self._expiry_secs)

    def close(self) -> None:
        """Fail the trees that are open in this process, remove its consumer, and disconnect."""
        super().close()
        link = self._links.pop(os.getpid(), None)
        if link is not None:
            link.close()


async def _send(link: NATSLink, stream: str, address: bytes, report: bytes) -> bool:
    # The stream takes any report, and drops it if there is no consumer for it. So both are asked, at a time: an address
    # that was lost never comes back, and its process knows.
    context = link.client.jetstream(timeout=ANSWER_SECS)
    subject = f"{stream}.{address.hex()}"
    outcomes: tuple[Any, ...] = await asyncio.gather(
        _has(link, stream, address), context.publish(subject, report, stream=stream), return_exceptions=True
    )
    if outcomes[0] is False:
        return False
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return True


async def _has(link: NATSLink, stream: str, address: bytes) -> bool:
    try:
        await link.client.jsm(timeout=ANSWER_SECS).consumer_info(stream, address.hex())
    except NotFoundError:
        return False
    return True


class _SharedLink:
    """The connection over which the jobs of a process report, on which any number of threads wait for their answers."""

    def __init__(self, make_link: _MakeLink) -> None:
        self._make_link = make_link
        self._opening = threading.Lock()
        self._link: NATSLink | None = None
        self._failures = 0
        self._failure: ConnectionLostError | None = None

    def call(self, work: Callable[[NATSLink], Coroutine[Any, Any, bool]]) -> bool:
        """Run a coroutine with the link, and return its result."""
        with _translated():
            link = self._opened()
            return link.run(work(link))

    def _opened(self) -> NATSLink:
        failures = self._failures
        with self._opening:
            if self._link is not None and self._link.is_open:
                return self._link
            if self._failure is not None and failures < self._failures:
                # Else each of many threads would wait, one after the other, for a server that does not answer.
                raise ConnectionLostError(str(self._failure))
            self._drop()
            link = self._make_link()
            try:
                link.open()
            except AckerError as error:
                self._failures += 1
                self._failure = ConnectionLostError(str(error))
                raise
            self._link = link
            return link

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def close(self) -> None:
        with self._opening:
            self._drop()


class _NATSInbox(Inbox):
    def __init__(self, link: NATSLink, stream: str, expiry_secs: float) -> None:
        super().__init__()
        self._link = link
        self._stream = stream
        self._name = self.address.hex()
        self._reply_to = ""
        # The thread of the link appends; whoever reads takes.
        self._arrived: deque[Msg] = deque()
        self._news = threading.Event()
        self._seen: list[str] = []  # the subjects that ack what the last call returned
        self._left = 0  # messages that the server may still send for the last request
        self._request_end = 0.0
        with _translated():
            link.open(self._news.set)
            try:
                link.run(self._create(expiry_secs))
                link.run(self._subscribe())
            except AckerError:
                link.close()
                raise

    async def _create(self, expiry_secs: float) -> None:
        manager = self._link.client.jsm(timeout=ANSWER_SECS)
        subjects = f"{self._stream}.*"
        try:
            _check(self._stream, (await manager.stream_info(self._stream)).config)
        except NotFoundError:
            await manager.add_stream(
                StreamConfig(
                    name=self._stream,
                    subjects=[subjects],
                    retention=RetentionPolicy.INTEREST,
                    discard=DiscardPolicy.NEW,
                )
            )
        # Each report is acked by itself. An ack of all before it would also ack those that a lost connection has taken
        # along, and nobody has read.
        consumer = ConsumerConfig(
            durable_name=self._name,
            filter_subject=f"{self._stream}.{self._name}",
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=_ACK_WAIT_SECS,
            max_ack_pending=-1,
            inactive_threshold=expiry_secs,
        )
        await manager.add_consumer(self._stream, consumer)

    async def _subscribe(self) -> None:
        client = self._link.client
        self._left, self._request_end = 0, 0.0
        self._reply_to = client.new_inbox()
        await client.subscribe(self._reply_to, cb=self._receive, pending_bytes_limit=0, pending_msgs_limit=0)

    async def _receive(self, message: Msg) -> None:
        self._arrived.append(message)
        self._news.set()

    def read(self, wait_secs: float) -> list[bytes]:
        with _translated():
            return self._read(wait_secs)

    def _read(self, wait_secs: float) -> list[bytes]:
        if not self._link.is_open:
            self._link.open(self._news.set)
            self._check_there()
            self._link.run(self._subscribe())
        if self._left > 0 and time.monotonic() > self._request_end + ANSWER_SECS:
            # Nobody answers a request to a consumer that is gone.
            self._check_there()
            self._left = 0
        self._link.run(self._ask())
        self._news.wait(wait_secs)
        self._news.clear()
        found = self._take()
        if not found:
            self._link.check()
        return found

    def _check_there(self) -> None:
        if not self._link.run(_has(self._link, self._stream, self.address)):
            raise GoneError(
                "the consumer of the replies is gone: it or its stream was deleted, NATS has lost its data, or this"
                " process was not connected for longer than expiry_secs"
            )

    async def _ask(self) -> None:
        """Ack what was read, and ask for more unless the server has a request."""
        client = self._link.client
        for subject in self._seen:
            await client.publish(subject, b"+ACK")
        self._seen = []
        if self._left <= 0:
            self._left, self._request_end = _READ_MAX, time.monotonic() + _PULL_SECS
            request = {"batch": _READ_MAX, "expires": int(_PULL_SECS * _NS)}
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._name}"
            await client.publish(subject, json.dumps(request).encode(), self._reply_to)

    def _take(self) -> list[bytes]:
        """Return the reports that have arrived."""
        found = []
        while self._arrived:
            message = self._arrived.popleft()
            if message.reply.startswith("$JS.ACK."):
                self._left -= 1
                self._seen.append(message.reply)
                found.append(message.data)
                continue
            # Any other message says how a request has ended.
            status = (message.headers or {}).get("Status", "")
            if status != "100":  # the server lives
                self._left = 0
            if status not in {"100", "408"}:
                self._check_there()
        return found

    def wake(self) -> None:
        self._news.set()

    def close(self) -> None:
        with contextlib.suppress(AckerError):
            if self._link.is_open:
                self._link.run(self._link.client.jsm(timeout=ANSWER_SECS).delete_consumer(self._stream, self._name))
        self._link.close()


def _refuse_gevent() -> None:
    """Refuse threads that are greenlets: their event loops would be those of one thread, which has only one."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("threading"):
        raise RuntimeStateError(
            "replies over NATS need threads, and gevent has put greenlets in their place: use another pool, or"
            " acker.remote.redis.RedisReplies"
        )


def _check(stream: str, config: StreamConfig) -> None:
    """Refuse a stream that would lose reports, or would keep them for ever."""
    limits = (config.max_msgs, config.max_bytes, config.max_msgs_per_subject)
    drops = config.discard != DiscardPolicy.NEW and any(limit is not None and limit > 0 for limit in limits)
    if config.retention != RetentionPolicy.INTEREST or drops or config.max_age or config.no_ack:
        raise ArgumentValueError(
            f"stream: replies over NATS need a stream with the retention policy interest, with acks, without max_age,"
            f" and with the discard policy new if it has limits; {stream!r} is another one, so name one that is missing"
        )


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (ArgumentValueError, ConnectionLostError):
        raise
    except AckerError as error:
        # Any error of a server can pass: it starts, is out of memory, or its settings change.
        raise ConnectionLostError(str(error)) from error
