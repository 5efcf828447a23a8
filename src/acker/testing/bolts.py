"""run_bolt, which tests one bolt alone, with tuples that the test makes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final, NamedTuple

from acker._engine.ids import IdGenerator
from acker.errors import ArgumentTypeError, ArgumentValueError
from acker.local import Hook, RunReport, read_state
from acker.local.states import make_snapshot
from acker.testing.components import FeederSpout
from acker.testing.scheduler import Scheduler
from acker.topology import BatchingBolt, Bolt, Reason, Stream, Topology, Tuple, WindowedBolt
from acker.topology.suggestions import suggestion
from acker.topology.tuples import TupleSource, row_of
from acker.topology.watermarks import ended_by

_TICKS: Final = "topology.tick.tuple.freq.secs"
_BOLT: Final = "tested"
_READER: Final = "reader"

_ids = IdGenerator()

logger = logging.getLogger("acker.testing")


def make_tuple(
    values: Sequence[Any] | Mapping[str, Any],
    fields: Sequence[str] | None = None,
    *,
    stream: str = "default",
    component: str = "spout",
    task: int = 1,
) -> Tuple:
    """Return a tuple as a bolt receives it, for `run_bolt` or for methods that do not emit, ack or fail.

    Parameters
    ----------
    values : sequence, or dict of str to object
        One value for each field; or the fields with their values.
    fields : sequence of str, optional
        Names of the values. By default the keys of a dict, or value0, value1 ...
    stream, component : str
        Its source.
    task : int
        The task of its source.

    Returns
    -------
    Tuple
        It is the only tuple of its tree.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        The values are not a row, or their number is not that of the fields.

    Examples
    --------
    >>> from acker.testing import make_tuple
    >>> tup = make_tuple({"word": "storm", "count": 1}, component="count")
    >>> tup.word, tup["count"], tup[1], tup.component, tup.stream
    ('storm', 1, 1, 'count', 'default')
    """
    if isinstance(values, Mapping):
        if fields is not None:
            raise ArgumentTypeError("make_tuple: a dict names its fields; leave out fields=")
        values, fields = list(values.values()), list(values)
    row = row_of(values)
    if row is None:
        raise ArgumentTypeError(f"make_tuple: expected a list or tuple of values, got {values!r}")
    if fields is None:
        fields = [f"value{place}" for place in range(len(row))]
    names = Stream(list(fields), name=stream).fields  # which checks them
    if len(names) != len(row):
        raise ArgumentValueError(f"make_tuple: {len(row)} values for {len(names)} fields: {', '.join(names)}")
    source = TupleSource(component, stream, task, names)
    return source.tuple_type(source.make_values(row), source, {_ids.next(): _ids.next()})


class Emitted(NamedTuple):
    """One tuple that a bolt emitted.

    Attributes
    ----------
    values : tuple
    stream : str
    anchors : tuple of Tuple
        The given tuples to which it was anchored.
    """

    values: tuple[Any, ...]
    stream: str = "default"
    anchors: tuple[Tuple, ...] = ()


@dataclass(frozen=True)
class BoltRun:
    """The result of `run_bolt`: what a bolt did with the given tuples.

    Attributes
    ----------
    bolt : Bolt
        The instance, which is closed.
    emitted : list of Emitted
        In the order of emission.
    acked, failed, held : list of Tuple
        The given tuples that were acked and failed, in this order, and those that were neither.
    reasons : list of Reason
        The reasons, one for each of `failed`.
    report : RunReport
        Its ``report.stats`` has the counters of the bolt.
    state : dict
        The state of a StatefulBolt at the end.
    """

    bolt: Bolt
    emitted: list[Emitted]
    acked: list[Tuple]
    failed: list[Tuple]
    held: list[Tuple]
    reasons: list[Reason]
    report: RunReport
    state: dict[Any, Any] = field(default_factory=dict)

    def tuples(self, stream: str = "default") -> list[tuple[Any, ...]]:
        """Return the values of the tuples emitted to a stream.

        Raises
        ------
        ArgumentValueError
            The bolt has no such stream.
        """
        streams = [*self.bolt.context["stream->outputfields"]]
        if stream not in streams:
            raise ArgumentValueError(f"the bolt has no stream {stream!r}; {suggestion(stream, streams)}")
        return [each.values for each in self.emitted if each.stream == stream]


class _SettledRecorder(Hook):
    """Records which tuples the bolt acked and failed."""

    def __init__(self) -> None:
        self.acked: list[Tuple] = []
        self.failed: list[Tuple] = []
        self.reasons: list[Reason] = []

    def ack(self, component: str, task: int, tup: Tuple) -> None:  # noqa: ARG002
        if component == _BOLT:
            self.acked.append(tup)

    def fail(self, component: str, task: int, tup: Tuple, reason: Reason) -> None:  # noqa: ARG002
        if component == _BOLT:
            self.failed.append(tup)
            self.reasons.append(reason)


class _OneSender:
    """The watermark where one task in order of time sends all tuples: the latest time."""

    def __init__(self, component: type[WindowedBolt]) -> None:
        self._component = component
        self._latest_ms: int | None = None

    def note(self, tup: Tuple, time_ms: int) -> None:  # noqa: ARG002
        self._latest_ms = time_ms if self._latest_ms is None else max(self._latest_ms, time_ms)

    def ended_ms(self) -> int | None:
        return ended_by(self._component, self._latest_ms)

    def tell_late(self, text: str) -> None:
        logger.warning("%s", text)


def run_bolt(
    bolt: Bolt | type[Bolt],
    tuples: Iterable[Tuple],
    conf: Mapping[str, Any] | None = None,
    *,
    ticks: int = 0,
    state: Mapping[Any, Any] | None = None,
) -> BoltRun:
    """Run one task of a bolt on tuples: initialize, process, ticks, and an orderly stop.

    The bolt runs in the local runtime, on one thread and a clock that only moves for ticks. Batches are processed at
    the latest when it stops. Windows by event time end as if one task had sent all tuples. Its component is named
    "tested"; one task of "reader" reads all its streams, also direct ones.

    Parameters
    ----------
    bolt : Bolt, or class
        An instance that the test has prepared, or a class that is called without arguments.
    tuples : iterable of Tuple
        From `make_tuple`, each for one run.
    conf : mapping, optional
        Options of the topology.
    ticks : int
        Number of tick tuples after the tuples. A bolt that holds tuples gets more when it stops, as in any run.
    state : mapping, optional
        The first state of a StatefulBolt. It is pickled, as in a file.

    Returns
    -------
    BoltRun

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        An argument is no bolt, no tuple of `make_tuple`, or a tuple that was processed before.
    TopologyError
        The bolt cannot be part of a topology, or its state cannot be pickled.
    Exception
        The one that escaped from the bolt, from `initialize` for instance, or from `process` if `auto_fail` is False.

    Examples
    --------
    >>> from acker.testing import make_tuple, run_bolt
    >>> from acker.topology import Bolt
    >>> class Split(Bolt):
    ...     outputs = ["word"]
    ...     def process(self, tup):
    ...         for word in tup.line.split():
    ...             self.emit([word])
    >>> line = make_tuple(["to be"], ["line"])
    >>> done = run_bolt(Split, [line])
    >>> done.tuples(), done.acked == [line], done.failed
    ([('to',), ('be',)], True, [])
    """
    given = _check_tuples(tuples)
    read: list[Tuple] = []
    topology, options = _make_topology(bolt, given, read, conf, ticks)
    settled = _SettledRecorder()
    kept = None if state is None else make_snapshot(topology.__name__, {_BOLT: [state]})
    scheduler = Scheduler.of(topology, options, hooks=[settled], no_restart=True, state=kept)
    scheduler.settle()
    bolts = [] if scheduler.runtime.lifecycle.executors is None else scheduler.runtime.lifecycle.executors.bolts
    [executor] = [each for each in bolts if each.tasks[0].collector.component == _BOLT]
    task = executor.tasks[0]
    chunks = [given] if given else []
    if executor.has_event_time:
        assert isinstance(task.bolt, WindowedBolt)
        task.bolt._watermark = _OneSender(type(task.bolt))
        chunks = [[tup] for tup in given]  # since windows end between two tuples
    for chunk in chunks:
        executor.inbox.put((0, list(chunk)), len(chunk))
        scheduler.settle()
    for _ in range(ticks):
        scheduler.advance(Fraction((task.tick_at or 0) - scheduler.clock.now_ns(), 10**9))
    report = scheduler.stop()
    if scheduler.runtime.error is not None:
        raise scheduler.runtime.error
    roots = {root_id: tup for tup in given for root_id in tup._ids or ()}
    emitted = [
        Emitted(tuple(tup.values), tup.stream, tuple(roots[root_id] for root_id in tup._ids or () if root_id in roots))
        for tup in read
    ]
    ours = {id(tup) for tup in given}  # which excludes ticks that pystorm's bolts ack
    acked = [tup for tup in settled.acked if id(tup) in ours]
    held = [tup for tup in given if not tup._is_settled]
    [left] = read_state(scheduler.runtime.snapshot_state()).get(_BOLT, [{}])
    return BoltRun(task.bolt, emitted, acked, settled.failed, held, settled.reasons, report, left)


def _check_tuples(tuples: Iterable[Tuple]) -> list[Tuple]:
    given = list(tuples)
    for number, tup in enumerate(given):
        if not isinstance(tup, Tuple):
            raise ArgumentTypeError(
                f"run_bolt: tuple {number}: expected what make_tuple returns, got {tup!r}; write make_tuple({tup!r})"
            )
        if tup._owner is not None or any(tup is other for other in given[:number]):
            raise ArgumentValueError(f"run_bolt: tuple {number} was processed before; make another one: {tup!r}")
    return given


def _make_topology(
    bolt: Bolt | type[Bolt], given: Sequence[Tuple], read: list[Tuple], conf: Mapping[str, Any] | None, ticks: int
) -> tuple[type[Topology], dict[str, Any]]:
    """Return a topology that gives the bolt its inputs and reads all its streams, and its options."""
    kind = bolt if isinstance(bolt, type) else type(bolt)
    if not issubclass(kind, Bolt):
        raise ArgumentTypeError(f"run_bolt: expected a Bolt, its class or an instance, got {bolt!r}")
    if not isinstance(bolt, type):
        # A runtime instantiates a class for each task: this class returns the given instance.
        kind = type(kind.__name__, (kind,), {"__new__": lambda _: bolt, "__module__": kind.__module__})
    sources: dict[str, dict[str, Stream]] = {}
    for tup in given:
        stream = Stream(tup.fields, name=tup.stream)
        if sources.setdefault(tup.component, {}).setdefault(tup.stream, stream) != stream:
            raise ArgumentValueError(f"run_bolt: tuples of one stream have different fields: {tup!r}, {stream!r}")
    if not sources:
        sources["spout"] = {"default": Stream(["value"])}
    specs: dict[str, Any] = {}
    for number, (component, streams) in enumerate(sources.items()):
        feeder = FeederSpout.with_outputs(*streams.values())
        feeder.end()
        specs[f"source{number}"] = feeder.spec(component)
    inputs = [specs[f"source{number}"][name] for number, streams in enumerate(sources.values()) for name in streams]
    specs["tested"] = kind.spec(_BOLT, inputs=inputs)
    outputs = [*(kind.outputs or ())]  # of a dict the fields, as of a list
    names = [each.name for each in outputs if isinstance(each, Stream)]
    if any(isinstance(each, str) for each in outputs):
        names.append("default")
    if names:
        reader: Any = type("Reader", (Bolt,), {"process": lambda _, tup: read.append(tup)})
        specs["reader"] = reader.spec(_READER, inputs=[specs["tested"][name] for name in names])
    make: Any = type(Topology)
    topology: type[Topology] = make("Tested", (Topology,), specs)
    options = dict(conf or {})
    wants_ticks = ticks > 0 or issubclass(kind, BatchingBolt)
    if wants_ticks and {**options, **topology.graph().nodes[_BOLT].conf}.get(_TICKS) is None:
        options[_TICKS] = 1
    return topology, options
