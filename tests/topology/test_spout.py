"""ReliableSpout: replays with back-off, attempts, dead letters; no tuple is lost silently."""

import logging
import random

import pytest

from acker.errors import TopologyError
from acker.topology import Reason, ReasonKind, ReliableSpout

FAILED = Reason(ReasonKind.FAILED, "split", 3, "ValueError: odd")


class Lines(ReliableSpout):
    outputs = ["line"]


class Keeping(ReliableSpout):
    """Keeps its dead letters."""

    outputs = ["line"]
    attempts_max = 3
    backoff_secs = 0.5
    backoff_secs_max = 1.5

    def __init__(self):
        super().__init__()
        self.dead = []

    def dead_letter(self, tup_id, values, reason):
        self.dead.append((tup_id, values, reason))


def test_what_failed_is_emitted_again_later_and_later(task):
    spout = Lines()
    collector = task.bind(spout)
    spout.emit(["a"], tup_id=1, stream="s", direct_task=5)
    waits = []
    for _ in range(3):
        assert spout._next_due_ms is None
        spout.fail(1, FAILED)
        due = spout._next_due_ms
        waits.append(due - collector.now)
        assert spout._replay_due(due - 1) == 0
        collector.now = due
        assert spout._replay_due(due) == 1
    assert waits == [1000, 2000, 4000]
    assert collector.emitted == [(("a",), 1, "s", 5)] * 4
    spout.ack(1)
    assert len(spout._replays) == 0 and spout._next_due_ms is None


def test_the_wait_has_a_limit(task):
    class Patient(Lines):
        attempts_max = 3001

    spout = Patient()
    collector = task.bind(spout)
    spout.emit(["a"], tup_id=1)
    waits = []
    for _ in range(1100):
        spout.fail(1)
        waits.append(spout._next_due_ms - collector.now)
        collector.now = spout._next_due_ms
        spout._replay_due(collector.now)
    assert waits[:8] == [1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]
    assert set(waits[6:]) == {60000}


def test_after_attempts_max_attempts_it_is_a_dead_letter(task, caplog):
    spout = Lines()
    collector = task.bind(spout)
    spout.finish()
    spout.emit(["a"], tup_id=1)
    for attempt in range(1, 5):
        assert not spout.finished
        assert spout._replays.attempt_of(1) == attempt
        spout.fail(1, FAILED)
        collector.now += 100_000
        spout._replay_due(collector.now)
    assert len(collector.emitted) == spout.attempts_max
    assert collector.counts == {"dead_letters": 1}
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage() == (
        "gave up tuple 1 after 4 attempts: failed in split[3]: ValueError: odd (attempt 4); values ('a',)"
    )
    assert spout.finished and spout._next_due_ms is None
    assert spout._replays.attempt_of(1) == 1


def test_dead_letters_go_where_the_spout_says(task):
    spout = Keeping()
    collector = task.bind(spout)
    spout.emit(["a"], tup_id="x")
    for _ in range(3):
        spout.fail("x", Reason(ReasonKind.TIMED_OUT))
        collector.now += 1500
        spout._replay_due(collector.now)
    assert spout.dead == [("x", ("a",), Reason(ReasonKind.TIMED_OUT, attempt=3))]
    assert collector.counts == {"dead_letters": 1}


def test_a_dead_letter_that_nobody_has_kept_comes_again(task):
    class DiskFull(Keeping):
        attempts_max = 1

        def dead_letter(self, tup_id, values, reason):
            super().dead_letter(tup_id, values, reason)
            if len(self.dead) == 1:
                raise OSError("disk full")

    spout, given_up = DiskFull(), []
    spout._on_dead_letter = lambda tup_id, *_: given_up.append(tup_id)
    collector = task.bind(spout)
    spout.emit(["a"], tup_id=1)
    spout.finish()
    with pytest.raises(OSError, match="disk full"):
        spout.fail(1, FAILED)
    assert not spout.finished and not spout._replays.ending
    assert (collector.counts, given_up) == ({}, [])
    assert spout._replay_due(spout._next_due_ms) == 1
    spout.fail(1, FAILED)
    assert [(tup_id, values, reason.attempt) for tup_id, values, reason in spout.dead] == [(1, ("a",), 1)] * 2
    assert (collector.counts, given_up) == ({"dead_letters": 1}, [1])
    assert spout.finished


def test_a_dead_letter_that_is_emitted_again_and_raises_is_open_once(task):
    class Again(Keeping):
        attempts_max = 1

        def dead_letter(self, tup_id, values, reason):
            self.emit(["b"], tup_id=tup_id)
            raise OSError("disk full")

    spout = Again()
    task.bind(spout)
    spout.emit(["a"], tup_id=1)
    with pytest.raises(OSError, match="disk full"):
        spout.fail(1)
    assert spout.unacked_tuples == {1: (("b",), None, None, False)} and spout._next_due_ms is None


def test_without_a_largest_number_of_attempts_no_tuple_is_given_up(task):
    class Stubborn(Keeping):
        attempts_max = None

    spout = Stubborn()
    collector = task.bind(spout)
    spout.emit(["a"], tup_id=1)
    for _ in range(100):
        spout.fail(1)
        collector.now += 100_000
        assert spout._replay_due(collector.now) == 1
    assert spout.dead == []


def test_the_name_of_pystorm_is_refused_where_it_would_have_no_effect():
    with pytest.raises(TopologyError, match=r"Old: max_fails, as of pystorm, has no effect here; set attempts_max"):

        class Old(Lines):
            max_fails = 5


def test_one_attempt_replays_nothing(task):
    class Once(Keeping):
        attempts_max = 1

    spout = Once()
    task.bind(spout)
    spout.emit(["a"], tup_id=1)
    spout.fail(1)
    assert [tup_id for tup_id, _, _ in spout.dead] == [1]


@pytest.mark.parametrize("kind", [ReasonKind.RESTART, ReasonKind.SHUTDOWN])
def test_a_restart_is_not_the_tuples_fault(task, kind):
    spout = Keeping()
    collector = task.bind(spout)
    spout.emit(["a"], tup_id=1)
    for _ in range(10):
        spout.fail(1, Reason(kind))
        collector.now += 1500
        assert spout._replay_due(collector.now) == 1
    assert spout.dead == [] and spout._replays.attempt_of(1) == 1


def test_the_ledger_survives_the_spout(task):
    first, second = Keeping(), Keeping()
    task.bind(first)
    first.emit(["a"], tup_id=1)
    first.emit(["b"], tup_id=2)
    first.fail(1)
    second._replays = first._replays
    collector = task.bind(second)
    assert second._next_due_ms == 500 and not second.finished
    assert second._replay_due(500) == 1
    second.fail(2)
    second.ack(1)
    assert second._replay_due(5000) == 1
    assert [tup_id for _, tup_id, _, _ in collector.emitted] == [1, 2]


def test_replays_come_in_the_order_they_are_due_and_no_more_than_asked_for(task):
    spout = Keeping()
    collector = task.bind(spout)
    for number in range(5):
        spout.emit([number], tup_id=number)
    for number in (3, 1, 4):
        spout.fail(number)
        collector.now += 10
    assert spout._replay_due(10_000, limit=0) == 0
    assert spout._replay_due(10_000, limit=2) == 2
    assert spout._replay_due(10_000) == 1
    assert [tup_id for _, tup_id, _, _ in collector.emitted[5:]] == [3, 1, 4]


def test_an_untracked_tuple_leaves_no_trace(task):
    spout = Lines()
    collector = task.bind(spout)
    assert spout.emit(["a"], need_task_ids=True) == [7]
    assert collector.emitted == [(["a"], None, None, None)] and len(spout._replays) == 0


def test_an_ack_from_inside_of_emit_is_heard(task):
    """A runtime without ackers acks at once."""
    spout = Lines()
    collector = task.bind(spout)
    collector.emit = lambda values, tup_id, *_: spout.ack(tup_id)
    spout.emit(["a"], tup_id=1)
    assert len(spout._replays) == 0


def test_a_tuple_that_waits_may_be_emitted_by_the_spout_itself(task):
    """As spouts for pystorm do that override fail()."""
    spout = Keeping()
    collector = task.bind(spout)
    spout.emit(["a"], tup_id=1)
    spout.fail(1)
    spout.emit(["b"], tup_id=1)
    assert spout._replays.attempt_of(1) == 2 and spout._next_due_ms is None
    assert spout._replay_due(10_000) == 0
    assert len(collector.emitted) == 2
    spout.emit(["c"], tup_id=1)  # still open: no further attempt
    assert spout._replays.attempt_of(1) == 2


def test_outcomes_of_tuples_that_are_not_open_are_logged_and_ignored(task, caplog):
    spout = Keeping()
    task.bind(spout)
    spout.ack("none")
    spout.fail("none")
    spout.emit(["a"], tup_id=1)
    spout.fail(1)
    spout.fail(1)
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, "ack of a tuple that is not open: 'none'"),
        (logging.WARNING, "fail of a tuple that is not open: 'none'"),
        (logging.WARNING, "fail of a tuple that is not open: 1"),
    ]
    spout.ack(1)  # late, but it is done: no replay
    assert spout._replay_due(10_000) == 0


def test_pystorms_records_can_be_read(task):
    spout = Keeping()
    collector = task.bind(spout)
    for number in (1, 2):
        spout.emit([number], tup_id=number)
    spout.fail(2)
    assert spout.unacked_tuples == {1: ((1,), None, None, False), 2: ((2,), None, None, False)}
    assert spout.failed_tuples == {2: 1}
    collector.now = 500
    spout._replay_due(500)
    assert spout.failed_tuples == {2: 1}


@pytest.mark.parametrize("seed", range(30))
def test_every_tuple_ends_acked_or_dead_whatever_happens(task, seed):
    rng = random.Random(seed)
    spout = Keeping()
    collector = task.bind(spout)
    waits_ms = {1: 500, 2: 1000}  # by attempt
    attempt: dict[int, int] = {}  # of each tuple that has not ended
    due: dict[int, int] = {}  # of those that wait
    acked, dead, emissions = [], [], 0

    def replay():
        nonlocal emissions
        ready = {tup_id for tup_id, at in due.items() if at <= collector.now}
        assert spout._replay_due(collector.now) == len(ready)
        assert {tup_id for _, tup_id, _, _ in collector.emitted[emissions:]} == ready
        for tup_id in ready:
            del due[tup_id]
            attempt[tup_id] += 1
        emissions += len(ready)

    for number in range(300):
        action = (
            rng.choice(["emit", "ack", "fail", "fail", "time"]) if number < 250 else rng.choice(["ack", "fail", "time"])
        )
        still_open = [tup_id for tup_id in attempt if tup_id not in due]
        if action == "emit":
            spout.emit([number], tup_id=number)
            attempt[number] = 1
            emissions += 1
        elif action == "time":
            collector.now += rng.randrange(800)
            replay()
        elif still_open:
            tup_id = rng.choice(still_open)
            if action == "ack":
                spout.ack(tup_id)
                acked.append(tup_id)
                del attempt[tup_id]
            else:
                spout.fail(tup_id, Reason(rng.choice([ReasonKind.FAILED, ReasonKind.TIMED_OUT, ReasonKind.REJECTED])))
                if attempt[tup_id] >= spout.attempts_max:
                    dead.append(tup_id)
                    del attempt[tup_id]
                else:
                    due[tup_id] = collector.now + waits_ms[attempt[tup_id]]
        assert spout._next_due_ms == min(due.values(), default=None)
        assert len(spout._replays) == len(attempt)
        assert [tup_id for tup_id, _, _ in spout.dead] == dead
    assert not set(acked) & set(dead)
    assert all(reason.attempt == 3 for _, _, reason in spout.dead)
