"""Fixtures: a runtime with fixed figures, and more time for threads to end."""

import pytest

from acker.local import topology_run
from tests.figures import Runtime


@pytest.fixture
def runtime() -> Runtime:
    return Runtime()


@pytest.fixture
def long_grace(monkeypatch) -> None:
    """Leave no thread behind that was only slow to end."""
    monkeypatch.setattr(topology_run, "GRACE_SECS", 600)
