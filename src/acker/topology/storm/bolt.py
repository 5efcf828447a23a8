"""The names of streamparse's module, for projects that come from there; `acker.topology` has them too."""

from acker.topology.bolt import BatchingBolt, Bolt, TicklessBatchingBolt

__all__ = ["BatchingBolt", "Bolt", "TicklessBatchingBolt"]
