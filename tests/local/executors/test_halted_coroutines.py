"""Coroutines at a restart or stop: those that still wait are cancelled, on their own thread."""

import asyncio
import threading

import pytest

from acker.errors import RuntimeStateError
from acker.local import LocalRuntime
from acker.testing import CapturingBolt, FeederSpout, ManualClock, Scheduler
from acker.topology import Bolt, ReasonKind, Spout, Topology


class Crashing(FeederSpout):
    """Raises when it is fed "crash"."""

    def next_tuple(self):
        if self._feed and self._feed[0][0].values == ["crash"]:
            self._feed.clear()
            raise OSError("crash")
        super().next_tuple()


class Told(Crashing):
    """Also lets the test wait for a number of failures."""

    def fail(self, tup_id, reason=None):
        super().fail(tup_id, reason)
        self.heard.release()


def waiting():
    """Return a topology whose bolt waits for ever, its spout, and what the bolt has begun and what was cancelled."""
    begun, cancelled = threading.Semaphore(0), []

    class Waits(Bolt):
        outputs = ["num"]

        async def process(self, tup):
            begun.release()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(threading.current_thread())
                raise
            finally:
                self.emit([tup.num])

    spout = Told.with_outputs("num")
    spout.heard = threading.Semaphore(0)

    class Waiting(Topology):
        source = spout.spec()
        waits = Waits.spec(inputs=[source])
        last = CapturingBolt.fresh().spec(inputs=[waits])

    return Waiting, spout, begun, cancelled


@pytest.mark.timeout(60)
def test_threads_cancel_what_waits_when_they_restart_and_when_they_stop():
    topology, spout, begun, cancelled = waiting()
    clock = ManualClock()
    # The clock goes fast: neither the tree nor the time to drain, which follows from it, may end meanwhile.
    runtime = LocalRuntime(topology, {"topology.message.timeout.secs": 3600}, clock=clock)
    with runtime:
        for number in (1, 2):
            spout.feed([number], number)
            while not begun.acquire(timeout=0.01):
                clock.advance(0.01)  # a spout that had nothing is asked again
        spout.feed(["crash"])
        for _ in range(2):
            while not spout.heard.acquire(timeout=0.01):
                clock.advance(0.01)
        assert sorted(spout.tracker.failed) == [1, 2]
        assert {reason.kind for reason in spout.tracker.reasons} == {ReasonKind.RESTART}
        spout.feed([3], 3)
        while not begun.acquire(timeout=0.01):
            clock.advance(0.5)  # the back-off
        runtime.stop(drain_secs=0)
    assert spout.tracker.failed[2:] == [3]
    assert spout.tracker.reason_of(3).kind is ReasonKind.SHUTDOWN
    assert runtime.error is None and runtime.report().abandoned == ()
    assert len(cancelled) == 3 and threading.main_thread() not in cancelled


@pytest.mark.parametrize("seed", range(5))
def test_what_waits_is_cancelled_under_a_scheduler(seed):
    topology, spout, _, cancelled = waiting()
    with Scheduler.of(topology, seed=seed) as scheduler:
        spout.feed([1], 1)
        spout.feed([2], 2)
        scheduler.settle()
        spout.feed(["crash"])
        scheduler.settle()
        assert (sorted(spout.tracker.failed), len(cancelled)) == ([1, 2], 2)
        scheduler.advance(2)
        spout.feed([3], 3)
        scheduler.settle()
        scheduler.stop(drain_secs=0)
    assert spout.tracker.failed[2:] == [3]


@pytest.mark.parametrize("seed", range(20))
def test_a_spout_that_waits_emits_nothing_once_the_topology_has_come_to_a_halt(seed):
    """Two tasks share a loop: while one hears how its tuples ended, the other one's timer fires."""

    class Late(Spout):
        outputs = ["num"]
        told = []

        async def next_tuple(self):
            await asyncio.sleep(10)
            self.emit([1], tup_id=(self.task_id, self._collector.now_ms()))

        def fail(self, tup_id, reason=None):
            self.told.append(tup_id)

    class Never(Bolt):
        auto_ack = False

        def process(self, tup):
            pass

    late = type("Late", (Late,), {"told": []})

    class Spouts(Topology):
        source = late.spec(par=2, executors=1)
        last = Never.spec(inputs=[source])

    with Scheduler.of(Spouts, seed=seed) as scheduler:
        scheduler.advance(15)
        scheduler.stop(drain_secs=5)
        emitted = scheduler.runtime.stats().components()["source"].emitted["default"]
    assert len(late.told) == len(set(late.told)) == emitted >= 2


@pytest.mark.usefixtures("long_grace")
def test_a_stop_cancels_an_ack_that_waits(caplog):
    inside, ended = threading.Event(), []

    class Waits(FeederSpout):
        async def ack(self, tup_id):
            inside.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(tup_id)

        def keep_alive(self):
            pass

        def close(self):
            ended.append("closed")

    feeder = Waits.with_outputs("num")

    class Acked(Topology):
        numbers = feeder.spec()
        last = CapturingBolt.fresh().spec(inputs=[numbers])

    feeder.feed([1], 1)
    with LocalRuntime(Acked) as runtime:
        inside.wait()
        runtime.abort()
    assert ended == [1, "closed"]
    assert runtime.report().abandoned == ()
    assert "numbers[1]: `async def ack` is cancelled, because the topology halts while it waits" in caplog.text
    assert runtime.stats().components()["numbers"].ack_errors == 1


def test_what_was_abandoned_keeps_nothing_alive():
    beats = []

    class Stuck(FeederSpout):
        def keep_alive(self):
            beats.append(1)

    feeder = Stuck.with_outputs("num")

    class Hung(Topology):
        numbers = feeder.spec()
        last = CapturingBolt.fresh().spec(inputs=[numbers])

    scheduler = Scheduler.of(Hung)
    scheduler.advance(1)
    assert beats
    scheduler.freeze("numbers*")
    scheduler.stop(drain_secs=0)
    assert len(scheduler.runtime.report().abandoned) == 1
    beats.clear()
    (spout,) = [each for each in scheduler.runtime.steppables if each.name == "numbers[1]"]
    spout._keep_alive()  # as a thread that comes back from user code does
    assert beats == []


@pytest.mark.parametrize("method", ["ack", "fail"])
def test_waiting_for_time_within_a_step_of_the_scheduler_is_an_error(method):
    class Sleeps(FeederSpout):
        async def ack(self, tup_id):
            await asyncio.sleep(1)

        fail = ack

    feeder = Sleeps.with_outputs("num")

    class Fails(Bolt):
        def process(self, tup):
            if method == "fail":
                raise ValueError

    class Timed(Topology):
        numbers = feeder.spec()
        last = Fails.spec(inputs=[numbers])

    feeder.feed([1], 1)
    scheduler = Scheduler.of(Timed, no_restart=True)
    with pytest.raises(RuntimeStateError, match=rf"^numbers\[1\]: `async def {method}` waits for time"):
        scheduler.settle()
