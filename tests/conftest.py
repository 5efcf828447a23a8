"""What the tests share: both implementations of the acker, and one Hypothesis profile."""

import os

import pytest
from hypothesis import HealthCheck, settings

import acker

# The machine is shared and may be slow, so no deadline. In CI the same examples every time; elsewhere new ones, and
# what failed is kept in .hypothesis.
settings.register_profile(
    "acker", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.register_profile("ci", parent=settings.get_profile("acker"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "acker")


@pytest.fixture(params=[acker.Acker, acker.ReferenceAcker], ids=["native", "reference"])
def acker_type(request):
    """Both implementations: whatever holds for the one holds for the other."""
    return request.param


@pytest.fixture
def scarce_memory():
    """Whatever a test does to allocations ends with it."""
    yield
    acker._core.fail_allocations_after(-1)
