"""`keep_alive`: called at least every second of the runtime's clock, whatever state the spout is in."""

import asyncio
import itertools
import threading

import pytest

from acker.local import LocalRuntime
from acker.testing import CapturingBolt, FeederSpout, ManualClock, Scheduler
from acker.topology import Bolt, ReliableSpout, Spout, Stream, Topology, reliable_spout, unreliable_spout

pytestmark = pytest.mark.timeout(60)
SECOND = 1_000_000_000


def alive(base=Spout, **members):
    """Return a spout that notes when its `keep_alive` is called, and on which thread."""

    def keep_alive(self):
        beats.append((self._collector.now_ms(), threading.get_ident()))

    def emit_one(self):
        self.emit([1], tup_id=self.executed)
        self.executed += 1

    beats = []
    shared = {
        "outputs": ["number", Stream(["number"], name="ticks")],
        "executed": 0,
        "next_tuple": emit_one,
        "keep_alive": keep_alive,
    }
    return type("Alive", (base,), {**shared, **members}), beats


class Holds(Bolt):
    """Keeps everything to itself."""

    auto_ack = False

    def process(self, tup): ...


def topology_of(spout, bolt=Holds, **config):
    class Alive(Topology):
        source = spout.spec(config=config)
        last = bolt.spec(inputs=[source])

    return Alive


def longest_ms(beats, begin, end):
    """Return the longest time without a beat."""
    times = [begin, *(at for at, _ in beats if begin <= at <= end), end]
    return max(later - earlier for earlier, later in itertools.pairwise(times))


def finished(self):
    self.finish()


def nothing(self): ...


async def waits(self):
    await asyncio.Event().wait()


async def emits_and_waits(self):
    self.emit([1], tup_id=1)
    await asyncio.sleep(3600)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("base", [Spout, ReliableSpout])
@pytest.mark.parametrize("next_tuple", [None, finished, nothing, waits, emits_and_waits])
@pytest.mark.parametrize("paused", [False, True])
def test_every_second_while_pending_is_full_and_while_nothing_comes(seed, base, next_tuple, paused):
    spout, beats = alive(base, **({} if next_tuple is None else {"next_tuple": next_tuple}))
    conf = {"topology.max.spout.pending": 3, "topology.message.timeout.secs": 600}
    scheduler = Scheduler.of(topology_of(spout), conf, seed=seed)
    scheduler.settle()
    if paused:
        scheduler.runtime.pause()
    scheduler.advance(20)
    assert longest_ms(beats, 0, 20_000) <= 1000 and len(beats) <= 41
    is_pending = scheduler.runtime.stats().totals.pending > 0
    assert is_pending is (next_tuple in (None, emits_and_waits))
    scheduler.runtime.lifecycle.stop(drain_ns=10 * SECOND)
    scheduler.advance(9)
    assert longest_ms(beats, 20_000, 29_000 if is_pending else 20_000) <= 1000
    scheduler.run("stopped")
    before = len(beats)
    scheduler.clock.advance(10)
    assert not scheduler.step() and len(beats) == before


def test_while_consumers_are_slow_and_while_others_have_not_come_to_a_halt():
    class Crashes(Bolt):
        def process(self, tup): ...

        def process_tick(self, tup):
            raise OSError("a bolt")

    flows = threading.Event()
    spout, beats = alive(next_tuple=lambda self: self.emit([1]) if flows.is_set() else None)

    class Crashing(Topology):
        source = spout.spec()
        last = CapturingBolt.fresh().spec(inputs=[source])
        crashes = Crashes.spec(inputs=[source["ticks"]], config={"topology.tick.tuple.freq.secs": 12})

    conf = {"topology.executor.receive.buffer.size": 2, "topology.drain.secs": 8}
    scheduler = Scheduler.of(Crashing, conf)
    scheduler.settle()
    scheduler.freeze("last*")
    flows.set()
    scheduler.advance(10)
    (executor,) = scheduler.runtime.lifecycle.executors.spouts
    assert executor.blocked and longest_ms(beats, 0, 10_000) <= 1000
    scheduler.advance(6)
    assert scheduler.runtime.state == "restarting" and longest_ms(beats, 0, 16_000) <= 1000
    flows.clear()
    scheduler.thaw()
    scheduler.runtime.lifecycle.abort()
    scheduler.run("stopped")


def test_while_another_spout_is_not_open_yet():
    opened, beaten = threading.Event(), threading.Event()

    class Slow(Spout):
        outputs = ["number"]

        def initialize(self, conf, context):
            opened.wait()

        def next_tuple(self):
            self.finish()

    spout, _ = alive(next_tuple=finished, keep_alive=lambda self: beaten.set())

    class Two(Topology):
        source = spout.spec()
        slow = Slow.spec()
        last = Holds.spec(inputs=[source, slow])

    clock = ManualClock()
    runtime = LocalRuntime(Two, clock=clock)
    starts = threading.Thread(target=runtime.start)
    starts.start()
    while not beaten.wait(0.01):
        clock.advance(0.5)
    opened.set()
    starts.join()
    runtime.abort()


@pytest.mark.parametrize("kind", ["emits", "acks", "fails"])
def test_between_slow_calls(kind):
    """Each call takes 0.3 s; a step has many."""
    clock = ManualClock()
    calls = []

    def slow(self, *_):
        calls.append(clock.now_ms())
        clock.advance(0.3)

    class Tells(Bolt):
        def process(self, tup):
            if kind == "fails":
                raise ValueError

    def emit_one(self):
        self.emit([1], tup_id=self.executed)
        self.executed += 1
        if kind == "emits":
            slow(self)

    members = {"acks": {"ack": slow}, "fails": {"fail": slow}, "emits": {}}[kind]
    spout, beats = alive(next_tuple=emit_one, **members)
    runtime = LocalRuntime(topology_of(spout, Tells), clock=clock, threads=False)
    runtime.start()
    while len(calls) < 200:
        for one in runtime.steppables:
            one.step(512)
    assert longest_ms(beats, calls[0], calls[199]) <= 1000
    runtime.lifecycle.abort()
    while not runtime.has_ended:
        for one in runtime.steppables:
            one.step(512)


def test_on_the_thread_of_the_spout_and_by_the_runtime_s_clock():
    heard, clock = threading.Semaphore(0), ManualClock()
    idents = set()

    def keep_alive(self):
        idents.add(threading.get_ident())
        heard.release()

    def initialize(self, conf, context):
        self.ident = threading.get_ident()
        made.append(self)

    made = []
    spout, _ = alive(keep_alive=keep_alive, initialize=initialize)
    with LocalRuntime(topology_of(spout), {"topology.max.spout.pending": 1}, clock=clock) as runtime:
        for _ in range(5):
            while not heard.acquire(timeout=0.01):
                clock.advance(0.5)
        runtime.abort()
    assert idents == {made[0].ident}


def test_async_beside_an_async_next_tuple_that_waits():
    done = []

    async def keep_alive(self):
        await asyncio.sleep(0.2)
        done.append(self._collector.now_ms())

    for next_tuple in (waits, emits_and_waits):
        spout, _ = alive(next_tuple=next_tuple, keep_alive=keep_alive)
        scheduler = Scheduler.of(topology_of(spout))
        scheduler.advance(10)
        assert longest_ms([(at, 0) for at in done], 0, 10_000) <= 1000
        scheduler.stop(drain_secs=0)
        done.clear()


@pytest.mark.usefixtures("long_grace")
def test_async_while_a_coroutine_of_ack_waits():
    heard, acked = threading.Event(), threading.Event()
    beats = []

    async def keep_alive(self):
        beats.append(threading.get_ident())
        self.beaten.set()

    async def ack(self, tup_id):
        self.beaten.clear()
        await self.beaten.wait()
        acked.set()

    def initialize(self, conf, context):
        self.beaten = asyncio.Event()

    async def once(self):
        if not heard.is_set():
            heard.set()
            self.emit([1], tup_id=1)

    spout, _ = alive(next_tuple=once, keep_alive=keep_alive, ack=ack, initialize=initialize)
    with LocalRuntime(topology_of(spout, CapturingBolt.fresh())) as runtime:
        acked.wait()
        runtime.abort()


@pytest.mark.parametrize("is_async", [False, True])
def test_what_it_raises_restarts_the_topology_as_what_next_tuple_raises(is_async, caplog):
    lives = []

    def initialize(self, conf, context):
        lives.append(self)

    def keep_alive(self):
        if len(lives) == 1:
            raise OSError("the connection is gone")

    async def keep_alive_later(self):
        keep_alive(self)

    members = {"keep_alive": keep_alive_later, "next_tuple": waits} if is_async else {"keep_alive": keep_alive}
    spout, _ = alive(initialize=initialize, **members)
    with Scheduler.of(topology_of(spout), {"topology.max.spout.pending": 1}) as scheduler:
        scheduler.advance(1)
        assert scheduler.runtime.state == "restarting"
        assert scheduler.runtime.report().last_crash == "OSError: the connection is gone"
        scheduler.advance(2)
        assert len(lives) == 2 and scheduler.runtime.state == "running"
        scheduler.stop(drain_secs=0)


@pytest.mark.parametrize(("make", "tup"), [(reliable_spout, (1, [1])), (unreliable_spout, [1])])
def test_a_spout_of_functions(make, tup):
    beats, flows = [], threading.Event()
    source = make(
        lambda args: tup if flows.is_set() else None,
        outputs=["number"],
        make_args=lambda *_: "args",
        keep_alive=beats.append,
    )

    class Functions(Topology):
        read = source.spec()
        last = Holds.spec(inputs=[read])

    with Scheduler.of(Functions, {"topology.executor.receive.buffer.size": 2}) as scheduler:
        scheduler.settle()
        scheduler.freeze("last*")
        flows.set()
        scheduler.advance(2)
        assert len(beats) >= 2 and set(beats) == {"args"}
        flows.clear()
        scheduler.thaw()
        scheduler.stop(drain_secs=0)


def test_a_coroutine_beside_a_plain_next_tuple():
    beats = []

    async def keep_alive(self):
        await asyncio.sleep(0.2)
        beats.append((self._collector.now_ms(), 0))

    spout, _ = alive(keep_alive=keep_alive)
    scheduler = Scheduler.of(topology_of(spout), {"topology.max.spout.pending": 2})
    scheduler.advance(10)
    assert longest_ms(beats, 0, 10_000) <= 1000
    scheduler.stop(drain_secs=0)


def test_a_spout_without_it_has_no_timer():
    feeder = FeederSpout.with_outputs("number")
    scheduler = Scheduler.of(topology_of(feeder))
    scheduler.settle()
    (executor,) = scheduler.runtime.lifecycle.executors.spouts
    assert executor.outbox.keep_alive_at == 0 and executor.deadline_ns() is None
    scheduler.stop()
