"""Known defects of FsShelter, which acker must not have."""

import numpy as np
import pytest

from acker.local import wiring
from acker.testing import CapturingBolt, FeederSpout, Scheduler
from acker.topology import Bolt, Grouping, ReasonKind, Spout, Topology

SEEDS = range(5)


def pending(scheduler):
    return scheduler.runtime.stats().totals.pending


@pytest.mark.parametrize("seed", SEEDS)
def test_all_grouping_gives_each_delivery_an_id_of_its_own(seed):
    """There one id serves all deliveries: of two tasks that ack it, the second undoes the first."""
    seen = []

    class Copy(Bolt):
        outputs = ["num"]

        def process(self, tup):
            seen.append(tup.id)
            self.emit([tup.num])

    feeder, sink = FeederSpout.with_outputs("num"), CapturingBolt.fresh()

    class Copies(Topology):
        source = feeder.spec()
        copies = Copy.spec(inputs={source: Grouping.all}, par=4)
        last = sink.spec(inputs={copies: Grouping.all}, par=2)

    with Scheduler.of(Copies, seed=seed) as scheduler:
        feeder.feed([1], "m")
        scheduler.settle()
        assert len(seen) == len(set(seen)) == 4
        assert len({one.partition(":")[0] for one in seen}) == 1, "one tree"
        assert len(sink.captured) == 8
        assert feeder.tracker.acked == ["m"]


class FixedIds:
    """A generator of ids that a test has chosen."""

    ids = iter(())

    def __init__(self, seed=None):
        pass

    def take(self, count):
        return np.array([next(self.ids)], np.int64)


@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_anchoring_to_zero_neither_ends_a_tree_nor_forgets_it(seed, is_done, monkeypatch):
    """There an ANCHOR that happens to make the accumulator 0 leaves a tree that is never acked and never expires.

    A child that by accident has its parent's id does that: 5 xor 5. Here the bolt's one message is 0, and the
    accumulator waits for the child.
    """
    monkeypatch.setattr(wiring, "IdGenerator", FixedIds)
    monkeypatch.setattr(FixedIds, "ids", iter([1000, 5, 5]))  # root, the spout's tuple, the bolt's

    class Pass(Bolt):
        outputs = ["num"]

        def process(self, tup):
            self.emit([tup.num])

    class Last(Bolt):
        auto_ack = is_done

        def process(self, tup):
            pass

    feeder = FeederSpout.with_outputs("num")

    class ToZero(Topology):
        source = feeder.spec()
        middle = Pass.spec(inputs=[source])
        last = Last.spec(inputs=[middle])

    with Scheduler.of(ToZero, seed=seed) as scheduler:
        scheduler.settle()
        scheduler.freeze("last*")
        feeder.feed([1], "m")
        scheduler.settle()
        assert feeder.tracker.acked == [] and pending(scheduler) == 1
        scheduler.thaw()
        scheduler.settle()
        assert feeder.tracker.acked == (["m"] if is_done else [])
        scheduler.advance(45)
        assert feeder.tracker.failed == ([] if is_done else ["m"])
        assert pending(scheduler) == 0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("pending_max", [1, 3])
def test_an_unreliable_spout_does_not_stall_at_max_pending(seed, pending_max):
    """There each emitted tuple counts as pending, and nothing ever takes an untracked one off again."""
    feeder, sink = FeederSpout.with_outputs("num"), CapturingBolt.fresh()

    class Unreliable(Topology):
        config = {"topology.max.spout.pending": pending_max}
        source = feeder.spec()
        last = sink.spec(inputs=[source])

    with Scheduler.of(Unreliable, seed=seed) as scheduler:
        for number in range(50):
            feeder.feed([number])
        scheduler.settle()
        assert (len(sink.captured), feeder.waiting_count()) == (50, 0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ackers", [1, 2])
def test_what_nobody_reads_is_acked_at_once(seed, ackers):
    """There a tracked tuple on a stream without readers is never acked; here, too, one that a bolt emits to such."""

    class Pass(Bolt):
        outputs = ["num"]

        def process(self, tup):
            self.emit([tup.num])

    unread, read = FeederSpout.with_outputs("num"), FeederSpout.with_outputs("num")

    class Unread(Topology):
        config = {"topology.acker.tasks": ackers}
        lonely = unread.spec()
        source = read.spec()
        last = Pass.spec(inputs=[source])

    with Scheduler.of(Unread, seed=seed) as scheduler:
        unread.feed([1], "lonely")
        read.feed([1], "read")
        scheduler.settle()
        assert (unread.tracker.acked, read.tracker.acked) == (["lonely"], ["read"])
        assert (scheduler.clock.now_ns(), pending(scheduler)) == (0, 0)


class FailsLater(Spout):
    """Comes up well each time, emits a tuple, and raises at the next call."""

    outputs = ["num"]
    starts = 0

    def initialize(self, conf, context):
        type(self).starts += 1
        self.calls = 0

    def next_tuple(self):
        self.calls += 1
        if self.calls > 1:
            raise OSError("the source is gone")
        self.emit([self.starts], tup_id=self.starts)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_restart_limit_is_reachable(seed):
    """There a restart that comes up well sets the count back to 0, so what fails later restarts for ever."""
    spout, sink = type("FailsLater", (FailsLater,), {}), CapturingBolt.fresh()

    class Later(Topology):
        source = spout.spec()
        last = sink.spec(inputs=[source])

    scheduler = Scheduler.of(Later, seed=seed, max_restarts=3)
    scheduler.run("stopped")
    assert spout.starts == 4
    assert str(scheduler.runtime.error) == "the source is gone"
    assert scheduler.runtime.report().outcome == "failed"


def test_restarts_are_counted_down_again_only_after_a_healthy_period():
    class Sometimes(FeederSpout):
        def next_tuple(self):
            if self.waiting_count():
                self._feed.clear()
                raise OSError("a bad moment")

    feeder = Sometimes.with_outputs("num")

    class Healthy(Topology):
        config = {"topology.restart.healthy.secs": 60}
        source = feeder.spec()
        last = CapturingBolt.fresh().spec(inputs=[source])

    with Scheduler.of(Healthy, max_restarts=2) as scheduler:
        for _ in range(6):  # more than the limit, but never in a row
            feeder.feed([1])
            scheduler.settle()
            assert scheduler.runtime.state == "restarting"
            scheduler.advance(2)
            assert scheduler.runtime.state == "running"
            scheduler.advance(60)
        feeder.feed([1])
        scheduler.advance(2)
        assert scheduler.runtime.state == "running"
        feeder.feed([1])
        scheduler.advance(3.5)
        assert scheduler.runtime.state == "restarting", "the second in a row waits for 4 s"
        scheduler.advance(0.5)
        feeder.feed([1])
        with pytest.raises(OSError, match="a bad moment"):
            scheduler.settle()
        scheduler.run("stopped")


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_open_at_the_last_crash_is_told_too(seed):
    spout = type("FailsLater", (FailsLater,), {})
    told = []

    class Told(spout):
        def fail(self, tup_id, reason=None):
            told.append((tup_id, reason.kind))

    class Never(Bolt):
        auto_ack = False

        def process(self, tup):
            pass

    class Open(Topology):
        source = Told.spec()
        last = Never.spec(inputs=[source])

    scheduler = Scheduler.of(Open, seed=seed, max_restarts=1)
    scheduler.run("stopped")
    assert told == [(1, ReasonKind.RESTART), (2, ReasonKind.SHUTDOWN)]
