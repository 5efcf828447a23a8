"""Which input an emit belongs to, where threads may begin with the context of the coroutine that started them."""

import asyncio
import contextvars
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from acker.errors import TupleStateError
from acker.local import inputs, run
from acker.local.executors import asynchronous
from acker.testing import CapturingBolt, FeederSpout
from acker.topology import Bolt
from tests.local.test_other_threads import topology_of


class InheritingThread(threading.Thread):
    """Begins with the context of whoever starts it, as all threads of Python 3.14 do without a GIL."""

    def start(self):
        self._context = contextvars.copy_context()
        super().start()

    if sys.version_info < (3, 14):

        def run(self):
            self._context.run(super().run)


@pytest.fixture(params=[False, True], ids=["usual threads", "threads inherit"], autouse=True)
def _threads(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(threading, "Thread", InheritingThread)
        for module in (inputs, asynchronous):
            monkeypatch.setattr(module, "THREADS_INHERIT", True)


class Offloads(Bolt):
    """Lets threads emit that the first tuple has started, and notes who was refused."""

    outputs = ["way", "number"]
    refused: list = []

    def initialize(self, conf, context):
        self.pool = ThreadPoolExecutor(1)

    def close(self):
        self.pool.shutdown()

    def emit_without_anchors(self, way, tup):
        try:
            self.emit([way, tup.number])
        except TupleStateError:
            self.refused.append((way, tup.number))

    async def process(self, tup):
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def back():
            self.emit_without_anchors("callback of a thread", tup)
            loop.call_soon(done.set)

        async def task():
            self.emit_without_anchors("task of a thread", tup)

        await loop.run_in_executor(self.pool, self.emit_without_anchors, "pool", tup)
        await loop.run_in_executor(None, self.emit_without_anchors, "pool of the loop", tup)
        await loop.run_in_executor(self.pool, loop.call_soon_threadsafe, back)
        await done.wait()
        await asyncio.wrap_future(await loop.run_in_executor(self.pool, asyncio.run_coroutine_threadsafe, task(), loop))
        await asyncio.to_thread(self.emit_without_anchors, "to_thread", tup)
        loop.call_soon(self.emit_without_anchors, "callback", tup)
        await asyncio.create_task(self.in_a_task(tup))
        if tup.number == 2:
            context = contextvars.copy_context()
            await loop.run_in_executor(self.pool, context.run, self.emit_without_anchors, "context", tup)

    async def in_a_task(self, tup):
        self.emit_without_anchors("task", tup)


def test_only_a_context_that_was_handed_over_names_the_input(monkeypatch):
    monkeypatch.setattr(Offloads, "refused", [])
    feeder, sink = FeederSpout.with_outputs("number"), CapturingBolt.fresh()
    for number in (1, 2):
        feeder.feed([number], number)
    feeder.end()
    run(topology_of(Offloads, feeder, sink), {"topology.async.max.concurrency": 1}, until="drained")
    unknown = ("callback of a thread", "pool", "pool of the loop", "task of a thread")
    assert sorted(Offloads.refused) == [(way, number) for way in unknown for number in (1, 2)]
    known = [(way, number) for way in ("callback", "task", "to_thread") for number in (1, 2)]
    assert sorted(sink.tuples()) == sorted([*known, ("context", 2)])
    assert sorted(feeder.tracker.acked) == [1, 2]
