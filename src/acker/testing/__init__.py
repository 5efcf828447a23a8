"""Shipped helpers for tests and benchmarks: seeded message streams, a clock to turn by hand."""

from acker.testing.clock import ManualClock
from acker.testing.streams import Checksum, TreeStream

__all__ = ["Checksum", "ManualClock", "TreeStream"]
