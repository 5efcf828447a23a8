"""The names of streamparse's package `storm`, for projects that come from there; `acker.topology` has all of them."""

from acker.topology.storm.bolt import BatchingBolt, Bolt, TicklessBatchingBolt
from acker.topology.storm.component import Component, Tuple
from acker.topology.storm.spout import ReliableSpout, Spout

__all__ = ["BatchingBolt", "Bolt", "Component", "ReliableSpout", "Spout", "TicklessBatchingBolt", "Tuple"]
