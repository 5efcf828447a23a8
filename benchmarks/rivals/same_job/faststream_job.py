"""FastStream: `python faststream_job.py`."""

import asyncio
import os

from faststream import AckPolicy, FastStream
from faststream.rabbit import Channel, RabbitBroker, RabbitQueue
from faststream.rabbit.prometheus import RabbitPrometheusMiddleware
from order import pack
from prometheus_client import CollectorRegistry, start_http_server

registry = CollectorRegistry()
metrics = RabbitPrometheusMiddleware(registry=registry)
broker = RabbitBroker(os.environ["URL"], middlewares=[metrics], graceful_timeout=30)
app = FastStream(broker)
dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.dead"}


@broker.subscriber(
    RabbitQueue("orders", durable=True, arguments=dead),
    channel=Channel(prefetch_count=8),
    ack_policy=AckPolicy.REJECT_ON_ERROR,
)
async def handle(order: dict):
    for attempt in range(6):
        try:
            async with asyncio.TaskGroup() as group:
                for item in order["items"]:
                    group.create_task(asyncio.to_thread(pack, item))
            return
        except* Exception:
            if attempt == 5:
                raise
            await asyncio.sleep(2**attempt)  # the message waits here, and its worker with it


@app.after_startup
async def declare():
    await broker.declare_queue(RabbitQueue("orders.dead", durable=True))
    start_http_server(int(os.environ["PORT"]), registry=registry)


asyncio.run(app.run())
