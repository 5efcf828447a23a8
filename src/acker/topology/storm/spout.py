"""The names of streamparse's module, for projects that come from there; `acker.topology` has them too."""

from acker.topology.spout import ReliableSpout, Spout

__all__ = ["ReliableSpout", "Spout"]
