"""A shop on taskiq, for the worker and the tests: the job of the kit, with retries."""

import asyncio
import os

import redis
from taskiq import SimpleRetryMiddleware
from taskiq.exceptions import SendTaskError
from taskiq.kicker import AsyncKicker
from taskiq_redis import RedisStreamBroker

import acker.remote.taskiq
from acker.remote.redis import RedisReplies
from acker.testing.remote import perform

URL = os.environ["ACKER_SHOP_REDIS"]
BROKER = os.environ["ACKER_SHOP_BROKER"]
QUEUE = os.environ["ACKER_SHOP_QUEUE"]

if BROKER == URL:
    broker = RedisStreamBroker(URL, queue_name=QUEUE, consumer_id="0", xread_block=100)
else:
    from taskiq_aio_pika import AioPikaBroker, Exchange, Queue

    broker = AioPikaBroker(
        BROKER,
        exchange=Exchange(name=QUEUE),
        task_queues=[Queue(name=QUEUE)],
        dead_letter_queue=Queue(name=f"{QUEUE}-dead"),
        delay_queue=Queue(name=f"{QUEUE}-delay"),
    )
broker.add_middlewares(SimpleRetryMiddleware())
replies = RedisReplies(URL, prefix=f"{QUEUE}:replies:", socket_timeout=120.0)
acker.remote.taskiq.install(broker, replies)
client = redis.Redis.from_url(URL, socket_timeout=120.0)


@broker.task(task_name="work")
async def work(plan):
    loop = asyncio.get_running_loop()

    def send(plan):
        try:
            asyncio.run_coroutine_threadsafe(work.kiq(plan), loop).result()
        except SendTaskError as error:
            raise error.__cause__ from None  # the kit looks for the reason

    await asyncio.to_thread(perform, plan, send)


def kicker(name="work", **labels):
    """Return what sends a task with labels."""
    return AsyncKicker(name, broker, labels)
