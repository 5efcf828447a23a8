"""The watchdog, which notices that tuples are pending and none was acked for a whole message timeout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from acker.observe.durations import format_duration

if TYPE_CHECKING:
    from acker.observe.calls import UserCall
    from acker.observe.stats import RuntimeStats, TaskStats

# Number of tasks that a warning names for one reason.
_NAMED_MAX: Final = 3


class StallWatchdog:
    """Names the suspects of a stall, once it is as long as the timeout, and again each time that has doubled.

    Parameters
    ----------
    timeout_ms : int
        `topology.message.timeout.secs`, also in a topology whose trees do not time out.
    """

    def __init__(self, timeout_ms: int) -> None:
        if timeout_ms < 1:
            raise ValueError(f"timeout_ms: expected an int of at least 1, got {timeout_ms}")
        self._timeout_ms = timeout_ms
        self._acked: int | None = None
        self._since_ms = 0
        self._next_ms = 0

    def is_stalled(self, now_ms: int, acked: int, pending: int) -> bool:
        """Compare these figures with the last look; return whether a warning is due, which `look` makes."""
        if acked != self._acked or not pending:
            self._acked, self._since_ms, self._next_ms = acked, now_ms, now_ms + self._timeout_ms
            return False
        return now_ms >= self._next_ms

    def look(self, now_ms: int, stats: RuntimeStats, calls: Mapping[int, UserCall] | None = None) -> str | None:
        """Compare with the last look; return a warning or None.

        Call it several times in a timeout, since it does not see what happens between two looks.

        Parameters
        ----------
        now_ms : int
            Monotonic.
        stats : RuntimeStats
        calls : dict of task to UserCall, optional
            Those that run now.

        Returns
        -------
        str or None
            One line: how long, how much is pending, and which tasks are busy and where, have a queue or hold tuples.
        """
        # Not stats.totals, which would add up the histograms of all tasks.
        spouts = [row for row in stats.tasks if row.kind == "spout"]
        acked, pending = sum(row.acked for row in spouts), sum(row.pending for row in spouts)
        oldest_ms = max((row.oldest_age_ms for row in spouts if row.oldest_age_ms is not None), default=None)
        stall = self.stall(now_ms, acked, pending, oldest_ms)
        if stall is None:
            return None
        who = "; ".join(suspects(stats.tasks, calls or {})) or "no task is busy, has a queue or holds a tuple"
        return f"{stall}: {who}"

    def stall(self, now_ms: int, acked: int, pending: int, oldest_ms: int | None) -> str | None:
        """Compare these figures with the last look; return how long nothing was acked, and how much is pending."""
        if not self.is_stalled(now_ms, acked, pending):
            return None
        stalled_ms = now_ms - self._since_ms
        self._next_ms = self._since_ms + 2 * stalled_ms
        trees = "1 tree is" if pending == 1 else f"{pending:,} trees are"
        age = "" if oldest_ms is None else f" (the oldest for {format_duration(oldest_ms)})"
        return f"nothing was acked for {format_duration(stalled_ms)} and {trees} pending{age}"


def suspects(tasks: Iterable[TaskStats], calls: Mapping[int, UserCall]) -> list[str]:
    """Return the suspects: tasks inside user code first, since they may be the cause of queues and held tuples."""
    tasks = list(tasks)
    found = []
    for row in _worst((row for row in tasks if row.task in calls), lambda row: calls[row.task].for_ms):
        call = calls[row.task]
        what = "next_tuple()" if row.kind == "spout" else "process()"
        if call.what is not None:
            what = call.what if call.what.endswith("()") else f"{what} with {call.what}"
        where = "" if call.line is None else f", at {call.line}"
        found.append(f"{call.who} has been in {what} for {format_duration(call.for_ms)}{where}")
    # Tasks of one executor share its queue.
    queues = {row.executor or row.task: row for row in reversed(tasks) if row.queue}
    found += [
        f"{row.component}[{row.task}] has {row.queue:,} of {row.queue_capacity:,} tuples in its queue"
        for row in _worst(reversed(queues.values()), lambda row: row.queue)
    ]
    for row in _worst((row for row in tasks if row.kind == "bolt" and row.pending), lambda row: row.pending):
        age = "" if row.oldest_age_ms is None else f", the oldest for {format_duration(row.oldest_age_ms)}"
        found.append(f"{row.component}[{row.task}] holds {row.pending:,} that it neither acked nor failed{age}")
    return found


def _worst(tasks: Iterable[TaskStats], by: Callable[[TaskStats], int]) -> list[TaskStats]:
    return sorted(tasks, key=by, reverse=True)[:_NAMED_MAX]
