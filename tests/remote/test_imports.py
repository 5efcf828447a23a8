"""What the imports of acker.remote load, and what they say where a client library is not installed."""

import subprocess
import sys

import pytest


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)


def test_jobs_need_no_client_and_a_consumer_without_replies_loads_no_jobs():
    loaded = set(run("import sys, acker.remote; print(*sys.modules)").stdout.split())
    assert "acker.remote.trees" in loaded
    assert not loaded & {"redis", "celery", "dramatiq", "rq", "asyncio", "acker.connectors"}
    assert "acker.remote" not in run("import sys, acker.connectors; print(*sys.modules)").stdout.split()


# One parameter: a text that is the name of a server would start it.
@pytest.mark.parametrize(
    "client", [("redis",), ("celery",), ("dramatiq",), ("rq",), ("httpx",), ("nats",)], ids=lambda client: client[0]
)
def test_a_missing_client_names_the_extra(client):
    (name,) = client
    code = f"import sys; sys.modules[{name!r}] = None; import acker.remote.{name}"
    assert f"pip install 'acker[{name}]'" in run(code).stderr
