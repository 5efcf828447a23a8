"""What the tests of topologies on Spark share."""

import logging

import pytest

from acker.spark.topologies import spark_executor
from acker.spark.topologies.bolt_state import KeptStates
from acker.spark.topologies.kept_bolts import KeptBolts


@pytest.fixture(autouse=True)
def new_worker():
    """Let each test begin like a new worker: some run stages in their own process, where bolts and states are kept."""
    KeptBolts.clear()
    KeptStates.clear()


@pytest.fixture
def full_batches(monkeypatch):
    """Let a micro-batch wait until it is full, however slowly the tuples come; `topology.max.spout.pending` fill it."""
    monkeypatch.setattr(spark_executor, "_LINGER_NS", 3600 * 10**9)


@pytest.fixture
def quiet():
    """Let nothing be logged: what components raise on purpose would be pages."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)
