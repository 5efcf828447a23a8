"""The command `python -m tests.torture.topology_kills`: kill processes under a topology on Spark at random moments."""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.torture.kills import CLUSTER, LOCAL, Victim, processes
from tests.torture.output import say, say_totals
from tests.torture.stores import KINDS, Store, store_maker
from tests.torture.topology_kills.account import Account, AccountError
from tests.torture.topology_kills.run import Program
from tests.torture.topology_kills.words import BAD, FLAKY, SOUR, TOPOLOGIES

_WHAT: Final = "Kill workers, executors and drivers under a topology on Spark, and check its account."
_WORDS: Final = ("the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "and", "runs", "away")

# So many kills in one run over the same files. A driver needs some seconds until it does anything.
_KILLS_A_RUN: Final = 5
_LINES_A_KILL: Final = 160
_WAIT_SECONDS: Final = (0.2, 6.0)
_RUN_SECONDS_MAX: Final = 1800
# The executors' JVMs, and the servers that fork Python workers, whatever their module.
_EXECUTOR, _DAEMON = "CoarseGrainedExecutorBackend", "pyspark.worker"


def lines_of(rng: random.Random, count: int) -> list[str]:
    """Return lines, some of which fail always or once."""
    lines = []
    for number in range(count):
        words = rng.choices(_WORDS, k=3)
        kind = rng.random()
        if kind < 0.03:
            words.append(rng.choice((BAD, SOUR)))
        elif kind < 0.06:
            words.append(f"{FLAKY}-{number}")
        lines.append(" ".join(words))
    return lines


class Soak:
    """Runs over the same files with kills, until these are done and then to the end.

    Parameters
    ----------
    seed : int
    kills : int
    say : callable
    store : Store, optional
        For the checkpoint.
    """

    def __init__(self, seed: int, kills: int, say: Callable[[str], None], store: Store | None = None) -> None:
        self._rng = random.Random(seed)
        self._left = kills
        self._say = say
        self._store = store
        self.master = self._rng.choice((CLUSTER, LOCAL))
        self.topology = self._rng.choice(list(TOPOLOGIES))
        self.lines = lines_of(self._rng, _LINES_A_KILL * kills)
        self.done: Counter[str] = Counter()
        self.drivers = self.failures = 0

    def run(self, folder: Path) -> Account:
        """Run, and check the account.

        Raises
        ------
        AccountError
        """
        program = Program(folder, self.lines, self.master, self.topology, store=self._store)
        deadline = time.monotonic() + _RUN_SECONDS_MAX
        while True:
            self.drivers += 1
            with program.start() as driver:
                if not self._await(program, driver, deadline):
                    code = driver.poll()
                else:
                    self._kill_some(driver)
                    code = program.wait(driver, max(1, deadline - time.monotonic()))
            if code == 0:
                break
            if code is not None and code > 0:
                self.failures += 1
                self._say(f"the driver ended with {code}")
                if self.failures > 3:
                    raise AccountError(program.last_words())
        if not self.done:
            raise AccountError("the lines were at an end before any kill")
        if self._left:  # columns are quick; the next run makes up for it
            self._say(f"the lines were at an end before {self._left} kills")
        return program.check()

    def _await(self, program: Program, driver: subprocess.Popen[bytes], deadline: float) -> bool:
        """Wait until the driver's session is there; return whether it is."""
        before = program.log.read_bytes().count(b"runs\n")
        while program.log.read_bytes().count(b"runs\n") == before:
            if driver.poll() is not None:
                return False
            if time.monotonic() > deadline:
                raise AccountError(f"no session in {_RUN_SECONDS_MAX} s\n{program.last_words()}")
            time.sleep(0.1)
        return True

    def _kill_some(self, driver: subprocess.Popen[bytes]) -> None:
        """Kill until the driver is the victim, or ends."""
        while self._left and driver.poll() is None:
            time.sleep(self._rng.uniform(*_WAIT_SECONDS))
            victim = self._rng.choice(list(Victim))
            found = self._find(victim, driver.pid)
            if not found or not processes.kill(self._rng.choice(found)):
                continue
            self._left -= 1
            self.done[victim] += 1
            self._say(f"killed: {victim}")
            if victim is Victim.DRIVER:
                return

    def _find(self, victim: Victim, driver: int) -> list[int]:
        if victim is Victim.DRIVER:
            return [driver]
        words = _EXECUTOR if victim is Victim.EXECUTOR else _DAEMON
        found = [process for process in processes.in_session(driver) if words in processes.command_of(process)]
        if victim is Victim.EXECUTOR:
            return found
        return [worker for daemon in found for worker in processes.children_of(daemon)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code: 1 if a promise was broken, and then the output names the seed."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture.topology_kills", description=_WHAT)
    parser.add_argument("--kills", type=int, default=_KILLS_A_RUN, help="kill so many processes")
    parser.add_argument("--seed", type=int, help="of the first run; by default a new one")
    parser.add_argument("--store", choices=KINDS, help="keep the checkpoints there")
    options = parser.parse_args(arguments)
    with store_maker(options.store) as make_store:
        return _soak(options, make_store)


def _soak(options: argparse.Namespace, make_store: Callable[[], Store | None]) -> int:
    seed = time.time_ns() // 1000 if options.seed is None else options.seed
    begin, left, totals = time.monotonic(), options.kills, Counter[str]()
    while left > 0:
        soak = Soak(seed, min(left, _KILLS_A_RUN), say, make_store())
        say(f"seed {seed}: {soak.topology} on {soak.master}, {len(soak.lines)} lines")
        try:
            with tempfile.TemporaryDirectory(prefix="acker-kills-", ignore_cleanup_errors=True) as folder:
                account = soak.run(Path(folder, "run"))
        except AccountError as error:
            store = f" --store {options.store}" if options.store else ""
            say(f"seed {seed}: {error}\nagain: python -m tests.torture.topology_kills --seed {seed}{store}")
            return 1
        totals.update(soak.done)
        totals.update(runs=1, drivers=soak.drivers, failures=soak.failures, **account._asdict())
        left -= soak.done.total()
        seed += 1
        say(f"{options.kills - left} of {options.kills} kills in {time.monotonic() - begin:.0f} s")
    return say_totals(totals, "runs", otherwise="no process was killed")


if __name__ == "__main__":
    sys.exit(main())
