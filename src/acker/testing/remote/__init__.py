"""Helpers for tests of task queues: scenarios that any integration of acker.remote has to pass with real workers."""

from acker.testing.connectors.harness import NotApplicable
from acker.testing.remote.contract import QueueContract
from acker.testing.remote.harness import QueueHarness
from acker.testing.remote.plans import Notes, Plan, perform
from acker.testing.remote.scenarios import SCENARIOS, Scenario

__all__ = [
    "SCENARIOS",
    "NotApplicable",
    "Notes",
    "Plan",
    "QueueContract",
    "QueueHarness",
    "Scenario",
    "perform",
]
