"""Random topologies with threads, whose values run code at any moment, and which are closed in the middle.

Threads of users emit, ack and fail meanwhile and afterwards, also for topologies that Python has collected since.
"""

from __future__ import annotations

import contextlib
import gc
import random
import threading
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from acker.local import LocalRuntime
from acker.topology import Bolt, Grouping, Spout, Stream, Topology, Tuple

_USERS: Final = 2
_RUN_SECS_MAX: Final = 0.4
_JOIN_SECS: Final = 30.0


class Value:
    """A value that runs code when it is compared, hashed or dropped."""

    __slots__ = ("number", "other")
    run: ClassVar[Callable[[], object]] = object

    def __init__(self, number: int, other: object = None) -> None:
        self.number = number
        self.other = other

    def __hash__(self) -> int:
        Value.run()
        return self.number % 3

    def __eq__(self, other: object) -> bool:
        Value.run()
        return isinstance(other, Value) and other.number == self.number

    def __del__(self) -> None:
        Value.run()


class Graph:
    """A random topology, and what its components and other threads do.

    Parameters
    ----------
    seed : int

    Attributes
    ----------
    ended : Counter of str
        How the calls of other threads have ended.
    """

    def __init__(self, seed: int) -> None:
        self.ended: Counter[str] = Counter()
        self.random = random.Random(seed)
        self._alive: list[Any] = []
        self._tuples: list[tuple[Any, Tuple]] = []

    def run(self) -> None:
        """Run the topology for a moment, close it in one way or another, and let other threads use it all the time."""
        draw = self.random
        conf = {
            "topology.acker.tasks": draw.randrange(3),
            "topology.max.spout.pending": draw.choice((5, 100)),
            "topology.message.timeout.secs": 1,
        }
        over = threading.Event()
        users = [threading.Thread(target=self._use, args=(over, number), daemon=True) for number in range(_USERS)]
        with self._running(conf):
            for user in users:
                user.start()
            time.sleep(draw.random() * _RUN_SECS_MAX)
        gc.collect()
        time.sleep(draw.random() * 0.02)
        over.set()
        for user in users:
            user.join(_JOIN_SECS)
            self.ended["hung"] += user.is_alive()

    @contextlib.contextmanager
    def _running(self, conf: Mapping[str, Any]) -> Iterator[None]:
        runtime = LocalRuntime(self._topology(), conf)
        Value.run = self._disturb
        try:
            runtime.start()
            yield
            if self.random.random() < 0.5:
                runtime.lifecycle.abort()
            runtime.stop(0.2)
        finally:
            Value.run = object

    def _use(self, over: threading.Event, number: int) -> None:
        """Emit, ack and fail from a thread that no executor knows."""
        draw = random.Random(number)
        while not over.is_set():
            try:
                if draw.random() < 0.6 and self._alive:
                    self._emit(draw.choice(self._alive))
                elif self._tuples:
                    self._settle()
            except Exception as error:  # noqa: BLE001  Any exception will do.
                self.ended[type(error).__name__] += 1
            else:
                self.ended["returned"] += 1
            if draw.random() < 0.05:
                time.sleep(0.0005)

    def _emit(self, component: Any) -> None:
        values = [self.value(), 1]
        if isinstance(component, Bolt):
            component.emit(values, anchors=[])
        else:
            component.emit(values, tup_id=self.random.choice((None, self.random.random())))

    def _settle(self) -> None:
        bolt, tup = self._tuples.pop()
        self.random.choice((bolt.ack, bolt.fail))(tup)

    def _disturb(self) -> None:
        """Do what user code may do at any moment."""
        draw = self.random.randrange(60)
        if draw == 0:
            gc.collect(self.random.randrange(3))
        elif draw < 4:
            with contextlib.suppress(Exception):
                if draw == 1:
                    self._emit(self.random.choice(self._alive))
                elif draw == 2:
                    self._settle()
                else:
                    self._tuples.pop()

    def value(self) -> object:
        """Return some value."""
        draw = self.random.randrange(6)
        if draw == 0:
            return Value(self.random.randrange(5))
        return (Value(1, [Value(2)]), "text", 5, (1, Value(3)), [Value(1)])[draw - 1]

    def _grouping(self) -> Grouping:
        def choose(_: object, tasks: Sequence[int]) -> list[int]:
            self._disturb()
            return self.random.sample(tasks, self.random.randrange(len(tasks) + 1))

        choices = (Grouping.shuffle(), Grouping.all(), Grouping.fields("b"), Grouping.fields("a", "b"))
        return self.random.choice((*choices, Grouping.custom(choose)))

    def _topology(self) -> type[Topology]:
        graph, draw = self, self.random

        class Numbers(Spout):
            outputs = (Stream(["a", "b"]), Stream(["a"], "direct", direct=True))

            def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
                self.count = 0
                graph._alive.append(self)

            def next_tuple(self) -> None:
                self.count += 1
                graph._disturb()
                self.emit(
                    [graph.value(), draw.randrange(5)],
                    tup_id=draw.choice((None, self.count, (self.count, Value(self.count)))),
                )
                if draw.randrange(300) == 0:
                    raise RuntimeError("a spout that fails")

        class Passes(Bolt):
            outputs = ("a", "b")
            auto_ack = draw.random() < 0.7
            auto_fail = draw.random() < 0.7

            def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
                self.itself = self
                graph._alive.append(self)

            def process(self, tup: Tuple) -> None:
                graph._disturb()
                if draw.random() < 0.3:
                    graph._tuples.append((self, tup))
                for _ in range(draw.randrange(3)):
                    self.emit([tup[0], tup.b if draw.random() < 0.5 else graph.value()])
                if draw.randrange(300) == 0:
                    raise RuntimeError("a bolt that fails")

        class Counts(Bolt):
            def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
                self.counts: dict[Any, int] = {}

            def process(self, tup: Tuple) -> None:
                with contextlib.suppress(TypeError):  # a list has no hash
                    self.counts[tup[0]] = self.counts.get(tup[0], 0) + len(tup.values)

        numbers = Numbers.spec(par=draw.randrange(1, 3))
        first = Passes.spec(inputs={numbers: graph._grouping()}, par=draw.randrange(1, 4))
        second = Passes.spec(inputs={first: graph._grouping(), numbers: graph._grouping()}, par=draw.randrange(1, 3))
        counts = Counts.spec(inputs={second: graph._grouping()}, par=draw.randrange(1, 3))
        parts = {"numbers": numbers, "first": first, "second": second, "counts": counts}
        return types.new_class("Hostile", (Topology,), exec_body=lambda body: body.update(parts))
