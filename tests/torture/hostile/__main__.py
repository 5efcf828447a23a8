"""The command `python -m tests.torture.hostile`: replay a seed, or search for one that crashes the interpreter."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import itertools
import logging
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tests.torture.hostile.calls import Calls
from tests.torture.hostile.graphs import Graph
from tests.torture.output import say, say_totals

_WHAT: Final = "Let hostile user code call the native half of topologies, which must raise and never crash."
_CALLS: Final = 300
# After how long a seed has hung; its stacks are printed.
_HUNG_SECS: Final = 120
_SHOWN_MAX: Final = 60  # lines of what a process that crashed has printed


def run_seed(seed: int) -> Counter[str]:
    """Run what a seed stands for: calls by one thread, by three, or a topology; return how calls have ended."""
    made = Graph(seed) if seed % 8 == 7 else Calls(seed, 3 if seed % 4 == 3 else 1)
    if isinstance(made, Graph):
        made.run()
    else:
        made.run(_CALLS)
    return made.ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code: 1 if a seed has crashed the interpreter."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture.hostile", description=_WHAT)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="run this seed in this process")
    which.add_argument("--seeds", metavar="A:B", help="run the seeds from A up to B, without B, in another process")
    which.add_argument("--seconds", type=float, help="run new seeds for this many seconds, in another process")
    parser.add_argument("--here", action="store_true", help="run them in this process")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _here([options.seed], lambda: False)
    if not options.here:
        return _elsewhere(arguments if arguments is not None else sys.argv[1:])
    if options.seeds is not None:
        first, _, end = options.seeds.partition(":")
        return _here(range(int(first), int(end)), lambda: False)
    until = time.monotonic() + options.seconds
    return _here(itertools.count(time.time_ns() // 1000), lambda: time.monotonic() > until)


def _here(seeds: Iterable[int], is_over: Callable[[], bool]) -> int:
    _expect_the_worst()
    totals: Counter[str] = Counter()
    for seed in seeds:
        if is_over():
            break
        say(f"seed {seed}")
        faulthandler.dump_traceback_later(_HUNG_SECS, exit=True)
        totals += Counter({"seeds": 1}) + run_seed(seed)
    faulthandler.cancel_dump_traceback_later()
    wrong = {name: count for name, count in totals.items() if name.startswith("SystemError") or name == "hung"}
    return say_totals(wrong or totals, "seeds", otherwise=f"went wrong: {wrong}" if wrong else "no seed was run")


def _expect_the_worst() -> None:
    """Let a crash show its stack, what finalizers and threads raise pass, and races and collections come often."""
    faulthandler.enable()
    logging.disable(logging.CRITICAL)
    sys.unraisablehook = lambda _: None
    threading.excepthook = lambda _: None
    sys.setrecursionlimit(400)
    sys.setswitchinterval(1e-4)
    gc.set_threshold(50, 3, 3)


def _elsewhere(arguments: Sequence[str]) -> int:
    command = [sys.executable, "-m", "tests.torture.hostile", "--here", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, text=True)
    lines = done.stdout.splitlines()
    seeds = [line for line in lines if line.startswith("seed ")]
    if done.returncode == 0:
        say(lines[-1])
        return 0
    others = [line for line in lines if not line.startswith("seed ")]
    last = seeds[-1] if seeds else "no seed"
    say("\n".join([f"{last} ended the interpreter with code {done.returncode}", *others[:_SHOWN_MAX]]))
    say(f"replay: python -m tests.torture.hostile --{last}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
