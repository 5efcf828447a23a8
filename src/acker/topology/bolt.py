"""Bolts: processors of tuples, one by one or in batches."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from acker._flow import emit_of_bolt
from acker.errors import TopologyError, TupleStateError
from acker.observe.reasons import Reason
from acker.topology import tuples
from acker.topology.collector import BoltCollector
from acker.topology.component import Component
from acker.topology.methods import refuse_unrun
from acker.topology.specs import ComponentSpec
from acker.topology.tuples import Tuple

__all__ = ["BatchingBolt", "Bolt", "TicklessBatchingBolt"]


class Bolt(Component):
    """A processor of tuples. Override `process`.

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

    # True: the bolt acks and fails by itself, and the runtime does not after process().
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
            direct, all others shuffle.
        """
        return ComponentSpec(cls, name=name, inputs=inputs, par=par, executors=executors, config=config)

    def process(self, tup: Tuple) -> Any:
        """Process one tuple. May be ``async def``: it is acked when the coroutine ends."""
        raise NotImplementedError(f"{type(self).__name__} has no process()")

    def _settle_held(self) -> None:
        """Wait until other threads of the bolt have settled what they hold; on Spark, at the end of a micro-batch."""

    def activate(self) -> None:
        """Prepare for tuples: called once all bolts are initialized. Emissions have no anchor."""

    def deactivate(self) -> None:
        """Emit or release what is left: called before `close`, when no tuple will come any more.

        If all was drained, it is called in the order in which the bolts are defined, and tuples emitted here, without
        an anchor, are still processed. Otherwise it is called when the bolt is closed.
        """

    def process_tick(self, tup: Tuple) -> Any:
        """Do what is due every topology.tick.tuple.freq.secs."""

    def tick_secs(self, conf: Mapping[str, Any]) -> float | None:
        """Return the seconds between two ticks, given the component's options; None: no ticks."""
        return conf.get("topology.tick.tuple.freq.secs")

    # Native, as it is called for each tuple: it finds the collector of the bolt that this thread runs without a lookup.
    emit = emit_of_bolt

    def ack(self, tup: Tuple) -> None:
        """Ack an input: everything anchored to it was emitted. Twice, or another bolt's tuple: TupleStateError."""
        self._collector.ack(tup)

    def fail(self, tup: Tuple, reason: str | BaseException | Reason | None = None) -> None:
        """Fail the trees of an input at once. Twice, or another bolt's tuple: TupleStateError.

        Parameters
        ----------
        tup : Tuple
        reason : str, exception or Reason, optional
            Passed to the spout's `fail`.
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
        Every tuple of a batch is failed when `process_batch` raises; other batches are not affected.
    ticks_between_batches : int
        Number of ticks after which a batch is processed.
    """

    ticks_between_batches: int = 1
    _settles_itself: ClassVar[bool] = True
    _SET_BY_INIT: ClassVar[tuple[str, ...]] = ("_batches", "_tick_counter")

    def __init__(self) -> None:
        super().__init__()
        self._batches: dict[Any, list[Tuple]] = {}
        self._tick_counter = 0

    def group_key(self, tup: Tuple) -> Any:
        """Return the key of a tuple's batch, anything hashable. Unless overridden, all tuples are one batch."""

    def process_batch(self, key: Any, tups: list[Tuple]) -> Any:
        """Process one batch. Emissions are anchored to every tuple of it.

        Parameters
        ----------
        key : hashable
            As `group_key` returned it for them.
        tups : list of Tuple
            At least one, in the order of arrival.
        """
        raise NotImplementedError(f"{type(self).__name__} has no process_batch()")

    def process(self, tup: Tuple) -> None:
        """Put a tuple into its batch. Do not override it; see `group_key`."""
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
        """Process the batches when their last tick has come. Do not override it."""
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
        tups = tuple(batch)  # since process_batch may change the list
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
            # process_batch may have acked or failed some itself, or have given them to threads that do.
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
        """Emit a tuple; see `Bolt.emit`. By default the anchors are the tuples of the batch."""
        return super().emit(tup, stream, anchors, direct_task, need_task_ids)


class TicklessBatchingBolt(BatchingBolt):
    """A `BatchingBolt` that needs no option: it sets the time between its ticks itself.

    Attributes
    ----------
    secs_between_batches : float
        Seconds between two batches.
    """

    secs_between_batches: float = 2

    def tick_secs(self, conf: Mapping[str, Any]) -> float | None:  # noqa: ARG002
        """Return `secs_between_batches`."""
        return self.secs_between_batches
