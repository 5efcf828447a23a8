"""The command `python -m tests.torture.simulation`: replay a seed, or search for one that breaks a promise."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from tests.torture.output import say, say_totals
from tests.torture.simulation.run import SimulationError, simulate

_WHAT = "Run random topologies under faults and check that the local runtime keeps its promises."
_PROGRESS_SECS = 10.0


def _seeds(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code: 1 if a promise was broken, and then the output names the seed."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture.simulation", description=_WHAT)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="replay this seed and print each step")
    which.add_argument("--seeds", type=_seeds, metavar="A:B", help="run the seeds from A up to B, without B")
    which.add_argument("--seconds", type=float, help="run new seeds for this many seconds")
    parser.add_argument("--batches", action="store_true", help="let some spouts and bolts pass Arrow batches")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _replay(options.seed, batches=options.batches)
    if options.seeds is not None:
        return _soak(options.seeds, None, batches=options.batches)
    # New seeds: they begin with the clock, so that two runs do not share any.
    return _soak(itertools.count(time.time_ns() // 1000), options.seconds, batches=options.batches)


def _replay(seed: int, *, batches: bool) -> int:
    try:
        simulated = simulate(seed, batches=batches, say=say)
    except SimulationError as error:
        say(str(error))
        return 1
    say(f"seed {seed} keeps all promises: {simulated.steps} steps, {dict(simulated.outcomes)}")
    return 0


def _soak(seeds: Iterable[int], seconds: float | None, *, batches: bool) -> int:
    begin = shown = time.monotonic()
    totals: Counter[str] = Counter()
    for seed in seeds:
        now = time.monotonic()
        if seconds is not None and totals["seeds"] and now - begin >= seconds:
            break
        if now - shown >= _PROGRESS_SECS:
            shown = now
            say(f"{totals['seeds']:,} seeds in {now - begin:.0f} s")
        try:
            simulated = simulate(seed, batches=batches)
        except SimulationError as error:
            say(str(error))
            return 1
        totals.update(seeds=1, steps=simulated.steps, deliveries=simulated.deliveries, restarts=simulated.restarts)
        totals.update(simulated.outcomes)
    return say_totals(totals, "seeds", otherwise="no seed was run")


if __name__ == "__main__":
    sys.exit(main())
