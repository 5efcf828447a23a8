"""The figures of a topology that the tests of this folder show."""

import pytest

from tests.figures import Runtime


@pytest.fixture
def runtime() -> Runtime:
    return Runtime()
