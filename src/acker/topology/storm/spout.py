"""Spouts, by the name of streamparse's module; they are all in `acker.topology`."""

from acker.topology.spout import ReliableSpout, Spout

__all__ = ["ReliableSpout", "Spout"]
