"""Orders from a queue of RabbitMQ, each acked when RabbitMQ has confirmed all parcels that were made of it.

Start a server: python scripts/broker.py rabbitmq --port 5672
Run it: python examples/orders.py

That puts three messages into the queue `orders`. `acker run examples/orders.py:Orders` waits for more until Ctrl-C,
and with `--on spark --checkpoint DIR` it does so on Spark.

Kill it at any time, and start it again: no order is lost. An order that was not finished comes again, so some of its
parcels may be published twice. The queue `orders.dead` gets what no attempt can finish.
"""

import json
import os
from typing import Any

from acker.connectors import Outgoing, PublishBolt, SourceSpout
from acker.connectors.rabbitmq import RabbitMQ, RabbitMQPublisher
from acker.local import run
from acker.topology import Bolt, Topology, Tuple

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672/%2F")
DURABLE = {"durable": True}
ORDERS = [b'{"order": 1, "items": ["lamp", "lamp", "desk"]}', b"no JSON", b'{"order": 2, "items": ["chair", "sofa"]}']


def to_queue(name: str) -> RabbitMQPublisher:
    return RabbitMQPublisher(URL, routing_key=name, declare=DURABLE)


class Pack(Bolt):
    outputs = ["value"]

    def initialize(self, conf: Any, context: Any) -> None:
        # The first attempt finds no sofa, the next one does; on Spark none does, as attributes last for a micro-batch.
        self.sold_out = {"sofa"}

    def process(self, tup: Tuple) -> None:
        for item in tup.value["items"]:
            if item in self.sold_out:
                self.sold_out.remove(item)
                raise LookupError(f"no {item} is left")  # fails the tuple, so the order comes again
            self.emit([{"order": tup.value["order"], "item": item}])  # anchored to tup, which is acked at the end


class Orders(Topology):
    orders = SourceSpout.spec(
        source=lambda: RabbitMQ(URL, "orders", declare=DURABLE),
        decode=json.loads,
        attempts_max=3,
        backoff_secs=0.1,
        dead_letters=lambda: to_queue("orders.dead"),
    )
    pack = Pack.spec(inputs=[orders])
    parcels = PublishBolt.spec(inputs=[pack], publisher=lambda: to_queue("parcels"))  # acks when RabbitMQ has confirmed


if __name__ == "__main__":
    with to_queue("orders") as publisher:
        print(f"published: {publisher.publish([Outgoing(order) for order in ORDERS]).count(None)} messages")
    report = run(Orders, until="2")
    print(f"{report.stats.totals.acked} orders were acked")
