"""What is wrong with a topology, its options, or the use of its tuples."""

from __future__ import annotations

from acker.errors import AckerError


class TopologyError(AckerError, ValueError):
    """A topology is defined wrongly; the text names the component, the stream and what mends it."""


class ConfError(TopologyError):
    """An option of a topology is unknown, or its value of a wrong type or out of its range."""


class TupleStateError(AckerError, RuntimeError):
    """A tuple was acked or failed twice, belongs to another bolt, or anchors an emission after it was settled."""
