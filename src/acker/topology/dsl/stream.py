"""Streams and groupings, by the name of streamparse's module; they are in `acker.topology`."""

from acker.topology.groupings import Grouping
from acker.topology.streams import Stream

__all__ = ["Grouping", "Stream"]
