"""The message that code works for, wherever it runs, and the fields of log lines."""

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

from acker.connectors import Consumer, CurrentMessage, current_message
from acker.testing.connectors import MemoryBroker, MemoryPublisher, MemorySource, run_once


def key():
    found = current_message()
    return found and found.key


def test_it_is_known_in_handlers_blocks_and_threads_of_pools_and_nowhere_else():
    seen = {}
    with ThreadPoolExecutor(1) as pool:

        def handle(message):
            seen["handler"] = current_message()
            message.submit(pool, lambda: seen.update(submit=key())).result()
            pool.submit(lambda: seen.update(other=key())).result()
            with message.child():
                seen["block"] = key()
            seen["after"] = key()

        run_once(handle, [b"a"])
    assert seen.pop("handler") == CurrentMessage("memory", "memory/0", 1, {})
    assert seen == {"submit": "memory/0", "other": None, "block": "memory/0", "after": "memory/0"}
    assert current_message() is None


def test_it_is_known_in_coroutines_and_the_tasks_that_they_make():
    seen = []

    async def part():
        await asyncio.sleep(0)
        seen.append(key())

    async def handle(message):
        message.spawn(part())
        await asyncio.create_task(part())
        seen.append(await asyncio.to_thread(key))

    run_once(handle, [b"a", b"b", b"c"], threads=3)
    assert sorted(seen) == sorted(["memory/0", "memory/1", "memory/2"] * 3)


def test_a_loop_knows_it_within_the_block_of_a_message_only():
    broker, seen = MemoryBroker(), []
    broker.publish([b"a"])
    with Consumer(MemorySource(broker)) as consumer:
        message = next(iter(consumer))
        seen.append(key())
        with message:
            seen.append(key())
        seen.append(key())
    assert seen == [None, "memory/0", None]


def test_a_thread_that_runs_handlers_forgets_each_message():
    seen = []

    def handle(message):
        seen.append(threading.current_thread())
        message.child().ack()

    run_once(handle, [b"a", b"b"])
    assert len(set(seen)) == 1 and current_message() is None


def test_log_lines_about_a_message_have_fields(caplog):
    caplog.set_level(logging.INFO, "acker.connectors")
    broker = MemoryBroker()
    broker.publish([b"fail", b"lose"])
    lost = []

    def handle(message):
        if message.value == b"fail":
            raise LookupError("no sofa is left")
        lost.append(message.child())
        lost.clear()

    options = {"attempts_max": 2, "backoff_secs": 0.0, "dead_letters": MemoryPublisher()}
    Consumer(MemorySource(broker, name="orders"), **options).run(handle, threads=1, until="empty")
    records = [record for record in caplog.records if hasattr(record, "key")]
    fields = {(each.source, each.key, each.attempt) for each in records}
    assert fields == {("orders", f"orders/{number}", attempt) for number in (0, 1) for attempt in (1, 2)}
    assert {each.levelname for each in records} == {"WARNING", "ERROR"}
    for each in records:
        assert ("no sofa is left" if each.key == "orders/0" else "garbage-collected") in each.reason
    told = [each for each in caplog.records if "orders/" in each.getMessage()]
    assert told == records, "a line that names a message has its fields"
