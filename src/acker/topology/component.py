"""Component: the base of spouts and bolts. The interface is streamparse's."""

from __future__ import annotations

import logging
import math
import operator
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from acker.errors import ArgumentTypeError, ArgumentValueError, TopologyError
from acker.topology.specs import ComponentSpec
from acker.topology.streams import Stream
from acker.topology.tuples import Tuple

__all__ = ["Component", "Outputs", "Tuple"]  # Tuple, since pystorm's module of this name has it

Outputs = Sequence[str | Stream] | Mapping[str, Any]

_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


_IN_INITIALIZE: Final = "move the code that needs it from __init__ to initialize(self, conf, context)"


def _as_number(value: Any, name: str) -> float:
    """Return a number as one of Python's, which reports and exporters can write."""
    try:
        return operator.index(value)
    except TypeError:
        pass
    try:
        found = float(value) if hasattr(value, "__float__") else None
    except (TypeError, ValueError, OverflowError):
        found = None
    if found is None:
        raise ArgumentTypeError(f"report_metric: {name!r}: expected a number, got {value!r:.80}")
    if not math.isfinite(found):
        raise ArgumentValueError(f"report_metric: {name!r}: expected a finite number, got {value!r}")
    return found


class TaskAttribute:
    """An attribute that a task has once a runtime has started it. Read before, it says what to do.

    `__getattr__` could say it too, but Python reads all attributes of such a class more slowly, `self.emit` among them.

    Parameters
    ----------
    what : str, optional
        The thing that the task lacks without it. The attribute's name when left out.
    mend : str, optional
        The advice to the user.
    """

    def __init__(self, what: str = "", mend: str = _IN_INITIALIZE) -> None:
        self._what = what
        self._mend = mend
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> TaskAttribute:
        """Raise, unless the class itself is asked."""
        if instance is None:
            return self
        raise AttributeError(
            f"{owner.__name__}: no runtime has started this task yet, so it has no {self._what or self._name}; "
            f"{self._mend}. In a test, run a bolt with acker.testing.run_bolt",
            name=self._name,
            obj=instance,
        )


class Component:
    """Base of spouts and bolts.

    Any thread of the user's may call `emit`, `ack`, `fail`, `reset_timeout`, `report_metric`, `log` and `finish`; see
    *Threads of your own* in docs/topologies.md.

    Attributes
    ----------
    outputs : list of str or Stream, dict of str to pyarrow.DataType, or None
        The fields of the default stream by their names, other streams as `Stream`; or the fields with the types that
        they have in batches. None: emits nothing.
    config : dict
        Options of this component; those of its spec override them.
    par : int, or dict of str to int
        Number of tasks if the spec gives none; a dict gives it for each environment.
    logger : logging.Logger
        "acker.topology.<component>".
    context : dict
        Storm's, as streamparse passes it: "taskid", "componentid", "task->component", "stream->outputfields" ... Also
        "task_index", "component->tasks".
    task_index : int
        Place of the task among those of its component, from 0: which part of a partitioned source it reads.
    task_id, component_name, topology_name, storm_conf, debug, pid
        Also as in streamparse; set before `initialize` is called.
    """

    outputs: ClassVar[Outputs | None] = None
    config: ClassVar[Mapping[str, Any] | None] = {}
    par: ClassVar[int | Mapping[str, int]] = 1

    if TYPE_CHECKING:
        task_id: int
        task_index: int
        context: Mapping[str, Any]
        storm_conf: Mapping[str, Any]
    else:
        task_id, task_index = TaskAttribute(), TaskAttribute()
        context, storm_conf = TaskAttribute(), TaskAttribute()
        _collector = TaskAttribute("collector that emits, acks, fails, counts and calls hooks")
    component_name: str = ""
    topology_name: str = ""
    debug: bool = False
    logger: logging.Logger = logging.getLogger("acker.topology")

    def __init__(self) -> None:
        self.pid = os.getpid()

    def _bind(self, collector: Any, context: Mapping[str, Any], conf: Mapping[str, Any] | None = None) -> None:
        """Attach a new task to its runtime, before `initialize`.

        Parameters
        ----------
        collector : SpoutCollector or BoltCollector
        context : mapping
            As `Graph.context` makes it.
        conf : mapping, optional
            The component's resolved options.
        """
        self.pid = os.getpid()
        self._collector = collector
        self.context = context
        self.storm_conf = {} if conf is None else conf
        self.task_id = context["taskid"]
        self.task_index = context.get("task_index", 0)
        self.component_name = context["componentid"]
        self.topology_name = context.get("topology.name") or self.storm_conf.get("topology.name") or ""
        self.debug = bool(self.storm_conf.get("topology.debug"))
        self.logger = logging.getLogger(f"acker.topology.{self.component_name}")

    def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Prepare the task; called once, on the thread that will run it.

        Parameters
        ----------
        conf : mapping
            The options of the topology, overridden by those of the component, defaults included.
        context : mapping
            See the attribute `context`.
        """

    def close(self) -> None:
        """Clean up after the last call of the task."""

    def log(self, message: object, level: str | None = None) -> None:
        """Log a message.

        Parameters
        ----------
        message : object
        level : {"trace", "debug", "info", "warn", "warning", "error", "critical"}, optional
            "info" when left out.
        """
        self.logger.log(_LEVELS.get(level or "info", logging.INFO), "%s", message)

    def report_metric(self, name: str, value: float = 1) -> None:
        """Add to a counter that the component defines; it is shown with the component's other figures.

        Parameters
        ----------
        name : str
        value : int or float
            Also of NumPy.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            No number, or none that is finite: it would spoil the counter for good.
        """
        self._collector.count(name, value if type(value) is int else _as_number(value, name))

    def add_task_hook(self, hook: Any) -> None:
        """Add a hook that sees what this task does from now on; call it in `initialize`. Storm's addTaskHook.

        Parameters
        ----------
        hook : acker.local.Hook
            Its `prepare` is called at once, its `cleanup` after `close`.
        """
        self._collector.add_hook(hook)

    def raise_exception(self, exception: BaseException, tup: Tuple | None = None) -> None:
        """Log an exception, and the tuple that was being processed."""
        about = "" if tup is None else f" while processing {tup!r}"
        self.logger.error("%s raised%s", type(exception).__name__, about, exc_info=exception)

    @staticmethod
    def is_heartbeat(tup: Tuple) -> bool:
        """Return whether a tuple is one of Storm's heartbeats, which no runtime of acker sends."""
        return tup.task == -1 and tup.stream == "__heartbeat"

    @classmethod
    def spec(cls, *_args: Any, **_kwargs: Any) -> ComponentSpec:
        """Raise: only spouts and bolts have a place in a topology."""
        raise TopologyError(f"{cls.__name__} is neither a Spout nor a Bolt; derive it from one of the two")
