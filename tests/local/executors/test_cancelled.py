"""Exceptions that are no `Exception`: cancelled coroutines, exits and interrupts fail their tuple at once."""

import asyncio
import logging
import threading

import pytest

from acker.local import LocalRuntime, run
from acker.testing import CapturingBolt, FeederSpout, Scheduler
from acker.topology import Bolt, ReasonKind, Spout, TicklessBatchingBolt, Topology


async def cancels_itself():
    asyncio.current_task().cancel("by itself")
    await asyncio.sleep(1)


async def awaits_what_is_cancelled():
    child = asyncio.create_task(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(child.cancel)
    await child


async def gathers_what_is_cancelled():
    child = asyncio.create_task(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(child.cancel)
    await asyncio.gather(asyncio.sleep(0), child)


async def is_shielded():
    task = asyncio.current_task()
    asyncio.get_running_loop().call_soon(task.cancel)
    await asyncio.shield(asyncio.sleep(60))


async def raises_cancelled():
    raise asyncio.CancelledError("a library")


async def raises_generator_exit():
    raise GeneratorExit("no generator")


class Stop(BaseException):
    """As of gevent and trio: no Exception, and no end of the program."""


async def raises_its_own():
    await asyncio.sleep(0)
    raise Stop("own")


ENDS = [
    cancels_itself,
    awaits_what_is_cancelled,
    gathers_what_is_cancelled,
    is_shielded,
    raises_cancelled,
    raises_generator_exit,
    raises_its_own,
]


def topology_of(bolt, feeder, **options):
    class Ending(Topology):
        source = feeder.spec()
        ends = bolt.spec(inputs=[source], **options)

    return Ending


@pytest.mark.parametrize("end", ENDS)
def test_a_coroutine_that_does_not_end_well_fails_its_tuple_at_once(end, caplog):
    class Ends(Bolt):
        async def process(self, tup):
            if tup.number == 1:
                await end()

    feeder = FeederSpout.with_outputs("number")
    with Scheduler.of(topology_of(Ends, feeder)) as scheduler:
        for number in range(3):
            feeder.feed([number], number)
        scheduler.settle()
        assert scheduler.clock.now_ns() == 0
        assert (sorted(feeder.tracker.acked), feeder.tracker.failed) == ([0, 2], [1])
        reason = feeder.tracker.reasons[0]
        assert (reason.kind, reason.component) == (ReasonKind.FAILED, "ends")
        assert reason.exception.split(":")[0] in {"CancelledError", "GeneratorExit", "Stop"}
        counts = scheduler.runtime.stats().components()["ends"]
        assert (counts.executed, counts.acked, counts.failed, counts.pending) == (3, 2, 1, 0)
        assert scheduler.runtime.error is None and scheduler.runtime.stats().restarts == 0
    told = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.name for record in told] == ["acker.topology.ends"] and "task 2 failed" in told[0].getMessage()


def test_why_it_was_cancelled_is_told():
    class Ends(Bolt):
        async def process(self, tup):
            await cancels_itself()

    feeder = FeederSpout.with_outputs("number")
    with Scheduler.of(topology_of(Ends, feeder)) as scheduler:
        feeder.feed([1], 1)
        scheduler.settle()
    assert feeder.tracker.reasons[0].exception == "CancelledError: by itself"


def test_a_coroutine_that_is_cancelled_before_it_has_begun_fails_its_tuple_too():
    """As does code that cancels whatever else runs on its loop; the runtime's own tasks among it."""
    begun = []

    class Ends(Bolt):
        async def process(self, tup):
            begun.append(tup.number)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    feeder = FeederSpout.with_outputs("number")
    for number in range(4):
        feeder.feed([number], number)
    with Scheduler.of(topology_of(Ends, feeder)) as scheduler:
        scheduler.settle()
        ended = feeder.tracker
        assert sorted(ended.acked + ended.failed) == [0, 1, 2, 3] and ended.acked == begun
        counts = scheduler.runtime.stats().components()["ends"]
        assert (counts.executed, counts.failed, counts.pending) == (4, len(ended.failed), 0)
        assert scheduler.runtime.error is None


@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit, Stop])
@pytest.mark.parametrize("kind", ["plain", "batching"])
def test_a_plain_bolt_fails_its_tuple_for_them_too(error, kind):
    class Ends(Bolt):
        def process(self, tup):
            raise error("here")

    class EndsBatch(TicklessBatchingBolt):
        def process_batch(self, key, tups):
            raise error("here")

    feeder = FeederSpout.with_outputs("number")
    with Scheduler.of(topology_of(Ends if kind == "plain" else EndsBatch, feeder)) as scheduler:
        feeder.feed([1], 1)
        scheduler.advance(2)
        assert feeder.tracker.reasons[0].exception == f"{error.__name__}: here"
        assert scheduler.runtime.error is None and scheduler.runtime.stats().restarts == 0


def plain(error):
    class Ends(Bolt):
        def process(self, tup):
            raise error("enough")

    return Ends


def coroutine(error):
    class Ends(Bolt):
        async def process(self, tup):
            await asyncio.sleep(0)
            raise error("enough")

    return Ends


def batching(error):
    class Ends(TicklessBatchingBolt):
        def process_batch(self, key, tups):
            raise error("enough")

    return Ends


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("make", [plain, coroutine, batching])
def test_what_ends_a_program_fails_its_tuple_and_ends_the_topology(error, make):
    feeder = FeederSpout.with_outputs("number")
    scheduler = Scheduler.of(topology_of(make(error), feeder))
    feeder.feed([1], 1)
    with pytest.raises(error, match="enough"):
        scheduler.drain()
    assert [str(reason) for reason in feeder.tracker.reasons] == [
        f"failed in ends[2]: {error.__name__}: enough (attempt 1)"
    ]


@pytest.mark.parametrize("make", [plain, coroutine])
def test_without_auto_fail_it_restarts_the_topology_as_an_exception_does(make):
    class Escapes(make(asyncio.CancelledError)):
        auto_fail = False

    feeder = FeederSpout.with_outputs("number")
    with Scheduler.of(topology_of(Escapes, feeder)) as scheduler:
        feeder.feed([1], 1)
        scheduler.settle()
        assert feeder.tracker.reasons[0].kind is ReasonKind.RESTART
        scheduler.advance(2)
        assert scheduler.runtime.stats().restarts == 1 and scheduler.runtime.error is None


class Asked(Spout):
    """Emits a number each time it is asked, until something ends it."""

    outputs = ["number"]
    lives = 0

    def initialize(self, conf, context):
        type(self).lives += 1


def spout_cancelled_in_next_tuple():
    class Cancelled(Asked):
        async def next_tuple(self):
            if self.lives == 1:
                await cancels_itself()
            self.finish()

    return Cancelled


def spout_cancelled_in_ack():
    class Cancelled(Asked):
        async def next_tuple(self):
            if self.lives == 1:
                self.emit([1], tup_id=1)
            self.finish()

        async def ack(self, tup_id):
            await cancels_itself()

    return Cancelled


def spout_cancelled_in_fail():
    class Cancelled(Asked):
        async def next_tuple(self):
            if self.lives == 1:
                self.emit([-1], tup_id=1)
            self.finish()

        async def fail(self, tup_id):
            await cancels_itself()

    return Cancelled


def plain_spout():
    class Cancelled(Asked):
        def next_tuple(self):
            if self.lives == 1:
                raise asyncio.CancelledError
            self.finish()

    return Cancelled


def spout_cancelled_in_initialize():
    class Cancelled(Asked):
        def initialize(self, conf, context):
            super().initialize(conf, context)
            if self.lives == 1:
                raise asyncio.CancelledError

        def next_tuple(self):
            self.finish()

    return Cancelled


class Negative(Bolt):
    """Fails what is negative."""

    def process(self, tup):
        if tup.number < 0:
            self.fail(tup, "negative")


@pytest.mark.parametrize(
    "make",
    [
        spout_cancelled_in_next_tuple,
        spout_cancelled_in_ack,
        spout_cancelled_in_fail,
        spout_cancelled_in_initialize,
        plain_spout,
    ],
)
def test_a_spout_that_is_cancelled_restarts_the_topology(make, caplog):
    spout = make()
    with Scheduler.of(topology_of(Negative, spout)) as scheduler:
        scheduler.settle()
        assert scheduler.runtime.state == "restarting"
        scheduler.advance(2)
        assert (scheduler.runtime.state, spout.lives) == ("running", 2)
    assert any("raised, the topology stops" in record.getMessage() for record in caplog.records)


def test_a_next_tuple_that_raises_while_the_spouts_rest_is_heard():
    class Raises(Spout):
        outputs = ["number"]

        async def next_tuple(self):
            await asyncio.sleep(5)
            raise OSError("the source is gone")

    with Scheduler.of(topology_of(Negative, Raises)) as scheduler:
        scheduler.settle()
        scheduler.runtime.pause()
        scheduler.advance(6)
        assert scheduler.runtime.report().last_crash == "OSError: the source is gone"


@pytest.mark.usefixtures("long_grace")
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_exit_of_a_task_that_the_bolt_has_made_ends_the_topology_and_not_its_thread_alone(error):
    """It leaves the loop while the executor rests, outside of any step."""

    tasks = []

    async def exits():
        await asyncio.sleep(0.01)
        raise error("a task")

    class Spawns(Bolt):
        async def process(self, tup):
            tasks.append(asyncio.create_task(exits()))

    feeder = FeederSpout.with_outputs("number")
    feeder.feed([1], 1)
    with pytest.raises(error, match="a task"):
        run(topology_of(Spawns, feeder))
    assert feeder.tracker.acked == [1]
    assert [type(task.exception()) for task in tasks] == [error]


@pytest.mark.timeout(60)
def test_a_component_that_cannot_be_made_for_whatever_reason_does_not_hang_the_start():
    class Exits(Bolt):
        def __init__(self):
            raise SystemExit("no licence")

        def process(self, tup): ...

    with pytest.raises(SystemExit, match="no licence"):
        run(topology_of(Exits, FeederSpout.with_outputs("number")))


@pytest.mark.usefixtures("long_grace")
def test_a_stop_cancels_tasks_that_the_bolt_has_made_and_what_it_shields():
    begun, cancelled = threading.Semaphore(0), []

    async def waits(name):
        begun.release()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(name)
            raise

    class Spawns(Bolt):
        async def process(self, tup):
            self.tasks = [asyncio.create_task(waits("made"))]
            await asyncio.shield(waits("shielded"))

    feeder = FeederSpout.with_outputs("number")
    feeder.feed([1], 1)
    with LocalRuntime(topology_of(Spawns, feeder)) as runtime:
        for _ in range(2):
            begun.acquire()
        runtime.stop(drain_secs=0)
    assert sorted(cancelled) == ["made", "shielded"]
    assert [reason.kind for reason in feeder.tracker.reasons] == [ReasonKind.SHUTDOWN]
    assert runtime.report().stats.components()["ends"].failed == 0


def test_close_and_outcomes_that_raise_do_not_stop_a_stop(caplog):
    class Exits(CapturingBolt.fresh()):
        def close(self):
            raise SystemExit("closed")

    class Fed(FeederSpout):
        def fail(self, tup_id, reason=None):
            super().fail(tup_id, reason)
            raise asyncio.CancelledError

        def close(self):
            raise GeneratorExit

    class Holds(Exits):
        auto_ack = False

    feeder = Fed.with_outputs("number")
    scheduler = Scheduler.of(topology_of(Holds, feeder))
    for number in range(2):
        feeder.feed([number], number)
    scheduler.settle()
    report = scheduler.stop(drain_secs=0)
    assert (sorted(feeder.tracker.failed), report.error, report.undelivered) == ([0, 1], None, 0)
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert sum("raised in close" in text for text in texts) == 2
    assert sum("while it stops" in text for text in texts) == 2
