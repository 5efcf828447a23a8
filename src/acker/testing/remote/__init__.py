"""Helpers for tests of task queues: scenarios that any integration of acker.remote has to pass with real workers."""

from acker.testing.remote.contract import QueueContract
from acker.testing.remote.harness import QueueHarness
from acker.testing.remote.plans import JobNotes, JobPlan, perform
from acker.testing.remote.scenarios import SCENARIOS, Scenario

__all__ = [
    "SCENARIOS",
    "JobNotes",
    "JobPlan",
    "QueueContract",
    "QueueHarness",
    "Scenario",
    "perform",
]
