"""The runtime that runs a topology in this process: threads, bounded queues, native ackers.

`run` is for scripts, `LocalRuntime` for programs and tests. The exporters `acker.local.prometheus` and
`acker.local.otel` are imported by themselves, since each needs a package of its own.
"""

from acker.local.clock import Clock, SystemClock
from acker.local.hooks import Hook
from acker.local.run import run
from acker.local.runtime import LocalRuntime
from acker.local.states import read_state
from acker.observe.latencies import Histogram
from acker.observe.metric_names import Figures, HasStats, metric_points
from acker.observe.notebook import watch
from acker.observe.run_report import Abandoned, RunReport
from acker.observe.stats import ComponentStats, RuntimeStats, TaskStats

__all__ = [
    "Abandoned",
    "Clock",
    "ComponentStats",
    "Figures",
    "HasStats",
    "Histogram",
    "Hook",
    "LocalRuntime",
    "RunReport",
    "RuntimeStats",
    "SystemClock",
    "TaskStats",
    "metric_points",
    "read_state",
    "run",
    "watch",
]
