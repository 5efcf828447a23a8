"""Kafka: topics read by a consumer group, a publisher, a sink of streams on Spark. The client is confluent-kafka."""

# Before the modules below, which import it too.
try:
    import confluent_kafka as _client  # noqa: F401
except ImportError as missing:
    raise ImportError("acker.connectors.kafka needs confluent-kafka: pip install 'acker[kafka]'") from missing

from acker.connectors.kafka.assignments import KafkaStats
from acker.connectors.kafka.publisher import KafkaPublisher
from acker.connectors.kafka.sink import KafkaSink
from acker.connectors.kafka.source import Kafka

__all__ = ["Kafka", "KafkaPublisher", "KafkaSink", "KafkaStats"]
