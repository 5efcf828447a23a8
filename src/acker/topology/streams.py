"""Streams, groupings, and the hash that sends equal values to the same task in every process."""

from __future__ import annotations

import datetime as dt
import enum
import inspect
import numbers
import uuid
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar, Final

import numpy as np

from acker.errors import TopologyError

DEFAULT_STREAM: Final = "default"

CustomGrouping = Callable[[tuple[Any, ...], Sequence[int]], Iterable[int]]


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _checked_fields(stream: str, fields: object) -> tuple[str, ...]:
    if fields is None:
        return ()
    if not isinstance(fields, list | tuple):
        raise TopologyError(f"stream {stream!r}: fields are a list of str such as ['word'], got {fields!r}")
    for position, field in enumerate(fields):
        if not _is_name(field):
            raise TopologyError(f"stream {stream!r}: a field is named by a str that is not empty, got {field!r}")
        if field in fields[:position]:
            raise TopologyError(f"stream {stream!r}: field {field!r} is there twice; rename or remove one")
    return tuple(fields)


class Stream:
    """A stream that a component emits to.

    Parameters
    ----------
    fields : list or tuple of str, optional
        Names of the values, each once.
    name : str
    direct : bool
        The emitter names the task that receives a tuple; see `Grouping.direct`.
    """

    __slots__ = ("direct", "fields", "name")

    def __init__(self, fields: Sequence[str] | None = None, name: str = DEFAULT_STREAM, direct: bool = False) -> None:
        if not _is_name(name):
            raise TopologyError(f"stream: the name is a str that is not empty, got {name!r}")
        if direct not in (True, False):
            raise TopologyError(f"stream {name!r}: direct is True or False, got {direct!r}")
        self.fields = _checked_fields(name, fields)
        self.name = name
        self.direct = direct

    def __repr__(self) -> str:
        return f"Stream({list(self.fields)!r}, name={self.name!r}, direct={self.direct})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stream):
            return NotImplemented
        return (self.fields, self.name, self.direct) == (other.fields, other.name, other.direct)

    def __hash__(self) -> int:
        return hash((self.fields, self.name, self.direct))


KINDS: Final = ("shuffle", "fields", "partial_key", "all", "global", "direct", "none", "local_or_shuffle", "custom")

# Kinds that name fields.
BY_FIELDS: Final = ("fields", "partial_key")


def _one_by_one(names: Sequence[Any]) -> tuple[str, ...]:
    return tuple(names[0]) if len(names) == 1 and isinstance(names[0], list | tuple) else tuple(names)


@dataclass(frozen=True, slots=True)
class Grouping:
    r"""How the tuples of a stream are spread over the tasks of a bolt that reads it.

    Use the ready ones (``Grouping.shuffle``, or ``Grouping.SHUFFLE`` as in streamparse) and the functions `fields`,
    `partial_key` and `custom`. The default is shuffle; of a direct stream, direct.

    ====================  ==============================================================================================
    shuffle               evenly, in random order
    fields(\*names)       equal values of these fields go to the same task
    partial_key(\*names)  equal values of these fields go to one of two tasks, the one that was sent fewer tuples
    all                   to every task; each delivery has a tuple id of its own
    global\_              to the task with the lowest id
    direct                to the task that the emitter names; only on direct streams
    none                  the runtime's choice; now as shuffle
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
        """Return the grouping by these fields, given one by one or as one list."""
        return cls("fields", _one_by_one(names))

    @classmethod
    def partial_key(cls, *names: str | Sequence[str]) -> Grouping:
        """Return Storm's PartialKeyGrouping by these fields, given one by one or as one list.

        Two tasks belong to each value, by its hash. Each task that emits sends a tuple to that one of the two which it
        has sent fewer tuples so far. So a value that is very frequent does not keep one task alone busy, and whoever
        counts by value adds up what two tasks have counted.
        """
        return cls("partial_key", _one_by_one(names))

    @classmethod
    def custom(cls, fn: CustomGrouping) -> Grouping:
        """Return the grouping by a function.

        Parameters
        ----------
        fn : callable
            Takes the values of a tuple and the ids of the reading bolt's tasks in ascending order; returns those that
            receive it, any number of them.
        """
        if inspect.iscoroutinefunction(fn):
            raise TopologyError(f"Grouping.custom: {fn.__name__} cannot be `async def`, nobody would wait for it")
        return cls("custom", (), fn)

    def __call__(self) -> Grouping:
        """Return itself, so that ``Grouping.shuffle()`` and ``Grouping.shuffle`` are one."""
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


_NAN: Final = 0x7FC0_0000
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - naive times have no zone to compare by
_EPOCH_UTC: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND: Final = dt.timedelta(microseconds=1)


def stable_hash(*values: Any) -> int:
    """Return a hash that is the same in every process and every run.

    Parameters
    ----------
    *values : str, bytes, None, number, Decimal, date, datetime, timedelta, UUID, Enum, NumPy scalar
        Or tuples and lists of these.

    Returns
    -------
    int
        0 <= hash < 2**32. Values that are equal hash alike: 1, 1.0 and True, a datetime in two time zones. All nan hash
        alike too, so that they meet in one task.

    Raises
    ------
    TypeError
        For a value of another type, named in the text.

    Notes
    -----
    CRC-32 over UTF-8 for text, and over Python's hash for numbers, which the language defines by value. Python's own
    hash of text differs from process to process.

    Examples
    --------
    >>> from acker.topology import stable_hash
    >>> stable_hash("storm"), stable_hash(1) == stable_hash(1.0) == stable_hash(True)
    (4052537413, True)
    """
    if len(values) == 1:
        return _hash_one(values[0])
    result = 0
    for value in values:
        result = zlib.crc32(_hash_one(value).to_bytes(4, "little"), result)
    return result


def _hash_int(value: int) -> int:
    # Not the number itself: ids that are all even would leave every second task without work.
    return zlib.crc32((value & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little"))


def _hash_one(value: Any) -> int:
    kind = type(value)
    if kind is str:
        try:
            return zlib.crc32(value.encode())
        except UnicodeEncodeError:
            pass  # a lone surrogate
    elif kind is int or (kind is float and value == value):
        return _hash_int(hash(value))
    if isinstance(value, str):
        return zlib.crc32(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, np.generic):
        value = _python_scalar(value)
    if isinstance(value, numbers.Number):
        if value.is_nan() if isinstance(value, Decimal) else value != value:
            return _NAN
        return _hash_int(hash(value))
    if value is None:
        return 0
    if isinstance(value, bytes | bytearray):
        return zlib.crc32(value)
    if isinstance(value, tuple | list):
        return stable_hash(len(value), *value)
    if isinstance(value, enum.Enum):
        name: str | None = value.name  # a combination of flags has none
        return stable_hash(type(value).__qualname__, value.value if name is None else name)
    return _hash_rarer(value)


def _hash_rarer(value: Any) -> int:
    if isinstance(value, dt.datetime):
        # Python compares two datetimes of one zone without fold, so fold must not matter here either.
        value = value.replace(fold=0)
        since = value - (_EPOCH if value.utcoffset() is None else _EPOCH_UTC)
        return _hash_int(since // _MICROSECOND)
    if isinstance(value, dt.date):
        return _hash_int((dt.datetime(value.year, value.month, value.day) - _EPOCH) // _MICROSECOND)  # noqa: DTZ001
    if isinstance(value, dt.timedelta):
        return _hash_int(value // _MICROSECOND)
    if isinstance(value, uuid.UUID):
        return zlib.crc32(value.bytes)
    raise TypeError(
        f"a value of type {type(value).__name__} has no stable hash; group by str, bytes, numbers, dates, UUID, Enum, "
        "None, or tuples of these"
    )


def _python_scalar(value: np.generic) -> Any:
    """Return the Python value that equals a NumPy scalar; times in microseconds, whatever their unit."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        if np.isnat(value):
            return None
        unit = "datetime64[us]" if isinstance(value, np.datetime64) else "timedelta64[us]"
        return value.astype(unit).item()
    return float(value) if isinstance(value, np.longdouble) else value.item()
