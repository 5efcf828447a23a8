"""The test kit: spouts that are fed, bolts that keep what they get, whole topologies run on given tuples."""

import pytest

from acker.errors import ArgumentValueError, TopologyError
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


MISFITS = {
    "too many": (["a", "b"], "stream 'default' takes 1 values, [word], got 2: ['a', 'b']"),
    "bare str": ("a", "stream 'default' takes 1 values, [word]; expected a list or tuple of them, got 'a'"),
    "no sequence": (7, "stream 'default' takes 1 values, [word]; expected a list or tuple of them, got 7"),
    "too few of a stream": (
        FixedTuple(["a"], "pairs"),
        "stream 'pairs' takes 2 values, [left, right], got 1: ['a']",
    ),
    "no such stream": (FixedTuple(["a"], "pears"), "there is no stream 'pears'; did you mean 'pairs'?"),
}


@pytest.mark.parametrize(("values", "text"), MISFITS.values(), ids=MISFITS)
def test_what_does_not_fit_the_fields_is_not_fed(values, text):
    class Words(FeederSpout):
        outputs = ["word", Stream(["left", "right"], "pairs")]

    class Fed(Topology):
        words = Words.spec()
        sink = CapturingBolt.fresh().spec(inputs=[words])

    with pytest.raises(ArgumentValueError) as caught:
        Words.feed(values, 1)
    assert (str(caught.value), Words.unfed()) == (f"Words.feed: {text}", 0)
    with pytest.raises(ArgumentValueError) as caught:
        complete_topology(Fed, {"words": [["a"], values]})
    assert str(caught.value) == f"feed: tuple 1 of spout 'words': {text}"


def test_the_kits_own_classes_say_how_to_make_one():
    with pytest.raises(TopologyError, match=r"FeederSpout\.with_outputs\('word'\)"):
        FeederSpout.spec()
    for call in (FeederSpout.end, FeederSpout.unfed, lambda: FeederSpout.feed(["a"])):
        with pytest.raises(ArgumentValueError, match=r"FeederSpout\.with_outputs\('word'\)"):
            call()
    with pytest.raises(TopologyError, match=r"CapturingBolt\.fresh\(\)"):
        CapturingBolt.spec(inputs=["words"])
    with pytest.raises(ArgumentValueError, match=r"CapturingBolt\.fresh\(\)"):
        CapturingBolt.tuples()


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


def test_completed_knows_its_names():
    done = complete_topology(Halves, {"numbers": []})
    assert done.tuples("half") == []
    with pytest.raises(ArgumentValueError, match="there is no component 'halve'; did you mean 'half'"):
        done.tuples("halve")
    with pytest.raises(ArgumentValueError, match="component 'half' has no stream 'side'; there are 'default'"):
        done.tuples("half", "side")


class Fragile(Half):
    auto_fail = False


class Crashing(Topology):
    numbers = Numbers.spec()
    half = Fragile.spec(inputs=[numbers])


def test_complete_topology_ends_with_what_escapes():
    with pytest.raises(ValueError, match="3 is odd"):
        complete_topology(Crashing, {"numbers": [[2], [3]]})


def test_complete_topology_restarts_if_it_may():
    done = complete_topology(Crashing, {"numbers": [[3]]}, no_restart=False)
    assert (done.report.restarts, done.trackers["numbers"].reason_of(0).kind) == (1, ReasonKind.RESTART)


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
