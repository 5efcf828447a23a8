"""Dramatiq: `dramatiq dramatiq_job --processes 1`; its metrics are at the port `dramatiq_prom_port`."""

import os
from concurrent.futures import ThreadPoolExecutor

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.middleware.prometheus import Prometheus
from order import pack

broker = RabbitmqBroker(url=os.environ["URL"])
broker.add_middleware(Prometheus())
dramatiq.set_broker(broker)
pool = ThreadPoolExecutor(8)


@dramatiq.actor(queue_name="orders", max_retries=5, min_backoff=1000)
def handle(order):
    list(pool.map(pack, order["items"]))
