"""Simulated trees across processes: jobs are repeated, killed, doubled and lost, and the truth is kept apart.

The jobs and the tree are those of `acker.remote`; queue, workers and network are this file, driven by a seed. The truth
is a record of which executions completed and which jobs each of them made, which no name and no report enters.

    python -m tests.torture.remote_trees --trees 100000 --seed 7
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from acker.remote import Job
from acker.remote.replies import Inbox, RemoteTree, Replies, ReplyReader
from acker.remote.wire import ADDRESS_BYTES, read_report, read_token

WORK_MAX = 400  # executions of one tree


@dataclass(frozen=True)
class Rates:
    """How often something goes wrong.

    Attributes
    ----------
    killed, doubled_job, doubled_report, lost_report, lost_job, failed : float
        Chances: of an execution to be killed, of a send to arrive twice, of a report to arrive twice or never, of a job
        to be lost, and of an execution to fail for good.
    """

    killed: float = 0.10
    doubled_job: float = 0.15
    doubled_report: float = 0.10
    lost_report: float = 0.0
    lost_job: float = 0.0
    failed: float = 0.0


USUAL = Rates()
ROUGH = Rates(killed=0.25, doubled_job=0.3, doubled_report=0.3)
LOSSY = Rates(lost_report=0.02, lost_job=0.02)
FAILING = Rates(failed=0.02)


@dataclass(eq=False)
class Work:
    """A job as the queue and the truth know it: `made` has the jobs of each execution that completed."""

    token: str
    depth: int
    content: object
    made: list[list[Work]] = field(default_factory=list)


def is_done(work: Work) -> bool:
    """Return the truth: whether some complete execution of a job, and all that it led to, is done."""
    return any(all(map(is_done, jobs)) for jobs in work.made)


class Network(Replies):
    """Keeps reports until the simulation delivers them."""

    def __init__(self) -> None:
        super().__init__("simulation")
        self.sent: list[bytes] = []

    def send(self, address: bytes, report: bytes) -> bool:
        self.sent.append(report)
        return True

    def has(self, address: bytes) -> bool:
        return True

    def open_inbox(self) -> Inbox:
        raise NotImplementedError


class Message:
    """What the tree keeps open."""

    def __init__(self) -> None:
        self.outcome: str | None = None

    def ack(self) -> None:
        self.outcome = "acked"

    def fail(self, reason: object = None) -> None:
        self.outcome = "failed"

    def reset_timeout(self) -> None:
        """Do nothing."""


class Simulation:
    """One tree, from its first jobs until nothing happens any more."""

    def __init__(self, seed: int, rates: Rates, kind: str) -> None:
        self.random = random.Random(seed)
        self.rates, self.kind = rates, kind
        self.network = Network()
        self.message = Message()
        self.tree = RemoteTree(ReplyReader(self.network), 1_000_000, bytes(ADDRESS_BYTES))
        self.queue: list[Work] = []
        self.executions = self.lost = self.failed = 0

    def run(self) -> str:
        """Return how the tree ended: acked, failed or stuck.

        Raises
        ------
        AssertionError
            It was acked early.
        """
        draw = self.random
        roots = [Work(self.tree.token(f"root {k}", lambda: self.message), 0, k) for k in range(draw.randint(1, 3))]
        for work in roots:
            self._send(work)
        outcome = None
        while outcome is None and (self.queue or self.network.sent):
            if self.network.sent and (not self.queue or draw.random() < 0.5):
                self._deliver()
            else:
                self._execute(self.queue.pop(draw.randrange(len(self.queue))))
            outcome = self.message.outcome
        assert outcome != "acked" or all(map(is_done, roots)), "acked early"
        outcome = outcome or "stuck"
        assert outcome != "stuck" or self.lost, "stuck, and nothing was lost"
        assert outcome != "failed" or self.failed, "failed, and no job did"
        return outcome

    def _happens(self, chance: float) -> bool:
        return self.random.random() < chance

    def _send(self, work: Work) -> None:
        if self._happens(self.rates.lost_job):
            self.lost += 1
            return
        self.queue += [work] * (2 if self._happens(self.rates.doubled_job) else 1)

    def _contents(self, work: Work) -> list[object]:
        """Return what one execution sends; two executions of a job may differ."""
        count = random.Random(f"{work.content} {work.depth}").choice([0, 0, 1, 2, 4]) if work.depth < 4 else 0
        found: list[object] = [f"{work.content}/{k}" for k in range(count)]
        if self.kind == "order":
            self.random.shuffle(found)
        elif self.kind == "set":
            found = [content for content in found if self._happens(0.7)]
        elif self.kind == "new":
            found = [self.random.random() for _ in range(self.random.choice([0, 1, 3]))] if work.depth < 4 else []
        return found

    def _execute(self, work: Work) -> None:
        """Run a job once; the queue delivers it again if its worker is killed."""
        self.executions += 1
        is_killed = self.executions < WORK_MAX and self._happens(self.rates.killed)
        contents, jobs = self._contents(work), list[Work]()
        steps = len(contents) + 2
        killed_at = self.random.randrange(steps) if is_killed else steps
        job = Job(read_token(work.token), self.network, str(work.content))
        for step, content in enumerate(contents):
            if step == killed_at:
                break
            jobs.append(Work(job.token(str(content)), work.depth + 1, content))
            self._send(jobs[-1])
        if killed_at > len(contents):
            if self._happens(self.rates.failed):
                self.failed += 1
                job.fail("for good")
                return
            # What counts as done is what the execution did, not that its report was sent.
            work.made.append(jobs)
            job.ack()
        if killed_at < steps:  # before the report, or between the report and the ack of the queue
            self.queue.append(work)

    def _deliver(self) -> None:
        sent = self.network.sent
        place = self.random.randrange(len(sent))
        report = sent[place] if self._happens(self.rates.doubled_report) else sent.pop(place)
        if self._happens(self.rates.lost_report):
            self.lost += 1
        else:
            self.tree.take(read_report(report))


KINDS = ("same", "order", "set", "new")


def run(trees: int, seed: int, rates: Rates = USUAL) -> Counter[str]:
    """Simulate trees; return how they ended.

    Raises
    ------
    AssertionError
        One was acked early, or was stuck although nothing was lost. The text has the seed.
    """
    outcomes: Counter[str] = Counter()
    for number in range(trees):
        one, kind = seed * 1_000_003 + number, KINDS[number % len(KINDS)]
        try:
            outcomes[Simulation(one, rates, kind).run()] += 1
        except AssertionError as error:
            raise AssertionError(f"{error}: Simulation({one}, {rates}, {kind!r})") from error
    return outcomes


def main() -> None:
    """Simulate trees with each of the rates."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trees", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    options = parser.parse_args()
    print(f"remote trees: seed {options.seed}")
    for rates in (USUAL, ROUGH, LOSSY, FAILING):
        begin = time.monotonic()
        outcomes = run(options.trees // 4, options.seed, rates)
        told = ", ".join(f"{count:,} {name}" for name, count in sorted(outcomes.items()))
        print(f"{rates}: {told}, 0 early, in {time.monotonic() - begin:.1f} s")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
