"""Faults of consumers and of topologies in this process: the headline of the page alone names each, in a browser."""

from __future__ import annotations

import contextlib
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from acker.connectors import Consumer
from acker.local import LocalRuntime
from acker.testing.connectors import MemoryBroker, MemorySource
from acker.topology import Bolt, ReliableSpout, Topology
from acker.ui import LivePage

expect.set_options(timeout=120_000)
PAGE = LivePage(port=0, interval_secs=0.1)


class Fault:
    """What user code does with each message, until the test is over."""

    kind = ""
    over = threading.Event()
    kept: list[object] = []

    @classmethod
    def charge(cls, message: object) -> None:
        if cls.kind == "hung":
            cls.over.wait()
        if cls.kind == "slow":
            cls.over.wait(0.05)
        if cls.kind == "failing":
            raise LookupError("no sofa is left")
        if cls.kind == "forgotten":
            cls.kept.append(message)


class Lines(ReliableSpout):
    outputs = ["line"]
    count = 0

    def next_tuple(self):
        if not Fault.over.is_set():
            self.count += 1
            self.emit([self.count], tup_id=self.count)


class Pay(Bolt):
    auto_ack = False

    def process(self, tup):
        Fault.charge(tup)
        if Fault.kind != "forgotten":
            self.ack(tup)


class Shop(Topology):
    lines = Lines.spec()
    pay = Pay.spec(inputs=[lines])


@contextlib.contextmanager
def local(kind):
    # Hung and forgotten are told after half of the timeout.
    timeout_secs = 4 if kind in ("hung", "forgotten") else 60
    conf = {"topology.message.timeout.secs": timeout_secs, "topology.drain.secs": 0, "topology.max.spout.pending": 8}
    with LocalRuntime(Shop, {**conf, "topology.stats.sample.rate": 1.0}, ui=PAGE) as runtime:
        try:
            yield runtime.page
        finally:
            Fault.over.set()


@contextlib.contextmanager
def consumer(kind):
    broker = MemoryBroker()
    broker.publish([b"order"] * 1_000)
    timeout_secs = 4 if kind in ("hung", "forgotten") else 60

    def work(consumer):
        for message in consumer:
            if kind == "forgotten":
                Fault.charge(message)
            else:
                message.submit(pool, Fault.charge, message)

    with ThreadPoolExecutor(2, "packer") as pool:
        with Consumer(MemorySource(broker), timeout_secs=timeout_secs, drain_secs=0, open_max=20, ui=PAGE) as consumer:
            loop = threading.Thread(target=work, args=[consumer], name="loop")
            loop.start()
            try:
                yield consumer.page
            finally:
                Fault.over.set()
        loop.join()


@pytest.fixture(autouse=True)
def fault():
    Fault.over.clear()
    yield Fault
    Fault.kept.clear()


SLOW = pytest.mark.slow
LINE = r"test_browser_faults\.py:\d+ in Fault\.charge"


@pytest.mark.parametrize(
    ("run", "kind", "text"),
    [
        (local, "hung", rf"pay\[2\] hangs: it has been in one call with a tuple of lines at {LINE} for"),
        pytest.param(local, "slow", r"At its limit: \d of 8 trees are pending; .pay. is the slowest, busy", marks=SLOW),
        (local, "failing", rf"Failing: .*: in pay: LookupError: no sofa is left, {LINE}"),
        pytest.param(
            local, "forgotten", r"are stuck; the oldest has been at .pay. for .*, which neither acked", marks=SLOW
        ),
        pytest.param(consumer, "hung", rf"packer_\d has been in one call with memory/\d+ at {LINE} for", marks=SLOW),
        (consumer, "slow", r"At its limit: .*all 2 threads of the pool are busy; \d+ parts wait"),
        pytest.param(consumer, "failing", rf"Failing: .*: LookupError: no sofa is left, {LINE}", marks=SLOW),
        (consumer, "forgotten", r"20 messages are stuck; the oldest has been at"),
    ],
)
def test_the_headline_names_the_fault(visit, fault, run, kind, text) -> None:
    fault.kind = kind
    with run(kind) as page:
        shown = visit(page.url)
        expect(shown.locator("#headline")).to_have_text(re.compile(text))


def test_one_click_shows_the_stack_of_a_call_that_runs_long(visit, fault) -> None:
    fault.kind = "hung"
    with local("hung") as page:
        shown = visit(page.url)
        call = shown.locator("#calls details")
        expect(call.locator("summary")).to_have_text(re.compile(rf"pay\[2\] with a tuple of lines, for .*, at {LINE}"))
        expect(call.locator("pre")).to_be_hidden()
        call.locator("summary").press("Enter")
        expect(call.locator("pre")).to_have_text(
            re.compile(r"in Pay\.process\n.*in Fault\.charge\n.*in Event\.wait", re.DOTALL)
        )
        assert Axe().run(shown).response["violations"] == []
