"""Windows by count and by time: their definition, their content in a state, and what a bolt receives of them."""

from __future__ import annotations

import bisect
import functools
import heapq
import math
import operator
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from acker.errors import TopologyError
from acker.topology.state import KeyValueState, StateChanges
from acker.topology.tuples import Tuple, TupleSource

__all__ = ["TupleWindow", "Window", "WindowContent", "WindowContents"]

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


# One tuple in a window, as the state keeps it: its number among the tuples of its key, its time in milliseconds, its
# values and its source.
WindowEntry = tuple[int, int, tuple[Any, ...], tuple[str, str, int, tuple[str, ...]]]

_number_of: Final = operator.itemgetter(0)
_time_of: Final = operator.itemgetter(1)
_number_and_time_of: Final = operator.itemgetter(0, 1)


@functools.lru_cache(1024)
def _source_of(component: str, stream: str, task: int, fields: tuple[str, ...]) -> TupleSource:
    return TupleSource(component, stream, task, fields)


def _tuple_of(entry: WindowEntry) -> Tuple:
    """Return the tuple of an entry; it has no ids, since it was acked."""
    _, _, values, names = entry
    source = _source_of(*names)
    return source.tuple_type(source.make_values(values), source)


class TupleWindow:
    """A window that has ended, with its tuples in the order of arrival. Storm's TupleWindow.

    The tuples were acked when they came into the window, so they have no ids, and nothing can be anchored to them.

    Attributes
    ----------
    key : hashable
        As `WindowedBolt.group_key` returned it for its tuples; None by default.
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

    @property
    def numbers(self) -> list[int]:
        """The number of each of `tuples` among those that came with this key."""
        return [entry[0] for entry in self._entries[0]]

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
    watched_end : int or None
        The last `next_end` that its owner has taken note of.

    Parameters
    ----------
    touched : set
        Takes the keys of the state that it sets or removes.
    """

    def __init__(
        self, window: Window, state: KeyValueState, touched: set[Any], key: Hashable, ended_ms: int | None
    ) -> None:
        self.key = key
        self.ended_ms = ended_ms
        self.next_end: int | None = None
        self.watched_end: int | None = None
        self._window = window
        self._state = state
        self._touched = touched
        # By number; by time, if they go by time, but what has come since they were sorted.
        self._entries: list[WindowEntry] = []
        self._is_sorted = True
        # Whether they are by number, too.
        self._is_numbered = True
        # How many of them, in front, are in no further window.
        self._passed = 0
        self._earliest_ms: int | None = None
        self._seen = self._next_number = 0
        self._end: int | None = None

    def follow(self, numbers: Collection[int]) -> None:
        """Take over from the state what it has for some numbers, and the head; then call `look_ahead`.

        Tuples that other workers have added come behind those that are here. The head says which ones they have passed
        on. If anything else has changed, the content is read from the state again.
        """
        self._seen, end = self._state.peek((_STATE_KEY, self.key, _HEAD)) or (0, None)
        if end is not None and end != self._end:
            self._pass_until(end - self._window.length)
        self._end = end
        changed = {each: self._state.peek((_STATE_KEY, self.key, each)) for each in sorted(numbers) if each != _HEAD}
        earlier = [number for number in changed if number < self._next_number]
        known = self._times_of(earlier)
        if all(known.get(number) == (changed[number] and changed[number][1]) for number in earlier):
            added = [entry for number, entry in changed.items() if entry is not None and number >= self._next_number]
        else:
            entries = {entry[0]: entry for entry in self._entries[self._passed :]} | changed
            added = [entry for _, entry in sorted(entries.items()) if entry is not None]
            self._entries, self._passed, self._next_number, self._earliest_ms = [], 0, 0, None
            self._is_sorted = self._is_numbered = True
        for entry in added:
            self._append(entry)
        self._next_number = max(self._next_number, self._seen)

    def _times_of(self, numbers: Collection[int]) -> dict[int, int]:
        """Return the times of the entries with some numbers, of those that are here."""
        if not numbers:
            return {}
        if not self._is_numbered:
            return dict(map(_number_and_time_of, self._entries[self._passed :]))
        indices = map(self._index_of, numbers)
        found = [self._entries[index] for index in indices if self._passed <= index < len(self._entries)]
        return dict(map(_number_and_time_of, found))

    def __len__(self) -> int:
        return len(self._entries) - self._passed

    def numbers(self) -> set[int]:
        """Return the numbers of the tuples that are here; the next one gets `next_number`."""
        return set(map(_number_of, self._entries[self._passed :]))

    @property
    def next_number(self) -> int:
        """The number that the next tuple gets."""
        return self._next_number

    def add(self, tup: Tuple, time_ms: int) -> None:
        """Add a tuple."""
        source = tup._source
        # The named tuple of the values has a class that no pickle finds.
        number = self._next_number
        entry = number, time_ms, tuple(tup.values), (source.component, source.stream, source.task, source.fields)
        self._append(entry)
        self._set(number, entry)
        if self._window.kind == "time":
            end = self._end_for(time_ms)
            self.next_end = end if self.next_end is None else min(self.next_end, end)

    def remove_last(self) -> None:
        """Remove the tuple that was added last to a window by count."""
        self._next_number, *_ = self._entries.pop()
        self._set(self._next_number, None)

    def is_ended(self, end: int) -> bool:
        """Return whether the window that ends then was processed."""
        return any(ended is not None and end <= ended for ended in (self._end, self.ended_ms))

    def time_from(self, now_ms: int) -> int:
        """Return the time of a tuple that arrives now, if the clock was not turned back meanwhile: else a later one."""
        return max(now_ms, self._end or now_ms, _time_of(self._entries[-1]) if self._entries else now_ms)

    def is_full(self) -> bool:
        """Return whether the next window by count is complete."""
        return self._next_number - self._seen >= self._window.step

    def full_window(self) -> TupleWindow:
        """Return the window by count that is complete."""
        entries = self._entries
        seen, start = self._index_of(self._seen), self._index_of(self._next_number - self._window.length)
        return TupleWindow(self.key, entries[start:], entries[max(seen, start) :], entries[: min(seen, start)])

    def next_window(self, end: int) -> TupleWindow:
        """Return the window by time that ends then."""
        start = end - self._window.length
        self._sort()
        now = sorted(self._entries[self._index_at(start) : self._index_at(end)], key=_number_of)
        before: list[WindowEntry] = []
        if self._end is not None:
            # Entries from before the start of the last window have passed.
            last = self._entries[self._passed : self._index_at(self._end)]
            before = sorted((each for each in last if each[0] < self._seen), key=_number_of)
        known = set(map(_number_of, before))
        new = [each for each in now if each[0] not in known]
        expired = [each for each in before if each[1] < start]
        return TupleWindow(self.key, now, new, expired, (start, end))

    def pass_on(self) -> None:
        """Count the present window as processed, and forget the tuples that are not in it and in none after it."""
        if self._window.kind == "count":
            index = self._index_of(self._next_number - self._window.length)
            gone, self._entries = self._entries[:index], self._entries[index:]
        else:
            assert self.next_end is not None
            gone = self._pass_until(self.next_end - self._window.length)
        for number, *_ in gone:
            self._set(number, None)
        self._seen, self._end = self._next_number, self.next_end
        self._set(_HEAD, (self._seen, self._end) if self else None)
        self.look_ahead()

    def _pass_until(self, start: int) -> list[WindowEntry]:
        """Pass the entries before a time, and return them."""
        self._sort()
        index = self._index_at(start)
        gone, self._passed = self._entries[self._passed : index], index
        if 2 * index > len(self._entries):  # seldom, since many windows may end at once
            del self._entries[:index]
            self._passed = 0
        self._earliest_ms = self._entries[self._passed][1] if self else None
        return gone

    def _set(self, number: int, value: Any) -> None:
        """Set an entry or the head in the state; None: remove it."""
        state_key = _STATE_KEY, self.key, number
        if self._state.changed is not None:
            self._touched.add(state_key)
        if value is None:
            self._state.delete(state_key)
        else:
            self._state[state_key] = value

    def _append(self, entry: WindowEntry) -> None:
        number, time_ms, *_ = entry
        if self._entries:
            last_number, last_ms, *_ = self._entries[-1]
            self._is_sorted = self._is_sorted and last_ms <= time_ms
            self._is_numbered = self._is_numbered and last_number < number
        self._entries.append(entry)
        self._next_number = number + 1
        self._earliest_ms = time_ms if self._earliest_ms is None else min(self._earliest_ms, time_ms)

    def _index_of(self, number: int) -> int:
        return bisect.bisect_left(self._entries, number, key=_number_of)

    def _index_at(self, time_ms: int) -> int:
        return bisect.bisect_left(self._entries, time_ms, self._passed, key=_time_of)

    def _sort(self) -> None:
        """Sort the entries by time, and drop those that have passed."""
        if not self._is_sorted:
            self._entries = sorted(self._entries[self._passed :], key=_time_of)
            self._passed, self._is_sorted, self._is_numbered = 0, True, False

    def _end_for(self, time_ms: int) -> int:
        """Return when the next window ends, if this is the time of the earliest tuple."""
        ended = [each + self._window.step for each in (self._end, self.ended_ms) if each is not None]
        return max([self._window.end_after(time_ms), *ended])

    def look_ahead(self) -> None:
        """Find out when the next window ends."""
        self.next_end = None
        if self._window.kind == "time" and self._earliest_ms is not None:
            self.next_end = self._end_for(self._earliest_ms)


class WindowContents:
    """The contents of the windows of one task, by their keys, and which of them end next.

    It is the view of a state (`KeyValueState.view`), since making it takes the whole state.

    Parameters
    ----------
    window : Window
    state : KeyValueState
    """

    def __init__(self, window: Window, state: KeyValueState) -> None:
        self._window = window
        self._state = state
        self._contents: dict[Hashable, WindowContent] = {}
        # A heap of next ends, each with a number in between, since contents have no order. One that is not the next
        # end of its content any more stays until its time.
        self._ends: list[tuple[int, int, WindowContent]] = []
        self._pushed = 0
        # The keys of the state that the contents have set or removed.
        self._touched: set[Any] = set()
        # Key -> numbers that another worker has set or removed.
        self._missed: dict[Hashable, set[int]] = {}
        self._miss(state)

    @classmethod
    def of(cls, window: Window, state: KeyValueState, ended_ms: int | None) -> WindowContents:
        """Return the contents that a state has, where all windows have ended that end then or earlier."""
        view = state.view
        if not isinstance(view, cls) or view._window != window:
            view = state.view = cls(window, state)
        missed, view._missed = view._missed, {}
        for key, numbers in missed.items():
            content = view._contents[key] = view.get(key, ended_ms)
            content.ended_ms = ended_ms
            content.follow(numbers)
            content.look_ahead()
            if content:
                view._watch(content)
            else:
                del view._contents[key]
        return view

    def follow(self, changes: StateChanges) -> None:
        """Take note of what another worker has changed; see `StateView`."""
        for state_keys in changes:
            self._miss(state_keys)

    def _miss(self, state_keys: Iterable[Any]) -> None:
        for _, key, number in filter(_is_ours, state_keys):
            self._missed.setdefault(key, set()).add(number)

    def agrees_with(self, changes: StateChanges) -> bool:
        """Return whether only the contents have changed what they have in the state; see `StateView`."""
        agrees = all(key in self._touched for state_keys in changes for key in filter(_is_ours, state_keys))
        self._touched.clear()
        return agrees

    def get(self, key: Hashable, ended_ms: int | None) -> WindowContent:
        """Return the content of a key, a new one if there is none; `add` keeps it."""
        content = self._contents.get(key)
        if content is None:
            content = WindowContent(self._window, self._state, self._touched, key, ended_ms)
        return content

    def add(self, content: WindowContent, tup: Tuple, time_ms: int) -> None:
        """Add a tuple to a content."""
        self._contents[content.key] = content
        content.add(tup, time_ms)
        self._watch(content)

    def due_windows(self, now_ms: int) -> Iterator[TupleWindow]:
        """Yield the windows by time that have ended and have tuples, in the order of their ends.

        Each counts as processed when the next one is asked for.
        """
        while self._ends and self._ends[0][0] <= now_ms:
            end, _, content = self._ends[0]
            if content.next_end != end or self._contents.get(content.key) is not content:
                heapq.heappop(self._ends)
                continue
            window = content.next_window(end)
            if window:
                yield window
            heapq.heappop(self._ends)
            content.pass_on()
            if content:
                self._watch(content)
            else:
                del self._contents[content.key]

    def _watch(self, content: WindowContent) -> None:
        """Take note of when the next window of a content ends."""
        if content.next_end is not None and content.next_end != content.watched_end:
            content.watched_end = content.next_end
            self._pushed += 1
            heapq.heappush(self._ends, (content.next_end, self._pushed, content))


def _is_ours(state_key: object) -> bool:
    return isinstance(state_key, tuple) and len(state_key) == 3 and state_key[0] == _STATE_KEY
