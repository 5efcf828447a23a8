"""The kit as a class of tests, one for each scenario: what the author of an integration subclasses."""

from __future__ import annotations

import abc
from collections.abc import Callable

from acker.testing.remote.harness import QueueHarness
from acker.testing.remote.scenarios import SCENARIOS, Scenario


class QueueContract(abc.ABC):
    """All scenarios as tests: subclass it with a name that pytest collects, and return a harness whose worker runs.

    All tests may use one harness: each scenario has notes of its own, and leaves a worker that runs.

    Examples
    --------
    >>> class TestMyQueue(QueueContract):                     # doctest: +SKIP
    ...     @pytest.fixture(autouse=True)
    ...     def use(self, my_harness):
    ...         self.my_harness = my_harness
    ...
    ...     def harness(self):
    ...         return self.my_harness
    """

    @abc.abstractmethod
    def harness(self) -> QueueHarness:
        """Return a harness whose worker runs."""


def _method_for(scenario: Scenario) -> Callable[[QueueContract], None]:
    """Return the method that runs a scenario."""

    def method(self: QueueContract) -> None:
        scenario(self.harness())

    method.__name__ = f"test_{scenario.__name__}"
    method.__qualname__ = f"{QueueContract.__qualname__}.{method.__name__}"
    method.__doc__ = scenario.__doc__
    return method


for _scenario in SCENARIOS:
    setattr(QueueContract, f"test_{_scenario.__name__}", _method_for(_scenario))
