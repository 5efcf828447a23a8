"""Components, by the name of streamparse's package; they are all in `acker.topology`."""

from acker.topology.storm.bolt import BatchingBolt, Bolt, TicklessBatchingBolt
from acker.topology.storm.component import Component, Tuple
from acker.topology.storm.spout import ReliableSpout, Spout

__all__ = ["BatchingBolt", "Bolt", "Component", "ReliableSpout", "Spout", "TicklessBatchingBolt", "Tuple"]
