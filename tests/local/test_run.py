"""`run` and signals: Ctrl-C never waits for the code that it interrupts."""

from __future__ import annotations

import signal
import threading
from types import SimpleNamespace

import pytest

from acker.local.run import stop_on_signals


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


def test_elsewhere_than_on_the_main_thread_signals_are_left_alone() -> None:
    seen = []

    def work() -> None:
        with stop_on_signals(SimpleNamespace(lifecycle=FakeLifecycle())):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]
