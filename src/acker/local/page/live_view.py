"""What the live page shows of a topology: its figures, the trees that are stuck, the last failures, and actions."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from acker.errors import exception_text
from acker.local.page.actions import Observed, RuntimeActions
from acker.local.page.components_view import ComponentsView
from acker.local.page.open_trees import UnfinishedTree, count_older, find_trees, is_named, oldest_trees
from acker.local.tracing import Sampler
from acker.local.wiring import ExecutorSet
from acker.observe.failures import DeadLetter, Failure, FailureLog, shown_id, shown_values
from acker.observe.headline import Situation, headline
from acker.observe.holders import Holder, SeenHolders
from acker.observe.latencies import milliseconds
from acker.observe.readings import ROWS_MAX, common_reasons, failure_row, holder_rows, letter_row
from acker.observe.reasons import ReasonKind
from acker.observe.stats import RuntimeStats
from acker.ui.source import Action

_NS_PER_MS: Final = 1_000_000

_EVENTS_MAX: Final = 100
_EDGES_MAX: Final = 50
# Who holds a younger tree has changed by the time that somebody reads it.
_LOOK_MS: Final = 1_000
_STATES: Final = {
    "new": "starting",
    "running": "running",
    "paused": "paused",
    "restarting": "restarting",
    "draining": "stopping",
    "stopped": "stopped",
}


class RuntimeView:
    """The live page's source for a topology.

    Parameters
    ----------
    runtime : LocalRuntime
    failures : FailureLog
        What the runtime's spouts record.
    sampler : Sampler or None
    values : bool
        Whether values are shown.
    """

    def __init__(self, runtime: Observed, failures: FailureLog, sampler: Sampler | None, *, values: bool) -> None:
        self.name = runtime.graph.name
        self._runtime = runtime
        self._failures = failures
        self._sampler = sampler
        self._values = values
        self._components = ComponentsView(runtime.graph)
        self._timeout_ms = round(runtime.conf["topology.message.timeout.secs"] * 1_000)
        self._events: deque[dict[str, Any]] = deque(maxlen=_EVENTS_MAX)
        self._seen_state, self._seen_stalls = "", 0
        self._seen_holders = SeenHolders()
        self.actions: Mapping[str, Action] = RuntimeActions(runtime, failures).by_name

    def stats(self) -> RuntimeStats:
        """Return the figures of this moment."""
        return self._runtime.stats()

    def metrics(self) -> bytes:
        """Return the figures in Prometheus's text format."""
        from acker.observe.prometheus import exposition

        return exposition(self._runtime)

    def view(self) -> dict[str, Any]:
        """Return what the page shows now."""
        lifecycle, now_ns = self._runtime.lifecycle, self._runtime.clock.now_ns()
        stats = self._runtime.stats()
        executors = lifecycle.executors
        parts = self._components.read(stats, executors, now_ns)
        trees = [] if executors is None else oldest_trees(executors, ROWS_MAX)
        old = {tree.root_id for tree in trees if now_ns - tree.emitted_ns >= _LOOK_MS * _NS_PER_MS}
        rows = self._rows_of(executors, trees, now_ns, old)
        for row, holders in rows:
            if holders and row["root_id"] is not None:
                self._seen_holders.note(int(row["root_id"]), holders)
        stuck = 0 if executors is None else count_older(executors, now_ns - self._timeout_ms * _NS_PER_MS // 2)
        failures = self._failures.failures()
        self._note_events(stats)
        situation = self._situation(stats, stuck, rows[0] if rows else None, failures)
        return {
            "kind": "topology",
            "name": self.name,
            "state": stats.state,
            "paused": lifecycle.is_paused,
            "uptime_secs": round(stats.uptime_secs, 3),
            "restarts": stats.restarts,
            "timeout_ms": self._timeout_ms,
            "headline": headline(situation),
            **parts,
            "open_trees": {"total": parts["totals"]["pending"], "stuck": stuck, "rows": [row for row, _ in rows]},
            "failures": {"rows": [self._failure_row(each) for each in failures[:ROWS_MAX]], **common_reasons(failures)},
            "dead_letters": self._dead_letters(executors, parts["totals"]["dead_letters"]),
            "events": list(reversed(self._events)),
            "tables": [],
            "actions": list(self.actions) if stats.state != "stopped" else [],
            "log_level": logging.getLevelName(logging.getLogger("acker").getEffectiveLevel()),
        }

    def _situation(
        self,
        stats: RuntimeStats,
        stuck: int,
        oldest: tuple[dict[str, Any], list[Holder]] | None,
        failures: list[Failure],
    ) -> Situation:
        lifecycle = self._runtime.lifecycle
        error = lifecycle.error if stats.state == "stopped" else lifecycle.last_crash
        recent = self._components.recent
        return Situation(
            state=stats.state,
            paused=lifecycle.is_paused,
            outcome=lifecycle.outcome,
            error=None if error is None else exception_text(error).rstrip("."),
            stuck=stuck,
            oldest_ms=None if oldest is None else oldest[0]["age_ms"],
            holders=() if oldest is None else oldest[1],
            pending=sum(row.pending for row in stats.tasks if row.kind == "spout"),
            acked_a_second=recent.rate("acked"),
            p99_ms=milliseconds(recent.latency("complete").quantile(0.99)),
            failed=round(recent.growth("not acked")) if stats.state == "running" else 0,
            reason=str(failures[0].reason) if failures else None,
        )

    # Trees.

    def _rows_of(
        self, executors: ExecutorSet | None, trees: list[UnfinishedTree], now_ns: int, of: set[int | None]
    ) -> list[tuple[dict[str, Any], list[Holder]]]:
        """Return the rows of trees, and the holders of those whose root ids are `of`."""
        roots = [tree.root_id for tree in trees if tree.root_id is not None and tree.root_id in of]
        found = {} if executors is None or not roots else self._runtime.find_holders(executors, roots, now_ns)
        return [self._row_of(tree, found.get(tree.root_id or 0, []), now_ns) for tree in trees]

    def _row_of(self, tree: UnfinishedTree, holders: list[Holder], now_ns: int) -> tuple[dict[str, Any], list[Holder]]:
        held = [] if self._sampler is None or tree.root_id is None else self._sampler.traces.held_tuples(tree.root_id)
        if held:  # A trace knows every edge; what was found in the executors says more of how it is held.
            how = {(each.component, each.task): each.how for each in holders}
            places = dict.fromkeys((each.component, each.task) for each in held)
            holders = [Holder(name, task, how.get((name, task), "held")) for name, task in places]
        row = {
            "id": shown_id(tree.tup_id),
            "root_id": None if tree.root_id is None else str(tree.root_id),
            "spout": tree.component,
            "task": tree.task,
            "attempt": tree.attempt,
            "age_ms": max(0, (now_ns - tree.emitted_ns) // _NS_PER_MS),
            "waits": tree.root_id is None,
            "due_at_ms": None
            if tree.root_id is not None
            else (time.time_ns() + tree.emitted_ns - now_ns) // _NS_PER_MS,
            "holders": holder_rows(holders),
            "edges": [
                {"from": each.from_component, "to": each.component, "task": each.task, "held_ms": each.held_ms}
                for each in held[:_EDGES_MAX]
            ],
        }
        return row, holders

    def find(self, text: str) -> list[dict[str, Any]]:
        """Return the open trees, failures and dead letters of a message id."""
        executors, now_ns = self._runtime.lifecycle.executors, self._runtime.clock.now_ns()
        trees = [] if executors is None else find_trees(executors, text)
        found = [
            {"what": "open", **row}
            for row, _ in self._rows_of(executors, trees, now_ns, {tree.root_id for tree in trees})
        ]
        failures = [each for each in self._failures.failures() if is_named(each.tup_id, text)]
        found += [{"what": "failure", **self._failure_row(each)} for each in failures]
        letters = [each for each in self._failures.dead_letters() if is_named(each.tup_id, text)]
        return found + [{"what": "dead letter", **self._letter_row(each)} for each in letters]

    # Failures, dead letters, events.

    def _failure_row(self, failure: Failure) -> dict[str, Any]:
        return failure_row(failure) | self._held_by(failure)

    def _held_by(self, ended: Failure | DeadLetter) -> dict[str, Any]:
        """Return where a tree was that has timed out: nobody else says so."""
        is_late = ended.reason.kind is ReasonKind.TIMED_OUT
        return {"held_by": holder_rows(self._seen_holders.of(ended.root_id) if is_late else ())}

    def _letter_row(self, letter: DeadLetter) -> dict[str, Any]:
        row = letter_row(letter) | self._held_by(letter)
        return {**row, "values": shown_values(letter.values)} if self._values else row

    def _dead_letters(self, executors: ExecutorSet | None, total: int) -> dict[str, Any]:
        letters = self._failures.dead_letters()
        held = sum(each.can_replay for each in letters)
        stay = {each.component for each in letters if not each.can_replay}
        tasks = () if executors is None or not stay else executors.spout_tasks()
        notes = {task.collector.component: task.spout._no_replay for task in tasks}
        return {
            "total": total,
            "held": held,
            "can_replay": held > 0,
            "values": self._values,
            "rows": [self._letter_row(each) for each in letters[:ROWS_MAX]],
            "note": " ".join(f"{name}: {note}" for name, note in notes.items() if name in stay and note),
        }

    def _note_events(self, stats: RuntimeStats) -> None:
        lifecycle = self._runtime.lifecycle
        state = "paused" if stats.state == "running" and lifecycle.is_paused else stats.state
        if state != self._seen_state:
            self._seen_state = state
            crash = lifecycle.last_crash if state == "restarting" else lifecycle.error if state == "stopped" else None
            self._note(_STATES[state] if crash is None else f"{_STATES[state]} after {exception_text(crash)}")
        stalls = list(lifecycle.stalls)
        for text in stalls[self._seen_stalls :]:
            self._note(text)
        self._seen_stalls = len(stalls)

    def _note(self, text: str) -> None:
        self._events.append({"at_ms": time.time_ns() // _NS_PER_MS, "text": text})
