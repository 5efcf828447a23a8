"""Groupings, which choose the tasks of a bolt that receive each tuple of a stream."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from acker.errors import TopologyError

CustomGrouping = Callable[[tuple[Any, ...], Sequence[int]], Iterable[int]]


KINDS: Final = ("shuffle", "fields", "partial_key", "all", "global", "direct", "none", "local_or_shuffle", "custom")

# Kinds that name fields.
BY_FIELDS: Final = ("fields", "partial_key")


def _as_names(names: Sequence[Any]) -> tuple[str, ...]:
    return tuple(names[0]) if len(names) == 1 and isinstance(names[0], list | tuple) else tuple(names)


@dataclass(frozen=True, slots=True)
class Grouping:
    r"""The grouping that distributes the tuples of a stream over the tasks of a bolt.

    Use the constants (``Grouping.shuffle``, or ``Grouping.SHUFFLE`` as in streamparse) and the functions `fields`,
    `partial_key` and `custom`. The default is shuffle, and direct for a direct stream.

    ====================  ==============================================================================================
    shuffle               evenly, in random order
    fields(\*names)       equal values of these fields go to the same task
    partial_key(\*names)  equal values of these fields go to two tasks, each tuple to the one that was sent fewer
    all                   to every task; each delivery has its own tuple id
    global\_              to the task with the lowest id
    direct                to the task that the emitter names; only on direct streams
    none                  the runtime's choice; at present shuffle
    local_or_shuffle      shuffle among the tasks of the same process, if there are any
    custom(fn)            to the tasks that ``fn(values, tasks)`` returns
    ====================  ==============================================================================================
    """

    kind: str
    names: tuple[str, ...] = ()
    fn: CustomGrouping | None = None

    shuffle: ClassVar[Grouping]
    all: ClassVar[Grouping]
    global_: ClassVar[Grouping]
    direct: ClassVar[Grouping]
    none: ClassVar[Grouping]
    local_or_shuffle: ClassVar[Grouping]
    SHUFFLE: ClassVar[Grouping]
    ALL: ClassVar[Grouping]
    GLOBAL: ClassVar[Grouping]
    DIRECT: ClassVar[Grouping]
    NONE: ClassVar[Grouping]
    LOCAL_OR_SHUFFLE: ClassVar[Grouping]

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise TopologyError(f"grouping: expected one of {', '.join(KINDS)}, got {self.kind!r}")

    @classmethod
    def fields(cls, *names: str | Sequence[str]) -> Grouping:
        """Return the grouping by these fields, given as arguments or as one list."""
        return cls("fields", _as_names(names))

    @classmethod
    def partial_key(cls, *names: str | Sequence[str]) -> Grouping:
        """Return Storm's PartialKeyGrouping by these fields, given as arguments or as one list.

        Each value has two tasks, by its hash. A task that emits chooses the one to which it has sent fewer tuples.
        So a frequent value does not keep one task alone busy, and counts by value are the sums of two
        tasks.
        """
        return cls("partial_key", _as_names(names))

    @classmethod
    def custom(cls, fn: CustomGrouping) -> Grouping:
        """Return the grouping by a function.

        Parameters
        ----------
        fn : callable
            Takes the values of a tuple and the task ids of the bolt in ascending order; returns the ids that receive
            the tuple, any number of them.
        """
        if inspect.iscoroutinefunction(fn):
            raise TopologyError(f"Grouping.custom: {fn.__name__} cannot be `async def`: it is not awaited")
        return cls("custom", (), fn)

    def __call__(self) -> Grouping:
        """Return itself, so that ``Grouping.shuffle()`` is ``Grouping.shuffle``."""
        return self

    def __str__(self) -> str:
        if self.kind in BY_FIELDS:
            return f"{self.kind}({', '.join(map(str, self.names))})"
        if self.kind == "custom":
            return f"custom({getattr(self.fn, '__name__', self.fn)})"
        return self.kind


Grouping.shuffle = Grouping.SHUFFLE = Grouping("shuffle")
Grouping.all = Grouping.ALL = Grouping("all")
Grouping.global_ = Grouping.GLOBAL = Grouping("global")
Grouping.direct = Grouping.DIRECT = Grouping("direct")
Grouping.none = Grouping.NONE = Grouping("none")
Grouping.local_or_shuffle = Grouping.LOCAL_OR_SHUFFLE = Grouping("local_or_shuffle")
