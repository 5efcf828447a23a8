"""Benchmarks of trees across processes: what jobs cost their workers when a tree awaits them.

Jobs that do nothing go through Redis to workers: without acker, as a tree, and with Celery as a chord too. Each side
has a worker and a database of its own, which live through the whole case. What counts is the processor time of all
processes of the worker, from the first send to the end of the last job; or else the time that passes.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from acker.remote import tree
from acker.testing.remote.harness import kill_session, processes_of_session
from benchmarks.suite.connectors import server
from benchmarks.suite.measure import Alternation, Case, Goal, Ratio, Result, Scale, expect, per
from benchmarks.suite.queue_jobs import CHORD, PLAIN, QUEUES, TOKENS

JOBS: Final = 1_000
# At full size: each pair takes some seconds a side.
_PAIRS_MAX: Final = 9
_PATIENCE_SECS: Final = 300.0
_LOOK_SECS: Final = 0.02
_SIDES: Final = {"celery": (PLAIN, TOKENS, CHORD), "dramatiq": (PLAIN, TOKENS)}
# The bar, which has to be met, and the goal.
_CELERY: Final = ((TOKENS, PLAIN, 1.25), (TOKENS, PLAIN, 1.15), (TOKENS, CHORD, 1.0))
_DRAMATIQ: Final = ((TOKENS, PLAIN, 1.5), (TOKENS, PLAIN, 1.3))


class Side:
    """The app of one side in this process, and its worker.

    Parameters
    ----------
    queue : {"celery", "dramatiq"}
    side : str
    url : str
        Of a database that is empty.
    """

    def __init__(self, queue: str, side: str, url: str) -> None:
        import redis

        self._queue, self._side = queue, side
        self._client = redis.Redis.from_url(url)
        self._client.flushdb()
        self.jobs: Any = QUEUES[queue](url, side)
        module = "benchmarks.suite.queue_jobs"
        command = {
            "celery": ["celery", "-A", module, "worker", "--concurrency=2", "--loglevel=ERROR"],
            "dramatiq": ["dramatiq", f"{module}:app", "--processes=1", "--threads=4"],
        }[queue]
        environ = {"ACKER_JOBS_URL": url, "ACKER_JOBS_QUEUE": queue, "ACKER_JOBS_SIDE": side}
        self._worker = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=Path(__file__).resolve().parents[2],
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def run(self, count: int) -> int:
        """Send so many jobs, and wait for their end; return how many were sent."""
        if self._side == TOKENS:
            with tree(self.jobs.replies) as jobs:
                self._send(count)
            jobs.wait(_PATIENCE_SECS)
        elif self._side == CHORD:
            from celery import chord

            job, body = self.jobs.job, self.jobs.body
            result = chord([job.si(number) for number in range(count)], body.s())()
            return int(result.get(_PATIENCE_SECS))
        else:
            self._send(count)
            self._wait_until_empty()
        return count

    def _send(self, count: int) -> None:
        send = self.jobs.job.delay if self._queue == "celery" else self.jobs.job.send
        for number in range(count):
            send(number)

    def _wait_until_empty(self) -> None:
        """Wait until no job is left; of Celery for two looks, as a job that is just taken is nowhere for a moment."""
        if self._queue == "dramatiq":
            self.jobs.app.join("default", interval=round(1000 * _LOOK_SECS), timeout=round(1000 * _PATIENCE_SECS))
            return
        looks, end, pause = 0, time.monotonic() + _PATIENCE_SECS, threading.Event()
        while looks < 2:
            looks = 0 if self._client.llen("celery") or self._client.hlen("unacked") else looks + 1
            expect("the worker ends", self._worker.poll(), None)
            expect("the jobs end in time", time.monotonic() < end, True)
            pause.wait(_LOOK_SECS)

    def processor_ns(self) -> int:
        """Return the processor time of all threads of the worker and of its processes."""
        total = 0
        for process in processes_of_session(self._worker.pid):
            for path in Path(f"/proc/{process}/task").glob("*/schedstat"):
                with contextlib.suppress(OSError):  # the thread has ended
                    total += int(path.read_text().split()[0])
        return total

    def close(self) -> None:
        """Kill the worker, and disconnect."""
        kill_session(self._worker)
        self.jobs.close()
        self._client.flushdb()
        self._client.close()


@contextlib.contextmanager
def _sides(queue: str) -> Iterator[dict[str, Side]]:
    with contextlib.ExitStack() as stack:
        server_url = stack.enter_context(server("redis")).rpartition("/")[0]
        sides = {}
        for number, name in enumerate(_SIDES[queue], 1):
            sides[name] = Side(queue, name, f"{server_url}/{number}")
            stack.callback(sides[name].close)
        yield sides


def compare(scale: Scale, *, queue: str, of_worker: bool, ratios: tuple[tuple[str, str, float], ...]) -> Result:
    """Time the jobs of a queue with each side in turns."""
    count, pairs = scale.size(JOBS, 20), min(scale.pairs, _PAIRS_MAX)
    took_ns = 0

    def timed(side: Side, count: int) -> int:
        nonlocal took_ns
        before_ns, started_ns = side.processor_ns(), time.perf_counter_ns()
        done = side.run(count)
        took_ns = side.processor_ns() - before_ns if of_worker else time.perf_counter_ns() - started_ns
        return done

    def clock(work: Callable[[], object]) -> int:
        work()
        return max(took_ns, 1)

    def check(side: str, count: int, done: int) -> None:
        expect(f"jobs done with {side}", done, count)

    with _sides(queue) as sides:
        # The first pair waits for the workers too.
        taken = Alternation({name: partial(timed, side) for name, side in sides.items()}, check, clock).run(
            [count] * (pairs + 1)
        )
    compared = [Ratio(of, to, scale.goal(Goal(at_most=most))) for of, to, most in ratios]
    unit = "µs of the worker's processor time a job" if of_worker else "µs a job"
    parameters = {"jobs": count, "queue": queue, "processes": 2 if queue == "celery" else 1}
    return Result(unit, per(taken, 1_000 * count), compared, parameters, {"jobs": count})


def _why_not() -> str | None:
    return None if Path("/proc/self/schedstat").exists() else "it takes the processor time of workers from /proc"


CASES: Final = [
    Case(
        "remote/celery",
        "What does a job of Celery cost its worker when a tree awaits it, against a plain one and one of a chord?",
        partial(compare, queue="celery", of_worker=True, ratios=_CELERY),
        ("celery", "redis"),
        _why_not,
    ),
    Case(
        "remote/celery/time",
        "How long does a tree of jobs take, against a chord with the same jobs?",
        partial(compare, queue="celery", of_worker=False, ratios=_CELERY[2:]),
        ("celery", "redis"),
        _why_not,
    ),
    Case(
        "remote/dramatiq",
        "What does a message of Dramatiq cost its worker when a tree awaits it?",
        partial(compare, queue="dramatiq", of_worker=True, ratios=_DRAMATIQ),
        ("dramatiq", "redis"),
        _why_not,
    ),
]
