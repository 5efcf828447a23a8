"""The servers of tests and examples: where each comes from, and how it is run. Standard library only."""

from brokers.kafka import Kafka
from brokers.rabbitmq import RabbitMQ
from brokers.redis import Redis
from brokers.server import Server

BY_NAME: dict[str, type[Server]] = {"kafka": Kafka, "rabbitmq": RabbitMQ, "redis": Redis}
