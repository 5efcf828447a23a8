"""Components whose `process` or `next_tuple` is a coroutine, on the manual clock and on threads."""

import asyncio

import pytest

from acker.errors import TopologyError
from acker.local import run
from acker.local.calls import running_calls
from acker.local.page.holders import find_holders
from acker.testing import CapturingBolt, FeederSpout, Scheduler
from acker.topology import Bolt, ReasonKind, Spout, Topology

SEEDS = range(4)


class Later(Bolt):
    """Emits a number as many seconds later as it says."""

    outputs = ["number"]
    running = most = 0

    async def process(self, tup):
        Later.running += 1
        Later.most = max(Later.most, Later.running)
        try:
            await asyncio.sleep(tup.number)
            self.emit([tup.number])
        finally:
            Later.running -= 1


@pytest.fixture
def feeder():
    Later.running = Later.most = 0
    return FeederSpout.with_outputs("number")


def topology(feeder, sink, bolt=Later, **config):
    class Waiting(Topology):
        source = feeder.spec()
        later = bolt.spec(inputs=[source], config=config)
        last = sink.spec(inputs=[later])

    return Waiting


@pytest.mark.parametrize("seed", SEEDS)
def test_a_tuple_is_acked_when_its_coroutine_ends(feeder, seed):
    sink = CapturingBolt.fresh()
    with Scheduler.of(topology(feeder, sink), seed=seed) as scheduler:
        for number in (5, 1, 3):
            feeder.feed([number], number)
        scheduler.settle()
        assert feeder.tracker.acked == []
        scheduler.advance(2)
        assert feeder.tracker.acked == [1]
        scheduler.advance(4)
        assert feeder.tracker.acked == [1, 3, 5]
    # Each was anchored to its own input, though they ran at once.
    assert sink.tuples() == [(1,), (3,), (5,)]
    assert Later.most == 3


def test_so_many_run_at_once_and_no_more(feeder):
    sink = CapturingBolt.fresh()
    with Scheduler.of(topology(feeder, sink, **{"topology.async.max.concurrency": 2})) as scheduler:
        for number in range(1, 8):
            feeder.feed([number], number)
        scheduler.advance(20)
        assert sorted(feeder.tracker.acked) == [1, 2, 3, 4, 5, 6, 7]
    assert Later.most == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_coroutine_raises_fails_its_tuple(feeder, seed):
    class Fails(Later):
        async def process(self, tup):
            await asyncio.sleep(tup.number)
            raise ValueError(f"no {tup.number}")

    with Scheduler.of(topology(feeder, CapturingBolt.fresh(), Fails), seed=seed) as scheduler:
        feeder.feed([2], "m")
        scheduler.advance(3)
        reason = feeder.tracker.reason_of("m")
    assert (reason.kind, reason.component, reason.exception) == (ReasonKind.FAILED, "later", "ValueError: no 2")


def test_what_does_not_end_times_out_and_is_cancelled_at_the_end(feeder):
    cancelled = []

    class Never(Later):
        async def process(self, tup):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(tup.number)
                raise

    with Scheduler.of(topology(feeder, CapturingBolt.fresh(), Never)) as scheduler:
        feeder.feed([1], "m")
        scheduler.advance(46)
        assert feeder.tracker.reason_of("m").kind is ReasonKind.TIMED_OUT
        assert cancelled == []
    assert cancelled == [1]


def test_a_coroutine_goes_on_while_the_topology_drains(feeder):
    sink = CapturingBolt.fresh()
    with Scheduler.of(topology(feeder, sink)) as scheduler:
        feeder.feed([10], "m")
        scheduler.settle()
        report = scheduler.stop()
    assert feeder.tracker.acked == ["m"] and report.stats.totals.shut_down == 0


class Counter(Spout):
    """Takes a second for each number."""

    outputs = ["number"]

    def initialize(self, conf, context):
        self.number = 0
        self.calls = []

    async def next_tuple(self):
        if self.number == 3:
            self.finish()
            return
        await asyncio.sleep(1)
        self.number += 1
        self.emit([self.number], self.number)

    async def ack(self, tup_id):
        await asyncio.sleep(0)
        self.calls.append(tup_id)
        self.log(f"acked {tup_id}")


def test_a_spout_may_wait_for_its_source(caplog):
    sink = CapturingBolt.fresh()

    class Counting(Topology):
        numbers = Counter.spec()
        last = sink.spec(inputs=[numbers])

    caplog.set_level("INFO", "acker.topology")
    with Scheduler.of(Counting) as scheduler:
        scheduler.settle()
        assert sink.tuples() == []
        scheduler.advance(1)
        assert sink.tuples() == [(1,)]
        report = scheduler.drain()
    assert sink.tuples() == [(1,), (2,), (3,)]
    assert report.outcome == "drained" and report.stats.totals.acked == 3
    assert [record.message for record in caplog.records if "acked" in record.message] == [
        "acked 1",
        "acked 2",
        "acked 3",
    ]


def test_a_spout_that_waits_for_its_source_is_told_with_what_waits_for_it():
    class Waits(Counter):
        async def next_tuple(self):
            if self.number:
                await asyncio.sleep(3600)
            self.number += 1
            self.emit([self.number], self.number)

    class Waiting(Topology):
        numbers = Waits.spec()
        last = CapturingBolt.fresh().spec(inputs=[numbers])

    with Scheduler.of(Waiting) as scheduler:
        scheduler.settle()
        scheduler.advance(5)
        runtime = scheduler.runtime
        executors, now_ns = runtime.lifecycle.executors, runtime.clock.now_ns()
        (call,) = running_calls(executors, now_ns).values()
        assert (call.who, call.what, call.for_ms) == ("numbers[1]", "next_tuple()", 5000)
        assert call.line.short.startswith("test_asynchronous.py:")
        (task,) = executors.spout_tasks()
        (root_id,) = [each.root_id for each in task.collector.pending.values()]
        (holder,) = find_holders(executors, [root_id], {1: call}, now_ns)[root_id]
        assert (holder.component, holder.how, holder.line) == ("numbers", "outcome", call.line.short)


def test_threads_run_them_too():
    class Numbers(Spout):
        outputs = ["number"]

        def initialize(self, conf, context):
            self.left = list(range(50))

        async def next_tuple(self):
            await asyncio.sleep(0)
            if self.left:
                number = self.left.pop()
                self.emit([number / 10_000], number)
            else:
                self.finish()

    class Pairs(Bolt):
        """Lets each second tuple go on with the one before: with one at a time nothing would end."""

        outputs = ["number"]
        other = None

        async def process(self, tup):
            if self.other is None:
                self.other = asyncio.Event()
                await self.other.wait()
            else:
                self.other.set()
                self.other = None
            await asyncio.sleep(tup.number)
            self.emit([tup.number])

    sink = CapturingBolt.fresh()

    class Threads(Topology):
        numbers = Numbers.spec()
        pairs = Pairs.spec(inputs=[numbers])
        last = sink.spec(inputs=[pairs])

    report = run(Threads, until="drained")
    assert report.outcome == "drained" and report.stats.totals.acked == 50
    assert sorted(number for (number,) in sink.tuples()) == [number / 10_000 for number in range(50)]


@pytest.mark.parametrize("method", ["initialize", "process_tick", "close"])
def test_other_methods_cannot_be_coroutines(feeder, method):
    async def nobody_waits(self, *args):
        raise AssertionError

    bolt = type("Odd", (Later,), {method: nobody_waits})
    with pytest.raises(TopologyError, match=f"component 'later': Odd.{method} cannot be `async def`: a runtime"):
        topology(feeder, CapturingBolt.fresh(), bolt)
