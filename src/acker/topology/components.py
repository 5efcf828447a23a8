"""Spouts and bolts: what a user's class inherits. The API is streamparse's; its sessions with Storm are left out.

A component talks to a runtime through a `Collector` only, which the runtime binds before `initialize`.
"""

from __future__ import annotations

import logging
import os
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from acker.errors import TopologyError, TupleStateError
from acker.topology import tuples
from acker.topology.methods import refuse_unrun
from acker.topology.reasons import Reason
from acker.topology.streams import Stream
from acker.topology.tuples import Tuple

if TYPE_CHECKING:
    from acker.topology.builder import ComponentSpec

Outputs = Sequence[str | Stream]

# What `_bind` gives a task, in words that a user knows.
_OF_A_TASK: Final = {
    "_collector": "collector that emits, acks, fails, counts and calls hooks",
    **{name: name for name in ("context", "storm_conf", "task_id", "task_index")},
}

_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


class Collector(Protocol):
    """What a runtime gives to a task, spout or bolt."""

    def now_ms(self) -> int:
        """Return the milliseconds of the runtime's clock, which never goes back."""

    def count(self, name: str, n: int = 1) -> None:
        """Add to a counter of the user's, shown among those of the component."""

    def add_hook(self, hook: Any) -> None:
        """Let a hook see what the task does."""


class SpoutCollector(Collector, Protocol):
    """What a runtime gives to a spout task."""

    def emit(
        self,
        tup: Sequence[Any],
        tup_id: Any = None,
        stream: str | None = None,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> list[int] | None:
        """Emit; with a tup_id, track the tree, whose outcome is told by `Spout.ack` or `Spout.fail`."""


class BoltCollector(Collector, Protocol):
    """What a runtime gives to a bolt task.

    Attributes
    ----------
    inputs : tuple of Tuple
        What an emission is anchored to when the bolt names no anchors and has auto_anchor.
    """

    inputs: tuple[Tuple, ...]

    def emit(
        self,
        tup: Sequence[Any],
        stream: str | None = None,
        anchors: Iterable[Tuple] | None = None,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> list[int] | None:
        """Emit, anchored to `anchors`; None: to `inputs` if the bolt has auto_anchor."""

    def ack(self, tup: Tuple) -> None:
        """Settle an input of this bolt."""

    def fail(self, tup: Tuple, reason: str | BaseException | Reason | None) -> None:
        """Fail the trees of an input of this bolt."""

    def reset_timeout(self, tup: Tuple) -> None:
        """Give the trees of an input more time."""


class Component:
    """What spouts and bolts share.

    What a component calls (`emit`, `ack`, `fail`, `reset_timeout`, `report_metric`, `log`, `finish`) any thread of its
    user's may call too; see *Threads of your own* in docs/topologies.md.

    Attributes
    ----------
    outputs : list of str or Stream, or None
        The fields of the default stream by their names, other streams as `Stream`. None: emits nothing.
    config : dict
        Options that hold for this component; those of its spec come before them.
    par : int, or dict of str to int
        How many tasks it has when the spec does not say; a dict says it for each environment.
    logger : logging.Logger
        "acker.topology.<component>".
    context : dict
        Storm's, as streamparse passes it: "taskid", "componentid", "task->component", "stream->outputfields" ... Also
        "task_index", "component->tasks".
    task_index : int
        The place of the task among those of its component, from 0: which part of a partitioned source is its own.
    task_id, component_name, topology_name, storm_conf, debug, pid
        Also as in streamparse; set before `initialize` is called.
    """

    outputs: ClassVar[Outputs | None] = None
    config: ClassVar[Mapping[str, Any] | None] = {}
    par: ClassVar[int | Mapping[str, int]] = 1

    task_id: int
    task_index: int
    component_name: str = ""
    topology_name: str = ""
    context: Mapping[str, Any]
    storm_conf: Mapping[str, Any]
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
        # What nobody overrides is called without a detour: emit is called for each tuple.
        if getattr(type(self), "emit", None) in (Spout.emit, Bolt.emit):
            vars(self)["emit"] = collector.emit
        self.context = context
        self.storm_conf = {} if conf is None else conf
        self.task_id = context["taskid"]
        self.task_index = context.get("task_index", 0)
        self.component_name = context["componentid"]
        self.topology_name = context.get("topology.name") or self.storm_conf.get("topology.name") or ""
        self.debug = bool(self.storm_conf.get("topology.debug"))
        self.logger = logging.getLogger(f"acker.topology.{self.component_name}")

    if not TYPE_CHECKING:  # which would believe in any attribute

        def __getattr__(self, name: str) -> Any:
            """Say what to do instead where something was used that a task has once a runtime has begun it."""
            who = type(self).__name__
            if name not in _OF_A_TASK:
                raise AttributeError(f"{who!r} object has no attribute {name!r}", name=name, obj=self)
            raise AttributeError(
                f"{who}: no runtime has begun this task yet, so it has no {_OF_A_TASK[name]}; move what needs it from"
                " __init__ to initialize(self, conf, context). A test runs a bolt by acker.testing.run_bolt"
            )

    def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Prepare the task; called once, on the thread that will run it.

        Parameters
        ----------
        conf : mapping
            The topology's options, those of the component before them, defaults included.
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

    def report_metric(self, name: str, value: int = 1) -> None:
        """Add to a counter of your own, shown among those of the component."""
        self._collector.count(name, value)

    def add_task_hook(self, hook: Any) -> None:
        """Let a hook see what this task does, from now on; for `initialize`. Storm's addTaskHook.

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
        """Return whether a tuple is one of Storm's heartbeats. The runtimes here send none."""
        return tup.task == -1 and tup.stream == "__heartbeat"

    @classmethod
    def spec(cls, *_args: Any, **_kwargs: Any) -> ComponentSpec:
        """Raise: only spouts and bolts have a place in a topology."""
        raise TopologyError(f"{cls.__name__} is neither a Spout nor a Bolt; derive it from one of the two")


class Spout(Component):
    """Where tuples come from. Override `next_tuple`; for tracked tuples `ack` and `fail`.

    The methods of one task run on one thread and never at once.
    """

    _finished: bool = False

    @classmethod
    def spec(
        cls,
        name: str | None = None,
        par: int | Mapping[str, int] | None = None,
        config: Mapping[str, Any] | None = None,
        executors: int | None = None,
    ) -> ComponentSpec:
        """Return this spout's place in a topology.

        Parameters
        ----------
        name : str, optional
            The name of the component; left out, that of the attribute of the Topology that it is assigned to.
        par : int >= 1, or dict of str to int, optional
            How many tasks run it; the class attribute `par`, 1, when left out. A dict says it for each environment, as
            in streamparse; see `Topology.graph`.
        config : dict, optional
            Options that hold for this component.
        executors : int, optional
            How many threads its tasks share, at most `par`; as many as tasks when left out.
        """
        from acker.topology.builder import ComponentSpec

        return ComponentSpec(cls, name=name, par=par, executors=executors, config=config)

    def next_tuple(self) -> Any:
        """Emit what there is to emit, and return without waiting. May be ``async def``."""
        raise NotImplementedError(f"{type(self).__name__} has no next_tuple()")

    def ack(self, tup_id: Any) -> Any:
        """Hear that everything derived from a tuple is done. May be ``async def``, also beside a plain next_tuple."""

    def fail(self, tup_id: Any, reason: Reason | None = None) -> Any:
        """Hear that a tuple failed. May be ``async def``.

        A method that takes `tup_id` only is called without the reason, as in streamparse.

        Parameters
        ----------
        tup_id : hashable
        reason : Reason, optional
        """

    def keep_alive(self) -> Any:
        """Keep alive what the spout holds open: send a heartbeat, renew a lease. Called at least every second.

        It is called by the clock of the runtime and in every state from `initialize` to `close`: while too much is
        open for `next_tuple` to be called, while consumers are slow, while the topology is paused, drains or waits for
        other components. It is called between two calls of the spout's other methods, on the same thread; while one of
        those blocks it cannot be. It may be ``async def``, and then goes on while other coroutines of the spout wait.
        What it raises is treated as what `next_tuple` raises. It is not the place to emit.
        """

    def activate(self) -> None:
        """Hear that the spout is asked for tuples again."""

    def deactivate(self) -> None:
        """Hear that the spout is not asked for tuples until `activate` or `close`."""

    def finish(self) -> None:
        """Say that no further tuple will come, so that ``until="drained"`` can end. Acks and fails still arrive."""
        self._finished = True

    @property
    def finished(self) -> bool:
        """Whether no further tuple will come."""
        return self._finished

    def emit(
        self,
        tup: Sequence[Any],
        tup_id: Any = None,
        stream: str | None = None,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> list[int] | None:
        """Emit a tuple.

        Parameters
        ----------
        tup : list or tuple
            The values, as many as the stream has fields.
        tup_id : hashable, optional
            Track the tree: `ack` or `fail` is called with this id. None: untracked.
        stream : str, optional
            "default" when left out.
        direct_task : int, optional
            The task that receives it; for direct streams only.
        need_task_ids : bool

        Returns
        -------
        list of int, or None
            The ids of the tasks that receive the tuple, if asked for.
        """
        return self._collector.emit(tup, tup_id, stream, direct_task, need_task_ids)  # type: ignore[no-any-return]


class Bolt(Component):
    """Processes tuples. Override `process`.

    Attributes
    ----------
    auto_anchor : bool
        Emissions join the trees of the tuple that is being processed.
    auto_ack : bool
        That tuple is acked when `process` returns.
    auto_fail : bool
        It is failed when `process` raises.
    """

    auto_anchor: bool = True
    auto_ack: bool = True
    auto_fail: bool = True

    # True: the runtime settles nothing after process(), the bolt does so itself.
    _settles_itself: ClassVar[bool] = False

    is_tick = staticmethod(tuples.is_tick)

    @classmethod
    def spec(
        cls,
        name: str | None = None,
        inputs: Any = None,
        par: int | Mapping[str, int] | None = None,
        config: Mapping[str, Any] | None = None,
        executors: int | None = None,
    ) -> ComponentSpec:
        """Return this bolt's place in a topology.

        Parameters
        ----------
        name, par, config, executors
            See `Spout.spec`.
        inputs : list of inputs, or dict from input to Grouping
            An input is a spec, for its default stream; ``spec["stream"]``; or the name of a component, "name" or
            "name:stream", which is how a loop reads what is defined further down. In a list, direct streams are grouped
            direct and all others shuffle.
        """
        from acker.topology.builder import ComponentSpec

        return ComponentSpec(cls, name=name, inputs=inputs, par=par, executors=executors, config=config)

    def process(self, tup: Tuple) -> Any:
        """Process one tuple. May be ``async def``: it is acked when the coroutine ends."""
        raise NotImplementedError(f"{type(self).__name__} has no process()")

    def activate(self) -> None:
        """Hear that tuples may come: once all bolts are initialized, before the first one. Emissions have no anchor."""

    def deactivate(self) -> None:
        """Hear that no tuple comes any more, before `close`.

        If all was drained, bolts hear it in the order of their definition, and what they emit then, without an anchor,
        is still processed. If not, each hears it at its end.
        """

    def process_tick(self, tup: Tuple) -> Any:
        """Do what is due every topology.tick.tuple.freq.secs."""

    def tick_secs(self, conf: Mapping[str, Any]) -> float | None:
        """Return the seconds between two ticks, of the component's options; None: no ticks."""
        return conf.get("topology.tick.tuple.freq.secs")

    def emit(
        self,
        tup: Sequence[Any],
        stream: str | None = None,
        anchors: Iterable[Tuple] | None = None,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> list[int] | None:
        """Emit a tuple.

        Parameters
        ----------
        tup : list or tuple
            The values, as many as the stream has fields.
        stream : str, optional
            "default" when left out.
        anchors : iterable of Tuple, optional
            The inputs whose trees it joins, several at once if need be. ``[]``: none. Left out: the tuple that is being
            processed, if the bolt has `auto_anchor`.
        direct_task : int, optional
            The task that receives it; for direct streams only.
        need_task_ids : bool

        Returns
        -------
        list of int, or None
            The ids of the tasks that receive the tuple, if asked for.

        Raises
        ------
        TupleStateError
            An anchor was acked or failed before; or another thread of yours emits and leaves `anchors` out, though the
            bolt has `auto_anchor`.
        RuntimeStateError
            Another thread of yours emits after the topology has stopped or restarted.
        """
        return self._collector.emit(tup, stream, anchors, direct_task, need_task_ids)  # type: ignore[no-any-return]

    def ack(self, tup: Tuple) -> None:
        """Settle an input: all that will be emitted under it has been. Twice, or another bolt's: TupleStateError."""
        self._collector.ack(tup)

    def fail(self, tup: Tuple, reason: str | BaseException | Reason | None = None) -> None:
        """Fail the trees of an input at once. Twice, or another bolt's: TupleStateError.

        Parameters
        ----------
        tup : Tuple
        reason : str, exception or Reason, optional
            What the spout hears.
        """
        self._collector.fail(tup, reason)

    def reset_timeout(self, tup: Tuple) -> None:
        """Give the trees of an input the whole message timeout again."""
        self._collector.reset_timeout(tup)


class BatchingBolt(Bolt):
    """Collects tuples between ticks and processes them a batch at a time. Override `process_batch`.

    Needs topology.tick.tuple.freq.secs, of the topology or of the component.

    Attributes
    ----------
    auto_ack : bool
        Every tuple of a batch is acked when `process_batch` returns.
    auto_fail : bool
        Every tuple of a batch is failed when `process_batch` raises; other batches go on.
    ticks_between_batches : int
        How many ticks a batch lasts.
    """

    ticks_between_batches: int = 1
    _settles_itself: ClassVar[bool] = True
    _SET_BY_INIT: ClassVar[tuple[str, ...]] = ("_batches", "_tick_counter")

    def __init__(self) -> None:
        super().__init__()
        self._batches: dict[Any, list[Tuple]] = {}
        self._tick_counter = 0

    def group_key(self, tup: Tuple) -> Any:
        """Return the batch that a tuple belongs to, anything hashable; None, one batch for all, unless overridden."""

    def process_batch(self, key: Any, tups: list[Tuple]) -> Any:
        """Process one batch. Emissions are anchored to every tuple of it.

        Parameters
        ----------
        key : hashable
            What `group_key` returned for them.
        tups : list of Tuple
            At least one, in the order of arrival.
        """
        raise NotImplementedError(f"{type(self).__name__} has no process_batch()")

    def process(self, tup: Tuple) -> None:
        """Put a tuple into its batch. Not to be overridden; see `group_key`."""
        key = self.group_key(tup)
        try:
            batch = self._batches.setdefault(key, [])
        except TypeError:
            raise TopologyError(
                f"{self.component_name}: group_key returned {reprlib.repr(key)}; expected something hashable such as a "
                "str or a tuple"
            ) from None
        batch.append(tup)

    def process_tick(self, tup: Tuple) -> None:  # noqa: ARG002
        """Process the batches when their last tick has come. Not to be overridden."""
        self._tick_counter += 1
        if self._tick_counter >= self.ticks_between_batches:
            self._tick_counter = 0
            self.process_batches()

    def process_batches(self) -> None:
        """Process every batch, and ack or fail its tuples."""
        batches, self._batches = self._batches, {}
        collector: BoltCollector = self._collector
        before = collector.inputs
        try:
            for key, batch in batches.items():
                collector.inputs = tuple(batch)
                self._process_one(key, batch)
        finally:
            collector.inputs = before

    def _process_one(self, key: Any, batch: list[Tuple]) -> None:
        tups = tuple(batch)  # the list is the user's to change
        try:
            returned: object = self.process_batch(key, batch)
            if returned is not None:
                refuse_unrun(self.component_name, "process_batch", returned)
        except BaseException as error:
            self.logger.exception("process_batch(%r) raised; its %d tuples fail", key, len(tups))
            if self.auto_fail:
                self._settle(tups, self.fail, error)
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
        else:
            if self.auto_ack:
                self._settle(tups, self.ack)

    def _settle(self, tups: Iterable[Tuple], settle: Callable[..., None], *reason: BaseException) -> None:
        for tup in tups:
            # process_batch may have settled some itself, or have given them to threads that do.
            with suppress(TupleStateError):
                settle(tup, *reason)

    def emit(
        self,
        tup: Sequence[Any],
        stream: str | None = None,
        anchors: Iterable[Tuple] | None = None,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> list[int] | None:
        """Emit a tuple; see `Bolt.emit`. Left out, the anchors are the tuples of the batch."""
        return super().emit(tup, stream, anchors, direct_task, need_task_ids)


class TicklessBatchingBolt(BatchingBolt):
    """A `BatchingBolt` that needs no option: it asks for a tick of its own.

    Attributes
    ----------
    secs_between_batches : float
        Seconds between two batches.
    """

    secs_between_batches: float = 2

    def tick_secs(self, conf: Mapping[str, Any]) -> float | None:  # noqa: ARG002
        """Return `secs_between_batches`."""
        return self.secs_between_batches
