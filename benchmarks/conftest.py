"""What the pytest-benchmark files share."""

import os

import pytest

from benchmarks.suite.measure import SCALES


@pytest.fixture(scope="session")
def scale():
    """How large: ACKER_BENCH_SCALE=full, quick or tiny."""
    return SCALES[os.environ.get("ACKER_BENCH_SCALE", "quick")]
