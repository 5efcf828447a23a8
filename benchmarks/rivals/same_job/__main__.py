"""The same job in five libraries: its lines of code, and whether it does it.

An order comes from RabbitMQ. Three items of it are packed in threads; the message is acked when all are. A failure is
tried again after 1, 2, 4, 8 and 16 s, or as the library's own back-off has it, and then the order is a dead letter.
SIGTERM lets open orders end; Prometheus has metrics. All queues are classic and durable. The task queues read messages
of their own format only, so these are sent by their own clients.

`python benchmarks/rivals/same_job` counts lines of code: neither blank lines nor comments nor docstrings. With
`URL=amqp://...` it also runs the programs whose library is installed, or those that are named. `--orders 2000` measures
how many orders a second each takes from a full queue instead, one program after the other, in several rounds.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pika

from acker.connectors import Outgoing
from acker.connectors.rabbitmq import RabbitMQPublisher

HERE: Final = Path(__file__).resolve().parent
PATIENCE_SECS: Final = 180.0
GOOD: Final = {"items": ["chair", "table", "lamp"]}
BAD: Final = {"items": ["sofa"]}
ROUNDS: Final = 5
# The senders of the task queues; orders are the arguments.
READ: Final = "import json, sys, asyncio, {job} as job; orders = json.loads(sys.argv[1]) * int(sys.argv[2])\n"
SEND_BY_TASKIQ: Final = """
async def send():
    await job.broker.startup()
    for order in orders:
        await job.handle.kiq(order)
    await job.broker.shutdown()
asyncio.run(send())
"""
# How each is started, how it is sent orders (None: as JSON to the queue), and where its dead letters lie.
JOBS: Final = {
    "acker": ([sys.executable, "acker_job.py"], None, "orders.dead"),
    "faststream": ([sys.executable, "faststream_job.py"], None, "orders.dead"),
    "dramatiq": (
        [sys.executable, "-m", "dramatiq", "dramatiq_job", "--processes", "1"],
        "for order in orders: job.handle.send(order)",
        "orders.XQ",
    ),
    "celery": (
        [sys.executable, "-m", "celery", "-A", "celery_job", "worker", "--pool", "threads", "--concurrency", "8"],
        "for order in orders: job.handle.delay(order)",
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
    """Return whether the libraries of a program are installed."""
    needed = [name, *(["taskiq_aio_pika"] if name == "taskiq" else [])]
    return all(importlib.util.find_spec(each) is not None for each in needed)


def run(name: str, url: str) -> None:
    """Let a program work on an order that can be packed and one that cannot; then stop it.

    Raises
    ------
    AssertionError, TimeoutError
        It does not do the job.
    """
    reset(url)
    with tempfile.TemporaryFile("w+") as told:
        with program(name, url, told) as environment:
            send(name, url, environment, [GOOD, BAD])
            wait_until(f"{name} makes a dead letter", lambda: count(url, JOBS[name][2]) == 1)
            assert metrics(environment), f"{name}: no metrics"
        told.seek(0)
        text = told.read()
    assert set(GOOD["items"]) <= set(text.split()), f"{name} has not packed all items: {text}"


def speed(name: str, url: str, orders: int) -> float:
    """Return how many orders a second a program takes from a queue that is full at its start."""
    reset(url)
    with tempfile.TemporaryFile("w+") as told, tempfile.NamedTemporaryFile() as done:
        with program(name, url, told) as environment:  # makes its queues
            send(name, url, environment, [GOOD])
            wait_until(f"{name} packs an order", lambda: "lamp" in read(told))
        send(name, url, environment, [GOOD], orders)

        def items() -> int:
            return Path(done.name).stat().st_size

        with program(name, url, told, is_awaited=False, DONE=done.name):
            wait_until(f"{name} begins", lambda: items() > 0, 0.001)
            first, begin = items(), time.perf_counter()
            wait_until(f"{name} packs {orders} orders", lambda: items() >= len(GOOD["items"]) * orders, 0.001)
            secs = time.perf_counter() - begin
    return (orders - first / len(GOOD["items"])) / secs


@contextlib.contextmanager
def program(name: str, url: str, told: Any, *, is_awaited: bool = True, **variables: str) -> Iterator[dict[str, str]]:
    """Run a program in the block, which gets its environment; SIGTERM ends it, and it may finish what it has."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    path = os.pathsep.join([str(HERE), *(each for each in sys.path if each)])
    environment = os.environ | {"URL": url, "PORT": port, "dramatiq_prom_port": port, "PYTHONPATH": path} | variables
    process = subprocess.Popen(
        JOBS[name][0], cwd=HERE, env=environment, stdout=told, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        if is_awaited:
            wait_until(f"{name} answers for its metrics", lambda: metrics(environment) is not None)
        yield environment
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_SECS)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the worker processes of task queues


def send(name: str, url: str, environment: dict[str, str], orders: list[Any], times: int = 1) -> None:
    """Send orders, all of them so many times, in the format that a program reads."""
    how = JOBS[name][1]
    if how is not None:
        code = READ.format(job=f"{name}_job") + how
        command = [sys.executable, "-c", code, json.dumps(orders), str(times)]
        ports = {"PORT": "0", "dramatiq_prom_port": "0"}
        subprocess.run(command, cwd=HERE, env=environment | ports, check=True)
        return
    wait_until(f"{name} has its queue", lambda: count(url, "orders") is not None)
    with RabbitMQPublisher(url, routing_key="orders") as publisher:
        errors = publisher.publish([Outgoing(json.dumps(order).encode()) for order in orders * times])
    assert not any(errors), errors


def reset(url: str) -> None:
    """Delete the queues of all programs."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        for queue in ("orders", "orders.dead", "orders.XQ", "orders.DQ", "orders.delay"):
            connection.channel().queue_delete(queue)


def count(url: str, queue: str) -> int | None:
    """Return how many messages wait in a queue; None if there is no such queue."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        try:
            return int(connection.channel().queue_declare(queue, passive=True).method.message_count)
        except pika.exceptions.ChannelClosedByBroker:
            return None


def metrics(environment: dict[str, str]) -> str | None:
    """Return the metrics of a program, if it serves them."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{environment['PORT']}/metrics", timeout=5) as answer:
            return str(answer.read(), "utf-8")
    except OSError:
        return None


def read(told: Any) -> str:
    """Return what a program has printed so far."""
    return os.pread(told.fileno(), 10_000_000, 0).decode()


def wait_until(what: str, condition: Callable[[], bool], pause_secs: float = 0.5) -> None:
    """Wait for a condition, for so long as the slowest back-off needs."""
    end = time.monotonic() + PATIENCE_SECS
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {PATIENCE_SECS:g} s")
        time.sleep(pause_secs)


def measure(names: list[str], url: str, orders: int, rounds: int) -> None:
    """Print how fast each program is, against the first one: all of them in each round, and back in the next one."""
    rates: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names[:: -1 if number % 2 else 1]:
            rates[name].append(speed(name, url, orders))
    for name in names:
        ratios = [own / first for own, first in zip(rates[name], rates[names[0]], strict=True)]
        figures = f"{statistics.median(rates[name]):8,.0f} orders/s, {statistics.median(ratios):.2f} of {names[0]}"
        print(f"{name:12}{figures} ({min(ratios):.2f} to {max(ratios):.2f}, load {os.getloadavg()[0]:.0f})", flush=True)


def main(arguments: list[str]) -> None:
    """Print a line for each program."""
    parser = argparse.ArgumentParser(prog="same_job")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(JOBS))
    parser.add_argument("--orders", type=int, help="measure with so many")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args(arguments)
    names, url = options.names or list(JOBS), os.environ.get("URL")
    if options.orders is not None:
        if url is None:
            parser.error("--orders needs URL=amqp://...")
        measure([name for name in names if is_here(name)], url, options.orders, options.rounds)
        return
    for name in names:
        told = "not run"
        if url is not None and is_here(name):
            run(name, url)
            told = "does the job"
        print(f"{name:12}{lines_of_code(HERE / f'{name}_job.py'):4} lines  {told}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
