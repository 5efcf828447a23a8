"""The command `python -m tests.torture.outages`: outages under consumers of real brokers."""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.servers import NoServerError, Server
from tests.torture.outages.run import KINDS, OutagesError, plan_of, survive
from tests.torture.output import say

_OUTAGES_A_RUN: Final = 6


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code: 1 if a promise was broken, and then the output names the seed."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture.outages", description=__doc__)
    parser.add_argument("--broker", action="append", choices=KINDS, help="may be repeated; by default all brokers")
    parser.add_argument("--outages", type=int, default=30, help="of each broker (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="repeat the run of this seed, of one broker")
    options = parser.parse_args(arguments)
    names = options.broker or list(KINDS)
    failed = [name for name in names if not _torture(name, options.outages, options.seed)]
    return 1 if failed else 0


def _torture(name: str, outages: int, seed: int | None) -> bool:
    """Run seeds until so many outages have happened; return whether all promises were kept."""
    totals: Counter[str] = Counter()
    happened: Counter[str] = Counter()
    seeds = [seed] if seed is not None else itertools.count(time.time_ns() // 1_000_000)
    with tempfile.TemporaryDirectory(prefix="acker-outages-", ignore_cleanup_errors=True) as folder:
        try:
            server = Server(name, Path(folder, "told"))
        except NoServerError as why:
            say(f"{name}: no server: {why}")
            return False
        with server:
            for each in seeds:
                if happened.total() >= outages and seed is None:
                    break
                try:
                    account, found = survive(plan_of(each, name, _OUTAGES_A_RUN), server, Path(folder, f"{each}"))
                except OutagesError as error:
                    say(f"{name}: {error}\nagain: python -m tests.torture.outages --broker {name} --seed {each}")
                    return False
                happened.update(found)
                totals.update(
                    messages=account.messages, attempts=account.deliveries, doubled=account.doubled, lost=0, runs=1
                )
                say(f"{name}: {happened.total()} of {outages} outages; {account}")
    say(f"{name}: {dict(totals)}; {dict(happened)}")
    return True


if __name__ == "__main__":
    sys.exit(main())
