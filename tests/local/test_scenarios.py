"""The scenarios A to F of FsShelter's page *Message flow*, on a clock that the tests turn, in the order of a seed."""

from collections import deque
from itertools import pairwise

import pytest

from acker.testing import CapturingBolt, FeederSpout, Scheduler
from acker.topology import Bolt, Grouping, ReasonKind, Spout, Topology

SEEDS = range(5)


def pending(scheduler):
    return scheduler.runtime.stats().totals.pending


class Pass(Bolt):
    """Emits what it gets."""

    outputs = ["number"]

    def process(self, tup):
        self.emit([tup.number])


class Hold(Bolt):
    """Acks and fails what it holds when it is told to."""

    auto_ack = False

    def initialize(self, conf, context):
        self.held = {}

    def process(self, tup):
        if tup.component == "orders":
            settle = {"ack": self.ack, "fail": self.fail}[tup.what]
            settle(self.held.pop(tup.number))
            self.ack(tup)
        else:
            self.held[tup.number] = tup


@pytest.mark.parametrize("seed", SEEDS)
def test_a_unreliable_pipeline(seed):
    numbers, sink = FeederSpout.with_outputs("number"), CapturingBolt.fresh()

    class Pipeline(Topology):
        spout = numbers.spec()
        first = Pass.spec(inputs=[spout], par=2)
        last = sink.spec(inputs=[first])

    with Scheduler.of(Pipeline, seed=seed) as scheduler:
        for number in range(20):
            numbers.feed([number])
        scheduler.settle()
        assert sorted(sink.tuples()) == [(number,) for number in range(20)]
        # Nothing is tracked: no ids, no messages, nobody hears anything.
        assert pending(scheduler) == 0
        assert len(scheduler.runtime.ackers[0].acker) == 0
        assert scheduler.runtime.ackers[0].messages == 0
    assert numbers.tracker.acked == numbers.tracker.failed == []


@pytest.mark.parametrize("seed", SEEDS)
def test_b_reliable_flow(seed):
    numbers, sink = FeederSpout.with_outputs("number"), CapturingBolt.fresh()

    class Pipeline(Topology):
        spout = numbers.spec()
        first = Pass.spec(inputs=[spout])
        last = sink.spec(inputs=[first])

    with Scheduler.of(Pipeline, seed=seed) as scheduler:
        scheduler.settle()
        scheduler.freeze("last*")
        numbers.feed([7], tup_id="m7")
        scheduler.settle()
        # Bolt 1 has acked; what it emitted is not done, so the accumulator holds that tuple's id.
        assert scheduler.runtime.stats().components()["first"].acked == 1
        assert pending(scheduler) == 1 and len(scheduler.runtime.ackers[0].acker) == 1
        assert numbers.tracker.acked == []
        scheduler.thaw()
        scheduler.settle()
        assert numbers.tracker.acked == ["m7"] and numbers.tracker.failed == []
        assert pending(scheduler) == 0 and len(scheduler.runtime.ackers[0].acker) == 0
        # TRACK and one OK for each of the bolts: an ack is one message, whatever was emitted.
        assert scheduler.runtime.ackers[0].messages == 3
    assert scheduler.clock.now_ns() == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_c_backpressure_at_max_pending_resuming_on_ack_and_on_fail(seed):
    numbers, told = FeederSpout.with_outputs("number"), FeederSpout.with_outputs("what", "number")

    class Pipeline(Topology):
        config = {"topology.max.spout.pending": 3}
        spout = numbers.spec()
        orders = told.spec()
        bolt = Hold.spec(inputs=[spout, orders])

    with Scheduler.of(Pipeline, seed=seed) as scheduler:
        for number in range(10):
            numbers.feed([number], tup_id=number)
        scheduler.settle()
        assert (pending(scheduler), numbers.waiting_count()) == (3, 7)
        told.feed(["ack", 1])
        scheduler.settle()
        assert (numbers.tracker.acked, pending(scheduler), numbers.waiting_count()) == ([1], 3, 6)
        told.feed(["fail", 0])
        scheduler.settle()
        assert (numbers.tracker.failed, pending(scheduler), numbers.waiting_count()) == ([0], 3, 5)
        assert numbers.tracker.acked == [1]
        scheduler.stop(drain_secs=0)
    assert numbers.waiting_count() == 5
    assert {reason.kind for reason in numbers.tracker.reasons[1:]} == {ReasonKind.SHUTDOWN}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("buckets", "longest_secs"), [(2, 60), (3, 45), (4, 40)])
def test_d_timeout_of_a_tuple_that_is_never_acked(seed, buckets, longest_secs):
    numbers = FeederSpout.with_outputs("number")

    class Pipeline(Topology):
        config = {"topology.message.timeout.secs": 30, "topology.acker.buckets": buckets}
        spout = numbers.spec()
        bolt = Hold.spec(inputs=[spout])

    with Scheduler.of(Pipeline, seed=seed) as scheduler:
        scheduler.advance(1)
        numbers.feed([1], tup_id="lost")
        scheduler.settle()
        scheduler.advance(30)
        assert numbers.tracker.failed == [] and pending(scheduler) == 1
        scheduler.advance(longest_secs - 30)
        assert numbers.tracker.failed == ["lost"] and pending(scheduler) == 0
        reason = numbers.tracker.reason_of("lost")
        assert (reason.kind, reason.attempt) == (ReasonKind.TIMED_OUT, 1)
        scheduler.advance(1000)
        assert numbers.tracker.failed == ["lost"], "once"
        assert numbers.tracker.acked == []


@pytest.mark.parametrize("seed", SEEDS)
def test_e_bolt_failure_fails_at_once(seed):
    numbers = FeederSpout.with_outputs("number")

    class Divide(Bolt):
        def process(self, tup):
            12 / tup.number

    class Pipeline(Topology):
        spout = numbers.spec()
        first = Pass.spec(inputs=[spout])
        divide = Divide.spec(inputs={first: Grouping.global_}, par=2)

    with Scheduler.of(Pipeline, seed=seed) as scheduler:
        for number in (3, 0, 4):
            numbers.feed([number], tup_id=number)
        scheduler.settle()
        assert sorted(numbers.tracker.acked) == [3, 4]
        assert numbers.tracker.failed == [0]
        reason = numbers.tracker.reason_of(0)
        assert (reason.kind, reason.component, reason.attempt) == (ReasonKind.FAILED, "divide", 1)
        assert reason.task == min(scheduler.runtime.graph.nodes["divide"].tasks)
        assert reason.exception.startswith("ZeroDivisionError")
        assert scheduler.clock.now_ns() == 0, "nobody waited for a timeout"
        # The bolt lives on; the same id may be tried again, and the attempts are counted.
        numbers.feed([0], tup_id=0)
        scheduler.settle()
        assert numbers.tracker.reasons[1].attempt == 2


class Crashing(Spout):
    """Starts well and raises when it is asked for a tuple, as often as it is told."""

    outputs = ["number"]
    starts = deque()
    crashes = 10**9

    def initialize(self, conf, context):
        self.starts.append(self._collector.now_ms() / 1000)

    def next_tuple(self):
        if len(self.starts) <= self.crashes:
            raise OSError(f"crash {len(self.starts)}")


def crashing(crashes=10**9):
    spout = type("Crashing", (Crashing,), {"starts": deque(), "crashes": crashes})

    class Pipeline(Topology):
        source = spout.spec()
        sink = CapturingBolt.fresh().spec(inputs=[source])

    return spout, Pipeline


@pytest.mark.parametrize("seed", SEEDS)
def test_f_restart_on_an_unhandled_exception_with_growing_back_off(seed):
    spout, topology = crashing()
    scheduler = Scheduler.of(topology, seed=seed, max_restarts=7)
    scheduler.run("stopped")
    starts = list(spout.starts)
    assert [after - before for before, after in pairwise(starts)] == [2, 4, 8, 16, 30, 30, 30]
    assert str(scheduler.runtime.error) == "crash 8"
    report = scheduler.runtime.report()
    assert (report.outcome, report.restarts, report.error) == ("failed", 7, "OSError: crash 8")


def test_f_stops_after_five_restarts_unless_told_otherwise():
    spout, topology = crashing()
    scheduler = Scheduler.of(topology)
    scheduler.run("stopped")
    assert len(spout.starts) == 6
    assert isinstance(scheduler.runtime.error, OSError)


def test_f_no_restart_stops_at_once():
    spout, topology = crashing()
    scheduler = Scheduler.of(topology, no_restart=True)
    scheduler.run("stopped")
    assert (len(spout.starts), str(scheduler.runtime.error)) == (1, "crash 1")
    assert scheduler.clock.now_ns() == 0


def test_f_goes_on_after_a_restart():
    spout, topology = crashing(crashes=2)
    with Scheduler.of(topology) as scheduler:
        scheduler.advance(6)
        assert (list(spout.starts), scheduler.runtime.state) == ([0, 2, 6], "running")
    assert scheduler.runtime.error is None


def test_f_open_trees_are_failed_to_the_spout_that_runs_next():
    numbers, told = FeederSpout.with_outputs("number"), FeederSpout.with_outputs("what", "number")

    class Brittle(Hold):
        auto_fail = False

    class Pipeline(Topology):
        spout = numbers.spec()
        orders = told.spec()
        bolt = Brittle.spec(inputs=[spout, orders])

    with Scheduler.of(Pipeline) as scheduler:
        numbers.feed([1], tup_id=1)
        numbers.feed([2], tup_id=2)
        scheduler.settle()
        told.feed(["ack", 99])  # a KeyError, which escapes
        scheduler.settle()
        assert scheduler.runtime.state == "restarting"
        assert sorted(numbers.tracker.failed) == [1, 2]
        assert {reason.kind for reason in numbers.tracker.reasons} == {ReasonKind.RESTART}
        scheduler.advance(2)
        assert scheduler.runtime.state == "running"
        numbers.feed([1], tup_id=1)
        scheduler.settle()
        told.feed(["ack", 1])
        scheduler.settle()
        assert numbers.tracker.acked == [1]
    assert len(numbers.tracker.failed) == 2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("who", ["spout*", "__acker*"])
def test_f_a_spout_that_was_not_told_is_told_after_the_restart(seed, who):
    """It hangs while the topology restarts, or its acker does; its tuples have an end nevertheless, and one only."""
    numbers, told = FeederSpout.with_outputs("number"), FeederSpout.with_outputs("what", "number")

    class Brittle(Hold):
        auto_fail = False

    class Pipeline(Topology):
        config = {"topology.message.timeout.secs": 30}
        spout = numbers.spec()
        orders = told.spec()
        bolt = Brittle.spec(inputs=[spout, orders])

    with Scheduler.of(Pipeline, seed=seed) as scheduler:
        numbers.feed([1], tup_id=1)
        scheduler.settle()
        scheduler.freeze(who)
        told.feed(["ack", 99])  # a KeyError, which escapes
        scheduler.advance(31 + 31 + 1)
        assert numbers.tracker.failed == []
        scheduler.thaw()
        scheduler.advance(3)
        assert numbers.tracker.failed == [1]
        assert numbers.tracker.reason_of(1).kind is ReasonKind.RESTART
        scheduler.advance(100)
    assert (numbers.tracker.failed, numbers.tracker.acked) == ([1], [])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stop_does_not_wait_for_ever_for_a_component_that_never_comes_up(seed):
    """One executor hangs in `initialize`; the stop takes its time to drain, abandons it, and names it."""
    numbers, sink = FeederSpout.with_outputs("number"), CapturingBolt.fresh()

    class Pipeline(Topology):
        spout = numbers.spec()
        bolt = sink.spec(inputs=[spout], par=2)

    scheduler = Scheduler.of(Pipeline, seed=seed)
    scheduler.run(lambda: len(scheduler.runtime.steppables) > 3)  # the bolts have their threads, and nothing more
    scheduler.freeze("bolt[[]3[]]")
    scheduler.advance(100)
    assert scheduler.runtime.state == "new"
    report = scheduler.stop(drain_secs=5)
    assert scheduler.runtime.has_ended
    assert [(one.component, one.task) for one in report.abandoned] == [("bolt", 3)]
    assert scheduler.clock.now_ns() <= 120 * 10**9
