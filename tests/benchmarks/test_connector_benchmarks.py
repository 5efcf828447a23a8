"""The benchmarks of the connectors do what they say, on real servers, with few messages."""

import pytest

from acker.remote import runs
from benchmarks.suite import connectors, live_page, task_queues
from benchmarks.suite.measure import TINY

CASES = [case for case in connectors.CASES if not case.missing()]


def cases_of(broker):
    cases = [case for case in CASES if case.name.split("/")[1] == broker]
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


def run(case):
    result = case.run(TINY)
    assert result.checksum["messages"] == result.parameters["messages"] >= 20
    assert result.spread(connectors.CONSUMER).least > 0


@pytest.mark.soak  # the quickest takes a minute
@cases_of("rabbitmq")
def test_rabbitmq(rabbitmq, monkeypatch, case):
    monkeypatch.setenv("ACKER_RABBITMQ_URL", rabbitmq.url)
    run(case)


@pytest.mark.slow
@cases_of("redis")
def test_redis(redis, monkeypatch, case):
    monkeypatch.setenv("ACKER_REDIS_URL", redis.url)
    run(case)


@pytest.mark.slow
@cases_of("kafka")
def test_kafka(kafka, monkeypatch, case):
    monkeypatch.setenv("ACKER_KAFKA_URL", kafka.url)
    run(case)


@pytest.mark.soak
@pytest.mark.leaves_behind("Celery keeps its connections")
@pytest.mark.parametrize("case", [case for case in task_queues.CASES if not case.missing()], ids=lambda case: case.name)
def test_jobs_of_task_queues(redis, monkeypatch, case):
    monkeypatch.setenv("ACKER_REDIS_URL", redis.url)
    monkeypatch.setattr(runs, "INTEGRATED", set())  # else consumers of other tests would warn
    result = case.run(TINY)
    assert result.checksum["jobs"] == 20
    assert all(result.spread(side).least > 0 for side in result.samples)


def test_a_consumer_with_an_open_page_and_without_one():
    result = live_page.live_consumer(TINY)
    assert result.checksum == {"units": 100}
    assert all(each["readings"] for each in result.parameters["seen"])


def test_there_are_cases():
    assert len(CASES) >= 5


@pytest.mark.soak
def test_messages_that_a_side_leaves_are_noticed(rabbitmq, monkeypatch):
    monkeypatch.setenv("ACKER_RABBITMQ_URL", rabbitmq.url)
    with pytest.raises(AssertionError, match="messages left by Consumer: expected 0, got 20"):
        connectors._compare(
            TINY,
            broker=connectors.RABBITMQ,
            bare=connectors._pika,
            consumer=lambda source, count: None,
            messages=1,
            children=1,
            goal=None,
        )
    connectors._pika(rabbitmq.url, 20)
