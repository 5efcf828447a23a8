"""The manual clock: a test turns it, and turning it wakes threads that wait."""

import threading
from fractions import Fraction

import pytest

from acker.errors import ArgumentValueError
from acker.testing import ManualClock


def test_time_is_what_the_test_makes_it():
    clock = ManualClock(start_ns=1_999_999)
    assert (clock.now_ns(), clock.now_ms()) == (1_999_999, 1)
    clock.advance(0.5)
    assert clock.now_ns() == 501_999_999
    clock.advance(Fraction(1, 3))
    assert clock.now_ns() == 501_999_999 + 333_333_333
    clock.advance(0)
    clock.advance_to(10**9)
    assert clock.now_ms() == 1000


def test_a_monotonic_clock_does_not_turn_back():
    clock = ManualClock(start_ns=5)
    with pytest.raises(ArgumentValueError, match="back from 5 ns to 4 ns"):
        clock.advance_to(4)
    with pytest.raises(ArgumentValueError, match="back"):
        clock.advance(-1)
    assert clock.now_ns() == 5


def test_a_time_that_has_come_is_not_waited_for():
    clock, signal = ManualClock(start_ns=7), threading.Event()
    clock.wait(signal, 7)
    clock.wait(signal, 6)
    assert not signal.is_set() and clock.sleepers == 0


def test_a_signal_that_is_set_is_not_waited_for():
    clock, signal = ManualClock(), threading.Event()
    signal.set()
    clock.wait(signal, None)
    clock.wait(signal, 10**9)
    assert clock.sleepers == 0


def test_turning_the_clock_wakes_everybody_who_waits():
    clock, arrived = ManualClock(), []

    def wait_for(until_ns):
        signal = threading.Event()
        while clock.now_ns() < until_ns:
            signal.clear()
            clock.wait(signal, until_ns)
        arrived.append((until_ns, clock.now_ns()))

    threads = [threading.Thread(target=wait_for, args=(seconds * 10**9,)) for seconds in (1, 2, 3)]
    for thread in threads:
        thread.start()
    # However the threads are scheduled, each ends when the clock has reached what it waits for.
    for thread in threads:
        clock.advance(1)
        thread.join()
    assert sorted(until for until, _ in arrived) == [10**9, 2 * 10**9, 3 * 10**9]
    assert all(now >= until for until, now in arrived)
    assert clock.sleepers == 0
