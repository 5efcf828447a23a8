"""The recipes for services: replicas in Kubernetes, workers of a server, alerts; against what really runs."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from acker.connectors import Consumer
from acker.local.prometheus import serve
from acker.testing.connectors import MemoryBroker, MemorySource
from tests.examples.test_examples import LONG, ROOT, program, reserved_port, wait_for_health

yaml: Any = importlib.import_module("yaml")  # which has no types
EXAMPLES = ROOT / "examples"
ORDERS = 40


def deployment() -> Any:
    return yaml.safe_load((EXAMPLES / "kubernetes.yaml").read_text())["spec"]


@contextmanager
def started(*commands: list[str], **environment: str) -> Iterator[list[subprocess.Popen[str]]]:
    pipe, env = subprocess.PIPE, {**os.environ, **environment}
    processes = [
        subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env, start_new_session=True)
        for command in commands
    ]
    try:
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def end(process: subprocess.Popen[str]) -> str:
    """Send SIGTERM, as Kubernetes and servers do; return what the process has printed."""
    process.send_signal(signal.SIGTERM)
    printed, said = process.communicate(timeout=LONG)
    # uvicorn ends as the signal says, when all is done.
    assert process.returncode in (0, -signal.SIGTERM) and "orders were packed" in printed, said
    return printed


def packed(printed: str) -> int:
    return sum(map(int, re.findall(r"(\d+) orders were packed", printed)))


@pytest.fixture
def orders(redis: Any) -> Iterator[Any]:
    """A client of Redis, with orders that wait."""
    import redis as redis_py

    with redis_py.Redis.from_url(redis.url) as client:
        client.delete("orders")
        for _ in range(ORDERS):
            client.xadd("orders", {"value": '["lamp", "desk"]'})
        yield client
        client.delete("orders")


def left(client: Any) -> int:
    """Return how many orders are not acked."""
    groups = client.xinfo_groups("orders")
    return ORDERS if not groups else groups[0]["pending"] + (groups[0]["lag"] or 0)


def wait_until_packed(client: Any) -> None:
    deadline = time.monotonic() + LONG
    while left(client):
        assert time.monotonic() < deadline, left(client)
        time.sleep(0.05)


def publish_until_packed_by(client: Any, consumers: int) -> int:
    """Publish orders until so many consumers have had one, and all are packed; return how many there were."""
    while sum(group["consumers"] for group in client.xinfo_groups("orders")) < consumers:
        client.xadd("orders", {"value": '["lamp"]'})
        wait_until_packed(client)
    wait_until_packed(client)
    return int(client.xlen("orders"))


def test_the_grace_period_of_kubernetes_is_longer_than_the_drain() -> None:
    pod = deployment()["template"]["spec"]
    (container,) = pod["containers"]
    drain_secs = float(re.findall(r"drain_secs=(\d+)", (EXAMPLES / "web_app.py").read_text())[0])
    assert pod["terminationGracePeriodSeconds"] >= drain_secs + 10
    python, script, url, port, host = container["command"]
    assert (python, (EXAMPLES / script).is_file(), url[:8], host) == ("python", True, "redis://", "0.0.0.0")
    probe = container["livenessProbe"]["httpGet"]
    assert str(probe["port"]) == port and container["ports"] == [{"containerPort": int(port)}]
    paths = {route.path for route in runpy.run_path(program("web_app.py"))["app"]("redis://localhost").routes}
    assert probe["path"] in paths


@pytest.mark.slow
def test_replicas_share_the_queue_and_a_rollout_packs_each_order_once(redis: Any, orders: Any) -> None:
    spec = deployment()
    path = spec["template"]["spec"]["containers"][0]["livenessProbe"]["httpGet"]["path"]
    printed = []
    for is_last in (False, True):
        with ExitStack() as stack:
            ports = [stack.enter_context(reserved_port()) for _ in range(spec["replicas"])]
            commands = [[sys.executable, program("web_app.py"), redis.url, str(port)] for port in ports]
            processes = stack.enter_context(started(*commands))
            for process, port in zip(processes, ports, strict=True):
                wait_for_health(process, port, path)
            if is_last:
                wait_until_packed(orders)
            printed += [end(process) for process in processes]
    assert sum(map(packed, printed)) == ORDERS and left(orders) == 0


UVICORN = ["uvicorn", "--factory", "web_app:from_environment", "--port", "PORT", "--app-dir", str(EXAMPLES)]
# More than the web application's `drain_secs`, so that gunicorn kills no worker whose messages are open.
GUNICORN = ["gunicorn", "web_app:from_environment()", "--bind", "127.0.0.1:PORT", "--chdir", str(EXAMPLES)]
GUNICORN += ["--worker-class", "uvicorn_worker.UvicornWorker", "--graceful-timeout", "30"]


@pytest.mark.slow
@pytest.mark.parametrize("server", [UVICORN, GUNICORN], ids=lambda words: words[0])
def test_workers_of_a_server_have_a_consumer_each_and_end_with_their_open_orders(
    redis: Any, orders: Any, server: list[str]
) -> None:
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        command = [sys.executable, "-m", *(word.replace("PORT", str(port)) for word in server)]
        command += ["--workers", "2", "--log-level", "warning"]
        (master,) = stack.enter_context(started(command, REDIS_URL=redis.url))
        wait_for_health(master, port, "/healthz")
        published = publish_until_packed_by(orders, 2)
        master.send_signal(signal.SIGTERM)
        printed, said = master.communicate(timeout=LONG)
    assert packed(printed) == published and len(re.findall("orders were packed", printed)) == 2, said


def test_alerts_name_metrics_of_a_consumer() -> None:
    rules = EXAMPLES / "alerts.yml"
    expressions = [rule["expr"] for group in yaml.safe_load(rules.read_text())["groups"] for rule in group["rules"]]
    broker = MemoryBroker()
    broker.publish([b"lamp"])
    with Consumer(MemorySource(broker)) as consumer, serve(consumer, port=0) as server, next(iter(consumer)):
        answer = urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=LONG)
        figures = answer.read().decode()
        answer.close()
    told = set(re.findall(r"^(\w+)[{ ]", figures, re.MULTILINE))
    names = set(re.findall(r'[{,]name="(\w+)"', figures))
    for expression in expressions:
        assert set(re.findall(r"acker_\w+", expression)) <= told, expression
        for listed in re.findall(r'name=~?"([\w|]+)"', expression):
            assert set(listed.split("|")) <= names, expression
    if (promtool := shutil.which("promtool")) is not None:
        subprocess.run([promtool, "check", "rules", rules], check=True, capture_output=True)
