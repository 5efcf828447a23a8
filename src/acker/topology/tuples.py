"""Tuples as bolts receive them: the values, their source, and the trees that they belong to."""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from acker._engine.protocol import encode_tuple_id
from acker._flow import TupleBase, ValueSlots
from acker.topology.suggestions import suggestion

SYSTEM_COMPONENT: Final = "__system"
TICK_STREAM: Final = "__tick"
ACTIVATE_STREAM: Final = "__activate"
DEACTIVATE_STREAM: Final = "__deactivate"


class Tuple(TupleBase):
    """One delivery of the values that a component emitted.

    Parameters
    ----------
    values : tuple
        In the order of the stream's fields.
    source : TupleSource
        The task and the stream that emitted it.
    ids : dict of int to int, or None
        Root id -> this delivery's tuple id in that tree. None: the tuple belongs to no tree.

    Notes
    -----
    A field is read as ``tup["word"]``, by position as ``tup[0]``, and as ``tup.word`` unless this class has an
    attribute of that name. In a runtime, ``tup.values`` is a named tuple, as in streamparse. Tuples compare by
    identity.

    Examples
    --------
    >>> from acker.topology.tuples import TupleSource
    >>> source = TupleSource("split", "default", 3, ("word", "count"))
    >>> tup = source.tuple_type(("storm", 1), source, {7: 8})
    >>> tup.word, tup["count"], tup[0], list(tup), tup.component, tup.id
    ('storm', 1, 'storm', ['storm', 1], 'split', '7:8')
    """

    __slots__ = ()

    _index: ClassVar[dict[str, int]] = {}

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:  # The fields, which are attributes of a stream's subclass.
            ...

    else:

        def __getattr__(self, name):
            if name.startswith("__") or name in _OWN_NAMES:  # a protocol of Python; a tuple without a source
                raise AttributeError(name)
            raise AttributeError(f"a tuple of {self._where} has no field {name!r}; {suggestion(name, self.fields)}")

    @property
    def _where(self) -> str:
        return f"stream {self.stream!r} of {self.component!r}"

    @property
    def component(self) -> str:
        """Name of the component that emitted it."""
        return self._source.component

    @property
    def stream(self) -> str:
        """Name of the stream that it was emitted to."""
        return self._source.stream

    @property
    def task(self) -> int:
        """Id of the task that emitted it."""
        return self._source.task

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the values."""
        return self._source.fields

    @property
    def id(self) -> str:
        """Its ids as "root:tuple", one for each tree, separated by spaces; "" if it belongs to no tree."""
        return " ".join([encode_tuple_id(root, tuple_id) for root, tuple_id in (self._ids or {}).items()])

    def __getitem__(self, key: str | int | slice) -> Any:
        if isinstance(key, str):
            try:
                return self.values[self._index[key]]
            except KeyError:
                mend = suggestion(key, self.fields)
                fix = f"; {mend}" if mend.startswith("did") else ""
                raise KeyError(f"{key!r} is no field of {self._where}: {self.fields}{fix}") from None
        try:
            return self.values[key]
        except IndexError:
            raise IndexError(
                f"[{key}] of a tuple of {self._where}, which has {len(self.values)} values: {', '.join(self.fields)}"
            ) from None

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __bool__(self) -> bool:
        return True  # also without values: a tuple is a message, not a container

    def __reduce__(self) -> Any:
        """Copy a tuple. Only the tuple itself, and not its copy, can be acked or anchored to."""
        return type(self), (self.values, self._source, self._ids)

    def __repr__(self) -> str:
        values = tuple(self.values)
        return (
            f"Tuple({values!r}, component={self.component!r}, stream={self.stream!r}, task={self.task}, id={self.id!r})"
        )


_OWN_NAMES: Final = frozenset(name for name in dir(Tuple) if not name.startswith("__")) | {"values"}


@functools.cache
def tuple_type(fields: tuple[str, ...]) -> type[Tuple]:
    """Return the subclass of `Tuple` that reads these fields as attributes; the same one for the same fields.

    A field with the name of an attribute of Tuple is only read as ``tup["values"]``.
    """
    slots = tuple(
        field if field.isidentifier() and field not in _OWN_NAMES and not field.startswith("__") else f"__{position}__"
        for position, field in enumerate(fields)
    )
    index = {field: position for position, field in enumerate(fields)}
    made: type[Tuple] = type("Tuple", (Tuple,), {"__slots__": slots, "__module__": __name__, "_index": index})
    made._slots = ValueSlots(made, values_type(fields), slots)
    return made


@functools.cache
def values_type(fields: tuple[str, ...]) -> type[tuple[Any, ...]]:
    """Return the named tuple of these fields, so that streamparse's ``tup.values.word`` works.

    A name that a named tuple refuses is read by its position.
    """
    named: Any = namedtuple("Values", fields, rename=True)  # type: ignore[misc]  # noqa: PYI024

    def missing(_: object, name: str) -> Any:
        raise AttributeError(f"values have no field {name!r}; {suggestion(name, fields)}")

    members = {"__slots__": (), "__module__": __name__, "__getattr__": missing}
    return type("Values", (named,), members)


def row_of(values: object) -> tuple[Any, ...] | None:
    """Return the values of a tuple as a tuple; None if they are no row of values.

    No rows are values without a length or an order, text, bytes, and mappings, whose order is not that of the fields.
    """
    if isinstance(values, list | tuple):
        return tuple(values)
    if isinstance(values, str | bytes | bytearray | memoryview | Mapping):
        return None
    if not (hasattr(values, "__len__") and hasattr(values, "__getitem__")) or getattr(values, "ndim", 1) != 1:
        return None
    return tuple(values)  # type: ignore[arg-type]


class TupleSource:
    """The source of tuples: what all tuples of one task and one stream share.

    Parameters
    ----------
    component, stream : str
    task : int
    fields : sequence of str

    Attributes
    ----------
    tuple_type : type
        The subclass of `Tuple` for these fields.
    values_type : type
        The named tuple of these fields.
    """

    __slots__ = ("component", "fields", "stream", "task", "tuple_type", "values_type")

    def __init__(self, component: str, stream: str, task: int, fields: Iterable[str] = ()) -> None:
        self.component = component
        self.stream = stream
        self.task = task
        self.fields = tuple(fields)
        self.tuple_type = tuple_type(self.fields)
        self.values_type = values_type(self.fields)

    row_of = staticmethod(row_of)

    def make_values(self, values: Iterable[Any]) -> tuple[Any, ...]:
        """Return values as the named tuple of the fields, without a check of their number."""
        return tuple.__new__(self.values_type, values)

    def __repr__(self) -> str:
        return f"TupleSource({self.component!r}, {self.stream!r}, {self.task}, {self.fields!r})"


def is_tick(tup: Tuple) -> bool:
    """Return whether a tuple is a tick of the runtime, which carries no data."""
    source = tup._source
    return source.stream == TICK_STREAM and source.component == SYSTEM_COMPONENT
