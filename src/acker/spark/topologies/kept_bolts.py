"""Bolts that a worker keeps from one micro-batch to the next, so that `initialize` runs once for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import ClassVar, Final

from acker.topology.bolt import Bolt

# An attribute with more elements is not compared, and its bolt not kept.
_ELEMENTS_MAX: Final = 10_000
# A bolt that has one of these begins and ends with each micro-batch.
_LIFE: Final = ("activate", "deactivate", "close")
# What a runtime binds to a component.
_BOUND: Final = frozenset(
    {"_collector", "component_name", "context", "debug", "emit", "logger", "pid", "state", "storm_conf"}
    | {"task_id", "task_index", "topology_name"}
)


class KeptBolts:
    """The bolts of this worker process whose attributes `process` leaves as they are.

    A bolt is kept if it has no `close` of its own, which would never be called, and if its attributes are the same
    after a micro-batch as after `initialize`. So what a micro-batch finds in them does not depend on the worker.
    """

    _bolts: ClassVar[dict[tuple[bytes, int], tuple[Bolt, dict[str, object]]]] = {}

    @classmethod
    def take(cls, run: bytes, task: int) -> Bolt | None:
        """Return the bolt that was kept for a task; it is not kept any more."""
        kept = cls._bolts.pop((run, task), None)
        return None if kept is None else kept[0]

    @classmethod
    def keep(cls, run: bytes, task: int, bolt: Bolt, before: dict[str, object]) -> tuple[bool, list[str]]:
        """Keep a bolt at the end of a micro-batch, if that is possible.

        Returns
        -------
        bool, list of str
            Whether it is kept; and its public attributes that have changed since `before`.
        """
        after = fingerprint(bolt)
        changed = sorted(
            name for name in before.keys() | after.keys() if before.get(name, _MISSING) != after.get(name, _MISSING)
        )
        is_kept = not changed and all(getattr(type(bolt), name) is getattr(Bolt, name) for name in _LIFE)
        if is_kept:
            for other in [key for key in cls._bolts if key[0] != run]:  # of a run that has ended
                del cls._bolts[other]
            cls._bolts[run, task] = bolt, after
        return is_kept, [name for name in changed if not name.startswith("_")]


_MISSING: Final = object()


def fingerprint(bolt: Bolt) -> dict[str, object]:
    """Return for each attribute something that differs once the attribute, or an element of it, is another one."""
    return {name: _fingerprint_of(value) for name, value in vars(bolt).items() if name not in _BOUND}


def _fingerprint_of(value: object) -> object:
    if isinstance(value, Mapping):
        elements: list[object] = [*value.keys(), *value.values()]
    elif isinstance(value, Sequence | AbstractSet) and not isinstance(value, str | bytes):
        elements = list(value)
    else:
        return id(value)
    if len(elements) > _ELEMENTS_MAX:
        return object()  # differs from everything
    return id(value), tuple(map(id, elements))
