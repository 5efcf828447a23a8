"""RabbitMQ: a classic or quorum queue as a source, and a publisher with confirms. The client is pika."""

from acker.connectors.rabbitmq.publisher import RabbitMQPublisher
from acker.connectors.rabbitmq.source import RabbitMQ, Received

__all__ = ["RabbitMQ", "RabbitMQPublisher", "Received"]
