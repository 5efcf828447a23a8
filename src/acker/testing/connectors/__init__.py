"""Helpers for tests of connectors: a broker in memory that can be told to misbehave."""

from acker.testing.connectors.broker import MemoryBroker, MemoryMessage
from acker.testing.connectors.publisher import MemoryPublisher
from acker.testing.connectors.source import MemorySource

__all__ = ["MemoryBroker", "MemoryMessage", "MemoryPublisher", "MemorySource"]
