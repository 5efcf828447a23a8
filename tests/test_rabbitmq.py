"""The page on consumers, on a real RabbitMQ server: its examples, and its consumer where it is tried harder."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import threading
from collections import Counter

import pika
import pytest

from acker import Outcome
from blocks import ROOT, WITH_RABBITMQ, blocks_of, mode_of, pages
from running import is_example, run_blocks

pytestmark = pytest.mark.repository

PAGES = [page for page in pages() if mode_of(page) == WITH_RABBITMQ]
# No wait below is for a time; one that comes to this is a failure.
LONG = 120.0


@pytest.fixture
def path(rabbitmq, monkeypatch):
    """The commands of the server, as on the page."""
    monkeypatch.setenv("PATH", f"{rabbitmq.commands}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture(scope="module")
def names():
    """What the page defines up to its consumer."""
    blocks = [block for block in blocks_of(ROOT / "docs/consumers.md") if is_example(block)]
    (last,) = [place for place, block in enumerate(blocks) if "class Consumer" in block.body]
    found = {"__name__": "docs"}
    run_blocks(blocks[: last + 1], found)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run_and_print_what_the_page_says(rabbitmq, path, page):
    examples = list(filter(is_example, blocks_of(page)))
    ran = run_blocks(examples, {"url": rabbitmq.url, "__name__": "docs"})
    assert ran == len(examples) > 0


def test_there_are_pages():
    assert {"consumers.md"} == {page.name for page in PAGES}


def publish(url, name, bodies):
    """Put messages into a new queue."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_declare(name)
        for body in bodies:
            channel.basic_publish("", name, body)


def taken(url, name):
    """Delete a queue, and return what was left in it."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        left = {body.decode() for body in iter(lambda: channel.basic_get(name, auto_ack=True)[2], None)}
        channel.queue_delete(name)
        return left


def close_all_connections():
    subprocess.run(["rabbitmqctl", "--quiet", "close_all_connections", "a test"], check=True)


def by_tag(consumer_type):
    """Return the consumer as one is tempted to write it: message ids are tags, of whatever channel there is."""

    class ByTag(consumer_type):
        def received(self, channel, method, properties, body):
            self.channel = channel
            with self.trees.tree.track(0, method.delivery_tag) as mk_ids:
                self.deliveries[method.delivery_tag] = channel, method.delivery_tag, threading.Event()
                self.pool.submit(self.do, body.decode(), mk_ids(), self.deliveries[method.delivery_tag][2])

        def settle_delivery(self, message_id, outcome):
            (self.channel.basic_ack if outcome == Outcome.ACKED else self.channel.basic_nack)(message_id)

        def let_go(self):
            pass

    return ByTag


@pytest.mark.parametrize("way", ["own ids", "delivery tags"])
def test_an_outcome_from_before_a_reconnect_acks_no_stranger(rabbitmq, path, names, way):
    """a and b are acked. c is under way when the connection is lost. It ends when d and e came again, which never end.

    The tags of c, d, e were 3, 4, 5; on the next channel they are 1, 2, 3. So the outcome of c, as tag 3, acks e.
    """
    name = f"strangers, {way}"
    publish(rabbitmq.url, name, "abcde")
    begun: Counter[str] = Counter()
    done: list[str] = []
    changed, lost, end = threading.Condition(), threading.Event(), threading.Event()

    def work(item, is_over):
        with changed:
            begun[item] += 1
            first = begun[item] == 1
            changed.notify_all()
        if item == "c" and first:
            assert lost.wait(LONG)
        elif item not in "ab":
            assert end.wait(LONG)
            raise RuntimeError("the program ends before this is done")
        with changed:
            done.append(item)
            changed.notify_all()

    def reached(condition):
        with changed:
            assert changed.wait_for(condition, LONG), (begun, done)

    base = by_tag(names["Consumer"]) if way == "delivery tags" else names["Consumer"]

    class Watched(base):
        settled = 0

        def tell(self, completions):
            super().tell(completions)
            with changed:
                self.settled += len(completions)
                changed.notify_all()

    consumer = Watched(rabbitmq.url, name, work, threads=10, retry_secs=0.05)
    consumer.drain_secs = 0.0
    thread = threading.Thread(target=consumer.run, daemon=True)
    thread.start()
    reached(lambda: set(done) == {"a", "b"} and set(begun) == set("abcde") and consumer.settled == 2)
    close_all_connections()
    reached(lambda: begun["c"] == begun["d"] == begun["e"] == 2)  # they came again, on another channel
    lost.set()
    reached(lambda: done.count("c") == 1 and consumer.settled == 3)
    consumer.stop()
    end.set()  # what was under way fails; its messages are back in the queue when the connection is closed
    thread.join(LONG)
    assert not thread.is_alive()
    left = taken(rabbitmq.url, name)
    assert {"a", "b"} & left == set()
    gone = set("abcde") - left - set(done)
    assert gone == ({"e"} if way == "delivery tags" else set()), "a message that nobody had done was acked"


def test_nothing_is_lost_and_nothing_acked_early_whenever_the_connection_goes(rabbitmq, path, names):
    """Four times the broker closes the connection, or it is cut: a message is acked when all of its parts were done."""
    name, done, acked, early = "losses", set(), set(), []
    changed, gone, fail = threading.Condition(), [threading.Event() for _ in range(4)], random.Random(5)

    def bodies_of(lot):
        return [" ".join(f"{lot}-{number}-{part}" for part in range(4)) for number in range(60)]

    def work(part, is_over):
        lot, number, _ = map(int, part.split("-"))
        if number >= 50:
            assert gone[lot].wait(LONG)  # under way when the connection goes
        if fail.random() < 0.02:
            raise ValueError("one of fifty fails, and comes again")
        done.add(part)

    class Checked(names["Consumer"]):
        def received(self, channel, method, properties, body):
            self.bodies[channel, method.delivery_tag] = body.decode()
            super().received(channel, method, properties, body)

        def settle_delivery(self, message_id, outcome):
            delivery = self.deliveries.get(message_id)
            if delivery is not None and outcome == Outcome.ACKED:
                body = self.bodies[delivery[:2]]
                early.extend([] if set(body.split()) <= done else [body])
                with changed:  # before the ack, which may reach the broker and raise for a connection that is lost then
                    acked.add(body)
                    changed.notify_all()
            super().settle_delivery(message_id, outcome)

    def reached(lot, count):
        with changed:
            assert changed.wait_for(lambda: len(acked & set(bodies_of(lot))) >= count, LONG), (lot, len(acked))

    Checked.bodies = {}
    publish(rabbitmq.url, name, [])
    consumer = Checked(rabbitmq.url, name, work, threads=8, prefetch=20, retry_secs=0.01)
    thread = threading.Thread(target=consumer.run, daemon=True)
    thread.start()
    for lot, event in enumerate(gone):
        publish(rabbitmq.url, name, bodies_of(lot))
        reached(lot, 20)
        if lot % 2:
            close_all_connections()
        else:
            consumer.connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)  # pika has no public way
        event.set()
    for lot in range(len(gone)):
        reached(lot, 60)
    consumer.stop()
    thread.join(LONG)
    assert not thread.is_alive() and early == []
    assert done == {part for lot in range(len(gone)) for body in bodies_of(lot) for part in body.split()}
    taken(rabbitmq.url, name)
