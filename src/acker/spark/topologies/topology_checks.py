"""Early checks of a topology for Spark: what cannot travel to the workers, and options that have no effect there."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator, Mapping
from typing import Any, Final

from acker.errors import TopologyError
from acker.spark.topologies.tuple_blocks import why_not_pickled
from acker.topology.component import Component
from acker.topology.graph import Graph, Node

# A micro-batch ends all its trees, and the first exception that escapes ends the run.
_IDLE: Final = (
    "topology.acker.buckets",
    "topology.enable.message.timeouts",
    "topology.max.restarts",
    "topology.message.timeout.secs",
    "topology.no.restart",
    "topology.restart.healthy.secs",
)


def idle_options(graph: Graph, conf: Mapping[str, Any]) -> list[str]:
    """Return what a topology sets and Spark does not heed.

    Parameters
    ----------
    graph : Graph
    conf : mapping
        The options of the topology, without defaults.
    """
    told = [name for name in _IDLE if name in conf]
    for node in graph.nodes.values():
        told += [f"{name} of component {node.name!r}" for name in _IDLE if name in node.conf]
        if node.kind == "bolt" and node.executors < node.par:
            told.append(f"executors= of component {node.name!r}")
    return told


def check_travels(graph: Graph, conf: Mapping[str, Any]) -> None:
    """Refuse components and options that cannot be pickled: each worker gets them as a pickle.

    Parameters
    ----------
    graph : Graph
        Without what stays on the driver.
    conf : mapping
        The options of the topology.

    Raises
    ------
    TopologyError
        The text names the component and its part, and says what to do.
    """
    why = why_not_pickled((graph, conf))
    if why is None:
        return
    where = f"topology {graph.name}"
    for part, mend in _parts_of(graph, conf):
        raise TopologyError(f"{where}, {part}, and a worker of Spark gets a topology as a pickle; {mend}")
    raise TopologyError(f"{where}: it cannot be pickled ({why}), and a worker of Spark gets it as a pickle")


def _parts_of(graph: Graph, conf: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the parts that cannot be pickled, with a mend for each."""
    mend = "make it in initialize(), which runs on the worker"
    for node in graph.nodes.values():
        where = f"component {node.name!r}"
        for name, value in node.conf.items():
            if why := why_not_pickled(value):
                yield f"{where}: option {name!r} cannot be pickled ({why})", mend
        for subscription in node.inputs:
            if why := why_not_pickled(subscription.grouping):
                told = f"the function of its grouping of {subscription.source!r} cannot be pickled ({why})"
                yield f"{where}: {told}", "let the function refer to nothing that a process has for itself"
        for part in _parts_of_class(node):
            yield f"{where}: {part}", mend
    for name, value in conf.items():
        if why := why_not_pickled(value):
            yield f"option {name!r} cannot be pickled ({why})", f"{mend}, or give it by spec(config=) to a spout"


def _parts_of_class(node: Node) -> Iterator[str]:
    """Yield the attributes of a class that cannot be pickled, and what its methods use of that kind."""
    for kind in node.component.__mro__:
        if kind is Component or why_not_pickled(kind) is None:
            continue
        for name, value in vars(kind).items():
            function = getattr(value, "__func__", value)
            if isinstance(function, types.FunctionType):
                yield from (f"{kind.__name__}.{name}() uses {used}" for used in _used_by(function))
            elif not name.startswith("__") and name != "_abc_impl" and (why := why_not_pickled(value)):
                yield f"the attribute {name!r} of {kind.__name__} cannot be pickled ({why})"
    if why := why_not_pickled(node.component):
        yield f"the class {node.component.__name__} cannot be pickled ({why})"


def _used_by(function: types.FunctionType) -> Iterator[str]:
    """Yield the names outside a function that it uses, and whose values cannot be pickled."""
    try:
        names = inspect.getclosurevars(function)
    except ValueError:  # A name that has no value yet.
        return
    for name, value in {**names.globals, **names.nonlocals}.items():
        if name != "__class__" and (why := why_not_pickled(value)):
            yield f"{name!r}, which cannot be pickled ({why})"
