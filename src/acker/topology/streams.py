"""Streams: the outputs of a component, with the names of their fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from acker.errors import TopologyError

DEFAULT_STREAM: Final = "default"


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _check_fields(stream: str, fields: object) -> tuple[str, ...]:
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
    """A stream to which a component emits.

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
        self.fields = _check_fields(name, fields)
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
