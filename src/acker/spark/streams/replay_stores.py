"""Ledgers of replays in tables, where SQL can read what waits and what is open."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from acker.errors import ArgumentTypeError, ArgumentValueError, CheckpointError
from acker.spark.streams.replay_ledger import (
    ATTEMPTS,
    NONE,
    VERSION,
    Decisions,
    LedgerState,
    Note,
    ReplayCounts,
    ReplayLedger,
    ReplayStep,
    replay_schema,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KEYS: Final = ["task_id", "message_id"]
_WORDS: Final = pa.array([step.name.lower() for step in ReplayStep])
_NAME: Final = re.compile(r"\w+(\.\w+)*")
# Binary has another name in other databases, whose users make the table themselves.
_SQL_TYPES: Final = {"int8": "SMALLINT", "int32": "INTEGER", "int64": "BIGINT", "string": "TEXT", "binary": "BYTEA"}
_SPARK_TYPES: Final = {"int8": "INT", "int32": "INT", "int64": "BIGINT", "string": "STRING", "binary": "BINARY"}


@runtime_checkable
class ReplayStore(Protocol):
    """Keeps the ledger of `Replays` where its methods say, in place of a folder: four methods, for any database.

    It has one row for each pair of task id and message id, and one text, the note, which is "" at first. What a method
    raises ends the query.
    """

    def open(self, schema: pa.Schema) -> None:
        """Make what is missing, for rows of this schema; called once, when `Replays` is made.

        The columns are those of `Replays.schema`, and `step` ("wait", "replay", "dead_letter" or "recovered"), `at_ms`
        (milliseconds since 1970: the end of the wait, else the time of the step), and `batch_id`, the micro-batch.
        """

    def note(self) -> str:
        """Return the note; called once or twice in each micro-batch."""

    def rows(self) -> pa.Table:
        """Return all rows, in any order."""

    def save(self, rows: pa.Table, gone: pa.Table, note: str, before: str) -> None:
        """Remove rows, put others in, and replace the note: all of it or nothing, in one transaction.

        Parameters
        ----------
        rows : Table
            Each takes the place of the row with its task id and message id, if there is one.
        gone : Table
            Task ids and message ids to be removed; some may be among `rows`.
        note : str
        before : str
            The note that was read. A store that can compare raises an error if it is another one by now: then another
            process writes, too.
        """


class StoredLedger(ReplayLedger):
    """A ledger in a store.

    The rows of a micro-batch that ended a message stay until the next one with decisions, in case that it runs again.
    """

    def __init__(self, store: ReplayStore, ids: str = "long") -> None:
        super().__init__(str(store), ids)
        self._store = store
        last = [pa.field("step", pa.string()), pa.field("at_ms", pa.int64()), pa.field("batch_id", pa.int64())]
        self._columns = pa.schema([*replay_schema(ids), *last])
        self._state: LedgerState | None = None
        store.open(self._columns)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_state": None}

    def state(self) -> LedgerState:
        """Return the state, read anew if the note is another one than before."""
        for _ in range(ATTEMPTS):
            state, text = self._state, self._store.note()
            if state is None or state.note != text:
                note = self._note_of(text)  # First: rows with other ids cannot be read.
                rows = self._store.rows()
                if self._store.note() != text:
                    continue
                state = self._state = self._parse(text, note, rows)
            return state
        raise CheckpointError(f"replays: {self.where} changes while it is read; only one query may use it")

    def record(self, state: LedgerState, batch_id: int, decisions: Decisions, query: str, failed: str) -> LedgerState:
        """Write what a micro-batch decided, and remove the messages that were done before it."""
        query, id_ = query or state.query, state.id or secrets.token_hex(6)
        note = {"version": VERSION, "ids": self._ids, "previous": state.last, "last": batch_id, "failed": failed}
        text = json.dumps({**note, "query": query, "id": id_, "counts": decisions.counts._asdict()})
        before = self._schema.empty_table() if state.decided is None else state.decided
        done = before.filter(pa.array(before["step"].to_numpy() > ReplayStep.REPLAY)).select(_KEYS)
        self._state = None  # An error does not say whether anything was saved.
        self._store.save(self._as_stored(decisions.rows, batch_id), done, text, state.note)
        self._state = LedgerState(
            decisions.held, decisions.counts, batch_id, query, id_, note=text, decided=decisions.rows
        )
        return self._state

    def _decided(self, state: LedgerState, batch_id: int) -> tuple[pa.Table, str] | None:
        if state.decided is None or batch_id != state.last:
            return None
        return state.decided, self._note_of(state.note).failed

    def _parse(self, text: str, note: Note, stored: pa.Table) -> LedgerState:
        stored = stored.sort_by([(name, "ascending") for name in _KEYS])  # as they were decided
        rows = self._as_ledger(stored)
        step = rows["step"]
        held = rows.filter(pa.array(step.to_numpy() <= ReplayStep.REPLAY))
        expected = note.counts.waiting + note.counts.open
        if step.null_count or held.num_rows != expected:
            raise CheckpointError(
                f"replays: {self.where} is damaged: {expected} messages should wait or be open, and {held.num_rows}"
                " are there; put its rows back, or begin with a new checkpoint and a new ledger"
            )
        decided = rows.filter(pa.array(stored["batch_id"].to_numpy() == note.last))
        return LedgerState(held, note.counts, note.last, note.query, note.id, note=text, decided=decided)

    def _note_of(self, text: str) -> Note:
        if not text:
            return Note(ReplayCounts(), previous=NONE, query="", id="", failed="", last=NONE)
        return Note.of(json.loads(text), self.where, self._ids)

    def _as_stored(self, rows: pa.Table, batch_id: int) -> pa.Table:
        words = _WORDS.take(rows["step"].combine_chunks())
        columns: dict[str, Any] = {name: rows[name] for name in rows.schema.names}
        columns |= {"step": words, "batch_id": pa.repeat(pa.scalar(batch_id, pa.int64()), rows.num_rows)}
        return pa.table(columns).select(self._columns.names).cast(self._columns)

    def _as_ledger(self, stored: pa.Table) -> pa.Table:
        columns: dict[str, Any] = {name: stored[name] for name in self._schema.names}
        columns["step"] = pc.index_in(stored["step"], value_set=_WORDS)
        return pa.table(columns).cast(self._schema).combine_chunks()


class SqlReplayStore:
    """Keeps the ledger of `Replays` in a table of a database, by a DB-API module such as psycopg.

    Parameters
    ----------
    connect : callable
        Returns a new connection, without autocommit. It is closed after each use.
    table : str
        A name, maybe with that of its schema. If it is missing, it is made now, together with ``<table>_note``, which
        has one row.
    placeholder : str
        How the module writes a parameter: "%s", or "?" for sqlite3.

    Examples
    --------
    >>> store = aspark.SqlReplayStore(lambda: psycopg.connect(conninfo), "orders_ledger")               # doctest: +SKIP
    >>> replays = aspark.Replays(store, replay="/data/again", dead_letter="/data/dead")                 # doctest: +SKIP
    """

    def __init__(self, connect: Callable[[], Any], table: str, *, placeholder: str = "%s") -> None:
        if not callable(connect):
            raise ArgumentTypeError(f"connect: expected a function, got {type(connect).__name__}")
        self._connect = connect
        self._table = _check_name(table)
        self._mark = placeholder
        self._schema = pa.schema([])

    def __str__(self) -> str:
        return f"table {self._table}"

    def open(self, schema: pa.Schema) -> None:
        """Make the tables, if they are missing."""
        self._schema = schema
        columns = ", ".join(f"{field.name} {_SQL_TYPES[str(field.type)]}" for field in schema)
        try:  # First, since who may use a table need not be allowed to make one.
            self.note()
        except Exception:  # noqa: BLE001 each module has errors of its own, and what is wrong comes up again
            with self._transaction() as cursor:
                cursor.execute(
                    f"CREATE TABLE IF NOT EXISTS {self._table} ({columns}, PRIMARY KEY (task_id, message_id))"
                )
                note = f"{self._table}_note"
                cursor.execute(f"CREATE TABLE IF NOT EXISTS {note} (id INTEGER PRIMARY KEY, note TEXT NOT NULL)")
                cursor.execute(f"INSERT INTO {note} SELECT 0, '' WHERE NOT EXISTS (SELECT id FROM {note})")

    def note(self) -> str:
        """Return the note."""
        with self._transaction() as cursor:
            cursor.execute(f"SELECT note FROM {self._table}_note")
            ((note,),) = cursor.fetchall()
        return str(note)

    def rows(self) -> pa.Table:
        """Return all rows."""
        with self._transaction() as cursor:
            cursor.execute(f"SELECT {', '.join(self._schema.names)} FROM {self._table}")
            found = cursor.fetchall()
        columns: Iterable[Any] = zip(*found, strict=True) if found else [()] * len(self._schema)
        typed = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        return pa.table(typed, schema=self._schema)

    def save(self, rows: pa.Table, gone: pa.Table, note: str, before: str) -> None:
        """Change the tables in one transaction."""
        mark = self._mark
        old = [*_tuples_of(gone), *_tuples_of(rows.select(_KEYS))]
        new = _tuples_of(rows)
        with self._transaction() as cursor:
            # First: from here on other writers wait.
            cursor.execute(f"UPDATE {self._table}_note SET note = {mark} WHERE note = {mark}", (note, before))
            if cursor.rowcount != 1:
                raise CheckpointError(f"replays: another process has changed {self}; only one query may use it")
            if old:
                cursor.executemany(f"DELETE FROM {self._table} WHERE task_id = {mark} AND message_id = {mark}", old)
            if new:
                marks = ", ".join([mark] * len(rows.schema))
                cursor.executemany(f"INSERT INTO {self._table} ({', '.join(rows.schema.names)}) VALUES ({marks})", new)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Any]:
        with contextlib.closing(self._connect()) as connection:
            if _commits_each_statement(connection):
                raise ArgumentValueError(
                    "connect: expected connections without autocommit, since a step is one transaction"
                )
            yield connection.cursor()
            connection.commit()


def _commits_each_statement(connection: Any) -> bool:
    """Return whether a connection of a DB-API module has autocommit, as far as it says so."""
    if getattr(connection, "autocommit", False) is True:
        return True
    # The older way of sqlite3, which counts unless `autocommit` is False. In psycopg the attribute says something else.
    sqlite3 = sys.modules.get("sqlite3")
    if sqlite3 is None or not isinstance(connection, sqlite3.Connection):
        return False
    return connection.isolation_level is None and getattr(connection, "autocommit", True) is not False


class TableReplayStore:
    """Keeps the ledger of `Replays` in a table of Spark's that has MERGE: Delta or Iceberg.

    Parameters
    ----------
    spark : SparkSession
        That of the query, with the extensions of the format.
    table : str
        A name, with catalog and schema where these are not the current ones. It is made if it is missing. Each
        micro-batch with decisions is one commit, so it needs the upkeep of a table that changes often.
    format : str
        For `USING`.

    Examples
    --------
    >>> store = aspark.TableReplayStore(spark, "ops.orders_ledger")                                     # doctest: +SKIP
    >>> replays = aspark.Replays(store, replay="/data/again", dead_letter="/data/dead")                 # doctest: +SKIP
    """

    def __init__(self, spark: SparkSession, table: str, *, format: str = "delta") -> None:  # noqa: A002 Spark's word
        self._spark = spark
        self._table = _check_name(table)
        self._format = format
        self._schema = pa.schema([])

    def __str__(self) -> str:
        return f"table {self._table}"

    def open(self, schema: pa.Schema) -> None:
        """Make the table, if it is missing."""
        self._schema = schema
        columns = ", ".join(f"{field.name} {_SPARK_TYPES[str(field.type)]}" for field in schema)
        self._spark.sql(f"CREATE TABLE IF NOT EXISTS {self._table} ({columns}, note STRING) USING {self._format}")

    def note(self) -> str:
        """Return the note, which is a row of its own."""
        found = self._spark.table(self._table).where("note IS NOT NULL").select("note").collect()
        if len(found) > 1:
            raise CheckpointError(
                f"replays: {len(found)} processes have begun to write {self}; only one query may use it"
            )
        return str(found[0].note) if found else ""

    def rows(self) -> pa.Table:
        """Return all rows."""
        frame = self._spark.table(self._table).where("note IS NULL").select(*self._schema.names)
        return frame.toArrow().cast(self._schema)

    def save(self, rows: pa.Table, gone: pa.Table, note: str, before: str) -> None:
        """Change the table in one commit."""
        names = [*rows.schema.names, "note"]
        schema = pa.schema([*rows.schema, pa.field("note", pa.string()), pa.field("before", pa.string())])
        gone = gone.join(rows.select(_KEYS), _KEYS, join_type="left anti")
        parts = [rows, gone, pa.table({"note": [note], "before": [before]})]
        changes = pa.concat_tables(parts, promote_options="default").select(schema.names).cast(schema)
        changes = changes.combine_chunks()  # Spark 4.1 drops what comes after an empty batch.
        view = f"acker_{secrets.token_hex(6)}"
        self._spark.createDataFrame(changes).coalesce(1).createOrReplaceTempView(view)
        try:
            self._spark.sql(
                f"MERGE INTO {self._table} AS kept USING {view} AS new"
                " ON kept.task_id <=> new.task_id AND kept.message_id <=> new.message_id"
                " WHEN MATCHED AND new.note IS NOT NULL THEN UPDATE SET note = CASE WHEN kept.note = new.before THEN"
                f" new.note ELSE raise_error('replays: another process has changed {self}; only one query may use it')"
                " END"
                " WHEN MATCHED AND new.step IS NULL THEN DELETE"
                f" WHEN MATCHED THEN UPDATE SET {', '.join(f'{name} = new.{name}' for name in names)}"
                " WHEN NOT MATCHED AND (new.step IS NOT NULL OR new.note IS NOT NULL) THEN"
                f" INSERT ({', '.join(names)}) VALUES ({', '.join(f'new.{name}' for name in names)})"
            )
        finally:
            self._spark.catalog.dropTempView(view)


def _tuples_of(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _check_name(name: Any) -> str:
    if not isinstance(name, str):
        raise ArgumentTypeError(f"table: expected a name, got {type(name).__name__}")
    if not _NAME.fullmatch(name):
        raise ArgumentValueError(f"table: expected a name such as orders_ledger or ops.orders_ledger, got {name!r}")
    return name
