"""The headline of the live page: the most important news of a topology, a consumer or streams, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from acker.observe.calls import Busy, UserCall
from acker.observe.durations import format_duration, format_latency
from acker.observe.failures import Failure
from acker.observe.holders import Holder
from acker.observe.rates import RecentFigures


class LastBatch(NamedTuple):
    """The last micro-batch of a streaming acker: the query that it is of, and how many trees ended in it."""

    query: str
    acked: int
    not_acked: int


class Situation(NamedTuple):
    """The facts that a headline is made from.

    Attributes
    ----------
    state : str
        As `RuntimeStats.state`.
    paused : bool
    outcome : str
        Of a runtime that has stopped, as `RunReport.outcome`.
    error : str or None
        The exception that stopped it, or because of which it restarts.
    stuck : int
        How many trees are open for longer than half the timeout.
    oldest_ms : int or None
        The age of the oldest open tree.
    holders : sequence of Holder
        Those of the oldest tree.
    pending : int
    acked_a_second, p99_ms : float or None
        Lately.
    failed : int
        Trees that were not acked lately.
    reason : str or None
        Of the last one.
    busy : Busy or None
        The calls of user code that run now.
    longest : UserCall or None
        Of those whose message timed out, the one that has run longest.
    hung : sequence of UserCall
        The calls that hang, the longest first, whether or not their trees are open.
    noun : str
        The thing that is acked: a tree or a message.
    batch : LastBatch or None
        For streams on Spark, where trees end in micro-batches.
    idle : str or None
        The sentence for a moment at which there is nothing to tell.
    """

    state: str
    paused: bool = False
    outcome: str = "stopped"
    error: str | None = None
    stuck: int = 0
    oldest_ms: int | None = None
    holders: Sequence[Holder] = ()
    pending: int = 0
    acked_a_second: float | None = None
    p99_ms: float | None = None
    failed: int = 0
    reason: str | None = None
    busy: Busy | None = None
    longest: UserCall | None = None
    hung: Sequence[UserCall] = ()
    noun: str = "tree"
    batch: LastBatch | None = None
    idle: str | None = None

    @classmethod
    def of_last_seconds(cls, state: str, recent: RecentFigures, failures: Sequence[Failure], **more: Any) -> Situation:
        """Return a situation with the figures of the last seconds.

        Parameters
        ----------
        state : str
        recent : RecentFigures
            With the counts "acked" and "not acked", and the latencies "complete".
        failures : sequence of Failure
            Newest first.
        **more
            The other fields.
        """
        return cls(
            state,
            acked_a_second=recent.rate("acked"),
            p99_ms=recent.latency("complete").quantile_ms(0.99),
            failed=round(recent.growth("not acked")) if state == "running" else 0,
            reason=str(failures[0].reason) if failures else None,
            **more,
        )


_ENDS: Mapping[str, str] = {
    "drained": "Finished: everything was processed, and nothing is pending.",
    "reached": "Finished: as many trees were acked as were asked for.",
    "elapsed": "Finished: the time was up.",
    "stopped": "Stopped.",
    "aborted": "Stopped at once, without draining.",
}


def headline(now: Situation) -> dict[str, Any]:
    """Return the tone ("good", "fair", "bad" or "idle") and the sentence."""
    tone, text = _special(now) or _still_runs(now) or _hung(now) or _stuck(now) or _batch(now) or _running(now)
    return {"tone": tone, "text": text}


def _special(now: Situation) -> tuple[str, str] | None:
    if now.idle is not None:
        return "idle", now.idle
    if now.state == "new":
        return "idle", "Starting."
    if now.state == "restarting":
        return "bad", f"Restarting after {now.error or 'an exception'}."
    if now.state == "stopped":
        if now.error is not None:
            return "bad", f"Stopped with an error: {now.error}."
        return "idle", _ENDS.get(now.outcome, "Stopped.")
    if now.state == "draining":
        return "fair", f"Stopping: {_count(now, now.pending)} may still end."
    return None


def _still_runs(now: Situation) -> tuple[str, str] | None:
    """Tell of calls that hold threads although their messages timed out: further messages may wait for those."""
    if now.busy is None or not now.busy.timed_out:
        return None
    if now.longest is None:
        return "bad", f"{now.busy}."
    where = "" if now.longest.line is None else f" at {now.longest.line.short}"
    return "bad", f"{now.busy}; the longest runs{where} for {_whole(now.longest.for_ms)}."


def _hung(now: Situation) -> tuple[str, str] | None:
    if not now.hung:
        return None
    longest = now.hung[0]
    where = "" if longest.line is None else f" at {longest.line.short}"
    has_been = f"has been in one call{where} for {_whole(longest.for_ms)}"
    if len(now.hung) == 1:
        return "bad", f"{longest.who} hangs: it {has_been}."
    return "bad", f"{len(now.hung):,} tasks hang; {longest.who} {has_been}."


def _stuck(now: Situation) -> tuple[str, str] | None:
    if not now.stuck or now.oldest_ms is None:
        return None
    where, since = _where(now.holders), _whole(now.oldest_ms)
    if now.stuck == 1:
        return "bad", f"1 {now.noun} has been stuck{where} for {since}."
    return "bad", f"{_count(now, now.stuck)} are stuck; the oldest has been{where} for {since}."


def _where(holders: Sequence[Holder]) -> str:
    if not holders:
        return ", held by no task that is known,"
    sure = [each for each in holders if each.how != "maybe"]
    names = list(dict.fromkeys(each.component for each in sure or holders))
    quoted = ", ".join(f"\N{LEFT DOUBLE QUOTATION MARK}{name}\N{RIGHT DOUBLE QUOTATION MARK}" for name in names[:3])
    if len(names) > 3:
        quoted = f"{quoted} and {len(names) - 3} more"
    line = next((each.line for each in sure if each.line is not None), None)
    if line is not None:
        quoted = f"{quoted}, {line},"
    # If all that may hold it are tasks of one component, that is where it is.
    return f" at {quoted}" if sure or len(names) == 1 else f", maybe at {quoted},"


def _batch(now: Situation) -> tuple[str, str] | None:
    if now.batch is None:
        return None
    oldest = "" if now.oldest_ms is None else f", the oldest for {format_duration(now.oldest_ms)}"
    pending = f"{_count(now, now.pending)} {'is' if now.pending == 1 else 'are'} pending{oldest}"
    said = f"The last micro-batch of {now.batch.query} acked {now.batch.acked:,}"
    if now.batch.not_acked:
        return "fair", f"{said}; {now.batch.not_acked:,} failed, timed out or were rejected. {pending}."
    return "good", f"{said}. {pending}."


def _running(now: Situation) -> tuple[str, str]:
    if now.paused:
        return "fair", f"Paused: the spouts emit nothing; {_count(now, now.pending)} pending."
    if now.failed:
        were = "was" if now.failed == 1 else "were"
        why = "" if now.reason is None else f"{'' if now.failed == 1 else '; the last one'}: {now.reason}"
        return "fair", f"{_count(now, now.failed)} {were} not acked in the last seconds{why}."
    if not now.pending and not now.acked_a_second:
        return "idle", "Idle: nothing is pending, and nothing comes in."
    if not now.acked_a_second:
        return "good", f"Running: {_count(now, now.pending)} pending, none was acked in the last seconds."
    took = "" if now.p99_ms is None else f", 99 of 100 within {format_latency(now.p99_ms)}"
    return "good", f"All is well: {now.acked_a_second:,.0f} {now.noun}s acked a second{took}."


def _whole(ms: int) -> str:
    return format_duration(ms) if ms < 1_000 or ms >= 120_000 else f"{ms // 1_000} s"


def _count(now: Situation, count: int) -> str:
    return f"1 {now.noun}" if count == 1 else f"{count:,} {now.noun}s"
