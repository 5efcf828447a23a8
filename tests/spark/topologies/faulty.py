"""A shop whose bolt has a fault until a file appears, and its live page while it runs on Spark."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from acker.observe.run_report import RunReport
from acker.spark.topologies.run import run
from acker.topology import Bolt, ReliableSpout, Spout, Topology
from acker.ui import LivePage
from acker.ui.server import LiveServer

FAULT, GO = "user.fault", "user.go"
ORDERS = 60
BAD = 7


class Orders(ReliableSpout):
    """Emits orders, and finishes when the file is there."""

    outputs = ("n",)
    attempts_max = None
    backoff_secs = 0.2
    backoff_secs_max = 0.2

    def initialize(self, conf, context):
        self.go, self.numbers = Path(conf[GO]), iter(range(ORDERS))

    def next_tuple(self):
        for n in self.numbers:
            self.emit([n], tup_id=f"order-{n}")
            return
        if self.go.exists():
            self.finish()


class Charge(Bolt):
    """Has one of four faults until the file is there."""

    auto_ack = False

    def initialize(self, conf, context):
        self.go, self.fault = Path(conf[GO]), conf[FAULT]

    def process(self, tup):
        is_bad = tup.n % 10 == BAD and not self.go.exists()
        if self.fault == "hung" and tup.n == BAD:
            self.wait(600)
        if self.fault == "slow":
            self.wait(1)
        if self.fault == "failing" and is_bad:
            raise LookupError("no sofa is left")
        if self.fault != "forgotten" or not is_bad:
            self.ack(tup)

    def wait(self, secs):
        written = self.go.with_suffix(f".{os.getpid()}")
        written.write_text(str(os.getpid()))
        written.replace(self.go.with_suffix(".pid"))  # which is there with all of its number
        until = time.monotonic() + secs
        while not self.go.exists() and time.monotonic() < until:
            time.sleep(0.01)


class Shop(Topology):
    """orders -> charge."""

    orders = Orders.spec()
    charge = Charge.spec(inputs=[orders])


class OrderRows(Spout):
    """The same orders as rows of a DataFrame."""

    outputs = ("n",)
    tup_id_column = "n"

    def frame(self, spark, conf):
        return spark.range(ORDERS, numPartitions=1).withColumnRenamed("id", "n")


class ChargeLater(Bolt):
    """Awaits the file with one order, as a coroutine."""

    def initialize(self, conf, context):
        self.go = Path(conf[GO])

    async def process(self, tup):
        while tup.n == BAD and not self.go.exists():
            await asyncio.sleep(0.01)


class RowShop(Topology):
    """orders -> charge, all of it on the workers."""

    orders = OrderRows.spec()
    charge = ChargeLater.spec(inputs=[orders])


class Running:
    """A shop that runs.

    Attributes
    ----------
    page : LiveServer
    go : Path
        The file that ends the fault.
    """

    def __init__(
        self,
        fault: str,
        spark: Any,
        folder: Path,
        pages: queue.SimpleQueue[LiveServer],
        topology: type[Topology],
        conf: Mapping[str, Any],
    ) -> None:
        self.go = folder / f"{fault}.go"
        self._topology = topology
        self._ended: list[RunReport | BaseException] = []
        self._conf = {GO: str(self.go), FAULT: fault, **conf}
        self._thread = threading.Thread(target=self._run, args=(spark,))
        self._thread.start()
        self.page = pages.get(timeout=300)

    def _run(self, spark: Any) -> None:
        try:
            self._ended.append(run(self._topology, self._conf, spark=spark, ui=LivePage(port=0, interval_secs=0.2)))
        except BaseException as error:  # noqa: BLE001  The test raises it.
            self._ended.append(error)

    def end(self) -> RunReport:
        """End the fault, and wait for the end of the run."""
        self.go.touch()
        self._thread.join(300)
        (ended,) = self._ended
        if isinstance(ended, BaseException):
            raise ended
        return ended


class Shops:
    """Runs shops, and ends what a test leaves running."""

    def __init__(self, spark: Any, folder: Path, pages: queue.SimpleQueue[LiveServer]) -> None:
        self._spark, self._folder, self._pages = spark, folder, pages
        self.running: list[Running] = []

    def start(self, fault: str, topology: type[Topology] = Shop, **conf: Any) -> Running:
        """Start a shop with a fault; return once it has a page."""
        folder = self._folder / str(len(self.running))
        folder.mkdir()
        self.running.append(Running(fault, self._spark, folder, self._pages, topology, conf))
        return self.running[-1]


@contextlib.contextmanager
def shops_of(spark: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shops]:
    """Let shops run until the end of a test."""
    pages: queue.SimpleQueue[LiveServer] = queue.SimpleQueue()
    monkeypatch.setattr(LiveServer, "announce", lambda page: pages.put(page))  # noqa: PLW0108  put is no method
    shops = Shops(spark, folder, pages)
    yield shops
    for each in shops.running:
        each.go.touch()
    for each in shops.running:
        each._thread.join(300)
