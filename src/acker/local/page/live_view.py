"""A topology on the live page: its figures, the trees that are stuck, the last failures, and actions."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from acker.errors import exception_text
from acker.local.calls import stacks_of
from acker.local.page.actions import Observed, RuntimeActions
from acker.local.page.components_view import ComponentsView
from acker.local.page.open_trees import OLD_MAX, MessageNames, UnfinishedTree, count_older, find_trees, oldest_trees
from acker.local.tracing import Sampler
from acker.local.wiring import ExecutorSet
from acker.observe.calls import UserCall, hangs
from acker.observe.failures import FailureLog, shown_id
from acker.observe.headline import Away, GivenUp, RunningJob, Situation, headline, stuck_ms
from acker.observe.holders import Holder, SeenHolders
from acker.observe.readings import RECENT_HINT, ROWS_MAX, FailureRows, call_rows, long_ms, open_tree_row, reading
from acker.observe.stats import RuntimeStats
from acker.observe.timeout_advice import TooShort
from acker.topology.bolt import BatchingBolt
from acker.topology.methods import line_of_work
from acker.topology.windowed import WindowedBolt
from acker.ui.actions import log_level
from acker.ui.flames import Flames, Stack
from acker.ui.source import Action

_NS_PER_MS: Final = 1_000_000

_EVENTS_MAX: Final = 100
_EDGES_MAX: Final = 50
# Younger trees move on before somebody reads who holds them.
_LOOK_MS: Final = 1_000
_ON_WORKERS: Final = (
    "Bolts run in Spark's workers, which send the stack of a call only once it runs long: no flame graph of them here."
)
_STATES: Final = {
    "new": "starting",
    "running": "running",
    "paused": "paused",
    "restarting": "restarting",
    "draining": "stopping",
    "stopped": "stopped",
}

_CALLS_WITH_OUTCOMES: Final = frozenset({"ack()", "fail()", "ack_batch()", "fail_batch()", "dead_letter()"})


class RuntimeView:
    """The live page's source for a topology.

    Parameters
    ----------
    runtime : LocalRuntime
    failures : FailureLog
        Recorded by the runtime's spouts.
    sampler : Sampler or None
    values : bool
        Whether values are shown.
    """

    def __init__(self, runtime: Observed, failures: FailureLog, sampler: Sampler | None, *, values: bool) -> None:
        self.name = runtime.graph.name
        self._runtime = runtime
        self._failures = failures
        self._sampler = sampler
        self._components = ComponentsView(runtime.graph)
        self._timeout_ms = round(runtime.conf["topology.message.timeout.secs"] * 1_000)
        self._events: deque[dict[str, Any]] = deque(maxlen=_EVENTS_MAX)
        self._seen_state, self._seen_stalls = "", 0
        self._seen_holders = SeenHolders()
        self._messages = MessageNames(lambda: runtime.lifecycle.executors)
        self._failure_rows = FailureRows(failures, values=values, seen=self._seen_holders)
        self._flames = Flames(self._stacks_of, self._sampled, self._not_sampled)
        by_name = RuntimeActions(runtime, failures).by_name
        self.actions: Mapping[str, Action] = {**by_name, "sample": self._flames.sample}

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
        calls = {} if executors is None else self._named(self._runtime.find_calls(executors, now_ns))
        job = self._runtime.find_job(now_ns)
        self._mark_busy(parts["graph"]["nodes"], calls, job)
        rows = self._rows_of(executors, trees, calls, now_ns, old)
        for row, holders in rows:
            if holders and row["root_id"] is not None:
                self._seen_holders.note(int(row["root_id"]), holders)
        totals = parts["totals"]
        old_ms = stuck_ms(self._timeout_ms, self._components.recent.all_latencies("complete"))
        stuck = 0 if executors is None else count_older(executors, now_ns - old_ms * _NS_PER_MS)
        self._note_events(stats)
        situation = self._situation(stats, totals, stuck, old_ms, rows[0] if rows else None)._replace(
            job=job,
            hung=self._hung(stats, calls),
            away=self._away(executors),
            limit=self._components.limit(parts["graph"]["nodes"], executors),
            too_short=self._too_short(parts["graph"]["nodes"], totals["pending"], executors),
        )
        return reading(
            "topology",
            self.name,
            stats.state,
            headline(situation) if stats.state != "stopped" else self._runtime.report().headline,
            paused=lifecycle.is_paused,
            uptime_secs=round(stats.uptime_secs, 3),
            restarts=stats.restarts,
            tiles_hint=RECENT_HINT,
            timeout_ms=self._timeout_ms,
            calls=call_rows(calls.values(), self._timeout_ms),
            open_trees={"total": totals["pending"], "stuck": stuck, "rows": [row for row, _ in rows]},
            failures=self._failure_rows.failures(),
            dead_letters=self._failure_rows.dead_letters(totals["dead_letters"], self._why_not_replayed(executors)),
            events=list(reversed(self._events)),
            tables=self._runtime.more_tables(),
            flames=self._flames.to_json(),
            actions=list(self.actions) if stats.state != "stopped" else [],
            log_level=log_level(),
            **parts,
        )

    def _situation(
        self,
        stats: RuntimeStats,
        totals: Mapping[str, Any],
        stuck: int,
        stuck_from_ms: int,
        oldest: tuple[dict[str, Any], list[Holder]] | None,
    ) -> Situation:
        lifecycle = self._runtime.lifecycle
        error = lifecycle.last_crash
        return Situation.of_last_seconds(
            stats.state,
            self._components.recent,
            self._failures,
            paused=lifecycle.is_paused,
            error=None if error is None else exception_text(error).rstrip("."),
            seen=self._seen_holders,
            timeout_ms=self._timeout_ms,
            stuck=stuck,
            stuck_from_ms=stuck_from_ms,
            # Beyond that many it is not known how many are stuck.
            younger=max(0, totals["pending"] - stuck) if stuck < OLD_MAX else 0,
            oldest_ms=None if oldest is None else oldest[0]["age_ms"],
            holders=() if oldest is None else oldest[1],
            pending=totals["pending"],
            lost=sum(totals[name] for name in ("failed", "timed_out", "rejected")),
            letters=GivenUp.of(totals["dead_letters"], self._failures),
        )

    def _mark_busy(
        self, nodes: Iterable[dict[str, Any]], calls: Mapping[int, UserCall], job: RunningJob | None
    ) -> None:
        """Mark the bolts of a micro-batch that runs, which tell their figures at its end: busy, or not known."""
        if job is None or job.for_ms < _LOOK_MS:
            return
        in_calls = {self._runtime.graph.component_of(task) for task in calls}
        for node in nodes:
            if node["kind"] == "bolt" and not node.get("busy"):
                node["busy"] = 1.0 if node["name"] in in_calls else None

    @staticmethod
    def _away(executors: ExecutorSet | None) -> Away | None:
        for task in () if executors is None else executors.spout_tasks():
            if (away := task.spout._away) is not None:
                name, since, error = away
                return Away(name, round(1_000 * (time.monotonic() - since)), error)
        return None

    def _too_short(self, nodes: list[dict[str, Any]], pending: int, executors: ExecutorSet | None) -> TooShort | None:
        """Return that trees time out although some are acked, or although calls only take long.

        On Spark they do so at the end of their micro-batch, whatever the timeout is.
        """
        recent = self._components.recent
        timed_out, acked = round(recent.growth("timed out")), round(recent.growth("acked"))
        if not timed_out or not recent.seconds or executors is None or not executors.bolts_are_here:
            return None
        slow = [(node["latency"]["p50_ms"] or 0, node["name"]) for node in nodes if "latency" in node]
        call_ms, where = max(slow, default=(0, None))
        found = TooShort(timed_out, recent.seconds, self._timeout_ms / 1_000, pending, acked, "tree")
        if call_ms > self._timeout_ms:
            return found._replace(where=where, call_ms=call_ms)
        return found if acked else None

    def _named(self, calls: Mapping[int, UserCall]) -> dict[int, UserCall]:
        """Return calls with the messages of those that run long."""
        least_ms = long_ms(self._timeout_ms)
        return {task: self._with_message(call) if call.for_ms >= least_ms else call for task, call in calls.items()}

    def _with_message(self, call: UserCall) -> UserCall:
        message = None if call.root_id is None else self._messages.of(call.root_id)
        return call if message is None else replace(call, what=f"{call.what} ({message})")

    def _hung(self, stats: RuntimeStats, calls: Mapping[int, UserCall]) -> list[UserCall]:
        """Return the calls that hang, the longest first."""
        components, graph = stats.components() if calls else {}, self._runtime.graph

        def is_hung(task: int, call: UserCall) -> bool:
            node = graph.nodes[graph.component_of(task)]
            row = components.get(node.name)
            if node.kind == "spout":
                # A spout may wait for what comes in. But outcomes of its open trees wait for it meanwhile. A tree whose
                # outcome it hears of is not open any more.
                is_idle = stats.state == "running" and row is not None and not row.pending
                is_waiting = is_idle and call.what not in _CALLS_WITH_OUTCOMES
                return not is_waiting and hangs(call.for_ms, None, self._timeout_ms)
            # That of the calls which put one tuple into a batch or window says nothing of those that process all.
            has_tuple = call.what is not None and not call.what.endswith("()")
            gathers = not has_tuple or issubclass(node.component, (BatchingBolt, WindowedBolt))
            median_ms = None if row is None else row.execute_latency.quantile_ms(0.5)
            return hangs(call.for_ms, None if gathers else median_ms or call.usual_ms, self._timeout_ms)

        # Of the tasks of one executor that are in no `process`, one stands for all.
        found = {id(call.stack) if call.stack else task: call for task, call in calls.items() if is_hung(task, call)}
        return sorted(found.values(), key=lambda call: -call.for_ms)

    # Trees.

    def _rows_of(
        self,
        executors: ExecutorSet | None,
        trees: list[UnfinishedTree],
        calls: Mapping[int, UserCall],
        now_ns: int,
        of: set[int | None],
    ) -> list[tuple[dict[str, Any], list[Holder]]]:
        """Return the rows of trees, and the holders of those whose root ids are `of`."""
        roots = [tree.root_id for tree in trees if tree.root_id is not None and tree.root_id in of]
        found = {} if executors is None or not roots else self._runtime.find_holders(executors, roots, calls, now_ns)
        return [self._row_of(tree, found.get(tree.root_id or 0, []), now_ns) for tree in trees]

    def _row_of(self, tree: UnfinishedTree, holders: list[Holder], now_ns: int) -> tuple[dict[str, Any], list[Holder]]:
        held = [] if self._sampler is None or tree.root_id is None else self._sampler.traces.held_tuples(tree.root_id)
        if held:  # A trace knows every edge; what was found in the executors says more of how it is held.
            known = {(each.component, each.task): each for each in holders}
            tasks = dict.fromkeys((each.component, each.task) for each in held)
            holders = [known.get(each) or self._keeper(*each) for each in tasks]
        row = open_tree_row(
            shown=shown_id(tree.tup_id),
            root_id=tree.root_id,
            spout=tree.component,
            task=tree.task,
            attempt=tree.attempt,
            age_ms=max(0, (now_ns - tree.emitted_ns) // _NS_PER_MS),
            due_at_ms=(time.time_ns() + tree.emitted_ns - now_ns) // _NS_PER_MS if tree.root_id is None else None,
            holders=holders,
            edges=[
                {"from": each.from_component, "to": each.component, "task": each.task, "held_ms": each.held_ms}
                for each in held[:_EDGES_MAX]
            ],
        )
        return row, holders

    def _keeper(self, component: str, task: int) -> Holder:
        return Holder(component, task, "held", line=line_of_work(self._runtime.graph.nodes[component].component))

    def find(self, text: str) -> list[dict[str, Any]]:
        """Return the open trees, failures and dead letters of a message id."""
        executors, now_ns = self._runtime.lifecycle.executors, self._runtime.clock.now_ns()
        trees = [] if executors is None else find_trees(executors, text)
        calls = {} if executors is None else self._runtime.find_calls(executors, now_ns)
        found = [
            {"what": "open", **row}
            for row, _ in self._rows_of(executors, trees, calls, now_ns, {tree.root_id for tree in trees})
        ]
        return found + self._failure_rows.find(text)

    # Flame graphs.

    def _sampled(self) -> list[str]:
        executors = self._runtime.lifecycle.executors
        if executors is None:
            return []
        here = executors if executors.bolts_are_here else executors.spouts
        names = {each.tasks[0].collector.component for each in here}
        return [name for name in self._runtime.graph.nodes if name in names]

    def _not_sampled(self) -> str:
        executors = self._runtime.lifecycle.executors
        return "" if executors is None or executors.bolts_are_here else _ON_WORKERS

    def _stacks_of(self, component: str) -> list[Stack]:
        executors = self._runtime.lifecycle.executors
        return [] if executors is None else stacks_of(executors, component)

    # Dead letters and events.

    def _why_not_replayed(self, executors: ExecutorSet | None) -> str:
        """Return why some dead letters cannot be replayed from here, and where they lie."""
        stay = {each.component for each in self._failures.dead_letters() if not each.can_replay}
        tasks = () if executors is None or not stay else executors.spout_tasks()
        notes = {task.collector.component: task.spout._no_replay for task in tasks}
        return " ".join(f"{name}: {note}" for name, note in notes.items() if name in stay and note)

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
