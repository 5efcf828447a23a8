"""Shipped helpers for tests and benchmarks: seeded message streams."""

from acker.testing.streams import Checksum, TreeStream

__all__ = ["Checksum", "TreeStream"]
