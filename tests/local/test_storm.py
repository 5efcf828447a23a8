"""Storm's integration tests (org.apache.storm.integration.TopologyIntegrationTest), by name, without its sleeping.

The facts are Storm's: which topology, what is fed, what has to be acked when. Times are this runtime's, whose timeouts
are those of docs/protocol.md.
"""

import logging

import pytest

from acker.local import Hook
from acker.testing import AckFailTracker, CapturingBolt, FeederSpout, FixedTuple, Scheduler, complete_topology
from acker.topology import Bolt, Grouping, ReasonKind, Stream, Topology, TopologyError

SEEDS = range(5)


class Identity(Bolt):
    outputs = ["num"]

    def process(self, tup):
        self.emit(list(tup))


class Branching(Bolt):
    """Emits so many tuples for one."""

    outputs = ["num"]
    branches = 1

    def process(self, tup):
        for branch in range(self.branches):
            self.emit([branch])


def branching(branches):
    return type("Branching", (Branching,), {"branches": branches})


class Agg(Bolt):
    """Waits for so many tuples, emits one that is anchored to all of them, and acks them."""

    outputs = ["num"]
    auto_ack = False
    amount = 1

    def initialize(self, conf, context):
        self.seen = []

    def process(self, tup):
        self.seen.append(tup)
        if len(self.seen) == self.amount:
            self.emit([sum(seen.num for seen in self.seen)], anchors=self.seen)
            for seen in self.seen:
                self.ack(seen)
            self.seen = []


def agg(amount):
    return type("Agg", (Agg,), {"amount": amount})


class AckFeeder:
    """A spout that is fed numbered tuples, and how many were acked since somebody last asked."""

    def __init__(self):
        self.spout = FeederSpout.with_outputs("num")
        self.fed = 0

    def feed(self, *values):
        self.spout.feed(values or [1], tup_id=self.fed)
        self.fed += 1

    def acks(self):
        count = len(self.spout.tracker.acked)
        self.spout.tracker.clear()
        return count


@pytest.mark.parametrize("seed", SEEDS)
def test_basic_topology(seed):
    class WordCounter(Bolt):
        outputs = ["word", "count"]

        def initialize(self, conf, context):
            self.counts = {}

        def process(self, tup):
            self.counts[tup.word] = self.counts.get(tup.word, 0) + 1
            self.emit([tup.word, self.counts[tup.word]])

    class GlobalCount(Bolt):
        outputs = ["count"]

        def initialize(self, conf, context):
            self.count = 0

        def process(self, tup):
            self.count += 1
            self.emit([self.count])

    class Basic(Topology):
        words = FeederSpout.with_outputs("word").spec(par=3)
        counter = WordCounter.spec(inputs={words: Grouping.fields("word")}, par=4)
        total = GlobalCount.spec(inputs={words: Grouping.global_})
        aggregates = GlobalCount.spec(inputs={counter: Grouping.global_})

    done = complete_topology(Basic, {"words": [["nathan"], ["bob"], ["joey"], ["nathan"]]}, seed=seed)
    assert sorted(done.tuples("words")) == [("bob",), ("joey",), ("nathan",), ("nathan",)]
    assert sorted(done.tuples("counter")) == [("bob", 1), ("joey", 1), ("nathan", 1), ("nathan", 2)]
    assert done.tuples("total") == done.tuples("aggregates") == [(1,), (2,), (3,), (4,)]
    assert (done.acked, done.failed, done.report.outcome) == (4, 0, "drained")


@pytest.mark.parametrize("seed", SEEDS)
def test_multi_tasks_per_executor(seed):
    class TaskIndex(Bolt):
        outputs = ["index"]

        def process(self, tup):
            mine = [int(task) for task, name in self.context["task->component"].items() if name == "tasks"]
            self.emit([mine.index(self.task_id)])

    class Many(Topology):
        words = FeederSpout.with_outputs("word").spec()
        tasks = TaskIndex.spec(inputs={words: Grouping.all}, par=6, executors=3)

    done = complete_topology(Many, {"words": [["a"]]}, seed=seed)
    assert sorted(done.tuples("tasks")) == [(0,), (1,), (2,), (3,), (4,), (5,)]
    assert done.acked == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_timeout(seed):
    class AckEveryOther(Bolt):
        auto_ack = False
        count = 0

        def process(self, tup):
            type(self).count += 1
            if self.count % 2:
                self.ack(tup)

    AckEveryOther.count = 0
    feeder = FeederSpout.with_outputs("field1")

    class TimeoutTester(Topology):
        config = {"topology.message.timeout.secs": 10}
        spout = feeder.spec()
        bolt = AckEveryOther.spec(inputs={spout: Grouping.global_})

    with Scheduler.of(TimeoutTester, seed=seed) as scheduler:
        scheduler.advance(11)
        for tup_id, value in enumerate("abc", 1):
            feeder.feed([value], tup_id)
        scheduler.advance(9)
        assert feeder.tracker.acked == [1, 3]
        assert not feeder.tracker.is_failed(2)
        scheduler.advance(12)
        assert feeder.tracker.failed == [2]
        assert feeder.tracker.reason_of(2).kind is ReasonKind.TIMED_OUT


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("resets", [True, False])
def test_reset_timeout(seed, resets):
    class ResetTimeout(Bolt):
        """Acks the first tuple at the fifth; never acks the second; resets the first one's timeout at all others."""

        auto_ack = False

        def initialize(self, conf, context):
            self.tuples = []

        def process(self, tup):
            self.tuples.append(tup)
            count = len(self.tuples)
            if count == 5:
                self.ack(self.tuples[0])
            elif count > 1 and resets:
                self.reset_timeout(self.tuples[0])
            if count > 2:
                self.ack(tup)

    feeder = FeederSpout.with_outputs("field1")

    class ResetTimeoutTester(Topology):
        config = {"topology.message.timeout.secs": 10}
        spout = feeder.spec()
        bolt = ResetTimeout.spec(inputs={spout: Grouping.global_})

    with Scheduler.of(ResetTimeoutTester, seed=seed) as scheduler:
        feeder.feed(["a"], 1)
        feeder.feed(["b"], 2)
        scheduler.advance(9)
        feeder.feed(["c"], 3)
        scheduler.settle()
        assert feeder.tracker.acked == [3]
        scheduler.advance(9)
        feeder.feed(["d"], 4)
        scheduler.settle()
        # Slightly more than one and a half timeouts: the second tuple has expired, and so would the first.
        assert feeder.tracker.is_failed(2)
        assert feeder.tracker.is_failed(1) is not resets
        feeder.feed(["e"], 5)
        scheduler.settle()
        assert feeder.tracker.is_acked(1) is resets
        assert set(feeder.tracker.acked) - {1} == {3, 4, 5}


def refused(build):
    with pytest.raises(TopologyError) as caught:
        build()
    return str(caught.value)


def test_validate_topology_structure():
    def reading(inputs):
        def build():
            body = {"words": FeederSpout.with_outputs("word").spec(par=3)}
            body["count"] = Identity.spec(inputs=inputs, par=4)
            return type("Checked", (Topology,), body)

        return build

    reading({"words": Grouping.fields("word")})()
    assert "'worbs'" in refused(reading({"worbs": Grouping.fields("word")}))
    assert "'wort'" in refused(reading({"words": Grouping.fields("wort")}))
    assert "'side'" in refused(reading({"words:side": Grouping.fields("word")}))


@pytest.mark.parametrize("seed", SEEDS)
def test_acking(seed):
    feeder1, feeder2, feeder3 = AckFeeder(), AckFeeder(), AckFeeder()

    class Acking(Topology):
        one = feeder1.spout.spec()
        two = feeder2.spout.spec()
        three = feeder3.spout.spec()
        four = branching(2).spec(inputs=[one])
        five = branching(4).spec(inputs=[two])
        six = branching(1).spec(inputs=[three])
        seven = agg(3).spec(inputs=[four, five, six])
        eight = branching(2).spec(inputs=[seven])
        nine = CapturingBolt.fresh().spec(inputs=[eight])

    with Scheduler.of(Acking, seed=seed) as scheduler:
        feeder1.feed()
        scheduler.settle()
        assert feeder1.acks() == 0
        feeder2.feed()
        scheduler.settle()
        assert (feeder1.acks(), feeder2.acks()) == (1, 1)
        feeder1.feed()
        scheduler.settle()
        assert feeder1.acks() == 0
        feeder1.feed()
        scheduler.settle()
        assert feeder1.acks() == 1
        feeder3.feed()
        scheduler.settle()
        assert (feeder1.acks(), feeder3.acks()) == (0, 0)
        feeder2.feed()
        scheduler.settle()
        assert (feeder1.acks(), feeder2.acks(), feeder3.acks()) == (1, 1, 1)
        for feeder in (feeder1, feeder2, feeder3):
            feeder.feed()
        scheduler.settle()
        # 2 + 4 + 1 tuples: two batches of three, and one tuple that waits for two more. Whose it is the order decides.
        assert len(scheduler.runtime.ackers[0].acker) == 1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ackers", [1, 3])
def test_ack_branching(seed, ackers):
    feeder = AckFeeder()

    class AckBranching(Topology):
        config = {"topology.acker.tasks": ackers}
        source = feeder.spout.spec()
        left = Identity.spec(inputs=[source])
        right = Identity.spec(inputs=[source])
        join = agg(4).spec(inputs=[left, right])

    with Scheduler.of(AckBranching, seed=seed) as scheduler:
        feeder.feed()
        scheduler.settle()
        assert feeder.acks() == 0
        feeder.feed()
        scheduler.settle()
        assert feeder.acks() == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_acking_self_anchor(seed):
    class DupAnchor(Bolt):
        outputs = ["num"]

        def process(self, tup):
            self.emit([1], anchors=[tup, tup])

    feeder, sink = AckFeeder(), CapturingBolt.fresh()

    class SelfAnchor(Topology):
        source = feeder.spout.spec()
        twice = DupAnchor.spec(inputs=[source])
        last = sink.spec(inputs=[twice])

    with Scheduler.of(SelfAnchor, seed=seed) as scheduler:
        scheduler.settle()
        scheduler.freeze("last*")
        feeder.feed()
        scheduler.settle()
        assert feeder.acks() == 0, "an id that is xored in twice is not there: the tree would end too early"
        scheduler.thaw()
        scheduler.settle()
        assert feeder.acks() == 1
        for _ in range(3):
            feeder.feed()
        scheduler.settle()
        assert feeder.acks() == 3


@pytest.mark.parametrize("seed", SEEDS)
def test_multi_anchor(seed):
    """One tuple in two trees: neither is done before it, and its failure fails both."""

    class Divide(Bolt):
        def process(self, tup):
            1 / tup.num

    left, right = AckFeeder(), AckFeeder()

    class MultiAnchor(Topology):
        config = {"topology.acker.tasks": 2}
        one = left.spout.spec()
        two = right.spout.spec()
        join = agg(2).spec(inputs=[one, two])
        divide = Divide.spec(inputs=[join])

    with Scheduler.of(MultiAnchor, seed=seed) as scheduler:
        scheduler.settle()
        scheduler.freeze("divide*")
        left.feed(1)
        right.feed(2)
        scheduler.settle()
        assert (left.acks(), right.acks()) == (0, 0)
        scheduler.thaw()
        scheduler.settle()
        assert (left.acks(), right.acks()) == (1, 1)
        left.feed(1)
        right.feed(-1)
        scheduler.settle()
        assert left.spout.tracker.failed == right.spout.tracker.failed == [1]


@pytest.mark.parametrize("seed", SEEDS)
def test_diamond(seed):
    """Two ways from one tuple to one bolt that joins them; the tree is done when the last of four is."""
    feeder, sink = AckFeeder(), CapturingBolt.fresh()

    class Diamond(Topology):
        source = feeder.spout.spec()
        left = Identity.spec(inputs=[source])
        right = Identity.spec(inputs=[source])
        join = agg(2).spec(inputs=[left, right])
        last = sink.spec(inputs=[join])

    with Scheduler.of(Diamond, seed=seed) as scheduler:
        scheduler.settle()
        for held in ("left*", "right*", "last*"):
            scheduler.freeze(held)
            feeder.feed(21)
            scheduler.settle()
            assert feeder.acks() == 0, held
            scheduler.thaw()
            scheduler.settle()
            assert feeder.acks() == 1, held
    assert sink.tuples() == [(42,)] * 3


def test_submit_inactive_topology():
    class Opened(FeederSpout):
        calls = []

        def activate(self):
            self.calls.append("activate")

        def deactivate(self):
            self.calls.append("deactivate")

        def next_tuple(self):
            super().next_tuple()
            self.calls.append("next_tuple")

    feeder, sink = Opened.with_outputs("field1"), CapturingBolt.fresh()

    class Inactive(Topology):
        source = feeder.spec()
        bolt = sink.spec(inputs={source: Grouping.global_})

    with Scheduler.of(Inactive) as scheduler:
        scheduler.runtime.pause()
        feeder.feed(["a"], 1)
        scheduler.advance(9)
        assert sink.captured == [] and "next_tuple" not in feeder.calls
        scheduler.runtime.resume()
        scheduler.settle()
        assert feeder.tracker.acked == [1]
        assert feeder.calls[0] == "activate"
        scheduler.runtime.pause()
        scheduler.settle()
        assert feeder.calls[-1] == "deactivate"


def test_component_specific_config():
    class Conf(Bolt):
        outputs = ["name", "value"]

        def initialize(self, conf, context):
            self.conf = conf

        def process(self, tup):
            self.emit([tup.name, self.conf.get(tup.name)])

    class Configured(Topology):
        config = {"topology.max.spout.pending": 7, "topology.message.timeout.secs": 20}
        names = FeederSpout.with_outputs("name").spec()
        conf = Conf.spec(inputs=[names], config={"topology.tick.tuple.freq.secs": 5, "topology.max.spout.pending": 30})

    feed = [["topology.max.spout.pending"], ["topology.tick.tuple.freq.secs"], ["topology.message.timeout.secs"]]
    done = complete_topology(Configured, {"names": feed}, {"topology.message.timeout.secs": 40})
    assert dict(done.tuples("conf")) == {
        "topology.max.spout.pending": 30,
        "topology.tick.tuple.freq.secs": 5,
        "topology.message.timeout.secs": 40,
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_hooks(seed):
    class Counting(Hook):
        def __init__(self):
            self.seen = dict.fromkeys(["emit", "execute", "ack", "fail", "spout_ack", "spout_fail"], 0)

        def emit(self, component, task, stream, values, tasks):
            self.seen["emit"] += component == "bolt"

        def execute(self, component, task, tup):
            self.seen["execute"] += 1

        def ack(self, component, task, tup):
            self.seen["ack"] += 1

        def fail(self, component, task, tup, reason):
            self.seen["fail"] += 1

        def spout_ack(self, component, task, tup_id, complete_ms):
            self.seen["spout_ack"] += 1

        def spout_fail(self, component, task, tup_id, reason):
            self.seen["spout_fail"] += 1

    hook = Counting()

    class Watched(Bolt):
        """Tells what the hook has seen when it is asked, then acks and fails in turn."""

        outputs = ["emit", "ack", "fail", "execute"]
        auto_ack = False

        def process(self, tup):
            seen = dict(hook.seen)
            self.emit([seen[name] for name in self.outputs])
            (self.fail if seen["ack"] > seen["fail"] else self.ack)(tup)

    class Hooked(Topology):
        source = FeederSpout.with_outputs("conf").spec()
        bolt = Watched.spec(inputs=[source])

    scheduler_feed = [[1]] * 4
    recorded = []

    class Emits(Hook):
        def emit(self, component, task, stream, values, tasks):
            if component == "bolt":
                recorded.append(tuple(values))

    feeder = Hooked.graph().nodes["source"].component
    for number, values in enumerate(scheduler_feed):
        feeder.feed(values, number)
    feeder.end()
    with Scheduler.of(Hooked, seed=seed, hooks=[hook, Emits()]) as scheduler:
        scheduler.settle()
    assert recorded == [(0, 0, 0, 0), (1, 1, 0, 1), (2, 1, 1, 2), (3, 2, 1, 3)]
    assert hook.seen == {"emit": 4, "execute": 4, "ack": 2, "fail": 2, "spout_ack": 2, "spout_fail": 2}


@pytest.mark.parametrize("seed", SEEDS)
def test_zero_ackers(seed, caplog):
    feeder, ids = FeederSpout.with_outputs("num"), []

    class Never(Bolt):
        auto_ack = False

        def process(self, tup):
            ids.append(tup.id)

    class ZeroAckers(Topology):
        config = {"topology.acker.tasks": 0, "topology.max.spout.pending": 1}
        source = feeder.spec()
        never = Never.spec(inputs=[source])

    with caplog.at_level(logging.WARNING, "acker.local"), Scheduler.of(ZeroAckers, seed=seed) as scheduler:
        scheduler.settle()
        scheduler.freeze("never*")
        for number in range(3):
            feeder.feed([number], number)
        scheduler.settle()
        assert feeder.tracker.acked == [0, 1, 2], "acked as they are emitted, whatever becomes of them"
        scheduler.thaw()
    assert "topology.acker.tasks is 0" in caplog.text
    assert feeder.tracker.failed == [] and ids == ["", "", ""]


@pytest.mark.parametrize("seed", SEEDS)
def test_tick(seed):
    class Ticking(Bolt):
        ticks = []

        def process(self, tup):
            raise AssertionError("a tick is not a tuple")

        def process_tick(self, tup):
            assert self.is_tick(tup) and (tup.component, tup.stream) == ("__system", "__tick")
            self.ticks.append((self.component_name, self._collector.now_ms()))

    Ticking.ticks = []
    feeder = FeederSpout.with_outputs("num")

    class Ticks(Topology):
        source = feeder.spec()
        slow = Ticking.spec(inputs=[source], config={"topology.tick.tuple.freq.secs": 10})
        fast = Ticking.spec(inputs=[source], config={"topology.tick.tuple.freq.secs": 2.5}, par=2)
        never = Ticking.spec(inputs=[source])

    with Scheduler.of(Ticks, seed=seed) as scheduler:
        scheduler.advance(21)
        ticks = list(Ticking.ticks)
    assert [at for name, at in ticks if name == "slow"] == [10_000, 20_000]
    assert [at for name, at in ticks if name == "fast"] == [2500 * (tick // 2 + 1) for tick in range(16)]
    assert not [at for name, at in ticks if name == "never"]


@pytest.mark.parametrize("seed", SEEDS)
def test_direct(seed):
    class Choose(Bolt):
        outputs = [Stream(["num"], "pairs", direct=True)]

        def process(self, tup):
            readers = [int(task) for task, name in self.context["task->component"].items() if name == "last"]
            self.emit([tup.num], stream="pairs", direct_task=readers[tup.num % len(readers)])

    feeder, sink = AckFeeder(), CapturingBolt.fresh()

    class Direct(Topology):
        source = feeder.spout.spec()
        choose = Choose.spec(inputs=[source])
        last = sink.spec(inputs={choose["pairs"]: Grouping.direct}, par=3)

    with Scheduler.of(Direct, seed=seed) as scheduler:
        for number in range(9):
            feeder.feed(number)
        scheduler.settle()
        first = min(scheduler.runtime.graph.nodes["last"].tasks)
        assert sorted((found.values[0], found.task - first) for found in sink.captured) == [
            (number, number % 3) for number in range(9)
        ]
        assert feeder.acks() == 9


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("tasks", [2, 3, 7])
def test_all_grouping_acks_only_when_all_tasks_are_done(seed, tasks):
    feeder, sink = AckFeeder(), CapturingBolt.fresh()

    class All(Topology):
        source = feeder.spout.spec()
        copies = sink.spec(inputs={source: Grouping.all}, par=tasks)

    with Scheduler.of(All, seed=seed) as scheduler:
        scheduler.settle()
        for task in scheduler.runtime.graph.nodes["copies"].tasks:
            scheduler.freeze(f"copies[[]{task}[]]")
        feeder.feed(5)
        for done, task in enumerate(scheduler.runtime.graph.nodes["copies"].tasks):
            scheduler.settle()
            assert (len(sink.captured), feeder.acks()) == (done, 0)
            scheduler.thaw(f"copies[[]{task}[]]")
        scheduler.settle()
        assert (len(sink.captured), feeder.acks()) == (tasks, 1)


def test_named_streams_are_fed_and_captured():
    class Sides(Topology):
        source = FeederSpout.with_outputs(Stream(["num"]), Stream(["num"], "side")).spec()
        last = Identity.spec(inputs=[source["side"]])

    done = complete_topology(Sides, {"source": [[1], FixedTuple([2], "side")]})
    assert (done.tuples("source"), done.tuples("source", "side")) == ([(1,)], [(2,)])
    assert (done.tuples("last"), done.acked) == ([(2,)], 2)
    assert isinstance(done.trackers["source"], AckFailTracker)
