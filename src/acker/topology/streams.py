"""Streams: the outputs of a component, with the names of their fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from acker.errors import TopologyError

DEFAULT_STREAM: Final = "default"


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _check_fields(stream: str, fields: object) -> tuple[str, ...]:
    if fields is None:
        return ()
    if isinstance(fields, Mapping):
        fields = tuple(fields)
    if not isinstance(fields, list | tuple):
        raise TopologyError(f"stream {stream!r}: fields are a list of str such as ['word'], got {fields!r}")
    for position, field in enumerate(fields):
        if not _is_name(field):
            raise TopologyError(f"stream {stream!r}: a field is named by a str that is not empty, got {field!r}")
        if field in fields[:position]:
            raise TopologyError(f"stream {stream!r}: field {field!r} is there twice; rename or remove one")
    return tuple(fields)


def _check_types(stream: str, fields: object) -> dict[str, Any]:
    if not isinstance(fields, Mapping):
        return {}
    import pyarrow as pa

    for field, kind in fields.items():
        if not isinstance(kind, pa.DataType):
            raise TopologyError(
                f"stream {stream!r}: field {field!r} has a type of Arrow such as pyarrow.string(), got {kind!r}"
            )
    return dict(fields)


class Stream:
    """A stream to which a component emits.

    Parameters
    ----------
    fields : list or tuple of str, or dict of str to pyarrow.DataType, optional
        Names of the values, each once; with the types that they have in batches, if they are given.
    name : str
    direct : bool
        The emitter names the task that receives a tuple; see `Grouping.direct`.
    """

    __slots__ = ("direct", "fields", "name", "types")

    def __init__(
        self,
        fields: Sequence[str] | Mapping[str, Any] | None = None,
        name: str = DEFAULT_STREAM,
        direct: bool = False,
    ) -> None:
        if not _is_name(name):
            raise TopologyError(f"stream: the name is a str that is not empty, got {name!r}")
        if direct not in (True, False):
            raise TopologyError(f"stream {name!r}: direct is True or False, got {direct!r}")
        self.fields = _check_fields(name, fields)
        self.types = _check_types(name, fields)
        self.name = name
        self.direct = direct

    def __repr__(self) -> str:
        fields = {field: str(kind) for field, kind in self.types.items()} or list(self.fields)
        return f"Stream({fields!r}, name={self.name!r}, direct={self.direct})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stream):
            return NotImplemented
        mine = self.fields, self.name, self.direct, self.types
        return mine == (other.fields, other.name, other.direct, other.types)

    def __hash__(self) -> int:
        return hash((self.fields, self.name, self.direct))
