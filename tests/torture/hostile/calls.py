"""Random calls of all that `acker._flow` has, also from within such calls, on objects of any kind and state."""

from __future__ import annotations

import gc
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from acker import _flow

_CLASSES: Final = [
    value for value in vars(_flow).values() if isinstance(value, type) and value.__module__ == _flow.__name__
]
_FUNCTIONS: Final = [
    _flow.pack_deliveries,
    _flow.unpack_deliveries,
    _flow.columns_of,
    _flow.emit_of_bolt,
    _flow.emit_of_spout,
]
_SPECIAL: Final = ("__call__", "__contains__", "__del__", "__eq__", "__getitem__", "__hash__", "__index__", "__iter__")
_MORE_SPECIAL: Final = ("__bool__", "__len__", "__lt__", "__mod__", "__rmod__")
_USER_METHODS: Final = ("next_tuple", "process", "put", "row_of", "take")
_OF_SPOUTS: Final = ("_direct", "_on_acked", "_on_delivery", "_on_emit", "_refuse_unrun", "_unhashable", "_unroutable")
_OF_BOLTS: Final = (
    *("_anchors_of", "_direct", "_on_ack", "_on_delivery", "_on_emit", "_on_execute", "_on_fail", "_reason_of"),
    *("_refuse", "_refuse_unanchored", "_refuse_unrun", "_unroutable"),
)
_OF_BUFFERS: Final = ("_keep_alive", "_wait_for_room", "_wake")
# They wait for a lock, or call user code without end: threads that hold a lock and wait for another would stand still.
_WAITING: Final = frozenset({"ack", "call_next_tuple", "close", "emit", "fail", "lock", "reset_timeout"})
_SCALARS: Final = (None, 0, 1, -1, 2, 2**63 - 1, -(2**63), 2**80, 1.5, "a", "", "default", b"x", True)

_POOL_MAX: Final = 300
_DEPTH_MAX: Final = 3  # of calls within calls
_TUPLES_MAX: Final = 4  # of one call of `run`


class Calls:
    """Some objects, and random calls of them; user code makes such calls too, wherever it is called.

    Parameters
    ----------
    seed : int
    threads : int
        How many threads make calls. More than one cannot be replayed exactly.

    Attributes
    ----------
    ended : Counter of str
        How the calls have ended.
    """

    def __init__(self, seed: int, threads: int = 1) -> None:
        self.ended: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._threads = threads
        self._here = threading.local()
        self._pool: list[Any] = []
        user, result = self._user, self._result

        def methods(names: Sequence[str]) -> dict[str, Callable[..., Any]]:
            return {name: lambda *_, name=name: result(name, user()) for name in names}

        state = {"_collector": None, "_finished": False, "fields": ("a",), "tuple_type": object}
        self._hostile = type("Hostile", (), methods([*_SPECIAL, *_MORE_SPECIAL, *_USER_METHODS]) | state)
        self._spout = type("Spout", (_flow.SpoutEmitter,), methods(_OF_SPOUTS))
        self._bolt = type("Bolt", (_flow.BoltEmitter,), methods(_OF_BOLTS))
        self._buffer = type("Buffer", (_flow.OutputBuffer,), methods(_OF_BUFFERS))
        own = (self._spout, self._bolt, self._buffer, self._hostile, type("Dict", (_flow.RecordingDict,), {}))
        self._classes = [*_CLASSES, *own]
        self._acts = (
            *[(self._collect, 3), (self._drop, 5), (self._make_blank, 4), (self._make, 6), (self._make_again, 4)],
            *[(self._touch_attribute, 10), (self._make_emitter, 4), (self._call_function, 8), (self._read, 6)],
            *[(self._emit, 16), (self._settle, 8), (self._run_component, 12), (self._call_method, 14)],
        )
        self._make_emitter()

    def run(self, count: int) -> None:
        """Make so many calls, divided among the threads."""
        if self._threads == 1:
            self._repeat(count)
            return
        threads = [threading.Thread(target=self._repeat, args=(count // self._threads,)) for _ in range(self._threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _repeat(self, count: int) -> None:
        for _ in range(count):
            self._act()

    def _act(self) -> None:
        acts, weights = zip(*self._acts, strict=True)
        (act,) = self._random.choices(acts, weights)
        try:
            act()
        except SystemError as error:
            self.ended[f"SystemError: {error}"] += 1
        except Exception as error:  # noqa: BLE001  Any exception will do.
            self.ended[type(error).__name__] += 1
        else:
            self.ended["returned"] += 1

    # ---- user code ----

    def _user(self) -> Any:
        """Do what user code may do where it is called; return anything."""
        depth = getattr(self._here, "depth", 0)
        if depth == _DEPTH_MAX:
            return None
        self._here.depth = depth + 1
        try:
            if self._random.random() < 0.5:
                self._act()
            return self._any() if self._random.random() < 0.5 else None
        finally:
            self._here.depth = depth

    def _result(self, name: str, value: Any) -> Any:
        if name in ("__hash__", "__index__", "__len__"):
            return self._random.choice((0, 1, 2, -1))
        if name in ("__bool__", "__contains__", "__eq__", "__lt__"):
            return self._random.random() < 0.5
        return iter(self._some()) if name == "__iter__" else value

    # ---- objects ----

    def _add(self, value: Any) -> None:
        if len(self._pool) < _POOL_MAX:
            self._pool.append(value)
        else:
            self._pool[self._random.randrange(len(self._pool))] = value

    def _pick(self, kind: type | tuple[type, ...]) -> Any:
        """Return an object of a kind, if a few looks find one, else any other."""
        found = None
        for _ in range(8):
            found = self._random.choice(self._pool)
            if isinstance(found, kind):
                break
        return found

    def _some(self) -> list[Any]:
        return [self._any() for _ in range(self._random.randrange(4))]

    def _any(self) -> Any:
        """Return any value."""
        draw = self._random.randrange(12)
        if draw < 6:
            return self._random.choice(self._pool)
        if draw == 6:
            return self._random.choice(_SCALARS)
        if draw == 7:
            return self._hostile()
        if draw == 8:
            return self._some()
        if draw == 9:
            return tuple(self._some())
        if draw == 10:
            return {self._random.choice((None, "default", 0, 1)): self._any() for _ in range(2)}
        return self._random.choice((np.arange(3), np.zeros(2), set(), lambda *_: self._user(), lambda *_: [None]))

    def _arguments(self) -> tuple[list[Any], dict[str, Any]]:
        names = ("anchors", "auto_anchor", "direct_task", "need_task_ids", "now_ns", "sample_every", "stream", "tup_id")
        named = self._random.sample(names, 2) if self._random.random() < 0.2 else ()
        return [self._any() for _ in range(self._random.randrange(7))], {name: self._any() for name in named}

    def _new_tuple_type(self, width: int) -> Any:
        names = "abcd"[:width]
        made: Any = type("Tup", (_flow.TupleBase,), {"__slots__": tuple(names)})
        made._slots = _flow.ValueSlots(made, type("Values", (tuple,), {"__slots__": ()}), names)
        self._add(made._slots)
        return made

    def _deliveries(self) -> list[Any]:
        return [each for each in self._pool[:] if isinstance(each, _flow.TupleBase)][:_TUPLES_MAX]

    # ---- what may happen ----

    def _collect(self) -> None:
        gc.collect(self._random.randrange(3))

    def _drop(self) -> None:
        if len(self._pool) > 20:
            self._pool.pop(self._random.randrange(len(self._pool)))

    def _make_blank(self) -> None:
        kind: Any = self._random.choice(self._classes)
        self._add(kind.__new__(kind))

    def _make(self) -> None:
        arguments, named = self._arguments()
        self._add(self._random.choice(self._classes)(*arguments, **named))

    def _make_again(self) -> None:
        arguments, named = self._arguments()
        self._pick(tuple(_CLASSES)).__init__(*arguments, **named)

    def _touch_attribute(self) -> None:
        target = self._pick(tuple(_CLASSES))
        name = self._name_in(target)
        if self._random.random() < 0.6:
            setattr(target, name, self._any())
        else:
            self._add(getattr(target, name))

    def _name_in(self, target: Any) -> str:
        names = [name for name in dir(type(target)) if not name.startswith("__") and name not in _WAITING]
        return self._random.choice(names or ["nothing"])

    def _call_method(self) -> None:
        target = self._pick(tuple(_CLASSES))
        arguments, named = self._arguments()
        self._add(getattr(target, self._name_in(target))(*arguments, **named))

    def _call_function(self) -> None:
        function: Any = self._random.choice(_FUNCTIONS)
        self._add(function(*self._arguments()[0]))

    def _read(self) -> None:
        found = self._pick((_flow.TupleBase, dict, list))
        if isinstance(found, _flow.TupleBase):
            self._add(found.values)
        elif isinstance(found, dict):
            found[self._random.choice(("default", None, 0))] = self._any()
        elif isinstance(found, list) and len(found) < 20:
            found.append(self._any())

    def _waits(self) -> bool:
        """Return whether this is no moment for what may wait for a lock."""
        return self._threads > 1 and getattr(self._here, "depth", 0) > 0

    def _emit(self) -> None:
        emitter = self._pick(_flow.Emitter)
        if self._waits():
            return
        choice = self._random.choice
        values = choice(([self._any() for _ in range(self._random.randrange(1, 4))], self._any()))
        stream, direct_task = choice((None, None, "default", self._any())), choice((None, None, None, 0, self._any()))
        second: Any = choice((None, None, 1, [], self._any(), self._deliveries()))
        if isinstance(emitter, _flow.BoltEmitter):
            emitter.emit(values, stream, second, direct_task, choice((True, False)))
        else:
            emitter.emit(values, second, stream, direct_task, choice((True, False)))

    def _settle(self) -> None:
        bolt, tup = self._pick(_flow.BoltEmitter), self._pick(_flow.TupleBase)
        if not self._waits():
            method = self._random.choice(("ack", "ack_unless_settled", "fail", "fail_unless_settled", "reset_timeout"))
            getattr(bolt, method)(*([tup] if method != "fail_unless_settled" else [tup, self._any()]))

    def _run_component(self) -> None:
        emitter = self._pick(_flow.Emitter)
        if self._waits():
            return
        choice, user = self._random.choice, self._user
        if isinstance(emitter, _flow.BoltEmitter):
            tuples = self._deliveries()
            bolt = choice((SimpleNamespace(process=lambda _: user(), _collector=emitter), self._hostile()))
            emitter.run(tuples, 0, len(tuples), bolt, choice((True, False)), lambda *_: user())
        elif self._random.random() < 0.5:
            spout = SimpleNamespace(next_tuple=user, _collector=emitter, _finished=False)
            emitter.call_next_tuple(spout, lambda *_: user(), self._random.randrange(5), choice((3, 2**40)))
        else:
            message_ids = self._random.choices([*emitter.pending, 0], k=2)
            outcomes = [(message_id, self._random.randrange(3), None) for message_id in message_ids]
            emitter.deliver_outcomes(outcomes, lambda *_: user(), lambda *_: user(), choice((None, lambda *_: user())))

    def _make_emitter(self) -> None:
        """Make an emitter as a runtime makes it, and what it needs, so that calls get somewhere."""
        draw, user = self._random, self._user
        width = draw.randrange(1, 4)
        queues = [SimpleNamespace(put=lambda *_: user(), has_room=lambda _: True) for _ in range(3)]
        outlets = [_flow.Outlet(queues[0], task, task) for task in range(draw.randrange(1, 4))]
        kind = self._new_tuple_type(width)
        source = SimpleNamespace(fields="abcd"[:width], tuple_type=kind, row_of=draw.choice((tuple, self._hostile())))
        route = _flow.Route(source, self._new_grouping(outlets), False, dict(enumerate(outlets)))
        buffer, sender = self._buffer(draw.randrange(1, 10)), _flow.AckSender(queues[: draw.randrange(3)])
        ids = SimpleNamespace(take=lambda _: np.arange(1, draw.randrange(2, 50)))
        options: dict[str, Any] = {"now_ns": lambda: draw.randrange(10)}
        made = draw.choice((self._spout, self._bolt))
        if made is self._bolt:
            options |= {"auto_anchor": draw.random() < 0.5, "sample_every": draw.randrange(1, 3)}
        latencies = _flow.Latencies([1, 2])
        emitter = made(1, {None: route, "default": route}, buffer, sender, ids, latencies, **options)
        if draw.random() < 0.5:
            buffer.enter()
        tuples = []
        for _ in range(3):
            ids_of = {draw.randrange(5): draw.randrange(5) for _ in range(draw.randrange(3))}
            tuples.append(kind(tuple("abc"[:width]), source, ids_of))
            tuples[-1]._owner = emitter
        for value in (kind, source, route, buffer, sender, emitter, emitter, emitter, *outlets, *tuples):
            self._add(value)

    def _new_grouping(self, outlets: list[Any]) -> Any:
        draw, user = self._random, self._user

        def choose(_: object) -> list[Any]:
            user()
            return draw.sample(outlets, draw.randrange(len(outlets) + 1))

        def hash_of(_: object) -> int:
            user()
            return draw.randrange(10)

        grouping = draw.choice(
            (
                _flow.AllGrouping(outlets),
                _flow.ShuffleGrouping(outlets, 0),
                _flow.FieldsGrouping(outlets, 0, hash_of),
                _flow.CustomGrouping(choose),
            )
        )
        return _flow.CombinedGrouping([grouping, grouping]) if draw.random() < 0.3 else grouping
