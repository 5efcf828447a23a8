"""FsShelter's dispatch functions, for projects that come from there, which make components of plain functions.

As in its Dispatch.fs, `reliable_spout` tracks what it emits and receives acks and nacks, `unreliable_spout` does
neither, `auto_ack_bolt` acks what it consumed, and `auto_nack_bolt` always fails it. Each returns a class as a user
would write it, so that ``.spec(...)`` gives its place in a topology.

Examples
--------
>>> from acker.topology import Grouping, Topology, auto_ack_bolt, reliable_spout
>>> lines = enumerate(["to be", "or not"])
>>> def split(args, tup, emit):
...     for word in tup.line.split():
...         emit([word])
>>> def read(args):
...     number, line = next(lines)     # StopIteration: no more tuples will come
...     return number, [line]
>>> class Words(Topology):
...     lines = reliable_spout(read, outputs=["line"]).spec()
...     words = auto_ack_bolt(split, outputs=["word"]).spec(inputs={lines: Grouping.shuffle}, par=2)
>>> [node.component.__name__ for node in Words.graph().nodes.values()]
['read', 'split']
"""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from acker.errors import TopologyError
from acker.observe.reasons import Reason
from acker.topology.bolt import Bolt
from acker.topology.component import Component, Outputs
from acker.topology.methods import refuse_unrun
from acker.topology.spout import Spout
from acker.topology.tuples import ACTIVATE_STREAM, DEACTIVATE_STREAM, SYSTEM_COMPONENT, Tuple, TupleSource

Args = Any
MakeArgs = Callable[[Mapping[str, Any], Mapping[str, Any]], Args]
StreamOf = Callable[[Sequence[Any]], str]
Consume = Callable[[Args, Tuple, Callable[..., Any]], object]


class _WithArgs(Component):
    """A component that makes its arguments when a task is initialized."""

    _args: Args = None
    _make_args: MakeArgs | None = None

    def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        if self._make_args is not None:
            self._args = self._make_args(conf, context)


def _component(base: type[Any], function: Callable[..., Any], name: str | None, **members: Any) -> type[Any]:
    """Return a subclass with the name and the documentation of a function."""
    module = getattr(function, "__module__", None) or __name__
    members = {"__module__": module, "__doc__": inspect.getdoc(function), **members}
    own_name: str = getattr(function, "__name__", base.__name__)
    return type(name or own_name, (base,), members)


def _check(what: str, function: Any, *, may_be_async: bool = False, mend: str = "write a plain function") -> None:
    """Refuse anything that is no function, and functions whose call would run nothing."""
    if function is None:
        return
    name = getattr(function, "__name__", repr(function))
    if not callable(function):
        raise TopologyError(f"{what}: expected a function, got {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TopologyError(f"{what}: {name} is a generator: it has a yield, so a call runs nothing of it; {mend}")
    if inspect.iscoroutinefunction(function) and not may_be_async:
        raise TopologyError(f"{what}: {name} is `async def`, which no runtime awaits here; {mend}")


def _spout(base: type[Spout], next_: Callable[..., Any], name: str | None, **members: Any) -> type[Spout]:
    if next_ is None:
        raise TopologyError("next: expected a function, got None")
    _check("next", next_, mend="return one tuple a call, or write a Spout, whose next_tuple() may be async")
    if members["_keep"] is not None:
        members["keep_alive"] = _Functions._call_keep_alive
    return _component(base, next_, name, _next=staticmethod(next_), **members)


def _static(function: Callable[..., Any] | None) -> Any:
    return None if function is None else staticmethod(function)


class _Functions(_WithArgs, Spout):
    """A spout of functions."""

    _next: Callable[[Args], Any]
    _stream_of: StreamOf | None = None
    _keep: Callable[[Args], object] | None = None

    def _call_keep_alive(self) -> None:
        """Replace `keep_alive` if the user gave a function for it."""
        assert self._keep is not None
        self._keep(self._args)

    def _call_next(self) -> Any:
        """Return the result of the user's function; None also when no more tuples will come."""
        try:
            return self._next(self._args)
        except StopIteration:
            self.finish()
            return None

    def _stream(self, values: Sequence[Any]) -> str | None:
        return None if self._stream_of is None else self._stream_of(values)


class _ReliableFunctions(_Functions):
    _ack: Callable[[Args, Hashable], object] | None = None
    _nack: Callable[..., object] | None = None

    def next_tuple(self) -> None:
        emitted = self._call_next()
        if emitted is not None:
            if not isinstance(emitted, tuple | list) or len(emitted) != 2 or emitted[0] is None:
                raise TopologyError(
                    f"{self.component_name}: next returned {reprlib.repr(emitted)}; expected "
                    "(tup_id, values), or None if there is no tuple now"
                )
            tup_id, values = emitted
            self.emit(values, tup_id, self._stream(values))

    # The results are returned, so that the runtime can refuse a coroutine.
    def ack(self, tup_id: Any) -> Any:
        return None if self._ack is None else self._ack(self._args, tup_id)

    def fail(self, tup_id: Any, reason: Reason | None = None) -> Any:
        return None if self._nack is None else self._nack(self._args, tup_id, reason)


class _UnreliableFunctions(_Functions):
    def next_tuple(self) -> None:
        values = self._call_next()
        if values is not None:
            self.emit(values, None, self._stream(values))


def reliable_spout(
    next: Callable[[Args], tuple[Hashable, Sequence[Any]] | None],  # noqa: A002 - FsShelter's word
    ack: Callable[[Args, Hashable], object] | None = None,
    nack: Callable[..., object] | None = None,
    *,
    outputs: Outputs,
    make_args: MakeArgs | None = None,
    stream_of: StreamOf | None = None,
    keep_alive: Callable[[Args], object] | None = None,
    name: str | None = None,
) -> type[Spout]:
    """Return a spout that tracks what it emits.

    Parameters
    ----------
    next : callable
        ``next(args)`` returns (tup_id, values), or None if there is no tuple now. It raises StopIteration when no more
        tuples will come.
    ack : callable, optional
        ``ack(args, tup_id)`` is called when the tuple's tree is complete.
    nack : callable, optional
        ``nack(args, tup_id)`` or ``nack(args, tup_id, reason)`` is called when it failed. Nothing is replayed unless
        `next` returns the tuple again.
    outputs : list of str or Stream
    make_args : callable, optional
        ``make_args(conf, context)`` makes the `args` of a task; by default they are None.
    stream_of : callable, optional
        ``stream_of(values)`` returns the stream of a tuple; by default "default".
    keep_alive : callable, optional
        ``keep_alive(args)`` is called at least every second; see `Spout.keep_alive`.
    name : str, optional
        Name of the class; by default that of `next`.

    Returns
    -------
    type
        A subclass of Spout.
    """
    _check("ack", ack, mend="write a Spout, whose ack() may be async")
    _check("nack", nack, mend="write a Spout, whose fail() may be async")
    _check("stream_of", stream_of)
    _check("make_args", make_args)
    if nack is not None and not _takes_reason(nack):
        nack = _without_reason(nack)
    functions = {"_ack": _static(ack), "_nack": _static(nack)}
    shared = {"_stream_of": _static(stream_of), "_make_args": _static(make_args), "_keep": _static(keep_alive)}
    _check("keep_alive", keep_alive, mend="write a Spout, whose keep_alive() may be async")
    return _spout(_ReliableFunctions, next, name, outputs=outputs, **functions, **shared)


def unreliable_spout(
    next: Callable[[Args], Sequence[Any] | None],  # noqa: A002 - FsShelter's word
    *,
    outputs: Outputs,
    make_args: MakeArgs | None = None,
    stream_of: StreamOf | None = None,
    keep_alive: Callable[[Args], object] | None = None,
    name: str | None = None,
) -> type[Spout]:
    """Return a spout whose tuples are not tracked.

    Parameters
    ----------
    next : callable
        ``next(args)`` returns the values of a tuple, or None if there is no tuple now. It raises StopIteration when no
        more tuples will come.
    outputs, make_args, stream_of, keep_alive, name
        See `reliable_spout`.

    Returns
    -------
    type
        A subclass of Spout.
    """
    _check("stream_of", stream_of)
    _check("make_args", make_args)
    shared = {"_stream_of": _static(stream_of), "_make_args": _static(make_args), "_keep": _static(keep_alive)}
    _check("keep_alive", keep_alive, mend="write a Spout, whose keep_alive() may be async")
    return _spout(_UnreliableFunctions, next, name, outputs=outputs, **shared)


class _ConsumingBolt(_WithArgs, Bolt):
    """A bolt of one function."""

    _consume: Consume
    _activation: Mapping[str, Any] | None = None
    _deactivation: Mapping[str, Any] | None = None

    def process(self, tup: Tuple) -> Any:
        return self._consume(self._args, tup, self._emitter)

    def _emitter(
        self, values: Sequence[Any], stream: str | None = None, anchors: Iterable[Tuple] | None = None
    ) -> None:
        self.emit(values, stream, anchors)

    def activate(self) -> None:
        self._consume_signal(ACTIVATE_STREAM, self._activation)

    def deactivate(self) -> None:
        self._consume_signal(DEACTIVATE_STREAM, self._deactivation)

    def _consume_signal(self, stream: str, values: Mapping[str, Any] | None) -> None:
        if values is not None:
            source = TupleSource(SYSTEM_COMPONENT, stream, -1, values)
            tup = source.tuple_type(source.make_values(values.values()), source)
            returned = self._consume(self._args, tup, self._emitter)
            if returned is not None:
                refuse_unrun(self.component_name, "consume", returned)


class _AsyncConsumingBolt(_ConsumingBolt):
    async def process(self, tup: Tuple) -> Any:
        return await super().process(tup)


class _Nacker(_ConsumingBolt):
    auto_ack = False

    def process(self, tup: Tuple) -> None:
        super().process(tup)
        self.fail(tup, "an auto_nack_bolt fails what it consumed")


class _AsyncNacker(_ConsumingBolt):
    auto_ack = False

    async def process(self, tup: Tuple) -> None:
        await super().process(tup)
        self.fail(tup, "an auto_nack_bolt fails what it consumed")


def _bolt(
    kinds: tuple[type[Bolt], type[Bolt]],
    consume: Consume,
    outputs: Outputs | None,
    make_args: Any,
    name: str | None,
    **members: Any,
) -> type[Bolt]:
    if consume is None:
        raise TopologyError("consume: expected a function, got None")
    _check("consume", consume, may_be_async=True, mend="call emit([...]) in the place of yield")
    _check("make_args", make_args)
    base = kinds[inspect.iscoroutinefunction(consume)]
    functions = {"_consume": _static(consume), "_make_args": _static(make_args)}
    return _component(base, consume, name, outputs=outputs, **functions, **members)


def auto_ack_bolt(
    consume: Consume,
    *,
    outputs: Outputs | None = None,
    make_args: MakeArgs | None = None,
    name: str | None = None,
    activation: Mapping[str, Any] | None = None,
    deactivation: Mapping[str, Any] | None = None,
) -> type[Bolt]:
    """Return a bolt that acks what it consumed, and fails it when `consume` raises.

    Parameters
    ----------
    consume : callable
        ``consume(args, tup, emit)``, also ``async def``. ``emit(values, stream=None, anchors=None)`` emits anchored to
        the tuple. Other threads of yours have to name it: ``anchors=[tup]``.
    outputs : list of str or Stream, optional
        None: emits nothing.
    make_args : callable, optional
        ``make_args(conf, context)`` makes the `args` of a task; by default they are None.
    name : str, optional
        Name of the class; by default that of `consume`.
    activation, deactivation : dict of str to object, optional
        Fields and values of a tuple that `consume` receives when the bolt is activated or deactivated, as with
        FsShelter's withActivation. Its component is "__system", its stream "__activate" or "__deactivate", and tuples
        emitted then have no anchor. Not for an ``async def``.

    Returns
    -------
    type
        A subclass of Bolt.
    """
    members = {"_activation": activation, "_deactivation": deactivation}
    for what, values in members.items():
        if values is None:
            continue
        named: object = values
        if not isinstance(named, Mapping) or not all(isinstance(field, str) for field in named):
            raise TopologyError(f"{what[1:]}: expected a dict of fields such as {{'word': 'x'}}, got {values!r}")
        if inspect.iscoroutinefunction(consume):
            raise TopologyError(f"{what[1:]}: {consume.__name__} is `async def`, which no runtime awaits here")
    return _bolt((_ConsumingBolt, _AsyncConsumingBolt), consume, outputs, make_args, name, **members)


def auto_nack_bolt(
    consume: Consume,
    *,
    outputs: Outputs | None = None,
    make_args: MakeArgs | None = None,
    name: str | None = None,
) -> type[Bolt]:
    """Return a bolt that fails every tuple: the end of a path that no tuple should take.

    Parameters
    ----------
    consume, outputs, make_args, name
        See `auto_ack_bolt`.

    Returns
    -------
    type
        A subclass of Bolt.
    """
    return _bolt((_Nacker, _AsyncNacker), consume, outputs, make_args, name)


def _takes_reason(nack: Callable[..., object]) -> bool:
    try:
        inspect.signature(nack).bind(None, None, None)
    except (TypeError, ValueError):
        return False
    return True


def _without_reason(nack: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(nack)
    def call(args: Args, tup_id: Hashable, _reason: Reason | None) -> object:
        return nack(args, tup_id)

    return call
