"""What the micro-batches of a topology have taken, and where the one that runs is."""

from __future__ import annotations

import pytest

from acker.observe.calls import Line
from acker.spark.task_reports import TaskReport
from acker.spark.topologies.batch_progress import BatchProgress, SparkStage, new_ended
from acker.spark.topologies.stage_plan import StagePlan
from acker.spark.topologies.stage_worker import TaskTime
from tests.spark.test_report_receiver import Now, session

MS = 1_000_000
STACK = (Line("/src/shop.py", 40, "Charge.process"), Line("/src/pay.py", 31, "charge"))
STAGES = StagePlan({"orders": 0, "pack": 0, "charge": 1}, frozenset({"pack"}), ("orders", "pack", "charge"))


def report(partition, call_ms, **changes):
    head = TaskReport("3", f"{partition}.100", 1, 8, partition, "worker", "charge", 60_000)
    inside = {"component": "charge", "task": 2 + partition, "source": "pack", "root_id": 77 + partition, "done": 9}
    return head._replace(call_ms=call_ms, stack=STACK, **inside)._replace(**changes)


@pytest.fixture
def progress(monkeypatch):
    progress = BatchProgress(session(), "Shop", STAGES, "tag")
    monkeypatch.setattr(progress, "active_stages", lambda: [SparkStage(8, 1, 3)])
    progress.listen(lambda _: None)
    progress.receiver._now = Now()  # no report becomes older while the test looks at it
    yield progress
    progress.close()


def run(progress, *reports):
    """Let micro-batch 3 run since 10 s, with tasks that say where they are."""
    progress.begin(3, 0, {77})
    for each in reports:
        progress.receiver.take(progress.address.seal(each), "127.0.0.1")


def rows(progress, key):
    (table,) = [each for each in progress.tables(lambda root_id: f"message {root_id}") if each["key"] == key]
    return table["rows"]


def test_a_job_is_told_with_the_stage_the_component_and_the_line(progress) -> None:
    assert progress.job(0) is None
    run(progress, report(0, 5_000), report(1, 9_000))
    assert progress.job(9_000 * MS).where == ""  # not long: nobody asks Spark
    job = progress.job(42_000 * MS)
    assert (job.name, job.for_ms, job.usual_ms) == ("micro-batch 3", 42_000, None)
    assert (
        job.where == "2 tasks are in charge, at pay.py:31 in charge; of Spark's stage 8 (charge), 1 of 3 tasks are done"
    )
    run(progress, report(1, 9_000), report(0, 0, component=None, task=None))
    assert progress.where().startswith("a task is in charge[3], at pay.py:31 in charge; ")
    run(progress, report(0, 900, usual_ms=1_000.0), report(1, 400, usual_ms=3_000.0))
    done = "18 tuples are done, with calls of 2.0 s; the longest now has run for"
    assert f" at pay.py:31 in charge (slow, not hung: {done} 900 ms); of Spark's" in progress.where()
    run(progress, report(0, 900, usual_ms=1_000.0), report(1, 7_000, usual_ms=3_000.0))
    assert f" at pay.py:31 in charge ({done} 7.0 s); of Spark's" in progress.where()
    run(progress)
    assert progress.where() == "of Spark's stage 8, 1 of 3 tasks are done"
    progress.end()
    assert progress.job(42_000 * MS) is None and progress.reports() == []


def test_a_job_is_compared_with_those_before_it(progress) -> None:
    for number, secs in enumerate((1.0, 1.2, 60.0)):
        progress.note(new_ended(number, 10, 0, secs, 1, []))
    run(progress)
    assert not progress.job(4_900 * MS).is_long
    job = progress.job(5_100 * MS)
    assert job.is_long and job.usual_ms == 1_200


def test_the_tasks_that_work_for_long_are_listed_those_with_the_longest_calls_first(progress) -> None:
    run(progress, report(0, 5_000), report(1, 9_000), report(2, 0, component=None, task=None, source=None))
    first, second, third = rows(progress, "tasks")
    assert first[:2] == ["stage 8, partition 1 on worker", "charge"]
    assert first[3:5] == ["charge[3]", "a tuple of pack (message 78)"] and first[6:] == [9, "pay.py:31 in charge"]
    assert second[0] == "stage 8, partition 0 on worker"
    assert third[3:] == [None] * 5
    calls = progress.calls(lambda _: None)
    assert {task: call.what for task, call in calls.items()} == {
        3: "a tuple of pack (root id 78)",
        2: "a tuple of pack (root id 77)",
    }


def test_the_stages_of_the_last_micro_batch_show_skew_and_the_time_of_the_state(progress) -> None:
    tasks = [
        TaskTime(0, 0, 50 * MS, 0, 30),
        *(TaskTime(1, number, (100 if number != 2 else 900) * MS, number * MS, 10 * number) for number in range(3)),
    ]
    progress.note(new_ended(3, 28, 2, 1.5, 2, tasks))
    first, second = rows(progress, "stages")
    assert first == ["orders, pack", 1, 30, 50, 50, "partition 0, with 30 tuples", 0]
    assert second == ["charge", 3, 30, 100, 900, "partition 2, with 20 tuples", 2]
    (batch,) = rows(progress, "batches")
    assert batch[0] == "3" and batch[2:] == [28, 2, 1_500, 2, 2]
