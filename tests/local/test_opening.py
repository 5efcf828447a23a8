"""An `initialize` that takes long: the time of a run counts from its call, and a stop does not wait for ever."""

import logging
import os
import signal
import threading

import pytest

from acker.local import LocalRuntime, run
from acker.testing import ManualClock, Scheduler
from acker.topology import Bolt, Spout, Topology

# A thread that the end of a run left behind would hold the test for ever.
pytestmark = pytest.mark.timeout(60)


class Slow:
    """An `initialize` that waits for the test."""

    def __init__(self):
        self.inside, self.go_on = threading.Event(), threading.Event()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.go_on.set()

    def topology(self, kind):
        def initialize(component, conf, context):
            self.inside.set() or self.go_on.wait()  # one line, since the report names it

        def emit_once(spout):
            if not spout.finished:
                spout.emit([1], tup_id=1)
                spout.finish()

        waits = {"initialize": initialize}
        spout = type(
            "Source", (Spout,), {"outputs": ["n"], "next_tuple": emit_once, **(waits if kind == "spout" else {})}
        )
        bolt = type("Last", (Bolt,), {"process": lambda *_: None, **(waits if kind == "bolt" else {})})
        return type(Topology)("T", (Topology,), {"source": spout.spec(), "last": bolt.spec(inputs=["source"])})


@pytest.mark.parametrize("kind", ["spout", "bolt"])
def test_a_run_ends_when_its_time_is_up_though_initialize_has_not_returned(kind, caplog):
    name = {"spout": "source[1]", "bolt": "last[2]"}[kind]
    clock, reports = ManualClock(), []
    with Slow() as slow:
        topology = slow.topology(kind)
        runs = threading.Thread(target=lambda: reports.append(run(topology, until="1s", clock=clock)))
        runs.start()
        slow.inside.wait()
        while runs.is_alive():
            clock.advance(0.5)
            runs.join(0.01)
    [report] = reports
    assert report.outcome == "elapsed"
    # The clock goes fast, so another task may be too slow to end in its time.
    stacks = {f"{left.component}[{left.task}]": left.stack for left in report.abandoned}
    assert "go_on.wait()" in stacks[name]
    assert any(
        f"the time of the run is up and initialize() has not returned: {name} for" in text for text in report.stalls
    )
    assert "it is left behind unless it returns within 1 s" in caplog.text


def test_an_initialize_that_returns_in_time_is_closed_in_order():
    closed = []

    class Source(Spout):
        outputs = ["n"]

        def initialize(self, conf, context):
            clock.advance(0.01)
            runtime.lifecycle.reached.wait()

        def next_tuple(self): ...

        def close(self):
            closed.append("source")

    class Last(Bolt):
        def process(self, tup):
            pass

        def close(self):
            closed.append("last")

    topology = type(Topology)("T", (Topology,), {"source": Source.spec(), "last": Last.spec(inputs=["source"])})
    clock = ManualClock()  # the time to return does not pass, however slow a thread is
    runtime = LocalRuntime(topology, clock=clock)
    assert runtime.run("10ms") == "elapsed"
    runtime.stop()
    assert sorted(closed) == ["last", "source"] and runtime.report().abandoned == ()


def test_a_time_counts_from_the_start_and_not_from_when_the_runtime_was_made():
    with Slow() as slow:
        slow.go_on.set()
        clock = ManualClock()
        runtime = LocalRuntime(slow.topology("bolt"), clock=clock, threads=False)
        clock.advance(100)
        scheduler = Scheduler(runtime, clock)
        runtime.start()
        runtime.watch_for("10s")
        scheduler.advance(9)
        assert not runtime.lifecycle.reached.is_set()
        scheduler.advance(1)
        assert runtime.lifecycle.reached.is_set()
        scheduler.stop()


@pytest.mark.parametrize("drain_secs", [0, 0.01])
def test_a_stop_during_initialize_waits_for_the_time_to_drain_and_names_who_does_not_return(drain_secs, caplog):
    with Slow() as slow:
        runtime = LocalRuntime(slow.topology("spout"))
        starts = threading.Thread(target=runtime.start)
        starts.start()
        slow.inside.wait()
        runtime.stop(drain_secs)
        starts.join()
    report = runtime.report()
    assert report.outcome == "stopped" and "source" in [each.component for each in report.abandoned]
    assert "the topology stops and initialize() has not returned: source[1] for" in caplog.text


def test_two_interrupts_during_initialize_end_the_run_at_once(monkeypatch):
    named = threading.Event()

    class Obeyed(logging.Handler):
        def emit(self, record):
            if "the topology stops and initialize() has not returned" in record.getMessage():
                named.set()

    monkeypatch.setattr(logging.getLogger("acker.local"), "handlers", [Obeyed()])
    with Slow() as slow:

        def interrupt():
            slow.inside.wait()
            os.kill(os.getpid(), signal.SIGINT)
            named.wait()
            os.kill(os.getpid(), signal.SIGINT)

        interrupts = threading.Thread(target=interrupt)
        interrupts.start()
        report = run(slow.topology("spout"), {"topology.drain.secs": 1000}, until="drained")
        interrupts.join()
    assert report.outcome == "aborted"
    assert "source" in [each.component for each in report.abandoned]


def test_a_restart_that_waits_does_not_hold_the_end_of_a_run():
    class Breaks(Spout):
        outputs = ["n"]

        def next_tuple(self):
            raise OSError("no broker")

    class Last(Bolt):
        def process(self, tup):
            pass

    topology = type(Topology)("T", (Topology,), {"source": Breaks.spec(), "last": Last.spec(inputs=["source"])})
    clock = ManualClock()
    runtime = LocalRuntime(topology, clock=clock, threads=False)
    runtime.start()
    runtime.watch_for("1s")
    scheduler = Scheduler(runtime, clock)
    scheduler.advance(0.5)
    assert runtime.state == "restarting" and not runtime.lifecycle.reached.is_set()
    scheduler.advance(0.5)
    assert runtime.state == "restarting" and runtime.lifecycle.reached.is_set()
    report = scheduler.stop()
    assert (report.outcome, report.last_crash, clock.now_ns()) == ("stopped", "OSError: no broker", 10**9)
