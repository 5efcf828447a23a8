"""Specs: the place of a component in a topology, and its streams as inputs of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from acker.errors import TopologyError
from acker.topology.streams import DEFAULT_STREAM


class ComponentSpec:
    """The place of a component in a topology, as `Spout.spec` and `Bolt.spec` return it.

    ``spec["stream"]`` is one of its streams, for the inputs of another component.
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
        self.name = name  # if None, set to the name of the Topology's attribute
        self.inputs = inputs
        self.par = component.par if par is None else par
        self.executors = executors  # None: one for each task
        self.config = config
        self.name_given = name is not None

    def __getitem__(self, stream: str) -> StreamId:
        return StreamId(self, stream)

    # Without this, iterating over a spec (`inputs=spec` for `[spec]`) would call __getitem__ for ever.
    def __iter__(self) -> Iterator[Any]:
        raise TopologyError(f"{self!r} is not a list; write [spec]")

    def __repr__(self) -> str:
        return f"<spec of {self.component.__name__}{'' if self.name is None else ' ' + repr(self.name)}>"


class StreamId(NamedTuple):
    """One stream of one component; a component given by its name may be defined later."""

    component: ComponentSpec | str
    stream: str = DEFAULT_STREAM
