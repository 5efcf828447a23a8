"""The parts that the shops of all task queues share: a module with the jobs, replies on Redis, and kills of workers."""

import contextlib
import importlib
import os
import sys
import threading
import uuid

import pytest

from acker import JobsError
from acker.connectors import Consumer
from acker.remote import tree
from acker.remote.runs import INTEGRATED
from acker.testing.connectors import MemoryBroker, MemorySource
from acker.testing.remote import QueueHarness


class RedisShop(QueueHarness):
    """A shop whose module finds its servers and its queue in the environment, as its workers do.

    Attributes
    ----------
    module : str
        The module of the shop, with a client of Redis.
    queue_name : str
    """

    module: str
    skips = {"ACKER_SHOP_SKIPS": "1"}

    def __init__(self, folder, redis, broker=None):
        super().__init__(folder)
        self._redis = redis
        os.environ["ACKER_SHOP_REDIS"] = redis.url
        os.environ["ACKER_SHOP_BROKER"] = (broker or redis).url
        os.environ["ACKER_SHOP_QUEUE"] = self.queue_name = f"shop-{uuid.uuid4().hex[:8]}"
        self.environ = {name: value for name, value in os.environ.items() if name.startswith("ACKER_SHOP_")}
        sys.modules.pop(self.module, None)
        self.shop = importlib.import_module(self.module)
        self.client = self.shop.client

    @property
    def replies(self):
        return self.shop.replies

    @contextlib.contextmanager
    def replies_away(self):
        self._redis.pause()
        try:
            yield
        finally:
            self._redis.resume()

    def forget_replies(self):
        self.client.delete(*self.client.keys(f"{self.queue_name}:replies:*"))

    def close(self):
        super().close()
        self.client.close()
        INTEGRATED.clear()  # else consumers of other tests would warn

    def failure(self, send, *args):
        """Send a job as a tree, and return why the tree fails."""
        with tree(self.replies) as jobs:
            send(*args)
        with pytest.raises(JobsError) as caught:
            jobs.wait(self.patience_secs)
        return str(caught.value)


@contextlib.contextmanager
def opened(kind, folder, *servers):
    """A shop without a worker."""
    shop = kind(folder, *servers)
    try:
        yield shop
    finally:
        shop.close()


def lose_workers(shop, kills, pack, done):
    """Kill all processes of a worker again and again, and check each ack against what has been done.

    Parameters
    ----------
    shop : RedisShop
    kills : int
    pack : callable
        Sends the job of an order, whose two jobs do "post <order> 0" and "post <order> 1".
    done : callable
        Returns what was done, as often as it was.
    """
    broker, early, count = MemoryBroker(), [], 6 * kills
    # A kill may lose jobs, and their messages come again after so long.
    timeout_secs = 15 if kills == 1 else 40
    broker.publish(b"%d" % number for number in range(count))

    def check(order):
        missing = {f"post {order} {number}" for number in range(2)} - set(done())
        early.extend([(order, missing)] if missing else [])

    def handle(message):
        order = message.value.decode()
        pack(order)
        message.on_done(check, order)

    consumer = Consumer(MemorySource(broker), replies=shop.replies, timeout_secs=timeout_secs, backoff_secs=0.01)
    owner = threading.Thread(target=consumer.run, args=(handle,), kwargs={"threads": 2, "until": "empty"})
    owner.start()
    for number in range(kills):
        shop.start_worker()
        shop.wait_until(lambda more=3 * number + 1: len(done()) > more)
        shop.kill_worker()
    shop.start_worker()
    owner.join(20 * timeout_secs)
    assert not owner.is_alive(), shop.log
    shop.kill_worker()
    assert early == []
    assert sorted(broker.acked) == sorted({b"%d" % number for number in range(count)})
