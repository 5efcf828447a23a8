"""Every program in examples/ runs by itself and prints what its page says it shows."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest

from acker.connectors import Outgoing
from acker.connectors.rabbitmq import RabbitMQPublisher

ROOT = Path(__file__).resolve().parents[2]
LONG = 60.0  # no wait is for a time; one that comes to this is a failure
PROGRAMS = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
LINES_MAX, WORD_COUNT_LINES_MAX = 80, 160
WITH_A_COMMAND_LINE = {"wordcount.py"}  # tested in test_wordcount.py


def run(folder: Path, *command: str) -> str:
    """Return what a program prints; its warnings are errors unless it starts Spark."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def program(name: str) -> str:
    return str(ROOT / "examples" / name)


@contextmanager
def reserved_port() -> Iterator[int]:
    """Give a port of 127.0.0.1 on which a program can listen, and that the system gives to no other one."""
    with socket.socket() as held:  # which does not listen
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def wait_for_health(process: subprocess.Popen[str], port: int, path: str) -> Any:
    """Wait until a probe of Kubernetes would be content; return what it is told."""
    deadline = time.monotonic() + LONG
    while True:
        assert process.poll() is None and time.monotonic() < deadline
        try:
            with closing(urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LONG)) as answer:
                assert 200 <= answer.status < 400
                return json.load(answer)
        except urllib.error.HTTPError as not_yet:
            not_yet.close()
        except urllib.error.URLError:
            pass  # it does not listen yet
        time.sleep(0.05)


def test_consumer_acks_what_is_sent_and_gives_one_order_up(redis, tmp_path: Path) -> None:
    letters = tmp_path / "dead-letters.jsonl"
    command = [sys.executable, "-W", "error", program("consumer.py"), redis.url]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + LONG
        while not (letters.exists() and letters.read_text()):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)  # it ends when the other orders are done
        printed, said = process.communicate(timeout=LONG)
    assert process.returncode == 0, said
    *sent, last = printed.splitlines()
    assert set(sent) == {f"sent parcel with a {item}" for item in ("lamp", "desk", "chair", "rug")}
    assert last == "2 orders were acked, 1 was given up"
    letter = json.loads(letters.read_text())
    assert letter["value"] == '["chair", "sofa"]' and "no sofa is left" in letter["headers"]["acker-reason"]


def test_web_app_tells_its_health_and_ends_with_its_open_orders(redis, tmp_path: Path) -> None:
    import redis as redis_py

    with reserved_port() as port, redis_py.Redis.from_url(redis.url) as client:
        client.delete("orders")
        command = [sys.executable, program("web_app.py"), redis.url, str(port)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as process:
            try:
                client.xadd("orders", {"value": '["lamp", "desk"]'})
                assert process.stdout.readline() == "packed lamp\n"
                told = wait_for_health(process, port, "/healthz")  # the consumer begins before the server listens
                assert told == {"ok": True, "state": "running", "text": "all is well"}
                process.send_signal(signal.SIGTERM)  # uvicorn's; the desk is packed nevertheless
                # Not by `communicate`, which misses what the first line's read took along.
                assert process.stdout.read() == "packed desk\n1 orders were packed\n", process.stderr.read()
                assert client.xpending("orders", "packers")["pending"] == 0
            finally:
                process.kill()
        client.delete("orders")


def test_queue_consumer_acks_each_order_once(tmp_path: Path) -> None:
    printed = run(tmp_path, "-W", "error", program("queue_consumer.py"))
    assert sorted(printed.splitlines()) == [
        "order 1 (lamp lamp desk): ACKED",
        "order 2 (chair sofa): FAILED",
        "order 3 (rug): ACKED",
        "order 4 (chair sofa): ACKED",
    ]


def test_topology_counts_words_and_gives_one_line_up(tmp_path: Path) -> None:
    # Its threads print at the same time, so two texts may come before the ends of their lines.
    printed = run(tmp_path, "-W", "error", program("topology.py"))
    assert printed.endswith("drained: 3 of 4 lines were acked\n")
    assert "line 3 was given up: ValueError: '4' is no word" in printed
    assert all(count in printed for count in ("the: 3", "acker: 2", "storm: 1"))


def test_offsets_commits_the_end_of_the_log_and_never_goes_back(tmp_path: Path) -> None:
    printed = run(tmp_path, "-W", "error", program("offsets.py")).splitlines()
    assert printed[-1] == "at the end: {0: 5, 1: 5}"
    for partition in (0, 1):
        commits = [int(found) for found in re.findall(rf"\b{partition}: (\d+)", "\n".join(printed[:-1]))]
        assert commits == sorted(set(commits)) and commits[-1] == 5


def test_test_topology_passes() -> None:
    printed = run(ROOT, "-m", "pytest", "-q", program("test_topology.py"))
    assert "12 passed" in printed


@pytest.fixture
def orders_queues(rabbitmq, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], list[Any]]]:
    """Let the program find the server; return a function that takes all messages out of a queue."""
    monkeypatch.setenv("AMQP_URL", rabbitmq.url)
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        channel = connection.channel()
        for name in ("orders", "orders.dead", "parcels"):
            channel.queue_delete(name)  # another test may have left one with other options
            channel.queue_declare(name, durable=True)

        def taken(name: str) -> list[Any]:
            bodies = iter(lambda: channel.basic_get(name, auto_ack=True)[2], None)
            return [json.loads(body) if body.startswith(b"{") else body for body in bodies]

        yield taken
        for name in ("orders", "orders.dead", "parcels"):
            channel.queue_delete(name)


def test_orders_are_acked_when_their_parcels_are_confirmed(orders_queues, tmp_path: Path) -> None:
    printed = run(tmp_path, "-W", "error", program("orders.py"))
    assert printed == "published: 3 messages\n2 orders were acked\n"
    parcels = Counter((parcel["order"], parcel["item"]) for parcel in orders_queues("parcels"))
    # The first attempt of the second order published a chair before it found no sofa.
    assert parcels == {(1, "lamp"): 2, (1, "desk"): 1, (2, "chair"): 2, (2, "sofa"): 1}
    assert orders_queues("orders.dead") == [b"no JSON"]
    assert orders_queues("orders") == []


@pytest.mark.soak
def test_orders_survive_kills_of_the_topology(orders_queues, rabbitmq, tmp_path: Path) -> None:
    """Killed as soon as the first parcel of each lot is there, which is in the middle of the others."""
    items, log = ("chair", "desk"), tmp_path / "told"
    found: set[tuple[int, str]] = set()

    def start() -> subprocess.Popen[bytes]:
        with log.open("ab") as stream:
            command = [sys.executable, "-m", "acker", "run", "examples/orders.py:Orders"]
            return subprocess.Popen(command, cwd=ROOT, stdout=stream, stderr=stream)

    def look() -> int:
        found.update((parcel["order"], parcel["item"]) for parcel in orders_queues("parcels"))
        return len(found)

    def wait_for(process: subprocess.Popen[bytes], count: int) -> None:
        deadline = time.monotonic() + 120
        while look() < count:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()

    for lot in range(3):
        lines = [json.dumps({"order": order, "items": items}) for order in range(lot * 1000, (lot + 1) * 1000)]
        before = look()
        with RabbitMQPublisher(rabbitmq.url, routing_key="orders") as publisher:
            assert not any(publisher.publish([Outgoing(line.encode()) for line in lines]))
        process = start()
        wait_for(process, before + 1)
        if lot < 2:
            process.kill()
            process.wait()
    wait_for(process, 3000 * len(items))
    process.terminate()
    assert process.wait() == 0, log.read_text()
    assert found == {(order, item) for order in range(3000) for item in items}
    assert orders_queues("orders") == orders_queues("orders.dead") == []


@pytest.mark.slow
@pytest.mark.spark
def test_orders_run_on_spark(orders_queues, rabbitmq, tmp_path: Path) -> None:
    bodies = [
        b'{"order": 1, "items": ["lamp", "lamp", "desk"]}',
        b"no JSON",
        b'{"order": 2, "items": ["chair", "sofa"]}',
    ]
    with RabbitMQPublisher(rabbitmq.url, routing_key="orders") as publisher:
        assert publisher.publish([Outgoing(body) for body in bodies]) == [None] * 3
    options = ["--on", "spark", "--master", "local[2]", "--checkpoint", str(tmp_path / "checkpoint")]
    parcels: set[tuple[int, str]] = set()
    given_up: list[Any] = []
    with (tmp_path / "told").open("wb") as log:
        command = [sys.executable, "-m", "acker", "run", "examples/orders.py:Orders", *options]
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    deadline = time.monotonic() + 4 * LONG
    while len(parcels) < 3 or len(given_up) < 2:
        parcels.update((parcel["order"], parcel["item"]) for parcel in orders_queues("parcels"))
        given_up += orders_queues("orders.dead")
        assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "told").read_text()
    process.terminate()
    assert process.wait(2 * LONG) == 0, (tmp_path / "told").read_text()
    assert parcels == {(1, "lamp"), (1, "desk"), (2, "chair")}
    # What Pack keeps in an attribute ends with its micro-batch, so no attempt finds a sofa.
    assert given_up == [b"no JSON", {"order": 2, "items": ["chair", "sofa"]}]
    assert "process() changes self.sold_out" in (tmp_path / "told").read_text()
    assert orders_queues("orders") == []


@pytest.mark.soak
@pytest.mark.spark
def test_spark_batch_counts_only_orders_that_are_done(tmp_path: Path) -> None:
    printed = run(tmp_path, program("spark_batch.py"))
    assert re.findall(r"order (\d): (\w+)", printed) == [("1", "ACKED"), ("2", "FAILED"), ("3", "ACKED")]
    assert "failed in pack: LookupError: no sofa is left" in printed
    assert re.findall(r"\|parcel with a (\w+) *\|(\d)", printed) == [("desk", "1"), ("lamp", "2"), ("rug", "1")]


@pytest.mark.slow
@pytest.mark.spark
def test_spark_stream_sends_failed_orders_again_and_gives_one_up(tmp_path: Path) -> None:
    printed = run(tmp_path, program("spark_stream.py"))
    outcomes = re.findall(r"order (\d): (\w+)", printed)
    once = [("1", "ACKED"), ("2", "ACKED"), ("2", "FAILED"), ("3", "ACKED")]
    assert sorted(outcomes) == [*once, *3 * [("4", "FAILED")]]
    assert outcomes.index(("2", "FAILED")) < outcomes.index(("2", "ACKED"))
    assert "given up: order 4 after 3 attempts" in printed


def test_every_program_is_short_is_run_here_and_is_linked_from_a_page() -> None:
    assert len(PROGRAMS) == 10
    tests = Path(__file__).read_text(encoding="utf-8")
    pages = "".join(path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    for name in PROGRAMS:
        text = (ROOT / "examples" / name).read_text(encoding="utf-8")
        assert len(text.splitlines()) <= (WORD_COUNT_LINES_MAX if name in WITH_A_COMMAND_LINE else LINES_MAX), name
        assert re.search(rf"^Run it: python .*examples/{name}", text, re.MULTILINE), (
            f"{name} does not say how to run it"
        )
        assert name in WITH_A_COMMAND_LINE or f'program("{name}")' in tests, name
        assert f"examples/{name})" in pages, f"{name}: no page links to it"


def test_each_part_of_the_word_count_is_short() -> None:
    for path in (ROOT / "examples/make_run").glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= WORD_COUNT_LINES_MAX, path
