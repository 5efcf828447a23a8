"""What a topology is: components, streams, groupings, options. The one door; it knows no runtime."""

from acker._engine.implementation import NAME, compiled_only
from acker.errors import ConfError, TopologyError, TupleStateError

if NAME == "python":
    raise compiled_only("acker.topology")

from acker.topology import bolt, component, dsl, spout, storm
from acker.topology.builder import ComponentSpec, StreamId, Topology
from acker.topology.components import (
    BatchingBolt,
    Bolt,
    BoltCollector,
    Collector,
    Component,
    Spout,
    SpoutCollector,
    TicklessBatchingBolt,
)
from acker.topology.dispatch import auto_ack_bolt, auto_nack_bolt, reliable_spout, unreliable_spout
from acker.topology.graph import Graph, Node, Subscription, graph_of
from acker.topology.reasons import Reason, ReasonKind
from acker.topology.reliable import ReliableSpout
from acker.topology.streams import Grouping, Stream, stable_hash
from acker.topology.tuples import Source, Tuple, is_tick

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
    "Source",
    "Spout",
    "SpoutCollector",
    "Stream",
    "StreamId",
    "Subscription",
    "TicklessBatchingBolt",
    "Topology",
    "TopologyError",
    "Tuple",
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
