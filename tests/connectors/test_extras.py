"""Each connector, where its client library is not installed, names the extra that brings it."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A module of acker.connectors, the client that it imports, and the extra.
CONNECTORS = [
    ("kafka", "confluent_kafka", "kafka"),
    ("nats", "nats", "nats"),
    ("postgresql", "psycopg", "postgresql"),
    ("rabbitmq", "pika", "rabbitmq"),
    ("redis_streams", "redis", "redis"),
    ("sqs", "boto3", "sqs"),
]


# One parameter: a text that is the name of a server would start it.
@pytest.mark.parametrize("connector", CONNECTORS, ids=lambda connector: connector[0])
def test_a_missing_client_names_the_extra(connector):
    module, client, extra = connector
    code = f"import sys; sys.modules[{client!r}] = None; import acker.connectors.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert f"pip install 'acker[{extra}]'" in done.stderr
