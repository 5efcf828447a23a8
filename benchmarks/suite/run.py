"""The runner of cases, each in a fresh process."""

from __future__ import annotations

import multiprocessing
import re
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.suite import machine
from benchmarks.suite.measure import Case, Result, Scale


@dataclass
class Outcome:
    """What became of a case: a result, or the text of an error.

    Attributes
    ----------
    seconds : float
        The whole case, making the messages included.
    peak_bytes : int or None
        Largest resident size of the case's process.
    """

    case: Case
    result: Result | None
    error: str | None
    seconds: float
    peak_bytes: int | None

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON-able values."""
        measured = self.result.as_json() if self.result is not None else {"error": self.error}
        return {
            "case": self.case.name,
            "question": self.case.question,
            **measured,
            "seconds": round(self.seconds, 3),
            "peak_bytes": self.peak_bytes,
        }


def select(cases: Sequence[Case], only: Iterable[str]) -> list[Case]:
    """Return the cases whose name is one of `only`, or begins with one of them and a slash; all when it is empty.

    Raises
    ------
    LookupError
        A name that selects nothing.
    """
    wanted = list(only)
    for name in wanted:
        if not any(_selects(name, case) for case in cases):
            names = ", ".join(case.name for case in cases)
            raise LookupError(f"no benchmark {name!r}; there are {names}")
    return [case for case in cases if not wanted or any(_selects(name, case) for name in wanted)]


def _selects(name: str, case: Case) -> bool:
    given = name.rstrip("/")
    # `spark-streaming` can be typed without thinking of folders.
    return any(case.name == path or case.name.startswith(path + "/") for path in (given, given.replace("-", "/")))


def run_apart(case: Case, scale: Scale) -> Outcome:
    """Run one case in a new process, so that it inherits no memory, caches or threads from another one."""
    started = time.perf_counter()
    # Started afresh, not forked: the parent draws a progress bar from a thread.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            result, error, peak = pool.submit(_run, case, scale).result()
        except BrokenProcessPool as fault:
            result, error, peak = None, f"the process ended: {fault}", None
    return Outcome(case, result, error, time.perf_counter() - started, peak)


def run_here(case: Case, scale: Scale) -> Outcome:
    """Run one case in this process; errors of the case are raised."""
    started = time.perf_counter()
    return Outcome(case, case.run(scale), None, time.perf_counter() - started, None)


def _run(case: Case, scale: Scale) -> tuple[Result | None, str | None, int | None]:
    try:
        return case.run(scale), None, _peak_bytes()
    except Exception:  # noqa: BLE001  One case that fails does not take the others with it; its traceback is the report.
        return None, traceback.format_exc(), _peak_bytes()


def _peak_bytes() -> int | None:
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) * 1024 if found else None


def run_all(cases: Sequence[Case], runner: Callable[[Case], Outcome], *, command: str, scale: Scale) -> dict[str, Any]:
    """Run cases one after the other and return the whole report as JSON-able values.

    Parameters
    ----------
    runner : callable
        Runs one case at `scale`: with `run_apart`, or in this process.
    command : str
        What was typed, for the report.
    """
    report: dict[str, Any] = {"command": command, "scale": scale.name, **machine.describe()}
    outcomes = [runner(case) for case in cases]
    report["seconds"] = round(sum(outcome.seconds for outcome in outcomes), 1)
    report["results"] = [outcome.as_json() for outcome in outcomes]
    return report
