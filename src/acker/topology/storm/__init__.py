"""The names of streamparse's `storm`, and Storm's stateful and windowed bolts; `acker.topology` has them too."""

from acker.topology.state import KeyValueState
from acker.topology.stateful import StatefulBolt
from acker.topology.storm.bolt import BatchingBolt, Bolt, TicklessBatchingBolt
from acker.topology.storm.component import Component, Tuple
from acker.topology.storm.spout import ReliableSpout, Spout
from acker.topology.windowed import WindowedBolt
from acker.topology.windows import TupleWindow, Window

__all__ = [
    "BatchingBolt",
    "Bolt",
    "Component",
    "KeyValueState",
    "ReliableSpout",
    "Spout",
    "StatefulBolt",
    "TicklessBatchingBolt",
    "Tuple",
    "TupleWindow",
    "Window",
    "WindowedBolt",
]
