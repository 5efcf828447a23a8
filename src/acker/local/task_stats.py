"""The figures of all tasks at this moment, read from their executors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from acker.local.executors.acker import AckerExecutor
from acker.local.executors.bolt import BoltExecutor, BoltTask
from acker.local.executors.spout import SpoutExecutor, SpoutTask
from acker.local.wiring import ExecutorSet
from acker.observe.reasons import ReasonKind
from acker.observe.stats import TaskStats

# The counter in which a reliable spout counts its dead letters.
DEAD_LETTERS: Final = "dead_letters"


def read_tasks(executors: ExecutorSet | None, ackers: Sequence[AckerExecutor], uptime_ns: int) -> tuple[TaskStats, ...]:
    """Return the figures of all tasks in the order of their ids; the ackers' come last."""
    rows: list[TaskStats] = []
    if executors is not None:
        rows += [_spout_row(task, each, uptime_ns) for each in executors.spouts for task in each.tasks]
        rows += [_bolt_row(task, each, uptime_ns) for each in executors.bolts for task in each.tasks]
    rows.sort(key=lambda row: row.task)
    rows.extend(_acker_row(acker, number, uptime_ns) for number, acker in enumerate(ackers))
    return tuple(rows)


def _counts(task: SpoutTask | BoltTask, executor: SpoutExecutor | BoltExecutor, uptime_ns: int) -> dict[str, Any]:
    collector = task.collector
    routes = {route.source.stream: route for route in collector.routes.values()}
    user = dict(collector.user)
    # A bolt has none: what it counts under this name is its own.
    dead_letters = user.pop(DEAD_LETTERS, 0) if isinstance(task, SpoutTask) else 0
    return {
        "component": collector.component,
        "task": collector.task,
        "executor": executor.name,
        "emitted": {name: route.emitted for name, route in routes.items()},
        "transferred": sum(outlet.sent for outlet in collector.outlets),
        "executed": collector.executed,
        "acked": collector.acked,
        "dead_letters": dead_letters,
        "queue": executor.inbox.size,
        "queue_capacity": executor.inbox.capacity,
        "capacity": executor.busy_ns_of(task) / uptime_ns,
        "user": user,
    }


def _spout_row(task: SpoutTask, executor: SpoutExecutor, uptime_ns: int) -> TaskStats:
    collector = task.collector
    outcomes = collector.outcomes
    return TaskStats(
        kind="spout",
        failed=outcomes[ReasonKind.FAILED],
        timed_out=outcomes[ReasonKind.TIMED_OUT],
        rejected=outcomes[ReasonKind.REJECTED],
        restarted=outcomes[ReasonKind.RESTART],
        shut_down=outcomes[ReasonKind.SHUTDOWN],
        ack_errors=collector.ack_errors,
        late=collector.late,
        pending=collector.pending_count,
        oldest_age_ms=collector.oldest_age_ms(),
        complete_latency=collector.latency.snapshot(),
        **_counts(task, executor, uptime_ns),
    )


def _bolt_row(task: BoltTask, executor: BoltExecutor, uptime_ns: int) -> TaskStats:
    return TaskStats(
        kind="bolt",
        failed=task.collector.failed,
        pending=task.held_count,
        execute_latency=task.collector.latency.snapshot(),
        **_counts(task, executor, uptime_ns),
    )


def _acker_row(acker: AckerExecutor, number: int, uptime_ns: int) -> TaskStats:
    stats = acker.stats()
    return TaskStats(
        component="__acker",
        kind="acker",
        task=-1 - number,
        executor=acker.name,
        executed=acker.messages,
        acked=stats.acked,
        failed=stats.failed,
        timed_out=stats.timed_out,
        rejected=stats.rejected,
        duplicates=stats.duplicates,
        late=stats.orphans + stats.unknown,
        pending=stats.open,
        queue=acker.inbox.size,
        queue_capacity=acker.inbox.capacity,
        capacity=acker.busy_ns / uptime_ns,
        acker=stats,
    )
