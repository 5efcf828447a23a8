"""Topologies, by the name of streamparse's module; they are in `acker.topology`."""

from acker.topology.definition import Topology

__all__ = ["Topology"]
