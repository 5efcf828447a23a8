"""The run of a plan: start the driver, kill, restart, and compare the completions."""

from __future__ import annotations

import contextlib
import json
import os
import socketserver
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

import acker
from acker._engine.completions import Completions
from acker._engine.protocol import Outcome
from acker._engine.schemas import COMPLETION_SCHEMA
from acker.errors import AckerError
from acker.testing.streams import Checksum
from tests.torture.kills import processes
from tests.torture.kills.plan import Expected, Kill, Plan, Victim, is_lost, write_files
from tests.torture.kills.points import DRIVER_POINTS
from tests.torture.spark_home import JVM_OPTIONS, make_spark_home

if TYPE_CHECKING:
    from tests.torture.stores import Store

# Drivers that may end by themselves with an error. A kill of a worker or of an executor should not end the query.
_FAILURES_MAX: Final = 3
# The lines of a driver's log to show.
_LOG_BYTES: Final = 4_000


class KillsError(AckerError):
    """A run broke a promise; the text names the seed and the promise."""


class Survived(NamedTuple):
    """The figures of a run.

    Attributes
    ----------
    kills : list of str
        What was killed where, one line each.
    drivers : int
        How many there were, one after the other.
    failures : int
        How many of them ended by themselves with an error.
    batches, again : int
        Micro-batches that reached the sink, and how many of these reached it more than once.
    cached, rebuilt : int
        Tables found in memory, and built from the state, by drivers that lived to tell.
    outcomes : dict
        How many trees ended in which way.
    """

    kills: list[str]
    drivers: int
    failures: int
    batches: int
    again: int
    cached: int
    rebuilt: int
    outcomes: dict[str, int]


def survive(
    plan: Plan,
    folder: Path,
    *,
    store: Store | None = None,
    deadline_s: float = 900,
    say: Callable[[str], None] = lambda _: None,
) -> Survived:
    """Run a plan in a new folder.

    Parameters
    ----------
    plan : Plan
    folder : Path
        Not there yet, or empty.
    store : Store, optional
        For the checkpoint, which is in the folder otherwise.
    deadline_s : float
        For the whole run.
    say : callable
        Is told of each kill.

    Raises
    ------
    KillsError
        Something came out that should not, or did not come out, or came twice; the driver failed by itself too often;
        the deadline passed; or the messages were at an end before all kills were done.
    """
    expected = write_files(plan, folder / "messages")
    deadline = time.monotonic() + deadline_s
    with _listening(_Killer(plan.kills, say)) as killer:
        failures = _drive_to_the_end(plan, folder, store, killer, deadline)
        if killer.left:
            raise KillsError(f"seed {plan.seed}: the messages were at an end before {killer.left} kills")
    tries = tries_of(folder / "completions")
    done = once(tries, plan.seed)
    faults = faults_of(plan, expected, done)
    if faults:
        raise KillsError(f"seed {plan.seed}: {'; '.join(faults)}; killed were: {'; '.join(killer.done)}")
    outcomes = {outcome.name: int((done.outcome == outcome).sum()) for outcome in Outcome}
    again = sum(len(each) > 1 for each in tries.values())
    tables = killer.cached, killer.rebuilt
    return Survived(killer.done, len(killer.drivers), failures, len(tries), again, *tables, outcomes)


# ---- kills ----------------------------------------------------------------------------------------------------------


class _Killer:
    """Gets a report of every point that is reached, and kills there as planned."""

    def __init__(self, kills: tuple[Kill, ...], say: Callable[[str], None]) -> None:
        self.port = 0
        self.done: list[str] = []
        self.cached = self.rebuilt = 0
        self.drivers: list[int] = []
        self._driver_taken = False
        self._kills = list(kills)
        self._points = kills[0].points if kills else 0
        self.say = say
        self._lock = threading.Lock()
        self._never = threading.Event()

    @property
    def left(self) -> int:
        """The number of kills still to do."""
        return len(self._kills)

    def watch(self, driver: int) -> None:
        """Register a new driver."""
        with self._lock:
            self.drivers.append(driver)
            self._driver_taken = False

    def took_driver(self) -> bool:
        """Return whether the latest driver was killed."""
        with self._lock:
            return self._driver_taken

    def hear(self, what: dict[str, Any], go: Callable[[], None]) -> None:
        """Handle the report of a process, which waits until `go` is called, or for ever if it is killed."""
        if "point" not in what:
            with self._lock:
                self.cached += what["cached"]
                self.rebuilt += what["rebuilt"]
        elif (kill := self._due(what)) is not None:
            if kill.late_s:
                go()
                # A random delay, not a wait for an event: any moment is good.
                self._never.wait(kill.late_s)
            self._kill(kill, what)
        go()

    def _due(self, what: dict[str, Any]) -> Kill | None:
        with self._lock:
            # Workers may outlive their driver a little.
            if not self._kills or self._driver_taken or what["session"] != self.drivers[-1]:
                return None
            if self._kills[0].victim is not Victim.DRIVER and what["point"] in DRIVER_POINTS:
                return None
            if self._kills[0].point not in {None, what["point"]}:
                return None
            self._points -= 1
            # Below 0 while another thread does it.
            return self._kills[0] if self._points == 0 else None

    def _kill(self, kill: Kill, what: dict[str, Any]) -> None:
        with self._lock:
            if self._has_killed(kill.victim, what["process"]):
                late = f", {1000 * kill.late_s:.0f} ms late" if kill.late_s else ""
                self.done.append(f"{kill.victim} in micro-batch {what['batch']}, {what['point']}{late}")
                self.say(self.done[-1])
                self._kills.pop(0)
            # Otherwise it was gone: again, at a later point.
            self._points = self._kills[0].points if self._kills else 0

    def _has_killed(self, victim: Victim, process: int) -> bool:
        if victim is Victim.WORKER:
            return processes.kill(process)
        if victim is Victim.EXECUTOR:
            executor = processes.executor_of(process)
            return executor is not None and processes.kill(executor)
        jvm = processes.children_of(self.drivers[-1])
        self._driver_taken = processes.kill(self.drivers[-1])
        for child in jvm:
            processes.kill(child)
        return self._driver_taken


@contextlib.contextmanager
def _listening(killer: _Killer) -> Iterator[_Killer]:
    """Serve a killer at a port of this machine."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline()
            if line:
                killer.hear(json.loads(line), self._go)

        def _go(self) -> None:
            with contextlib.suppress(OSError):  # It is gone.
                self.wfile.write(b"!")

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 64

    with Server(("127.0.0.1", 0), Handler) as server:
        killer.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, name="killer")
        thread.start()
        try:
            yield killer
        finally:
            server.shutdown()
            thread.join()


# ---- the driver -----------------------------------------------------------------------------------------------------


def _drive_to_the_end(plan: Plan, folder: Path, store: Store | None, killer: _Killer, deadline: float) -> int:
    """Run drivers until one succeeds; return how many failed without a kill."""
    failures = 0
    try:
        while True:
            code = _drive(plan, folder, store, killer, deadline - time.monotonic())
            if killer.took_driver():
                continue
            if code == 0:
                return failures
            failures += 1
            killer.say(f"the driver ended with {code}")
            if failures > _FAILURES_MAX:
                raise KillsError(f"seed {plan.seed}: the driver ended with {code} by itself\n{_last_words(folder)}")
    finally:
        # Processes of a dead driver end by themselves; until then they may interfere.
        for driver in killer.drivers:
            for process in processes.in_session(driver):
                processes.kill(process)


def _drive(plan: Plan, folder: Path, store: Store | None, killer: _Killer, seconds: float) -> int:
    """Run one driver until it ends or is killed; return its exit code."""
    command = [sys.executable, "-m", "tests.torture.kills.driver", str(folder), str(killer.port), plan.master]
    checkpoint = str(folder / "checkpoint") if store is None else store.uri("checkpoint")
    command += [str(plan.timeout_s or 0), str(plan.files), checkpoint]
    settings = {} if store is None else store.spark_conf(folder / "conf")
    with (folder / "log").open("ab") as log:
        driver = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**environment_of(folder), **settings},
            cwd=folder,
            start_new_session=True,
        )
    killer.watch(driver.pid)
    try:
        return driver.wait(max(seconds, 1))
    except subprocess.TimeoutExpired:
        raise KillsError(f"seed {plan.seed}: not done at the deadline\n{_last_words(folder)}") from None
    finally:
        driver.kill()
        driver.wait()


def environment_of(folder: Path) -> dict[str, str]:
    """Return the environment of a driver, whose scratch files are all in a folder."""
    package = Path(acker.__file__).resolve().parents[1]
    python = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
    path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
    home = make_spark_home(folder / "spark")
    # Killed processes do not clean up.
    scratch = folder / "tmp"
    scratch.mkdir(exist_ok=True)
    java = [os.environ.get("JAVA_TOOL_OPTIONS"), f'-Djava.io.tmpdir="{scratch}"', JVM_OPTIONS]
    own = {
        "PYTHONPATH": path,
        "SPARK_HOME": str(home),
        "TMPDIR": str(scratch),
        "JAVA_TOOL_OPTIONS": " ".join(filter(None, java)),
    }
    return {**os.environ, **python, **own}


def _last_words(folder: Path) -> str:
    return (folder / "log").read_bytes()[-_LOG_BYTES:].decode(errors="replace")


# ---- the output -----------------------------------------------------------------------------------------------------


def tries_of(folder: Path) -> dict[int, list[Completions]]:
    """Return the output of each attempt of each micro-batch."""
    tries = defaultdict(list)
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as columns:
            done = Completions(**{name: columns[name] for name in COMPLETION_SCHEMA.names})
        tries[int(path.name.partition(".")[0])].append(done)
    return dict(tries)


def once(tries: dict[int, list[Completions]], seed: int) -> Completions:
    """Return the output, each micro-batch once; all attempts must have written the same, ages included."""
    for batch_id, (first, *others) in tries.items():
        rows = sorted(first.rows())
        if any(sorted(other.rows()) != rows for other in others):
            raise KillsError(f"seed {seed}: micro-batch {batch_id} brought something else when it was run again")
    if sorted(tries) != list(range(len(tries))):
        raise KillsError(f"seed {seed}: micro-batches {sorted(tries)} reached the sink, and not those between")
    return Completions.concat([each[0] for each in tries.values()])


def faults_of(plan: Plan, expected: Expected, done: Completions) -> list[str]:
    """Return the faults in the completions of a whole run, as text."""
    found = []
    roots, times = np.unique(done.root_id, return_counts=True)
    if (times > 1).any():
        found.append(f"{(times > 1).sum()} trees ended more than once")
    ids = zip(done.message_id.tolist(), done.task_id.tolist(), strict=True)
    wrong = sum(expected.tracked.get(root) != pair for root, pair in zip(done.root_id.tolist(), ids, strict=True))
    if wrong:
        found.append(f"{wrong} trees ended that nobody began, or with another's message id or task id")
    wanted, got = _endings(expected.undisturbed), _endings(done)
    if plan.timeout_s is None:
        if got != wanted:
            found.append(
                f"{len(wanted - got)} trees did not end as undisturbed, and {len(got - wanted)} should not have"
            )
        if Checksum().add(done.root_id) != expected.checksum:
            found.append(f"expected {expected.checksum}, got {Checksum().add(done.root_id)}")
        return found
    if missing := len(expected.tracked) - len(roots):
        found.append(f"{missing} of {len(expected.tracked)} trees never ended")
    timed_out = done.outcome == Outcome.TIMED_OUT
    if not timed_out[is_lost(done.root_id)].all():
        found.append("trees of which nothing was heard ended otherwise than by timing out")
    if others := {pair for pair in got if pair[1] != Outcome.TIMED_OUT} - wanted:
        found.append(f"{len(others)} trees neither ended as undisturbed nor timed out")
    if timed_out.all() or not timed_out.any():
        found.append(f"{timed_out.sum()} of {len(done)} trees timed out, so the run shows nothing")
    return found


def _endings(done: Completions) -> set[tuple[int, int]]:
    return set(zip(done.root_id.tolist(), done.outcome.tolist(), strict=True))
