"""The lifecycle: start, restart, drain and stop beyond the scenarios, on the scheduler."""

import itertools
import logging

import numpy as np
import pytest

from acker import Acker, Kind
from acker.errors import ArgumentTypeError, RuntimeStateError
from acker.local import Hook, LocalRuntime, run
from acker.local.executors.base import Mode
from acker.testing import FeederSpout, Scheduler
from acker.topology import BatchingBolt, Bolt, ReasonKind, Spout, TicklessBatchingBolt, Topology, TopologyError

SEEDS = range(4)


class Hold(Bolt):
    """Acks nothing."""

    auto_ack = False

    def process(self, tup):
        pass


class Pass(Bolt):
    outputs = ["number"]

    def process(self, tup):
        self.emit([tup.number])


@pytest.fixture
def feeder():
    return FeederSpout.with_outputs("number")


def chain(feeder, *bolts, config=None):
    """Return a topology of a spout and bolts in a row."""

    class Chain(Topology):
        source = feeder.spec()

    specs, last = {"source": Chain.source}, Chain.source
    for number, bolt in enumerate(bolts):
        last = specs[f"bolt{number}"] = bolt.spec(inputs=[last])
    return type("Chain", (Topology,), {**specs, "config": config or {}})


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_open_at_the_end_is_failed_with_shutdown(feeder, seed):
    with Scheduler.of(chain(feeder, Hold), seed=seed) as scheduler:
        feeder.feed([1], "m")
        scheduler.settle()
        report = scheduler.stop(drain_secs=5)
    assert feeder.tracker.reason_of("m").kind is ReasonKind.SHUTDOWN
    assert report.outcome == "stopped" and report.stats.totals.shut_down == 1
    assert report.stats.totals.pending == 0


def test_at_the_end_it_is_said_who_held_what(feeder):
    with Scheduler.of(chain(feeder, Hold, config={"topology.trace.sample": 1})) as scheduler:
        feeder.feed([1], "m")
        feeder.feed([2])
        scheduler.settle()
        report = scheduler.stop(drain_secs=5)
    (text,) = report.stalls
    assert text.startswith("1 tree was open when the time to drain had ended: ") and "bolt0[2] holds 2" in text
    (trace,) = report.timed_out_traces
    assert trace.startswith("source: 'm' was open at the end: ") and "bolt0[2] holds 1 tuple" in trace


def test_a_number_of_trees_that_will_never_come_ends_with_drained(feeder):
    with Scheduler.of(chain(feeder, Pass)) as scheduler:
        parsed = scheduler.runtime.watch_for(3)
        feeder.feed([1], "m")
        feeder.end()
        scheduler.run(scheduler.runtime.lifecycle.reached.is_set)
        assert scheduler.runtime.lifecycle.outcome_of(parsed) == "drained"
    assert run(chain(ended(), Pass), until=3).outcome == "drained"


def ended():
    """Return a feeder of one tuple."""
    feeder = FeederSpout.with_outputs("number")
    feeder.feed([1], "m")
    feeder.end()
    return feeder


def test_a_hook_is_an_object(feeder):
    with pytest.raises(ArgumentTypeError, match="expected instances, got the class Hook"):
        LocalRuntime(chain(feeder, Pass), hooks=[Hook])


def test_a_log_is_not_flooded(feeder, caplog):
    class Fails(Bolt):
        def process(self, tup):
            if tup.number % 2:
                self.ack(tup)
            raise ValueError("always")

    with Scheduler.of(chain(feeder, Fails, config={"topology.max.spout.pending": None})) as scheduler:
        for number in range(100):
            feeder.feed([number], number)
        scheduler.settle()
        assert len(feeder.tracker.failed) == 50 and len(feeder.tracker.acked) == 50
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 10 + 3  # the 16th, 32nd and 64th
    assert told[-1].endswith("(exception 64 of this task)")
    assert sum("raised after it had acked or failed" in text for text in told) >= 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stop_during_a_back_off_ends_at_once(feeder, seed):
    class Breaks(Bolt):
        auto_fail = False

        def process(self, tup):
            raise OSError("broken")

    with Scheduler.of(chain(feeder, Breaks), seed=seed) as scheduler:
        feeder.feed([1], "m")
        scheduler.settle()
        assert scheduler.runtime.state == "restarting"
        before = scheduler.clock.now_ns()
        report = scheduler.stop()
        assert scheduler.clock.now_ns() - before < 2e9
    assert feeder.tracker.reason_of("m").kind is ReasonKind.RESTART
    assert report.abandoned == () and report.error is None
    assert report.last_crash == report.to_json()["last_crash"] == "OSError: broken"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_spout_may_emit_in_fail_as_pystorms_does(seed):
    class Again(Spout):
        outputs = ["number"]

        def initialize(self, conf, context):
            self.sent = False

        def next_tuple(self):
            if not self.sent:
                self.sent = True
                self.emit([0], "m")

        def fail(self, tup_id):
            self.emit([1], tup_id)

    seen = []

    class FailsFirst(Bolt):
        def process(self, tup):
            seen.append(tup.number)
            if tup.number == 0:
                raise ValueError("not yet")

    class Replays(Topology):
        source = Again.spec()
        last = FailsFirst.spec(inputs=[source])

    with Scheduler.of(Replays, seed=seed) as scheduler:
        scheduler.settle()
        stats = scheduler.runtime.stats().totals
    assert seen == [0, 1] and (stats.acked, stats.failed, stats.pending) == (1, 1, 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_batch_is_let_go_when_the_topology_drains(feeder, seed):
    batches = []

    class Batches(BatchingBolt):
        ticks_between_batches = 3

        def process_batch(self, key, tups):
            batches.append([tup.number for tup in tups])

    with Scheduler.of(
        chain(feeder, Pass, Batches, config={"topology.tick.tuple.freq.secs": 5}), seed=seed
    ) as scheduler:
        for number in range(4):
            feeder.feed([number], number)
        scheduler.settle()
        assert batches == []
        report = scheduler.stop()
    assert sorted(itertools.chain(*batches)) == [0, 1, 2, 3]
    assert report.stats.totals.acked == 4 and report.stats.totals.shut_down == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_batches_behind_batches_are_let_go_when_the_topology_drains(feeder, seed):
    """Also of tuples without ids, for which no spout waits."""
    seen = []

    class Lasts(TicklessBatchingBolt):
        outputs = ["number"]
        secs_between_batches = 3600

        def process_batch(self, key, tups):
            for tup in tups:
                self.emit([tup.number])

    class Sees(Bolt):
        def process(self, tup):
            seen.append(tup.number)

    with Scheduler.of(chain(feeder, Lasts, Lasts, Lasts, Sees), seed=seed) as scheduler:
        for number in range(3):
            feeder.feed([number])
        scheduler.settle()
        scheduler.slow_down("bolt*", 0.1)  # longer than the lifecycle takes to find that all is quiet
        report = scheduler.stop()
    assert sorted(seen) == [0, 1, 2] and not report.stats.totals.pending


def test_a_pause_rests_the_spouts_and_lets_the_rest_go_on():
    calls = []

    class Switched(FeederSpout):
        outputs = ["number"]

        def activate(self):
            calls.append("activate")

        def deactivate(self):
            calls.append("deactivate")

    with Scheduler.of(chain(Switched, Pass)) as scheduler:
        Switched.feed([1], 1)
        scheduler.run(lambda: Switched.waiting_count() == 0)
        scheduler.runtime.pause()
        scheduler.settle()
        Switched.feed([2], 2)
        scheduler.settle()
        assert Switched.tracker.acked == [1] and Switched.waiting_count() == 1
        scheduler.runtime.resume()
        scheduler.settle()
        assert Switched.tracker.acked == [1, 2]
    assert calls == ["activate", "deactivate", "activate", "deactivate"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_crashed_acker_loses_nothing(feeder, seed, caplog):
    class Hurt:
        """An acker that has lost its memory."""

        def __init__(self, acker):
            self.acker = acker

        def ingest(self, *columns, **now):
            raise MemoryError("no memory for the table")

        def __getattr__(self, name):
            return getattr(self.acker, name)

        def __len__(self):
            return len(self.acker)

    with Scheduler.of(chain(feeder, Hold, config={"topology.acker.tasks": 2}), seed=seed) as scheduler:
        for number in range(20):
            feeder.feed([number], number)
        scheduler.settle()
        for task in scheduler.runtime.ackers:
            task.acker = Hurt(task.acker)
        feeder.feed([20], 20)
        scheduler.settle()
        scheduler.advance(2)
        assert sorted(feeder.tracker.failed) == list(range(21))
        assert {feeder.tracker.reason_of(number).kind for number in range(21)} == {ReasonKind.RESTART}
        assert scheduler.runtime.state == "running" and scheduler.runtime.stats().restarts == 1
    assert any("MemoryError" in record.exc_text for record in caplog.records if record.exc_text)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_acker_that_loses_its_memory_at_the_end_still_tells_the_outcome(feeder, seed):
    config = {"topology.acker.tasks": 1, "topology.acker.high_water": 1}
    with Scheduler.of(chain(feeder, Hold, config=config), seed=seed) as scheduler:
        (acker,) = scheduler.runtime.ackers
        full = Acker.restore(acker.acker.snapshot())
        late = np.arange(1, 6)  # more than four times the high-water mark, so a FAIL of an unknown tree is dropped
        full.ingest(Kind.OK, late, late)
        feeder.feed([1], "m")
        scheduler.settle()
        scheduler.runtime.abort()
        (spout,) = scheduler.runtime.lifecycle.executors.spouts
        scheduler.run(lambda: spout.mode is Mode.SETTLE)
        acker.restore(full.snapshot())
        report = scheduler.stop()
    assert feeder.tracker.reason_of("m").kind is ReasonKind.SHUTDOWN
    assert report.stats.totals.shut_down == 1 and report.stats.totals.pending == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_without_timeouts_open_trees_stay_and_what_came_late_does_not(feeder, seed):
    config = {"topology.enable.message.timeouts": False, "topology.max.spout.pending": None}

    with Scheduler.of(chain(feeder, Hold, config=config), seed=seed) as scheduler:
        feeder.feed([1], "m")
        scheduler.settle()
        acker = scheduler.runtime.ackers[0].acker
        acker.ingest([2], [77], [5])  # An OK of a tree that ended before.
        assert len(acker) == 2
        scheduler.advance(500)
        assert len(acker) == 1 and acker.stats().orphans == 1
        assert feeder.tracker.failed == []
    assert feeder.tracker.reason_of("m").kind is ReasonKind.SHUTDOWN


def test_above_the_high_water_mark_trees_are_rejected_and_counted(feeder):
    config = {"topology.acker.high_water": 2, "topology.max.spout.pending": None}
    with Scheduler.of(chain(feeder, Hold, config=config)) as scheduler:
        for number in range(8):
            feeder.feed([number], number)
        scheduler.settle()
        totals = scheduler.runtime.stats().totals
        assert totals.rejected + totals.pending == 8 and totals.rejected == 3
        rejected = [feeder.tracker.reason_of(number) for number in feeder.tracker.failed]
    assert {(reason.kind, reason.component) for reason in rejected[:3]} == {(ReasonKind.REJECTED, "__acker")}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slow_bolt_slows_the_spout_down(seed):
    class Endless(Spout):
        outputs = ["number"]

        def initialize(self, conf, context):
            self.number = 0

        def next_tuple(self):
            self.number += 1
            self.emit([self.number])  # Untracked: only the queues can stop it.

    class Flow(Topology):
        config = {"topology.executor.receive.buffer.size": 10}
        source = Endless.spec()
        first = Pass.spec(inputs=[source])
        last = Pass.spec(inputs=[first])

    with Scheduler.of(Flow, seed=seed) as scheduler:
        scheduler.run(lambda: scheduler.runtime.state == "running")
        scheduler.freeze("last*")
        scheduler.run(lambda: all(executor.blocked for executor in scheduler.runtime.lifecycle.executors.spouts))
        stats = scheduler.runtime.stats()
        # Each queue holds its capacity and what its one producer had in hand: a transfer batch of the same size.
        assert all(task.queue <= 20 for task in stats.tasks)
        emitted = stats.totals.emitted_total
        scheduler.thaw()
        scheduler.run(lambda: scheduler.runtime.stats().totals.emitted_total > emitted + 100)


def test_a_runtime_lives_once(feeder):
    runtime = LocalRuntime(chain(feeder, Pass))
    with runtime:
        assert runtime.state == "running"
    assert runtime.state == "stopped"
    with pytest.raises(RuntimeStateError, match="started only once"):
        runtime.start()


def test_a_name_that_only_this_run_has_is_its_name(feeder):
    with Scheduler.of(chain(feeder, Pass), conf={"topology.name": "tonight"}) as scheduler:
        scheduler.settle()
        report = scheduler.stop()
    assert report.topology == report.stats.topology == "tonight"


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_spout_emits_when_it_is_told_of_the_end_is_untold_and_counted(seed):
    class Again(FeederSpout):
        outputs = ["number"]

        def fail(self, tup_id, reason=None):
            super().fail(tup_id, reason)
            self.emit([0], "again")

    with Scheduler.of(chain(Again, Hold), seed=seed) as scheduler:
        Again.feed([1], "m")
        scheduler.settle()
        report = scheduler.stop(drain_secs=1)
    assert Again.tracker.reason_of("m").kind is ReasonKind.SHUTDOWN
    assert report.undelivered == 1


class Batches(BatchingBolt):
    def process_batch(self, key, tups):
        pass


TICKS = {"topology.tick.tuple.freq.secs": 1}


def test_a_batch_that_no_tick_would_end_is_refused_when_all_options_are_known(feeder):
    batches = chain(feeder, Batches)
    with pytest.raises(TopologyError) as caught:
        LocalRuntime(batches)
    assert str(caught.value) == (
        "topology Chain, component 'bolt0': Batches is a BatchingBolt and no tick ever ends a batch; set "
        "'topology.tick.tuple.freq.secs', for it alone by spec(config={'topology.tick.tuple.freq.secs': 1}), or derive "
        "it from TicklessBatchingBolt"
    )
    LocalRuntime(batches, TICKS)
    LocalRuntime(chain(feeder, Batches, config=TICKS))
    LocalRuntime(chain(feeder, type("Own", (Batches,), {"config": TICKS})))
    with pytest.raises(TopologyError, match="no tick ever ends a batch"):
        LocalRuntime(chain(feeder, type("None_", (Batches,), {"config": dict.fromkeys(TICKS)})), TICKS)


def test_a_batch_that_ends_without_the_option_is_not_refused(feeder):
    class OwnTicks(Batches):
        def tick_secs(self, conf):
            return 3

    class ByCount(Batches):
        def process(self, tup):
            super().process(tup)
            self.process_batches()

    class Tickless(TicklessBatchingBolt):
        def process_batch(self, key, tups):
            pass

    for kind in (OwnTicks, ByCount, Tickless):
        LocalRuntime(chain(feeder, kind))


def test_what_cannot_be_made_ends_the_start_with_its_error(feeder, caplog):
    class Broken(Bolt):
        def __init__(self):
            raise OSError("no such device")

        def process(self, tup):
            pass

    caplog.set_level(logging.CRITICAL, "acker.local")
    runtime = LocalRuntime(chain(feeder, Broken))
    runtime.start()
    with pytest.raises(OSError, match="no such device"):
        runtime.run_until("drained")
    runtime.stop()
    assert runtime.report().outcome == "failed" and "no such device" in runtime.report().error


def test_what_cannot_be_made_again_ends_a_restart_with_its_error(feeder):
    made = []

    class Once(Bolt):
        auto_fail = False

        def __init__(self):
            super().__init__()
            made.append(self)
            if len(made) > 1:
                raise OSError("the device is taken")

        def process(self, tup):
            raise ValueError("restart")

    with Scheduler.of(chain(feeder, Once)) as scheduler:
        feeder.feed([1], "m")
        scheduler.run("stopped")
        with pytest.raises(OSError, match="the device is taken"):
            scheduler.settle()
        assert all(acker.done is Mode.CLOSE for acker in scheduler.runtime.ackers)
    assert feeder.tracker.reason_of("m").kind is ReasonKind.RESTART


def test_a_spout_whose_finished_raises_ends_the_run_with_its_error():
    class Odd(FeederSpout):
        outputs = ["number"]

        @property
        def finished(self):
            raise LookupError("not yet initialized")

    with pytest.raises(LookupError, match="not yet initialized"):
        run(chain(Odd, Pass), until="drained")


def test_executors_do_nothing_when_they_are_halted(feeder):
    with Scheduler.of(chain(feeder, Pass)) as scheduler:
        scheduler.settle()
        executors = scheduler.runtime.lifecycle.executors
        for executor in executors:
            executor.set_mode(Mode.HALT)
        feeder.feed([1], 1)
        assert not any(executor.step() for executor in executors)
        for executor in executors:
            executor.set_mode(Mode.RUN)
        scheduler.settle()
        assert feeder.tracker.acked == [1]
