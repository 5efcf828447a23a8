"""The consumers that are killed: the owner of the trees, and the one that follows.

    python -m tests.torture.job_kills.consumers owner|follower

SIGTERM lets it end in good order.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from acker.connectors import Consumer, Delivery, Message, Source
from tests.torture.job_kills import shop
from tests.torture.job_kills.truth import Truth, new_name

# Of Redis: long enough for a renewal on a machine that is busy.
LEASE_SECS: Final = 4.0
# Of an attempt that waits for its timeout.
_WAITS_SECS: Final = 0.8 * shop.TIMEOUT_SECS


def source_of(url: str, queue: str) -> Source:
    """Return a source of a queue."""
    if shop.IS_REDIS:
        from acker.connectors.redis_streams import RedisStreams

        return RedisStreams(url, stream=queue, group="kills", start="0", lease_secs=LEASE_SECS)
    from acker.connectors.rabbitmq import RabbitMQ

    return RabbitMQ(url, queue, declare="quorum")


class Acks:
    """Compares what is to be acked with what really was done."""

    def __init__(self) -> None:
        self._truth = Truth(shop.FOLDER)
        self._lock = threading.Lock()

    def done(self, number: int, root: str) -> None:
        """Take note that all of an attempt is said to be done."""
        with self._lock:
            self._truth.read()
            if not self._truth.is_complete(root):
                shop.notes.broken(f"message {number}: on_done of {root} ran early")

    def acked(self, deliveries: Sequence[Delivery]) -> None:
        """Take note of acks that the broker is about to get."""
        with self._lock:
            self._truth.read()
            for number in (int(delivery.value) for delivery in deliveries):
                if not self._truth.is_done(number):
                    shop.notes.broken(f"message {number} was acked early")


def watched(source: Source, acks: Acks) -> Source:
    """Let a source tell of each ack before its broker knows of it."""
    send = source.ack

    def ack(deliveries: Sequence[Delivery]) -> None:
        acks.acked(deliveries)
        send(deliveries)

    source.ack = ack  # type: ignore[method-assign]
    return source


def own() -> None:
    """Consume orders."""
    acks = Acks()
    source = watched(source_of(shop.BROKER, f"{shop.QUEUE}-orders"), acks)
    options = {"timeout_secs": shop.TIMEOUT_SECS, "open_max": 20, "backoff_secs": 0.05, "backoff_secs_max": 1.0}
    consumer = Consumer(source, replies=shop.replies, drain_secs=20.0, **options)  # type: ignore[call-overload]

    def handle(message: Message[bytes]) -> None:
        number, root = int(message.value), new_name()
        shop.notes.begun(number, root)
        shop.split.delay(root)
        message.on_done(acks.done, number, root)
        stats = consumer.stats()
        counts = {"timed out": stats.timed_out, "failed": stats.failed, "redelivered": stats.redelivered}
        Path(shop.FOLDER, f"counts-{os.getpid()}").write_text(json.dumps(counts))

    threading.Thread(target=note_waiting, args=(consumer,), daemon=True).start()
    consumer.run(handle, threads=2)


def note_waiting(consumer: Consumer[bytes]) -> None:
    """Note, once each, the attempts that are about to time out, and the job that each waits for."""
    noted, pause = set(), threading.Event()
    while not pause.wait(1.0):
        for message in consumer.oldest(100):
            if message.age_secs > _WAITS_SECS and (name := (message.key, message.attempt)) not in noted:
                noted.add(name)
                with Path(shop.FOLDER, f"waits-{os.getpid()}").open("a", encoding="utf-8") as file:
                    file.write(f"{message.key}: {', '.join(map(str, message.jobs)) or 'no job'}\n")


def follow() -> None:
    """Consume mails."""

    def handle(message: Message[bytes]) -> None:
        shop.notes.executed(message.value.decode(), [])

    Consumer(source_of(shop.BROKER, f"{shop.QUEUE}-mails"), follow=shop.replies, drain_secs=20.0).run(handle, threads=2)


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("pika").setLevel(logging.CRITICAL)
    {"owner": own, "follower": follow}[sys.argv[1]]()
