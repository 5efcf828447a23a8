"""What spouts and bolts share, by the name of streamparse's module; all of it is in `acker.topology`."""

from acker.topology.component import Component
from acker.topology.tuples import Tuple

__all__ = ["Component", "Tuple"]
