"""Fixtures: a runtime with fixed figures."""

import pytest

from tests.figures import Runtime


@pytest.fixture
def runtime() -> Runtime:
    return Runtime()
