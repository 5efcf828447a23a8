"""A topology as a stream whose driver is killed between any two steps with its files, without Spark.

Run it: python -m tests.spark.topologies.journal_kills FOLDER (EVERY | again) [WordCountInColumns]

Each process runs micro-batches as Structured Streaming does: it writes down that one begins, runs it, and writes down
that it is done; a process that finds one that was begun runs that again. All else is real, but the stages run in this
process. With a number, a process dies at each step or at every second or third, in a folder of its own, and another one
goes on. "again": in one folder, processes die until each kind of step had its turn, and one more goes on.
"""

import itertools
import json
import os
import signal
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from pyarrow import fs

from acker.spark.partition_keys import partition_keys
from acker.spark.topologies import bolt_state, journal, micro_batches, state_log
from acker.spark.topologies.lease import Lease
from acker.spark.topologies.micro_batch_job import MicroBatchResult, _read_result, settle
from acker.spark.topologies.spark_runtime import SparkRuntime
from acker.spark.topologies.stage_rows import StageRow, batches_of
from acker.spark.topologies.stage_worker import StageWorker
from tests.spark.forks import ask_forked, run_forked
from tests.torture.topology_kills.account import CHECKPOINT, check, counts_in
from tests.torture.topology_kills.words import ACKED, BAD, FLAKY, FOLDER, LINES, SOUR, TOPOLOGIES, Lines, read_log

TEXT = [
    *("the quick brown", "fox jumps over", f"the lazy {BAD}", "dog and the", f"quick {SOUR} fox", "runs away the"),
    *(f"fox and {FLAKY}", "the brown dog", "jumps and runs", "over the lazy", "away fox", "the end"),
]
# What a kind of step is before, or after: see `Steps`.
KINDS = {
    *(f"{step} {name}" for step in ("begin", "sync", "show") for name in ("plans", "commits", "state")),
    *("remove plans", "remove commits", "remove state", "sync leases", "check", "offsets", "done"),
    *("ack", "acked"),
}


class Steps:
    """Counts steps of this process by kind, and kills it at one of them.

    Parameters
    ----------
    kind : str or None
        None: of any kind.
    number : int
        From 0; -1: never.
    """

    def __init__(self, kind, number):
        self._kind, self._number = kind, number
        self._reached = itertools.count()

    def __call__(self, kind):
        if self._kind in {None, kind} and next(self._reached) == self._number:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self):
        """Put the steps into what writes and removes files."""
        for owner, name, kind in (
            (tempfile, "mkstemp", lambda **options: f"begin {folder_of(options['dir'])}"),
            (os, "fsync", lambda file: f"sync {folder_of(Path(f'/proc/self/fd/{file}').readlink())}"),
            (Path, "replace", lambda _, path: f"show {folder_of(path)}"),
            (Lease, "check", lambda _: "check"),
            (Lines, "ack", lambda *_: "ack"),
        ):
            self._before(owner, name, kind)
        step = self

        class SteppedFiles(fs.LocalFileSystem):
            def delete_file(self, path):
                step(f"remove {folder_of(path)}")
                super().delete_file(path)

        for module in (journal, bolt_state):
            module.locate = lambda root: (SteppedFiles(), str(root))

    def _before(self, owner, name, kind):
        function = getattr(owner, name)

        def call(*arguments, **options):
            self(what := kind(*arguments, **options))
            returned = function(*arguments, **options)
            if what == "ack":
                self("acked")
            return returned

        setattr(owner, name, call)


def folder_of(path):
    """Return which folder of a checkpoint a file is in, or which one this is."""
    parts = Path(path).parts
    return next((name for name in ("plans", "commits", "state", "leases") if name in parts), "others")


class JobHere:
    """A `MicroBatchJob` whose stages run in this process, one partition after the other."""

    reads_again = False

    def __init__(self, spark, plan, rows, frames, tracks, named, owners):
        self._plan, self._rows, self._tracks, self._named = plan, rows, tracks, named

    def evaluate(self, excluded, seed) -> MicroBatchResult:
        plan = replace(self._plan, excluded=excluded, seed=seed)
        rows, partitions = list(self._rows), partition_keys(max(plan.partitions, plan.shards)).tolist()
        for stage in range(plan.stages.last + 1):
            here = [row for row in rows if row.stage == stage]
            rows = [row for row in rows if row.stage != stage]
            keys = sorted({row.partition_key for row in here})
            for key in keys:
                of_key = sorted((row for row in here if row.partition_key == key), key=lambda row: row[2:4])
                worker = StageWorker(plan, stage, partitions.index(key) if stage else 0)
                rows += [
                    StageRow(*each.values()) for batch in worker.run(batches_of(of_key)) for each in batch.to_pylist()
                ]
        return _read_result(settle(iter(batches_of(rows)), self._named, self._tracks, excluded), plan.graph)

    def close(self):
        pass


def spark_of():
    """Return what a runtime asks of a session."""
    conf = SimpleNamespace(get=lambda name, default=None: default)
    told = dict.fromkeys(("addJobTag", "removeJobTag", "cancelJobsWithTag"), lambda tag: None)
    runtime = SimpleNamespace(maxMemory=lambda: 1 << 30)
    java = SimpleNamespace(lang=SimpleNamespace(Runtime=SimpleNamespace(getRuntime=lambda: runtime)))
    gateway = SimpleNamespace(proc=SimpleNamespace(poll=lambda: None), jvm=SimpleNamespace(java=java))
    context = SimpleNamespace(defaultParallelism=2, master="local[2]", getConf=lambda: conf, _gateway=gateway, **told)
    return SimpleNamespace(sparkContext=context)


def write_lines(folder, times):
    folder.mkdir(parents=True)
    lines = [line.replace(FLAKY, f"{FLAKY}-{number}") for number, line in enumerate(TEXT * times)]
    (folder / LINES).write_text("\n".join(lines))


def run(folder, step, name):
    """Run until all is drained."""
    conf = {FOLDER: str(folder), "topology.max.spout.pending": 4}
    runtime = SparkRuntime(TOPOLOGIES[name], conf, spark_of(), checkpoint=str(folder / CHECKPOINT))
    runtime.watch_for("drained")
    runtime.start()
    lifecycle = runtime.lifecycle
    while not lifecycle.over.is_set():
        number = sum(1 for _ in folder.glob("done-*"))
        (folder / f"offsets-{number}").touch()
        step("offsets")
        runtime.run_batch(number, {})
        runtime.end_frames()
        step("done")
        (folder / f"done-{number}").touch()
        if lifecycle.reached.wait(0.01):
            lifecycle.stop()
    runtime.raise_error()
    runtime.stop()
    runtime.release()


def run_killed(folder, name, kind=None, number=-1):
    """Run a process that is killed at a step, and check what it has left; return whether it was killed."""

    def die():
        # So that files are merged, written again and removed, though they are small.
        state_log.MERGED_KEYS = 4
        micro_batches.MicroBatchJob = JobHere
        step = Steps(kind, number)
        step.watch()
        with (folder / "log").open("a") as log:
            os.dup2(log.fileno(), 2)
        run(folder, step, name)

    status = run_forked(die)
    assert status in {0, signal.SIGKILL}, (folder / "log").read_text()[-4000:]
    assert run_forked(partial(check_early, folder)) == 0
    return status != 0


def check_early(folder):
    """Check that no line was acked that the state has not, and that the state has none more often than it came."""
    lines = dict(enumerate((folder / LINES).read_text().splitlines()))
    counts = counts_in(folder / CHECKPOINT)
    acked = Counter(word for number in set(read_log(folder / ACKED)) for word in lines[number].split())
    every = Counter(word for line in lines.values() for word in line.split())
    assert acked <= counts <= every, (acked - counts, counts - every)


def die_once(root, name, every):
    """Kill a process at each step of a run in turn, or at some, and let another one go on."""
    accounts = []
    for number in itertools.count(0, every):
        folder = root / f"once-{number}"
        write_lines(folder, 1)
        if not run_killed(folder, name, None, number):
            break
        assert not run_killed(folder, name)
        accounts.append(account(folder))
    return accounts


def die_again(root, name):
    """Kill processes one after the other, each at another kind of step, and let one more go on."""
    folder = root / "again"
    write_lines(folder, 12)
    for kind in sorted(KINDS):
        assert run_killed(folder, name, kind, 0 if kind == "sync leases" else 1), kind
    assert not run_killed(folder, name)
    return account(folder)


def account(folder):
    """Return what became of the lines, by name."""
    return ask_forked(lambda: check(folder)._asdict())


def main():
    root, how = Path(sys.argv[1]), sys.argv[2]
    name = sys.argv[3] if len(sys.argv) > 3 else "WordCount"
    print(json.dumps([die_again(root, name)] if how == "again" else die_once(root, name, int(how))))


if __name__ == "__main__":
    main()
