"""Windows of rows that come as columns: their content in a state, and what a bolt receives of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from acker.errors import TopologyError
from acker.topology.anchors import Int64s
from acker.topology.arrow_columns import take_rows
from acker.topology.state import KeyValueState
from acker.topology.windows import Window

if TYPE_CHECKING:
    import pyarrow as pa

# The first item of the keys in a state below which chunks are kept, and the key of the head.
_STATE_KEY: Final = "window"
_HEAD: Final = _STATE_KEY, "rows", -1

_MS: Final = 1000

# Bytes of buffers for which a copy is not worth its time.
_SLACK_BYTES: Final = 1024


class Chunk(NamedTuple):
    """Rows of one stream that came together, as the state keeps them.

    Attributes
    ----------
    number : int
        That of the first row among all rows of the task; the others follow.
    times_ms : (n,) int64
        Zeros in windows by count.
    columns : pyarrow.RecordBatch
    source : (str, str)
        Component and stream.
    """

    number: int
    times_ms: Int64s
    columns: pa.RecordBatch
    source: tuple[str, str]

    @property
    def end(self) -> int:
        """The number behind the last row."""
        return self.number + self.columns.num_rows

    def numbers(self) -> Int64s:
        """Return the numbers of all rows, (n,)."""
        return np.arange(self.number, self.end)

    def take(self, chosen: Any) -> pa.RecordBatch:
        """Return the rows where a mask is true."""
        rows = np.flatnonzero(chosen)
        if rows.size and rows[-1] - rows[0] + 1 == rows.size:
            return self.columns.slice(int(rows[0]), rows.size)  # no copy
        return take_rows(self.columns, rows)


class ArrowWindow:
    """A window that has ended, with its rows as tables in the order of arrival; see `TupleWindow`.

    The rows were acked when they came into the window, so nothing can be anchored to them.

    Attributes
    ----------
    start, end : float or None
        Seconds since 1970, UTC, of a window by time: rows from `start` on and before `end`. None by count.
    """

    def __init__(self, chunks: list[Chunk], masks: tuple[Any, Any, Any], times_ms: tuple[int, int] | None) -> None:
        self.start: float | None = None
        self.end: float | None = None
        if times_ms is not None:
            self.start, self.end = (each / _MS for each in times_ms)
        self._chunks = chunks
        self._masks = masks

    @functools.cached_property
    def table(self) -> pa.Table:
        """All rows of the window. TopologyError if several streams are in it; see `of`."""
        return self._only(0)

    @functools.cached_property
    def new(self) -> pa.Table:
        """Those that were not in the window before, one step earlier."""
        return self._only(1)

    @functools.cached_property
    def expired(self) -> pa.Table:
        """Those of the window before, one step earlier, that are not in this one."""
        return self._only(2)

    @property
    def sources(self) -> list[tuple[str, str]]:
        """Component and stream of the rows that are in the window, or were in the one before."""
        return list(dict.fromkeys(chunk.source for chunk in self._chunks))

    def of(self, component: str, stream: str = "default") -> pa.Table | None:
        """Return the rows of the window that come from one stream; None if there are none."""
        return self._table(0, (component, stream))

    def _only(self, which: int) -> pa.Table:
        sources = self.sources
        if len(sources) != 1:
            names = ", ".join(f"of({component!r}, {stream!r})" for component, stream in sources)
            raise TopologyError(f"the rows of this window come from several streams; write one of {names}")
        found = self._table(which, sources[0])
        if found is None:
            import pyarrow as pa

            found = pa.Table.from_batches([self._chunks[0].columns.slice(0, 0)])
        return found

    def _table(self, which: int, source: tuple[str, str]) -> pa.Table | None:
        import pyarrow as pa

        of_source = [(chunk, masks) for chunk, masks in zip(self._chunks, self._masks[which], strict=True)]
        parts = [chunk.take(mask) for chunk, mask in of_source if chunk.source == source and mask.any()]
        if not parts:
            return None
        # A batch of nulls alone has another type, unless `outputs` gives it.
        return pa.concat_tables([pa.Table.from_batches([part]) for part in parts], promote_options="default")

    def __len__(self) -> int:
        return sum(int(mask.sum()) for mask in self._masks[0])

    def __repr__(self) -> str:
        count, new, expired = (sum(int(mask.sum()) for mask in masks) for masks in self._masks)
        times = "" if self.end is None else f"start={self.start}, end={self.end}: "
        return f"ArrowWindow({times}{count} rows, {new} new, {expired} expired)"


class ArrowWindowContents:
    """The rows that the next windows of a task need, in memory and in the state; see `WindowContent`.

    The state has each chunk below ``("window", "rows", number)`` until none of its rows is in a further window.

    Attributes
    ----------
    ended_ms : int or None
        All windows that end then or earlier were processed.
    """

    def __init__(self, window: Window, state: KeyValueState, ended_ms: int | None) -> None:
        self.ended_ms = ended_ms
        self._window = window
        self._state = state
        mine = [key for key in state if isinstance(key, tuple) and key[:2] == _HEAD[:2] and key != _HEAD]
        self._chunks: list[Chunk] = [Chunk(*state.peek(key)) for key in sorted(mine, key=lambda key: int(key[2]))]
        # In the last window were rows with a number below `seen`; it ended then. Rows before `passed_ms` are in none.
        head: tuple[int, int | None, int | None] = state.peek(_HEAD) or (0, None, None)
        self._seen, self._end, self._passed_ms = head
        self._next_number = max([self._seen, *(chunk.end for chunk in self._chunks)])
        self._next_end: int | None = None
        self._look_ahead()

    def __len__(self) -> int:
        return sum(int(self._lives(chunk).sum()) for chunk in self._chunks)

    def add(self, source: tuple[str, str], columns: pa.RecordBatch, times_ms: Int64s) -> None:
        """Add rows."""
        chunk = Chunk(self._next_number, times_ms, _compact(columns), source)
        self._chunks.append(chunk)
        self._state[_HEAD[0], _HEAD[1], chunk.number] = tuple(chunk)
        self._next_number = chunk.end
        if self._window.kind == "time":
            end = self._end_for(int(np.min(times_ms)))
            self._next_end = end if self._next_end is None else min(self._next_end, end)

    def remove_last(self) -> None:
        """Remove the chunk that was added last."""
        self._drop(self._chunks.pop())
        self._next_number = max([self._seen, *(chunk.end for chunk in self._chunks)])

    def is_ended(self, ends: Int64s) -> Any:
        """Return whether the windows that end then were processed, (n,) bool."""
        known = [ended for ended in (self._end, self.ended_ms) if ended is not None]
        return ends <= max(known) if known else np.zeros(ends.size, bool)

    def time_from(self, now_ms: int) -> int:
        """Return the time of rows that arrive now, if the clock was not turned back meanwhile: else a later one."""
        return max(now_ms, self._end or now_ms, int(self._chunks[-1].times_ms[-1]) if self._chunks else now_ms)

    def room(self) -> int:
        """Return how many rows the next window by count lacks."""
        return self._window.step - self._next_number + self._seen

    def full_window(self) -> ArrowWindow:
        """Return the window by count that is complete."""
        start, seen = self._next_number - self._window.length, self._seen
        before = seen - self._window.length
        return self._make(
            lambda numbers, _: numbers >= start,
            lambda numbers, _: numbers >= max(start, seen),
            lambda numbers, _: (numbers >= before) & (numbers < min(start, seen)),
            None,
        )

    def due_windows(self, now_ms: int) -> Iterator[ArrowWindow]:
        """Yield the windows by time that have ended and have rows, in the order of their ends.

        Each counts as processed when the next one is asked for.
        """
        while self._next_end is not None and self._next_end <= now_ms:
            window = self._window_until(self._next_end)
            if len(window):
                yield window
            self.pass_on()

    def _window_until(self, end: int) -> ArrowWindow:
        start, seen, last = end - self._window.length, self._seen, self._end

        def is_in(_: Int64s, times: Int64s) -> Any:
            return (times >= start) & (times < end)

        def was_in(numbers: Int64s, times: Int64s) -> Any:
            if last is None:
                return np.zeros(times.size, bool)
            return (numbers < seen) & (times >= last - self._window.length) & (times < last)

        return self._make(
            is_in,
            lambda numbers, times: is_in(numbers, times) & ~was_in(numbers, times),
            lambda numbers, times: was_in(numbers, times) & (times < start),
            (start, end),
        )

    def _make(self, *choose: Any) -> ArrowWindow:
        *kinds, times_ms = choose
        chosen: list[Callable[[Int64s, Int64s], Any]] = kinds
        masks = [[each(chunk.numbers(), chunk.times_ms) for chunk in self._chunks] for each in chosen]
        return ArrowWindow(list(self._chunks), (masks[0], masks[1], masks[2]), times_ms)

    def pass_on(self) -> None:
        """Count the present window as processed, and forget the chunks of which no row is in it or in one after it."""
        self._seen = self._next_number
        if self._window.kind == "time":
            self._end = self._next_end
            assert self._end is not None
            self._passed_ms = self._end - self._window.length
        kept = []
        for chunk in self._chunks:
            if self._lives(chunk).any():
                kept.append(chunk)
            else:
                self._drop(chunk)
        self._chunks = kept
        if kept:
            self._state[_HEAD] = self._seen, self._end, self._passed_ms
        else:
            self._state.delete(_HEAD)
        self._look_ahead()

    def _lives(self, chunk: Chunk) -> Any:
        """Return which rows of a chunk the next windows need, also as those that have expired, (n,) bool."""
        if self._window.kind == "count":
            return chunk.numbers() >= self._seen - self._window.length
        if self._passed_ms is None:
            return np.ones(chunk.times_ms.size, bool)
        return chunk.times_ms >= self._passed_ms

    def _drop(self, chunk: Chunk) -> None:
        self._state.delete((_HEAD[0], _HEAD[1], chunk.number))

    def _end_for(self, time_ms: int) -> int:
        """Return when the next window ends, if this is the time of the earliest row."""
        ended = [each + self._window.step for each in (self._end, self.ended_ms) if each is not None]
        return max([self._window.end_after(time_ms), *ended])

    def _look_ahead(self) -> None:
        """Find out when the next window ends."""
        self._next_end = None
        if self._window.kind == "time":
            times = [int(chunk.times_ms[lives].min()) for chunk in self._chunks if (lives := self._lives(chunk)).any()]
            if times:
                self._next_end = self._end_for(min(times))


def _compact(columns: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows without the rest of their buffers, which would stay in memory and be pickled too."""
    if columns.get_total_buffer_size() <= 2 * columns.nbytes + _SLACK_BYTES:
        return columns
    return take_rows(columns, np.arange(columns.num_rows))
