"""The example of docs/kafka.md, on a real server."""

from __future__ import annotations

import uuid

from tests.connectors.kafka_kit import Cluster
from tests.connectors.running_page import programs_of, run_consumer


def test_the_consumer_of_the_page(kafka):
    (block,) = programs_of("kafka.md", "tests/connectors/test_kafka_page.py")
    cluster = Cluster(kafka.url)
    topic, dead, group = cluster.topic(partitions=2), cluster.topic(), f"packers-{uuid.uuid4().hex[:6]}"
    cluster.write(topic, [b"lamp desk"])
    cluster.write(topic, [b"rug"], partition=1)

    def is_done():
        return [cluster.committed(group, topic, partition) for partition in range(2)] == [1, 1]

    replacements = {
        "localhost:9092": kafka.url,
        '"packers"': f'"{group}"',
        '"orders"': f'"{topic}"',
        '"orders-dead"': f'"{dead}"',
    }
    printed = run_consumer(block, replacements, is_done)
    assert sorted(printed) == ["packed desk", "packed lamp", "packed rug"]
    assert cluster.ends(dead) == (0, 0)
