"""The benchmarks of the connectors do what they say, on real servers, with few messages."""

import pytest

from benchmarks.suite import connectors
from benchmarks.suite.measure import TINY

CASES = [case for case in connectors.CASES if not case.missing()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rabbitmq(rabbitmq, monkeypatch, case):
    monkeypatch.setenv("ACKER_RABBITMQ_URL", rabbitmq.url)
    result = case.run(TINY)
    assert result.checksum == {"messages": 20}
    assert result.spread(connectors.CONSUMER).least > 0


def test_there_are_cases():
    assert len(CASES) >= 2


def test_messages_that_a_side_leaves_are_noticed(rabbitmq, monkeypatch):
    monkeypatch.setenv("ACKER_RABBITMQ_URL", rabbitmq.url)
    with pytest.raises(AssertionError, match="messages left by Consumer: expected 0, got 20"):
        connectors._compare(
            TINY, bare=connectors._pika, consumer=lambda url, count: None, messages=1, children=1, goal=None
        )
    connectors._pika(rabbitmq.url, 20)
