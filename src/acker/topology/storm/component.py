"""The names of streamparse's module, for projects that come from there; `acker.topology` has them too."""

from acker.topology.component import Component
from acker.topology.tuples import Tuple

__all__ = ["Component", "Tuple"]
