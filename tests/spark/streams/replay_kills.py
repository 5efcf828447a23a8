"""A driver of replays that is killed between any two steps, and what Spark promises it, without Spark.

Run it: python -m tests.spark.streams.replay_kills FOLDER (folder | sqlite | URL of PostgreSQL) EVERY

The ledger is in a folder, or in a table of that database.

Each process runs micro-batches as Structured Streaming does. It writes down what a micro-batch reads before it runs it,
and that it is done afterwards. A process that finds one that was begun runs that again, on the same input, at another
time. Processes are forked, and each is killed EVERY steps later than the one before, until one ends by itself.
"""

import itertools
import json
import os
import signal
import sqlite3
import sys
import uuid
from pathlib import Path

import pyarrow.parquet as pq

from acker import Completions, Outcome
from acker._engine import storage
from acker.spark import ReplayCounts, Replays, SqlReplayStore
from acker.spark.folders import Folder
from acker.spark.streams import replay_ledger
from tests.spark.forks import ask_forked, run_forked

MESSAGES = 6
ATTEMPTS_MAX = 3
# What an `account` has to say.
EXPECTED = {
    "attempts": sorted([*([message, 1] for message in range(MESSAGES)), [3, 2], [4, 2], [4, 3], [5, 2], [5, 3]]),
    "dead": [5],
    "counts": ReplayCounts(messages=3, failures=6, replayed=5, recovered=2, dead_letters=1)._asdict(),
    "held": 0,
    "unfinished": [],  # the next process removes what a killed one had begun to write
}


def outcome_of(message, attempt):
    """Message 0 is acked at once, 3 fails at first, 4 twice, and 5 always."""
    fails = {3: 1, 4: 2, 5: ATTEMPTS_MAX}.get(message, 0)
    return Outcome.ACKED if attempt > fails else Outcome(1 + attempt % 2)


class Steps:
    """Counts steps, and kills the process at one of them."""

    def __init__(self, last):
        self.left = last

    def __call__(self):
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

    def before(self, owner, name):
        """Make a step of the moment before each call of a function."""
        function = getattr(owner, name)

        def call(*arguments, **named):
            self()
            return function(*arguments, **named)

        setattr(owner, name, call)


class Connection:
    """A connection to a database, whose changes and commits are steps."""

    def __init__(self, connection, step):
        self._connection, self._cursor, self._step = connection, connection.cursor(), step
        self._has_changed = False
        self.fetchall, self.close = self._cursor.fetchall, connection.close

    @property
    def rowcount(self):
        return self._cursor.rowcount

    def cursor(self):
        return self

    def execute(self, statement, *values):
        if not statement.startswith("SELECT"):
            self._change()
        self._cursor.execute(statement, *values)

    def executemany(self, statement, values):
        self._change()
        self._cursor.executemany(statement, values)

    def commit(self):
        if self._has_changed:
            self._step()
        self._connection.commit()
        if self._has_changed:
            self._step()

    def _change(self):
        self._has_changed = True
        self._step()


def ledger_of(where, folder, step):
    """Return the ledger of a folder's run."""
    if where == "folder":
        return folder / "ledger"
    if where == "sqlite":
        path = folder / "ledger.db"
        return SqlReplayStore(lambda: Connection(sqlite3.connect(path), step), "ledger", placeholder="?")
    import psycopg

    # Several runs may use the server.
    table = f"ledger_{uuid.uuid5(uuid.NAMESPACE_URL, str(folder)).hex}"
    return SqlReplayStore(lambda: Connection(psycopg.connect(where), step), table)


class Driver:
    """Runs micro-batches until nothing is left."""

    def __init__(self, folder, step, ledger):
        self.folder, self.step = folder, step
        self.replays = Replays(
            ledger,
            replay=folder / "again",
            dead_letter=self.give_up,
            attempts_max=ATTEMPTS_MAX,
            backoff_secs=1.0,
            clock=self.clock,
        )

    def clock(self):
        """Return a time that passes from call to call, through all processes."""
        ticks = self.folder / "clock"
        with ticks.open("a") as file:
            file.write(".")
        return 1000 + 0.7 * ticks.stat().st_size

    def give_up(self, messages, batch_id):
        self.step()
        with (self.folder / "dead").open("a") as file:
            file.writelines(json.dumps([row["message_id"], batch_id]) + "\n" for row in messages.to_pylist())
        self.step()

    def input_of(self, batch_id):
        """Return what a micro-batch reads: what it read when it was begun, else what is new."""
        begun = self.folder / f"offsets-{batch_id}"
        if not begun.exists():
            seen = {name for path in self.folder.glob("offsets-*") for name in json.loads(path.read_text())["files"]}
            files = sorted({path.name for path in (self.folder / "again").glob("replay-*")} - seen)
            first = [[message, 1] for message in range(MESSAGES)] if batch_id == 0 else []
            rows = [row for name in files for row in pq.read_table(self.folder / "again" / name).to_pylist()]
            attempts = first + [[row["message_id"], row["attempt"]] for row in rows]
            storage.write(begun, [json.dumps({"files": files, "attempts": attempts}).encode()])
        return json.loads(begun.read_text())["attempts"]

    def run(self):
        for batch_id in itertools.count(sum(1 for _ in self.folder.glob("commits-*"))):
            attempts = self.input_of(batch_id)
            rows = [(7 * m + a, m, 0, outcome_of(m, a), 5) for m, a in attempts]
            self.replays.settle(Completions.from_rows(rows), batch_id)
            self.step()
            storage.write(self.folder / f"commits-{batch_id}", [b""])
            counts = self.replays.counts()
            if counts.messages and not counts.waiting and not counts.open:
                return


def run_killed(folder, last, where):
    """Run a process that is killed after some steps; return whether it was."""

    def run():
        step = Steps(last)
        replay_ledger._FILES_MAX = 2
        for owner, name in ((storage, "write"), (os, "fsync"), (Folder, "remove")):
            step.before(owner, name)
        Driver(folder, step, ledger_of(where, folder, step)).run()

    status = run_forked(run)
    assert status in {0, signal.SIGKILL}, status
    return status != 0


def account(folder, ledger):
    """Return what became of the messages."""
    inputs = [json.loads(path.read_text())["attempts"] for path in folder.glob("offsets-*")]
    letters = [json.loads(line) for line in (folder / "dead").read_text().splitlines()]
    replays = Replays(ledger, replay=print, dead_letter=print)
    return {
        "attempts": sorted(attempt for attempts in inputs for attempt in attempts),
        "dead": [message for message, _ in set(map(tuple, letters))],  # in one micro-batch, though maybe told twice
        "counts": replays.counts()._asdict(),
        "held": replays.held().num_rows,
        "unfinished": [path.name for name in ("ledger", "again") for path in (folder / name).glob(".*")],
    }


def account_apart(folder, where):
    """Return the same from a process of its own: this one must not run Arrow."""
    return ask_forked(lambda: account(folder, ledger_of(where, folder, Steps(-1))))


def main():
    root, where, every = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    accounts = []
    # One folder for each step, or for some, in which the first process is killed there, and one for processes that are
    # killed again and again.
    for last in itertools.count(0, every):
        folder = root / f"once-{last}"
        folder.mkdir()
        killed = run_killed(folder, last, where)
        if killed:
            assert not run_killed(folder, -1, where)
        accounts.append(account_apart(folder, where))
        if not killed:
            break
    for most in (7, 9, 12):
        folder = root / f"often-{most}"
        folder.mkdir()
        kills = 0
        while run_killed(folder, most + kills % 3, where):
            kills += 1
        accounts.append(account_apart(folder, where))
    print(json.dumps({"steps": last, "accounts": accounts}))


if __name__ == "__main__":
    main()
