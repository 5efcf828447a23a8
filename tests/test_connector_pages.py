"""The first program on a real RabbitMQ server, and the examples of the page on connectors with a broker in memory."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager

import pytest

from acker.testing.connectors import SCENARIOS, MemoryBroker, MemorySource
from blocks import ROOT, WITH_MEMORY, blocks_of, mode_of, pages, spans_of
from running import is_example, run_blocks

pytestmark = pytest.mark.repository

PAGES = [page for page in pages() if mode_of(page) == WITH_MEMORY]
# A whole program with a consumer of RabbitMQ.
PROGRAMS = [
    block for page in pages() for block in blocks_of(page) if block.note == "run by: tests/test_connector_pages.py"
]
# No wait below is for a time; one that comes to this is a failure.
LONG = 60.0
ORDERS = [json.dumps({"items": items}).encode() for items in (["lamp", "lamp", "desk"], ["chair", "sofa"], ["rug"])]


@contextmanager
def stopped_when_all_is_done(broker, names):
    """Stop the consumer of an example as soon as the broker has no message left."""
    is_over = threading.Event()

    def stop():
        broker.wait_until(lambda broker: is_over.is_set() or not broker.left(), LONG)
        if not is_over.is_set() and "consumer" in names:
            names["consumer"].stop()

    watcher = threading.Thread(target=stop, daemon=True)
    watcher.start()
    yield
    with broker.changed:
        is_over.set()
        broker.changed.notify_all()
    watcher.join(LONG)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run_and_print_what_the_page_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "docs"}
    consumed = 0
    for block in filter(is_example, blocks_of(page)):
        broker = MemoryBroker()
        broker.publish(ORDERS)
        names.update(source=MemorySource(broker), broker=broker)
        names.pop("consumer", None)
        with stopped_when_all_is_done(broker, names):
            assert run_blocks([block], names) == 1
        assert not broker.violations, block.where
        if re.search(r"for message in consumer:|consumer\.run(_async)?\(", block.body):
            assert broker.left() == 0, f"{block.where}: {broker.left()} orders are left"
            consumed += 1
    assert consumed >= (5 if page.name == "connectors.md" else 1)


def test_there_are_pages():
    assert {"connectors.md", "letters.md"} == {page.name for page in PAGES}


def test_promises_name_scenarios_of_the_kit():
    names = {scenario.__name__ for scenario in SCENARIOS}
    seen = set()
    for page in ("promises.md", "comparison.md"):
        spans = set(spans_of(ROOT / "docs" / page))
        seen |= spans & names
        assert not {span for span in spans if re.fullmatch(r"[a-z]+(_[a-z]+){4,}", span)} - names, page
    assert len(seen) > 25


def test_the_first_program_stands_once():
    assert [block.page.name for block in PROGRAMS] == ["README.md"]


@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: block.where)
def test_a_program_consumes_from_a_real_server_until_it_is_told_to_stop(rabbitmq, block, tmp_path):
    """Ten lines that a stranger copies: as they stand on the page, but for the address and the name of the queue."""
    import pika

    code = block.body
    queue = f"example at {block.where}"
    assert code.count('"amqp://localhost"') == code.count('queue="orders"') == 1
    program = tmp_path / "program.py"
    program.write_text(code.replace('"amqp://localhost"', repr(rabbitmq.url)).replace('"orders"', repr(queue)))
    parameters = pika.URLParameters(rabbitmq.url)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()  # else a quorum queue may lose what was published just before the connection ends
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
        for order in [*ORDERS, b"no JSON"]:
            channel.basic_publish("", queue, order)
    printed, logged, letters = (tmp_path / name for name in ("printed", "logged", "dead-letters.jsonl"))
    with (
        printed.open("wb") as out,
        logged.open("wb") as err,
        subprocess.Popen([sys.executable, "-u", program], cwd=tmp_path, stdout=out, stderr=err) as process,
    ):
        try:
            deadline = time.monotonic() + LONG
            while printed.read_text().count("\n") < 6 or not (letters.exists() and letters.read_text()):
                assert time.monotonic() < deadline and process.poll() is None, printed.read_text() + logged.read_text()
                time.sleep(0.02)
            with pika.BlockingConnection(parameters) as connection:
                channel = connection.channel()
                process.send_signal(signal.SIGINT)
                process.wait(LONG)
                left = channel.queue_declare(queue, passive=True).method.message_count
                channel.queue_delete(queue)
        finally:
            process.kill()
    # Its threads print at the same time, so the words of two lines may mix.
    words = re.findall("packed|lamp|chair|desk|rug|sofa", printed.read_text())
    assert Counter(words) == Counter({"packed": 6, "lamp": 2, "chair": 1, "desk": 1, "rug": 1, "sofa": 1})
    assert json.loads(letters.read_text())["value"] == "no JSON"
    assert left == 0, f"{left} messages that were done were not acked before the end"
