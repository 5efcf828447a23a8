"""One run: fill a queue with orders, kill what takes part, and compare what was acked with what was done."""

from __future__ import annotations

import contextlib
import enum
import json
import os
import random
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from acker.connectors import Outgoing, Publisher
from acker.testing.remote.harness import kill_session
from tests.servers import Server
from tests.torture.job_kills.truth import Truth

_LOOK_SECS: Final = 0.05
# Orders for each kill: while it happens, some are open.
_ORDERS_A_KILL: Final = 5
# As in the app, which can be imported in its own processes only.
_EXECUTIONS: Final = 7


class KillsError(Exception):
    """A promise was broken, or a run did not come to its end; the text names the seed."""


class Kill(enum.StrEnum):
    """What is killed by SIGKILL and started again."""

    OWNER = "owner"
    WORKER = "worker"
    FOLLOWER = "follower"
    BROKER = "broker"
    REPLIES = "replies"


@dataclass(frozen=True)
class Plan:
    """What happens in a run, drawn from a seed.

    Attributes
    ----------
    seed : int
    broker : {"redis", "rabbitmq"}
    orders : int
    kills : tuple of (Kill, int)
        Each with the number of executions that come to their end before it, counted from the one before.
    """

    seed: int
    broker: str
    orders: int
    kills: tuple[tuple[Kill, int], ...]


def plan_of(seed: int, broker: str, kills: int) -> Plan:
    """Draw a plan: so many kills of each kind, in a random order."""
    chance = random.Random(seed)
    drawn = [kind for kind in Kill for _ in range(kills)]
    chance.shuffle(drawn)
    apart = _ORDERS_A_KILL * _EXECUTIONS
    points = tuple((kind, chance.randint(1, apart)) for kind in drawn)
    return Plan(seed, broker, _ORDERS_A_KILL * len(points), points)


@dataclass
class Account:
    """What was found after a run.

    Attributes
    ----------
    orders : int
    attempts : int
        Of all orders.
    executions : int
        Those that came to their end.
    early, lost, left : list of str, list of int, int
        What was acked before all of it was done; orders without a complete attempt; what the broker still has.
    timed_out : int
        Attempts that waited for their timeout, as far as the owners that were killed had told.
    waits : list of str
        Those that waited for nearly so long, and the jobs that they waited for.
    unconfirmed : int
        Reports that no server confirmed in time.
    ended : int
        Workers that ended by themselves, and were started again.
    longest_secs : float
        The longest time from a kill to the next one, or to the end.
    """

    orders: int
    attempts: int = 0
    executions: int = 0
    early: list[str] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    left: int = 0
    timed_out: int = 0
    waits: list[str] = field(default_factory=list)
    unconfirmed: int = 0
    ended: int = 0
    longest_secs: float = 0.0


class Run:
    """A run of a plan.

    Parameters
    ----------
    plan : Plan
    broker, replies : Server
        Two servers of the same kind: of orders, tasks and mails, and of the replies.
    folder : Path
        An empty one, for what the processes write.
    deadline_secs : float
        For each wait.
    say : callable
    """

    def __init__(
        self,
        plan: Plan,
        broker: Server,
        replies: Server,
        folder: Path,
        deadline_secs: float,
        say: Callable[[str], object],
    ) -> None:
        self.plan, self.folder = plan, folder
        self._servers = {Kill.BROKER: broker, Kill.REPLIES: replies}
        self._deadline_secs, self._say = deadline_secs, say
        self._queue = f"kills-{plan.seed}-{uuid.uuid4().hex[:8]}"
        self._truth = Truth(folder)
        self._processes: dict[Kill, subprocess.Popen[bytes]] = {}
        self._longest_secs = 0.0
        self.happened: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        folder.mkdir(parents=True, exist_ok=True)

    def run(self) -> Account:
        """Run, and return the account.

        Raises
        ------
        KillsError
            Something was not done in time.
        """
        self._prepare()
        self._fill()
        with self._closing():
            for kind in (Kill.OWNER, Kill.WORKER, Kill.FOLLOWER):
                self._start(kind)
            for kind, executions in self.plan.kills:
                self._wait_for_executions(executions)
                self._say(f"{self.plan.broker}, seed {self.plan.seed}: {kind}")
                self._kill(kind)
                self.happened[kind] += 1
            self._wait(self._is_done)
            # What was done and not acked when its owner died is delivered again, and done again.
            self._wait(lambda: self._left() == 0)
            self._end()
        return self._account()

    # ---- servers -----------------------------------------------------------------------------------------------------

    @property
    def _url(self) -> str:
        return self._servers[Kill.BROKER].url

    def _prepare(self) -> None:
        """Let Redis have on its disk what it confirms; RabbitMQ has."""
        if self.plan.broker == "redis":
            import redis

            for server in self._servers.values():
                with redis.Redis.from_url(server.url) as client:
                    client.config_set("appendfsync", "always")

    def _orders(self) -> Publisher:
        name = f"{self._queue}-orders"
        if self.plan.broker == "redis":
            from acker.connectors.redis_streams import RedisStreamsPublisher

            return RedisStreamsPublisher(self._url, stream=name)
        from acker.connectors.rabbitmq import RabbitMQPublisher

        return RabbitMQPublisher(self._url, routing_key=name, declare="quorum")

    def _fill(self) -> None:
        with self._orders() as publisher:
            faults = publisher.publish([Outgoing(b"%d" % number) for number in range(self.plan.orders)])
        assert not any(faults), faults

    def _left(self) -> int:
        name = f"{self._queue}-orders"
        if self.plan.broker == "redis":
            import redis

            with redis.Redis.from_url(self._url) as client:
                (group,) = client.xinfo_groups(name)
                return int(group["pending"]) + int(group["lag"] or 0)
        import pika

        with pika.BlockingConnection(pika.URLParameters(self._url)) as connection:
            return int(connection.channel().queue_declare(name, passive=True).method.message_count)

    # ---- kills -------------------------------------------------------------------------------------------------------

    def _kill(self, kind: Kill) -> None:
        if server := self._servers.get(kind):
            server.kill()
            server.start()
            self._prepare()
            return
        process = self._processes.pop(kind)
        kill_session(process)
        if kind is Kill.WORKER and self.plan.broker == "redis":
            self._give_back()
        self._start(kind)

    def _give_back(self) -> None:
        """Let the next worker have what the killed one had, as after its visibility timeout."""
        import redis

        with redis.Redis.from_url(self._url) as client:
            for tag in client.zrange("unacked_index", 0, -1):
                client.zadd("unacked_index", {tag: 0}, xx=True)

    def _start(self, kind: Kill) -> None:
        app = "tests.torture.job_kills.shop"
        worker = ["celery", "-A", app, "worker", "--concurrency=2", "--loglevel=INFO", "--without-gossip"]
        consumer = ["tests.torture.job_kills.consumers", str(kind)]
        command = [*worker, "--without-mingle"] if kind is Kill.WORKER else consumer
        environ = {
            "ACKER_KILLS_FOLDER": str(self.folder),
            "ACKER_KILLS_BROKER": self._url,
            "ACKER_KILLS_REPLIES": self._servers[Kill.REPLIES].url,
            "ACKER_KILLS_QUEUE": self._queue,
        }
        with (self.folder / f"{kind}.log").open("ab") as log:
            self._processes[kind] = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **environ},
            )

    def _start_ended(self) -> None:
        """Start what has ended by itself, as a supervisor does: Celery's worker ends when Kombu cannot reconnect."""
        for kind, process in [*self._processes.items()]:
            if process.poll() is not None:
                self.ended[kind] += 1
                if kind is not Kill.WORKER:
                    raise KillsError(f"seed {self.plan.seed}: the {kind} ended by itself; {self._logs()}")
                self._kill(kind)

    def _end(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for kind, process in self._processes.items():
            try:
                process.wait(self._deadline_secs)
            except subprocess.TimeoutExpired:
                raise KillsError(f"seed {self.plan.seed}: the {kind} did not end; {self._logs()}") from None

    @contextlib.contextmanager
    def _closing(self) -> Iterator[None]:
        try:
            yield
        finally:
            for process in self._processes.values():
                kill_session(process)

    # ---- what was done -----------------------------------------------------------------------------------------------

    def _is_done(self) -> bool:
        self._truth.read()
        return all(map(self._truth.is_done, range(self.plan.orders)))

    def _wait_for_executions(self, count: int) -> None:
        self._truth.read()
        count += self._truth.lines
        self._wait(lambda: self._is_done() or self._truth.lines >= count)

    def _wait(self, condition: Callable[[], bool]) -> None:
        begin, pause = time.monotonic(), threading.Event()
        while not condition():
            if time.monotonic() > begin + self._deadline_secs:
                text = (
                    f"seed {self.plan.seed}: not done in {self._deadline_secs:g} s; {self._account()}; {self._logs()}"
                )
                raise KillsError(text)
            if self._truth.broken():
                return
            self._start_ended()
            pause.wait(_LOOK_SECS)
        self._longest_secs = max(self._longest_secs, time.monotonic() - begin)

    def _account(self) -> Account:
        self._truth.read()
        counts: Counter[str] = Counter()
        for path in self.folder.glob("counts-*"):
            with contextlib.suppress(ValueError):  # half-written by an owner that was killed
                counts.update(json.loads(path.read_text()))
        logs = "".join(path.read_text(errors="replace") for path in self.folder.glob("*.log"))
        return Account(
            self.plan.orders,
            sum(map(len, self._truth.attempts.values())),
            self._truth.lines,
            self._truth.broken(),
            [number for number in range(self.plan.orders) if not self._truth.is_done(number)],
            self._left() if all(server.state == "up" for server in self._servers.values()) else -1,
            counts["timed out"],
            [line for path in self.folder.glob("waits-*") for line in path.read_text().splitlines()],
            logs.count("its report was not confirmed within"),
            self.ended.total(),
            round(self._longest_secs, 1),
        )

    def _logs(self) -> str:
        found = [(path.name, path.read_text(errors="replace").splitlines()[-40:]) for path in self.folder.glob("*.log")]
        return "\n".join(f"---- {name}\n" + "\n".join(lines) for name, lines in found)


def survive(
    plan: Plan,
    broker: Server,
    replies: Server,
    folder: Path,
    *,
    deadline_secs: float = 180.0,
    say: Callable[[str], object] = lambda text: None,
) -> tuple[Account, Counter[Any]]:
    """Run a plan; return the account, and how often each kill happened.

    Raises
    ------
    KillsError
        A message was lost or acked early, the broker still has one, or something was not done in time.
    """
    run = Run(plan, broker, replies, folder, deadline_secs, say)
    account = run.run()
    if account.early or account.lost or account.left:
        raise KillsError(f"{plan.broker}, seed {plan.seed}: {account}")
    return account, run.happened
