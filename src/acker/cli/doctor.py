"""`acker doctor`: a check of the installation, of Spark and of its executors. Needs no rich, which may be missing."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import click

from acker.cli.environment import SetupError, announce, find_jdk, last_line, require, spark_session
from acker.cli.probe import probe, prober

_PACKAGES: Final = ("numpy", "click", "rich")
_OF_SPARK: Final = ("pyspark", "pyarrow", "pandas", "protobuf")
# The facts that a process reports about its acker, in the order of the output.
_FIELDS: Final = ("acker", "kernel", "abi")
_WAYS: Final = "docs/shipping.md has the ways to do so"


class _Sheet:
    """Prints one line for each finding, and remembers whether all were fine."""

    def __init__(self) -> None:
        self.fine = True

    def line(self, name: str, value: str, fine: bool = True) -> None:
        self.fine &= fine
        mark = click.style("ok", fg="green") if fine else click.style("NO", fg="red", bold=True)
        click.echo(f"  {mark}  {name:<11} {value}")


def main(master: str, conf: Mapping[str, str] | None = None, *, ship: bool = False) -> int:
    """Check everything; return 0 only if all of it works.

    Spark is optional: without PySpark, and with nothing that asks for it, there is nothing of it to check.

    Parameters
    ----------
    master : str
    conf : mapping, optional
        Settings of Spark for the session, such as spark.archives.
    ship : bool
        Send acker to the executors first, with `acker.spark.ship`.
    """
    sheet = _Sheet()
    sheet.line("machine", f"{platform.machine()}, {platform.system()} {platform.release()}")
    with_spark = find_spec("pyspark") is not None or bool(ship or conf) or not master.startswith("local")
    for package in (*_PACKAGES, *_OF_SPARK) if with_spark else _PACKAGES:
        _package(sheet, package)
    driver = prober()()
    sheet.line("driver", _text(driver), driver["error"] is None)
    if with_spark:
        _on_spark(sheet, driver, master, conf or {}, ship=ship)
    else:
        sheet.line("spark", "not installed, and only acker.spark needs it: pip install 'acker[spark]'")
    click.echo("all fine" if sheet.fine else "not everything is fine")
    return 0 if sheet.fine else 1


def _on_spark(sheet: _Sheet, driver: Mapping[str, Any], master: str, conf: Mapping[str, str], *, ship: bool) -> None:
    """Check the Python of Spark's workers, the JDK, and Spark."""
    # The interpreter that --python names is checked below, and a cluster has its own PATH.
    if master.startswith("local") and "spark.pyspark.python" not in conf:
        _workers(sheet)
    try:
        jdk = find_jdk()
        sheet.line("jdk", f"{jdk.version} at {jdk.home}")
        _spark(sheet, driver, master, conf, ship=ship)
    except SetupError as error:
        sheet.line("spark", str(error), fine=False)


def _text(found: Mapping[str, Any]) -> str:
    """Return the findings of a process as one line."""
    python = f"python {found['python']} at {found['executable']}"
    if found["acker"] is None:
        return f"{python}; {found['error']}"
    about = ", ".join(f"{found[field]}" if field != "acker" else f"acker {found[field]}" for field in _FIELDS)
    return f"{python}; {about}; at {found['at']}" + (f"; {found['error']}" if found["error"] else "")


def _fix(driver: Mapping[str, Any], worker: Mapping[str, Any]) -> str | None:
    """Return the fix for a worker that does not fit the driver; None if it fits.

    Another kernel, and an ABI that differs by the processor, give the same results.
    """
    if worker["acker"] is None:
        return f"acker cannot be imported there: send it along; {_WAYS}"
    if worker["error"] is not None:
        return "acker gives wrong results there: install it anew, from a wheel for that platform"
    if worker["acker"] != driver["acker"]:
        return f"the driver has acker {driver['acker']}: install the same release in both; {_WAYS}"
    return None


def _workers(sheet: _Sheet) -> None:
    """Check the Python that Spark's workers would run on this machine: the first on PATH, if no setting names one."""
    if "PYSPARK_PYTHON" in os.environ:
        return
    found = shutil.which("python3")
    script = "import platform; print(platform.python_version())"
    answer = found and subprocess.run([found, "-c", script], capture_output=True, check=False, text=True).stdout.strip()
    if answer and answer.rpartition(".")[0] != platform.python_version().rpartition(".")[0]:
        sheet.line(
            "workers",
            f"jobs would run {found}, Python {answer}, since PYSPARK_PYTHON is not set: export PYSPARK_PYTHON="
            f"{sys.executable}, or activate the environment",
            fine=False,
        )


def _package(sheet: _Sheet, package: str) -> None:
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        extra = "cli" if package in ("click", "rich") else "spark"
        sheet.line(package, f"not installed: pip install 'acker[{extra}]'", fine=False)
        return
    sheet.line(package, version)


def _spark(
    sheet: _Sheet,
    driver: Mapping[str, Any],
    master: str,
    conf: Mapping[str, str],
    *,
    ship: bool,
) -> None:
    require("pyspark", "pyarrow", "pandas", extra="spark")
    from pyspark.errors import PySparkException

    # Stays if Spark does not start, since the error names it.
    scratch = Path(tempfile.mkdtemp(prefix="acker-doctor-"))
    log = scratch / "spark.log"
    announce(f"starting Spark at {master}")
    with spark_session("acker doctor", master, driver_memory="1g", log=log, start_conf=conf) as spark:
        tasks = spark.sparkContext.defaultParallelism
        sheet.line("spark", f"{spark.version} at {master}, {tasks} cores")
        try:
            if ship:
                from acker.spark import ship as send

                announce("sending acker to the executors")
                send(spark)
            announce(f"running {tasks} tasks, which look at acker")
            found = probe(spark, tasks)
        except PySparkException as error:
            sheet.line("tasks", _what_failed(error), fine=False)
            return
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    if driver["acker"] is not None:
        _executors(sheet, driver, found)
    sheet.line("tasks", f"{len(found)} of {tasks} answered", len(found) == tasks)


def _executors(sheet: _Sheet, driver: Mapping[str, Any], found: list[dict[str, Any]]) -> None:
    """Print a line for each executor: its Python workers report the same, except for their process ids."""
    alike = Counter(json.dumps({**worker, "pid": 0}, sort_keys=True) for worker in found)
    for text, count in sorted(alike.items()):
        worker = json.loads(text)
        fix = _fix(driver, worker)
        sheet.line("executor", f"{worker['host']}, {worker['folder']}, tasks: {count}; {_text(worker)}", fix is None)
        if fix is not None:
            sheet.line("fix", fix, fine=False)


def _what_failed(error: BaseException) -> str:
    """Return the most useful line of an error, or its last one."""
    lines = [line.strip() for line in str(error).splitlines()]
    telling = [line for line in lines if "PYTHON_VERSION_MISMATCH" in line or "ModuleNotFoundError" in line]
    return telling[0] if telling else last_line(error)
