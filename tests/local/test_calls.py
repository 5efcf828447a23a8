"""The calls of a topology that hang outside of `process`, and in coroutines: each is named with its line."""

from __future__ import annotations

import asyncio
import re
import threading

import pytest

from acker.local import LocalRuntime
from acker.local.page.live_view import RuntimeView
from acker.topology import Bolt, ReliableSpout, Topology, Window, WindowedBolt
from acker.ui import LivePage

# A call hangs after half of the timeout, whatever its bolt does usually.
CONF = {"topology.message.timeout.secs": 0.4, "topology.drain.secs": 0, "topology.tick.tuple.freq.secs": 0.05}


class Gate:
    """Where calls hang until the test is over."""

    method = ""
    opened = threading.Event()

    @classmethod
    def enter(cls, method: str) -> None:
        if cls.method == method:
            cls.opened.wait()


class Lines(ReliableSpout):
    outputs = ["line"]
    count = 0

    def initialize(self, conf, context):
        Gate.enter("initialize")

    def next_tuple(self):
        if self.count:
            Gate.enter("next_tuple")
        self.count += 1
        self.emit([self.count], tup_id=self.count)


class Pack(Bolt):
    auto_ack = False

    def process(self, tup):
        Gate.enter("process")

    def process_tick(self, tup):
        Gate.enter("process_tick")


class Wait(Bolt):
    auto_ack = False

    async def process(self, tup):
        while not Gate.opened.is_set():
            await asyncio.sleep(0.01)


class Gather(WindowedBolt):
    window = Window.tumbling(count=1)

    def process_window(self, window):
        Gate.enter("process_window")


@pytest.mark.parametrize(
    ("bolt", "method", "who", "what"),
    [
        (Pack, "process", "pack[2]", "with a tuple of lines"),
        (Pack, "process_tick", "pack[2]", "of process_tick()"),
        (Pack, "next_tuple", "lines[1]", "of next_tuple()"),
        (Pack, "initialize", "lines[1]", "of initialize()"),
        (Wait, "coroutine", "pack[2]", "with a tuple of lines"),
        (Gather, "process_window", "pack[2]", "with a tuple of lines"),
    ],
)
def test_a_call_that_hangs_is_named_with_its_line_wherever_it_is(monkeypatch, bolt, method, who, what) -> None:
    monkeypatch.setattr(Gate, "method", method)
    Gate.opened.clear()
    lines = Lines.spec()
    topology = type("Shop", (Topology,), {"lines": lines, "pack": bolt.spec(name="pack", inputs=[lines])})
    runtime = LocalRuntime(topology, CONF, ui=LivePage(port=0))
    source = RuntimeView(runtime, runtime._parts.failures, None, values=False)
    thread = threading.Thread(target=runtime.run)
    thread.start()
    where = "Wait.process" if bolt is Wait else "Gate.enter"
    # Further calls hang when trees have timed out.
    told = re.compile(
        rf"{re.escape(who)}( hangs: it)? has been in one call {re.escape(what)}( \(message \d+\))?"
        rf" at test_calls.py:\d+ in {where}"
    )
    try:
        while told.search(source.view()["headline"]["text"]) is None:
            pass
    finally:
        Gate.opened.set()
        runtime.stop()
        thread.join()
