"""The names of streamparse's package `dsl`, for projects that come from there; `acker.topology` has all of them."""

from acker.topology.dsl.component import ComponentSpec
from acker.topology.dsl.stream import Grouping, Stream
from acker.topology.dsl.topology import Topology

__all__ = ["ComponentSpec", "Grouping", "Stream", "Topology"]
