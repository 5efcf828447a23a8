"""The history of readings: what the charts of a page show, and how often readings are taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

# The number of readings that are kept: ten minutes at the usual interval.
HISTORY_MAX: Final = 600
# Reading takes at most this share of the time.
_SHARE_MAX: Final = 0.02
_WAIT_SECS_MAX: Final = 30.0


def pause_secs(took_secs: float, interval_secs: float) -> float:
    """Return how long to wait after a reading that took `took_secs`."""
    return min(_WAIT_SECS_MAX, max(interval_secs, took_secs / _SHARE_MAX))


class History:
    """The values of the charts at the last readings."""

    def __init__(self) -> None:
        self._readings: deque[tuple[int, dict[str, float | None]]] = deque(maxlen=HISTORY_MAX)

    def __len__(self) -> int:
        return len(self._readings)

    def add(self, view: Mapping[str, Any]) -> None:
        """Keep the values of a reading."""
        points = {
            f"{chart['key']}.{series['key']}": series["value"] for chart in view["charts"] for series in chart["series"]
        }
        self._readings.append((view["at_ms"], points))

    def to_json(self) -> dict[str, Any]:
        """Return the times and values of all charts; a series that did not exist at a time has None there."""
        names = sorted({name for _, points in self._readings for name in points})
        return {
            "times_ms": [at_ms for at_ms, _ in self._readings],
            "series": {name: [points.get(name) for _, points in self._readings] for name in names},
        }
