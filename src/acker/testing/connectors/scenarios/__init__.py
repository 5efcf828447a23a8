"""The conformance kit: the promises of connectors, as scenarios that run against any source."""

from acker.testing.connectors.scenarios import acks, contract, failures, losses, publishers
from acker.testing.connectors.scenarios.registry import Scenario

SCENARIOS: tuple[Scenario, ...] = (
    *contract.SCENARIOS,
    *acks.SCENARIOS,
    *failures.SCENARIOS,
    *losses.SCENARIOS,
    *publishers.SCENARIOS,
)

__all__ = ["SCENARIOS", "Scenario"]
