"""Helpers for tests of connectors: a broker in memory that can misbehave, and scenarios that any source has to pass."""

from acker.testing.connectors.broker import MemoryBroker, MemoryMessage
from acker.testing.connectors.consumer_run import ConsumerRun
from acker.testing.connectors.contract import SourceContract
from acker.testing.connectors.handled import Handled, run_once
from acker.testing.connectors.harness import NotApplicable, SourceHarness
from acker.testing.connectors.publisher import MemoryPublisher
from acker.testing.connectors.scenarios import SCENARIOS, Scenario
from acker.testing.connectors.source import MemorySource
from acker.testing.connectors.watched import WatchedSource

__all__ = [
    "SCENARIOS",
    "ConsumerRun",
    "Handled",
    "MemoryBroker",
    "MemoryMessage",
    "MemoryPublisher",
    "MemorySource",
    "NotApplicable",
    "Scenario",
    "SourceContract",
    "SourceHarness",
    "WatchedSource",
    "run_once",
]
