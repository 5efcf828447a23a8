"""The condition at which a run ends, as users write it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from acker.errors import ArgumentValueError

_UNITS_NS: Final = {"ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000, "h": 3_600_000_000_000}
_EXPECTED: Final = (
    'expected "drained", a time such as "30s", "500ms", "2m" or "1h", a number of acked trees, or None or "stopped"'
)


@dataclass(frozen=True)
class Until:
    """All is drained, a time has passed, or a number of trees was acked; without any of them, until stopped."""

    drained: bool = False
    elapsed_ns: int | None = None
    acked: int | None = None


def parse_until(until: str | int | None) -> Until:
    """Parse the condition that a program or a command line gives.

    Parameters
    ----------
    until : str, int or None
        "drained"; a number and a unit of time (ms, s, m, h); a number of acked trees, as int or text, or earlier when
        all is drained; None or "stopped": until stopped, also when nothing is left to do.

    Raises
    ------
    ArgumentValueError
        Anything else.
    """
    if until is None or until == "stopped":
        return Until()
    if until == "drained":
        return Until(drained=True)
    if isinstance(until, str):
        if re.fullmatch(r"\d+", until):
            until = int(until)
        elif time := re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)", until):
            return Until(elapsed_ns=round(float(time[1]) * _UNITS_NS[time[2]]))
    if isinstance(until, int) and not isinstance(until, bool) and until >= 0:
        return Until(acked=until)
    raise ArgumentValueError(f"until: {_EXPECTED}, got {until!r}")
