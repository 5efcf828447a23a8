"""A driver of replays that is killed between any two steps, and what Spark promises it, without Spark.

Run it: python -m tests.spark.streams.replay_kills FOLDER

Each process runs micro-batches as Structured Streaming does. It writes down what a micro-batch reads before it runs it,
and that it is done afterwards. A process that finds one that was begun runs that again, on the same input, at another
time. Processes are forked, and each is killed one step later than the one before, until one ends by itself.
"""

import itertools
import json
import os
import signal
import sys
from pathlib import Path

import pyarrow.parquet as pq

from acker import Completions, Outcome
from acker._engine import storage
from acker.spark import Replays
from acker.spark.folders import Folder
from acker.spark.streams import replay_ledger

MESSAGES = 6
ATTEMPTS_MAX = 3


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


class Driver:
    """Runs micro-batches until nothing is left."""

    def __init__(self, folder, step):
        self.folder, self.step = folder, step
        self.replays = Replays(
            folder / "ledger",
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


def run_killed(folder, last):
    """Run a process that is killed after some steps; return whether it was."""
    child = os.fork()
    if not child:
        step = Steps(last)
        replay_ledger._FILES_MAX = 2
        for owner, name in ((storage, "write"), (os, "fsync"), (Folder, "remove")):
            step.before(owner, name)
        Driver(folder, step).run()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, status
    return os.WIFSIGNALED(status)


def account(folder):
    """Return what became of the messages."""
    inputs = [json.loads(path.read_text())["attempts"] for path in folder.glob("offsets-*")]
    letters = [json.loads(line) for line in (folder / "dead").read_text().splitlines()]
    replays = Replays(folder / "ledger", replay=print, dead_letter=print)
    return {
        "attempts": sorted(attempt for attempts in inputs for attempt in attempts),
        "dead": sorted(set(map(tuple, letters))),
        "counts": replays.counts()._asdict(),
        "held": replays.held().num_rows,
        "unfinished": [path.name for name in ("ledger", "again") for path in (folder / name).glob(".*")],
    }


def main():
    root = Path(sys.argv[1])
    accounts = []
    # One folder for each step, in which the first process is killed there, and one for processes that are killed again
    # and again.
    for last in itertools.count():
        folder = root / f"once-{last}"
        folder.mkdir()
        killed = run_killed(folder, last)
        if killed:
            assert not run_killed(folder, -1)
        accounts.append(account(folder))
        if not killed:
            break
    for most in (7, 9, 12):
        folder = root / f"often-{most}"
        folder.mkdir()
        kills = 0
        while run_killed(folder, most + kills % 3):
            kills += 1
        accounts.append(account(folder))
    print(json.dumps({"steps": last, "accounts": accounts}))


if __name__ == "__main__":
    main()
