"""The sources of a bolt with event time, and the time that all of them have reached: its watermark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from acker.topology.component import Component
from acker.topology.graph import Graph, Node
from acker.topology.windowed import WindowedBolt

__all__ = ["SourceTime", "ended_by", "has_event_time", "sources_of", "time_of_all"]


class SourceTime(NamedTuple):
    """The time that one source of a bolt has reached.

    Attributes
    ----------
    time_ms : int or None
        Up to this event time all that it sent has come; None if nothing came.
    is_gone : bool
        Whether it holds nothing back: it has finished, or has been idle for long.
    """

    time_ms: int | None
    is_gone: bool


def has_event_time(component: type[Component]) -> bool:
    """Return whether a component is a bolt with windows by event time."""
    return issubclass(component, WindowedBolt) and component.timestamp_field is not None


def sources_of(graph: Graph, name: str) -> list[Node]:
    """Return the spouts whose trees reach a component, and the bolts with windows by time from which tuples reach it.

    Such bolts emit without anchors, so the trees of what they read end there.
    """
    found: set[str] = set()
    seen = {name}
    todo = [each.source for each in graph.nodes[name].inputs]
    while todo:
        source = todo.pop()
        if source in seen:
            continue
        seen.add(source)
        node = graph.nodes[source]
        if node.kind == "spout" or _has_windows_by_time(node):
            found.add(source)
        else:
            todo += [each.source for each in node.inputs]
    return [node for node in graph.nodes.values() if node.name in found]


def _has_windows_by_time(node: Node) -> bool:
    return issubclass(node.component, WindowedBolt) and node.component.window.kind == "time"


def time_of_all(sources: Iterable[SourceTime]) -> int | None:
    """Return the event time that all sources have reached; once all are gone, the latest of them."""
    known = list(sources)
    here = [each.time_ms for each in known if not each.is_gone]
    if here:
        times = [each for each in here if each is not None]
        return min(times) if len(times) == len(here) else None
    return max((each.time_ms for each in known if each.time_ms is not None), default=None)


def ended_by(component: type[WindowedBolt], time_ms: int | None) -> int | None:
    """Return the end of the last window that has ended when all sources have reached a time."""
    if time_ms is None:
        return None
    window = component.window
    return window.end_after(time_ms - round(component.lag_secs * 1000)) - window.step
