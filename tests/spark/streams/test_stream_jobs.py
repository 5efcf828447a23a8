"""The micro-batches of streaming queries that run now."""

from __future__ import annotations

from types import SimpleNamespace

from acker.spark.streams.stream_jobs import StreamJobs
from tests.spark.test_report_receiver import Now


def tracker_of(**stages):
    """Return a tracker of Spark where each run has a job with one stage that runs."""
    numbers = {run_id: number for number, run_id in enumerate(stages)}
    return SimpleNamespace(
        getJobIdsForGroup=lambda run_id: [numbers[run_id]] if run_id in numbers else [],
        getJobInfo=lambda job: SimpleNamespace(stageIds=[job]),
        getActiveStageIds=lambda: list(numbers.values()),
        getStageInfo=lambda number: SimpleNamespace(numCompletedTasks=number, numTasks=8),
    )


def test_the_micro_batch_that_has_run_longest_is_told_with_its_stage() -> None:
    now = Now()
    jobs = StreamJobs(tracker_of(one=0, two=0), now)
    jobs.begin("one", "Orders")
    now.secs = 2.0
    jobs.begin("two", "words")
    now.secs = 4.0
    jobs.rest("two", 1_200)
    now.secs = 44.0
    longest = jobs.longest("a task is in parse")
    assert longest is not None and longest.is_long
    assert (longest.name, longest.for_ms, longest.usual_ms) == ("the micro-batch of Orders", 44_000, None)
    assert longest.where == "a task is in parse; of Spark's stage 0, 0 of 8 tasks are done"
    jobs.end("one")
    longest = jobs.longest()
    assert longest is not None
    assert (longest.name, longest.for_ms, longest.usual_ms) == ("the micro-batch of words", 40_000, 1_200)


def test_a_query_that_waits_for_data_has_no_job() -> None:
    now = Now()
    jobs = StreamJobs(tracker_of(), now)
    jobs.begin("one", "Orders")
    now.secs = 60.0
    assert jobs.longest() is None
    assert StreamJobs(None, now).longest() is None
