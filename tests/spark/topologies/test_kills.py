"""A topology as a stream whose processes get ``kill -9``: no line is lost, and none is counted twice."""

import os

import pytest

from acker.errors import CheckpointError, RuntimeStateError
from acker.spark.topologies.micro_batch_job import why_died
from acker.spark.topologies.micro_batch_plan import MicroBatchPlan
from acker.spark.topologies.run import run
from acker.spark.topologies.stage_plan import plan_stages
from acker.topology import Bolt, Topology
from tests.components import Numbers
from tests.torture.kills import CLUSTER, LOCAL
from tests.torture.topology_kills import Program
from tests.torture.topology_kills.words import (
    BAD,
    FLAKY,
    KILL_COUNTING,
    KILL_EXECUTOR,
    KILL_WORKER,
    KILL_WRITING,
    KILL_WRITTEN,
    SOUR,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"]


def lines_of(count, special):
    """Return lines of three words, some of them with a further one."""
    lines = [" ".join(WORDS[(number + place) % len(WORDS)] for place in range(3)) for number in range(count)]
    for number, word in special.items():
        lines[number] += f" {word}"
    return lines


@pytest.mark.minutes(5)
@pytest.mark.slow
def test_a_driver_that_is_killed_again_and_again_counts_each_line_once(tmp_path):
    special = {3: BAD, 11: SOUR, 20: f"{FLAKY}-1", 45: BAD, 47: SOUR, 61: f"{FLAKY}-2", 90: SOUR, 130: f"{FLAKY}-3"}
    program = Program(tmp_path / "run", lines_of(160, special), LOCAL)
    program.dies("planned", 1)
    program.dies("before an ack is kept", 7)  # in the recovery
    program.dies("committed", 2)
    account = program.ends()
    assert (account.acked, account.dead) == (155, 5)
    assert account.told_again > 0
    assert "has the lease of this checkpoint" not in program.log.read_text()  # none waited for the one before it


@pytest.mark.minutes(6)
@pytest.mark.soak
def test_a_driver_that_is_killed_at_other_points_counts_each_line_once(tmp_path):
    """At each step with files drivers die without Spark, in test_journal_kills.py."""
    special = dict.fromkeys(range(9, 1500, 50), BAD) | {number: f"{FLAKY}-{number}" for number in range(4, 1500, 50)}
    program = Program(tmp_path / "run", lines_of(1500, special), LOCAL)
    points = {"evaluated": 2, "after a dead letter was kept": 1, "before the commit": 2, "written": 6}
    points |= {"old files of state are gone": 2, "told": 2}
    for point, number in points.items():
        program.dies(point, number)
    account = program.ends()
    assert (account.acked, account.dead) == (1470, 30)


@pytest.mark.slow
def test_workers_and_executors_that_are_killed_change_nothing(tmp_path):
    special = {5: f"{KILL_WORKER}-1", 9: BAD, 30: f"{KILL_EXECUTOR}-1", 44: f"{KILL_COUNTING}-1", 70: f"{FLAKY}-1"}
    special |= {81: SOUR, 85: f"{KILL_EXECUTOR}-2", 99: f"{KILL_WORKER}-2"}
    special |= {50: f"{KILL_WRITING}-1", 60: f"{KILL_WRITTEN}-1"}
    program = Program(tmp_path / "run", lines_of(120, special), CLUSTER)
    program.dies("before the commit", 2)
    account = program.ends()
    assert (account.acked, account.dead) == (118, 2)


class Same(Numbers):
    """Takes other numbers by the same ids."""

    def next_tuple(self):
        if not self.left:
            self.finish()
            return
        self.emit([-len(self.left)], tup_id=self.left.pop())


class Poisoned(Bolt):
    def process(self, tup):
        if tup.number == 2:
            os._exit(3)


class Fine(Bolt):
    def process(self, tup):
        pass


def topology_of(spout, bolt):
    numbers = spout.spec()
    return type("Counted", (Topology,), {"numbers": numbers, "bolt": bolt.spec(inputs=[numbers])})


@pytest.mark.slow
def test_a_tuple_that_kills_each_worker_is_told_and_waits_in_the_journal(spark, tmp_path, monkeypatch):
    options = {"spark": spark, "checkpoint": str(tmp_path), "until": "drained", "trigger": "0 seconds"}
    with pytest.raises(RuntimeStateError, match=r"a Python worker died in every attempt .* one of the bolts bolt: "):
        run(topology_of(Numbers, Poisoned), **options)
    monkeypatch.setattr(spark.sparkContext, "master", "local[2]")
    with pytest.raises(RuntimeStateError, match=r"use local\[2,4\] \(2 cores, 4 attempts\)"):
        run(topology_of(Numbers, Poisoned), **options)
    with pytest.raises(CheckpointError, match="an id stands for one tuple in all runs"):
        run(topology_of(Same, Fine), **options)
    report = run(topology_of(Numbers, Fine), **options)
    (numbers,) = (task for task in report.stats.tasks if task.component == "numbers")
    assert numbers.acked == 3


@pytest.mark.parametrize(
    ("master", "advice"),
    [
        ("local", "use local[1,4] (1 core, 4 attempts)"),
        ("local[1]", "use local[1,4] (1 core, 4 attempts)"),
        ("local[3]", "use local[3,4] (3 cores, 4 attempts)"),
        ("local[*]", "use local[*,4] (all cores, 4 attempts)"),
        ("local[2, 1]", "use local[2,4] (2 cores, 4 attempts)"),
        ("local[2,4]", None),
        ("local[*, 2]", None),
        ("local-cluster[2,1,1024]", None),
        ("spark://host:7077", None),
    ],
)
def test_a_master_that_tries_no_task_again_is_named_with_one_that_does(master, advice):
    graph = topology_of(Numbers, Fine).graph()
    plan = MicroBatchPlan(graph, {}, plan_stages(graph), partitions=1, shards=1, seed=b"")
    text = why_died(plan, master)
    if advice is None:
        assert "a Python worker died in every attempt that Spark made, while it ran one of the bolts bolt" in text
        assert "use local" not in text
    else:
        assert f"with the master {master!r} Spark tries no task again: {advice}. The worker crashed" in text
