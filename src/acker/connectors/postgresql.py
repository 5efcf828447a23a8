"""PostgreSQL: a table as a queue, read with SKIP LOCKED, and a publisher. The client is psycopg 3."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from acker.connectors.headers import header_json
from acker.connectors.leases import Leases, check_lease_secs, owner_name
from acker.connectors.link import Link, ServerAddress
from acker.connectors.publisher import Outgoing, Publisher, unconfirmed
from acker.connectors.source import Delivery, Origin, Source, SourceEvents
from acker.connectors.stored_messages import StoredMessages
from acker.errors import AckerError, ArgumentValueError, ConnectionLostError, PublishError, SourceError

try:
    import psycopg
    from psycopg import sql
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.rows import dict_row
    from psycopg.waiting import Ready, wait_selector
except ImportError as error:
    raise ImportError("acker.connectors.postgresql needs psycopg: pip install 'acker[postgresql]'") from error

__all__ = ["PostgreSQL", "PostgreSQLPublisher", "table_sql"]

_log: Final = logging.getLogger("acker.connectors")

_TABLE: Final = "jobs"
# So that a host or a network that is gone is noticed, unless the connection string says otherwise.
_NETWORK: Final = {
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "tcp_user_timeout": 20_000,
    "application_name": "acker",
}
_ANSWER_SECS_MAX: Final = 30.0
_LOOK_SECS: Final = 0.1
_CLAIM_COUNT_MAX: Final = 500
_INSERT_COUNT_MAX: Final = 500
_INSERT_BYTES_MAX: Final = 16 << 20
# Parts of the server's answers to a refused session that a later attempt would get again.
_REFUSALS: Final = ("authentication", "does not exist", "pg_hba.conf", "permission denied", "not permitted", "password")
_DDL: Final = """\
CREATE TABLE IF NOT EXISTS {table} (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    value bytea NOT NULL,
    key bytea,
    headers jsonb NOT NULL DEFAULT '{{}}',
    due_at timestamptz DEFAULT now(),
    attempts integer NOT NULL DEFAULT 0,
    owner text,
    done_at timestamptz,
    dead_at timestamptz,
    reason text
);
CREATE INDEX IF NOT EXISTS {index} ON {table} (due_at, id);
"""
_CLAIM: Final = """
WITH next AS MATERIALIZED (
    SELECT id, due_at, owner FROM {table}
    WHERE due_at <= now() ORDER BY due_at, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
UPDATE {table} AS job SET due_at = now() + make_interval(secs => %(secs)s), owner = %(owner)s, attempts = attempts + 1
FROM next WHERE job.id = next.id
RETURNING job.id, value, key, headers, attempts, next.due_at, next.owner AS owner_before
"""
# The owner and the count of attempts name one claim: the next claim of the row has another count.
_MINE: Final = """
FROM unnest(%(ids)s::bigint[], %(attempts)s::integer[]) AS mine (id, attempts)
WHERE job.id = mine.id AND job.attempts = mine.attempts AND owner = %(owner)s
"""
_MOVE: Final = "UPDATE {table} AS job SET due_at = now() + make_interval(secs => %(secs)s)"
_EXTEND: Final = f"{_MOVE} {_MINE} RETURNING job.id"
_GIVE_BACK: Final = f"{_MOVE}, owner = NULL {_MINE}"
# A stop is no attempt.
_RELEASE: Final = f"{_MOVE}, owner = NULL, attempts = job.attempts - 1 {_MINE}"
_DELETE: Final = f"DELETE FROM {{table}} AS job {_MINE.replace('FROM', 'USING', 1)}"
_KEEP: Final = f"UPDATE {{table}} AS job SET due_at = NULL, owner = NULL, done_at = now() {_MINE}"
_GIVE_UP: Final = f"""
UPDATE {{table}} AS job SET due_at = NULL, owner = NULL, dead_at = now(), reason = %(reason)s {_MINE}
"""
_READ: Final = """
SELECT id, value, headers, attempts FROM {table}
WHERE id > %(after)s AND done_at IS NULL AND dead_at IS NULL ORDER BY id LIMIT %(limit)s
"""
_REMOVE: Final = "DELETE FROM {table} WHERE id = ANY(%(ids)s::bigint[])"
_INSERT: Final = """
INSERT INTO {table} (value, key, headers)
SELECT * FROM unnest(%(values)b::bytea[], %(keys)b::bytea[], %(headers)s::jsonb[])
"""


def table_sql(table: str = _TABLE) -> str:
    """Return the statements that create a queue's table and its index, for a migration.

    =========== =====================================================================================================
    column      meaning
    =========== =====================================================================================================
    `id`        a number; the key of the message is ``table/id``
    `value`     the body
    `key`       `Outgoing.key`
    `headers`   a JSON object
    `due_at`    from then on any consumer may claim the row; while it is claimed, the end of the lease; NULL: never
    `attempts`  how often the row has been claimed
    `owner`     the consumer that holds the lease
    `done_at`   when it was acked, if done rows are kept
    `dead_at`   when it was given up, and `reason` says why
    =========== =====================================================================================================

    A program adds a message with ``INSERT INTO jobs (value) VALUES (...)``, in whatever transaction it likes; with a
    `due_at` in the future the message is delivered then.
    """
    return _for_table(_DDL, table).as_string(None)


class RowReceipt(NamedTuple):
    """The name of one claim of a row."""

    row_id: int
    attempts: int


class PostgreSQL(Source):
    """Rows of a table, claimed with ``SELECT ... FOR UPDATE SKIP LOCKED`` in short transactions.

    A claim gives the row a lease: its `due_at` moves to the end of the lease. Nobody else claims it until then, and no
    transaction stays open meanwhile. An ack deletes the row. A failed message becomes due again after its back-off, so
    another consumer may have the next attempt. A message that failed too often keeps its row, with `dead_at` and
    `reason`.

    Parameters
    ----------
    conninfo : str
        A connection string or URL of libpq. Empty: the variables ``PGHOST`` and so on.
    table : str
        The table of the queue, or ``schema.table``. `table_sql` says what it looks like.
    create : bool
        Whether to create the table if it is missing.
    keep_done : bool
        Whether acked rows stay, with `done_at`.
    lease_secs : float
    poll_secs : float
        How long to wait until the next look at a table where nothing was due.
    **options
        More options of ``psycopg.connect``, such as ``password`` or ``prepare_threshold``.
    """

    redelivers = True

    def __init__(
        self,
        conninfo: str = "",
        *,
        table: str = _TABLE,
        create: bool = False,
        keep_done: bool = False,
        lease_secs: float = 60.0,
        poll_secs: float = 0.2,
        **options: Any,
    ) -> None:
        self.name = f"PostgreSQL table {table!r}"
        self.lease_secs: float = check_lease_secs(lease_secs)
        self.wait_secs_max = self._poll_secs = poll_secs
        self._table, self._create = table, create
        self._address = ServerAddress(conninfo, options)
        self._settle = _KEEP if keep_done else _DELETE
        self._owner = owner_name()
        self._link = _SQLLink(self.name, conninfo, options, min(lease_secs / 2, _ANSWER_SECS_MAX))
        self._woken = threading.Event()
        self._look_at = self._polled_at = 0.0
        self._leases: Leases[int] = Leases(lambda receipt: receipt.row_id)
        self._given_up: dict[int, tuple[Delivery, str]] = {}

    def open(self, events: SourceEvents, limit: int) -> None:  # noqa: ARG002
        """Connect, look at the table, and find out which deliveries still belong to this consumer."""
        if self._leases.begin(events):
            self._given_up.clear()
        self._link.open_for(self._table, create=self._create)
        self.extend(list(self._leases))
        self._give_up_all()
        self._look_at, self._polled_at = 0.0, time.monotonic()

    def poll(self, limit: int, wait_secs: float) -> Sequence[Delivery]:
        """Claim rows that are due. Where there are none, wait."""
        found: list[Delivery] = []
        # A process that stood still would claim its own open rows: let it renew its leases first.
        now, before = time.monotonic(), self._polled_at
        self._polled_at = now
        if self._leases and now - before > self.lease_secs:
            return found
        if limit > 0 and now >= self._look_at:
            found = self._claim(min(limit, _CLAIM_COUNT_MAX))
            if not found:
                self._look_at = time.monotonic() + self._poll_secs
        if not found:
            until_look = self._look_at - time.monotonic() if limit > 0 else wait_secs
            self._woken.wait(max(0.0, min(wait_secs, until_look)))
            self._woken.clear()
        return found

    def _claim(self, limit: int) -> list[Delivery]:
        values = {"limit": limit, "secs": self.lease_secs, "owner": self._owner}
        rows = self._link.run(_CLAIM, self._table, values).fetchall()
        rows.sort(key=lambda row: (row["due_at"], row["id"]))
        # A row that was given back has no owner.
        taken = [row for row in rows if row["owner_before"] is not None]
        if taken:
            _log.warning(
                "%s: took over %d rows, such as %d of %s, whose leases were over: that process was killed, stood"
                " still, or had no connection",
                self.name,
                len(taken),
                taken[0]["id"],
                taken[0]["owner_before"],
            )
        return [self._deliver(row) for row in rows]

    def _deliver(self, row: dict[str, Any]) -> Delivery:
        delivery = _delivery_of(self._table, row, RowReceipt(row["id"], row["attempts"]))
        self._leases.add(delivery)
        return delivery

    def wake(self) -> None:
        """End a `poll` that waits."""
        self._woken.set()

    # ---- settling ---------------------------------------------------------------------------------------------------

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Delete the rows of these messages, or mark them as done."""
        self._end(self._settle, deliveries)

    def retry(self, delivery: Delivery, delay_secs: float) -> bool:
        """Give the message back, due after the delay. Without a connection the consumer keeps it."""
        try:
            self._end(_GIVE_BACK, [delivery], secs=delay_secs)
        except ConnectionLostError:
            return False
        return True

    def release(self, deliveries: Sequence[Delivery]) -> None:
        """Give messages back, due at once; this delivery does not count as an attempt."""
        if deliveries:
            self._end(_RELEASE, deliveries, secs=0.0)

    @property
    def can_give_up(self) -> bool:
        """Yes: the row stays, and is never due again."""
        return True

    def give_up(self, delivery: Delivery, reason: str) -> None:
        """Keep the row as dead, with the reason. Without a connection that waits for the next one."""
        self._given_up[delivery.receipt.row_id] = delivery, reason.replace("\0", "\\0")
        with contextlib.suppress(ConnectionLostError):  # The next `poll` raises it.
            self._give_up_all()

    def _give_up_all(self) -> None:
        while self._given_up:
            row_id, (delivery, reason) = next(iter(self._given_up.items()))
            if self.holds(delivery):
                self._end(_GIVE_UP, [delivery], reason=reason)
            del self._given_up[row_id]

    def _end(self, statement: str, deliveries: Sequence[Delivery], **values: Any) -> None:
        """Change rows that this consumer no longer needs."""
        mine = self._mine(deliveries)
        count = self._link.run(statement, self._table, {**mine, **values}).rowcount
        self._leases.forget(deliveries)
        if count < len(deliveries):
            self.late_acks += len(deliveries) - count
            _log.warning(
                "%s: %d of %d messages are settled too late: their leases were over, or their rows are gone",
                self.name,
                len(deliveries) - count,
                len(deliveries),
            )

    def extend(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Begin the leases anew; return the deliveries whose rows another consumer has claimed or settled."""
        held = [delivery for delivery in deliveries if self.holds(delivery)]
        if held:
            rows = self._link.run(_EXTEND, self._table, {**self._mine(held), "secs": self.lease_secs}).fetchall()
            renewed = {row["id"] for row in rows}
            self._leases.forget(delivery for delivery in held if delivery.receipt.row_id not in renewed)
        lost = [delivery for delivery in deliveries if not self.holds(delivery)]
        if lost:
            _log.warning("%s: %d leases are lost: other consumers have the rows", self.name, len(lost))
        return lost

    def _mine(self, deliveries: Sequence[Delivery]) -> dict[str, Any]:
        """Return what `_MINE` needs. In the order of the ids, so that no two consumers lock rows crosswise."""
        receipts = sorted(delivery.receipt for delivery in deliveries)
        ids, attempts = [receipt.row_id for receipt in receipts], [receipt.attempts for receipt in receipts]
        return {"ids": ids, "attempts": attempts, "owner": self._owner}

    def holds(self, delivery: Delivery) -> bool:
        """Return whether the row still belongs to this consumer: also while it is not connected."""
        return delivery in self._leases

    def origin(self, delivery: Delivery) -> Origin:
        """Return the table and the key of a row."""
        return Origin(self._table, delivery.raw["key"])

    def publisher(self) -> PostgreSQLPublisher:
        """Return a publisher to this table."""
        return PostgreSQLPublisher(self._address.server, table=self._table, **self._address.options)

    def close(self) -> None:
        """Disconnect. The rows stay claimed until their leases end."""
        self._link.close()


class PostgreSQLPublisher(Publisher):
    """Adds rows to a table, as `PostgreSQL` reads them. They are confirmed when their transaction is committed.

    Parameters
    ----------
    conninfo : str
    table : str
        For the messages whose `Outgoing.to` is None.
    create : bool
        Whether to create the table if it is missing.
    **options
        More options of ``psycopg.connect``.
    """

    def __init__(self, conninfo: str = "", *, table: str = _TABLE, create: bool = False, **options: Any) -> None:
        super().__init__(f"PostgreSQL table {table!r}")
        self._table, self._create = table, create
        self._address = ServerAddress(conninfo, options)
        self._link = _SQLLink(self.name, conninfo, options, _ANSWER_SECS_MAX)

    def connect(self) -> None:
        """Connect, and look at the table."""
        self._link.open_for(self._table, create=self._create)

    def write(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Insert rows, many in a transaction; where the server refuses one of them, each by itself."""
        outcomes: list[Exception | None] = [None] * len(messages)
        for table, numbers in _batches(messages):
            error = self._insert(table, [messages[number] for number in numbers])
            if error is not None and len(numbers) > 1 and self._link.is_open:
                for number in numbers:
                    outcomes[number] = self._insert(table, [messages[number]])
            else:
                for number in numbers:
                    outcomes[number] = error
        return outcomes

    def _insert(self, table: str | None, messages: Sequence[Outgoing]) -> Exception | None:
        try:
            values = {
                "values": [message.value for message in messages],
                "keys": [message.key for message in messages],
                "headers": [_json_of(message.headers) for message in messages],
            }
            self._link.ensure_open()
            self._link.run(_INSERT, table or self._table, values)
        except (AckerError, TypeError, ValueError) as error:
            if isinstance(error, AckerError):
                return unconfirmed(error)
            refused = PublishError(f"{self.name}: {error}")
            refused.__cause__ = error
            return refused
        return None

    def reader(self, *, lease_secs: float = 60.0) -> Source:  # noqa: ARG002
        """Return a source of all rows of the table that are neither done nor dead. An ack deletes one."""
        return TableRows(self._address.server, self._table, self._address.options)

    def disconnect(self) -> None:
        """Disconnect."""
        self._link.close()


class TableRows(StoredMessages):
    """All rows of a table that are neither done nor dead, whoever has claimed them. An ack deletes them.

    Parameters
    ----------
    conninfo : str
    table : str
    options : mapping
        As for `PostgreSQL`.
    """

    def __init__(self, conninfo: str, table: str, options: Mapping[str, Any]) -> None:
        super().__init__(f"PostgreSQL table {table!r}")
        self._table = table
        self._link = _SQLLink(self.name, conninfo, options, _ANSWER_SECS_MAX)
        self._after = 0

    def connect(self) -> None:
        """Connect, and look at the table."""
        self._after = 0
        self._link.open_for(self._table, create=False)

    def read(self, limit: int) -> Sequence[Delivery]:
        """Return the next rows."""
        rows = self._link.run(_READ, self._table, {"after": self._after, "limit": limit}).fetchall()
        if rows:
            self._after = rows[-1]["id"]
        return [_delivery_of(self._table, row, row["id"]) for row in rows]

    def remove(self, deliveries: Sequence[Delivery]) -> None:
        """Delete rows."""
        self._link.run(_REMOVE, self._table, {"ids": [delivery.receipt for delivery in deliveries]})

    def close(self) -> None:
        """Disconnect."""
        self._link.close()


def _delivery_of(table: str, row: dict[str, Any], receipt: RowReceipt | int) -> Delivery:
    headers = row["headers"] if isinstance(row["headers"], dict) else {"headers": row["headers"]}
    return Delivery(f"{table}/{row['id']}", row["value"], headers, row["attempts"], row, receipt)


def _batches(messages: Sequence[Outgoing]) -> Iterator[tuple[str | None, list[int]]]:
    """Yield tables, and the numbers of messages that go there in one statement."""
    numbers: list[int] = []
    size = 0
    for number, message in enumerate(messages):
        full = len(numbers) == _INSERT_COUNT_MAX or size + len(message.value) > _INSERT_BYTES_MAX
        if numbers and (full or message.to != messages[numbers[0]].to):
            yield messages[numbers[0]].to, numbers
            numbers, size = [], 0
        numbers.append(number)
        size += len(message.value)
    if numbers:
        yield messages[numbers[0]].to, numbers


def _json_of(headers: Mapping[str, Any]) -> str:
    """Return headers as JSON: numbers, truth values and None stay such, everything else becomes a text."""
    return json.dumps({_jsonb_text(name): _jsonb_value(content) for name, content in headers.items()})


def _jsonb_value(content: Any) -> Any:
    value = header_json(content)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return _jsonb_text(value) if isinstance(value, str) else value


def _jsonb_text(text: str) -> str:
    """Return a text that jsonb takes: it has no place for NUL and for halves of characters."""
    return text.replace("\0", "\\x00").encode(errors="backslashreplace").decode()


class _TimedConnection(psycopg.Connection[dict[str, Any]]):
    """A connection that gives up on a server that does not answer. libpq alone would wait for ever."""

    answer_secs = _ANSWER_SECS_MAX

    def wait(self, gen: Any, *_args: Any, **_options: Any) -> Any:
        # Not psycopg's compiled one, which in some releases lets no generator look at the time.
        return wait_selector(_timed(gen, self.answer_secs), self.pgconn.socket, interval=_LOOK_SECS)


def _timed(gen: Generator[Any, Any, Any], secs: float) -> Generator[Any, Any, Any]:
    """Pass on what a generator of psycopg waits for; psycopg sends `Ready.NONE` in intervals while nothing comes."""
    end = time.monotonic() + secs
    try:
        state = next(gen)
        while True:
            ready = yield state
            if ready == Ready.NONE and time.monotonic() > end:
                raise psycopg.OperationalError(f"the server has not answered for {secs:g} s")
            state = gen.send(ready)
    except StopIteration as done:
        return done.value


class _SQLLink(Link[_TimedConnection]):
    """One connection to PostgreSQL, where each statement is a transaction."""

    def __init__(self, name: str, conninfo: str, options: Mapping[str, Any], answer_secs: float) -> None:
        given = _parsed(conninfo)
        if given is None:  # The client's own error may show a part of the password.
            raise ArgumentValueError(
                f"{name}: not a connection string of PostgreSQL, such as postgresql://user:password@host/database;"
                " write characters such as / and @ of a password as %2F and %40"
            )
        self._answer_secs = answer_secs
        self._options = {**_NETWORK, **given, **options, "autocommit": True, "row_factory": dict_row}
        super().__init__(name, [self._options.get("password")])

    def connect(self) -> _TimedConnection:
        try:
            connection = _TimedConnection.connect(**self._options)
        except psycopg.Error as error:
            raise self._translated(error) from error
        connection.answer_secs = self._answer_secs
        return connection

    def disconnect(self, client: _TimedConnection) -> None:
        client.close()

    def run(self, statement: str, table: str, values: Mapping[str, Any]) -> psycopg.Cursor[dict[str, Any]]:
        """Run one statement in a transaction of its own."""
        connection = self.client
        try:
            return connection.cursor(binary=True).execute(_for_table(statement, table), values)
        except psycopg.Error as error:
            translated = self._translated(error)
            if isinstance(translated, ConnectionLostError):
                self.close()
            raise translated from error

    def open_for(self, table: str, *, create: bool) -> None:
        """Connect, and look at a table, or create it."""
        self.open()
        try:
            if create:
                self._create_table(table)
            self._check_table(table)
        except BaseException:
            self.close()
            raise

    def _create_table(self, table: str) -> None:
        """Create a table unless it is there. One session at a time: two at once would be an error."""
        connection = self.client
        try:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(hashtext('acker'), hashtext(%s))", [table])
                connection.execute(_for_table(_DDL, table))
        except psycopg.Error as error:
            raise self._translated(error) from error

    def _check_table(self, table: str) -> None:
        """Raise `SourceError` where a table is missing or has other columns."""
        columns = "id, value, key, headers, due_at, attempts, owner, done_at, dead_at, reason"
        try:
            self.run(f"SELECT {columns} FROM {{table}} LIMIT 0", table, {})
        except SourceError as error:
            if isinstance(error.__cause__, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
                raise SourceError(f"{error}; create=True creates it, or run table_sql({table!r})") from error.__cause__
            raise

    def _translated(self, error: psycopg.Error) -> AckerError:
        """Return what a consumer makes of an error of psycopg."""
        text = f"{self.name}: {self.hide(error).strip()}"
        if not self.is_open:
            refused = any(words in text for words in _REFUSALS) and "timeout" not in text
        else:
            # Classes 28 and 3D: the role or the database is gone. The other ones of these types may pass.
            passing = isinstance(error, psycopg.OperationalError | psycopg.InternalError)
            refused = not passing or (error.sqlstate or "")[:2] in {"28", "3D"}
        return SourceError(text) if refused else ConnectionLostError(text)


def _parsed(conninfo: str) -> dict[str, Any] | None:
    try:
        return conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError:
        return None


def _for_table(statement: str, table: str) -> sql.Composed:
    name = table.split(".")
    return sql.SQL(statement).format(table=sql.Identifier(*name), index=sql.Identifier(f"{name[-1]}_due_at_id"))
