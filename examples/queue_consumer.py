"""A queue consumer that acks a message only when all of its parts are done.

Run it: python examples/queue_consumer.py

Each order has several items, which a thread pool packs in any order. The consumer acks an order when its last item is
packed. It puts an order back when an item fails or never finishes. A `queue.Queue` stands for the broker.
"""

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

from acker import Acker, Completions, Outcome, TupleTree

TIMEOUT_SECS = 30.0

broker: queue.Queue[str] = queue.Queue()
for order in ("lamp lamp desk", "chair sofa", "rug"):
    broker.put(order)

inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()  # messages for the acker, from all threads
numbers = count(1)  # message ids of our own: no two deliveries share one
open_orders: dict[int, str] = {}
sold_out = {"sofa"}  # the first attempt finds no sofa, the next one does


class Trees(threading.local):
    """Gives each thread its own TupleTree."""

    def __init__(self) -> None:
        self.tree = TupleTree(inbox.put)


def pack(item: str, ids: list[str]) -> None:
    """Pack one item in a thread of the pool. The end of the block sends OK, an exception sends FAIL."""
    with trees.tree.anchor(ids):
        if item in sold_out:
            sold_out.remove(item)
            raise LookupError(f"no {item} is left")


def settle(done: Completions) -> None:
    """Ack the orders that are done and put the others back."""
    for number, outcome in zip(done.message_id.tolist(), done.outcome.tolist(), strict=True):
        text = open_orders.pop(number)
        print(f"order {number} ({text}): {Outcome(outcome).name}")
        if outcome != Outcome.ACKED:
            broker.put(text)  # with RabbitMQ: basic_nack here, basic_ack otherwise


acker, trees = Acker(), Trees()
rotated = time.monotonic()
with ThreadPoolExecutor(4) as pool:
    while open_orders or not broker.empty():
        while not broker.empty():
            number = next(numbers)
            open_orders[number] = broker.get()
            with trees.tree.track(task_id=0, message_id=number) as mk_ids:
                for item in open_orders[number].split():
                    pool.submit(pack, item, mk_ids())
        try:
            messages = [inbox.get(timeout=1.0)]
            settle(acker.ingest(*zip(*messages, strict=True)))  # rows to columns
        except queue.Empty:
            pass
        if time.monotonic() - rotated > TIMEOUT_SECS / 2:  # three buckets: timed out after 30 to 45 s
            rotated = time.monotonic()
            settle(acker.rotate())
