"""Topologies in this process: threads, bounded queues, native ackers.

`run` is for scripts, `LocalRuntime` for programs and tests.
"""

from acker._engine.implementation import NAME, compiled_only

if NAME == "python":
    raise compiled_only("acker.local")

from acker.local.clock import Clock, SystemClock
from acker.local.observe.hooks import Hook
from acker.local.observe.metrics import RunReport, RuntimeStats
from acker.local.run import run
from acker.local.runtime import LocalRuntime

__all__ = ["Clock", "Hook", "LocalRuntime", "RunReport", "RuntimeStats", "SystemClock", "run"]
