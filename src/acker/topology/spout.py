"""Spouts, by the name of streamparse's and pystorm's module; they are all in `acker.topology`."""

from acker.topology.components import Spout
from acker.topology.reliable import ReliableSpout

__all__ = ["ReliableSpout", "Spout"]
