"""JoinBolt and JoinArrowBolt, which join the rows of several streams in a window."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from acker.errors import ArgumentTypeError, TopologyError
from acker.topology.arrow_columns import take
from acker.topology.arrow_windowed import WindowedArrowBolt
from acker.topology.arrow_windows import ArrowWindow
from acker.topology.graph import Subscription
from acker.topology.joins import Join, fields_of, join_error, join_rows, key_of, selection
from acker.topology.state import KeyValueState
from acker.topology.streams import Stream
from acker.topology.tuple_batch import values_of
from acker.topology.tuples import Tuple
from acker.topology.windowed import WindowedBolt
from acker.topology.windows import TupleWindow

if TYPE_CHECKING:
    import pyarrow as pa

_TIMEOUT: Final = "topology.message.timeout.secs"


class JoinBolt(WindowedBolt):
    """A bolt that joins the tuples of several streams in a window, by fields. Storm's JoinBolt.

    It emits one tuple for each combination that matches, in the order of arrival of the first stream, then of the next.
    None and NaN equal nothing. With several tasks, group each stream by the fields of its key. Windows, acks, late
    tuples and the state are those of a `WindowedBolt`, unless it is `anchored`.

    Attributes
    ----------
    join : Join
        ``Join("clicks", "user").join("users", "id")``.
    select : dict of str to str
        Output field -> "component.field". An output that is not in it is the field of that name in the first stream of
        the join that has it.
    anchored : bool
        True: what it emits is anchored to the tuples of all sides, as in Storm, which are acked when they leave the
        last window, so windows have to be shorter than the message timeout, and all tuples in them may be open. For
        windows by time of arrival, in `acker.local`. False: tuples are acked when they are in the state.
    """

    join: ClassVar[Join]
    select: ClassVar[Mapping[str, str]] = {}
    anchored: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._settles_itself = cls.anchored

    @classmethod
    def _definition_error(cls) -> str | None:
        wrong = super()._definition_error() or _join_definition_error(cls)
        if wrong is None and cls.anchored and (cls.window.kind == "count" or cls.timestamp_field is not None):
            return f"{cls.__name__}.anchored is for windows by time of arrival; remove it, count= or timestamp_field"
        if wrong is None and cls.anchored and cls.group_key is not WindowedBolt.group_key:
            return f"{cls.__name__}.anchored is for one window; remove it, or group_key, and join by its field too"
        return wrong

    @classmethod
    def _inputs_error(
        cls, inputs: tuple[Subscription, ...], streams: Mapping[str, Mapping[str, Stream]], par: int
    ) -> str | None:
        return join_error(cls.join, cls.select, cls.outputs, inputs, streams, par)

    def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Find the fields. A subclass that overrides it has to call it."""
        super().initialize(conf, context)
        fields = _fields_in(context)
        self._places = {step.source: place for place, step in enumerate(self.join.steps)}
        self._selected = selection(self.join, self.select, self.outputs, fields)
        self._held: dict[int, Tuple] = {}
        needed = (self.window.length + self.window.step) / 1000
        if self.anchored and needed > conf[_TIMEOUT]:
            raise TopologyError(
                f"{self.component_name}: a window and its step take {needed:g} s, but its tuples are open for at most "
                f"{conf[_TIMEOUT]:g} s; raise {_TIMEOUT!r}, or set anchored = False"
            )

    def _bind_state(self, state: KeyValueState) -> None:
        # What is held comes again after a restart.
        super()._bind_state(KeyValueState(records=False) if self.anchored else state)

    def process(self, tup: Tuple) -> None:
        """Put a tuple into its window. Do not override it."""
        self._key_of(tup, self._places[tup.component, tup.stream])  # so that it fails alone if it has none
        if not self.anchored:
            super().process(tup)
            return
        number = self._contents.get(None, None).next_number
        super().process(tup)
        if self._contents.get(None, None).next_number > number:
            self._held[number] = tup
        else:  # It is between two windows.
            self.ack(tup)

    def process_tick(self, tup: Tuple) -> None:
        """Process the windows by time of arrival that have ended. Do not override it."""
        super().process_tick(tup)
        if self.anchored:
            self._release()

    def _release(self) -> None:
        """Ack the tuples that have left the last window."""
        kept = self._contents.get(None, None).numbers()
        for number in [number for number in self._held if number not in kept]:
            self.ack(self._held.pop(number))

    def process_window(self, window: TupleWindow) -> None:
        """Emit what belongs together in a window. Do not override it."""
        tuples = [self._held[number] for number in window.numbers] if self.anchored else window.tuples
        parts: list[list[Tuple]] = [[] for _ in self.join.steps]
        for tup in tuples:
            parts[self._places[tup.component, tup.stream]].append(tup)
        keys = [[self._key_of(tup, place) for tup in part] for place, part in enumerate(parts)]
        for rows in zip(*join_rows(self.join, keys), strict=True):
            sides = [None if row < 0 else part[row] for part, row in zip(parts, rows, strict=True)]
            values = [None if (side := sides[place]) is None else side[field] for place, field in self._selected]
            if self.anchored:
                self.emit(values, anchors=[side for side in sides if side is not None])
            else:
                self.emit(values)

    def _key_of(self, tup: Tuple, place: int) -> Any:
        fields = self.join.steps[place].fields
        key = key_of([tup[field] for field in fields])
        try:
            hash(key)
        except TypeError:
            raise ArgumentTypeError(
                f"{self.component_name}: joins {tup.component!r} by {', '.join(fields)}, got {reprlib.repr(key)}; "
                "expected something hashable such as a str or an int"
            ) from None
        return key


class JoinArrowBolt(WindowedArrowBolt):
    """A `JoinBolt` in columns. Windows, acks, late rows and the state are those of a `WindowedArrowBolt`.

    Attributes
    ----------
    join, select
        See `JoinBolt`.
    """

    join: ClassVar[Join]
    select: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def _definition_error(cls) -> str | None:
        if getattr(cls, "anchored", False):
            return f"{cls.__name__}.anchored: rows of columns are acked when they are in the state; take a JoinBolt"
        return super()._definition_error() or _join_definition_error(cls)

    @classmethod
    def _inputs_error(
        cls, inputs: tuple[Subscription, ...], streams: Mapping[str, Mapping[str, Stream]], par: int
    ) -> str | None:
        return join_error(cls.join, cls.select, cls.outputs, inputs, streams, par)

    def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Find the fields. A subclass that overrides it has to call it."""
        super().initialize(conf, context)
        self._selected = selection(self.join, self.select, self.outputs, _fields_in(context))

    def process_rows(self, batch: pa.RecordBatch) -> None:
        """Put rows into their window. Do not override it."""
        import pyarrow as pa

        source = self._collector.rows.source
        for step in self.join.steps:
            nested = [field for field in step.fields if field in batch.schema.names]
            for field in nested if step.source == (source.component, source.stream) else ():
                if pa.types.is_nested(batch.schema.field(field).type):
                    raise ArgumentTypeError(
                        f"{self.component_name}: joins {source.component!r} by {field!r}, which is "
                        f"{batch.schema.field(field).type}; expected a type without parts such as string"
                    )
        super().process_rows(batch)

    def process_window(self, window: ArrowWindow) -> None:  # type: ignore[override]
        """Emit what belongs together in a window. Do not override it."""
        import pyarrow as pa

        parts = [window.of(*step.source) for step in self.join.steps]
        keys = [_keys_in(part, step.fields) for part, step in zip(parts, self.join.steps, strict=True)]
        joined = [np.array(rows, np.int64) for rows in join_rows(self.join, keys)]
        if not joined[0].size:
            return
        columns: dict[str, Any] = {}
        for name, (place, field) in zip(fields_of(self.outputs), self._selected, strict=True):
            part, rows = parts[place], joined[place]
            if part is None:
                columns[name] = pa.nulls(rows.size)
            else:
                column: Any = part[field].combine_chunks()
                columns[name] = take(column, pa.array(rows, mask=rows < 0))
        self.emit_batch(columns)


def _keys_in(part: pa.Table | None, fields: tuple[str, ...]) -> list[Any]:
    """Return the key of each row."""
    if part is None:
        return []
    columns = []
    for field in fields:
        column: Any = part[field]
        values, errors = values_of(column)
        for row in errors:  # which Python cannot hold, but Arrow compares
            values[row] = column[row]
        columns.append(values)
    return [key_of(values) for values in zip(*columns, strict=True)]


def _fields_in(context: Mapping[str, Any]) -> dict[tuple[str, str], list[str]]:
    streams: Mapping[str, Mapping[str, list[str]]] = context["source->stream->fields"]
    return {(source, stream): fields for source, found in streams.items() for stream, fields in found.items()}


def _join_definition_error(kind: Any) -> str | None:
    if not isinstance(getattr(kind, "join", None), Join):
        return f"{kind.__name__} has no join; give the class join = Join('component', 'field').join('other', 'field')"
    fields = fields_of(kind.outputs)
    if not fields:
        return f"{kind.__name__} has no outputs; give the class outputs = ['field', ...]"
    unknown = [name for name in kind.select if name not in fields]
    return f"{kind.__name__}.select names {unknown[0]!r}, which is not in outputs" if unknown else None
