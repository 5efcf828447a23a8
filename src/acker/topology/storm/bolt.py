"""Bolts, by the name of streamparse's module; they are all in `acker.topology`."""

from acker.topology.bolt import BatchingBolt, Bolt, TicklessBatchingBolt

__all__ = ["BatchingBolt", "Bolt", "TicklessBatchingBolt"]
