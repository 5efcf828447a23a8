"""Benchmarks of a word count on free-threaded Python, against the same version of Python with a GIL.

A process has one Python, so each turn is a process of its own, which counts a part of the lines to warm up, and then
all of them. The Python with a GIL is the one that runs this, or ACKER_GIL_PYTHON names it; the other one is named by
ACKER_FREE_THREADED_PYTHON. acker has to be installed for both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.suite.measure import Case, Goal, Ratio, Result, Scale, expect
from benchmarks.suite.topology import PAR, UNTRACKED, Counted, Text, Way, text, through_runtime, through_threads

GIL, FREE = "GIL", "free-threaded"
VARIABLES: Final = {GIL: "ACKER_GIL_PYTHON", FREE: "ACKER_FREE_THREADED_PYTHON"}
# How the words are counted; the bare threads show what the interpreter itself gains.
WAYS: Final[dict[str, Callable[[Text], Counted]]] = {
    "128": partial(through_runtime, Way()),
    "1,024": partial(through_runtime, Way(conf={"topology.max.spout.pending": 1024})),
    UNTRACKED: partial(through_runtime, Way(tracked=False)),
    "bare threads": through_threads,
}
_COMPARED: Final = ("128", "1,024", UNTRACKED)

_ROUNDS: Final = 5
_CHECKOUT: Final = Path(__file__).resolve().parents[2]
_TURN: Final = "import sys; from benchmarks.suite.free_threaded import turn; turn(*sys.argv[1:])"
_ABOUT: Final = """
import sys, acker.local
print(".".join(map(str, sys.version_info[:3])), getattr(sys, "_is_gil_enabled", lambda: True)())
"""


class Turn(NamedTuple):
    """What a process did: tuples, and the seconds of the clock and of its threads."""

    tuples: int
    seconds: float
    cpu_seconds: float


def turn(way: str, path: str) -> None:
    """Count the words of a file of lines, and print what that took: the body of a turn's process."""
    load = Text.of(Path(path).read_bytes().decode().split("\n"))
    count = WAYS[way]
    count(load.head(max(1, len(load.lines) // 10)))
    begin, cpu_begin = time.perf_counter(), time.process_time()
    counted = count(load)
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu_begin
    found = sum(counted.counters, Counter[str]())
    expect("words that were counted wrong", [word for word in load.counts if found[word] != load.counts[word]][:5], [])
    if counted.report is not None:
        acked = sum(task.acked for task in counted.report.stats.tasks if task.kind == "bolt")
        expect("tuples that bolts acked", acked, load.tuples)
    sys.stdout.write(json.dumps(Turn(load.tuples, seconds, cpu_seconds)))


@cache
def why_not(side: str, program: str | None) -> str | None:
    """Return why a Python cannot run its side; None if it can."""
    if program is None:
        return f"{VARIABLES[side]} names no Python"
    done = _run(program, _ABOUT)
    if done.returncode:
        return f"{program} has no acker: {done.stderr.strip().splitlines()[-1]}"
    is_free = done.stdout.split()[1] == "False"
    return None if is_free == (side == FREE) else f"{program} runs acker {'without' if is_free else 'with'} a GIL"


def programs() -> dict[str, str | None]:
    """Return the Python of each side, as far as they are named."""
    named = {side: os.environ.get(name) for side, name in VARIABLES.items()}
    return {GIL: named[GIL] or sys.executable, FREE: named[FREE]}


def obstacle() -> str | None:
    """Return why the two cannot be compared here; None if they can."""
    for side, program in programs().items():
        if why := why_not(side, program):
            return why
    return None


def throughput(scale: Scale) -> Result:
    """Compare acked tuples a second: in all, and for each second of processor time."""
    if why := obstacle():
        raise RuntimeError(f"they cannot be compared here: {why}")
    return compare(scale, {side: str(program) for side, program in programs().items()})


def compare(scale: Scale, pythons: Mapping[str, str]) -> Result:
    """Let two Pythons take turns: A B, B A, A B ..."""
    load = text(scale)
    turns: dict[str, list[Turn]] = {f"{side} {way}": [] for way in WAYS for side in pythons}
    with tempfile.TemporaryDirectory(prefix="acker-threads-") as folder:
        path = Path(folder) / "lines"
        path.write_bytes("\n".join(load.lines).encode())
        for number in range(min(_ROUNDS, scale.pairs)):
            for way in WAYS:
                for side in list(pythons)[:: -1 if number % 2 else 1]:
                    done = _run(pythons[side], _TURN, way, str(path))
                    if done.returncode:
                        raise RuntimeError(f"{pythons[side]} ended with {done.returncode}: {done.stderr[-2000:]}")
                    turns[f"{side} {way}"].append(Turn(*json.loads(done.stdout)))
    samples = {name: [each.tuples / each.seconds for each in taken] for name, taken in turns.items()}
    samples |= {f"{name}, a core": [each.tuples / each.cpu_seconds for each in taken] for name, taken in turns.items()}
    goal = scale.goal(Goal(at_least=1.5))
    ratios = [
        Ratio(f"{FREE} {way}{share}", f"{GIL} {way}{share}", goal if way in _COMPARED and not share else None)
        for share in ("", ", a core")
        for way in WAYS
    ]
    cores = {name: [round(each.cpu_seconds / each.seconds, 3) for each in taken] for name, taken in turns.items()}
    about = {side: _run(program, _ABOUT).stdout.split()[0] for side, program in pythons.items()}
    parameters = {"lines": len(load.lines), "words": load.counts.total(), "par": PAR, "cores": cores, "python": about}
    return Result("acked tuples/s", samples, ratios, parameters, {"tuples": load.tuples})


def _run(program: str, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Without PYTHON_GIL, so that a module that asks for the GIL is noticed.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    command = [program, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, check=False, cwd=_CHECKOUT, env=environ, text=True)


CASES: Final = [
    Case(
        "topology/free-threaded",
        "What does a topology gain by a Python without a GIL?",
        throughput,
        obstacle=obstacle,
    ),
]
