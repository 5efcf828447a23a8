"""What the tests of topologies on Spark share."""

import logging

import pytest


@pytest.fixture
def quiet():
    """Let nothing be logged: what components raise on purpose would be pages."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)
