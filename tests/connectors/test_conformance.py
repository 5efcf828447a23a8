"""The conformance kit against each source of acker, on a real server."""

from __future__ import annotations

import contextlib

import pytest

from acker.testing.connectors import SCENARIOS
from tests.connectors.harnesses import (
    JetStreamHarness,
    KafkaHarness,
    PostgreSQLHarness,
    RedisHarness,
    SQSHarness,
)

each_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)


@each_scenario
def test_redis_streams(redis, scenario):
    with contextlib.closing(RedisHarness(redis)) as harness:
        scenario(harness)


@each_scenario
def test_jetstream(nats, scenario):
    with contextlib.closing(JetStreamHarness(nats)) as harness:
        scenario(harness)


@each_scenario
def test_postgresql(postgresql, scenario):
    with contextlib.closing(PostgreSQLHarness(postgresql)) as harness:
        scenario(harness)


@each_scenario
def test_sqs(sqs, scenario):
    with contextlib.closing(SQSHarness(sqs)) as harness:
        scenario(harness)


@each_scenario
def test_kafka(kafka, scenario):
    with contextlib.closing(KafkaHarness(kafka)) as harness:
        scenario(harness)
