"""Bolts, by the name of streamparse's and pystorm's module; they are all in `acker.topology`."""

from acker.topology.components import BatchingBolt, Bolt, TicklessBatchingBolt

__all__ = ["BatchingBolt", "Bolt", "TicklessBatchingBolt"]
