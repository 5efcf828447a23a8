"""The rules of replays: what becomes of messages that failed, decided for one micro-batch at a time.

Nothing here knows Spark, files or the clock.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acker._engine.completions import Completions
from acker._engine.protocol import Outcome
from acker.errors import ArgumentValueError
from acker.observe.backoff import backoff
from acker.spark.pipelines.completions import PipelineCompletions
from acker.spark.streams.replay_ledger import (
    Decisions,
    LedgerState,
    ReplayCounts,
    ReplayStep,
    fold,
    number_keys,
)
from acker.spark.text_ids import numbers_of

if TYPE_CHECKING:
    import numpy.typing as npt

ReasonsFunction: TypeAlias = Callable[[Completions], Sequence[str]]

# A longer reason is cut.
REASON_CHARS_MAX: Final = 1000

_WORDS: Final = {outcome: outcome.name.lower().replace("_", " ") for outcome in Outcome}


class ReplayRules(NamedTuple):
    """When a message is replayed, and when it is a dead letter; see `Replays`."""

    attempts_max: int
    backoff_secs: float
    backoff_secs_max: float
    open_secs_max: float = math.inf


class _Matches(NamedTuple):
    """The completions that concern the ledger.

    Attributes
    ----------
    acked : (held rows,) bool
        Whether the message was acked.
    failed : Completions
        One row for each message that failed and was not acked.
    held_row : (failed rows,) int64
        Its row among those held, -1 if it has none.
    """

    acked: npt.NDArray[np.bool_]
    failed: Completions
    held_row: npt.NDArray[np.int64]


def name_reasons(failed: Completions) -> list[str]:
    """Return what bolts have raised, and outcomes in words where none did."""
    words = [_WORDS[Outcome(outcome)] for outcome in failed.outcome.tolist()]
    if not isinstance(failed, PipelineCompletions):
        return words
    return [word if text is None else text for word, text in zip(words, failed.reason.tolist(), strict=True)]


def reason_of(row: Mapping[str, Any]) -> str:
    """Return why the last attempt of a row of `REPLAY_SCHEMA` failed, as a topology would say it."""
    word = _WORDS[Outcome(row["outcome"])]
    where = "" if row["component"] is None else f" in {row['component']}"
    why = "" if row["reason"] == word else f": {' '.join(row['reason'].split())}"
    return f"{word}{where}{why} (attempt {row['attempt']})"


def decide(
    state: LedgerState, done: Completions, rules: ReplayRules, now_ms: int, reasons: ReasonsFunction = name_reasons
) -> Decisions:
    """Decide what becomes of the messages of a micro-batch, and of those that wait.

    The order of the completions makes no difference. A message with several completions is acked if one of them is,
    and has failed once otherwise.
    """
    held = state.held
    matches = _match(held, done)
    attempt, at_ms = held["attempt"].to_numpy(), held["at_ms"].to_numpy()
    waits = held["step"].to_numpy() == ReplayStep.WAIT
    # A wait longer than the longest one means that the clock was set back.
    is_over = (at_ms <= now_ms) | (at_ms - now_ms > 1000 * rules.backoff_secs_max)
    due = waits & ~matches.acked & is_over

    is_known = matches.held_row >= 0
    is_waiting = np.zeros(is_known.size, np.bool_)
    is_waiting[is_known] = waits[matches.held_row[is_known]]
    tries = np.ones(is_known.size, np.int32)
    tries[is_known] = attempt[matches.held_row[is_known]]
    failed = matches.failed.at(~is_waiting)
    failures = _rows_of_failures(failed, tries[~is_waiting], _texts_of(failed, reasons), rules, now_ms, held.schema)
    ended = matches.acked.copy()
    ended[matches.held_row[is_known]] = True
    is_overdue = ~waits & ~ended & (now_ms - at_ms > 1000 * rules.open_secs_max)
    overdue = _rows_of_overdue(held.filter(pa.array(is_overdue)), rules, now_ms)

    parts = [
        _next_step(held, matches.acked, ReplayStep.RECOVERED, attempt, now_ms),
        _next_step(held, due, ReplayStep.REPLAY, attempt + 1, now_ms),
        failures,
        overdue,
    ]
    rows = pa.concat_tables(parts).sort_by([("task_id", "ascending"), ("message_id", "ascending")]).combine_chunks()
    after = fold([held, rows])
    before = state.counts
    steps = np.bincount(rows["step"].to_numpy(), minlength=len(ReplayStep))
    waiting = int((after["step"].to_numpy() == ReplayStep.WAIT).sum())
    counts = ReplayCounts(
        messages=before.messages + int((~is_known).sum()),
        failures=before.failures + failures.num_rows + overdue.num_rows,
        overdue=before.overdue + overdue.num_rows,
        repeated=before.repeated + int(is_waiting.sum()),
        replayed=before.replayed + int(steps[ReplayStep.REPLAY]),
        recovered=before.recovered + int(steps[ReplayStep.RECOVERED]),
        dead_letters=before.dead_letters + int(steps[ReplayStep.DEAD_LETTER]),
        waiting=waiting,
        open=after.num_rows - waiting,
    )
    return Decisions(rows, after, counts)


def _match(held: pa.Table, done: Completions) -> _Matches:
    # Only these rows can change anything; the others are most.
    has_failed = done.message_id[done.outcome != Outcome.ACKED]
    done = done.at(_is_among(done.message_id, np.concatenate([held["message_id"].to_numpy(), has_failed])))
    rows = held.num_rows
    group = number_keys(
        np.concatenate([held["task_id"].to_numpy(), done.task_id]),
        np.concatenate([held["message_id"].to_numpy(), done.message_id]),
    )
    of_held, of_done = group[:rows], group[rows:]
    groups = int(np.max(group, initial=-1)) + 1
    is_acked = np.zeros(groups, np.bool_)
    is_acked[of_done[done.outcome == Outcome.ACKED]] = True
    held_row = np.full(groups, -1)
    held_row[of_held] = np.arange(rows)
    # If a message failed several times, the failure with the least root id counts, in whatever order they came.
    failed = np.flatnonzero((done.outcome != Outcome.ACKED) & ~is_acked[of_done])
    failed = failed[np.argsort(done.root_id[failed])]
    found, first = np.unique(of_done[failed], return_index=True)
    return _Matches(is_acked[of_held], done.at(failed[first]), held_row[found])


def _is_among(ids: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    if ids.dtype != np.dtype(object) or not len(ids) or not len(wanted):
        return np.isin(ids, wanted)
    found: Any = pc.is_in(pa.array(ids), value_set=pa.array(wanted))
    among: npt.NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
    return among


def fingerprint(done: Completions) -> str:
    """Return a text that is another one where other messages did not end ACKED, whatever their order."""
    failed = np.flatnonzero(done.outcome != Outcome.ACKED)
    ids: npt.NDArray[Any] = done.message_id[failed]
    if ids.dtype == np.dtype(object):
        ids = numbers_of(pa.array(ids, pa.binary()))
    columns = (done.task_id[failed], ids, done.outcome[failed])
    order = np.lexsort(columns)
    return hashlib.blake2b(b"".join(column[order].tobytes() for column in columns), digest_size=8).hexdigest()


def _texts_of(failed: Completions, reasons: ReasonsFunction) -> list[str]:
    texts = list(reasons(failed)) if len(failed) else []
    if len(texts) != len(failed):
        raise ArgumentValueError(
            f"reasons: expected a text for each of the {len(failed)} completions, got {len(texts)}"
        )
    return texts


def _rows_of_overdue(held: pa.Table, rules: ReplayRules, now_ms: int) -> pa.Table:
    """Return the next steps of messages that were replayed and of which nothing was heard since."""
    attempt = held["attempt"].to_numpy()
    failed = Completions(
        root_id=held["root_id"].to_numpy(),
        message_id=held["message_id"].to_numpy(),
        task_id=held["task_id"].to_numpy(),
        outcome=np.full(held.num_rows, Outcome.TIMED_OUT, np.int8),
        elapsed_ms=np.zeros(held.num_rows, np.int64),
    )
    secs = f"{rules.open_secs_max:g} s"
    texts = [f"attempt {number} was replayed, and no tree of it ended within {secs}" for number in attempt.tolist()]
    return _rows_of_failures(failed, attempt, texts, rules, now_ms, held.schema)


def _rows_of_failures(
    failed: Completions,
    attempt: npt.NDArray[np.int32],
    texts: Sequence[str],
    rules: ReplayRules,
    now_ms: int,
    schema: pa.Schema,
) -> pa.Table:
    """Return the next steps of messages whose attempts failed."""
    different, which = np.unique(attempt, return_inverse=True)
    waits_ms = [
        round(1000 * backoff(number, rules.backoff_secs, rules.backoff_secs_max)) for number in different.tolist()
    ]
    wait_ms = np.array(waits_ms, np.int64)[which]
    is_last = attempt >= rules.attempts_max
    is_now = ~is_last & (wait_ms == 0)
    step = np.select([is_last, is_now], [ReplayStep.DEAD_LETTER, ReplayStep.REPLAY], ReplayStep.WAIT)
    columns = {
        "task_id": failed.task_id,
        "message_id": failed.message_id,
        "attempt": attempt + is_now,
        "root_id": failed.root_id,
        "outcome": failed.outcome,
        "component": failed.component if isinstance(failed, PipelineCompletions) else pa.nulls(len(failed)),
        "reason": [_clean(text) for text in texts],
        "step": step,
        "at_ms": np.where(step == ReplayStep.WAIT, now_ms + wait_ms, now_ms),
    }
    return pa.table(columns).cast(schema)


def _clean(text: object) -> str:
    """Return a reason as any database takes it: not too long, and without NUL."""
    return str(text)[:REASON_CHARS_MAX].replace("\0", "\ufffd")


def _next_step(
    held: pa.Table, which: npt.NDArray[np.bool_], step: ReplayStep, attempt: npt.NDArray[np.int32], now_ms: int
) -> pa.Table:
    """Return the rows of some messages that are held, with their next step."""
    rows = held.filter(pa.array(which))
    changed: dict[str, Any] = {"attempt": attempt[which], "step": np.full(rows.num_rows, step, np.int8)}
    changed["at_ms"] = np.full(rows.num_rows, now_ms)
    columns = [pa.array(changed[name]) if name in changed else rows[name] for name in rows.schema.names]
    return pa.table(columns, names=rows.schema.names).cast(rows.schema)
