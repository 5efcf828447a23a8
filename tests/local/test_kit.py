"""The test kit: spouts that are fed, bolts that keep what they get, whole topologies run on given tuples."""

import pytest

from acker.errors import ArgumentValueError
from acker.testing import (
    AckFailTracker,
    Captured,
    CapturingBolt,
    FeederSpout,
    FixedTuple,
    Scheduler,
    SchedulerError,
    complete_topology,
)
from acker.topology import Bolt, Reason, ReasonKind, Spout, Stream, Topology


def test_a_tracker_keeps_what_it_is_told():
    tracker, reason = AckFailTracker(), Reason(ReasonKind.FAILED, "bolt")
    tracker.ack(1)
    tracker.fail(2, reason)
    tracker.fail(3)
    tracker.ack(1)
    assert (tracker.acked, tracker.failed) == ([1, 1], [2, 3])
    assert tracker.is_acked(1) and not tracker.is_acked(2)
    assert tracker.is_failed(2) and not tracker.is_failed(1)
    assert (tracker.reason_of(2), tracker.reason_of(3), tracker.reason_of(1)) == (reason, None, None)
    tracker.clear()
    assert tracker.acked == tracker.failed == tracker.reasons == []


def test_each_feeder_has_its_own_feed_and_tracker():
    class Words(FeederSpout):
        outputs = ["word"]

    class OtherWords(Words):
        pass

    ready = Words.with_outputs("word", Stream(["side"], "side"))
    Words.feed(["a"])
    assert (Words.unfed(), OtherWords.unfed(), ready.unfed()) == (1, 0, 0)
    assert len({id(one.tracker) for one in (Words, OtherWords, ready)}) == 3


def test_a_feeder_that_has_ended_takes_no_more():
    feeder = FeederSpout.with_outputs("word")
    feeder.end()
    with pytest.raises(ArgumentValueError, match="end\\(\\) said"):
        feeder.feed(["a"])


def test_tasks_share_a_feed_and_untracked_tuples_end_nowhere():
    feeder, sink = FeederSpout.with_outputs("word", Stream(["word"], "side")), CapturingBolt.fresh()

    class Shared(Topology):
        words = feeder.spec(par=3)
        last = sink.spec(inputs=[words, words["side"]])

    with Scheduler.of(Shared) as scheduler:
        feeder.feed(["a"], "tracked")
        feeder.feed(["b"])
        feeder.feed(FixedTuple(["c"], "side"), 3)
        scheduler.settle()
        assert sorted(sink.tuples()) == [("a",), ("b",), ("c",)]
        assert sink.tuples(stream="side") == [("c",)] and sink.tuples(component="last") == []
        last = scheduler.runtime.graph.nodes["last"].tasks[0]
        assert Captured("words", "side", last, ("c",)) in sink.captured
        assert sorted(map(str, feeder.tracker.acked)) == ["3", "tracked"]


class Half(Bolt):
    outputs = ["half"]

    def process(self, tup):
        if tup.num % 2:
            raise ValueError(f"{tup.num} is odd")
        self.emit([tup.num // 2])


class Numbers(Spout):
    outputs = ["num"]

    def initialize(self, conf, context):
        self.left = [2, 4]

    def next_tuple(self):
        if self.left:
            self.emit([self.left.pop()], tup_id=len(self.left))
        else:
            self.finish()


class Halves(Topology):
    numbers = Numbers.spec()
    half = Half.spec(inputs=[numbers], par=2)


class Quarter(Bolt):
    outputs = ["quarter"]

    def process(self, tup):
        self.emit([tup.half / 2])


@pytest.mark.parametrize("seed", range(5))
def test_complete_topology(seed):
    class Quarters(Halves):
        quarter = Quarter.spec(inputs=[Halves.half])

    done = complete_topology(Quarters, {"numbers": [[8], [3], [12]]}, seed=seed)
    assert done.tuples("numbers") == [(8,), (3,), (12,)]
    assert sorted(done.tuples("half")) == [(4,), (6,)]
    assert sorted(done.tuples("quarter")) == [(2,), (3,)]
    assert done.tuples("half", "side") == []
    assert (sorted(done.trackers["numbers"].acked), done.trackers["numbers"].failed) == ([0, 2], [1])
    assert done.trackers["numbers"].reason_of(1).exception == "ValueError: 3 is odd"
    assert (done.acked, done.failed) == (2, 1)


def test_complete_topology_lets_other_spouts_run_as_they_are():
    class Plain(Topology):
        numbers = Numbers.spec()
        half = Half.spec(inputs=[numbers])

    done = complete_topology(Plain, {})
    assert sorted(done.tuples("half")) == [(1,), (2,)]
    assert (dict(done.trackers), done.report.outcome) == ({}, "drained")


def test_complete_topology_takes_only_spouts():
    class Plain(Topology):
        numbers = Numbers.spec()
        half = Half.spec(inputs=[numbers])

    for name in ("half", "nobody"):
        with pytest.raises(ArgumentValueError, match=f"'{name}' is no spout of Plain; its spouts are 'numbers'"):
            complete_topology(Plain, {name: []})


def test_complete_topology_cannot_wait_for_a_spout_without_end():
    class Endless(Topology):
        more = FeederSpout.with_outputs("num").spec()
        numbers = Numbers.spec()
        half = Half.spec(inputs=[numbers])

    with pytest.raises(SchedulerError, match="seed 5"):
        complete_topology(Endless, {"numbers": [[2]]}, seed=5, steps_max=500)
