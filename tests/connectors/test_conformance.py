"""The conformance kit against each source of acker, on a real server. RabbitMQ: test_rabbitmq_promises.py."""

from __future__ import annotations

import pytest

from acker.testing.connectors import SCENARIOS
from tests.connectors.contract import ONE_OF_EACH_PROMISE, ServerContract
from tests.connectors.harnesses import (
    JetStreamHarness,
    KafkaHarness,
    PostgreSQLHarness,
    RedisHarness,
    SQSHarness,
)


class TestRedisStreams(ServerContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis):
        self.server = redis

    def harness(self):
        return RedisHarness(self.server)


class TestJetStream(ServerContract):
    @pytest.fixture(autouse=True)
    def _server(self, nats):
        self.server = nats

    def harness(self):
        return JetStreamHarness(self.server)


class TestPostgreSQL(ServerContract):
    @pytest.fixture(autouse=True)
    def _server(self, postgresql):
        self.server = postgresql

    def harness(self):
        return PostgreSQLHarness(self.server)


class TestSQS(ServerContract):
    @pytest.fixture(autouse=True)
    def _server(self, sqs):
        self.server = sqs

    def harness(self):
        return SQSHarness(self.server)


class TestKafka(ServerContract):
    @pytest.fixture(autouse=True)
    def _server(self, kafka):
        self.server = kafka

    def harness(self):
        return KafkaHarness(self.server)


def test_each_scenario_that_is_not_slow_is_one_of_the_kit():
    assert {scenario.__name__ for scenario in SCENARIOS} > ONE_OF_EACH_PROMISE
