"""taskiq: `taskiq worker taskiq_job:broker --workers 1`."""

import asyncio
import json
import os

from aio_pika import Message
from order import pack
from taskiq import Context, SmartRetryMiddleware, TaskiqDepends
from taskiq.middlewares import PrometheusMiddleware
from taskiq_aio_pika import AioPikaBroker, Queue, QueueType

retries = SmartRetryMiddleware(default_retry_count=6, default_delay=1, use_delay_exponent=True)
metrics = PrometheusMiddleware(server_port=int(os.environ["PORT"]))
broker = AioPikaBroker(
    os.environ["URL"],
    task_queues=[Queue(name="orders", type=QueueType.CLASSIC)],
    dead_letter_queue=Queue(name="orders.dead", type=QueueType.CLASSIC),
    delay_queue=Queue(name="orders.delay", type=QueueType.CLASSIC),
).with_middlewares(retries, metrics)


@broker.task(retry_on_error=True)
async def handle(order: dict, context: Context = TaskiqDepends()):  # noqa: B008
    try:
        async with asyncio.TaskGroup() as group:
            for item in order["items"]:
                group.create_task(asyncio.to_thread(pack, item))
    except* Exception:
        if int(context.message.labels.get("_retries", 0)) == 5:
            letter = Message(json.dumps(order).encode())  # context.reject() would ack, and keep nothing
            await broker.write_channel.default_exchange.publish(letter, "orders.dead")
        raise
