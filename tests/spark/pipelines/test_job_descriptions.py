"""Spark's UI names the components of a pipeline at the jobs and stages that belong to it."""

from __future__ import annotations

import sys

import pytest
from pyspark import cloudpickle

from acker.spark import spout

# The workers cannot import the tests; functions of this module travel as code.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.spark

GRAPH = "orders > where(number <> 2) > echo"


def echo(row):
    return [tuple(row)]


def descriptions_of(spark, run) -> set[str | None]:
    """Return the descriptions that Spark's UI has of the jobs which a function starts, and of their stages."""
    context = spark.sparkContext._jsc.sc()

    def jobs():
        context.listenerBus().waitUntilEmpty()
        listed = context.statusStore().jobsList(None)
        return {each.jobId(): each for each in map(listed.apply, range(listed.size()))}

    def text_of(shown):
        return shown.description().get() if shown.description().isDefined() else None

    before = jobs().keys()
    run()
    fresh = [job for number, job in jobs().items() if number not in before]
    assert fresh
    stages = [context.statusStore().lastStageAttempt(number) for job in fresh for number in map(int, numbers_of(job))]
    # Of a stage that was skipped, as its shuffle is there from another job, Spark keeps none.
    return {text_of(each) for each in fresh} | {text_of(each) for each in stages if str(each.status()) != "SKIPPED"}


def numbers_of(job):
    numbers = job.stageIds()
    return [numbers.apply(index) for index in range(numbers.size())]


@pytest.fixture
def described(spark):
    """What this thread has set for its jobs, in a function that reads it; nothing at first and behind the test."""
    context = spark.sparkContext
    context.setLocalProperty("spark.job.description", None)
    yield lambda: context.getLocalProperty("spark.job.description")
    context.setLocalProperty("spark.job.description", None)


@pytest.mark.slow
def test_jobs_of_a_pipeline_have_its_components_and_steps(spark, described) -> None:
    orders = spark.createDataFrame([(1, "a"), (2, "b")], "number long, word string")
    rows = spout(orders, message_id="number", component="orders", run_seed=1).where("number <> 2")
    pipeline = rows.bolt(echo, schema="number long, word string", sink=True)
    assert descriptions_of(spark, pipeline.acked) == {f"acked(): {GRAPH}"}
    assert descriptions_of(spark, pipeline.counters) == {f"counters(): {GRAPH}"}
    assert descriptions_of(spark, pipeline.data().collect) == {None}
    spark.sparkContext.setJobDescription("nightly")
    assert descriptions_of(spark, pipeline.counters) == {f"nightly: counters(): {GRAPH}"}
    totals = rows.grouped("word").agg("count(*) as n")
    with totals.described():
        steps = "orders > where(number <> 2) > fields(word) > agg(count(*) as n)"
        assert descriptions_of(spark, totals.data().collect) == {f"nightly: {steps}"}
    assert described() == "nightly"


def test_what_the_program_has_set_is_set_again_behind_an_error(spark, described) -> None:
    pipeline = spout(spark.range(1), message_id="id", component="numbers", run_seed=1)
    spark.sparkContext.setJobDescription("nightly")

    def fail() -> None:
        with pipeline.described("sums"):
            assert described() == "nightly: sums: numbers"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert described() == "nightly"
