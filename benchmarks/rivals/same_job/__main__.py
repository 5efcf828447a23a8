"""The same job in five libraries: its lines of code, and whether it does it.

An order comes from RabbitMQ. Three items of it are packed in threads; the message is acked when all are. A failure is
tried again after 1, 2, 4, 8 and 16 s, and then the order is a dead letter. SIGTERM lets open orders end; Prometheus has
metrics. The task queues read messages of their own format only, so these are sent by their own clients.

`python benchmarks/rivals/same_job` counts lines of code: neither blank lines nor comments nor docstrings. With
`URL=amqp://...` it also runs the programs whose library is installed, or those that are named.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Final

import pika

HERE: Final = Path(__file__).resolve().parent
PATIENCE_SECS: Final = 180.0
GOOD: Final = {"items": ["chair", "table", "lamp"]}
BAD: Final = {"items": ["sofa"]}
SEND_BY_TASKIQ: Final = """
import asyncio, taskiq_job as job
async def send():
    await job.broker.startup()
    await job.handle.kiq({order})
    await job.broker.shutdown()
asyncio.run(send())
"""
# How each is started, how it is sent an order (None: as JSON to the queue), and where its dead letters lie.
JOBS: Final = {
    "acker": ([sys.executable, "acker_job.py"], None, "orders.dead"),
    "faststream": ([sys.executable, "faststream_job.py"], None, "orders.dead"),
    "dramatiq": (
        [sys.executable, "-m", "dramatiq", "dramatiq_job", "--processes", "1"],
        "import dramatiq_job as job; job.handle.send({order})",
        "orders.XQ",
    ),
    "celery": (
        [sys.executable, "-m", "celery", "-A", "celery_job", "worker", "--pool", "threads"],
        "import celery_job as job; job.handle.delay({order})",
        "orders.dead",
    ),
    "taskiq": (
        [sys.executable, "-m", "taskiq", "worker", "taskiq_job:broker", "--workers", "1"],
        SEND_BY_TASKIQ,
        "orders.dead",
    ),
}


def lines_of_code(path: Path) -> int:
    """Return how many lines of a program are neither blank, nor a comment, nor its docstring."""
    tree = ast.parse(path.read_text())
    first = tree.body[0]
    doc = range(first.lineno, (first.end_lineno or 0) + 1) if ast.get_docstring(tree) is not None else range(0)
    lines = enumerate(path.read_text().splitlines(), 1)
    return sum(bool(line.strip()) and not line.strip().startswith("#") and number not in doc for number, line in lines)


def is_here(name: str) -> bool:
    """Return whether a library is installed."""
    return importlib.util.find_spec(name) is not None


def wait_until(what: str, condition) -> None:
    """Wait for a condition, for so long as the slowest back-off needs."""
    end = time.monotonic() + PATIENCE_SECS
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {PATIENCE_SECS:g} s")
        time.sleep(0.5)


def run(name: str, url: str) -> None:
    """Let a program work on an order that can be packed and one that cannot; then stop it.

    Raises
    ------
    AssertionError, TimeoutError
        It does not do the job.
    """
    command, _, _ = JOBS[name]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"URL": url, "PORT": str(port), "dramatiq_prom_port": str(port), "PYTHONPATH": path()}
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        for queue in ("orders", "orders.dead", "orders.XQ", "orders.DQ", "orders.delay", "taskiq"):
            connection.channel().queue_delete(queue)
    with tempfile.TemporaryFile("w+") as told:
        program = subprocess.Popen(
            command, cwd=HERE, env=environment, stdout=told, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            work(name, url, environment)
            program.send_signal(signal.SIGTERM)
            program.wait(PATIENCE_SECS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)  # with the worker processes of task queues
            told.seek(0)
            text = told.read()
            print(text, file=sys.stderr)
    assert set(GOOD["items"]) <= set(text.split()), f"{name} has not packed all items"


def work(name: str, url: str, environment: dict[str, str]) -> None:
    """Send a program that runs both orders, and wait for the dead letter."""
    _, send, dead = JOBS[name]
    port = int(environment["PORT"])
    wait_until(f"{name} answers for its metrics", lambda: metrics(port) is not None)
    for order in (GOOD, BAD):
        if send is None:
            wait_until(f"{name} has its queue", lambda: count(url, "orders") is not None)
            publish(url, json.dumps(order).encode())
        else:
            code = send.replace("{order}", repr(order))
            sender = environment | {"PORT": "0", "dramatiq_prom_port": "0"}
            subprocess.run([sys.executable, "-c", code], cwd=HERE, env=sender, check=True)
    wait_until(f"{name} makes a dead letter", lambda: count(url, dead) == 1)
    assert metrics(port), f"{name}: no metrics"


def publish(url: str, body: bytes) -> None:
    """Put a message into the queue of orders."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "orders", body, mandatory=True)


def count(url: str, queue: str) -> int | None:
    """Return how many messages wait in a queue; None if there is no such queue."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        try:
            return int(connection.channel().queue_declare(queue, passive=True).method.message_count)
        except pika.exceptions.ChannelClosedByBroker:
            return None


def path() -> str:
    """Return the path of modules, as a child process needs it."""
    return os.pathsep.join([str(HERE), *(each for each in sys.path if each)])


def metrics(port: int) -> str | None:
    """Return the metrics of a program, if it serves them."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return answer.read().decode()
    except OSError:
        return None


def main(names: list[str]) -> None:
    """Print a line for each program."""
    url = os.environ.get("URL")
    for name in names or JOBS:
        told = "not run"
        if url is not None and is_here(name):
            run(name, url)
            told = "does the job"
        print(f"{name:12}{lines_of_code(HERE / f'{name}_job.py'):4} lines  {told}")


if __name__ == "__main__":
    main(sys.argv[1:])
