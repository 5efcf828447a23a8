"""The names of streamparse's module, for projects that come from there; `acker.topology` has them too."""

from acker.topology.definition import Topology

__all__ = ["Topology"]
