"""Reports of Spark tasks that work for long, as a table of the live page and as a part of a sentence."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from acker.observe.calls import UserCall
from acker.observe.durations import format_latency
from acker.observe.readings import table
from acker.spark.task_reports import TaskReport

# How many tasks are listed.
_TASKS_MAX: Final = 20
# A call of up to so many usual ones is slow as they are, and does not hang.
_SLOW_FACTOR: Final = 3
_UNTOLD: Final = (
    "Not known with Spark Connect, or if no session was active where the listener was made. Calls that hang are named"
    " in the executors' stderr or in this program's log."
)


def tasks_table(
    reports: Sequence[TaskReport] | None, message_of: Callable[[int], str | None] = lambda _: None
) -> dict[str, Any]:
    """Return the tasks as a table, without reports one that says where to look instead.

    `message_of` returns the message of a root id in words, if it is known.
    """
    empty = _UNTOLD if reports is None else "No task of Spark has worked for 5 s."
    rows = []
    for each in (reports or ())[:_TASKS_MAX]:
        call = each.call(None if each.root_id is None else message_of(each.root_id))
        where = f"stage {each.stage}, partition {each.partition} on {each.host}"
        inside: list[Any] = [None] * 5
        if call is not None:
            line = None if call.line is None else call.line.short
            inside = [call.who, call.what, call.for_ms, each.done, line]
        rows.append([where, each.bolts, each.for_ms, *inside])
    columns = [
        ("Spark's task", None),
        ("Runs", None),
        ("Works for", "ms"),
        ("In", None),
        ("With", None),
        ("This call", "ms"),
        ("Tuples until now", ""),
        ("Stands at", None),
    ]
    return table("tasks", "Tasks that work for long", columns, rows, empty)


def tasks_in(reports: Iterable[TaskReport]) -> str:
    """Return in which component most of these tasks are, at which line, and whether they get on.

    Empty if no code of the user runs.
    """
    found: dict[str, list[tuple[TaskReport, UserCall]]] = {}
    for each in reports:
        call = each.call()
        if call is not None and each.component is not None:
            found.setdefault(each.component, []).append((each, call))
    if not found:
        return ""
    name, tasks = max(found.items(), key=lambda item: len(item[1]))
    line = Counter(call.line.short for _, call in tasks if call.line is not None).most_common(1)
    where = f", at {line[0][0]}" if line else ""
    who = f"{len(tasks):,} tasks are in {name}" if len(tasks) > 1 else f"a task is in {tasks[0][1].who}"
    return f"{who}{where}{_done_in([each for each, _ in tasks])}"


def _done_in(reports: Sequence[TaskReport]) -> str:
    """Return how much of the work of a component is done, and how long its calls take: whether it is slow or hangs."""
    done = sum(each.done for each in reports)
    usual_ms = [each.usual_ms for each in reports if each.usual_ms is not None]
    if not done or not usual_ms:
        return ""
    were = "1 tuple is" if done == 1 else f"{done:,} tuples are"
    median_ms, now_ms = statistics.median(usual_ms), max(each.call_ms for each in reports)
    kind = "slow, not hung: " if now_ms <= _SLOW_FACTOR * median_ms else ""
    calls = f"with calls of {format_latency(median_ms)}; the longest now has run for {format_latency(now_ms)}"
    return f" ({kind}{were} done, {calls})"
