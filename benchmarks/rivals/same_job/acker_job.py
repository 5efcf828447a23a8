"""acker: `python acker_job.py`."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

from order import pack

from acker.connectors import Consumer
from acker.connectors.rabbitmq import RabbitMQ, RabbitMQPublisher
from acker.local.prometheus import serve

url = os.environ["URL"]
pool = ThreadPoolExecutor(8)


def handle(message):
    for item in message.value["items"]:
        message.submit(pool, pack, item)


consumer = Consumer(
    RabbitMQ(url, "orders", declare={"durable": True}),
    decode=json.loads,
    attempts_max=6,
    dead_letters=RabbitMQPublisher(url, routing_key="orders.dead", declare={"durable": True}),
)
with pool, serve(consumer, port=int(os.environ["PORT"])):
    consumer.run(handle)
