"""Specs: the place of a component in a topology, and its streams as inputs of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from acker.errors import TopologyError
from acker.topology.streams import DEFAULT_STREAM


class ComponentSpec:
    """One component's place in a topology: what `Spout.spec` and `Bolt.spec` return.

    ``spec["stream"]`` is one of its streams, as a key of another's inputs.
    """

    def __init__(
        self,
        component: type[Any],
        *,
        name: str | None = None,
        inputs: Any = None,
        par: int | Mapping[str, int] | None = None,
        executors: int | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.component = component  # a Component; that module stands above this one
        self.name = name  # filled with that of the Topology's attribute
        self.inputs = inputs
        self.par = component.par if par is None else par
        self.executors = executors  # None: as many as tasks
        self.config = config
        self.name_given = name is not None

    def __getitem__(self, stream: str) -> StreamId:
        return StreamId(self, stream)

    # Without this, the old protocol of iteration would call __getitem__ for ever: `inputs=spec` instead of `[spec]`.
    def __iter__(self) -> Iterator[Any]:
        raise TopologyError(f"{self!r} is no list; write [spec]")

    def __repr__(self) -> str:
        return f"<spec of {self.component.__name__}{'' if self.name is None else ' ' + repr(self.name)}>"


class StreamId(NamedTuple):
    """One stream of one component, which may be defined further down if it is named."""

    component: ComponentSpec | str
    stream: str = DEFAULT_STREAM
