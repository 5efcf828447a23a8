"""One run: fill a queue, let outages happen under two consumers, and compare.

The run gives leaves their turns, a few at a time and none while an outage happens, so that messages are open then.
"""

from __future__ import annotations

import array
import contextlib
import enum
import fcntl
import os
import random
import signal
import subprocess
import sys
import termios
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from tests.connectors.proxy import Proxy
from tests.servers import Server
from tests.torture.outages.brokers import BROKERS, LEASE_SECS, port_of, with_port
from tests.torture.outages.consumer import LEAVES, TURNS

T = TypeVar("T")

_CONSUMERS: Final = 2
_PAUSE_SECS: Final = 2 * LEASE_SECS
_LOOK_SECS: Final = 0.05
# Between two looks; and the leaves that get none before the last outage, but for a consumer that has to end.
_TURNS: Final = 8
_LEFT_FOR_THE_END: Final = 160


class OutagesError(Exception):
    """A promise was broken, or a run did not come to its end; the text names the seed."""


class Outage(enum.StrEnum):
    """One kind of outage."""

    KILL = "a consumer is killed"
    TERMINATE = "a consumer is told to stop"
    PAUSE = "a consumer stands still for longer than its lease"
    RESTART = "the broker is restarted"
    CRASH = "the broker is killed and started"
    CUT = "all connections are cut"


@dataclass(frozen=True)
class Plan:
    """What happens in a run, drawn from a seed.

    Attributes
    ----------
    seed : int
    broker : str
    queue : str
    messages : int
    outages : tuple of (Outage, int)
        Each with the number of leaves that are written before it, counted from the one before.
    """

    seed: int
    broker: str
    queue: str
    messages: int
    outages: tuple[tuple[Outage, int], ...]


@dataclass
class Account:
    """What an independent count found after a run.

    Attributes
    ----------
    messages : int
    deliveries : int
        Attempts that wrote at least one leaf.
    complete : int
        Attempts that wrote all of their leaves.
    lost : list of int
        Numbers of messages without a complete attempt: they were lost, or acked early.
    left : int
        What the broker says is not settled.
    idle : int
        Outages before which all messages were done: they have shown less.
    """

    messages: int
    deliveries: int = 0
    complete: int = 0
    lost: list[int] = field(default_factory=list)
    left: int = 0
    idle: int = 0

    @property
    def doubled(self) -> int:
        """How many complete attempts were beyond the first one of their message."""
        return self.complete - (self.messages - len(self.lost))


KINDS: Final[dict[str, tuple[Outage, ...]]] = {
    "rabbitmq": tuple(Outage),
    "redis": tuple(Outage),
    "nats": tuple(Outage),
    "postgresql": tuple(Outage),
    "kafka": (Outage.KILL, Outage.TERMINATE, Outage.PAUSE, Outage.RESTART, Outage.CRASH),
}
_QUEUES: Final = {"rabbitmq": ("classic", "quorum"), "kafka": ("eager", "cooperative")}


def plan_of(seed: int, broker: str, outages: int, messages: int = 600) -> Plan:
    """Draw a plan: `outages` of all kinds that the broker knows, in a random order."""
    chance = random.Random(seed)
    kinds = list(KINDS[broker])
    drawn = [kinds[number % len(kinds)] for number in range(outages)]
    chance.shuffle(drawn)
    apart = max(1, messages * LEAVES // (outages + 1))
    points = tuple((kind, chance.randint(apart // 2, apart)) for kind in drawn)
    sorts = _QUEUES.get(broker, ("outages",))
    return Plan(seed, broker, f"{sorts[seed % len(sorts)]}_{seed}", messages, points)


class Run:
    """A run of a plan against a server.

    Parameters
    ----------
    plan : Plan
    server : Server
    folder : Path
    deadline_secs : float
        For each wait.
    say : callable
    """

    def __init__(
        self, plan: Plan, server: Server, folder: Path, deadline_secs: float, say: Callable[[str], object]
    ) -> None:
        self.plan, self.server, self.folder = plan, server, folder
        self._deadline_secs, self._say = deadline_secs, say
        self._broker = BROKERS[plan.broker]
        self._chance = random.Random(plan.seed + 1)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._resumes: list[threading.Timer] = []
        self._paused: set[int] = set()
        self._idle = 0
        self._leaves_before_end: int | None = plan.messages * LEAVES - _LEFT_FOR_THE_END
        self.happened: Counter[str] = Counter()
        folder.mkdir(parents=True, exist_ok=True)

    def run(self) -> Account:
        """Run, and return the account.

        Raises
        ------
        OutagesError
            Something was not done in time.
        """
        plan = self.plan
        bodies = [b"%d %s" % (number, b"x" * 100) for number in range(plan.messages)]
        self._limited("the queue was not filled", lambda: self._broker.fill(self.server.url, plan.queue, bodies))
        with self._turned(), self._proxied() as (self._url, self._cut), self._closing():
            for _ in range(_CONSUMERS):
                self._start_consumer()
            for outage, leaves in plan.outages:
                self._wait_for_leaves(self._leaves_written() + leaves)
                self._say(f"seed {plan.seed}: {outage}")
                self._idle += self._is_done()
                self._happen(outage)
                self.happened[outage] += 1
            self._leaves_before_end = None
            self._wait(self._is_done)
            # What was done and not acked or committed when a consumer died is delivered again, and done again.
            self._wait(lambda: self._left() == 0)
            self._end_consumers()
        return self._account()

    # ---- outages -----------------------------------------------------------------------------------------------------

    def _happen(self, outage: Outage) -> None:
        if outage is Outage.RESTART or outage is Outage.CRASH:
            self.server.stop() if outage is Outage.RESTART else self.server.kill()
            self.server.start()
            return
        if outage is Outage.CUT:
            self._cut()
            return
        victim = self._chance.choice([each for each in self._processes if each.pid not in self._paused])
        if outage is Outage.PAUSE:
            victim.send_signal(signal.SIGSTOP)
            self._paused.add(victim.pid)
            timer = threading.Timer(_PAUSE_SECS, self._resume, [victim])
            self._resumes.append(timer)
            timer.start()
            self._start_consumer()
            return
        self._processes.remove(victim)
        victim.send_signal(signal.SIGKILL if outage is Outage.KILL else signal.SIGTERM)
        self._start_consumer()
        self._wait_for_end(victim, 0 if outage is Outage.TERMINATE else -signal.SIGKILL)

    def _resume(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        self._paused.discard(process.pid)

    # ---- processes ---------------------------------------------------------------------------------------------------

    def _start_consumer(self) -> None:
        plan = self.plan
        command = [sys.executable, "-m", "tests.torture.outages.consumer"]
        arguments = [plan.broker, self._url, plan.queue, str(self.folder), str(plan.seed)]
        process = subprocess.Popen([*command, *arguments], stdin=subprocess.DEVNULL)
        self._processes.append(process)

        def is_ready() -> bool:
            if process.poll() is not None:
                text = f"seed {plan.seed}: a consumer ended with {process.returncode}: {self._log(process.pid)}"
                raise OutagesError(text)
            return (self.folder / f"ready-{process.pid}").exists()

        self._wait(is_ready)

    def _end_consumers(self) -> None:
        for timer in self._resumes:
            timer.join()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            self._wait_for_end(process, 0)
        self._processes.clear()

    def _wait_for_end(self, process: subprocess.Popen[bytes], expected: int) -> None:
        try:
            self._wait(lambda: process.poll() is not None, is_end=True)
        except OutagesError:
            process.send_signal(signal.SIGUSR1)  # it writes the stacks of its threads
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
            text = f"seed {self.plan.seed}: a consumer did not end: {self._log(process.pid)}"
            raise OutagesError(text) from None
        if process.returncode != expected:
            text = f"a consumer ended with {process.returncode}: {self._log(process.pid)}"
            raise OutagesError(f"seed {self.plan.seed}: {text}")

    @contextlib.contextmanager
    def _closing(self) -> Iterator[None]:
        try:
            yield
        finally:
            for timer in self._resumes:
                timer.cancel()
            for process in self._processes:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                    process.wait()

    @contextlib.contextmanager
    def _turned(self) -> Iterator[None]:
        path = self.folder / TURNS
        os.mkfifo(path)
        self._turns = os.open(path, os.O_RDWR)
        try:
            yield
        finally:
            os.close(self._turns)

    def _give_turns(self) -> None:
        """Let some leaves be done; one that had its turn may have been killed before it wrote."""
        waiting = array.array("i", [0])
        fcntl.ioctl(self._turns, termios.FIONREAD, waiting)
        os.write(self._turns, b"." * max(0, _TURNS - waiting[0]))

    @contextlib.contextmanager
    def _proxied(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """Put a proxy before the server where connections are to be cut."""
        if Outage.CUT not in KINDS[self.plan.broker]:
            yield self.server.url, lambda: None
            return
        with Proxy(port_of(self.server.url)) as proxy:
            yield with_port(self.server.url, proxy.port), proxy.cut

    # ---- what was done -----------------------------------------------------------------------------------------------

    def _lines(self) -> Iterator[tuple[int, int, str]]:
        for path in self.folder.glob("done-*"):
            for line in path.read_text().splitlines():
                number, place, token = line.split()
                yield int(number), int(place), token

    def _leaves_written(self) -> int:
        return sum(path.read_bytes().count(b"\n") for path in self.folder.glob("done-*"))

    def _complete(self) -> tuple[dict[str, set[int]], dict[int, set[str]]]:
        places: dict[str, set[int]] = defaultdict(set)
        tokens: dict[int, set[str]] = defaultdict(set)
        for number, place, token in self._lines():
            places[token].add(place)
            tokens[number].add(token)
        return places, tokens

    def _is_done(self) -> bool:
        """Return whether each message has a complete attempt."""
        if self._leaves_written() < self.plan.messages * LEAVES:
            return False
        places, tokens = self._complete()
        return len(tokens) == self.plan.messages and all(
            any(len(places[token]) == LEAVES for token in of_message) for of_message in tokens.values()
        )

    def _account(self) -> Account:
        places, tokens = self._complete()
        complete = {token for token, found in places.items() if len(found) == LEAVES}
        lost = [number for number in range(self.plan.messages) if not tokens.get(number, set()) & complete]
        return Account(self.plan.messages, len(places), len(complete), lost, self._left(), self._idle)

    def _left(self) -> int:
        return self._limited("nobody says what is left", lambda: self._broker.left(self.server.url, self.plan.queue))

    def _limited(self, what: str, call: Callable[[], T]) -> T:
        """Call a client of the broker, which might wait for ever; an `OutagesError` if it has not ended in time."""
        ended: Future[T] = Future()

        def run() -> None:
            try:
                ended.set_result(call())
            except BaseException as error:  # noqa: BLE001 - for the thread that waits
                ended.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        try:
            return ended.result(self._deadline_secs)
        except TimeoutError:
            if ended.done():
                raise
            text = f"seed {self.plan.seed}: {what} in {self._deadline_secs:g} s; the server is {self.server.state}"
            raise OutagesError(f"{text}; {self._logs()}") from None

    def _wait_for_leaves(self, count: int) -> None:
        most = min(count, self._leaves_before_end or count)
        self._wait(lambda: self._leaves_written() >= most)

    def _wait(self, condition: Callable[[], bool], *, is_end: bool = False) -> None:
        deadline = time.monotonic() + self._deadline_secs
        pause = threading.Event()
        while not condition():
            if is_end or self._leaves_before_end is None or self._leaves_written() < self._leaves_before_end:
                self._give_turns()
            if time.monotonic() > deadline:
                dead = [process.pid for process in self._processes if process.poll() is not None]
                account = self._account() if self.server.state == "up" else None
                raise OutagesError(
                    f"seed {self.plan.seed}: not done in {self._deadline_secs:g} s; ended consumers {dead}; {account};"
                    f" {self._logs()}"
                )
            pause.wait(_LOOK_SECS)

    def _logs(self) -> str:
        return "\n".join(self._log(process.pid) for process in self._processes)

    def _log(self, pid: int) -> str:
        path = self.folder / f"log-{pid}"
        return "\n".join(path.read_text(errors="replace").splitlines()[-80:]) if path.exists() else "no log"


def survive(
    plan: Plan,
    server: Server,
    folder: Path,
    *,
    deadline_secs: float = 120.0,
    say: Callable[[str], object] = lambda text: None,
) -> tuple[Account, Counter[str]]:
    """Run a plan; return the account, and how often each outage happened.

    Raises
    ------
    OutagesError
        A message was lost or acked early, the broker still has one, or something was not done in time.
    """
    run = Run(plan, server, folder, deadline_secs, say)
    account = run.run()
    if account.lost or account.left:
        raise OutagesError(
            f"seed {plan.seed}: {len(account.lost)} messages were lost or acked early, such as {account.lost[:5]}, and"
            f" the broker still has {account.left}"
        )
    return account, run.happened
