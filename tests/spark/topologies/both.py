"""Both runtimes side by side: one topology runs in this process and on Spark, and what was seen is compared."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import acker.local
import acker.spark
from acker.testing import Scheduler
from acker.topology import ReliableSpout, Spout

# The option with the folder of the notes: the bolts run in this process or in Spark's workers.
FOLDER = "user.notes"


def note(component, *what):
    """Keep what a component has seen, with its task."""
    path = Path(component.storm_conf[FOLDER], f"{component.component_name}-{component.task_id}-{os.getpid()}")
    with path.open("ab") as file:
        pickle.dump((component.component_name, component.task_id, *what), file)


def is_first(component, *what):
    """Return whether this is the first call with these arguments in a run: for faults that a second attempt passes."""
    name = "-".join(map(str, (component.component_name, *what)))
    try:
        Path(component.storm_conf[FOLDER], f".{name}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@dataclass
class End:
    """How a run ended.

    Attributes
    ----------
    report : RunReport
    notes : Counter
        (component, task, *what) -> how often that was noted.
    """

    report: object
    notes: Counter

    def of(self, component, *, tasks=True):
        """Return the notes of a component, with or without its tasks."""
        return Counter(
            {key: count for key, count in self.notes.items() if key[0] == component}
            if tasks
            else [key[2:] for key in self.notes.elements() if key[0] == component]
        )

    @property
    def figures(self):
        """Return component -> what both runtimes count alike."""
        return {
            name: {
                "executed": row.executed if row.kind == "bolt" else None,  # spouts are asked as often as there is time
                **{
                    what: getattr(row, what) for what in ("acked", "failed", "timed_out", "dead_letters", "transferred")
                },
                "emitted": {stream: count for stream, count in row.emitted.items() if count},
                "user": dict(row.user),
            }
            for name, row in self.report.stats.components().items()
            if row.kind != "acker"
        }


@dataclass
class Both:
    """How a topology ended in this process and on Spark."""

    local: End
    spark: End

    def differences(self, *without):
        """Return what the reports count differently, apart from some figures: here, and on Spark."""
        ours, theirs = self.local.figures, self.spark.figures
        assert ours.keys() == theirs.keys()
        return {
            (name, what): (ours[name][what], theirs[name][what])
            for name in ours
            for what in ours[name]
            if what not in without and ours[name][what] != theirs[name][what]
        }


def read_notes(folder):
    """Return what was noted below a folder."""
    notes = Counter()
    for path in Path(folder).iterdir():
        if path.name.startswith("."):
            continue
        with path.open("rb") as file:
            while file.peek(1):
                notes[pickle.load(file)] += 1
    return notes


def run_local(topology, folder, conf=None, **options):
    """Run a topology in this process."""
    folder.mkdir(parents=True)
    report = acker.local.run(topology, {FOLDER: str(folder), **(conf or {})}, until="drained", **options)
    return End(report, read_notes(folder))


def run_scheduled(topology, folder, conf=None):
    """Run a topology in this process on a clock that is turned only when nothing is left to do."""
    folder.mkdir(parents=True)
    with Scheduler.of(topology, {FOLDER: str(folder), **(conf or {})}) as scheduler:
        report = scheduler.drain()
    return End(report, read_notes(folder))


def run_spark(topology, spark, folder, conf=None, **options):
    """Run a topology on Spark."""
    folder.mkdir(parents=True)
    conf = {FOLDER: str(folder), **(conf or {})}
    report = acker.spark.run(topology, conf, spark=spark, **{"until": "drained", **options})
    return End(report, read_notes(folder))


def run_both(topology, spark, folder, conf=None, **options):
    """Run a topology on both runtimes."""
    local = run_local(topology, folder / "local", conf, **options)
    return Both(local, run_spark(topology, spark, folder / "spark", conf, **options))


class Numbers(Spout):
    """Emits numbers, and keeps how they end.

    Attributes
    ----------
    numbers : iterable of int
    """

    outputs = ["n", "key"]
    numbers = range(30)

    def initialize(self, conf, context):
        tasks = len(context["component->tasks"][self.component_name])
        self.todo = [n for n in self.numbers if n % tasks == self.task_index]

    def next_tuple(self):
        if not self.todo:
            self.finish()
            return
        n = self.todo.pop(0)
        self.emit([n, n % 5], tup_id=n)

    def ack(self, tup_id):
        note(self, "ack", tup_id)

    def fail(self, tup_id, reason):
        note(self, "fail", tup_id, reason.kind.name, reason.component, reason.exception, reason.attempt)


class ReliableNumbers(Numbers, ReliableSpout):
    """Emits them again when they fail."""

    backoff_secs = 0.02
    attempts_max = 3

    def ack(self, tup_id):
        note(self, "ack", tup_id)
        ReliableSpout.ack(self, tup_id)

    def fail(self, tup_id, reason):
        Numbers.fail(self, tup_id, reason)
        ReliableSpout.fail(self, tup_id, reason)

    def dead_letter(self, tup_id, values, reason):
        note(self, "dead", tup_id, tuple(values), reason.kind.name, reason.component, reason.exception, reason.attempt)
