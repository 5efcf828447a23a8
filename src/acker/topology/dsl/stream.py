"""Streams and groupings, by the name of streamparse's module; they are in `acker.topology`."""

from acker.topology.streams import Grouping, Stream

__all__ = ["Grouping", "Stream"]
