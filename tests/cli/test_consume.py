"""`acker consume`: which consumer and handler it takes, how it ends, and its exit codes."""

import os
import re
import signal
import subprocess
import sys

import pytest

MODULE = """
import threading
from concurrent.futures import ThreadPoolExecutor

from acker import SourceError
from acker.connectors import Consumer
from acker.testing.connectors import MemoryBroker, MemorySource

broker = MemoryBroker()
broker.publish([b"lamp", b"desk"])
consumer = Consumer(MemorySource(broker), drain_secs=60)

def handle(message):
    print(message.value.decode(), flush=True)

async def handle_async(message):
    print("async", message.value.decode(), flush=True)

def hang(message):
    print("begun\\n", end="", flush=True)  # in one piece: two threads begin
    while consumer.stats().state == "running":
        pass

pool, hung = ThreadPoolExecutor(1, "packer"), threading.Event()
quick = Consumer(MemorySource(broker), timeout_secs=0.2, backoff_secs=0.01)

def wait_for_ever():
    hung.set()
    threading.Event().wait()

def hang_in_pool(message):
    if not hung.is_set():  # else it has come again, after its timeout
        message.submit(pool, wait_for_ever)

class NoQueue(MemorySource):
    def open(self, events, limit):
        raise SourceError("no such queue")

broken = Consumer(NoQueue(broker))
"""


@pytest.fixture
def consume(tmp_path):
    (tmp_path / "orders.py").write_text(MODULE)
    processes = []

    def begin(*words):
        command = [sys.executable, "-m", "acker", "consume", *words]
        pipe = subprocess.PIPE
        processes.append(subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, env=os.environ))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["orders:consumer", "--threads", "1"], ["lamp", "desk"]),
        (["orders.py:consumer", "--handler", "handle_async", "--tasks", "1"], ["async lamp", "async desk"]),
    ],
)
def test_it_gives_each_message_to_the_handler_until_the_broker_is_empty(consume, words, printed):
    process = consume(*words, "--until", "empty")
    out, err = process.communicate()
    assert (out.splitlines(), process.returncode) == (printed, 0), err
    assert "empty, so this stops" in err


def test_a_signal_ends_it_with_exit_code_0(consume):
    process = consume("orders:consumer", "--handler", "hang", "--ui", "0")
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    assert process.returncode == 0 and "live page of memory: http://127.0.0.1:" in err, err


def test_a_call_that_hangs_in_a_pool_does_not_keep_the_process(consume):
    process = consume("orders:quick", "--handler", "hang_in_pool", "--until", "empty")
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert "1 calls still run in pools" in err
    assert re.search(r"ends without \d+ threads that have not returned: .*packer_0", err), err


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["orders:broken"], 1, "no such queue"),
        (["orders:nothing"], 2, "its consumers are orders:consumer, orders:quick, orders:broken"),
        (["orders:consumer", "--handler", "pack"], 2, "has no function pack"),
        (["orders:consumer", "--tasks", "3"], 2, "--tasks: use --threads"),
        (["orders:consumer", "--handler", "handle_async", "--threads", "3"], 2, "use --tasks"),
        (["orders"], 2, "write MODULE:CONSUMER"),
        (["nowhere:consumer"], 2, "there is no module nowhere"),
    ],
)
def test_what_cannot_run_says_why(consume, words, code, text):
    process = consume(*words)
    _, err = process.communicate()
    assert process.returncode == code and text in err, err
