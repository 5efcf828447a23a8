"""How a topology is written down, by the name of streamparse's package; all of it is in `acker.topology`."""

from acker.topology.dsl.component import ComponentSpec
from acker.topology.dsl.stream import Grouping, Stream
from acker.topology.dsl.topology import Topology

__all__ = ["ComponentSpec", "Grouping", "Stream", "Topology"]
