"""`run` and signals: Ctrl-C never waits for the code that it interrupts."""

from __future__ import annotations

import signal
import threading
from types import SimpleNamespace

import pytest

from acker.local import LocalRuntime, run
from acker.local.run import stop_on_signals
from acker.testing import Scheduler
from acker.topology import Bolt, Topology
from tests.components import Numbers


class FakeLifecycle:
    """Stops under a lock, as anything that wakes another thread does."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stopped, self.aborted = threading.Event(), threading.Event()

    def stop(self) -> None:
        with self.lock:
            self.stopped.set()

    def abort(self) -> None:
        with self.lock:
            self.aborted.set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_may_come_while_the_main_thread_holds_any_lock(number) -> None:
    lifecycle, before = FakeLifecycle(), signal.getsignal(number)
    with stop_on_signals(SimpleNamespace(lifecycle=lifecycle)):
        with lifecycle.lock:
            signal.raise_signal(number)  # The handler runs before this returns.
        assert lifecycle.stopped.wait(60) and not lifecycle.aborted.is_set()
        with lifecycle.lock:
            signal.raise_signal(number)
        assert lifecycle.aborted.wait(60)
    assert signal.getsignal(number) is before


class Take(Bolt):
    def process(self, tup):
        pass


class Finite(Topology):
    numbers = Numbers.spec()
    take = Take.spec(inputs=[numbers])


def test_by_default_a_run_ends_when_all_is_drained() -> None:
    assert run(Finite).outcome == "drained"
    with LocalRuntime(Finite) as runtime:
        assert runtime.run_until() == "drained"
    runtime = LocalRuntime(Finite)
    assert runtime.run() == "drained"
    runtime.stop()


@pytest.mark.parametrize("until", [None, "stopped"])
def test_without_a_condition_a_run_goes_on_when_all_is_drained(until) -> None:
    with Scheduler.of(Finite) as scheduler:
        runtime = scheduler.runtime
        runtime.watch_for(until)
        scheduler.advance(600)
        assert runtime.lifecycle.acked_count() == 3 and all(
            task.finished for task in runtime.lifecycle.executors.spout_tasks()
        )
        assert runtime.state == "running" and not runtime.lifecycle.reached.is_set()
        runtime.watch_for("drained")
        scheduler.settle()
        assert runtime.lifecycle.reached.is_set()
    assert runtime.report().outcome == "stopped"


def test_elsewhere_than_on_the_main_thread_signals_are_left_alone() -> None:
    seen = []

    def work() -> None:
        with stop_on_signals(SimpleNamespace(lifecycle=FakeLifecycle())):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]
