"""Topologies: spouts, bolts, streams, groupings and options, independent of the runtime that runs them."""

from acker.errors import ConfError, TopologyError, TupleStateError

# bolt, component, spout, dsl and storm: streamparse's and pystorm's names, for projects that come from there.
from acker.observe.reasons import Reason, ReasonKind
from acker.topology import bolt, component, drawing, dsl, spout, storm
from acker.topology.arrow_bolt import ArrowBolt
from acker.topology.arrow_windowed import WindowedArrowBolt
from acker.topology.arrow_windows import ArrowWindow
from acker.topology.bolt import BatchingBolt, Bolt, TicklessBatchingBolt
from acker.topology.column_hash import stable_hash_column
from acker.topology.component import Component
from acker.topology.conf import inert_options
from acker.topology.definition import Topology

# FsShelter's functions, for projects that come from there.
from acker.topology.dispatch import auto_ack_bolt, auto_nack_bolt, reliable_spout, unreliable_spout
from acker.topology.graph import Graph, Node, Subscription
from acker.topology.groupings import Grouping
from acker.topology.hashing import stable_hash
from acker.topology.join_bolt import JoinArrowBolt, JoinBolt
from acker.topology.joins import Join
from acker.topology.specs import ComponentSpec, StreamId
from acker.topology.spout import ReliableSpout, Spout
from acker.topology.state import KeyValueState, StateChanges
from acker.topology.stateful import StatefulBolt
from acker.topology.streams import Stream
from acker.topology.tuples import Tuple, is_tick
from acker.topology.windowed import WindowedBolt
from acker.topology.windows import TupleWindow, Window

__all__ = [
    "ArrowBolt",
    "ArrowWindow",
    "BatchingBolt",
    "Bolt",
    "Component",
    "ComponentSpec",
    "ConfError",
    "Graph",
    "Grouping",
    "Join",
    "JoinArrowBolt",
    "JoinBolt",
    "KeyValueState",
    "Node",
    "Reason",
    "ReasonKind",
    "ReliableSpout",
    "Spout",
    "StateChanges",
    "StatefulBolt",
    "Stream",
    "StreamId",
    "Subscription",
    "TicklessBatchingBolt",
    "Topology",
    "TopologyError",
    "Tuple",
    "TupleStateError",
    "TupleWindow",
    "Window",
    "WindowedArrowBolt",
    "WindowedBolt",
    "auto_ack_bolt",
    "auto_nack_bolt",
    "bolt",
    "component",
    "drawing",
    "dsl",
    "inert_options",
    "is_tick",
    "reliable_spout",
    "spout",
    "stable_hash",
    "stable_hash_column",
    "storm",
    "unreliable_spout",
]

_OF_THE_JVM = {"JavaBolt": "Bolt", "JavaSpout": "Spout"}


def __getattr__(name: str) -> object:
    """Say what stands for a name of streamparse that does not exist here."""
    if name in _OF_THE_JVM:
        raise ImportError(
            f"acker runs no Java, so it has no {name}: write the component as a {_OF_THE_JVM[name]}; SourceSpout of"
            " acker.connectors reads queues and logs, and PublishBolt writes them"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
