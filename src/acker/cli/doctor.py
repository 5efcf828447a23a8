"""`acker doctor`: what is installed, and whether it works together. Prints plainly: rich may be what is missing."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

import acker
from acker.cli.environment import SetupError, find_jdk, spark_session

if TYPE_CHECKING:
    import pyarrow as pa

_PACKAGES = ("numpy", "pyarrow", "pandas", "pyspark", "protobuf", "click", "rich", "matplotlib")
_REPORT = "host string, pid long, python string, acker string, works boolean"


class _Sheet:
    """Prints one line a finding, and remembers whether all were fine."""

    def __init__(self) -> None:
        self.fine = True

    def line(self, name: str, value: str, fine: bool = True) -> None:
        self.fine &= fine
        mark = click.style("ok", fg="green") if fine else click.style("NO", fg="red", bold=True)
        click.echo(f"  {mark}  {name:<11} {value}")


def main(master: str) -> int:
    """Look at everything; return 0 only when all of it is fine."""
    sheet = _Sheet()
    sheet.line("python", f"{platform.python_version()} at {sys.executable}")
    sheet.line("machine", f"{platform.machine()}, {platform.system()} {platform.release()}")
    for package in _PACKAGES:
        _package(sheet, package)
    works = native_works()
    core = sys.modules.get("acker._core")
    sheet.line("acker", f"{acker.__version__}, native module at {getattr(core, '__file__', 'nowhere')}", works)
    try:
        jdk = find_jdk()
        sheet.line("jdk", f"{jdk.version} at {jdk.home}")
        _spark(sheet, master)
    except SetupError as fault:
        sheet.line("spark", str(fault), fine=False)
    click.echo("all fine" if sheet.fine else "not everything is fine")
    return 0 if sheet.fine else 1


def native_works() -> bool:
    """Compare the native acker with the reference on a tree that finishes, one that fails and one that stays open."""
    kind = np.array([0, 2, 2, 0, 3, 0], np.int8)
    root_id = np.array([7, 7, 7, -1, -1, 2**62])
    value = np.array([5, 5 ^ 9, 9, 3, 0, 4])
    task_id, message_id = np.arange(6, dtype=np.int32), np.arange(6) - 3
    ackers = acker.Acker(seed=1), acker.ReferenceAcker(seed=1)
    native, reference = (one.ingest(kind, root_id, value, task_id, message_id, now_ms=5) for one in ackers)
    return bool(native == reference) and len(native) == 2


def _package(sheet: _Sheet, package: str) -> None:
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        extra = "cli" if package in ("click", "rich", "matplotlib") else "spark"
        sheet.line(package, f"not installed: pip install 'acker[{extra}]'", fine=False)
        return
    sheet.line(package, version)


def _spark(sheet: _Sheet, master: str) -> None:
    from pyspark.errors import PySparkException

    with (
        tempfile.TemporaryDirectory(prefix="acker-doctor-") as scratch,
        spark_session("acker doctor", master, driver_memory="1g", log=Path(scratch, "spark.log")) as spark,
    ):
        tasks = spark.sparkContext.defaultParallelism
        sheet.line("spark", f"{spark.version} at {master}, {tasks} cores")
        try:
            # As a barrier stage all tasks run at once, so each core gets one of them.
            frame = spark.range(0, tasks, 1, numPartitions=tasks).mapInArrow(_look, _REPORT, barrier=True)
            found = frame.collect()
        except PySparkException as fault:
            lines = [line.strip() for line in str(fault).splitlines() if line.strip()]
            sheet.line("tasks", lines[-1] if lines else type(fault).__name__, fine=False)
            return
    for row in sorted(found, key=lambda row: (row.host, row.pid)):
        text = f"{row.host} pid {row.pid}: python {row.python}, acker {row.acker}"
        sheet.line("task", text, row.works and row.acker == acker.__version__)
    sheet.line("tasks", f"{len(found)} of {tasks} answered", len(found) == tasks)


def _look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Report from where a task runs."""
    import os
    import socket

    import pyarrow as pa

    for batch in batches:
        row: dict[str, list[Any]] = {
            "host": [socket.gethostname()],
            "pid": [os.getpid()],
            "python": [platform.python_version()],
            "acker": [acker.__version__],
            "works": [native_works()],
        }
        for _ in range(batch.num_rows):
            yield pa.RecordBatch.from_pydict(row)
