"""A consumer on the live page: its messages and where they wait, the last failures and dead letters."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from acker._engine.protocol import Kind
from acker.connectors.attempts import Attempt
from acker.connectors.consumer_stats import ConsumerStats
from acker.connectors.dead_letters import why_no_replay
from acker.connectors.handles import MessageTree, Row
from acker.connectors.message_store import MessageStore
from acker.connectors.open_messages import describe_open
from acker.connectors.options import BROKER, MessageOptions
from acker.errors import exception_text
from acker.observe.failures import DeadLetter, Failure, shortened, shown_values
from acker.observe.headline import Situation, headline
from acker.observe.holders import Holder
from acker.observe.latencies import milliseconds
from acker.observe.rates import Reading, RecentFigures
from acker.observe.readings import ROWS_MAX, chart, common_reasons, failure_row, letter_row
from acker.ui.actions import set_log_level
from acker.ui.source import Action, ActionError

_COUNTS: Final = ("acked", "failed", "timed_out", "dead_letters")
_PLACES_MAX: Final = 8


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
    post : callable
        Sends a row to the acker.
    timeout_secs : float
    values : bool
        Whether bodies of dead letters are shown.
    """

    def __init__(
        self,
        name: str,
        store: MessageStore,
        options: MessageOptions,
        stats: Callable[[], ConsumerStats],
        post: Callable[[Row], None],
        timeout_secs: float,
        *,
        values: bool,
    ) -> None:
        self.name = name
        self.actions: Mapping[str, Action] = {"fail": self._fail, "log-level": set_log_level}
        self.stats = stats
        assert store.failures is not None  # since there is a page
        self._store = store
        self._options = options
        self._post = post
        self._timeout_ms = round(1000 * timeout_secs)
        self._failures = store.failures
        self._values = values
        self._recent = RecentFigures()

    def metrics(self) -> bytes:
        """Return the figures in Prometheus's text format."""
        from acker.observe.prometheus import exposition

        return exposition(self)

    def view(self) -> dict[str, Any]:
        """Return what the page shows now."""
        stats = self.stats()
        self._recent.take(self._reading(stats))
        attempts = self._store.oldest()
        rows = [self._row_of(attempt) for attempt in attempts[:ROWS_MAX]]
        limit_ns = time.monotonic_ns() - self._timeout_ms * 1_000_000 // 2
        stuck = sum(attempt.since_ns <= limit_ns for attempt in attempts)
        failures = self._failures.failures()
        return {
            "kind": "consumer",
            "name": self.name,
            "state": stats.state,
            "paused": False,
            "uptime_secs": round(stats.uptime_secs, 3),
            "restarts": stats.reconnects,
            "timeout_ms": self._timeout_ms,
            "headline": headline(self._situation(stats, stuck, rows, failures)),
            "totals": {name: getattr(stats, name) for name in (*_COUNTS, "late", "pending", "oldest_age_ms")},
            "tiles": self._tiles(stats),
            "graph": self._graph(stats),
            "charts": self._charts(stats),
            "open_trees": {"total": len(attempts), "stuck": stuck, "rows": rows},
            "failures": {"rows": [failure_row(each) for each in failures[:ROWS_MAX]], **common_reasons(failures)},
            "dead_letters": self._dead_letters(stats.dead_letters),
            "events": [],
            "tables": [],
            "actions": list(self.actions) if stats.state != "stopped" else [],
            "log_level": logging.getLevelName(logging.getLogger("acker").getEffectiveLevel()),
        }

    @staticmethod
    def _reading(stats: ConsumerStats) -> Reading:
        counts = {name: getattr(stats, name) for name in _COUNTS} | {"delivered": stats.delivered}
        return Reading(
            time.monotonic_ns(),
            {**counts, "not acked": stats.failed + stats.timed_out},
            {"complete": stats.complete_latency},
        )

    def _situation(
        self, stats: ConsumerStats, stuck: int, rows: list[dict[str, Any]], failures: list[Failure]
    ) -> Situation:
        recent, error = self._recent, self._store.error
        holders = [Holder(each["component"], 0, "held") for each in rows[0]["holders"]] if rows else []
        return Situation(
            state=stats.state,
            error=None if error is None else exception_text(error),
            stuck=stuck,
            oldest_ms=rows[0]["age_ms"] if rows else None,
            holders=holders,
            pending=stats.pending,
            acked_a_second=recent.rate("acked"),
            p99_ms=milliseconds(recent.latency("complete").quantile(0.99)),
            failed=round(recent.growth("not acked")) if stats.state == "running" else 0,
            reason=str(failures[0].reason) if failures else None,
            noun="message",
        )

    def _tiles(self, stats: ConsumerStats) -> list[dict[str, Any]]:
        latency = self._recent.latency("complete")
        p99 = milliseconds(latency.quantile(0.99))
        more = {"timed out": stats.timed_out, "retried": stats.retried, "revoked": stats.revoked, "late": stats.late}
        told = ", ".join(f"{count:,} {name}" for name, count in more.items() if count)
        oldest = None if stats.oldest_age_ms is None else stats.oldest_age_ms
        return [
            {"name": "Acked", "value": stats.acked, "more": self._recent.rate("acked"), "more_unit": "/s"},
            {"name": "Time to the ack", "value": p99, "unit": "ms", "more": "99 of 100 are faster"},
            {"name": "In this process", "value": stats.pending, "more": oldest, "more_unit": "ms"},
            {
                "name": "Not acked",
                "value": stats.failed + stats.timed_out,
                "more": told or "none failed",
                "is_bad": True,
            },
            {"name": "Dead letters", "value": stats.dead_letters, "more": "given up", "is_bad": True},
            {"name": "Reconnects", "value": stats.reconnects, "more": "to the broker", "is_bad": True},
        ]

    def _graph(self, stats: ConsumerStats) -> dict[str, Any]:
        options, recent = self._options, self._recent
        delivered = recent.rate("delivered")
        source = {"kind": "spout", "tasks": 1, "emitted": stats.delivered, "pending": stats.pending}
        here = {
            "name": "this process",
            "kind": "bolt",
            "tasks": 1,
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
            place = self._store.name if options.publisher is None else options.publisher.name
            name = f"dead letters of {place}" if options.dead_letters == BROKER else place
            nodes.append({"name": name, "kind": "bolt", "tasks": 1, "rate": recent.rate("dead_letters")})
            edges.append(_edge("this process", name, "dead letters", recent.rate("dead_letters")))
        return {"nodes": nodes, "edges": edges}

    def _charts(self, stats: ConsumerStats) -> list[dict[str, Any]]:
        recent = self._recent
        latency = recent.latency("complete", at_once=True)
        p50, p99 = (milliseconds(latency.quantile(q)) for q in (0.5, 0.99))
        rates = {name: recent.rate(name, at_once=True) for name in ("acked", "delivered", "not acked")}
        return [
            chart("throughput", "Throughput", "messages/s", acked=rates["acked"], delivered=rates["delivered"]),
            chart("complete", "Time to the ack", "ms", p50=p50, p99=p99),
            chart("pending", "In this process", "messages", messages=stats.pending),
            chart("not_acked", "Failed or timed out", "messages/s", messages=rates["not acked"]),
        ]

    def _row_of(self, attempt: Attempt) -> dict[str, Any]:
        (known,) = describe_open([attempt])
        parts = "1 open part" if known.parts == 1 else f"{known.parts:,} open parts"
        places = list(dict.fromkeys(known.made_in))[:_PLACES_MAX] or ["your code"]
        text = f"has it: {parts}" if not known.made_in else "made a part that is open"
        return {
            "id": shortened(known.key),
            "root_id": str(attempt.message_id),
            "spout": self._store.name,
            "task": 1,
            "attempt": known.attempt,
            "age_ms": round(1000 * known.age_secs),
            "waits": False,
            "holders": [
                {"component": place, "task": None, "how": "held", "for_ms": None, "text": text} for place in places
            ],
            "edges": [],
        }

    def _dead_letters(self, total: int) -> dict[str, Any]:
        letters = self._failures.dead_letters()
        return {
            "total": total,
            "held": 0,
            "can_replay": False,
            "values": self._values,
            "rows": [self._letter_row(each) for each in letters[:ROWS_MAX]],
            "note": why_no_replay(self._options) or "",
        }

    def _letter_row(self, letter: DeadLetter) -> dict[str, Any]:
        row = letter_row(letter)
        return {**row, "values": shown_values(letter.values)} if self._values else row

    def find(self, text: str) -> list[dict[str, Any]]:
        """Return the open messages, failures and dead letters of a key."""
        attempts = [each for each in self._store.oldest() if each.delivery.key == text]
        found = [{"what": "open", **self._row_of(each)} for each in attempts[:ROWS_MAX]]
        found += [{"what": "failure", **failure_row(each)} for each in self._failures.failures() if each.tup_id == text]
        letters = [each for each in self._failures.dead_letters() if each.tup_id == text]
        return found + [{"what": "dead letter", **self._letter_row(each)} for each in letters]

    def _fail(self, arguments: Mapping[str, Any]) -> str:
        number = str(arguments.get("root_id"))
        attempt = next((each for each in self._store.oldest() if str(each.message_id) == number), None)
        tree: MessageTree | None = None if attempt is None else attempt.tree
        if attempt is None or tree is None:
            raise ActionError("this message is not open any more")
        with tree.lock:
            tree.reason = tree.reason or "failed by hand, from the live page"
        self._post((int(Kind.FAIL), tree.root_id, 0, 0, 0))
        return f"failed {shortened(attempt.delivery.key)}"


def _edge(source: str, target: str, what: str, rate: float | None) -> dict[str, Any]:
    return {"from": source, "to": target, "streams": [what], "rate": rate}
