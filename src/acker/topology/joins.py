"""Joins of streams by fields: their definition, its checks, and the rows that belong together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from acker.errors import TopologyError
from acker.topology.graph import Subscription
from acker.topology.streams import DEFAULT_STREAM, Stream
from acker.topology.suggestions import suggestion

# Groupings that may send two rows with one key to different tasks.
_SCATTERS: Final = ("shuffle", "none", "local_or_shuffle", "partial_key")


class JoinStep(NamedTuple):
    """One stream of a join.

    Attributes
    ----------
    source : (str, str)
        Component and stream.
    fields : tuple of str
        Its key.
    prior : int
        The place of the stream to which it is joined; -1: it is the first.
    is_left : bool
        Whether rows of `prior` stay that match no row of it.
    """

    source: tuple[str, str]
    fields: tuple[str, ...]
    prior: int = -1
    is_left: bool = False


class Join:
    """The streams that a `JoinBolt` joins, and the fields that are their keys.

    ``Join("clicks", "user").join("users", "id").left_join("carts", "user", to="clicks")`` reads: from clicks, inner
    join users on users.id = clicks.user, left join carts on carts.user = clicks.user. Storm's JoinBolt, join, leftJoin.

    Parameters
    ----------
    source : str
        The first stream: "component", or "component:stream".
    *fields : str
        Its key: one field or several.
    """

    def __init__(self, source: str, *fields: str) -> None:
        self.steps: tuple[JoinStep, ...] = (JoinStep(_read_source(source), _read_fields(source, fields)),)

    def join(self, source: str, *fields: str, to: str | None = None) -> Join:
        """Return this join with another stream, inner.

        Parameters
        ----------
        source, *fields
            As for the first stream; as many fields.
        to : str, optional
            The stream whose key they equal; by default the first.
        """
        return self._with(source, fields, to, is_left=False)

    def left_join(self, source: str, *fields: str, to: str | None = None) -> Join:
        """Return this join with another stream, left: rows that match none of it stay, with None for its fields.

        Parameters
        ----------
        source, *fields, to
            See `join`.
        """
        return self._with(source, fields, to, is_left=True)

    def _with(self, source: str, fields: Sequence[str], to: str | None, *, is_left: bool) -> Join:
        sources = [step.source for step in self.steps]
        read, names = _read_source(source), _read_fields(source, fields)
        prior = sources[0] if to is None else _read_source(to)
        if read in sources:
            raise TopologyError(f"Join: {source!r} is there twice; keep one of the two")
        if prior not in sources:
            raise TopologyError(f"Join: {source!r} is joined to {to!r}, which comes not before it")
        width = len(self.steps[sources.index(prior)].fields)
        if len(names) != width:
            raise TopologyError(f"Join: {source!r} has a key of {len(names)} fields, that of {prior[0]!r} has {width}")
        made = Join.__new__(Join)
        made.steps = (*self.steps, JoinStep(read, names, sources.index(prior), is_left))
        return made

    def __repr__(self) -> str:
        return f"Join({', '.join(f'{name_of(step.source)} by {step.fields}' for step in self.steps)})"


def _read_source(source: object) -> tuple[str, str]:
    if not isinstance(source, str) or not source:
        raise TopologyError(f"Join: a stream is 'component' or 'component:stream', got {source!r}")
    component, _, stream = source.partition(":")
    return component, stream or DEFAULT_STREAM


def _read_fields(source: str, fields: Sequence[object]) -> tuple[str, ...]:
    names = tuple(str(field) for field in fields if isinstance(field, str) and field)
    if not names or len(names) != len(fields):
        raise TopologyError(f"Join: {source!r} has the key {list(fields)!r}; expected one or more names of fields")
    return names


def name_of(source: tuple[str, str]) -> str:
    """Return a stream as a join names it."""
    component, stream = source
    return component if stream == DEFAULT_STREAM else f"{component}:{stream}"


def fields_of(outputs: Any) -> list[str]:
    """Return the fields of the default stream of a component's `outputs`."""
    if isinstance(outputs, Mapping):
        return list(outputs)
    fields = [each for each in outputs or () if isinstance(each, str)]
    streams = [each for each in outputs or () if isinstance(each, Stream) and each.name == DEFAULT_STREAM]
    return fields or [field for stream in streams for field in stream.fields]


def selection(
    join: Join, select: Mapping[str, str], outputs: Any, fields: Mapping[tuple[str, str], Sequence[str]]
) -> list[tuple[int, str]]:
    """Return for each output field the place of its stream in the join, and the field's name there.

    Parameters
    ----------
    select : mapping
        Output field -> "field", "component.field" or "component:stream.field".
    outputs
        As of the component.
    fields : mapping
        Those of each stream.

    Raises
    ------
    TopologyError
        A field is in none of the streams.
    """
    found = []
    for name in fields_of(outputs):
        source, _, field = select.get(name, name).rpartition(".")
        places = [
            place
            for place, step in enumerate(join.steps)
            if field in fields[step.source] and source in ("", name_of(step.source))
        ]
        if not places:
            given = select.get(name, name)
            known = [f"{name_of(step.source)}.{each}" for step in join.steps for each in fields[step.source]]
            raise TopologyError(f"output {name!r} is {given!r}, which no joined stream has; {suggestion(given, known)}")
        found.append((places[0], field))
    return found


def join_error(
    join: Join,
    select: Mapping[str, str],
    outputs: Any,
    inputs: Iterable[Subscription],
    streams: Mapping[str, Mapping[str, Stream]],
    par: int,
) -> str | None:
    """Return what is wrong with a join of these inputs; None if nothing is."""
    groupings = {(each.source, each.stream): each.grouping for each in inputs}
    sources = [step.source for step in join.steps]
    unread = [name_of(each) for each in sources if each not in groupings]
    unjoined = [name_of(each) for each in groupings if each not in sources]
    if unread:
        return f"joins {unread[0]!r}, which is not among its inputs; {suggestion(unread[0], map(name_of, groupings))}"
    if unjoined:
        return f"reads {unjoined[0]!r}, which is in no join; add it, or remove the input"
    fields = {each: streams[each[0]][each[1]].fields for each in sources}
    for step in join.steps:
        unknown = [field for field in step.fields if field not in fields[step.source]]
        name, grouping = name_of(step.source), groupings[step.source]
        if unknown:
            return f"joins by {unknown[0]!r} of {name!r}; {suggestion(unknown[0], fields[step.source])}"
        scatters = grouping.kind in _SCATTERS or (grouping.kind == "fields" and grouping.names != step.fields)
        if par > 1 and scatters:
            keys = ", ".join(map(repr, step.fields))
            return f"joins {name!r} in {par} tasks, but its grouping is {grouping}; write Grouping.fields({keys})"
    try:
        selection(join, select, outputs, fields)
    except TopologyError as error:
        return str(error)
    return None


def key_of(values: Sequence[Any]) -> Hashable | None:
    """Return the key of a row; None if it equals no other, since a value is None or NaN."""
    if any(value is None or value != value for value in values):
        return None
    return values[0] if len(values) == 1 else tuple(values)


def join_rows(join: Join, keys: Sequence[Sequence[Hashable | None]]) -> list[list[int]]:
    """Return the rows that belong together: for each stream a list of rows of it, -1 where it has none.

    Parameters
    ----------
    keys
        For each stream, the key of each row.
    """
    joined = [list(range(len(keys[0])))]
    for place, step in enumerate(join.steps[1:], 1):
        rows_of_key: dict[Hashable, list[int]] = {}
        for row, key in enumerate(keys[place]):
            if key is not None:
                rows_of_key.setdefault(key, []).append(row)
        unmatched = [-1] if step.is_left else []
        taken: list[int] = []
        found: list[int] = []
        for at, row in enumerate(joined[step.prior]):
            key = None if row < 0 else keys[step.prior][row]
            matching = unmatched if key is None else rows_of_key.get(key, unmatched)
            taken += [at] * len(matching)
            found += matching
        joined = [[rows[at] for at in taken] for rows in joined]
        joined.append(found)
    return joined
