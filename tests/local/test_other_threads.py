"""Components that other threads of the user call: pools, client threads, threads beside an event loop."""

import asyncio
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from acker.errors import ArgumentTypeError, RuntimeStateError, TopologyError, TupleStateError
from acker.local import LocalRuntime, run
from acker.testing import CapturingBolt, FeederSpout, ManualClock, Scheduler
from acker.topology import (
    Bolt,
    Grouping,
    ReasonKind,
    ReliableSpout,
    Spout,
    Stream,
    TicklessBatchingBolt,
    Topology,
    auto_ack_bolt,
)

SEEDS = range(4)
pytestmark = pytest.mark.timeout(120)


class Holds(Bolt):
    """Hands each tuple to whoever takes it from `held`."""

    outputs = ["number", Stream(["number"], name="direct", direct=True)]
    auto_ack = False

    @classmethod
    def fresh(cls):
        return type("Holds", (cls,), {"held": queue.SimpleQueue(), "made": []})

    def initialize(self, conf, context):
        self.made.append(self)

    def process(self, tup):
        self.held.put(tup)


def topology_of(bolt, feeder, sink=None, **options):
    class Held(Topology):
        source = feeder.spec()
        holds = bolt.spec(inputs=[source], **options)
        if sink is not None:
            last = sink.spec(inputs=[holds])

    return Held


def elsewhere(function, *arguments, **options):
    """Call a function in a thread of its own; return what it returns, raise what it raises."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments, **options).result()


class Numbers(Spout):
    """Emits so many numbers, and counts what it hears."""

    outputs = ["number"]
    count = 0

    def initialize(self, conf, context):
        type(self).heard = {"acked": 0, "failed": []}
        self.left = iter(range(self.count))

    def next_tuple(self):
        number = next(self.left, None)
        if number is None:
            self.finish()
        else:
            self.emit([number], tup_id=number)

    def ack(self, tup_id):
        self.heard["acked"] += 1

    def fail(self, tup_id, reason=None):
        self.heard["failed"].append((tup_id, reason))


def numbers(count):
    return type("Numbers", (Numbers,), {"count": count})


@pytest.mark.parametrize("threads", [1, 8])
def test_no_ack_of_a_pool_is_lost(threads):
    class Pooled(Bolt):
        outputs = ["number"]
        auto_ack = False

        def initialize(self, conf, context):
            self.pool = ThreadPoolExecutor(threads)

        def process(self, tup):
            self.pool.submit(self.work, tup)

        def work(self, tup):
            for _ in range(tup.number % 3):
                self.emit([tup.number], anchors=[tup])
            self.report_metric("seen")
            if tup.number % 7 == 0:
                self.fail(tup, f"by seven {tup.number}")
            else:
                self.ack(tup)

        def close(self):
            self.pool.shutdown()

    source, sink = numbers(3_000), CapturingBolt.fresh()
    report = run(topology_of(Pooled, source, sink), {"topology.message.timeout.secs": 60}, until="drained")
    counts, failed = report.stats.components()["holds"], 3_000 // 7 + 1
    assert (counts.acked, counts.failed, counts.pending) == (3_000 - failed, failed, 0)
    assert source.heard["acked"] == 3_000 - failed and report.stats.totals.timed_out == 0
    assert {reason.exception for _, reason in source.heard["failed"]} == {
        f"by seven {number}" for number in range(0, 3_000, 7)
    }
    assert sorted(number for (number,) in sink.tuples()) == sorted(
        number for number in range(3_000) for _ in range(number % 3)
    )
    assert counts.emitted["default"] == counts.transferred == 3_000 and counts.user == {"seen": 3_000}


def test_an_ack_wakes_who_has_to_hear_of_it():
    """The clock stands still: nobody polls."""
    feeder, bolt = FeederSpout.with_outputs("number"), Holds.fresh()
    heard = threading.Semaphore(0)
    feeder.ack = lambda _, tup_id: heard.release()
    for number in range(200):
        feeder.feed([number], number)
    with LocalRuntime(topology_of(bolt, feeder), {"topology.max.spout.pending": 1}, clock=ManualClock()) as runtime:
        for _ in range(200):
            bolt.made[0].ack(bolt.held.get())
            heard.acquire()
        runtime.abort()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("how", [elsewhere, lambda function, *arguments, **options: function(*arguments, **options)])
def test_a_scheduler_goes_on_when_a_thread_or_the_test_itself_has_acked(seed, how):
    feeder, bolt, sink = FeederSpout.with_outputs("number"), Holds.fresh(), CapturingBolt.fresh()
    with Scheduler.of(topology_of(bolt, feeder, sink), seed=seed) as scheduler:
        for number in range(4):
            feeder.feed([number], number)
        scheduler.settle()
        first, second, third, fourth = (bolt.held.get() for _ in range(4))
        (one,) = bolt.made
        assert how(one.emit, ["of first"], anchors=[first], need_task_ids=True) == [3]
        how(one.ack, first)
        how(one.ack, second)
        how(one.fail, third, "of no use")
        scheduler.settle()
        assert scheduler.clock.now_ns() == 0
        assert sorted(feeder.tracker.acked) == [first.number, second.number]
        assert feeder.tracker.failed == [third.number]
        assert feeder.tracker.reasons[0].exception == "of no use"
        assert sink.tuples() == [("of first",)]
        for _ in range(4):
            scheduler.advance(14)
            how(one.reset_timeout, fourth)
        assert feeder.tracker.failed == [third.number]
        scheduler.call_later(5, lambda: how(one.ack, fourth))
        report = scheduler.stop()
    assert fourth.number in feeder.tracker.acked and report.stats.totals.shut_down == 0


def test_errors_are_raised_in_the_thread_that_makes_them():
    feeder, bolt = FeederSpout.with_outputs("number"), Holds.fresh()

    class Two(Topology):
        source = feeder.spec()
        holds = bolt.spec(inputs={source: Grouping.all}, par=2)
        grouped = CapturingBolt.fresh().spec(inputs={holds: Grouping.fields("number")})

    with Scheduler.of(Two) as scheduler:
        feeder.feed([1], 1)
        scheduler.settle()
        tups = [bolt.held.get(), bolt.held.get()]
        one, other = sorted(bolt.made, key=lambda made: tups[0]._owner is not made._collector)
        tup = tups[0]
        for error, text, call in [
            (TopologyError, "emits to stream 'wrong', which it does not declare", lambda: one.emit([1], "wrong")),
            (TopologyError, "emits to stream 'default' 2 values; expected 1", lambda: one.emit([1, 2], anchors=[tup])),
            (TopologyError, "which is direct, without direct_task", lambda: one.emit([1], "direct", anchors=[tup])),
            (TupleStateError, r"without anchors.*anchors=\[tup\]", lambda: one.emit([1])),
            (TypeError, "hash", lambda: one.emit([{}], anchors=[tup])),
            (ArgumentTypeError, "expected the tuple itself, got str", lambda: one.ack("tup")),
            (TupleStateError, "it is not a tuple of this task", lambda: other.ack(tup)),
            (TupleStateError, "it is not a tuple of this task", lambda: other.emit([1], anchors=[tup])),
        ]:
            with pytest.raises(error, match=text):
                elsewhere(call)
        assert elsewhere(one.emit, [1], anchors=[], need_task_ids=True) == [4]
        elsewhere(one.ack, tup)
        for name in ("ack", "fail", "reset_timeout"):
            with pytest.raises(TupleStateError, match="it was acked or failed before"):
                elsewhere(getattr(one, name), tup)
        with pytest.raises(TupleStateError, match="anchored to: it was acked or failed before"):
            elsewhere(one.emit, [1], anchors=[tup])
        elsewhere(other.ack, tups[1])
        scheduler.settle()
        counts = scheduler.runtime.stats().components()["holds"]
        assert (counts.acked, counts.failed, counts.emitted_total, feeder.tracker.acked) == (2, 0, 1, [1])
    for text, call in [
        ("holds: cannot emit from another thread: the topology has stopped", lambda: one.emit([1], anchors=[])),
        ("it was acked or failed before", lambda: one.ack(tup)),
    ]:
        with pytest.raises((RuntimeStateError, TupleStateError), match=text):
            elsewhere(call)


def test_of_two_threads_that_settle_a_tuple_one_is_told_that_it_came_late():
    feeder, bolt = FeederSpout.with_outputs("number"), Holds.fresh()
    for number in range(200):
        feeder.feed([number], number)
    feeder.end()
    late = []

    def settle(tup):
        both.wait()
        try:
            bolt.made[0].ack(tup)
        except TupleStateError:
            late.append(tup)

    both = threading.Barrier(2)
    with LocalRuntime(topology_of(bolt, feeder)) as runtime, ThreadPoolExecutor(2) as pool:
        for _ in range(200):
            tup = bolt.held.get()
            for future in [pool.submit(settle, tup), pool.submit(settle, tup)]:
                future.result()
        runtime.run_until("drained")
    assert len(late) == 200 and sorted(feeder.tracker.acked) == list(range(200))
    assert runtime.report().stats.components()["holds"].acked == 200


@pytest.mark.parametrize("seed", SEEDS)
def test_process_may_wait_for_threads_that_emit_for_it(seed):
    class Maps(Bolt):
        outputs = ["number"]

        def initialize(self, conf, context):
            self.pool = ThreadPoolExecutor(4)

        def process(self, tup):
            list(self.pool.map(lambda part: self.emit([part], anchors=[tup]), range(tup.number)))

        def close(self):
            self.pool.shutdown()

    feeder, sink = FeederSpout.with_outputs("number"), Holds.fresh()
    with Scheduler.of(topology_of(Maps, feeder, sink), seed=seed) as scheduler:
        feeder.feed([5], 5)
        scheduler.settle()
        children = [sink.held.get() for _ in range(5)]
        assert sorted(tup.number for tup in children) == list(range(5))
        for tup in children:
            assert feeder.tracker.acked == []
            sink.made[0].ack(tup)
            scheduler.settle()
        assert feeder.tracker.acked == [5]


def test_a_process_that_does_not_return_holds_no_ack_up():
    feeder, let_go = FeederSpout.with_outputs("number"), threading.Event()
    acked = threading.Event()
    feeder.ack = lambda _, tup_id: acked.set()

    class Stuck(Holds.fresh()):
        def process(self, tup):
            super().process(tup)
            let_go.wait()

    feeder.feed([1], 1)
    with LocalRuntime(topology_of(Stuck, feeder), clock=ManualClock()) as runtime:
        Stuck.made[0].ack(Stuck.held.get())
        acked.wait()
        let_go.set()
        runtime.abort()


def test_a_thread_that_emits_more_than_is_consumed_is_held_up():
    feeder, bolt, gate = FeederSpout.with_outputs("number"), Holds.fresh(), threading.Semaphore(0)

    class Slow(Bolt):
        def process(self, tup):
            gate.acquire()

    conf = {"topology.executor.receive.buffer.size": 4}
    with LocalRuntime(topology_of(bolt, feeder, Slow), conf) as runtime:
        inbox = runtime.lifecycle.executors.bolts[1].inbox
        with ThreadPoolExecutor(4) as pool:
            emitted = [pool.submit(bolt.made[0].emit, [number], anchors=[]) for number in range(100)]
            for _ in range(100):
                gate.release()
            for future in emitted:
                future.result()
        runtime.stop()
    # What four threads saw room for, beyond the capacity.
    assert inbox.size_max <= 4 + 4
    assert runtime.report().stats.components()["last"].executed == 100


def test_a_thread_that_is_held_up_hears_that_the_topology_stops():
    feeder, bolt, gate = FeederSpout.with_outputs("number"), Holds.fresh(), threading.Event()

    class Never(Bolt):
        def process(self, tup):
            gate.wait()

    conf = {"topology.executor.receive.buffer.size": 1, "topology.drain.secs": 0}
    with LocalRuntime(topology_of(bolt, feeder, Never), conf) as runtime, ThreadPoolExecutor(1) as pool:
        futures = [pool.submit(bolt.made[0].emit, [number], anchors=[]) for number in range(3)]
        futures[0].result()
        runtime.stop()
        gate.set()
        with pytest.raises(RuntimeStateError, match="holds: cannot emit from another thread"):
            futures[2].result()


def test_a_stop_waits_for_what_threads_still_hold():
    feeder, bolt = FeederSpout.with_outputs("number"), Holds.fresh()
    feeder.feed([1], 1)
    with LocalRuntime(topology_of(bolt, feeder)) as runtime:
        tup = bolt.held.get()
        runtime.lifecycle.stop()
        while runtime.state != "draining":
            threading.Event().wait(0.001)
        bolt.made[0].ack(tup)
        runtime.join()
    assert feeder.tracker.acked == [1] and runtime.report().stats.totals.shut_down == 0


def test_a_tuple_from_before_a_restart_is_refused_and_replayed():
    class Crashing(FeederSpout):
        def next_tuple(self):
            if self._feed and self._feed[0][0].values == ["crash"]:
                self._feed.clear()
                raise OSError("crash")
            super().next_tuple()

    feeder, bolt = Crashing.with_outputs("number"), Holds.fresh()
    with Scheduler.of(topology_of(bolt, feeder)) as scheduler:
        feeder.feed([1], 1)
        scheduler.settle()
        stale = bolt.held.get()
        feeder.feed(["crash"])
        scheduler.settle()
        assert feeder.tracker.reasons[0].kind is ReasonKind.RESTART
        scheduler.advance(2)
        before, after = bolt.made
        for call in (before.ack, before.fail, before.reset_timeout):
            with pytest.raises(RuntimeStateError, match=r"holds: Tuple\(\(1,\).* stopped or restarted since"):
                elsewhere(call, stale)
        with pytest.raises(RuntimeStateError, match="cannot emit"):
            elsewhere(before.emit, [1], anchors=[stale])
        with pytest.raises(TupleStateError, match="it is not a tuple of this task"):
            elsewhere(after.ack, stale)
        feeder.feed([1], 1)
        scheduler.settle()
        elsewhere(after.ack, bolt.held.get())
        scheduler.settle()
        assert feeder.tracker.acked == [1]
        assert scheduler.runtime.stats().components()["holds"].acked == 1


def pushed(base=Spout, **members):
    told = {"acked": [], "failed": [], "made": []}

    def initialize(self, conf, context):
        told["made"].append(self)

    def next_tuple(self):
        if ended.is_set():
            self.finish()

    def ack(self, tup_id):
        base.ack(self, tup_id)
        told["acked"].append(tup_id)

    def fail(self, tup_id, reason=None):
        base.fail(self, tup_id, reason)
        told["failed"].append(tup_id)

    ended = threading.Event()
    shared = {"outputs": ["number"], "initialize": initialize, "next_tuple": next_tuple, "ack": ack, "fail": fail}
    return type("Pushed", (base,), {**shared, **members}), told, ended


class FailsOnce(Bolt):
    """Fails each number once."""

    def initialize(self, conf, context):
        self.seen = set()

    def process(self, tup):
        if tup.number not in self.seen:
            self.seen.add(tup.number)
            raise ValueError("once")


@pytest.mark.parametrize("ackers", [0, 1, 2])
def test_a_client_s_threads_emit_for_a_spout(ackers):
    spout, told, ended = pushed()
    sink = CapturingBolt.fresh()

    class Pushing(Topology):
        source = spout.spec()
        last = sink.spec(inputs=[source])

    with LocalRuntime(Pushing, {"topology.acker.tasks": ackers}) as runtime:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: told["made"][0].emit([number], tup_id=number), range(500)))
            with pytest.raises(ArgumentTypeError, match="tup_id: expected something hashable"):
                pool.submit(told["made"][0].emit, [1], tup_id=[]).result()
        ended.set()
        runtime.run_until("drained")
    assert sorted(told["acked"]) == sorted(number for (number,) in sink.tuples()) == list(range(500))
    assert told["failed"] == [] and runtime.report().stats.totals.pending == 0
    with pytest.raises(RuntimeStateError, match="source: cannot emit from another thread"):
        told["made"][0].emit([1], tup_id=1)


def test_a_reliable_spout_replays_what_threads_have_emitted():
    spout, told, ended = pushed(ReliableSpout, backoff_secs=0.01)
    with LocalRuntime(topology_of(FailsOnce, spout)) as runtime:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: told["made"][0].emit([number], tup_id=number), range(200)))
        ended.set()
        runtime.run_until("drained")
    assert sorted(told["acked"]) == sorted(told["failed"]) == list(range(200))
    assert told["made"][0].unacked_tuples == {}
    with pytest.raises(RuntimeStateError):
        told["made"][0].emit([1], tup_id=1)
    assert told["made"][0].unacked_tuples == {}


def test_a_refused_emission_leaves_a_reliable_spout_as_it_was():
    class Wrong(ReliableSpout):
        outputs = ["number"]

        def next_tuple(self):
            for tup_id in (1, 2):
                self.emit([tup_id], tup_id=1)
                with pytest.raises(TopologyError):
                    self.emit([1, 2], tup_id=tup_id)
            self.finish()

    with Scheduler.of(topology_of(CapturingBolt.fresh(), Wrong)) as scheduler:
        scheduler.drain()


def test_a_batch_may_be_settled_by_threads():
    batches = []

    class Batches(TicklessBatchingBolt):
        outputs = ["number"]
        auto_ack = False

        def process_batch(self, key, tups):
            batches.append((self, tups))
            if len(batches) == 2:
                elsewhere(self.ack, tups[0])
                raise ValueError("the others")

    feeder, sink = FeederSpout.with_outputs("number"), CapturingBolt.fresh()
    with Scheduler.of(topology_of(Batches, feeder, sink)) as scheduler:
        for number in range(3):
            feeder.feed([number], number)
        scheduler.advance(2)
        bolt, tups = batches[0]
        elsewhere(bolt.emit, [9], anchors=tups)
        for tup in tups:
            elsewhere(bolt.ack, tup)
        scheduler.settle()
        assert sorted(feeder.tracker.acked) == [0, 1, 2] and sink.tuples() == [(9,)]
        for number in range(3, 6):
            feeder.feed([number], number)
        scheduler.advance(2)
        assert (feeder.tracker.acked[3:], feeder.tracker.failed) == ([3], [4, 5])
        assert scheduler.runtime.stats().restarts == 0


def test_threads_beside_an_event_loop():
    """With the coroutine's context a thread needs no anchors; a callback has none and says so."""
    refused = []

    class Offloads(Bolt):
        outputs = ["how"]
        auto_ack = False

        async def process(self, tup):
            loop, done = asyncio.get_running_loop(), asyncio.Event()
            await asyncio.to_thread(self.emit, ["to_thread"])
            await loop.run_in_executor(None, lambda: self.emit(["run_in_executor"], anchors=[tup]))
            with pytest.raises(TupleStateError, match="without anchors"):
                await loop.run_in_executor(None, self.emit, ["no"])

            def back():
                try:
                    self.emit(["no"])
                except TupleStateError as error:
                    refused.append(error)
                self.emit(["call_soon_threadsafe"], anchors=[tup])
                self.ack(tup)
                done.set()

            elsewhere(loop.call_soon_threadsafe, back)
            await done.wait()

    feeder, sink = FeederSpout.with_outputs("number"), CapturingBolt.fresh()
    feeder.feed([1], 1)
    feeder.end()
    report = run(topology_of(Offloads, feeder, sink), until="drained")
    assert sorted(sink.tuples()) == [("call_soon_threadsafe",), ("run_in_executor",), ("to_thread",)]
    assert len(refused) == 1 and feeder.tracker.acked == [1]
    assert report.stats.components()["holds"].failed == 0


def test_what_a_coroutine_emits_and_acks_while_its_executor_rests_leaves_at_once():
    """The clock stands still, and the coroutine does not end."""
    begun, again = queue.SimpleQueue(), threading.Event()

    class Goes(Bolt):
        outputs = ["number"]
        auto_ack = False

        async def process(self, tup):
            woken = asyncio.Event()
            begun.put((asyncio.get_running_loop(), woken))
            await woken.wait()
            self.emit([tup.number])
            self.ack(tup)
            await asyncio.Event().wait()

    feeder, sink = FeederSpout.with_outputs("number"), CapturingBolt.fresh()
    feeder.ack = lambda _, tup_id: again.set()
    feeder.feed([1], 1)
    with LocalRuntime(topology_of(Goes, feeder, sink), clock=ManualClock()) as runtime:
        loop, woken = begun.get()
        loop.call_soon_threadsafe(woken.set)
        again.wait()
        runtime.abort()
    assert sink.tuples() == [(1,)]


def test_a_function_names_its_tuple_when_its_threads_emit():
    def fan_out(args, tup, emit):
        elsewhere(emit, [tup.number], anchors=[tup])

    feeder, sink = FeederSpout.with_outputs("number"), CapturingBolt.fresh()
    with Scheduler.of(topology_of(auto_ack_bolt(fan_out, outputs=["number"]), feeder, sink)) as scheduler:
        feeder.feed([1], 1)
        scheduler.settle()
    assert feeder.tracker.acked == [1] and sink.tuples() == [(1,)]
