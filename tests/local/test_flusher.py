"""What is done leaves while user code still runs, however long that takes."""

from __future__ import annotations

import asyncio
import threading

import pytest

from acker.local import LocalRuntime
from acker.local.flusher import Flusher
from acker.testing import FeederSpout, Scheduler
from acker.topology import Bolt, Spout, Topology

LONG = 60.0
HANGS = 3  # the tuple in whose call a bolt hangs
MS = 0.001


class Gate:
    """Where user code hangs until a test lets it go on."""

    def __init__(self):
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.go_on.set()

    def hang(self):
        self.reached.set()
        assert self.go_on.wait(LONG)


class Arrivals:
    """The numbers that arrive somewhere."""

    def __init__(self):
        self.numbers, self.changed = [], threading.Condition()

    def add(self, number):
        with self.changed:
            self.numbers.append(number)
            self.changed.notify_all()

    def wait_for(self, numbers):
        with self.changed:
            assert self.changed.wait_for(lambda: self.numbers == numbers, LONG), self.numbers


def numbers_of(count, acked):
    """Return a spout that emits so many numbers in a call each, and tells which were acked."""

    class Numbers(Spout):
        outputs = ("number",)

        def initialize(self, conf, context):
            self.left = list(range(1, count + 1))

        def next_tuple(self):
            if not self.left:
                self.finish()
                return
            number = self.left.pop(0)
            self.emit([number], tup_id=number)

        def ack(self, tup_id):
            acked.add(tup_id)

    return Numbers.spec()


def topology_of(**components):
    return type(Topology)("T", (Topology,), components)


def test_what_is_done_is_acked_and_sent_on_while_a_later_call_hangs():
    acked, arrived = Arrivals(), Arrivals()

    class Hangs(Bolt):
        outputs = ("number",)

        def process(self, tup):
            if tup.number == HANGS:
                gate.hang()
            self.emit([tup.number])

    class Last(Bolt):
        def process(self, tup):
            arrived.add(tup.number)

    numbers = numbers_of(5, acked)
    hangs = Hangs.spec(inputs=[numbers])
    with Gate() as gate, LocalRuntime(topology_of(numbers=numbers, hangs=hangs, last=Last.spec(inputs=[hangs]))) as it:
        assert gate.reached.wait(LONG)
        arrived.wait_for([1, 2])
        acked.wait_for([1, 2])
        gate.go_on.set()
        it.run_until("drained")
    assert arrived.numbers == [1, 2, 3, 4, 5] and sorted(acked.numbers) == [1, 2, 3, 4, 5]


def test_what_a_call_emits_leaves_while_it_goes_on():
    arrived = Arrivals()

    class Hangs(Bolt):
        outputs = ("number",)

        def process(self, tup):
            self.emit([tup.number])
            gate.hang()

    class Last(Bolt):
        def process(self, tup):
            arrived.add(tup.number)

    numbers = numbers_of(1, Arrivals())
    hangs = Hangs.spec(inputs=[numbers])
    with Gate() as gate, LocalRuntime(topology_of(numbers=numbers, hangs=hangs, last=Last.spec(inputs=[hangs]))) as it:
        arrived.wait_for([1])
        gate.go_on.set()
        it.run_until("drained")


def test_what_a_spout_has_emitted_leaves_before_its_next_call_returns():
    arrived = Arrivals()

    class Polls(Spout):
        outputs = ("number",)

        def initialize(self, conf, context):
            self.calls = 0

        def next_tuple(self):
            self.calls += 1
            if self.calls == HANGS:
                gate.hang()
                self.finish()
                return
            self.emit([self.calls])

    class Last(Bolt):
        def process(self, tup):
            arrived.add(tup.number)

    polls = Polls.spec()
    with Gate() as gate, LocalRuntime(topology_of(polls=polls, last=Last.spec(inputs=[polls]))) as it:
        assert gate.reached.wait(LONG)
        arrived.wait_for([1, 2])
        gate.go_on.set()
        it.run_until("drained")


def test_what_coroutines_have_done_leaves_while_one_blocks_the_loop():
    acked = Arrivals()

    class Hangs(Bolt):
        async def process(self, tup):
            if tup.number == HANGS:
                gate.hang()

    numbers = numbers_of(HANGS, acked)
    with Gate() as gate, LocalRuntime(topology_of(numbers=numbers, hangs=Hangs.spec(inputs=[numbers]))) as it:
        assert gate.reached.wait(LONG)
        acked.wait_for([1, 2])
        gate.go_on.set()
        it.run_until("drained")


def test_what_a_coroutine_has_done_leaves_while_another_blocks_the_loop_between_steps():
    acked = Arrivals()

    class Hangs(Bolt):
        async def process(self, tup):
            await asyncio.sleep(0.01 * tup.number)  # all of them wait, so no step goes on
            if tup.number == HANGS:
                gate.hang()

    numbers = numbers_of(HANGS, acked)
    with Gate() as gate, LocalRuntime(topology_of(numbers=numbers, hangs=Hangs.spec(inputs=[numbers]))) as it:
        assert gate.reached.wait(LONG)
        acked.wait_for([1, 2])
        gate.go_on.set()
        it.run_until("drained")


def test_a_flusher_goes_on_after_an_error(caplog):
    class Fails:
        name, abandoned, step_since_ns = "fails[2]", False, 1

        def flush_early(self):
            raise MemoryError("no room")

    flusher = Flusher(lambda: [Fails(), Fails()], threading.Event())
    assert flusher.look() == (True, False)
    assert caplog.text.count("fails[2]: what was done could not be sent while user code runs") == 2


class Slow(Bolt):
    """Takes time on the clock of a simulation, in which the flusher looks once a millisecond."""

    outputs = ("number",)

    def process(self, tup):
        self.emit([tup.number])
        for _ in range(tup.number % 4):
            SIMULATED[-1].pass_a_millisecond()


class Simulated:
    """A topology whose bolts take up to 3 ms for a tuple, and what had not left a millisecond after it was done."""

    def __init__(self, seed, stages, tuples):
        feeder = FeederSpout.with_outputs("number")
        for number in range(tuples):
            feeder.feed([number], number)
        parts = {"numbers": feeder.spec()}
        for stage in range(stages):
            parts[f"slow{stage}"] = Slow.spec(inputs=[parts[f"slow{stage - 1}" if stage else "numbers"]], par=2)
        self.feeder, self.late = feeder, []
        self.scheduler = Scheduler.of(topology_of(**parts), seed=seed)

    def pass_a_millisecond(self):
        runtime = self.scheduler.runtime
        self.scheduler.clock.advance(MS)
        runtime.flusher.look()
        self.late += [executor.name for executor in runtime.lifecycle.executors if executor.has_unsent()]


SIMULATED: list[Simulated] = []


@pytest.mark.parametrize("seed", range(20))
def test_nothing_that_is_done_waits_for_longer_than_a_millisecond_of_the_clock(seed):
    SIMULATED.append(Simulated(seed, stages=1 + seed % 3, tuples=40))
    try:
        with SIMULATED[-1].scheduler as scheduler:
            scheduler.settle()
            assert sorted(SIMULATED[-1].feeder.tracker.acked) == list(range(40))
        assert not SIMULATED[-1].late
    finally:
        SIMULATED.pop()


def test_a_step_of_slow_calls_ends_after_one_of_them():
    """So that its producer finds room, and the watchdog speaks of the call that runs."""
    steps = []

    class Counts(Bolt):
        def process(self, tup):
            (bolt,) = scheduler.runtime.lifecycle.executors.bolts
            steps.append(bolt.steps)
            scheduler.runtime.flusher.look()

    feeder = FeederSpout.with_outputs("number")
    for number in range(5):
        feeder.feed([number], number)
    numbers = feeder.spec()
    with Scheduler.of(topology_of(numbers=numbers, counts=Counts.spec(inputs=[numbers]))) as scheduler:
        scheduler.settle()
    assert len(steps) == len(set(steps)) == 5


@pytest.mark.parametrize("count", [1, 700])
def test_the_flusher_ends_with_its_topology(count):
    acked = Arrivals()

    class Last(Bolt):
        def process(self, tup): ...

    numbers = numbers_of(count, acked)
    with LocalRuntime(topology_of(numbers=numbers, last=Last.spec(inputs=[numbers]))) as runtime:
        runtime.run_until("drained")
    assert len(acked.numbers) == count
    assert not [thread for thread in threading.enumerate() if "flusher" in thread.name]
