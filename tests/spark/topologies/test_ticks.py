"""Ticks of a stream on Spark: they come with micro-batches, also those without tuples, and from the journal."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from acker.spark import run
from acker.spark.topologies.journal import Journal
from acker.spark.topologies.micro_batches import MicroBatches
from acker.topology import Bolt, Grouping, Spout, Topology
from tests.spark.topologies.both import FOLDER, read_notes

pytestmark = pytest.mark.spark

TICKS = "topology.tick.tuple.freq.secs"


def ticks_of(folder):
    """Return the tasks that have had a tick, as often as they had one."""
    return [int(path.name.split("-")[1]) for path in Path(folder).glob(".tick-*")]


class Patient(Spout):
    """Emits a tuple, and ends when each task of the bolt has had some ticks."""

    outputs = ["n"]
    ticks = 3

    def initialize(self, conf, context):
        self.folder, self.tasks = conf[FOLDER], context["component->tasks"]["ticked"]
        self.todo = [1]

    def next_tuple(self):
        if self.todo:
            self.emit([self.todo.pop()], tup_id=1)
        had = ticks_of(self.folder)
        if all(had.count(task) >= self.ticks for task in self.tasks):
            self.finish()


class Ticked(Bolt):
    """Leaves a file for each tick."""

    def process(self, tup):
        pass

    def process_tick(self, tup):
        Path(self.storm_conf[FOLDER], f".tick-{self.task_id}-{uuid.uuid4().hex}").touch()


class Unticked(Bolt):
    """Has no ticks."""

    def process(self, tup):
        pass

    def process_tick(self, tup):
        raise AssertionError("the option is that of another component")


class Ticking(Topology):
    """One bolt of two has ticks, and they are due by each micro-batch."""

    patient = Patient.spec()
    ticked = Ticked.spec(inputs={patient: Grouping.fields("n")}, par=2, config={TICKS: 1e-6})
    unticked = Unticked.spec(inputs=[patient])


class Impatient(Patient):
    ticks = 0


class Rare(Topology):
    """The same with ticks that are never due, and a spout that waits for none."""

    patient = Impatient.spec()
    ticked = Ticked.spec(inputs={patient: Grouping.fields("n")}, par=2, config={TICKS: 600})
    unticked = Unticked.spec(inputs=[patient])


def run_stream(topology, spark, folder):
    options = {"checkpoint": str(folder / "checkpoint"), "trigger": "0 seconds", "until": "drained"}
    return run(topology, {FOLDER: str(folder / "notes")}, spark=spark, **options)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "notes").mkdir()
    return tmp_path


def test_each_task_of_the_bolt_gets_ticks_from_micro_batches_without_tuples(spark, folder):
    report = run_stream(Ticking, spark, folder)
    assert (report.outcome, report.stats.totals.acked) == ("drained", 1)
    had = ticks_of(folder / "notes")
    last, _ = Journal(str(folder / "checkpoint")).last_commit()
    assert len(set(had)) == 2 and last >= 2
    assert not read_notes(folder / "notes")


def test_ticks_that_are_not_due_do_not_come(spark, folder):
    assert run_stream(Rare, spark, folder).stats.totals.acked == 1
    assert ticks_of(folder / "notes") == []


def test_a_micro_batch_that_is_done_again_has_the_ticks_of_its_plan(spark, folder, monkeypatch):
    class CrashError(Exception):
        pass

    def crash(*_):
        raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(MicroBatches, "_evaluate", crash)
        with pytest.raises(CrashError):
            run_stream(Ticking, spark, folder)
    assert ticks_of(folder / "notes") == []
    run_stream(Rare, spark, folder)
    tasks = Rare.graph().nodes["ticked"].tasks
    assert sorted(ticks_of(folder / "notes")) == list(tasks)
