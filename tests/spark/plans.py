"""Plans of DataFrames as Spark explains them, also through Spark Connect."""

from __future__ import annotations

import io
from contextlib import redirect_stdout


def plan_of(frame) -> str:
    """Return the optimized plan and the physical one."""
    said = io.StringIO()
    with redirect_stdout(said):
        frame.explain("extended")
    _, found, plans = said.getvalue().partition("== Optimized Logical Plan ==")
    assert found, said.getvalue()
    return plans
