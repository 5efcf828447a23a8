"""What the import of a connector loads, in a fresh interpreter: no topology, no client of another broker."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES_MAX = 50
CLIENTS = {
    "kafka": "confluent_kafka",
    "nats": "nats",
    "postgresql": "psycopg",
    "rabbitmq": "pika",
    "redis_streams": "redis",
    "sqs": "boto3",
}
OF_TOPOLOGIES = ("acker.topology", "acker.local", "acker.spark", "acker.connectors.topologies")


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a statement loads in a fresh interpreter."""
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    return set(done.stdout.split())


def test_a_consumer_loads_few_modules_and_none_of_topologies():
    loaded = loaded_by("import acker.connectors")
    own = {name for name in loaded if name.partition(".")[0] == "acker"}
    assert "acker.connectors.consumer" in own
    assert not {name for name in own if name.startswith(OF_TOPOLOGIES)}
    assert len(own) <= MODULES_MAX, sorted(own)
    assert not loaded & {*CLIENTS.values(), "asyncio", "pyspark", "prometheus_client"}


# One parameter: a text that is the name of a server would start it.
@pytest.mark.parametrize("connector", CLIENTS.items(), ids=lambda connector: connector[0])
def test_a_broker_loads_its_own_client_and_no_topology(connector):
    module, client = connector
    loaded = loaded_by(f"import acker.connectors.{module}")
    assert loaded & set(CLIENTS.values()) == {client}
    assert not {name for name in loaded if name.startswith(OF_TOPOLOGIES)}


def test_the_page_of_a_consumer_loads_no_topology():
    loaded = loaded_by("import acker.connectors.consumer_view, acker.observe.prometheus")
    assert "acker.observe.headline" in loaded
    assert not {name for name in loaded if name.startswith(OF_TOPOLOGIES)}


@pytest.mark.parametrize("name", ["JournaledSourceSpout", "PublishBolt", "SourceSpout"])
def test_a_spout_or_bolt_loads_topologies_when_it_is_asked_for(name):
    loaded = loaded_by(f"import acker.connectors; assert {name!r} in dir(acker.connectors); acker.connectors.{name}")
    assert "acker.topology.spout" in loaded


def test_an_unknown_name_is_refused():
    import acker.connectors

    with pytest.raises(AttributeError, match=r"module 'acker\.connectors' has no attribute 'Spuot'"):
        acker.connectors.Spuot  # noqa: B018 - the look-up is the test
