"""A shop with one of four faults, run in one of three ways, and its live page: python -m tests.ui.shop local hung.

Without names both are drawn by lot and not told, for whoever wants to try whether the page tells them.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from acker.connectors import Consumer
from acker.local import LocalRuntime
from acker.testing.connectors import MemoryBroker, MemorySource
from acker.topology import Bolt, ReliableSpout, Topology
from acker.ui import LivePage
from acker.ui.server import LiveServer

KINDS = ("hung", "slow", "failing", "forgotten")
PAGE = LivePage(port=0, interval_secs=0.1)


class Fault:
    """What goes wrong until it is over: in each call if it is slow, else with one order of ten."""

    kind = ""
    over = threading.Event()
    kept: list[object] = []

    @classmethod
    def begin(cls, kind: str) -> None:
        cls.over.clear()
        cls.kept.clear()
        cls.kind = kind


def charge(order: int, work: object) -> bool:
    """Charge an order; return whether the work for it may be acked."""
    is_bad = order % 10 == 7
    if Fault.kind == "hung" and is_bad:
        Fault.over.wait()
    if Fault.kind == "failing" and is_bad:
        raise LookupError("no sofa is left")
    if Fault.kind == "forgotten" and is_bad:
        Fault.kept.append(work)
        return False
    Fault.over.wait(0.05 if Fault.kind == "slow" else 0.002)
    return True


class Orders(ReliableSpout):
    outputs = ["order"]
    count = 0

    def next_tuple(self):
        if not Fault.over.is_set():
            self.count += 1
            self.emit([self.count], tup_id=f"order-{self.count}")


class Pay(Bolt):
    auto_ack = False

    def process(self, tup):
        if charge(tup.order, tup):
            self.ack(tup)


class Shop(Topology):
    orders = Orders.spec()
    pay = Pay.spec(inputs=[orders])


@contextlib.contextmanager
def local(kind: str, timeout_secs: int = 30) -> Iterator[LiveServer]:
    """Run the shop as a topology in this process."""
    Fault.begin(kind)
    conf = {"topology.message.timeout.secs": timeout_secs, "topology.drain.secs": 0, "topology.max.spout.pending": 8}
    with LocalRuntime(Shop, {**conf, "topology.stats.sample.rate": 1.0}, ui=PAGE) as runtime:
        try:
            yield runtime.page
        finally:
            Fault.over.set()


@contextlib.contextmanager
def consumer(kind: str, timeout_secs: int = 30) -> Iterator[LiveServer]:
    """Run the shop as a consumer of messages, whose calls run in a pool of threads."""
    Fault.begin(kind)
    broker = MemoryBroker()
    broker.publish([b"%d" % order for order in range(100_000)])

    def work(consumer):
        for message in consumer:
            if kind == "forgotten":
                if charge(int(message.value), message):
                    message.ack()
            else:
                message.submit(pool, charge, int(message.value), message)

    with ThreadPoolExecutor(2, "packer") as pool:
        with Consumer(MemorySource(broker), timeout_secs=timeout_secs, drain_secs=0, open_max=20, ui=PAGE) as consumer:
            loop = threading.Thread(target=work, args=[consumer], name="loop")
            loop.start()
            try:
                yield consumer.page
            finally:
                Fault.over.set()
        loop.join()


@contextlib.contextmanager
def spark(kind: str) -> Iterator[LiveServer]:
    """Run the shop of the tests as a topology on Spark."""
    from pyspark.sql import SparkSession

    from tests.spark.topologies.faulty import shops_of

    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
        shops_of(session, Path(folder), patch) as shops,
    ):
        yield shops.start(kind).page


WAYS = {"consumer": consumer, "local": local, "spark": spark}


def main() -> None:
    """Run the shop until Ctrl-C."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("way", nargs="?", choices=WAYS, default=random.choice(list(WAYS)))
    parser.add_argument("kind", nargs="?", choices=KINDS, default=random.choice(KINDS))
    asked = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt), WAYS[asked.way](asked.kind) as page:
        print(page.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
