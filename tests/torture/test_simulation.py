"""The local runtime keeps its promises in random topologies under faults, and the simulation would notice if not."""

import itertools
import re

import numpy as np
import pytest

from acker._engine.ids import IdGenerator
from acker._engine.protocol import Kind
from acker._flow import AllGrouping, ShuffleGrouping
from acker.local import batch_collectors, routing, wiring
from acker.local.collectors import LocalBoltCollector, LocalSpoutCollector
from acker.local.executors import acker as ackers
from acker.local.executors.acker import AckerExecutor
from acker.local.executors.base import ComponentExecutor
from acker.local.executors.spout import SpoutTask
from acker.local.queues import Queue
from acker.topology import Tuple
from acker.topology.replays import ReplayTable
from tests.marks import slow_after
from tests.torture.simulation import SimulationError, plan_of, simulate, simulate_with_threads
from tests.torture.simulation.__main__ import main
from tests.torture.simulation.components import LOCK, ManualBolt
from tests.torture.simulation.plan import with_batches
from tests.torture.simulation.record import RunRecord

SEEDS = 600  # `make soak` has more
CHUNK = 50
QUICK_SEEDS = 100  # of them in `make test`
# Within how many seeds each bug has to be noticed.
NOTICED_WITHIN = 400


def simulate_some(*, batches=False):
    for seed in range(NOTICED_WITHIN):
        simulate(seed, batches=batches)


@pytest.mark.parametrize("first", slow_after(QUICK_SEEDS // CHUNK, range(0, SEEDS, CHUNK)))
def test_promises_are_kept(first):
    deliveries = sum(simulate(seed).deliveries for seed in range(first, first + CHUNK))
    assert deliveries > CHUNK, "hardly anything happened"


@pytest.mark.parametrize("first", slow_after(1, range(0, 16, 4)))
def test_promises_are_kept_by_threads(first):
    for seed in range(first, first + 4):
        simulate_with_threads(seed)


def test_threads_note_what_they_emit_before_others_can_receive_it(monkeypatch):
    alone, deliver = [], RunRecord._deliver

    def watched(self, *rest):
        alone.append(LOCK._is_owned())
        deliver(self, *rest)

    monkeypatch.setattr(RunRecord, "_deliver", watched)
    seeds = (seed for seed in itertools.count() if any(spout.kind == "reliable" for spout in plan_of(seed).spouts))
    for seed in itertools.islice(seeds, 4):
        simulate_with_threads(seed)
    assert alone and all(alone)


def test_seeds_cover_what_can_happen():
    plans = [plan_of(seed) for seed in range(500)]
    assert {bolt.kind for plan in plans for bolt in plan.bolts} >= {"auto", "manual", "aggregate", "batching", "keeper"}
    assert {one.grouping for plan in plans for bolt in plan.bolts for one in bolt.inputs} >= {"fields", "all", "direct"}
    assert {plan.end for plan in plans} == {"drained", "stop", "abort"}
    assert {len(plan.spouts) for plan in plans} == {1, 2, 3} and max(len(plan.bolts) for plan in plans) == 6
    for fault in ("slow", "freeze", "reorder", "delay", "restore", "jump", "crashes", "takes_ms"):
        assert 20 < sum(getattr(plan.faults, fault) > 0 for plan in plans) < 400, fault
    missing = {"ACKED", "FAILED", "TIMED_OUT", "REJECTED", "RESTART", "SHUTDOWN"}
    for seed in sorted(range(300), key=lambda seed: not plans[seed].risks.rejects):  # the rarest first
        missing.difference_update(simulate(seed).outcomes)
        if not missing:
            break
    assert not missing


def test_a_seed_is_replayed_step_by_step():
    def replay(seed):
        lines = []
        return simulate(seed, say=lines.append), lines

    for seed in range(5):
        assert replay(seed) == replay(seed)
    assert replay(1)[1] != replay(2)[1]


def test_the_program_replays_and_soaks(capsys, monkeypatch):
    assert main(["--seed", "3"]) == 0
    assert "seed 3 keeps all promises" in capsys.readouterr().out
    assert main(["--seeds", "3:6"]) == 0
    assert capsys.readouterr().out.startswith("3 seeds, ")
    assert main(["--seconds", "0"]) == 0, "one seed is always run"
    assert capsys.readouterr().out.startswith("1 seeds, ")
    assert main(["--seeds", "3:3"]) == 1, "a soak that ran nothing has found nothing"
    monkeypatch.setattr(*acks_before_what_it_emitted_is_done())
    capsys.readouterr()
    assert main(["--seeds", "0:50"]) == 1
    found = re.search(r"replay: python -m tests.torture.simulation --seed (\d+)\)", capsys.readouterr().out)
    assert main(["--seed", found[1]]) == 1
    assert found[0] in capsys.readouterr().out


def test_a_component_that_is_broken_itself_is_no_fault_of_the_plan(monkeypatch):
    def broken(self, tup):
        raise TypeError("not planned")

    monkeypatch.setattr(ManualBolt, "process", broken)
    with pytest.raises(SimulationError, match="TypeError: not planned"):
        simulate_some()


# Bugs to be put into the runtime: each is a plausible slip, and returns what to patch: (where, name, by what).


def messages(change):
    """Let the messages that ackers read be changed: a function of the columns that returns which rows to keep."""
    real = ackers.columns_of

    def columns_of(letters):
        columns = real(letters)
        keep = change(*columns)
        return tuple(column[keep] for column in columns)

    return ackers, "columns_of", columns_of


def forgets_some_oks():
    return messages(lambda kind, root, *_: (kind != Kind.OK) | (root % 4 != 0))


def forgets_fails():
    return messages(lambda kind, *_: kind != Kind.FAIL)


def forgets_resets():
    return messages(lambda kind, *_: kind != Kind.RESET_TIMEOUT)


def takes_fails_for_oks():
    def fail(self, tup, reason=None):
        self.ack(tup)

    return LocalBoltCollector, "fail", fail


def anchoring(anchors_of, *, answers=True):
    """Let bolts anchor to what a function makes of the anchors, which may not answer for what is emitted."""
    real = LocalBoltCollector.emit

    def emit(self, tup, stream=None, anchors=None, direct_task=None, need_task_ids=False):
        anchors = anchors_of(self.inputs if anchors is None and self.auto_anchor else tuple(anchors or ()))
        before = [anchor._ack_val for anchor in anchors]
        tasks = real(self, tup, stream, anchors, direct_task, need_task_ids)
        for anchor, ack_val in zip(anchors, before, strict=True):
            if not answers:
                anchor._ack_val = ack_val
        return tasks

    return LocalBoltCollector, "emit", emit


def acks_before_what_it_emitted_is_done():
    return anchoring(lambda anchors: anchors, answers=False)


def anchors_to_the_first_tuple_only():
    return anchoring(lambda anchors: anchors[:1])


def gives_all_deliveries_one_id():
    class OneId(IdGenerator):
        def take(self, count):
            return np.repeat(super().take(count), 3)

    return wiring, "IdGenerator", OneId


def chunks(times):
    """Let queues take in some chunks of tuples so many times instead of once."""
    real, count = Queue.put, itertools.count(1)

    def put(self, chunk, items):
        is_odd = isinstance(chunk, tuple) and isinstance(chunk[1][0], Tuple) and next(count) % 20 == 0
        for _ in range(times if is_odd else 1):
            real(self, chunk, items)

    return Queue, "put", put


def delivers_twice():
    return chunks(2)


def loses_deliveries():
    return chunks(0)


def wakes_nobody():
    def put(self, chunk, items):
        self._chunks.append(chunk)
        self.size += items

    return Queue, "put", put


def lets_queues_grow():
    return Queue, "has_room", lambda self, producer: True


def times_out_early():
    real = AckerExecutor._rotate

    def rotate(self):
        real(self)
        self._rotate_at -= self._period_ns // 2

    return AckerExecutor, "_rotate", rotate


def forgets_what_is_open_when_it_stops_or_restarts():
    return LocalSpoutCollector, "fail_all", lambda self, kind: self.pending.clear()


def tracks_nothing_again_when_an_acker_is_lost():
    return LocalSpoutCollector, "track_again", lambda self: None


def forgets_replays_at_a_restart():
    def inherit(self, previous):
        self.collector.inherit(previous.collector)

    return SpoutTask, "inherit", inherit


def spreads_keys():
    return routing, "_by_fields", lambda positions, outlets: ShuffleGrouping(outlets, 0)


def leaves_one_task_of_all_out():
    return routing, "AllGrouping", lambda outlets: AllGrouping(list(outlets)[:-1] if len(outlets) > 2 else outlets)


def sends_at_the_end_of_a_step_only():
    return ComponentExecutor, "flush_early", lambda self: False


BUGS = {
    sends_at_the_end_of_a_step_only: "what was done a millisecond before has not left",
    forgets_some_oks: "TIMED_OUT: but all derived work was done",
    forgets_fails: "one failed.* ended as TIMED_OUT: but it had been failed",
    forgets_resets: "but the timeout is",
    takes_fails_for_oks: "one failed.* ended as ACKED",
    acks_before_what_it_emitted_is_done: "ACKED: but not all derived work was done|TIMED_OUT: but all",
    anchors_to_the_first_tuple_only: "ACKED: but not all derived work was done",
    gives_all_deliveries_one_id: "ACKED: but not all derived work was done",
    delivers_twice: "was handed tuple .* twice",
    loses_deliveries: "never reached task",
    wakes_nobody: "never reached task|not reached within|TIMED_OUT: but",
    lets_queues_grow: "the queue of .* held",
    times_out_early: "but the timeout is",
    forgets_what_is_open_when_it_stops_or_restarts: "never reached its spout|neither been acked|not reached within",
    tracks_nothing_again_when_an_acker_is_lost: "never reached its spout|not reached within",
    forgets_replays_at_a_restart: "neither been acked nor given up|not reached within",
    spreads_keys: "by fields: key",
    leaves_one_task_of_all_out: "by all: key",
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_bugs_are_noticed(bug, monkeypatch):
    where, name, patched = bug()
    monkeypatch.setattr(where, name, patched)
    with pytest.raises(SimulationError, match=BUGS[bug]):
        simulate_some()


# --- Arrow batches ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", slow_after(1, range(0, 4 * CHUNK, CHUNK)))
def test_promises_are_kept_for_rows_of_batches(first):
    count = CHUNK // 2 if first == 0 else CHUNK
    assert sum(simulate(seed, batches=True).deliveries for seed in range(first, first + count)) > CHUNK


def test_a_restored_acker_that_tells_the_outcome_of_a_row_twice_acks_it_once():
    simulate(1423, batches=True)  # found by `make soak`


def test_plans_with_batches_have_them_and_threads_keep_the_promises_too():
    plans = [with_batches(plan_of(seed)) for seed in range(100)]
    kinds = {part.kind for plan in plans for part in (*plan.spouts, *plan.bolts)}
    assert kinds >= {"batches", "reliable batches", "arrow", "auto", "tracked", "retrying", "keeper"}
    for seed in range(3):
        simulate_with_threads(seed, batches=True)


@pytest.mark.parametrize("bug", ["parents", "failures", "again"])
def test_bugs_of_batches_are_noticed(bug, monkeypatch):
    if bug == "parents":  # an id that is in no ack val
        monkeypatch.setattr(batch_collectors, "output_ids", lambda left, positions, take: take(positions.size))
    elif bug == "failures":
        settle = batch_collectors.ArrowBoltCollector.settle
        monkeypatch.setattr(
            batch_collectors.ArrowBoltCollector, "settle", lambda self, batch, vals, _: settle(self, batch, vals, {})
        )
    else:
        forget = lambda self, batch, rows, due_ms, counted: self.forget_rows(batch, rows)  # noqa: E731
        monkeypatch.setattr(ReplayTable, "schedule_rows", forget)
    with pytest.raises(SimulationError):
        simulate_some(batches=True)
