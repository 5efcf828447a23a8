"""One module for all Pythons (CPython's limited API, ACKER_ABI3=1) measured against one for each: `wheel.py abi3`.

Builds both wheels from one sdist with the running Python, installs each into an environment of its own, and lets
them take turns: each round is a fresh process of either, so that both meet the same moods of the machine.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROUNDS = 9
KINDS = {"one for each Python": "0", "one for all (abi3)": "1"}
UNITS = {
    "import acker": "ms",
    "ingest, 1 row": "ns a call",
    "ingest, 100,000 rows": "ns a row",
    "combine, 100,000 rows": "ns a row",
    "word count": "us a line",
}


def child() -> None:
    """Measure what is installed; prints {what: number} as JSON."""
    import numpy as np  # not a part of what importing acker takes

    begin = time.process_time_ns()
    import acker
    from acker._engine.combiner import Combiner

    found = {"import acker": (time.process_time_ns() - begin) / 1e6}
    rng = np.random.default_rng(1)
    rows = 100_000
    kind = np.tile(np.array([0, 2], np.int8), rows // 2)
    root = np.repeat(rng.integers(1, 2**62, rows // 2), 2)
    task, zero = np.zeros(rows, np.int32), np.zeros(rows, np.int64)

    one = acker.Acker(seed=1)
    single = [(kind[i : i + 1], root[i : i + 1], root[i : i + 1], task[:1], zero[:1]) for i in range(20_000)]
    found["ingest, 1 row"] = fastest(lambda: [one.ingest(*row) for row in single]) / len(single)
    whole = (kind, root, root, task, zero)
    found["ingest, 100,000 rows"] = fastest(lambda: one.ingest(*whole)) / rows
    found["combine, 100,000 rows"] = fastest(lambda: Combiner(seed=1).add(*whole)) / rows
    found["word count"] = fastest(word_count, 3) / 20_000 / 1e3
    print(json.dumps(found))


def fastest(work: Callable[[], object], times: int = 7) -> float:
    """Return the nanoseconds of the fastest of some runs."""
    taken = []
    for _ in range(times):
        begin = time.process_time_ns()
        work()
        taken.append(time.process_time_ns() - begin)
    return min(taken)


def word_count() -> None:
    """Run 20,000 lines of four words through a topology, tracked; nearly all of it is acker._flow."""
    from acker.local import run
    from acker.topology import Bolt, Grouping, ReliableSpout, Topology

    class Lines(ReliableSpout):
        outputs = ["line"]  # noqa: RUF012  As users write it.

        def initialize(self, _conf: object, _context: object) -> None:
            self.left = 20_000

        def next_tuple(self) -> None:
            if self.left:
                self.left -= 1
                self.emit(["to be or not"], tup_id=self.left)
            else:
                self.finish()

    class Split(Bolt):
        outputs = ["word"]  # noqa: RUF012

        def process(self, tup: object) -> None:
            for word in tup.line.split():  # type: ignore[attr-defined]
                self.emit([word])

    class Count(Bolt):
        def initialize(self, _conf: object, _context: object) -> None:
            self.counts: dict[str, int] = {}

        def process(self, tup: object) -> None:
            self.counts[tup.word] = self.counts.get(tup.word, 0) + 1  # type: ignore[attr-defined]

    class WordCount(Topology):
        lines = Lines.spec()
        split = Split.spec(inputs=[lines])
        count = Count.spec(inputs={split: Grouping.fields("word")})

    assert run(WordCount, until="drained").stats.totals.acked == 20_000


def installed(sdist: Path, work: Path, switch: str, environ: dict[str, str]) -> Path:
    """Build a wheel and install it alone; return its environment's Python."""
    folder = work / f"abi3-{switch}"
    shutil.rmtree(folder, ignore_errors=True)
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    built = {**environ, "ACKER_ABI3": switch}
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, sdist], check=True, env=built)
    (wheel,) = folder.glob("*.whl")
    print(f"    {wheel.name}: {wheel.stat().st_size / 1e6:.3f} MB", flush=True)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True, env=environ)
    python = folder / "venv/bin/python"
    install: list[str | Path] = [python, *pip[1:], "install", wheel]
    subprocess.run(install, check=True, env=environ)
    return python


def compare(root: Path, work: Path, environ: dict[str, str]) -> str:
    """Return a table of both; {what: numbers} of every round go into it as median and quartiles."""
    taken: dict[str, list[dict[str, float]]] = {}
    environments = {}
    shutil.rmtree(work / "abi3-sdist", ignore_errors=True)
    command: list[str | Path] = [sys.executable, "-m", "build", "--sdist", "--outdir", work / "abi3-sdist", root]
    subprocess.run(command, check=True, env=environ, stdout=subprocess.DEVNULL)
    (sdist,) = (work / "abi3-sdist").iterdir()
    for name, switch in KINDS.items():
        print(f"==> {name}: wheel and environment", flush=True)
        environments[name] = installed(sdist, work, switch, environ)
        taken[name] = []
    for number in range(1, ROUNDS + 1):
        print(f"==> round {number} of {ROUNDS}", flush=True)
        for name, python in environments.items():
            command = [python, "-I", Path(__file__), "child"]
            done = subprocess.run(command, check=True, env=environ, stdout=subprocess.PIPE, text=True)
            taken[name].append(json.loads(done.stdout))
    return report(taken)


def report(taken: dict[str, list[dict[str, float]]]) -> str:
    """Return what was measured of both sides, and the ratio of the second to the first in the same round."""
    first, second = taken
    lines = []
    for what, unit in UNITS.items():
        sides = {name: [numbers[what] for numbers in rounds] for name, rounds in taken.items()}
        ratios = [b / a for a, b in zip(sides[first], sides[second], strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4)
        shown = " against ".join(f"{statistics.median(sides[name]):.3g}" for name in (first, second))
        lines.append(f"{what:<22} {shown} {unit}: {median:.2f} ({low:.2f} to {high:.2f})")
    return "\n".join([f"{first} against {second}; the second as a multiple of the first:", *lines])


if __name__ == "__main__":
    if sys.argv[1:] == ["child"]:
        child()
    else:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ACKER_"))}
        top = Path(__file__).resolve().parent.parent
        print(compare(top, top / "build/wheel", clean))
