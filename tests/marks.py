"""Marks for tests that a class inherits."""

from __future__ import annotations

import functools
from collections.abc import Callable
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
