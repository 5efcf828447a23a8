"""The names of streamparse's module, for projects that come from there; `acker.topology` has them too."""

from acker.topology.specs import ComponentSpec

__all__ = ["ComponentSpec"]
