"""WindowedBolt, a bolt that processes the tuples of a window together."""

from __future__ import annotations

import datetime
import math
import operator
import reprlib
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar, Final

from acker.errors import ArgumentTypeError, ArgumentValueError, TopologyError
from acker.topology.methods import refuse_unrun
from acker.topology.state import KeyValueState
from acker.topology.stateful import StatefulBolt
from acker.topology.tuples import Tuple
from acker.topology.windows import TupleWindow, Window, WindowContent

__all__ = ["WindowedBolt"]

# The longest time between two looks at the clock, so that an idle bolt processes a window soon after its end.
_TICK_SECS: Final = 1.0

# Larger event times are in another unit: as milliseconds they are of 1973 and later.
_SECONDS_MAX: Final = 100_000_000_000

# The key in the state of two event times: the latest, and that up to which all windows have ended.
_TIMES: Final = ("window", "times")


class WindowedBolt(StatefulBolt):
    """A bolt that processes the tuples of a window together. Override `process_window`. Storm's BaseWindowedBolt.

    Windows are tumbling or sliding, by count or by time. A tuple belongs to the time at which it arrives, by the
    runtime's clock, or to that of `timestamp_field`. The content of the windows is in `self.state`, below keys that are
    tuples beginning with "window". A tuple is acked when it is there, and not, as in Storm, when it leaves its window.

    Attributes
    ----------
    window : Window
        The definition: ``Window.tumbling(count=100)``, ``Window.sliding(secs=60, every_secs=10)``.
    timestamp_field : str or None
        The field with a tuple's time, in seconds since 1970, UTC, or as a datetime with a time zone. For windows by
        time. Storm's withTimestampField, which takes milliseconds.
    lag_secs : float
        How much earlier than the latest time so far a tuple may be. Windows end when their end is `lag_secs` before the
        latest time. With `timestamp_field` only. Storm's withLag.
    """

    window: ClassVar[Window]
    timestamp_field: ClassVar[str | None] = None
    lag_secs: ClassVar[float] = 0

    _contents: dict[Hashable, WindowContent]
    # With event time: the latest, and that up to which all windows were processed.
    _latest_ms: int | None = None
    _ended_ms: int | None = None

    @classmethod
    def _definition_error(cls) -> str | None:
        """Return what is wrong with its windows, if anything."""
        window: object = getattr(cls, "window", None)
        lag: Any = cls.lag_secs
        if not isinstance(window, Window):
            return f"{cls.__name__} has no windows; give the class window = Window.tumbling(count=100), for example"
        if cls.timestamp_field is not None and window.kind == "count":
            return f"{cls.__name__} has windows by count, which have no times; remove timestamp_field"
        if isinstance(lag, bool) or not isinstance(lag, int | float) or not 0 <= lag < float("inf"):
            return f"{cls.__name__}.lag_secs is {lag!r}; expected seconds, at least 0"
        if lag and cls.timestamp_field is None:
            return f"{cls.__name__} has a lag_secs but no timestamp_field, without which no tuple is early or late"
        return None

    def process_window(self, window: TupleWindow) -> Any:
        """Process a window that has ended.

        Tuples that it emits are anchored, by count, to the tuple that completes the window; by `timestamp_field`, to
        the one whose time ends it; by time of arrival, to none. An exception fails that tuple, which then is not in the
        window. By time of arrival it restarts the topology. In both cases the window is processed again.

        Parameters
        ----------
        window : TupleWindow
        """
        raise NotImplementedError(f"{type(self).__name__} has no process_window()")

    def group_key(self, tup: Tuple) -> Any:
        """Return the key of a tuple's windows, anything hashable. Unless overridden, each task has one window."""

    def process_late(self, tup: Tuple) -> Any:
        """Handle a tuple whose windows have all ended. It is counted as "late_tuples" and acked; override to keep it.

        With `timestamp_field` only.
        """

    def process(self, tup: Tuple) -> None:
        """Put a tuple into its window, and process the windows that it ends. Do not override it; see `group_key`."""
        key = self.group_key(tup)
        try:
            content = self._contents.get(key)
        except TypeError:
            raise TopologyError(
                f"{self.component_name}: group_key returned {reprlib.repr(key)}; expected something hashable such as a "
                "str or a tuple"
            ) from None
        if content is None:
            content = WindowContent(self.window, self.state, key, self._ended_ms)
        if self.window.kind == "count":
            self._process_by_count(tup, content)
        elif self.timestamp_field is None:
            time_ms = content.time_from(self._collector.wall_ms())
            if self.window.last_end(time_ms) is not None:
                self._add(tup, content, time_ms)
        else:
            self._process_by_event_time(tup, content)

    def _add(self, tup: Tuple, content: WindowContent, time_ms: int) -> None:
        self._contents[content.key] = content
        content.add(tup, time_ms)

    def _process_by_count(self, tup: Tuple, content: WindowContent) -> None:
        self._add(tup, content, 0)
        if content.is_full():
            try:
                self._process_one(content.full_window())
            except BaseException:
                # The tuple fails and will come again.
                content.remove_last()
                raise
            content.pass_on()

    def _process_by_event_time(self, tup: Tuple, content: WindowContent) -> None:
        time_ms = self._time_of(tup)
        latest = self._latest_ms = time_ms if self._latest_ms is None else max(self._latest_ms, time_ms)
        watermark_ms = latest - round(self.lag_secs * 1000)
        ended_ms = self.window.end_after(watermark_ms) - self.window.step
        # The tuple is in none of these windows, so that it can fail and come again.
        if self._ended_ms is None or ended_ms > self._ended_ms:
            self._process_due(ended_ms)
            self._ended_ms = ended_ms
            self.state[_TIMES] = latest, ended_ms
        content.ended_ms = self._ended_ms
        last_end = self.window.last_end(time_ms)
        if last_end is None:
            return
        if content.is_ended(last_end):
            self.report_metric("late_tuples")
            returned: object = self.process_late(tup)
            if returned is not None:
                refuse_unrun(self.component_name, "process_late", returned)
        else:
            self._add(tup, content, time_ms)

    def _time_of(self, tup: Tuple) -> int:
        """Return the event time of a tuple in milliseconds."""
        assert self.timestamp_field is not None
        value = tup[self.timestamp_field]
        try:
            if isinstance(value, datetime.datetime) and value.tzinfo is not None:
                value = value.timestamp()
            if _SECONDS_MAX <= abs(value) < math.inf:
                raise ArgumentValueError(
                    f"{self.component_name}: field {self.timestamp_field!r} has {reprlib.repr(value)}, which is no time"
                    " in seconds before the year 5000; Storm's are milliseconds: divide them by 1,000"
                )
            return operator.index(round(value * 1000))
        except ArgumentValueError:
            raise
        except (TypeError, ValueError, OverflowError):
            raise ArgumentTypeError(
                f"{self.component_name}: field {self.timestamp_field!r} has {reprlib.repr(tup[self.timestamp_field])}; "
                "expected seconds since 1970 as a number, or a datetime with a time zone"
            ) from None

    def process_tick(self, tup: Tuple) -> None:  # noqa: ARG002
        """Process the windows by time of arrival that have ended. Do not override it."""
        if self.window.kind == "time" and self.timestamp_field is None:
            self._process_due(self._collector.wall_ms())

    def _process_due(self, now_ms: int) -> None:
        for content in list(self._contents.values()):
            for window in content.due_windows(now_ms):
                self._process_one(window)
            if not content:
                del self._contents[content.key]

    def _process_one(self, window: TupleWindow) -> None:
        returned: object = self.process_window(window)
        if returned is not None:
            refuse_unrun(self.component_name, "process_window", returned)

    def tick_secs(self, conf: Mapping[str, Any]) -> float | None:
        """Return the time between two looks at the clock, for windows by time of arrival."""
        configured = super().tick_secs(conf)
        if self.window.kind == "count" or self.timestamp_field is not None:
            return configured
        return min(_TICK_SECS, self.window.step / 1000, _TICK_SECS if configured is None else configured)

    def _bind_state(self, state: KeyValueState) -> None:
        super()._bind_state(state)
        latest, self._ended_ms = state.peek(_TIMES, (None, None))
        self._contents = WindowContent.load_all(self.window, state, self._ended_ms)
        times = [latest, *(content.latest_ms() for content in self._contents.values())]
        self._latest_ms = max((each for each in times if each is not None), default=None)
