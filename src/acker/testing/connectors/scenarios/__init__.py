"""The conformance kit: the promises of connectors, as scenarios that run against any source."""

from acker.testing.connectors.scenarios import acks, contract, failures, losses, publishers
from acker.testing.connectors.scenarios.scenario import Scenario

SCENARIOS: tuple[Scenario, ...] = (
    *contract.SCENARIOS,
    *acks.SCENARIOS,
    *failures.SCENARIOS,
    *losses.SCENARIOS,
    *publishers.SCENARIOS,
)

# Those in which no lease has to end.
WITHOUT_LEASES: frozenset[Scenario] = frozenset((*acks.SCENARIOS, *failures.SCENARIOS, *publishers.SCENARIOS))
LONG_LEASE_SECS = 600.0  # longer than any wait of a scenario

__all__ = ["LONG_LEASE_SECS", "SCENARIOS", "WITHOUT_LEASES", "Scenario"]
