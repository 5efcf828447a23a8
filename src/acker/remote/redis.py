"""Replies over Redis: a stream for each process that waits. The client is redis-py."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from acker.errors import ArgumentValueError, ConnectionLostError
from acker.remote.ledger import JOBS_MAX
from acker.remote.replies import GoneError, Inbox, Replies, check_expiry

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as error:
    raise ImportError("acker.remote.redis needs redis-py: pip install 'acker[redis]'") from error

__all__ = ["RedisReplies"]

_SOCKET_TIMEOUT_SECS: Final = 10.0
_FIELD: Final = b"report"
# Of an entry that only ends a wait.
_WAKE: Final = b"wake"
_READ_MAX: Final = 500
# A command as the server reads it.
_XADD: Final = (
    b"*6\r\n$4\r\nXADD\r\n$%d\r\n%b\r\n$10\r\nNOMKSTREAM\r\n$1\r\n*\r\n$6\r\n" + _FIELD + b"\r\n$%d\r\n%b\r\n"
)


class RedisReplies(Replies):
    """Reports that go through a Redis server, 6.2 or newer.

    Each process that waits reads one stream, and renews its expiry. So what it leaves behind when it is killed goes by
    itself, and jobs learn that nobody waits any more. If Redis loses the stream, as in a restart without persistence,
    all open trees fail at once.

    Parameters
    ----------
    url : str
        Of redis-py: ``redis://``, ``rediss://`` or ``unix://``. The same server for all processes.
    prefix : str
        Of the names of the streams. The same for all processes.
    expiry_secs : float
        A process that waits and stands still for so long loses its stream.
    report_secs : float
        How long a job tries to report when Redis does not answer. Its tree times out after that.
    jobs_max : int
        A tree with more jobs fails.
    secret, skip_gone
        See `acker.remote.Replies`.
    **options
        More options of ``redis.Redis.from_url``, such as ``ssl_ca_certs`` or ``password``.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "acker:replies:",
        expiry_secs: float = 60.0,
        report_secs: float = 30.0,
        jobs_max: int = JOBS_MAX,
        secret: str | bytes | None = None,
        skip_gone: bool = False,
        **options: Any,
    ) -> None:
        # Without the URL, which may hold a password.
        super().__init__("replies over Redis", report_secs, jobs_max, secret, skip_gone)
        check_expiry(expiry_secs)
        # Those of a URL win over arguments.
        if fixed := sorted({"protocol", "decode_responses"} & parse_qs(urlsplit(url).query).keys()):
            raise ArgumentValueError(f"the URL of replies sets {' and '.join(fixed)}: leave that out, acker sets it")
        self._prefix = prefix
        self._expiry_ms = round(1000 * expiry_secs)
        # This class tries again by itself, and a pool of redis-py may be used from several threads and after forks.
        settings = {"socket_timeout": _SOCKET_TIMEOUT_SECS, "retry": Retry(NoBackoff(), 0), **options}
        self._client = redis.Redis.from_url(url, **settings, protocol=2, decode_responses=False)
        self._connections = _ReportConnections(self._client.connection_pool)

    def _key(self, address: bytes) -> str:
        return self._prefix + address.hex()

    def send(self, address: bytes, report: bytes) -> bool:
        """Store a report, unless its stream is gone."""
        with _translated():
            return self._connections.call(_XADD % (*_sized(self._key(address).encode()), *_sized(report))) is not None

    def has(self, address: bytes) -> bool:
        """Return whether a stream is still there."""
        with _translated():
            return bool(self._client.exists(self._key(address)))

    def open_inbox(self) -> Inbox:
        """Make a stream."""
        return _RedisInbox(self._client, self._prefix, self._expiry_ms)

    def close(self) -> None:
        """Fail the trees that are open in this process, remove its stream, and disconnect."""
        super().close()
        self._connections.close()
        self._client.close()


class _ReportConnections:
    """Connections for reports. A client of redis-py takes three times as long for a command, at the cost of each job.

    Parameters
    ----------
    pool : redis.ConnectionPool
        Makes them.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        # Those that no thread uses, of each process, as they do not survive a fork.
        self._free: dict[int, deque[Any]] = {}

    def call(self, command: bytes) -> Any:
        """Send a command, and return the answer; of those that may be sent twice."""
        process = os.getpid()
        free = self._free.get(process)
        if free is None:
            free = self._free.setdefault(process, deque())
        try:
            connection, is_new = free.pop(), False
        except IndexError:
            connection, is_new = self._pool.make_connection(), True
        try:
            answer = self._ask(connection, command, is_new)
        except BaseException:
            # As after a KeyboardInterrupt: else the next command would read the answer of this one.
            connection.disconnect()
            raise
        finally:
            free.append(connection)
        return answer

    @staticmethod
    def _ask(connection: Any, command: bytes, is_new: bool) -> Any:
        if not is_new:
            try:
                connection.send_packed_command([command], check_health=False)
                return connection.read_response()
            except redis.ConnectionError:
                connection.disconnect()  # the server may have closed it meanwhile, as after its `timeout`
        connection.send_packed_command([command], check_health=False)
        return connection.read_response()

    def close(self) -> None:
        """Disconnect in this process."""
        for connection in self._free.pop(os.getpid(), ()):
            connection.disconnect()


def _sized(text: bytes) -> tuple[int, bytes]:
    return len(text), text


class _RedisInbox(Inbox):
    def __init__(self, client: redis.Redis, prefix: str, expiry_ms: int) -> None:
        super().__init__()
        self._client = client
        self._key = prefix + self.address.hex()
        self._expiry_ms = expiry_ms
        self._seen: list[bytes] = []
        with _translated(), client.pipeline(transaction=True) as pipe:
            pipe.xadd(self._key, {_FIELD: b""}, maxlen=0, approximate=False)  # makes it, and leaves it empty
            pipe.pexpire(self._key, expiry_ms)
            pipe.execute()

    def read(self, wait_secs: float) -> list[bytes]:
        # What was read is deleted, and not told apart by its id: so a clock of the server that goes back hides nothing.
        with _translated(), self._client.pipeline(transaction=False) as pipe:
            pipe.pexpire(self._key, self._expiry_ms)
            if self._seen:
                pipe.xdel(self._key, *self._seen)
            pipe.xread({self._key: 0}, count=_READ_MAX, block=max(1, round(1000 * wait_secs)))
            is_there, *_, found = pipe.execute()
        self._seen = []
        if not is_there:
            raise GoneError(
                "the reply stream is gone: Redis was restarted without its data, the stream was deleted, or evicted by"
                " a maxmemory-policy such as volatile-lru, the clock of the server jumped ahead, or this process stood"
                " still for longer than expiry_secs"
            )
        entries = found[0][1] if found else []
        self._seen = [entry_id for entry_id, _ in entries]
        return [(fields or {}).get(_FIELD, b"") for _, fields in entries if _WAKE not in (fields or {})]

    def wake(self) -> None:
        with contextlib.suppress(redis.RedisError, OSError):
            self._client.xadd(self._key, {_WAKE: b""}, nomkstream=True)

    def close(self) -> None:
        with contextlib.suppress(redis.RedisError, OSError):
            self._client.delete(self._key)


@contextlib.contextmanager
def _translated() -> Any:
    try:
        yield
    except (redis.RedisError, OSError) as error:
        # Any error of a server can pass: it loads its data, is out of memory, or changes its master.
        raise ConnectionLostError(f"replies over Redis: {type(error).__name__}: {error}") from error
