"""Topology classes: a topology is a class whose attributes are the specs of its components."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from acker.errors import TopologyError
from acker.topology.checks import build, environments_of
from acker.topology.component import Component
from acker.topology.graph import Graph
from acker.topology.specs import ComponentSpec
from acker.topology.suggestions import suggestion


class _TopologyType(type):
    """Collects the specs of a class and builds its graph, so that a mistake raises where the class is defined."""

    _graphs: dict[str | None, Graph]  # by environment; None: the parallelism names none

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
        super().__init__(name, bases, namespace)
        specs, names = cls._collect()
        cls.specs = list(specs.values())
        environments = environments_of(cls.specs) if specs else []
        cls._graphs = {each: build(name, cls.config, specs, names, each) for each in environments}

    def _collect(cls) -> tuple[dict[str, ComponentSpec], dict[ComponentSpec, str]]:
        """Return attribute -> spec in the order of definition, and the name of each spec, also of replaced ones."""
        specs: dict[str, ComponentSpec] = {}
        names: dict[ComponentSpec, str] = {}
        for base in reversed(cls.__mro__):
            for attribute, value in vars(base).items():
                if attribute in specs and not isinstance(value, ComponentSpec):
                    del specs[attribute]  # a subclass removes a component by `name = None`
                cls._refuse_component(attribute, value)
                if not isinstance(value, ComponentSpec):
                    continue
                own = value.name if value.name_given and value.name is not None else attribute
                if names.setdefault(value, own) != own or (
                    value in specs.values() and specs.get(attribute) is not value
                ):
                    raise TopologyError(
                        f"topology {cls.__name__}: one spec is both {names[value]!r} and {attribute!r}; "
                        "call spec() once for each component"
                    )
                value.name = own
                specs[attribute] = value
        return specs, names

    def _refuse_component(cls, attribute: str, value: object) -> None:
        if isinstance(value, Component) or (isinstance(value, type) and issubclass(value, Component)):
            kind = value.__name__ if isinstance(value, type) else type(value).__name__
            raise TopologyError(
                f"topology {cls.__name__}: {attribute!r} is not a spec; write {attribute} = {kind}.spec(...)"
            )

    def _repr_html_(cls) -> str:
        """Return the graph, for notebooks; with an environment that has to be chosen, its components alone."""
        graphs = list(cls._graphs.values())
        if len(graphs) == 1:
            return graphs[0]._repr_html_()
        from html import escape  # Not with this module, as in `acker._engine.notebook`.

        return f"<pre>{escape(repr(cls))}</pre>"

    def __repr__(cls) -> str:
        return f"<topology {cls.__name__}: {', '.join(str(spec.name) for spec in cls.specs)}>"

    specs: list[ComponentSpec]
    config: Mapping[str, Any]


class Topology(metaclass=_TopologyType):
    """A topology: a class whose components are its attributes that are specs.

    The definition is checked when the class is defined; a mistake raises `TopologyError`. A subclass inherits the
    components of its bases, and may replace one by its name, for instance in a test.

    Attributes
    ----------
    config : dict
        The options of the topology. Those given to a runtime override them.

    Examples
    --------
    >>> from acker.topology import Bolt, Grouping, Spout, Topology
    >>> class Words(Spout):
    ...     outputs = ["word"]
    ...     def next_tuple(self): ...
    >>> class Count(Bolt):
    ...     outputs = ["word", "count"]
    ...     def process(self, tup): ...
    >>> class WordCount(Topology):
    ...     config = {"topology.message.timeout.secs": 10}
    ...     words = Words.spec()
    ...     count = Count.spec(inputs={words: Grouping.fields("word")}, par=2)
    >>> graph = WordCount.graph()
    >>> [(node.name, node.kind, node.tasks) for node in graph.nodes.values()]
    [('words', 'spout', range(1, 2)), ('count', 'bolt', range(2, 4))]
    """

    config: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def graph(cls, environment: str | None = None) -> Graph:
        """Return the graph of the topology, which runtimes run.

        Parameters
        ----------
        environment : str, optional
            Chooses the number of tasks of components with ``par={"prod": 5, "beta": 1}``. Not needed if all such
            components name the same single environment.

        Raises
        ------
        TopologyError
            The class has no components, or the environment does not exist.
        """
        graphs = cls._graphs
        if not graphs:
            raise TopologyError(f"topology {cls.__name__} has no components; assign X.spec(...) to class attributes")
        if None in graphs:
            return graphs[None]
        if environment is None and len(graphs) == 1:
            return next(iter(graphs.values()))
        if environment in graphs:
            return graphs[environment]
        named = [str(each) for each in graphs]
        component = next(spec.name for spec in cls.specs if isinstance(spec.par, Mapping))
        where = f"topology {cls.__name__}, component {component!r}: par has a number for each of the environments"
        known = f"{where} {', '.join(map(repr, named))}"
        if environment is None:
            raise TopologyError(
                f"{known}; choose one: run(..., environment={named[0]!r}), acker run --environment {named[0]}"
            )
        raise TopologyError(f"{known} and none for {environment!r}; {suggestion(environment, named)}")
