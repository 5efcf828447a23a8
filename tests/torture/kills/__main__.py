"""The command `python -m tests.torture.kills`: kill processes under a streaming acker."""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.torture.kills.plan import CLUSTER, LOCAL, Plan, Victim, plan_of
from tests.torture.kills.run import KillsError, survive
from tests.torture.output import say, say_totals
from tests.torture.stores import KINDS, Store, store_maker

_WHAT: Final = "Kill workers, executors and drivers under a streaming acker on Spark, and check its completions."

# The sorts of runs, in turn by their seeds: on one machine and on two executors, with trees that expire and without.
_TIMEOUT_S: Final = 4.0
_RUNS: Final = (
    (CLUSTER, None, {Victim.EXECUTOR: 3, Victim.WORKER: 1, Victim.DRIVER: 1}),
    (LOCAL, _TIMEOUT_S, {Victim.WORKER: 3, Victim.DRIVER: 2}),
    (CLUSTER, _TIMEOUT_S, {Victim.EXECUTOR: 3, Victim.WORKER: 1, Victim.DRIVER: 1}),
    (LOCAL, None, {Victim.WORKER: 3, Victim.DRIVER: 2}),
)
# For slow machines and stores.
_RUN_SECONDS_MAX: Final = 3600


def run_of(seed: int) -> Plan:
    """Return the run that a seed stands for."""
    master, timeout_s, victims = _RUNS[seed % len(_RUNS)]
    return plan_of(seed, list(Counter(victims).elements()), master=master, timeout_s=timeout_s)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code: 1 if a promise was broken, and then the output names the seed."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture.kills", description=_WHAT)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--kills", type=int, help="run new seeds until this many processes were killed")
    which.add_argument("--seed", type=int, help="repeat the run of this seed")
    parser.add_argument("--store", choices=KINDS, help="keep the checkpoints there")
    options = parser.parse_args(arguments)
    # New seeds begin with the first sort of run.
    first = time.time_ns() // 1000
    seeds = itertools.count(first - first % len(_RUNS)) if options.seed is None else [options.seed]
    with store_maker(options.store) as make_store:
        return _soak(seeds, 1 if options.kills is None else options.kills, make_store, options.store)


def _soak(seeds: Iterable[int], kills: int, make_store: Callable[[], Store | None], kind: str | None) -> int:
    begin = time.monotonic()
    totals: Counter[str] = Counter()
    for seed in seeds:
        if totals["kills"] >= kills:
            break
        plan = run_of(seed)
        expiry = "nothing expires" if plan.timeout_s is None else f"trees expire after {plan.timeout_s:g} s"
        say(f"seed {seed}: {plan.master}, {plan.files} micro-batches, {expiry}")
        try:
            with tempfile.TemporaryDirectory(prefix="acker-kills-", ignore_cleanup_errors=True) as folder:
                survived = survive(plan, Path(folder, "run"), store=make_store(), deadline_s=_RUN_SECONDS_MAX, say=say)
        except KillsError as error:
            store = f" --store {kind}" if kind else ""
            say(f"{error}\nagain: python -m tests.torture.kills --seed {seed}{store}")
            return 1
        totals.update(runs=1, kills=len(survived.kills), drivers=survived.drivers, failures=survived.failures)
        totals.update(survived.outcomes)
        say(f"{totals['kills']} of {kills} kills in {time.monotonic() - begin:.0f} s")
    return say_totals(totals, "kills", otherwise="no process was killed")


if __name__ == "__main__":
    sys.exit(main())
