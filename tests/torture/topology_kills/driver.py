"""The driver process that gets killed: a word count as a stream, until it is drained.

    python -m tests.torture.topology_kills.driver FOLDER MASTER TOPOLOGY CHECKPOINT [POINT NUMBER SIGNAL]

At the point named, when it is reached for that time, the process sends itself the signal, and says so on stdout.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from acker.spark.topologies import journal
from acker.spark.topologies.bolt_state import StateCleaner
from acker.spark.topologies.journal import Journal
from acker.spark.topologies.lease import Lease
from acker.spark.topologies.micro_batch_job import MicroBatchJob
from acker.spark.topologies.micro_batches import MicroBatches
from acker.spark.topologies.run import run
from tests.torture.output import say
from tests.torture.topology_kills.words import FOLDER, TOPOLOGIES, Lines

# Short, so that nobody waits long for a driver that stands still.
LEASE_SECS: Final = 10.0

# Point -> the method, and whether it is reached before or after it.
POINTS: Final[dict[str, tuple[Any, str, bool]]] = {
    "before the plan": (Journal, "write_plan", True),
    "planned": (Journal, "write_plan", False),
    "evaluated": (MicroBatchJob, "evaluate", False),
    "before the commit": (Journal, "commit", True),
    "committed": (Journal, "commit", False),
    "before a write": (journal, "write_file", True),
    "written": (journal, "write_file", False),
    "checked": (Lease, "check", False),
    "before old files of state go": (StateCleaner, "remove_unused", True),
    "old files of state are gone": (StateCleaner, "remove_unused", False),
    "told": (MicroBatches, "_deliver", False),
    "before an ack is kept": (Lines, "ack", True),
    "after a dead letter was kept": (Lines, "dead_letter", False),
}


class Death:
    """Sends this process a signal at a point: SIGKILL, or SIGSTOP, after which it stands still until SIGCONT."""

    def __init__(self, point: str | None, number: int, name: str) -> None:
        self._at = point, number
        self._signal = signal.Signals[name]
        self._reached: Counter[str] = Counter()

    def reach(self, point: str) -> None:
        """Count a point; perhaps die there."""
        self._reached[point] += 1
        if self._at == (point, self._reached[point]):
            say(f"{self._signal.name}: {point}")
            os.kill(os.getpid(), self._signal)

    def watch(self) -> None:
        """Put the points into the methods."""
        for point, (owner, name, is_before) in POINTS.items():
            setattr(owner, name, self._watched(getattr(owner, name), point, is_before=is_before))

    def _watched(self, method: Callable[..., Any], point: str, *, is_before: bool) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if is_before:
                self.reach(point)
            returned = method(*arguments, **options)
            if not is_before:
                self.reach(point)
            return returned

        return call


def session_of(folder: Path, master: str) -> SparkSession:
    """Return a small session."""
    builder = (
        SparkSession.builder.master(master)
        .appName("topology under kills")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.executor.memory", "512m")
        .config("spark.default.parallelism", "2")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    )
    for name in ("PYTHONPATH", "PYSPARK_PYTHON"):
        builder = builder.config(f"spark.executorEnv.{name}", os.environ[name])
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def main(arguments: list[str]) -> None:
    """Run until all is drained."""
    folder, master, topology = Path(arguments[0]), arguments[1], TOPOLOGIES[arguments[2]]
    spark = session_of(folder, master)
    point, number, name = (
        (arguments[4], int(arguments[5]), arguments[6]) if len(arguments) > 4 else (None, 0, "SIGKILL")
    )
    Death(point, number, name).watch()
    setattr(Journal, "__init__", functools.partialmethod(Journal.__init__, lease_secs=LEASE_SECS))  # noqa: B010
    say("runs")
    conf = {FOLDER: str(folder)}
    report = run(topology, conf, spark=spark, until="drained", checkpoint=arguments[3], trigger="0 seconds")
    say(str(report))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
