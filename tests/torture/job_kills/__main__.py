"""The command `python -m tests.torture.job_kills`: kills under trees of Celery's tasks."""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.servers import NoServerError, Server
from tests.torture.job_kills.run import KillsError, plan_of, survive
from tests.torture.output import say

_BROKERS: Final = ("redis", "rabbitmq")
_KILLS_A_RUN: Final = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code: 1 if a promise was broken, and then the output names the seed."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture.job_kills", description=__doc__)
    parser.add_argument("--broker", action="append", choices=_BROKERS, help="may be repeated; by default both")
    parser.add_argument("--kills", type=int, default=100, help="of each kind, on each broker (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="repeat the run of this seed, of one broker")
    options = parser.parse_args(arguments)
    names = options.broker or list(_BROKERS)
    failed = [name for name in names if not _torture(name, options.kills, options.seed)]
    return 1 if failed else 0


def _torture(name: str, kills: int, seed: int | None) -> bool:
    """Run seeds until each kind of kill has happened so often; return whether all promises were kept."""
    totals: Counter[str] = Counter()
    happened: Counter[str] = Counter()
    seeds = [seed] if seed is not None else itertools.count(time.time_ns() // 1_000_000)
    folder = Path(tempfile.mkdtemp(prefix="acker-job-kills-"))
    try:
        with Server(name, folder / "broker") as broker, Server(name, folder / "replies") as replies:
            for each in seeds:
                if seed is None and happened and min(happened.values()) >= kills:
                    break
                plan = plan_of(each, name, min(kills, _KILLS_A_RUN))
                account, found = survive(plan, broker, replies, folder / f"{each}", say=say)
                happened.update(found)
                figures = {key: value for key, value in vars(account).items() if isinstance(value, int)}
                totals.update({"runs": 1, **figures})
                say(f"{name}: seed {each}: {account}")
    except NoServerError as why:
        say(f"{name}: no server: {why}")
        return False
    except KillsError as error:
        say(f"{error}\nagain: python -m tests.torture.job_kills --broker {name} --seed {each}; {folder} has its files")
        return False
    say(f"{name}: {dict(totals)}; {dict(happened)}")
    shutil.rmtree(folder)
    return True


if __name__ == "__main__":
    sys.exit(main())
