"""The names of streamparse's module, for projects that come from there; `acker.topology` has them too."""

from acker.topology.groupings import Grouping
from acker.topology.streams import Stream

__all__ = ["Grouping", "Stream"]
