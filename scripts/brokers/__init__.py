"""The servers of tests and examples: where each comes from, and how it is run. Standard library only."""

from brokers.chromium import Chromium
from brokers.hadoop import Hadoop
from brokers.kafka import Kafka
from brokers.nats import NATS
from brokers.postgresql import PostgreSQL
from brokers.rabbitmq import RabbitMQ
from brokers.redis import Redis
from brokers.server import Server
from brokers.sqs import SQS

BY_NAME: dict[str, type[Server]] = {
    "chromium": Chromium,
    "hadoop": Hadoop,
    "kafka": Kafka,
    "nats": NATS,
    "postgresql": PostgreSQL,
    "rabbitmq": RabbitMQ,
    "redis": Redis,
    "sqs": SQS,
}
