"""Topologies: spouts, bolts, streams, groupings and options, independent of the runtime that runs them."""

from acker._engine.implementation import NAME, compiled_only
from acker.errors import ConfError, TopologyError, TupleStateError

if NAME == "python":
    raise compiled_only("acker.topology")

from acker.topology import bolt, component, dsl, spout, storm
from acker.topology.bolt import BatchingBolt, Bolt, TicklessBatchingBolt
from acker.topology.collector import BoltCollector, Collector, SpoutCollector
from acker.topology.component import Component
from acker.topology.definition import Topology
from acker.topology.dispatch import auto_ack_bolt, auto_nack_bolt, reliable_spout, unreliable_spout
from acker.topology.graph import Graph, Node, Subscription, graph_of
from acker.topology.groupings import Grouping
from acker.topology.hashing import stable_hash
from acker.topology.reasons import Reason, ReasonKind
from acker.topology.specs import ComponentSpec, StreamId
from acker.topology.spout import ReliableSpout, Spout
from acker.topology.streams import Stream
from acker.topology.tuples import Tuple, TupleSource, is_tick

__all__ = [
    "BatchingBolt",
    "Bolt",
    "BoltCollector",
    "Collector",
    "Component",
    "ComponentSpec",
    "ConfError",
    "Graph",
    "Grouping",
    "Node",
    "Reason",
    "ReasonKind",
    "ReliableSpout",
    "Spout",
    "SpoutCollector",
    "Stream",
    "StreamId",
    "Subscription",
    "TicklessBatchingBolt",
    "Topology",
    "TopologyError",
    "Tuple",
    "TupleSource",
    "TupleStateError",
    "auto_ack_bolt",
    "auto_nack_bolt",
    "bolt",
    "component",
    "dsl",
    "graph_of",
    "is_tick",
    "reliable_spout",
    "spout",
    "stable_hash",
    "storm",
    "unreliable_spout",
]
