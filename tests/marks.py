"""Marks for tests that a class inherits, and for some of the parameters of a test."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def slow(test: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a test of a base class, marked for a subclass alone.

    `pytest.mark.slow(Base.test)` would change the function itself, and with it the test of each other subclass.
    """

    @functools.wraps(test)
    def marked(self: Any) -> None:
        test(self)

    return pytest.mark.slow(marked)


def slow_after(count: int, values: Iterable[Any]) -> list[Any]:
    """Return values for `parametrize`, of which all but the first `count` are slow. A tuple is for several names."""
    rows = (value if isinstance(value, tuple) else (value,) for value in values)
    return [pytest.param(*row, marks=pytest.mark.slow if number >= count else ()) for number, row in enumerate(rows)]
