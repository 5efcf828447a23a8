"""``python -m tests.torture.simulation``: replay a seed, telling what happens, or find one that breaks a promise."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from tests.torture.simulation.run import SimulationError, simulate

_TOLD_EVERY_SECS = 10.0


def _seeds(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit status: 1 where a promise was broken, and then the output names the seed."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture.simulation", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="replay one seed, and tell what happens")
    which.add_argument("--seeds", type=_seeds, metavar="A:B", help="run the seeds from A to B, B left out")
    which.add_argument("--seconds", type=float, help="run new seeds for so long")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _replay(options.seed)
    if options.seeds is not None:
        return _soak(options.seeds, None)
    # Seeds that nobody has seen yet: begun by the clock, in steps that two runs will not share.
    return _soak(itertools.count(time.time_ns() // 1000), options.seconds)


def _replay(seed: int) -> int:
    try:
        simulated = simulate(seed, say=_say)
    except SimulationError as error:
        _say(str(error))
        return 1
    _say(f"seed {seed} keeps all promises: {simulated.steps} steps, {dict(simulated.outcomes)}")
    return 0


def _soak(seeds: Iterable[int], seconds: float | None) -> int:
    begin = told = time.monotonic()
    totals: Counter[str] = Counter()
    for seed in seeds:
        now = time.monotonic()
        if seconds is not None and now - begin >= seconds:
            break
        if now - told >= _TOLD_EVERY_SECS:
            told = now
            _say(f"{totals['seeds']:,} seeds in {now - begin:.0f} s")
        try:
            simulated = simulate(seed)
        except SimulationError as error:
            _say(str(error))
            return 1
        totals.update(seeds=1, steps=simulated.steps, deliveries=simulated.deliveries, restarts=simulated.restarts)
        totals.update(simulated.outcomes)
    if not totals["seeds"]:
        _say("no seed was run")
        return 1
    _say(", ".join(f"{count:,} {name}" for name, count in totals.items()))
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
