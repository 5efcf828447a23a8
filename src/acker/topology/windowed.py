"""WindowedBolt, a bolt that processes the tuples of a window together."""

from __future__ import annotations

import datetime
import math
import operator
import reprlib
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Protocol

from acker.errors import ArgumentTypeError, ArgumentValueError, TopologyError
from acker.topology.graph import Subscription
from acker.topology.methods import refuse_unrun
from acker.topology.state import KeyValueState
from acker.topology.stateful import StatefulBolt
from acker.topology.streams import Stream
from acker.topology.tuples import Tuple
from acker.topology.windows import TupleWindow, Window, WindowContent, WindowContents

__all__ = ["WindowedBolt"]

# The longest time between two looks at the clock, so that an idle bolt processes a window soon after its end.
_TICK_SECS: Final = 1.0

# Larger event times are in another unit: as milliseconds they are of 1973 and later.
SECONDS_MAX: Final = 100_000_000_000

# The key in the state of the event time up to which windows have ended.
ENDED: Final = ("window", "ended")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Watermark(Protocol):
    """The watermark of one task: up to which event time all that was sent has come. A runtime makes it."""

    def note(self, tup: Tuple, time_ms: int) -> None:
        """Take note of a tuple that came, and of its event time."""

    def ended_ms(self) -> int | None:
        """Return the end of the last window that may end now, whatever still comes; None if none may."""

    def tell_late(self, text: str) -> None:
        """Log that a tuple is late, if it is the first one of the component."""


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
        How much earlier a tuple may be than those that its spout has emitted before it. With `timestamp_field` only.
        Storm's withLag.
    idle_secs : float
        Windows end when all spouts have passed their end by `lag_secs`. One that has sent nothing for `idle_secs`, and
        has nothing under way, does not hold them back. With `timestamp_field` only. Flink's withIdleness.
    """

    window: ClassVar[Window]
    timestamp_field: ClassVar[str | None] = None
    lag_secs: ClassVar[float] = 0
    idle_secs: ClassVar[float] = 60

    _contents: WindowContents
    # With event time: bound by the runtime before the state; and the time up to which all windows were processed.
    _watermark: Watermark
    _ended_ms: int | None = None

    @classmethod
    def _definition_error(cls) -> str | None:
        """Return what is wrong with its windows, if anything."""
        window: object = getattr(cls, "window", None)
        lag, idle = cls.lag_secs, cls.idle_secs
        if not isinstance(window, Window):
            return f"{cls.__name__} has no windows; give the class window = Window.tumbling(count=100), for example"
        if cls.timestamp_field is not None and window.kind == "count":
            return f"{cls.__name__} has windows by count, which have no times; remove timestamp_field"
        if not _is_number(lag) or not 0 <= lag < math.inf:
            return f"{cls.__name__}.lag_secs is {lag!r}; expected seconds, at least 0"
        if not _is_number(idle) or not idle > 0:
            return f"{cls.__name__}.idle_secs is {idle!r}; expected seconds, more than 0 (float('inf'): never idle)"
        if cls.timestamp_field is None:
            for name, value in (("lag_secs", lag), ("idle_secs", idle)):
                if value != getattr(WindowedBolt, name):
                    why = "without which no tuple is early or late"
                    return f"{cls.__name__} has {name} = {value!r} but no timestamp_field, {why}"
        return None

    @classmethod
    def _inputs_error(
        cls,
        inputs: tuple[Subscription, ...],  # noqa: ARG003
        streams: Mapping[str, Mapping[str, Stream]],  # noqa: ARG003
        par: int,  # noqa: ARG003
    ) -> str | None:
        """Return what is wrong with its inputs in a topology, if anything."""
        return None

    def process_window(self, window: TupleWindow) -> Any:
        """Process a window that has ended.

        Tuples that it emits are anchored, by count, to the tuple that completes the window; by time, to none. An
        exception fails that tuple, which then is not in the window; by time it restarts the topology. In both cases the
        window is processed again.

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
            content = self._contents.get(key, self._ended_ms)
        except TypeError:
            raise TopologyError(
                f"{self.component_name}: group_key returned {reprlib.repr(key)}; expected something hashable such as a "
                "str or a tuple"
            ) from None
        if self.window.kind == "count":
            self._process_by_count(tup, content)
        elif self.timestamp_field is None:
            time_ms = content.time_from(self._collector.wall_ms())
            if self.window.last_end(time_ms) is not None:
                self._contents.add(content, tup, time_ms)
        else:
            self._process_by_event_time(tup, content)

    def _process_by_count(self, tup: Tuple, content: WindowContent) -> None:
        self._contents.add(content, tup, 0)
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
        self._watermark.note(tup, time_ms)
        content.ended_ms = self._ended_ms
        last_end = self.window.last_end(time_ms)
        if last_end is None:
            return
        if content.is_ended(last_end):
            self.report_metric("late_tuples")
            assert self.timestamp_field is not None
            self._tell_late(tup.component, tup[self.timestamp_field], last_end)
            returned: object = self.process_late(tup)
            if returned is not None:
                refuse_unrun(self.component_name, "process_late", returned)
        else:
            self._contents.add(content, tup, time_ms)

    def _tell_late(self, component: str, value: object, last_end: int) -> None:
        field = self.timestamp_field
        assert field is not None and self._ended_ms is not None
        self._watermark.tell_late(
            f"{self.component_name}: a tuple of {component!r} with {field} = {reprlib.repr(value)} came late: "
            f"its last window ended at {last_end / 1000:.15g} s, and those up to {self._ended_ms / 1000:.15g} s were "
            f"processed. Raise lag_secs ({self.lag_secs:g}) if the source emits its tuples less in order, or idle_secs "
            f"({self.idle_secs:g}) if it pauses for longer; tuples that are replayed may be late too. All are counted "
            "as late_tuples, and process_late() may keep them"
        )

    def _holds_windows(self) -> bool:
        """Return whether any tuple is in a window."""
        return bool(self._contents)

    def _has_due_windows(self) -> bool:
        """Return whether windows by event time have ended that were not processed."""
        ended_ms = self._watermark.ended_ms()
        return ended_ms is not None and (self._ended_ms is None or ended_ms > self._ended_ms)

    def _end_windows(self) -> None:
        """Process the windows by event time that have ended; called by runtimes between two tuples."""
        ended_ms = self._watermark.ended_ms()
        if ended_ms is not None and (self._ended_ms is None or ended_ms > self._ended_ms):
            self._process_due(ended_ms)
            self._ended_ms = self.state[ENDED] = ended_ms

    def _time_of(self, tup: Tuple) -> int:
        """Return the event time of a tuple in milliseconds."""
        assert self.timestamp_field is not None
        return self._time_of_value(tup[self.timestamp_field])

    def _time_of_value(self, value: Any) -> int:
        given = value
        try:
            if isinstance(value, datetime.datetime) and value.tzinfo is not None:
                value = value.timestamp()
            if SECONDS_MAX <= abs(value) < math.inf:
                raise ArgumentValueError(
                    f"{self.component_name}: field {self.timestamp_field!r} has {reprlib.repr(value)}, which is no time"
                    " in seconds before the year 5000; Storm's are milliseconds: divide them by 1,000"
                )
            return operator.index(round(value * 1000))
        except ArgumentValueError:
            raise
        except (TypeError, ValueError, OverflowError):
            raise ArgumentTypeError(
                f"{self.component_name}: field {self.timestamp_field!r} has {reprlib.repr(given)}; "
                "expected seconds since 1970 as a number, or a datetime with a time zone"
            ) from None

    def process_tick(self, tup: Tuple) -> None:  # noqa: ARG002
        """Process the windows by time of arrival that have ended. Do not override it."""
        if self.window.kind == "time" and self.timestamp_field is None:
            self._process_due(self._collector.wall_ms())

    def _process_due(self, now_ms: int) -> None:
        """Process the windows that have ended, of all keys in the order of their ends, as bolts behind expect."""
        for window in self._contents.due_windows(now_ms):
            self._process_one(window)

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
        self._ended_ms = state.peek(ENDED, None)
        self._contents = WindowContents.of(self.window, state, self._ended_ms)
