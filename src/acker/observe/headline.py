"""The headline of the live page: the most important news of a topology, a consumer or streams, in one sentence."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from acker.observe.calls import Busy, UserCall
from acker.observe.durations import format_duration, format_latency, format_rate
from acker.observe.failures import FailureLog, ReasonGroup, ReasonGroups, shown_id
from acker.observe.holders import Forgotten, Holder, HungBefore, SeenHolders, keeper_of
from acker.observe.latencies import Histogram
from acker.observe.rates import RecentFigures
from acker.observe.timeout_advice import TooShort

# What is told of the last seconds looks so far back for reasons.
_LATELY_MS: Final = 10_000
# For how long a dead letter is news.
_NEWS_MS: Final = 600_000
# How much of what may be pending counts as its limit, since a tree ends now and then.
_NEARLY: Final = 0.9
# How many times as long as usual a tree has to be open.
_LONGER: Final = 2

# A job of Spark runs for long beyond this, and this many times as long as usual; the first one beyond another time.
_JOB_MS: Final = 5_000
_JOB_LONGER: Final = 3
_FIRST_JOB_MS: Final = 10_000


class LastBatch(NamedTuple):
    """The last micro-batch of a streaming acker: the query that it is of, and how many trees ended in it."""

    query: str
    acked: int
    not_acked: int


class Away(NamedTuple):
    """A broker or another source that cannot be reached: its name, for how long, and the last error."""

    name: str
    for_ms: int
    error: str


class Limit(NamedTuple):
    """A limit that is reached, so that no more can be done at a time.

    Attributes
    ----------
    pending, pending_max : int
        What is pending, and how much may be; 0: there is no limit.
    where : str or None
        The component that the others wait for; or whose threads they are, if not those of a pool.
    busy : float or None
        The share of its time that its busiest task spends in user code.
    waiting : int
        How many tuples or parts of messages wait for it.
    call_ms : float or None
        How long one of its calls usually takes.
    threads : int
        Of a pool: how many there are, and all of them are busy.
    line : str or None
        Where most of its calls stand, if they are many.
    mend : str or None
        What to do, if it is not to give it more tasks or threads.
    """

    pending: int = 0
    pending_max: int = 0
    where: str | None = None
    busy: float | None = None
    waiting: int = 0
    call_ms: float | None = None
    threads: int = 0
    line: str | None = None
    mend: str | None = None

    @property
    def is_full(self) -> bool:
        """Whether nearly as much is pending as may be."""
        return bool(self.pending_max) and self.pending >= _NEARLY * self.pending_max


class GivenUp(NamedTuple):
    """The dead letters since the start: how many, how long ago the last one was given up, and the most frequent reason.

    Attributes
    ----------
    total : int
    ago_ms : int
    looked_at : int
        Of how many failures the reasons are known lately: the last ones, where there were many.
    why : ReasonGroup or None
    """

    total: int
    ago_ms: int = 0
    why: ReasonGroup | None = None

    @classmethod
    def of(cls, total: int, log: FailureLog) -> GivenUp | None:
        """Return those of a log, of `total` ones in all; None if there are none."""
        if not total:
            return None
        last_ms = log.last_letter_ms
        ago_ms = 0 if last_ms is None else max(0, time.time_ns() // 1_000_000 - last_ms)
        return cls(total, ago_ms, next(iter(log.letter_reasons.most_frequent()), None))


class RunningJob(NamedTuple):
    """A job of Spark that runs, and that all trees in it wait for.

    Attributes
    ----------
    name : str
        The micro-batch.
    for_ms : int
    usual_ms : float or None
        The median of those before it.
    where : str
        What it does now, if that is known.
    """

    name: str
    for_ms: int
    usual_ms: float | None = None
    where: str = ""

    @property
    def is_long(self) -> bool:
        """Whether it runs for long, compared with those before it."""
        if self.usual_ms is None:
            return self.for_ms > _FIRST_JOB_MS
        return self.for_ms > max(_JOB_MS, _JOB_LONGER * self.usual_ms)


class Situation(NamedTuple):
    """The facts that a headline is made from. A fact that is left out is not told, and does not count as a fault.

    Attributes
    ----------
    state : str
        As `RuntimeStats.state`.
    paused : bool
    error : str or None
        The exception that stopped it, or because of which it restarts.
    stuck : int
        How many trees are open for longer than half the timeout.
    stuck_from_ms : int
        From which age on they count as stuck.
    younger : int
        How many others are open.
    oldest_ms : int or None
        The age of the oldest open tree.
    holders : sequence of Holder
        Those of the oldest tree.
    forgotten : Forgotten or None
        The trees that ended lately because nobody acked them, if most have ended so.
    pending : int
    acked_a_second, p99_ms : float or None
        Lately.
    failed, acked : int
        Trees that were not acked lately, and those that were.
    failed_a_second : float or None
    why : ReasonGroup or None
        The most frequent reason lately; in a runtime that has stopped, since the start.
    lost : int
        Trees that were not acked since the start.
    letters : GivenUp or None
    away : Away or None
        The source that cannot be reached, if one cannot.
    limit : Limit or None
        What has been at its limit for some time.
    too_short : TooShort or None
        A timeout that is shorter than the work.
    busy : Busy or None
        The calls of user code that run now.
    longest : UserCall or None
        Of those whose message timed out, the one that has run longest.
    hung : sequence of UserCall
        The calls that hang, the longest first, whether or not their trees are open.
    hung_before : HungBefore or None
        Those that hung until their messages timed out lately, if most have ended so.
    noun : str
        The thing that is acked: a tree or a message.
    batch : LastBatch or None
        For streams on Spark, where trees end in micro-batches.
    job : RunningJob or None
        On Spark.
    idle : str or None
        The sentence for a moment at which there is nothing to tell.
    """

    state: str
    paused: bool = False
    error: str | None = None
    stuck: int = 0
    stuck_from_ms: int = 0
    younger: int = 0
    oldest_ms: int | None = None
    holders: Sequence[Holder] = ()
    forgotten: Forgotten | None = None
    pending: int = 0
    acked_a_second: float | None = None
    p99_ms: float | None = None
    failed: int = 0
    acked: int = 0
    failed_a_second: float | None = None
    looked_at: int = 0
    why: ReasonGroup | None = None
    lost: int = 0
    letters: GivenUp | None = None
    away: Away | None = None
    limit: Limit | None = None
    too_short: TooShort | None = None
    busy: Busy | None = None
    longest: UserCall | None = None
    hung: Sequence[UserCall] = ()
    hung_before: HungBefore | None = None
    noun: str = "tree"
    batch: LastBatch | None = None
    job: RunningJob | None = None
    idle: str | None = None

    @classmethod
    def of_last_seconds(
        cls,
        state: str,
        recent: RecentFigures,
        log: FailureLog,
        *,
        seen: SeenHolders | None = None,
        timeout_ms: int = 0,
        hangs: Callable[[int], bool] | None = None,
        **more: Any,
    ) -> Situation:
        """Return a situation with the figures of the last seconds.

        Parameters
        ----------
        state : str
        recent : RecentFigures
            With the counts "acked" and "not acked", and the latencies "complete".
        log : FailureLog
        seen : SeenHolders, optional
            Knows where trees were that have timed out. How many were forgotten, or hung, is told for a whole timeout,
            until those that are tried again are stuck, so that it stays the headline.
        timeout_ms : int
        hangs : callable, optional
            Returns whether a call of so many milliseconds hangs.
        **more
            The other fields.
        """
        lately = state == "running"
        since_ms = time.time_ns() // 1_000_000 - _LATELY_MS
        kept = log.failures_since(since_ms) if lately else []
        reasons = ReasonGroups(reversed(kept)) if lately else log.reasons
        forgotten = hung_before = None
        if lately and seen is not None:
            late = log.failures_since(since_ms - max(0, timeout_ms - _LATELY_MS))
            forgotten = Forgotten.of(late, seen)
            hung_before = None if hangs is None else HungBefore.of(late, seen, hangs)
        return cls(
            state,
            forgotten=forgotten,
            hung_before=hung_before,
            looked_at=len(kept),
            acked_a_second=recent.rate("acked"),
            p99_ms=recent.latency("complete").quantile_ms(0.99),
            failed=round(recent.growth("not acked")) if lately else 0,
            acked=round(recent.growth("acked")),
            failed_a_second=recent.rate("not acked"),
            why=next(iter(reasons.most_frequent()), None),
            **more,
        )


def stuck_ms(timeout_ms: int, complete: Histogram) -> int:
    """Return the age from which on a tree is stuck: half of the timeout, but not where trees usually take long."""
    return max(timeout_ms // 2, round(_LONGER * (complete.quantile_ms(0.5) or 0)))


def headline(now: Situation) -> dict[str, Any]:
    """Return the tone ("good", "fair", "bad" or "idle") and the sentence."""
    tone, text = next(said for rule in _RULES if (said := rule(now)) is not None)
    return {"tone": tone, "text": text}


def _ended(now: Situation) -> tuple[str, str] | None:
    if now.idle is not None:
        return "idle", now.idle
    if now.state == "stopped":
        wrong = _went_wrong(now)
        if now.error is not None:
            return "bad", f"Stopped with an error: {now.error}.{wrong}"
        return "fair" if wrong else "idle", f"Stopped.{wrong}"
    return None


def _phase(now: Situation) -> tuple[str, str] | None:
    """Tell that a runtime starts, restarts or stops; what hangs meanwhile, and keeps it from that, comes first."""
    if now.state == "new":
        return "idle", "Starting."
    if now.state == "restarting":
        return "bad", f"Restarting after {now.error or 'an exception'}."
    if now.state == "draining":
        return "fair", f"Stopping: {_count(now, now.pending)} may still end."
    return None


def _went_wrong(now: Situation) -> str:
    """Return what went wrong in a run that has ended, with a space before it."""
    if now.letters is not None:
        return f" {_told_letters(now.letters)}."
    if now.lost:
        were = "was" if now.lost == 1 else "were"
        return f" {_count(now, now.lost)} {were} not acked{_mostly(now.why, now.lost)}."
    return ""


def _away(now: Situation) -> tuple[str, str] | None:
    """Tell of a source that cannot be reached: nothing comes in, and no ack goes out."""
    if now.away is None:
        return None
    name, for_ms, error = now.away
    return "bad", f"{name} cannot be reached for {_whole(for_ms)}, and is tried again: {error.rstrip('.')}."


def _still_runs(now: Situation) -> tuple[str, str] | None:
    """Tell of calls that hold threads although their messages timed out: further messages may wait for those."""
    if now.busy is None or not now.busy.timed_out:
        return None
    if now.longest is None:
        return "bad", f"{now.busy}."
    where = "" if now.longest.line is None else f" at {now.longest.line.short}"
    return "bad", f"{now.busy}; the longest runs{where} for {_whole(now.longest.for_ms)}."


def _hung(now: Situation) -> tuple[str, str] | None:
    """Tell of calls that run much longer than usual, or for most of the timeout."""
    if not now.hung:
        return None
    longest = now.hung[0]
    where = "" if longest.line is None else f" at {longest.line.short}"
    what = "" if longest.what is None else f" {'of' if longest.what.endswith('()') else 'with'} {longest.what}"
    has_been = f"has been in one call{what}{where} for {_whole(longest.for_ms)}"
    busy = f" {now.busy}." if now.busy is not None and now.busy.timed_out else ""
    if len(now.hung) == 1:
        return "bad", f"{longest.who} hangs: it {has_been}.{busy}"
    return "bad", f"{len(now.hung):,} calls hang; {longest.who} {has_been}.{busy}"


def _hung_before(now: Situation) -> tuple[str, str] | None:
    """Tell of calls that hung until their messages timed out, while the next attempts have not run for long."""
    if now.hung_before is None:
        return None
    times, what, call = now.hung_before
    where = "" if call.line is None else f" at {call.line}"
    was = f"was in one call with {shown_id(what)}{where} for {_whole(call.for_ms or 0)}, until that timed out"
    told = f"{call.component} hung: it {was}." if times == 1 else f"{times:,} calls hung; {call.component} {was}."
    return "fair" if now.acked else "bad", told


def _too_short(now: Situation) -> tuple[str, str] | None:
    """Tell of timeouts that are shorter than the work: what is done comes too late, and is done again."""
    return None if now.too_short is None or not now.too_short.is_true else ("bad", f"{now.too_short}.")


def _forgotten(now: Situation) -> tuple[str, str] | None:
    """Tell of trees that end without an ack since code keeps their tuples, and of those that will end so."""
    if now.forgotten is None or (now.busy is not None and now.busy.timed_out):
        return None
    if now.too_short is not None and now.too_short.call_ms is not None:  # what they take is the cause
        return None
    times, keeper, in_batch = now.forgotten
    ended = "timed out"
    if in_batch:
        ended = f"{'was' if times == 1 else 'were'} open at the end of a micro-batch"
    elif now.stuck:
        ended += f" and {now.stuck:,} {'is' if now.stuck == 1 else 'are'} stuck"
    stood = _where([keeper]).rstrip(",")
    return "bad", f"{_count(now, times)} {ended}{stood}{_kept(now, [keeper], times)}{'' if in_batch else _younger(now)}"


def _stuck(now: Situation) -> tuple[str, str] | None:
    # On Spark no tree has a timeout, and all that are in a job end with it.
    if not now.stuck or now.oldest_ms is None or now.job is not None:
        return None
    where, since = _where(now.holders), f"{_whole(now.oldest_ms)}{_kept(now, now.holders)}{_younger(now)}"
    if now.stuck == 1:
        return "bad", f"1 {now.noun} has been stuck{where} for {since}"
    return "bad", f"{_count(now, now.stuck)} are stuck; the oldest has been{where} for {since}"


def _kept(now: Situation, holders: Sequence[Holder], count: int = 1) -> str:
    """Return the end of the sentence: that a task has a tree's tuple and does nothing with it, if that is sure."""
    if keeper_of(holders) is not None:
        it, question = ("it", "is its ack forgotten?") if count == 1 else ("them", "are their acks forgotten?")
        is_message = now.noun == "message"
        known = f"and no call works on {it}" if is_message else f"which neither acked nor failed {it}"
        return f", {known}: {question}"
    is_kept = bool(holders) and all(each.how == "held" and each.text is None for each in holders)
    return ", which neither acked nor failed it." if is_kept and len({each.component for each in holders}) == 1 else "."


def _younger(now: Situation) -> str:
    """Return why others that are open do not count as stuck."""
    if not (now.stuck and now.younger):
        return ""
    others = "1 other is" if now.younger == 1 else f"{now.younger:,} others are"
    return f" {others} younger than {_whole(now.stuck_from_ms)}."


def _job(now: Situation) -> tuple[str, str] | None:
    """Tell of a job of Spark that runs for long."""
    if now.job is None or not now.job.is_long:
        return None
    name, for_ms, usual_ms, where = now.job
    usual = "" if usual_ms is None else f", and usually takes {format_duration(usual_ms)}"
    return "fair", f"{name[0].upper()}{name[1:]} has run for {_whole(for_ms)}{usual}{f': {where}' if where else ''}."


def _where(holders: Sequence[Holder]) -> str:
    if not holders:
        return ", held by no task that is known,"
    sure = [each for each in holders if each.how != "maybe"]
    names = list(dict.fromkeys(each.component for each in sure or holders))
    quoted = ", ".join(map(_quoted, names[:3]))
    if len(names) > 3:
        quoted = f"{quoted} and {len(names) - 3} more"
    # If all that may hold it are tasks of one component, that is where it is.
    is_sure = bool(sure) or len(names) == 1
    line = next((each.line for each in sure or holders if is_sure and each.line is not None), None)
    if line is not None:
        quoted = f"{quoted}, {line},"
    return f" at {quoted}" if is_sure else f", maybe at {quoted},"


def _failing(now: Situation) -> tuple[str, str] | None:
    """Tell of failures: how many of how many lately, how many a second, and the most frequent reason."""
    if not now.failed:
        return None
    ended = now.failed + now.acked
    a_second = "" if now.failed_a_second is None else f", {format_rate(now.failed_a_second)} a second"
    some = f"{now.failed:,} of {_count(now, ended)}"
    letters = "" if now.letters is None else f" {_letter_count(now.letters)} so far."
    said = f"Failing: {some} in the last seconds{a_second}{_mostly(now.why, now.failed, now.looked_at)}.{letters}"
    return "bad" if now.failed > now.acked else "fair", said


def _letters(now: Situation) -> tuple[str, str] | None:
    """Tell of dead letters, which nobody tries again."""
    if now.letters is None or now.letters.ago_ms > _NEWS_MS:
        return None
    ago = f"the last one {format_duration(now.letters.ago_ms)} ago"
    return "fair", f"{_told_letters(now.letters)}; {ago}."


def _told_letters(letters: GivenUp) -> str:
    return f"{_letter_count(letters)}{_mostly(letters.why, letters.total)}"


def _letter_count(letters: GivenUp) -> str:
    return "1 dead letter" if letters.total == 1 else f"{letters.total:,} dead letters"


def _mostly(why: ReasonGroup | None, of: int, looked_at: int = 0) -> str:
    """Return the most frequent reason, and how often it came if others did too, among those that were `looked_at`."""
    if why is None:
        return ""
    if 0 < looked_at < of:
        share = "" if why.times >= looked_at else f", {why.times:,} of the last {looked_at:,}"
        return f"{share}: {why}"
    return f": {why}" if why.times >= of else f", {why.times:,} of them: {why}"


def _limit(now: Situation) -> tuple[str, str] | None:
    """Tell what is at its limit, and what to do: more tasks, more threads, or less pending."""
    limit = now.limit
    if limit is None:
        return None
    told = []
    if limit.is_full:
        told.append(f"{limit.pending:,} of {_count(now, limit.pending_max)} are pending")
    if limit.threads:
        of = limit.where or "the pool"
        is_one = limit.threads == 1
        told.append(f"the only thread of {of} is busy" if is_one else f"all {limit.threads:,} threads of {of} are busy")
    elif limit.where is not None:
        busy = "" if limit.busy is None else f", busy {100 * limit.busy:.0f} % of its time"
        call = "" if limit.call_ms is None else f" with calls of {format_latency(limit.call_ms)}"
        told.append(f"{_quoted(limit.where)} is the slowest{busy}{call}")
    if limit.line is not None and limit.call_ms is not None:
        told.append(f"most calls take {format_latency(limit.call_ms)}, at {limit.line}")
    if limit.waiting:
        if limit.threads:
            what = "part" if limit.where is None else now.noun
        else:
            what = now.noun if limit.where is None else "tuple"
        told.append(f"1 {what} waits" if limit.waiting == 1 else f"{limit.waiting:,} {what}s wait")
    return "fair", f"At its limit: {'; '.join(told)}{_held_up(now, limit) or f'. {_mend_of(now, limit)}.'}"


def _held_up(now: Situation, limit: Limit) -> str | None:
    """Return where the oldest tree is, if no call works for it and nothing ends: more of them would end there, too."""
    if limit.threads or limit.where is not None or now.acked_a_second or now.oldest_ms is None:
        return None
    if keeper_of(now.holders) is None:
        return None
    return f"; the oldest has been{_where(now.holders)} for {_whole(now.oldest_ms)}{_kept(now, now.holders)}"


def _mend_of(now: Situation, limit: Limit) -> str:
    if limit.mend is not None:
        return limit.mend
    if limit.threads:
        return f"Give {limit.where or 'the pool'} more threads, or start another process"
    if limit.where is not None:
        return "Give it more tasks, or make its calls shorter"
    if now.noun == "message":
        return "Work on more messages at a time, in threads or coroutines, or start another process"
    return "No component is busy: if trees wait for a batch or a window, raise topology.max.spout.pending"


def _paused(now: Situation) -> tuple[str, str] | None:
    if not now.paused:
        return None
    return "fair", f"Paused: the spouts emit nothing; {_count(now, now.pending)} pending."


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
    if not now.pending and not now.acked_a_second:
        return "idle", "Idle: nothing is pending, and nothing comes in."
    if not now.acked_a_second:
        return "good", f"Running: {_count(now, now.pending)} pending, none was acked in the last seconds."
    took = "" if now.p99_ms is None else f", 99 of 100 within {format_latency(now.p99_ms)}"
    return "good", f"All is well: {now.acked_a_second:,.0f} {now.noun}s acked a second{took}."


# The first rule that has something to tell makes the headline.
_RULES: Final[tuple[Callable[[Situation], tuple[str, str] | None], ...]] = (
    _ended,
    _away,
    _hung,
    _phase,
    _forgotten,
    _too_short,
    _still_runs,
    _hung_before,
    _stuck,
    _paused,
    _failing,
    _job,
    _letters,
    _limit,
    _batch,
    _running,
)


def _quoted(name: str) -> str:
    return f"\N{LEFT DOUBLE QUOTATION MARK}{name}\N{RIGHT DOUBLE QUOTATION MARK}"


def _whole(ms: int) -> str:
    return format_duration(ms) if ms < 1_000 or ms >= 120_000 else f"{ms // 1_000} s"


def _count(now: Situation, count: int) -> str:
    return f"1 {now.noun}" if count == 1 else f"{count:,} {now.noun}s"
