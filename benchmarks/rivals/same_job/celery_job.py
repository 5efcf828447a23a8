"""Celery: `celery -A celery_job worker --pool threads`."""

import os
from concurrent.futures import ThreadPoolExecutor

from celery import Celery, signals
from kombu import Queue
from order import pack
from prometheus_client import Counter, start_http_server

dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.dead"}
app = Celery(broker=os.environ["URL"])
app.conf.task_queues = [Queue("orders", queue_arguments=dead)]
app.conf.task_default_queue = "orders"
pool = ThreadPoolExecutor(8)
ends = Counter("tasks", "Tasks by their end", ["end"])


@app.task(
    acks_late=True,
    acks_on_failure=False,
    autoretry_for=(Exception,),
    max_retries=5,
    retry_backoff=True,
    retry_jitter=False,
)
def handle(order):
    list(pool.map(pack, order["items"]))


@signals.worker_ready.connect
def begin(**_):
    with app.connection_for_write() as connection:
        Queue("orders.dead")(connection.default_channel).declare()
    start_http_server(int(os.environ["PORT"]))


@signals.task_postrun.connect
def count(state=None, **_):
    ends.labels(state).inc()
