"""What becomes of messages that failed, compared with the rules written for one message at a time."""

import random
from dataclasses import dataclass

import numpy as np
import pytest

from acker import Completions, Outcome
from acker.errors import ArgumentValueError
from acker.observe.backoff import backoff
from acker.spark.streams.replay_ledger import LEDGER_SCHEMA, LedgerState, ReplayCounts, ReplayStep
from acker.spark.streams.replay_rules import REASON_CHARS_MAX, ReplayRules, decide
from tests.marks import slow_after

EMPTY = LedgerState(LEDGER_SCHEMA.empty_table(), ReplayCounts(), -1, "")
RULES = ReplayRules(attempts_max=3, backoff_secs=1.0, backoff_secs_max=60.0)
EXTREMES = (0, -1, -(2**63), 2**63 - 1)


def ended(*rows):
    """Return completions of (task id, message id, outcome), with root ids in their order."""
    return Completions.from_rows([(root, message, task, how, 5) for root, (task, message, how) in enumerate(rows)])


def run(state, done, now_ms, rules=RULES, **reasons):
    """Return what was decided as rows (step, task, message, attempt, at), and the state afterwards."""
    decisions = decide(state, done, rules, now_ms, **reasons)
    assert decisions.rows.schema == decisions.held.schema == LEDGER_SCHEMA
    after = state._replace(held=decisions.held, counts=decisions.counts)
    names = ("step", "task_id", "message_id", "attempt", "at_ms")
    rows = [tuple(row[name] for name in names) for row in decisions.rows.to_pylist()]
    return [(ReplayStep(row[0]).name, *row[1:]) for row in rows], after


def test_a_message_waits_twice_as_long_each_time_and_then_is_a_dead_letter():
    state = EMPTY
    steps = []
    for now_ms, done in [
        (0, ended((7, 42, Outcome.FAILED))),
        (999, ended()),
        (1000, ended()),
        (1500, ended((7, 42, Outcome.TIMED_OUT))),
        (3499, ended()),
        (3500, ended()),
        (4000, ended((7, 42, Outcome.REJECTED))),
    ]:
        rows, state = run(state, done, now_ms)
        steps += rows
    assert steps == [
        ("WAIT", 7, 42, 1, 1000),
        ("REPLAY", 7, 42, 2, 1000),
        ("WAIT", 7, 42, 2, 3500),
        ("REPLAY", 7, 42, 3, 3500),
        ("DEAD_LETTER", 7, 42, 3, 4000),
    ]
    assert not state.held.num_rows
    assert state.counts == ReplayCounts(messages=1, failures=3, replayed=2, dead_letters=1)


def test_without_a_back_off_the_replay_comes_at_once():
    rules = RULES._replace(backoff_secs=0.0, attempts_max=2)
    rows, state = run(EMPTY, ended((0, 1, Outcome.FAILED), (0, 2, Outcome.ACKED)), 10, rules)
    assert rows == [("REPLAY", 0, 1, 2, 10)] and state.counts.open == 1
    rows, state = run(state, ended((0, 1, Outcome.PENDING)), 11, rules)
    assert rows == [("DEAD_LETTER", 0, 1, 2, 11)] and not state.held.num_rows


def test_one_attempt_means_no_replay():
    rows, state = run(EMPTY, ended((0, 1, Outcome.FAILED)), 10, RULES._replace(attempts_max=1))
    assert rows == [("DEAD_LETTER", 0, 1, 1, 10)] and state.counts.messages == 1


def test_an_ack_ends_a_message_that_waits_and_one_whose_replay_is_open():
    _, state = run(EMPTY, ended((0, 1, Outcome.FAILED), (0, 2, Outcome.FAILED)), 0)
    rows, state = run(state, ended((0, 1, Outcome.ACKED)), 1000)
    assert rows == [("RECOVERED", 0, 1, 1, 1000), ("REPLAY", 0, 2, 2, 1000)]
    rows, state = run(state, ended((0, 2, Outcome.ACKED)), 1001)
    assert rows == [("RECOVERED", 0, 2, 2, 1001)]
    assert state.counts == ReplayCounts(messages=2, failures=2, replayed=1, recovered=2)
    assert run(state, ended((0, 2, Outcome.ACKED)), 1002)[0] == []


def test_several_trees_of_a_message_count_once_whatever_their_order():
    rows = [(0, 1, Outcome.TIMED_OUT), (0, 1, Outcome.FAILED), (0, 2, Outcome.FAILED), (0, 2, Outcome.ACKED)]
    done = ended(*rows)
    turned = Completions(**{name: getattr(done, name)[::-1] for name in Completions.__slots__})
    for completions in (done, turned):
        decisions = decide(EMPTY, completions, RULES, 0)
        (row,) = decisions.rows.to_pylist()
        assert (row["message_id"], row["root_id"], row["outcome"]) == (1, 0, Outcome.TIMED_OUT)
        assert decisions.counts == ReplayCounts(messages=1, failures=1, waiting=1)
    # Another tree of it that fails while it waits is no further attempt.
    rows, state = run(EMPTY, ended((0, 1, Outcome.FAILED)), 0)
    rows, state = run(state, ended((0, 1, Outcome.FAILED)), 1)
    assert rows == [] and state.counts == ReplayCounts(messages=1, failures=1, repeated=1, waiting=1)


def test_a_clock_that_was_set_back_does_not_hold_replays_up():
    _, state = run(EMPTY, ended((0, 1, Outcome.FAILED)), 10_000_000)
    assert run(state, ended(), 9_999_999)[0] == []
    assert run(state, ended(), 10_001_000 - 60_001)[0] == [("REPLAY", 0, 1, 2, 9_940_999)]


def test_reasons_are_the_outcome_in_words_unless_given():
    done = ended((0, 1, Outcome.FAILED), (0, 2, Outcome.TIMED_OUT), (0, 3, Outcome.ACKED), (0, 4, Outcome.PENDING))
    assert decide(EMPTY, done, RULES, 0).rows["reason"].to_pylist() == ["failed", "timed out", "pending"]
    found = decide(EMPTY, done, RULES, 0, lambda failed: [f"root {root} " + "x" * 2000 for root in failed.root_id])
    texts = found.rows["reason"].to_pylist()
    assert [text[:7] for text in texts] == ["root 0 ", "root 1 ", "root 3 "]
    assert {len(text) for text in texts} == {REASON_CHARS_MAX}
    with pytest.raises(ArgumentValueError, match="reasons: expected a text for each of the 3 completions, got 1"):
        decide(EMPTY, done, RULES, 0, lambda failed: ["one"])


@dataclass
class Message:
    """The rules for one message, as plain as they come."""

    attempt: int = 1
    at_ms: int | None = None  # None: open


class Model:
    def __init__(self, rules):
        self.rules, self.held, self.counts = rules, {}, dict.fromkeys(ReplayCounts._fields, 0)

    def step(self, done, now_ms):
        steps = []
        outcomes = {}
        for task, message, outcome in zip(done.task_id.tolist(), done.message_id.tolist(), done.outcome, strict=True):
            outcomes.setdefault((task, message), []).append(outcome)
        for key in sorted({*outcomes, *self.held}):
            steps += [(step, *key, *rest) for step, *rest in self.step_one(key, outcomes.get(key, ()), now_ms)]
        self.counts["waiting"] = sum(message.at_ms is not None for message in self.held.values())
        self.counts["open"] = len(self.held) - self.counts["waiting"]
        return steps

    def step_one(self, key, outcomes, now_ms):
        held = self.held.get(key)
        if Outcome.ACKED in outcomes:
            if held is not None:
                del self.held[key]
                self.counts["recovered"] += 1
                yield "RECOVERED", held.attempt, now_ms
            return
        if held is not None and held.at_ms is not None:
            self.counts["repeated"] += bool(outcomes)
            if held.at_ms <= now_ms:
                held.attempt, held.at_ms = held.attempt + 1, None
                self.counts["replayed"] += 1
                yield "REPLAY", held.attempt, now_ms
            return
        if not outcomes:
            return
        if held is None:
            held = self.held[key] = Message()
            self.counts["messages"] += 1
        self.counts["failures"] += 1
        wait_ms = round(1000 * backoff(held.attempt, self.rules.backoff_secs, self.rules.backoff_secs_max))
        if held.attempt >= self.rules.attempts_max:
            del self.held[key]
            self.counts["dead_letters"] += 1
            yield "DEAD_LETTER", held.attempt, now_ms
        elif wait_ms == 0:
            held.attempt += 1
            self.counts["replayed"] += 1
            yield "REPLAY", held.attempt, now_ms
        else:
            held.at_ms = now_ms + wait_ms
            yield "WAIT", held.attempt, held.at_ms


@pytest.mark.parametrize("backoff_secs", [0.0, 0.5])
@pytest.mark.parametrize("seed", slow_after(6, range(20)))
def test_any_completions_are_decided_as_one_message_at_a_time(seed, backoff_secs):
    draw = random.Random(seed)
    rules = ReplayRules(attempts_max=draw.randint(1, 4), backoff_secs=backoff_secs, backoff_secs_max=1.5)
    keys = [(task, message) for task in (0, 2**31 - 1) for message in (*EXTREMES, 5)]
    model, state, now_ms = Model(rules), EMPTY, 1000
    for _ in range(60):
        now_ms += draw.choice([0, 100, 700])
        rows = [(*draw.choice(keys), draw.choice(list(Outcome))) for _ in range(draw.choice([0, 1, 8]))]
        steps, state = run(state, ended(*rows), now_ms, rules)
        assert steps == model.step(ended(*rows), now_ms)
        assert state.counts._asdict() == model.counts
        counts = state.counts
        assert counts.messages == counts.recovered + counts.dead_letters + counts.waiting + counts.open
        assert np.unique(state.held["step"].to_numpy()).tolist() in ([], [0], [1], [0, 1])
    assert state.counts.failures > 20
