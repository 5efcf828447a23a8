"""The scheduler: one thread, an order that a seed decides, a clock that moves when no part can step."""

import pytest

from acker.local import LocalRuntime, run
from acker.testing import CapturingBolt, FeederSpout, Scheduler, SchedulerError
from acker.topology import Bolt, Grouping, Spout, Topology


class Pass(Bolt):
    outputs = ["num"]

    def process(self, tup):
        self.emit([tup.num])


def fan(par=3):
    feeder, sink = FeederSpout.with_outputs("num"), CapturingBolt.fresh()

    class Fan(Topology):
        source = feeder.spec()
        middle = Pass.spec(inputs={source: Grouping.all}, par=par)
        last = sink.spec(inputs=[middle], par=2)

    return feeder, sink, Fan


def order(seed):
    feeder, sink, topology = fan()
    with Scheduler.of(topology, seed=seed) as scheduler:
        for number in range(10):
            feeder.feed([number], number)
        scheduler.settle()
    return [(found.task, found.values) for found in sink.captured], list(feeder.tracker.acked), scheduler.steps


def test_a_seed_repeats_the_order_and_another_one_changes_it():
    assert order(1) == order(1)
    assert len({str(order(seed)) for seed in range(10)}) > 5
    assert {len(order(seed)[0]) for seed in range(10)} == {30}


def test_settling_does_not_turn_the_clock_and_running_does():
    feeder, _, topology = fan()
    with Scheduler.of(topology) as scheduler:
        feeder.feed([1], 1)
        assert scheduler.settle() > 3
        assert (scheduler.clock.now_ns(), feeder.tracker.acked) == (0, [1])
        assert scheduler.settle() == 0
        scheduler.run(lambda: scheduler.clock.now_ns() >= 60 * 10**9)
        assert scheduler.clock.now_ns() == 60 * 10**9, "at a deadline: a rotation"


def test_time_passes_from_deadline_to_deadline():
    seen = []

    class Ticking(Pass):
        def process_tick(self, tup):
            seen.append(self._collector.now_ms())

    class Ticks(Topology):
        source = FeederSpout.with_outputs("num").spec()
        ticking = Ticking.spec(inputs=[source], config={"topology.tick.tuple.freq.secs": 0.25})

    with Scheduler.of(Ticks) as scheduler:
        scheduler.advance(1.1)
        assert seen == [250, 500, 750, 1000]
        assert scheduler.clock.now_ms() == 1100


def test_a_clock_that_somebody_else_turns_is_noticed():
    seen = []

    class Ticking(Pass):
        def process_tick(self, tup):
            seen.append(self._collector.now_ms())

    class Ticks(Topology):
        source = FeederSpout.with_outputs("num").spec()
        ticking = Ticking.spec(inputs=[source], config={"topology.tick.tuple.freq.secs": 1})

    with Scheduler.of(Ticks) as scheduler:
        scheduler.settle()
        scheduler.clock.advance(7)
        assert seen == []
        scheduler.settle()
        assert seen == [7000]


def test_frozen_executors_take_no_steps():
    feeder, sink, topology = fan(par=1)
    with Scheduler.of(topology) as scheduler:
        scheduler.settle()
        assert scheduler.freeze("last*") == ["last[3]", "last[4]"]
        feeder.feed([1], 1)
        feeder.feed([2], 2)
        scheduler.settle()
        assert sink.tuples() == []
        scheduler.thaw("last[3]")
        scheduler.settle()
        assert len(sink.tuples()) == 1
        scheduler.thaw()
        scheduler.settle()
        assert sorted(sink.tuples()) == [(1,), (2,)]


def test_parts_exist_once_the_topology_runs():
    _, _, topology = fan(par=1)
    with Scheduler.of(topology) as scheduler:
        with pytest.raises(SchedulerError, match=r"does not run yet, and its parts exist after settle\(\)"):
            scheduler.freeze("last*")
        scheduler.settle()
        with pytest.raises(SchedulerError, match="no part is called 'lost'; the parts are lifecycle, "):
            scheduler.freeze("lost")


def test_the_lifecycle_is_meant_by_its_name_only():
    feeder, _, topology = fan(par=1)
    with Scheduler.of(topology) as scheduler:
        scheduler.settle()
        with pytest.raises(SchedulerError, match=r"no part is called 'li\*'"):
            scheduler.freeze("li*")
        assert "lifecycle" not in scheduler.freeze("*")
        assert scheduler.freeze("lifecycle") == ["lifecycle"]
        scheduler.thaw()
        feeder.end()
        assert scheduler.drain().outcome == "drained"


def test_slow_executors_let_time_pass_between_steps():
    feeder, sink, topology = fan(par=1)
    with Scheduler.of(topology) as scheduler:
        scheduler.settle()
        scheduler.slow_down("last*", 0.5)
        for number in range(4):
            feeder.feed([number], number)
            scheduler.settle()
        assert len(sink.captured) == 2, "one step each"
        scheduler.advance(0.5)
        assert len(sink.captured) == 4
        scheduler.slow_down("last*", 0)
        feeder.feed([9], 9)
        scheduler.advance(0.5)
        feeder.feed([9], 10)
        scheduler.settle()
        assert len(feeder.tracker.acked) == 6


def test_calls_come_when_it_is_time():
    feeder, _, topology = fan()
    with Scheduler.of(topology) as scheduler:
        calls = []
        scheduler.call_later(2, lambda: calls.append(("b", scheduler.clock.now_ms())))
        scheduler.call_later(1.5, lambda: calls.append(("a", scheduler.clock.now_ms())))
        scheduler.call_later(2, lambda: feeder.feed([1], "late"))
        scheduler.advance(1)
        assert calls == []
        scheduler.advance(5)
        assert calls == [("a", 1500), ("b", 2000)]
        assert feeder.tracker.acked == ["late"]


def test_errors_name_the_seed():
    _, _, topology = fan()
    scheduler = Scheduler.of(topology, seed=42)
    with pytest.raises(SchedulerError, match=r"not reached within 50 steps \(seed 42, step \d+, .* the last steps: "):
        scheduler.run(lambda: False, steps_max=50)
    with pytest.raises(SchedulerError, match=r"no part is called 'lost\*'; the parts are lifecycle, __acker"):
        scheduler.freeze("lost*")
    scheduler.stop()
    with pytest.raises(SchedulerError, match=r"nothing is left to do and no timer is set \(seed 42"):
        scheduler.run(lambda: False)


def test_what_never_comes_to_rest_is_an_error():
    class Endless(Spout):
        outputs = ["num"]

        def next_tuple(self):
            self.emit([1])

    class Forever(Topology):
        source = Endless.spec()
        last = CapturingBolt.fresh().spec(inputs=[source])

    scheduler = Scheduler.of(Forever, seed=7)
    with pytest.raises(
        SchedulerError, match=r"still something to do after 300 steps without a turn of the clock \(seed 7"
    ):
        scheduler.settle(steps_max=300)


def test_what_a_step_raises_names_the_seed(monkeypatch):
    _, _, topology = fan()
    scheduler = Scheduler.of(topology, seed=9)
    scheduler.settle()

    def broken(limit):
        raise OSError("broken runtime")

    monkeypatch.setattr(scheduler.runtime.ackers[0], "step", broken)
    with pytest.raises(OSError, match="broken runtime") as caught:
        scheduler.settle()
    assert "seed 9" in caught.value.__notes__[0]


def test_drain_ends_when_all_is_done():
    feeder, sink, topology = fan()
    for number in range(5):
        feeder.feed([number], number)
    feeder.end()
    report = Scheduler.of(topology).drain()
    assert (report.outcome, len(sink.captured), sorted(feeder.tracker.acked)) == ("drained", 15, [0, 1, 2, 3, 4])


def test_drain_raises_what_the_topology_stopped_with():
    class Broken(Spout):
        outputs = ["num"]

        def next_tuple(self):
            raise OSError("no source")

    class Stops(Topology):
        source = Broken.spec()
        last = CapturingBolt.fresh().spec(inputs=[source])

    with pytest.raises(OSError, match="no source"):
        Scheduler.of(Stops, no_restart=True).drain()


# --- a topology that has died -----------------------------------------------------------------------------------------


def broken():
    class Breaks(Spout):
        outputs = ["num"]

        def next_tuple(self):
            raise OSError("no broker")

    class Broken(Topology):
        config = {"topology.no.restart": True}
        source = Breaks.spec()
        last = Pass.spec(inputs=[source])

    return Broken


@pytest.mark.parametrize(
    "go_on",
    [
        lambda scheduler: scheduler.settle(),
        lambda scheduler: scheduler.advance(1),
        lambda scheduler: scheduler.drain(),
        lambda scheduler: scheduler.run(lambda: False),
    ],
    ids=["settle", "advance", "drain", "run"],
)
def test_a_dead_topology_raises_what_it_died_of(go_on):
    scheduler = Scheduler.of(broken())
    for _ in range(2):  # nobody gets past it
        with pytest.raises(OSError, match="no broker"):
            go_on(scheduler)


def test_leaving_the_with_statement_raises_what_nothing_else_has_raised():
    with pytest.raises(OSError, match="no broker"), Scheduler.of(broken()) as scheduler:
        scheduler.run("stopped")
    with Scheduler.of(broken()) as scheduler, pytest.raises(OSError, match="no broker"):
        scheduler.settle()
    with pytest.raises(ZeroDivisionError), Scheduler.of(broken()):
        raise ZeroDivisionError


def test_a_restart_that_goes_on_is_no_death():
    scheduler = Scheduler.of(broken(), no_restart=False, max_restarts=1)
    scheduler.settle()
    assert scheduler.runtime.state == "restarting"
    scheduler.advance(1)
    with pytest.raises(OSError, match="no broker"):
        scheduler.advance(2)


def test_a_runtime_with_threads_raises_it_too_and_once():
    runtime = LocalRuntime(broken())
    with pytest.raises(OSError, match="no broker"), runtime:
        runtime.lifecycle.over.wait()
    runtime = LocalRuntime(broken())
    with runtime, pytest.raises(OSError, match="no broker"):
        runtime.run_until("drained")


def test_a_run_raises_what_was_raised_while_it_drained():
    class Late(Spout):
        outputs = ["num"]

        def next_tuple(self):
            self.finish()

        def deactivate(self):
            raise OSError("the broker has gone")

    class Ends(Topology):
        source = Late.spec()
        last = Pass.spec(inputs=[source])

    with pytest.raises(OSError, match="the broker has gone"):
        run(Ends, until="drained")
