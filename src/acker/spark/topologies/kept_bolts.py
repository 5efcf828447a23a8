"""Bolts that a worker keeps from one micro-batch to the next, so that `initialize` runs once for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import is_
from typing import ClassVar, Final

from acker.topology.bolt import Bolt

# Attribute -> its value, and all that this contains.
Contents = Mapping[str, Sequence[object]]

# An attribute with more objects in it is not compared, and its bolt not kept.
_OBJECTS_MAX: Final = 10_000
# A bolt that has one of these begins and ends with each micro-batch.
_LIFE: Final = ("activate", "deactivate", "close")
# The attributes that a runtime binds to a component.
_BOUND: Final = frozenset(
    {"_collector", "component_name", "context", "debug", "emit", "logger", "pid", "state", "storm_conf"}
    | {"task_id", "task_index", "topology_name"}
)


class KeptBolts:
    """The bolts of this worker process whose attributes `process` leaves as they are.

    A bolt is kept if it has no `close` of its own, which would never be called, and if its attributes are the same
    after a micro-batch as after `initialize`. So what a micro-batch finds in them does not depend on the worker.
    """

    _bolts: ClassVar[dict[tuple[bytes, int], Bolt]] = {}

    @classmethod
    def take(cls, run: bytes, task: int) -> Bolt | None:
        """Return the bolt that was kept for a task; it is not kept any more."""
        return cls._bolts.pop((run, task), None)

    @classmethod
    def keep(cls, run: bytes, task: int, bolt: Bolt, before: Contents) -> tuple[bool, list[str]]:
        """Keep a bolt at the end of a micro-batch, if that is possible.

        Returns
        -------
        bool, list of str
            Whether it is kept; and its public attributes that have changed since `before`.
        """
        after = contents_of(bolt)
        changed = sorted(name for name in before.keys() | after.keys() if not _is_same(before, after, name))
        is_kept = not changed and all(getattr(type(bolt), name) is getattr(Bolt, name) for name in _LIFE)
        if is_kept:
            for other in [key for key in cls._bolts if key[0] != run]:  # of a run that has ended
                del cls._bolts[other]
            cls._bolts[run, task] = bolt
        return is_kept, [name for name in changed if not name.startswith("_")]

    @classmethod
    def clear(cls) -> None:
        """Let go of all of them."""
        cls._bolts.clear()


def contents_of(bolt: Bolt) -> Contents:
    """Return what the attributes of a bolt hold now."""
    return {name: _objects_in(value) for name, value in vars(bolt).items() if name not in _BOUND}


def _objects_in(value: object) -> list[object]:
    """Return the value and all that it contains, in any depth.

    The objects themselves and not their addresses: a number may get the address of one that is gone.
    """
    objects: list[object] = []
    todo = [value]
    while todo:
        each = todo.pop()
        objects.append(each)
        if isinstance(each, Mapping):
            todo += (*each.keys(), *each.values())
        elif isinstance(each, Sequence | AbstractSet) and not isinstance(each, str | bytes):
            todo += each
        if len(objects) + len(todo) > _OBJECTS_MAX:
            return [object()]  # differs from everything
    return objects


def _is_same(before: Contents, after: Contents, name: str) -> bool:
    if name not in before or name not in after:
        return False
    one, other = before[name], after[name]
    return len(one) == len(other) and all(map(is_, one, other))
