"""Spouts and bolts for tests: a spout that a test feeds, a bolt that keeps its tuples, a tracker of acks and fails.

They follow Apache Storm's test kit (FeederSpout, AckFailMapTracker, TupleCaptureBolt). A test only has the class of a
component, since the runtime makes its instances, so the state belongs to the class. Each subclass has its own state.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple, Self

from acker.errors import ArgumentValueError, TopologyError
from acker.topology import Bolt, ComponentSpec, Reason, Spout, Stream, Tuple
from acker.topology.streams import DEFAULT_STREAM
from acker.topology.suggestions import suggestion
from acker.topology.tuples import row_of

_NO_FEED: Final = "no feed; make a spout that has one: Words = FeederSpout.with_outputs('word'), or a subclass"
_NO_LIST: Final = "no list; make a bolt that has one: Sink = CapturingBolt.fresh(), or a subclass"


class FixedTuple(NamedTuple):
    """A tuple in a test: its values and its stream.

    Attributes
    ----------
    values : sequence
        One value for each field.
    stream : str
    """

    values: Sequence[Any]
    stream: str = "default"


def as_fixed_tuple(values: Sequence[Any]) -> FixedTuple:
    """Return values as a FixedTuple, by default of the default stream."""
    return values if isinstance(values, FixedTuple) else FixedTuple(values)


def find_misfit(tup: FixedTuple, streams: Mapping[str, Sequence[str]]) -> str | None:
    """Return why a tuple cannot be emitted; None if it can.

    Parameters
    ----------
    tup : FixedTuple
    streams : dict
        Stream -> its fields.
    """
    values, stream = tup
    if stream not in streams:
        return f"there is no stream {stream!r}; {suggestion(stream, streams)}"
    fields = streams[stream]
    expected = f"stream {stream!r} takes {len(fields)} values, [{', '.join(fields)}]"
    if row_of(values) is None:
        return f"{expected}; expected a list or tuple of them, got {values!r}"
    return None if len(values) == len(fields) else f"{expected}, got {len(values)}: {values!r}"


class AckFailTracker:
    """Records the outcomes of a spout's tuples, in their order. Any thread may read it while a topology runs.

    Attributes
    ----------
    acked, failed : list of hashable
        The ids of the spout. An id with two outcomes is there twice.
    reasons : list of Reason
        The reasons, one for each of `failed`.
    """

    def __init__(self) -> None:
        self.acked: list[Hashable] = []
        self.failed: list[Hashable] = []
        self.reasons: list[Reason | None] = []

    def ack(self, tup_id: Hashable) -> None:
        """Record that a tuple was acked."""
        self.acked.append(tup_id)

    def fail(self, tup_id: Hashable, reason: Reason | None = None) -> None:
        """Record that a tuple failed, and why."""
        self.reasons.append(reason)  # first, so that readers on other threads find a reason for each id
        self.failed.append(tup_id)

    def is_acked(self, tup_id: Hashable) -> bool:
        """Return whether a tuple was acked."""
        return tup_id in self.acked

    def is_failed(self, tup_id: Hashable) -> bool:
        """Return whether a tuple failed."""
        return tup_id in self.failed

    def reason_of(self, tup_id: Hashable) -> Reason | None:
        """Return the first reason of a tuple's failure; None if it did not fail, or without a reason."""
        return self.reasons[self.failed.index(tup_id)] if tup_id in self.failed else None

    def clear(self) -> None:
        """Forget all outcomes."""
        self.acked.clear()
        self.failed.clear()
        self.reasons.clear()


class FeederSpout(Spout):
    """A spout that emits the tuples that a test feeds, and records their outcomes in a tracker. It replays nothing.

    Feed the class: ``Words = FeederSpout.with_outputs("word")``, ``Words.spec()`` in a topology, and
    ``Words.feed(["a"], 1)`` at any time, from any thread. The tasks of one class share the feed.

    Attributes
    ----------
    tracker : AckFailTracker
        Of the class.
    """

    tracker: ClassVar[AckFailTracker]
    _feed: ClassVar[deque[tuple[FixedTuple, Hashable | None]] | None] = None
    _ended: ClassVar[bool]

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.tracker, cls._feed, cls._ended = AckFailTracker(), deque(), False

    @classmethod
    def with_outputs(cls, *outputs: str | Stream) -> type[Self]:
        """Return a new spout class with these fields or streams, its own feed and its own tracker."""
        return type(cls.__name__, (cls,), {"outputs": list(outputs), "__module__": cls.__module__})

    @classmethod
    def spec(cls, *args: Any, **kwargs: Any) -> ComponentSpec:
        """Return this spout's place in a topology; see `Spout.spec`."""
        if cls._feed is None:
            raise TopologyError(f"{cls.__name__} has {_NO_FEED}")
        return super().spec(*args, **kwargs)

    @classmethod
    def _streams(cls) -> dict[str, tuple[str, ...]]:
        """Return the fields of each stream by its name."""
        outputs = cls.outputs or ()
        if isinstance(outputs, Mapping):
            return {DEFAULT_STREAM: tuple(outputs)}
        streams = {stream.name: stream.fields for stream in outputs if isinstance(stream, Stream)}
        fields = tuple(field for field in outputs if isinstance(field, str))
        return {DEFAULT_STREAM: fields, **streams} if fields else streams

    @classmethod
    def feed(cls, values: Sequence[Any], tup_id: Hashable | None = None) -> None:
        """Add a tuple, which one of the tasks emits.

        Parameters
        ----------
        values : sequence or FixedTuple
            One value for each field of the default stream, or of the FixedTuple's stream.
        tup_id : hashable, optional
            The id for the tracker; without it the tuple is not tracked.

        Raises
        ------
        ArgumentValueError
            The stream does not exist or has another number of fields; `end` was called; or this is FeederSpout itself,
            which has no feed.
        """
        feed, tup = cls._own_feed(), as_fixed_tuple(values)
        if cls._ended:
            raise ArgumentValueError(f"{cls.__name__}: feed() after end()")
        wrong = find_misfit(tup, cls._streams())
        if wrong is not None:
            raise ArgumentValueError(f"{cls.__name__}.feed: {wrong}")
        # A copy, since the test may change its list.
        feed.append((FixedTuple(copy.copy(tup.values), tup.stream), tup_id))

    @classmethod
    def _own_feed(cls) -> deque[tuple[FixedTuple, Hashable | None]]:
        if cls._feed is None:
            raise ArgumentValueError(f"{cls.__name__} has {_NO_FEED}")
        return cls._feed

    @classmethod
    def end(cls) -> None:
        """Declare that nothing more will be fed, so that a run can end when all is done (``until="drained"``)."""
        cls._own_feed()
        cls._ended = True

    @classmethod
    def waiting_count(cls) -> int:
        """Return the number of tuples that no task has emitted yet."""
        return len(cls._own_feed())

    def next_tuple(self) -> None:
        """Emit the oldest tuple of the feed, if there is one."""
        try:
            (values, stream), tup_id = self._own_feed().popleft()
        except IndexError:
            if self._ended:
                self.finish()
            return
        self.emit(values, tup_id=tup_id, stream=stream)

    def ack(self, tup_id: Hashable) -> None:
        """Record the outcome in the tracker."""
        self.tracker.ack(tup_id)

    def fail(self, tup_id: Hashable, reason: Reason | None = None) -> None:
        """Record the outcome in the tracker."""
        self.tracker.fail(tup_id, reason)


class Captured(NamedTuple):
    """A tuple that reached a `CapturingBolt`.

    Attributes
    ----------
    component, stream : str
        Its origin.
    task : int
        The task that it reached.
    values : tuple
    """

    component: str
    stream: str
    task: int
    values: tuple[Any, ...]


class CapturingBolt(Bolt):
    """A bolt that keeps and acks all its tuples: ``Sink = CapturingBolt.fresh()``, ``Sink.spec(inputs=[...])``.

    Attributes
    ----------
    captured : list of Captured
        The tuples of the class, in the order of arrival.
    """

    captured: ClassVar[list[Captured]]
    _is_own: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.captured, cls._is_own = [], True

    @classmethod
    def fresh(cls) -> type[Self]:
        """Return a new bolt class that has captured nothing yet."""
        return type(cls.__name__, (cls,), {"__module__": cls.__module__})

    @classmethod
    def spec(cls, *args: Any, **kwargs: Any) -> ComponentSpec:
        """Return this bolt's place in a topology; see `Bolt.spec`."""
        if not cls._is_own:
            raise TopologyError(f"{cls.__name__} has {_NO_LIST}")
        return super().spec(*args, **kwargs)

    @classmethod
    def tuples(cls, component: str | None = None, stream: str | None = None) -> list[tuple[Any, ...]]:
        """Return the values of the captured tuples, in the order of arrival.

        Parameters
        ----------
        component, stream : str, optional
            Only tuples from there.

        Raises
        ------
        ArgumentValueError
            This is CapturingBolt itself, which captures nothing.
        """
        if not cls._is_own:
            raise ArgumentValueError(f"{cls.__name__} has {_NO_LIST}")
        return [
            found.values
            for found in list(cls.captured)
            if component in {None, found.component} and stream in {None, found.stream}
        ]

    def process(self, tup: Tuple) -> None:
        """Keep a tuple, which is acked when this returns."""
        self.captured.append(Captured(tup.component, tup.stream, self.task_id, tuple(tup.values)))
