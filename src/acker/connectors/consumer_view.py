"""A consumer on the live page: its messages and where they wait, the last failures and dead letters."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from acker.connectors.attempts import Attempt
from acker.connectors.calls import AttemptCall, RunningCalls
from acker.connectors.consumer_stats import ConsumerStats
from acker.connectors.dead_letters import why_no_replay
from acker.connectors.handles import MessageTree
from acker.connectors.message_store import MessageStore
from acker.connectors.open_messages import OpenMessage, describe_open
from acker.connectors.options import BROKER, MessageOptions
from acker.connectors.steps import Steps
from acker.errors import exception_text
from acker.observe.calls import Busy, UserCall, hangs
from acker.observe.durations import format_duration
from acker.observe.failures import is_named, shortened, shown_id
from acker.observe.headline import Away, GivenUp, Limit, Situation, headline, stuck_ms
from acker.observe.holders import Holder, SeenHolders
from acker.observe.rates import Reading, RecentFigures
from acker.observe.readings import (
    RECENT_HINT,
    ROWS_MAX,
    FailureRows,
    call_rows,
    chart,
    latency_chart,
    open_tree_row,
    reading,
    tile,
)
from acker.observe.reasons import ReasonKind
from acker.observe.timeout_advice import TooShort
from acker.ui.actions import log_level, set_log_level
from acker.ui.flames import Flames, Stack
from acker.ui.source import Action, ActionError

if TYPE_CHECKING:
    from acker.remote.ledger import OpenJob

_COUNTS: Final = ("acked", "failed", "timed_out", "dead_letters")
# How many holders of a message are named.
_HOLDERS_MAX: Final = 8
# How many calls are sampled at a time for a flame graph.
_SAMPLED_MAX: Final = 1_000
# The limit was reached when that was so at so many readings in a row.
_LIMITED_READINGS: Final = 3
_GRAPH_HINT: Final = "A number on an edge is messages a second. The bar of this process fills up to open_max messages."


class ConsumerView:
    """The live page's source for a consumer.

    Parameters
    ----------
    name : str
    store : MessageStore
        It also records failures and dead letters.
    options : MessageOptions
    stats : callable
        Returns the figures of this moment.
    timeout_secs : float
    calls : RunningCalls
    steps : Steps
    away : callable
        Returns since when the source cannot be reached, as `IoThread.away`.
    values : bool
        Whether bodies of dead letters are shown.
    """

    def __init__(
        self,
        name: str,
        store: MessageStore,
        options: MessageOptions,
        stats: Callable[[], ConsumerStats],
        timeout_secs: float,
        calls: RunningCalls,
        steps: Steps,
        away: Callable[[], tuple[float, str] | None],
        *,
        values: bool,
    ) -> None:
        self.name = name
        self._flames = Flames(self._stacks_of, lambda: [name])
        self.actions: Mapping[str, Action] = {
            "fail": self._fail,
            "log-level": set_log_level,
            "sample": self._flames.sample,
        }
        self.stats = stats
        assert store.failures is not None  # since there is a page
        self._store = store
        self._options = options
        self._calls = calls
        self._steps = steps
        self._away = away
        self._limited = 0
        self._timeout_ms = round(1000 * timeout_secs)
        self._failures = store.failures
        self._seen = SeenHolders()
        self._failure_rows = FailureRows(store.failures, values=values, seen=self._seen)
        self._recent = RecentFigures()
        # What ends before the first look is recent, too.
        self._recent.take(Reading(time.monotonic_ns(), {}, {}))

    def metrics(self) -> bytes:
        """Return the figures in Prometheus's text format."""
        from acker.observe.prometheus import exposition

        return exposition(self)

    def view(self) -> dict[str, Any]:
        """Return what the page shows now."""
        stats = self.stats()
        self._recent.take(self._reading(stats))
        attempts, now_ns = self._store.oldest(), time.monotonic_ns()
        calls = self._calls.of(attempts, now_ns)
        self._steps.look(call for _, call in calls)
        rows = []
        for attempt, known in zip(attempts, describe_open(attempts[:ROWS_MAX]), strict=False):
            holders = self._holders_of(known, _of(attempt, calls))
            if known.parts:  # Else it has just ended.
                self._seen.note(attempt.message_id, holders)
            rows.append(self._row_of(attempt, known, holders))
        old_ms = stuck_ms(self._timeout_ms, stats.complete_latency)
        stuck = sum(attempt.since_ns <= now_ns - 1_000_000 * old_ms for attempt in attempts)
        return reading(
            "consumer",
            self.name,
            stats.state,
            headline(self._situation(stats, stuck, old_ms, attempts, calls)),
            uptime_secs=round(stats.uptime_secs, 3),
            restarts=stats.reconnects,
            timeout_ms=self._timeout_ms,
            totals={name: getattr(stats, name) for name in (*_COUNTS, "late", "pending", "oldest_age_ms")},
            tiles=self._tiles(stats),
            tiles_hint=RECENT_HINT,
            graph=self._graph(stats),
            charts=self._charts(stats),
            calls=call_rows((call for _, call in calls), self._timeout_ms),
            open_trees={"total": len(attempts), "stuck": stuck, "rows": rows, **self._over_rows(calls)},
            failures=self._failure_rows.failures(),
            dead_letters=self._failure_rows.dead_letters(stats.dead_letters, why_no_replay(self._options) or ""),
            events=[],
            flames=self._flames.to_json(),
            actions=list(self.actions) if stats.state != "stopped" else [],
            log_level=log_level(),
        )

    @staticmethod
    def _reading(stats: ConsumerStats) -> Reading:
        counts = {name: getattr(stats, name) for name in _COUNTS} | {"delivered": stats.delivered}
        return Reading(
            time.monotonic_ns(),
            {**counts, "not acked": stats.failed + stats.timed_out},
            {"complete": stats.complete_latency},
        )

    def _stacks_of(self, _: str) -> list[Stack]:
        """Return the stacks of all calls that run for messages, in pools, handlers, coroutines and loops."""
        return [call.stack for _, call in self._calls.of(self._store.oldest(), time.monotonic_ns(), _SAMPLED_MAX)]

    def _over_rows(self, calls: Sequence[AttemptCall]) -> dict[str, Any]:
        """Return the calls whose message is over, which no row of an open message can show."""
        over = [call for _, call in calls if call.over is not None]
        return {"over": len(over), "over_calls": [str(call) for call in over[:_HOLDERS_MAX]]}

    def _situation(
        self,
        stats: ConsumerStats,
        stuck: int,
        stuck_from_ms: int,
        attempts: list[Attempt],
        calls: Sequence[AttemptCall],
    ) -> Situation:
        error, oldest = self._store.error, describe_open(attempts[:1])
        busy, away = self._calls.busy(attempts), self._away()
        usual_ms = stats.complete_latency.quantile_ms(0.5)

        def is_long(for_ms: int) -> bool:
            return hangs(for_ms, usual_ms, self._timeout_ms)

        return Situation.of_last_seconds(
            stats.state,
            self._recent,
            self._failures,
            away=None if away is None else Away(self._store.name, round(1_000 * (time.monotonic() - away[0])), away[1]),
            hung=[call for _, call in calls if is_long(call.for_ms)],
            hangs=is_long,
            too_short=self._too_short(stats, attempts),
            limit=self._limit(stats, len(attempts), busy),
            lost=stats.failed + stats.timed_out,
            letters=GivenUp.of(stats.dead_letters, self._failures),
            error=None if error is None else exception_text(error).rstrip("."),
            seen=self._seen,
            timeout_ms=self._timeout_ms,
            stuck=stuck,
            stuck_from_ms=stuck_from_ms,
            younger=len(attempts) - stuck,
            oldest_ms=_age_ms(oldest[0]) if oldest else None,
            holders=self._holders_of(oldest[0], _of(attempts[0], calls)) if oldest else (),
            busy=busy,
            longest=next((call for _, call in calls if call.over == ReasonKind.TIMED_OUT.value), None),
            pending=stats.pending,
            noun="message",
        )

    def _too_short(self, stats: ConsumerStats, attempts: list[Attempt]) -> TooShort | None:
        recent, acked = self._recent, round(self._recent.growth("acked"))
        timed_out = round(recent.growth("timed_out"))
        if not (timed_out and acked and recent.seconds):
            return None
        some_wait = self._calls.some_wait(attempts, stats.pending - self._store.retrying)
        timeout_secs = self._timeout_ms / 1_000
        return TooShort(timed_out, recent.seconds, timeout_secs, stats.pending, acked, some_wait=some_wait)

    def _limit(self, stats: ConsumerStats, handed_out: int, busy: Busy) -> Limit | None:
        """Return what has been at its limit at the last readings: the threads of pools, or the open messages."""
        limit = Limit(stats.pending, self._options.open_max, waiting=stats.pending - handed_out)
        if 0 < busy.threads_max <= busy.threads and busy.waiting:
            limit = limit._replace(threads=busy.threads, waiting=busy.waiting)
        elif 0 < busy.threads_max <= busy.threads and limit.waiting > 0:
            limit = limit._replace(threads=busy.threads, where="the handler")
        self._limited = self._limited + 1 if limit.is_full or limit.threads else 0
        if self._limited < _LIMITED_READINGS:
            return None
        retrying = self._store.retrying
        if not limit.threads and 2 * retrying >= limit.pending:
            why = next(iter(self._failures.reasons.most_frequent()), "see the last failures")
            return limit._replace(mend=f"{retrying:,} of them have failed, and wait for another attempt: {why}")
        step = self._steps.slowest()
        if step is None:
            return limit
        call_ms = step.call_ms
        if call_ms is None and not limit.threads:
            # Of loops and coroutines the time of each call is not known; their messages wait for nothing else.
            call_ms = self._recent.latency("complete").quantile_ms(0.5)
        return limit if call_ms is None else limit._replace(line=step.line, call_ms=call_ms)

    def _tiles(self, stats: ConsumerStats) -> list[dict[str, Any]]:
        p99 = self._recent.latency("complete").quantile_ms(0.99)
        more = {"timed out": stats.timed_out, "retried": stats.retried, "revoked": stats.revoked, "late": stats.late}
        told = ", ".join(f"{count:,} {name}" for name, count in more.items() if count)
        oldest = "" if stats.oldest_age_ms is None else f"oldest {format_duration(stats.oldest_age_ms)}"
        return [
            tile("Acked", stats.acked, more=self._recent.rate("acked"), more_unit="/s"),
            tile("Time to the ack", p99, "ms", "99 of 100 are faster"),
            tile("In this process", stats.pending, more=oldest),
            tile("Not acked", stats.failed + stats.timed_out, more=told or "none failed", is_bad=True),
            tile("Dead letters", stats.dead_letters, more="messages given up", is_bad=True),
            tile("Reconnects", stats.reconnects, more="new connections to the broker", is_bad=True),
        ]

    def _graph(self, stats: ConsumerStats) -> dict[str, Any]:
        options, recent = self._options, self._recent
        delivered = recent.rate("delivered")
        source = {"kind": "spout", "emitted": stats.delivered, "pending": stats.pending}
        here = {
            "name": "this process",
            "kind": "bolt",
            "rate": recent.rate("acked"),
            "executed": stats.delivered,
            "acked": stats.acked,
            "failed": stats.failed,
            "queue": stats.pending,
            "queue_capacity": options.open_max,
        }
        nodes = [{"name": self._store.name, "rate": delivered, **source}, here]
        edges = [_edge(self._store.name, "this process", "deliveries", delivered)]
        if options.dead_letters is not None:
            target = self._store.name if options.publisher is None else options.publisher.name
            name = f"dead letters of {target}" if options.dead_letters == BROKER else target
            nodes.append({"name": name, "kind": "bolt", "rate": recent.rate("dead_letters")})
            edges.append(_edge("this process", name, "dead letters", recent.rate("dead_letters")))
        return {"hint": _GRAPH_HINT, "nodes": nodes, "edges": edges}

    def _charts(self, stats: ConsumerStats) -> list[dict[str, Any]]:
        recent = self._recent
        rates = {name: recent.rate(name, at_once=True) for name in ("acked", "delivered", "not acked")}
        return [
            chart("throughput", "Throughput", "messages/s", acked=rates["acked"], delivered=rates["delivered"]),
            latency_chart("complete", "Time to the ack", recent.latency("complete", at_once=True)),
            chart("pending", "In this process", "messages", messages=stats.pending),
            chart("not_acked", "Failed or timed out", "messages/s", messages=rates["not acked"]),
        ]

    def _row_of(self, attempt: Attempt, known: OpenMessage, holders: list[Holder]) -> dict[str, Any]:
        return open_tree_row(
            shown=shown_id(known.key),
            root_id=attempt.message_id,
            spout=self._store.name,
            task=1,
            attempt=known.attempt,
            age_ms=_age_ms(known),
            holders=holders,
        )

    def _holders_of(self, message: OpenMessage, calls: Sequence[UserCall]) -> list[Holder]:
        """Return what holds a message: the calls that run for it, its open jobs, and where its open parts were made."""
        holders = [*map(_holder_of, calls), *map(_holder_of_job, message.jobs)]
        if message.behind:
            holders.append(Holder(message.behind_text, None, "queue", text="in the order of their key"))
        makers = dict.fromkeys(message.made_in)
        holders += [Holder("your code", None, "held", text="made a part that is open", line=each) for each in makers]
        if holders:
            return holders[:_HOLDERS_MAX]
        parts = "1 open part" if message.parts == 1 else f"{message.parts:,} open parts"
        return [Holder("your code", None, "held", text=f"took it, and has {parts}", line=self._calls.taken_at)]

    def find(self, text: str) -> list[dict[str, Any]]:
        """Return the open messages, failures and dead letters of a key."""
        attempts = [each for each in self._store.oldest() if is_named(each.delivery.key, text)][:ROWS_MAX]
        calls = self._calls.of(attempts, time.monotonic_ns())
        rows = [
            self._row_of(attempt, known, self._holders_of(known, _of(attempt, calls)))
            for attempt, known in zip(attempts, describe_open(attempts), strict=True)
        ]
        return [{"what": "open", **row} for row in rows] + self._failure_rows.find(text)

    def _fail(self, arguments: Mapping[str, Any]) -> str:
        number = str(arguments.get("root_id"))
        attempt = next((each for each in self._store.oldest() if str(each.message_id) == number), None)
        tree: MessageTree | None = None if attempt is None else attempt.tree
        if attempt is None or tree is None:
            raise ActionError("this message is not open any more")
        tree.fail("failed by hand, from the live page")
        return f"failed {shortened(attempt.delivery.key)}"


def _age_ms(message: OpenMessage) -> int:
    return round(1000 * message.age_secs)


def _of(attempt: Attempt, calls: Sequence[AttemptCall]) -> list[UserCall]:
    return [call for each, call in calls if each is attempt]


def _holder_of_job(job: OpenJob) -> Holder:
    maker = f", made by {job.made_by}" if job.made_by else ""
    return Holder(job.name, None, "queue", round(1000 * job.age_secs), f"is a job in another process{maker}")


def _holder_of(call: UserCall) -> Holder:
    line = None if call.line is None else call.line.short
    return Holder(call.who, None, "process", call.for_ms, line=line)


def _edge(source: str, target: str, what: str, rate: float | None) -> dict[str, Any]:
    return {"from": source, "to": target, "streams": [what], "rate": rate}
