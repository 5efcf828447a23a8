"""A component's place in a topology, by the name of streamparse's module; it is in `acker.topology`."""

from acker.topology.specs import ComponentSpec

__all__ = ["ComponentSpec"]
