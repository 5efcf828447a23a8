"""Windows by count and by time: their definition, their content in a state, and what a bolt receives of them."""

from __future__ import annotations

import bisect
import functools
import math
import operator
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Self

from acker.errors import TopologyError
from acker.topology.state import KeyValueState
from acker.topology.tuples import Tuple, TupleSource

__all__ = ["TupleWindow", "Window", "WindowContent", "WindowEntry"]

_MS: Final = 1000

# The first item of the keys in a state below which windows are kept; the last item of the key of a window's head.
_STATE_KEY: Final = "window"
_HEAD: Final = -1


@dataclass(frozen=True)
class Window:
    """The definition of windows. Write ``Window.tumbling(...)`` or ``Window.sliding(...)``.

    Attributes
    ----------
    kind : {"count", "time"}
    length : int
        Tuples or milliseconds in a window.
    step : int
        Tuples or milliseconds from the end of a window to that of the next one.
    """

    kind: Literal["count", "time"]
    length: int
    step: int

    @classmethod
    def tumbling(cls, *, count: int | None = None, secs: float | None = None) -> Self:
        """Return windows that follow each other without a gap: each tuple is in one of them.

        Parameters
        ----------
        count : int, optional
            Tuples in a window.
        secs : float, optional
            Seconds of a window, to the millisecond.
        """
        return cls._make("tumbling", count, count, secs, secs)

    @classmethod
    def sliding(
        cls,
        *,
        count: int | None = None,
        every_count: int | None = None,
        secs: float | None = None,
        every_secs: float | None = None,
    ) -> Self:
        """Return windows that overlap, or that have gaps between them if the step is longer than the window.

        Parameters
        ----------
        count, every_count : int, optional
            The last `count` tuples, each time that `every_count` have come. The first windows have fewer.
        secs, every_secs : float, optional
            The last `secs` seconds, each time that `every_secs` have passed.
        """
        return cls._make("sliding", count, every_count, secs, every_secs)

    @classmethod
    def _make(cls, method: str, count: Any, every_count: Any, secs: Any, every_secs: Any) -> Self:
        by_count = [each for each in (count, every_count) if each is not None]
        by_time = [each for each in (secs, every_secs) if each is not None]
        if sorted((len(by_count), len(by_time))) != [0, 2]:
            expected = (
                "count=, or secs="
                if method == "tumbling"
                else "count= and every_count=, or secs= and every_secs=; length and step are of one kind"
            )
            raise TopologyError(f"Window.{method}: expected {expected}")
        if by_count:
            for number in by_count:
                if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                    raise TopologyError(f"Window.{method}: expected an int of at least 1 for count, got {number!r}")
            return cls("count", *by_count)
        for number in by_time:
            is_number = isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
            if not is_number or round(number * _MS) < 1:
                raise TopologyError(f"Window.{method}: expected secs of at least 0.001, got {number!r}")
        return cls("time", *(round(number * _MS) for number in by_time))

    def end_after(self, time_ms: int) -> int:
        """Return the first end of a window by time after this time. Ends are multiples of the step since 1970, UTC."""
        return (time_ms // self.step + 1) * self.step

    def last_end(self, time_ms: int) -> int | None:
        """Return the end of the last window by time that a tuple of this time is in; None if it is between windows."""
        end = (time_ms + self.length) // self.step * self.step
        return end if end > time_ms else None


class WindowEntry(NamedTuple):
    """One tuple in a window, as the state keeps it. `number` counts the tuples of one key."""

    number: int
    time_ms: int
    values: tuple[Any, ...]
    source: tuple[str, str, int, tuple[str, ...]]


_number_of: Final = operator.attrgetter("number")
_time_of: Final = operator.attrgetter("time_ms")


@functools.lru_cache(1024)
def _source_of(component: str, stream: str, task: int, fields: tuple[str, ...]) -> TupleSource:
    return TupleSource(component, stream, task, fields)


def _tuple_of(entry: WindowEntry) -> Tuple:
    """Return the tuple of an entry; it has no ids, since it was acked."""
    source = _source_of(*entry.source)
    return source.tuple_type(source.make_values(entry.values), source)


class TupleWindow:
    """A window that has ended, with its tuples in the order of arrival. Storm's TupleWindow.

    The tuples were acked when they came into the window, so they have no ids, and nothing can be anchored to them.

    Attributes
    ----------
    key : hashable
        What `WindowedBolt.group_key` returned for its tuples; None by default.
    start, end : float or None
        Seconds since 1970, UTC, of a window by time: tuples from `start` on and before `end`. None by count.
    """

    def __init__(
        self,
        key: Hashable,
        entries: Sequence[WindowEntry],
        new: Sequence[WindowEntry],
        expired: Sequence[WindowEntry],
        times_ms: tuple[int, int] | None = None,
    ) -> None:
        self.key = key
        self.start: float | None = None
        self.end: float | None = None
        if times_ms is not None:
            self.start, self.end = (each / _MS for each in times_ms)
        self._entries = entries, new, expired

    @functools.cached_property
    def tuples(self) -> list[Tuple]:
        """All tuples of the window. Storm's get."""
        return [_tuple_of(entry) for entry in self._entries[0]]

    @functools.cached_property
    def new(self) -> list[Tuple]:
        """Those that were not in the window before, one step earlier. Storm's getNew."""
        return [_tuple_of(entry) for entry in self._entries[1]]

    @functools.cached_property
    def expired(self) -> list[Tuple]:
        """Those of the window before, one step earlier, that are not in this one. Storm's getExpired."""
        return [_tuple_of(entry) for entry in self._entries[2]]

    def __len__(self) -> int:
        return len(self._entries[0])

    def __repr__(self) -> str:
        count, new, expired = map(len, self._entries)
        times = "" if self.end is None else f", start={self.start}, end={self.end}"
        return f"TupleWindow(key={self.key!r}{times}: {count} tuples, {new} new, {expired} expired)"


class WindowContent:
    """The tuples that the next windows of one key need, in memory and in the state.

    The state has an entry for each tuple below ``("window", key, number)``, so that a tuple that comes is one change.
    A head tells what was in the last window: the entries with a number below `seen`, by time only those before `end`.

    Attributes
    ----------
    ended_ms : int or None
        All windows that end then or earlier were processed, by any key.
    next_end : int or None
        When the next window by time ends, in milliseconds; None while there are no tuples.
    """

    def __init__(self, window: Window, state: KeyValueState, key: Hashable, ended_ms: int | None = None) -> None:
        self.key = key
        self.ended_ms = ended_ms
        self.next_end: int | None = None
        self._window = window
        self._state = state
        # By number; by time, if they go by time, but what has come since they were sorted.
        self._entries: list[WindowEntry] = []
        self._is_sorted = True
        # How many of them, in front, are in no further window.
        self._passed = 0
        self._seen = self._next_number = 0
        self._end: int | None = None

    @classmethod
    def load_all(cls, window: Window, state: KeyValueState, ended_ms: int | None) -> dict[Hashable, Self]:
        """Return the contents that a state has, by their keys."""
        contents: dict[Hashable, Self] = {}
        ours = [each for each in state if isinstance(each, tuple) and len(each) == 3 and each[0] == _STATE_KEY]
        for state_key in sorted(ours, key=lambda each: each[2]):
            _, key, number = state_key
            content = contents.get(key)
            if content is None:
                content = contents[key] = cls(window, state, key, ended_ms)
            if number == _HEAD:
                content._seen, content._end = state.peek(state_key)
                content._next_number = content._seen
            else:
                content._entries.append(WindowEntry(*state.peek(state_key)))
                content._next_number = number + 1
        for content in contents.values():
            content._is_sorted = window.kind == "count"
            content._look_ahead()
        return contents

    def __len__(self) -> int:
        return len(self._entries) - self._passed

    def add(self, tup: Tuple, time_ms: int) -> None:
        """Add a tuple."""
        source = tup._source
        # The named tuple of the values has a class that no pickle finds.
        entry = WindowEntry(
            self._next_number, time_ms, tuple(tup.values), (source.component, source.stream, source.task, source.fields)
        )
        self._next_number += 1
        self._is_sorted = self._is_sorted and (not self._entries or self._entries[-1].time_ms <= time_ms)
        self._entries.append(entry)
        self._state[_STATE_KEY, self.key, entry.number] = tuple(entry)
        if self._window.kind == "time":
            end = self._end_for(time_ms)
            self.next_end = end if self.next_end is None else min(self.next_end, end)

    def remove_last(self) -> None:
        """Remove the tuple that was added last to a window by count."""
        self._next_number = self._entries.pop().number
        del self._state[_STATE_KEY, self.key, self._next_number]

    def is_ended(self, end: int) -> bool:
        """Return whether the window that ends then was processed."""
        return any(ended is not None and end <= ended for ended in (self._end, self.ended_ms))

    def time_from(self, now_ms: int) -> int:
        """Return the time of a tuple that arrives now, if the clock was not turned back meanwhile: else a later one."""
        return max(now_ms, self._end or now_ms, self._entries[-1].time_ms if self._entries else now_ms)

    def is_full(self) -> bool:
        """Return whether the next window by count is complete."""
        return self._next_number - self._seen >= self._window.step

    def full_window(self) -> TupleWindow:
        """Return the window by count that is complete."""
        entries = self._entries
        seen, start = self._place_of(self._seen), self._place_of(self._next_number - self._window.length)
        return TupleWindow(self.key, entries[start:], entries[max(seen, start) :], entries[: min(seen, start)])

    def due_end(self, now_ms: int) -> int | None:
        """Return the end of the next window by time, if it has ended."""
        return self.next_end if self.next_end is not None and self.next_end <= now_ms else None

    def due_windows(self, now_ms: int) -> Iterator[TupleWindow]:
        """Yield the windows by time that have ended and have tuples.

        Each counts as processed when the next one is asked for.
        """
        while (end := self.due_end(now_ms)) is not None:
            window = self._next_window(end)
            if window:
                yield window
            self.pass_on()

    def _next_window(self, end: int) -> TupleWindow:
        start = end - self._window.length
        self._sort()
        now = sorted(self._entries[self._place_at(start) : self._place_at(end)], key=_number_of)
        before: list[WindowEntry] = []
        if self._end is not None:
            # Entries from before the start of the last window have passed.
            last = self._entries[self._passed : self._place_at(self._end)]
            before = sorted((each for each in last if each.number < self._seen), key=_number_of)
        known = {each.number for each in before}
        new = [each for each in now if each.number not in known]
        expired = [each for each in before if each.time_ms < start]
        return TupleWindow(self.key, now, new, expired, (start, end))

    def pass_on(self) -> None:
        """Count the present window as processed, and forget the tuples that are not in it and in none after it."""
        if self._window.kind == "count":
            place = self._place_of(self._next_number - self._window.length)
            gone, self._entries = self._entries[:place], self._entries[place:]
        else:
            assert self.next_end is not None
            self._sort()
            place = self._place_at(self.next_end - self._window.length)
            gone, self._passed = self._entries[self._passed : place], place
            if 2 * place > len(self._entries):  # seldom, since many windows may end at once
                del self._entries[:place]
                self._passed = 0
        for entry in gone:
            del self._state[_STATE_KEY, self.key, entry.number]
        self._seen, self._end = self._next_number, self.next_end
        if self:
            self._state[_STATE_KEY, self.key, _HEAD] = self._seen, self._end
        else:
            self._state.delete((_STATE_KEY, self.key, _HEAD))
        self._look_ahead()

    def _place_of(self, number: int) -> int:
        return bisect.bisect_left(self._entries, number, key=_number_of)

    def _place_at(self, time_ms: int) -> int:
        return bisect.bisect_left(self._entries, time_ms, self._passed, key=_time_of)

    def _sort(self) -> None:
        """Sort the entries by time, and drop those that have passed."""
        if not self._is_sorted:
            self._entries = sorted(self._entries[self._passed :], key=_time_of)
            self._passed, self._is_sorted = 0, True

    def _end_for(self, time_ms: int) -> int:
        """Return when the next window ends, if this is the time of the earliest tuple."""
        ended = [each + self._window.step for each in (self._end, self.ended_ms) if each is not None]
        return max([self._window.end_after(time_ms), *ended])

    def _look_ahead(self) -> None:
        self.next_end = None
        if self._window.kind == "time" and self:
            first = self._entries[self._passed].time_ms if self._is_sorted else min(map(_time_of, self._entries))
            self.next_end = self._end_for(first)
