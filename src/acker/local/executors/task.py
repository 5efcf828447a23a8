"""The base of spout and bolt tasks, which open, activate and close their component."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from acker.local.collectors import LocalCollector

logger = logging.getLogger("acker.local")


class ComponentTask:
    """One task of a component.

    Parameters
    ----------
    component : Spout or Bolt
    bind : callable
        Takes the component, connects it to the collector and initializes it.
    """

    collector: LocalCollector

    def __init__(self, component: Any, bind: Callable[[Any], None]) -> None:
        self.opened = False
        self.active = False
        self._component = component
        self._bind = bind

    def open(self) -> None:
        """Initialize the component."""
        self._bind(self._component)
        self.opened = True

    def activate(self, active: bool) -> bool:
        """Activate or deactivate the component; return whether that changed anything."""
        if self.active is active:
            return False
        self.active = active
        self.call("activate" if active else "deactivate")
        return True

    def close(self) -> None:
        """Close the component, if it was initialized; what it raises is logged."""
        if not self.opened:
            return
        for method, end in (("deactivate", self._deactivate), ("close", self._close)):
            try:
                end()
            except BaseException:
                logger.exception("%s: task %d raised in %s", self.collector.component, self.collector.task, method)
        self.collector.cleanup_hooks()

    def _deactivate(self) -> None:
        self.activate(active=False)

    def _close(self) -> None:
        self.call("close")

    def call(self, method: str, *arguments: object) -> None:
        """Call a method of the component; an exception says which component raised it."""
        try:
            self._invoke(method, *arguments)
        except Exception as error:
            name_origin(error, self._component.topology_name, self.collector.component, method, self.collector.task)
            raise

    def _invoke(self, method: str, *arguments: object) -> None:
        returned = getattr(self._component, method)(*arguments)
        if returned is not None:
            self.collector.refuse_unrun(method, returned)


def name_origin(error: BaseException, topology: str, component: str, method: str, task: int) -> None:
    """Add to an exception which method of which component raised it; once, however often it is raised."""
    note = f"topology {topology}, component {component!r}: raised by {method}() of task {task}"
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
