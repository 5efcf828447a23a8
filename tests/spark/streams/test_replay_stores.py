"""Ledgers of replays in tables: what a folder would say, one transaction a step, and readable by SQL."""

import contextlib
import json
import pickle
import random
import sqlite3
import sys
import uuid

import numpy as np
import pyarrow as pa
import pytest

from acker import Completions, Outcome
from acker.errors import ArgumentTypeError, ArgumentValueError, CheckpointError
from acker.spark import ReplayCounts, Replays, ReplayStore, SqlReplayStore
from acker.spark.folders import Folder
from acker.spark.pipelines.completions import PipelineCompletions
from acker.spark.streams.replay_ledger import FolderLedger
from acker.spark.streams.replay_rules import ReplayRules, decide, fingerprint
from acker.spark.streams.replay_stores import StoredLedger

RULES = ReplayRules(attempts_max=3, backoff_secs=1.0, backoff_secs_max=60.0, open_secs_max=5.0)
QUERY = "a8b0"


class MemoryStore:
    """A store as a user may write it."""

    def __init__(self):
        self.kept, self.text = {}, ""

    def open(self, schema):
        self.schema = schema

    def note(self):
        return self.text

    def rows(self):
        return pa.Table.from_pylist(list(self.kept.values())[::-1], self.schema)

    def save(self, rows, gone, note, before):
        assert rows.schema == self.schema
        if before != self.text:
            raise CheckpointError("replays: another process has changed table MEMORY; only one query may use it")
        for row in [*gone.to_pylist(), *rows.to_pylist()]:
            self.kept.pop((row["task_id"], row["message_id"]), None)
        self.kept |= {(row["task_id"], row["message_id"]): row for row in rows.to_pylist()}
        self.text = note


def in_memory(request, tmp_path):
    store = MemoryStore()
    return lambda: store


def in_sqlite(request, tmp_path):
    return lambda: SqlReplayStore(lambda: sqlite3.connect(tmp_path / "ledger.db"), "ledger", placeholder="?")


def in_postgresql(request, tmp_path):
    import psycopg

    url, table = request.getfixturevalue("postgresql").url, f"public.ledger_{uuid.uuid4().hex}"
    return lambda: SqlReplayStore(lambda: psycopg.connect(url), table)


@pytest.fixture(params=["own", "sqlite", "postgresql"])
def opened(request, tmp_path):
    """Open the same store again."""
    return {"own": in_memory, "sqlite": in_sqlite, "postgresql": in_postgresql}[request.param](request, tmp_path)


@pytest.fixture
def sqlite(tmp_path):
    """Run a statement; return the rows."""

    def run(statement):
        with contextlib.closing(sqlite3.connect(tmp_path / "ledger.db")) as connection, connection:
            return connection.execute(statement).fetchall()

    return run


def completions(*rows):
    return Completions.from_rows([(root, message, 0, how, 5) for root, (message, how) in enumerate(rows)])


def run(ledger, batch_id, done):
    state = ledger.state()
    decisions = decide(state, done, RULES, 1000 * batch_id)
    ledger.record(state, batch_id, decisions, QUERY, fingerprint(done))
    return decisions


def decided(ledger, batch_id, query=QUERY, done=None):
    return ledger.decisions_of(ledger.state(), batch_id, query, fingerprint(done or completions()))


def test_a_store_says_what_a_folder_would_say(opened, tmp_path):
    draw = random.Random(5)
    folder, ledger = FolderLedger(Folder("ledger", tmp_path / "ledger")), StoredLedger(opened())
    key = [("message_id", "ascending")]
    steps = set()
    for batch_id in range(0, 24, 2):
        done = completions(*((draw.randrange(8), draw.choice(list(Outcome))) for _ in range(draw.randrange(4))))
        expected, decisions = run(folder, batch_id, done), run(ledger, batch_id, done)
        assert (decisions.rows, decisions.counts) == (expected.rows, expected.counts)
        again = StoredLedger(opened())
        for each in (ledger, again):
            state = each.state()
            assert state.held.sort_by(key) == folder.state().held.sort_by(key)
            assert (state.counts, state.last, state.query) == folder.state()[1:4]
            assert state.id == ledger.state().id
            assert decided(each, batch_id) == decisions.rows, "a micro-batch that runs again finds what it did"
            assert decided(each, batch_id + 1) is None
        stored = opened().rows if isinstance(opened(), MemoryStore) else again._store.rows
        ended = [row for row in stored().to_pylist() if row["step"] in ("dead_letter", "recovered")]
        assert {row["batch_id"] for row in ended} <= {batch_id}, "what was done before is not kept"
        assert stored().num_rows == state.held.num_rows + len(ended)
        steps |= set(stored()["step"].to_pylist())
    assert steps == {"wait", "replay", "dead_letter", "recovered"}
    with pytest.raises(CheckpointError, match=r"has decided micro-batch 22, and the query runs micro-batch 21"):
        decided(ledger, 21)
    with pytest.raises(CheckpointError, match=r"belongs to the query a8b0, and this is the query c9"):
        decided(ledger, 22, "c9")
    with pytest.raises(CheckpointError, match=r"micro-batch 22 of a run in which other messages failed.* from 23$"):
        decided(ledger, 22, "", completions((77, Outcome.FAILED)))


@pytest.mark.parametrize(("kind", "ids"), [("string", ["a", "ü"]), ("binary", [b"\0\xff", b"a"])])
def test_message_ids_may_be_texts_and_bytes(opened, kind, ids):
    done = completions(*((0, Outcome.FAILED) for _ in ids))
    reasons = np.array(["ValueError: a\0b", None], object)
    failed = PipelineCompletions.of(done, np.array(ids, object), np.array(["pack", None], object), reasons)

    def replays():
        return Replays(opened(), replay=print, dead_letter=print, message_id=kind)

    replays().settle(failed, 0)
    held = replays().held()
    assert held["message_id"].to_pylist() == ids
    assert held["reason"].to_pylist() == ["ValueError: a\ufffdb", "failed"], "no text of PostgreSQL's has a NUL"
    assert held["component"].to_pylist() == ["pack", None]
    assert replays().counts() == ReplayCounts(messages=2, failures=2, waiting=2)
    with pytest.raises(CheckpointError, match=rf"message ids are of type '{kind}', .* message_id='long'.* new ledger"):
        Replays(opened(), replay=print, dead_letter=print).counts()


def test_two_drivers_do_not_write_one_table(opened):
    first, other = StoredLedger(opened()), StoredLedger(opened())
    run(first, 0, completions((1, Outcome.FAILED)))
    rows, note = other._store.rows(), other._store.note()
    run(first, 1, completions((2, Outcome.FAILED)))
    for before in ("", note):
        with pytest.raises(CheckpointError, match=r"another process has changed table .*; only one query may use it"):
            other._store.save(rows, rows.slice(0, 0), "mine", before)
    assert (
        other.state().counts
        == first.state().counts
        == ReplayCounts(messages=2, failures=2, replayed=1, waiting=1, open=1)
    )


def test_an_error_in_a_transaction_leaves_everything_as_it_was(tmp_path, sqlite):
    faults = []

    class Connection(sqlite3.Connection):
        def commit(self):
            if faults:
                raise OSError(faults.pop())
            super().commit()
            if lost:
                raise OSError(lost.pop())

    lost = []
    store = SqlReplayStore(
        lambda: sqlite3.connect(tmp_path / "ledger.db", factory=Connection), "ledger", placeholder="?"
    )
    ledger, seen = StoredLedger(store), []
    replays = Replays(
        store, replay=lambda rows, _: seen.append(rows["attempt"].to_pylist()), dead_letter=print, backoff_secs=0
    )
    assert replays.counts() == ReplayCounts()
    real = store.save

    def save_with(fault, into):
        def save(*arguments):
            into.append(fault)
            real(*arguments)

        return save

    store.save = save_with("before the commit", faults)
    with pytest.raises(OSError, match="before the commit"):
        replays.settle(completions((1, Outcome.FAILED)), 0)
    assert replays.counts() == ledger.state().counts == ReplayCounts() and sqlite("SELECT * FROM ledger") == []
    store.save = save_with("after the commit", lost)
    with pytest.raises(OSError, match="after the commit"):
        replays.settle(completions((1, Outcome.FAILED)), 0)
    assert seen == []
    del store.save
    replays.settle(completions((1, Outcome.FAILED)), 0)
    assert seen == [[2]]
    assert replays.counts() == ledger.state().counts == ReplayCounts(messages=1, failures=1, replayed=1, open=1)


def test_a_reader_beside_the_query_reads_again(opened):
    ledger, store = StoredLedger(opened()), opened()
    reader = StoredLedger(store)
    run(ledger, 0, completions((0, Outcome.FAILED)))
    real, batch_ids = store.rows, iter(range(1, 100))

    def rows_and_write():
        rows = real()
        batch_id = next(batch_ids)
        if batch_id < most:
            run(ledger, batch_id, completions((batch_id, Outcome.FAILED)))
        return rows

    store.rows, most = rows_and_write, 3
    assert reader.state().last == 2 and reader.state().counts == ledger.state().counts
    run(ledger, 50, completions((50, Outcome.FAILED)))
    batch_ids, most = iter(range(51, 100)), 100
    with pytest.raises(CheckpointError, match=r"changes while it is read; only one query may use it"):
        reader.state()


def test_a_pickle_reads_anew(tmp_path):
    ledger = StoredLedger(store := in_sqlite(None, tmp_path)())
    run(ledger, 0, completions((1, Outcome.FAILED)))
    store._connect = None
    assert pickle.loads(pickle.dumps(ledger))._state is None and ledger._state is not None


def test_sql_reads_what_waits(tmp_path, sqlite):
    store = in_sqlite(None, tmp_path)()
    assert isinstance(store, ReplayStore)
    replays = Replays(store, replay=print, dead_letter=print, attempts_max=2, clock=lambda: 1000.0)
    replays.settle(completions((1, Outcome.FAILED), (2, Outcome.TIMED_OUT)), 7)
    columns = "task_id, message_id, attempt, root_id, outcome, component, reason, step, at_ms, batch_id"
    assert sqlite(f"SELECT {columns} FROM ledger ORDER BY message_id") == [
        (0, 1, 1, 0, Outcome.FAILED, None, "failed", "wait", 1_001_000, 7),
        (0, 2, 1, 1, Outcome.TIMED_OUT, None, "timed out", "wait", 1_001_000, 7),
    ]


def test_a_table_that_was_changed_by_hand_is_refused(tmp_path, sqlite):
    def ledger():
        return StoredLedger(in_sqlite(None, tmp_path)())

    run(ledger(), 0, completions((1, Outcome.FAILED), (2, Outcome.FAILED)))
    for statement in (
        "UPDATE ledger SET step = 'gone' WHERE message_id = 1",
        "DELETE FROM ledger WHERE message_id = 1",
    ):
        sqlite(statement)
        with pytest.raises(CheckpointError, match=r"table ledger is damaged: 2 messages should .*, and 1 are there"):
            ledger().state()
    ((note,),) = sqlite("SELECT note FROM ledger_note")
    other = json.dumps({**json.loads(note), "version": "9"})
    sqlite(f"UPDATE ledger_note SET note = '{other}'")
    with pytest.raises(CheckpointError, match=r"table ledger: expected format version 4, got 9; run the query with"):
        ledger().state()


def test_wrong_arguments_are_refused_by_name(tmp_path):
    with pytest.raises(ArgumentTypeError, match=r"connect: expected a function, got str"):
        SqlReplayStore("postgresql://", "ledger")
    with pytest.raises(ArgumentTypeError, match=r"table: expected a name, got int"):
        SqlReplayStore(print, 5)
    with pytest.raises(ArgumentValueError, match=r"table: expected a name such as .*, got 'ledger; DROP'"):
        SqlReplayStore(print, "ledger; DROP")


# Options of sqlite3, and whether each statement is a transaction of its own.
CONNECTIONS = [({}, False), ({"isolation_level": None}, True)]
if sys.version_info >= (3, 12):  # from then on sqlite3 has the other one, and if it is False the first one says nothing
    CONNECTIONS += [({"autocommit": True}, True), ({"autocommit": False, "isolation_level": None}, False)]


@pytest.mark.parametrize(("options", "is_refused"), CONNECTIONS, ids=str)
def test_a_connection_that_commits_each_statement_is_refused(tmp_path, options, is_refused):
    store = SqlReplayStore(lambda: sqlite3.connect(tmp_path / "it", **options), "ledger", placeholder="?")
    refused = pytest.raises(ArgumentValueError, match=r"connect: expected connections without autocommit")
    with refused if is_refused else contextlib.nullcontext():
        Replays(store, replay=print, dead_letter=print)
