"""The conformance kit as a class of tests, one for each scenario: what the author of a source subclasses."""

from __future__ import annotations

import abc
from collections.abc import Callable

from acker.testing.connectors.harness import SourceHarness
from acker.testing.connectors.scenarios import LONG_LEASE_SECS, SCENARIOS, WITHOUT_LEASES, Scenario


class SourceContract(abc.ABC):
    """All scenarios as tests: subclass it with a name that pytest collects, and return a harness.

    Each test makes its own harness and closes it. Add `unittest.TestCase` as a second base class to run the tests with
    unittest.

    Examples
    --------
    >>> from acker.testing.connectors import MemoryBroker, MemorySource, SourceContract, SourceHarness
    >>> class MemoryHarness(SourceHarness):
    ...     def __init__(self):
    ...         self.broker = MemoryBroker()
    ...
    ...     def source(self):
    ...         return MemorySource(self.broker)
    ...
    ...     def publish(self, values, headers=None):
    ...         self.broker.publish(values, headers)
    ...
    ...     def left(self):
    ...         return self.broker.left()
    >>> class TestMemory(SourceContract):
    ...     def harness(self):
    ...         return MemoryHarness()
    >>> TestMemory().test_messages_end_in_any_order()
    """

    @abc.abstractmethod
    def harness(self) -> SourceHarness:
        """Return a harness with a fresh queue."""


def method_for(scenario: Scenario) -> Callable[[SourceContract], None]:
    """Return the method that runs a scenario against a harness of its own."""

    def method(self: SourceContract) -> None:
        harness = self.harness()
        if scenario in WITHOUT_LEASES:
            harness.lease_secs = LONG_LEASE_SECS
        try:
            scenario(harness)
        finally:
            harness.close()

    method.__name__ = f"test_{scenario.__name__}"
    method.__qualname__ = f"{SourceContract.__qualname__}.{method.__name__}"
    method.__doc__ = scenario.__doc__
    return method


for _scenario in SCENARIOS:
    setattr(SourceContract, f"test_{_scenario.__name__}", method_for(_scenario))
