"""Helpers for tests and benchmarks: a test kit for topologies, and seeded message streams."""

from acker.errors import SchedulerError
from acker.testing.bolts import BoltRun, Emitted, make_tuple, run_bolt
from acker.testing.clock import ManualClock
from acker.testing.complete import Completed, complete_topology
from acker.testing.components import AckFailTracker, Captured, CapturingBolt, FeederSpout, FixedTuple
from acker.testing.scheduler import Scheduler
from acker.testing.streams import Checksum, TreeStream

__all__ = [
    "AckFailTracker",
    "BoltRun",
    "Captured",
    "CapturingBolt",
    "Checksum",
    "Completed",
    "Emitted",
    "FeederSpout",
    "FixedTuple",
    "ManualClock",
    "Scheduler",
    "SchedulerError",
    "TreeStream",
    "complete_topology",
    "make_tuple",
    "run_bolt",
]
