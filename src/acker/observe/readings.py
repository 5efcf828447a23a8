"""The readings that the live page is drawn from, and their parts: rows of open trees and failures, charts, tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from acker.observe.calls import UserCall
from acker.observe.failures import DeadLetter, Failure, FailureLog, ReasonGroups, is_named, shown_id, shown_values
from acker.observe.holders import Holder, SeenHolders
from acker.observe.latencies import Histogram
from acker.observe.reasons import Reason, ReasonKind
from acker.observe.stats import ComponentStats

# How many rows of each list are sent.
ROWS_MAX: Final = 50
# Below the tiles of whatever has `RecentFigures`.
RECENT_HINT: Final = "Counts are since the start; rates, times and shares are those of the last ten seconds."
_REASONS_MAX: Final = 5
# How many calls are sent, and from when on they run long, or from half of the timeout on if that is sooner.
_CALLS_MAX: Final = 20
_LONG_MS: Final = 5_000


def reading(kind: str, name: str, state: str, headline: Mapping[str, Any], **parts: Any) -> dict[str, Any]:
    """Return a reading: what a page shows, as values for JSON.

    Parameters
    ----------
    kind : {"topology", "consumer", "stream", "graph"}
    name, state : str
    headline : mapping
        As `acker.observe.headline.headline` returns it.
    **parts
        The other parts. Those that are left out are empty; a list that is None is not shown.
    """
    return {
        "kind": kind,
        "name": name,
        "state": state,
        "headline": headline,
        "paused": False,
        "uptime_secs": None,
        "restarts": 0,
        "timeout_ms": None,
        "graph": {"nodes": [], "edges": []},
        "tiles_hint": "",
        "charts": [],
        "calls": [],
        "open_trees": None,
        "failures": None,
        "dead_letters": None,
        "events": None,
        "tables": [],
        "flames": None,
        "actions": [],
        "log_level": None,
        **parts,
    }


def open_tree_row(
    *,
    shown: str,
    root_id: int | None,
    spout: str,
    task: int,
    attempt: int,
    age_ms: int,
    holders: Iterable[Holder],
    due_at_ms: int | None = None,
    edges: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return an open tree or message as values for JSON.

    Parameters
    ----------
    shown : str
        Its message id.
    root_id : int or None
        None: it waits for its next attempt, which begins at `due_at_ms`.
    edges : sequence of mapping
        Its open tuples, if it is traced.
    """
    return {
        "id": shown,
        "root_id": None if root_id is None else str(root_id),
        "spout": spout,
        "task": task,
        "attempt": attempt,
        "age_ms": age_ms,
        "waits": root_id is None,
        "due_at_ms": due_at_ms,
        "holders": holder_rows(holders),
        "edges": list(edges),
    }


def long_ms(timeout_ms: int) -> int:
    """Return from when on a call runs long."""
    return min(_LONG_MS, timeout_ms // 2)


def call_rows(calls: Iterable[UserCall], timeout_ms: int) -> list[dict[str, Any]]:
    """Return calls of user code that run long as values for JSON, the longest first, with their stacks."""
    least_ms = long_ms(timeout_ms)
    longest = sorted((call for call in calls if call.for_ms >= least_ms), key=lambda call: -call.for_ms)
    return [
        {
            "who": call.who,
            "what": call.what,
            "over": call.over,
            "for_ms": call.for_ms,
            "line": None if call.line is None else call.line.short,
            "stack": list(map(str, call.stack)),
        }
        for call in longest[:_CALLS_MAX]
    ]


class FailureRows:
    """The failures and dead letters of a log as parts of a reading.

    Parameters
    ----------
    log : FailureLog
    values : bool
        Whether the values of dead letters are shown.
    seen : SeenHolders, optional
        Knows where trees were that have timed out, which nobody else says.
    """

    def __init__(self, log: FailureLog, *, values: bool, seen: SeenHolders | None = None) -> None:
        self._log = log
        self._values = values
        self._seen = seen

    def failures(self) -> dict[str, Any]:
        """Return the last failures, and how many of all have which reason."""
        failures = self._log.failures()
        return {"rows": [self._failure(each) for each in failures[:ROWS_MAX]], **reason_rows(self._log.reasons)}

    def dead_letters(self, total: int, note: str) -> dict[str, Any]:
        """Return the last dead letters, of `total` ones; the note says where those lie that cannot be replayed."""
        letters = self._log.dead_letters()
        held = sum(each.can_replay for each in letters)
        return {
            "total": total,
            "held": held,
            "can_replay": held > 0,
            "values": self._values,
            "rows": [self._letter(each) for each in letters[:ROWS_MAX]],
            "note": note,
        }

    def find(self, text: str) -> list[dict[str, Any]]:
        """Return the failures and dead letters of a message id."""
        failures = [each for each in self._log.failures() if is_named(each.tup_id, text)]
        letters = [each for each in self._log.dead_letters() if is_named(each.tup_id, text)]
        found = [{"what": "failure", **self._failure(each)} for each in failures]
        return found + [{"what": "dead letter", **self._letter(each)} for each in letters]

    def _failure(self, failure: Failure) -> dict[str, Any]:
        return {**failure_row(failure), **self._held_by(failure)}

    def _letter(self, letter: DeadLetter) -> dict[str, Any]:
        row = {**letter_row(letter), **self._held_by(letter)}
        return {**row, "values": shown_values(letter.values)} if self._values else row

    def _held_by(self, ended: Failure | DeadLetter) -> dict[str, Any]:
        if self._seen is None:
            return {}
        is_late = ended.reason.kind is ReasonKind.TIMED_OUT
        return {"held_by": holder_rows(self._seen.of(ended.root_id) if is_late else ())}


def failure_row(failure: Failure) -> dict[str, Any]:
    """Return a failure as values for JSON."""
    return {
        "number": failure.number,
        "at_ms": failure.at_ms,
        "id": shown_id(failure.tup_id),
        "spout": failure.component,
        "elapsed_ms": failure.elapsed_ms,
        **_reason_row(failure.reason),
    }


def letter_row(letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter without its values, as values for JSON."""
    return {
        "number": letter.number,
        "at_ms": letter.at_ms,
        "id": shown_id(letter.tup_id),
        "spout": letter.component,
        "can_replay": letter.can_replay,
        **_reason_row(letter.reason),
    }


def holder_rows(holders: Iterable[Holder]) -> list[dict[str, Any]]:
    """Return holders as values for JSON."""
    return [
        {
            "component": each.component,
            "task": each.task,
            "how": each.how,
            "for_ms": each.for_ms,
            **({} if each.text is None else {"text": each.text}),
            **({} if each.line is None else {"line": each.line}),
        }
        for each in holders
    ]


def reason_rows(groups: ReasonGroups) -> dict[str, Any]:
    """Return how often which reason came, the most frequent first, each with an example: `reasons` and `counted`."""
    found = groups.most_frequent()
    rows = [
        {"count": each.times, "id": shown_id(each.example.tup_id), **_reason_row(each.example.reason)}
        for each in found[:_REASONS_MAX]
    ]
    return {"counted": sum(each.times for each in found), "reasons": rows}


def _reason_row(reason: Reason) -> dict[str, Any]:
    return {
        "kind": reason.kind.value,
        "component": reason.component,
        "task": reason.task,
        "why": None if reason.exception is None else " ".join(reason.exception.split())[:500],
        "line": reason.line,
        "attempt": reason.attempt or None,  # unknown
    }


def component_row(row: ComponentStats) -> dict[str, Any]:
    """Return the counts of a component, for a node of the graph; rate, busy time and latency are for the caller."""
    return {
        "name": row.component,
        "kind": row.kind,
        "tasks": row.tasks,
        "executors": row.executors,
        "executed": row.executed,
        "emitted": row.emitted_total,
        "acked": row.acked,
        "failed": row.failed,
        "timed_out": row.timed_out,
        "pending": row.pending,
        "queue": row.queue,
        "queue_capacity": row.queue_capacity,
        "bottleneck": False,
    }


def chart(key: str, title: str, unit: str, **values: float | None) -> dict[str, Any]:
    """Return one chart of a view, with the values of this moment by the names of its lines."""
    series = [{"key": name, "label": name.replace("_", " "), "value": rounded(value)} for name, value in values.items()]
    return {"key": key, "title": title, "unit": unit, "series": series}


def latency_chart(key: str, title: str, latencies: Histogram) -> dict[str, Any]:
    """Return the chart of a median and of the latency that 99 of 100 do not exceed."""
    return chart(key, title, "ms", p50=latencies.quantile_ms(0.5), p99=latencies.quantile_ms(0.99))


def tile(
    name: str, value: Any, unit: str = "", more: Any = "", *, more_unit: str = "", is_bad: bool = False
) -> dict[str, Any]:
    """Return one of the large figures at the top: its value, and what stands below it.

    Parameters
    ----------
    unit, more_unit : str
        "ms", "By", "/s", or "" for a count.
    more : str, float or None
    is_bad : bool
        Whether it is red, unless it is 0.
    """
    return {"name": name, "value": value, "unit": unit, "more": more, "more_unit": more_unit, "is_bad": is_bad}


def table(
    key: str, title: str, columns: Iterable[tuple[str, str | None]], rows: Collection[Sequence[Any]], empty: str = ""
) -> dict[str, Any]:
    """Return a table.

    Parameters
    ----------
    columns : iterable of (name, unit)
        The unit is as for `tile`, "at" for a time since 1970 in milliseconds, or None for text.
    empty : str
        The text in place of a table without rows.
    """
    heads = [{"name": name, "unit": unit} for name, unit in columns]
    return {"key": key, "title": title, "columns": heads, "rows": list(rows), "empty": empty}


def rounded(value: float | None) -> float | None:
    """Return a number with four significant digits, or without a fraction from a thousand on; None stays None."""
    return None if value is None else float(f"{value:.4g}") if abs(value) < 1_000 else round(value)
