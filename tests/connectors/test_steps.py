"""The step that the calls of a consumer spend their time in."""

from __future__ import annotations

from functools import partial

from acker.connectors.steps import SlowStep, Steps
from acker.observe.calls import Line, UserCall


def charge(order):
    """Charge an order."""


class Till:
    def charge(self, order):
        """Charge an order, too."""

    def __getattr__(self, name):
        raise RuntimeError(name)

    def __call__(self, order):
        """Charge an order without a method."""


def call_of(function, line):
    code = function.__code__
    return UserCall("pool_0", "orders/1", 50, stack=(Line(code.co_filename, line, code.co_qualname),))


def test_the_line_where_most_calls_stand_has_the_median_time_of_its_function() -> None:
    steps = Steps()
    for ms in (40, 50, 900):
        steps.note(partial(charge, 7), ms * 1_000_000)
    steps.note(Till().charge, 3_000_000)
    assert steps.slowest() is None
    steps.look([call_of(charge, 12), call_of(charge, 12), call_of(Till.charge, 17)])
    assert steps.slowest() == SlowStep("test_steps.py:12 in charge", 50.0)
    for _ in range(10):
        steps.look([call_of(Till.charge, 17)])
    assert steps.slowest() == SlowStep("test_steps.py:17 in Till.charge", 3.0)


def test_a_loop_is_the_step_only_where_no_pool_works() -> None:
    steps = Steps()
    steps.look([call_of(charge, 12), call_of(charge, 12), call_of(Till.charge, 17)])
    assert steps.slowest() == SlowStep("test_steps.py:12 in charge", None)
    steps.note(Till().charge, 3_000_000)
    assert steps.slowest() == SlowStep("test_steps.py:17 in Till.charge", 3.0)


def test_objects_that_are_called_are_noted_without_running_their_code() -> None:
    steps = Steps()
    steps.note(Till(), 3_000_000)
    steps.look([call_of(charge, 12)])
    assert steps.slowest() == SlowStep("test_steps.py:12 in charge", None)
