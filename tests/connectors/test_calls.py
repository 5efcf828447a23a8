"""The calls that run for a consumer's messages: where they stand, and those whose messages are over."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from acker.connectors import Consumer, calls
from acker.observe.metric_names import metric_points
from acker.testing.connectors import MemoryBroker, MemoryPublisher, MemorySource
from acker.ui import LivePage
from tests.ui.fakes import fresh

PAGE = LivePage(port=0, interval_secs=0.05)
# Longer than any look at the page: after a failure, the pool has to end.
LONG = 120.0


def consumer_of(**options):
    broker = MemoryBroker()
    broker.publish([b"one"])
    return Consumer(MemorySource(broker), **{"backoff_secs": 60, "drain_secs": 0.0, "ui": PAGE, **options})


class Hung:
    """A call that hangs until it is let go."""

    def __init__(self):
        self.begun, self.ending = threading.Event(), threading.Event()

    def charge(self):
        self.begun.set()
        self.ending.wait(LONG)

    def begin(self, consumer, pool):
        """Charge for the message; if that times out before a thread of the pool begins, for its next attempt."""
        for message in consumer:
            call = message.submit(pool, self.charge)
            while not (self.begun.wait(0.01) or call.done()):
                pass
            if self.begun.is_set():
                return

    async def begin_stubbornly(self, consumer):
        """Charge for the message in a coroutine, as `begin`; return its task."""
        async for message in consumer.aiter():
            task = message.spawn(self.charge_stubbornly())
            await asyncio.sleep(0)
            if self.begun.is_set():
                return task
        raise AssertionError("it has stopped")

    async def charge_stubbornly(self):
        """Go on although it is cancelled."""
        self.begun.set()
        while not self.ending.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue


def test_an_open_message_is_held_by_the_call_that_runs_for_it_at_its_line():
    hung = Hung()
    with ThreadPoolExecutor(2, "packer") as pool, consumer_of(timeout_secs=300) as consumer:
        next(iter(consumer)).submit(pool, hung.charge)
        hung.begun.wait()
        # Until the call is noted, the thread that has taken the message holds it.
        (row,) = fresh(consumer.page, lambda view: "packer_0" in str(view["open_trees"]["rows"]))["open_trees"]["rows"]
        assert (consumer.stats().calls_running, consumer.stats().calls_over) == (1, 0)
        hung.ending.set()
    (holder,) = row["holders"]
    assert holder["component"] == "packer_0" and holder["how"] == "process"
    assert holder["line"].startswith("test_calls.py:") and holder["line"].endswith("in Hung.charge")


def test_a_call_whose_message_timed_out_counts_as_long_as_it_runs():
    hung = Hung()
    with ThreadPoolExecutor(1, "packer") as pool, consumer_of(timeout_secs=0.1, backoff_secs=0) as consumer:
        hung.begin(consumer, pool)
        view = fresh(
            consumer.page, lambda view: view["totals"]["timed_out"] and "that timed out" in view["headline"]["text"]
        )
        stats = consumer.stats()
        hung.ending.set()
        fresh(consumer.page, lambda view: view["open_trees"]["over"] == 0)
    assert view["open_trees"]["rows"] == [] and view["open_trees"]["over"] == 1
    assert view["open_trees"]["over_calls"][0].startswith("packer_0 with memory/0, which timed out, for ")
    assert view["headline"]["tone"] == "bad"
    text = view["headline"]["text"]
    assert text.startswith("packer_0 hangs: it has been in one call with memory/0 at test_calls.py:"), text
    assert text.endswith(". 1 of 1 threads is busy, 1 with a message that timed out."), text
    assert (stats.calls_running, stats.calls_over) == (1, 1)
    assert [value for _, value in metric_points(stats)["acker.calls.over"]] == [1]


async def charge_in_coroutine(consumer, hung):
    async for message in consumer.aiter():
        message.spawn(charge_until_cancelled(hung))
        await asyncio.sleep(0)


async def charge_until_cancelled(hung):
    while not hung.ending.is_set():
        await asyncio.sleep(0.01)


def work_in(way, hung, consumer):
    """Let calls hang, in one way, for each attempt at a message."""
    if way == "coroutine":
        asyncio.run(charge_in_coroutine(consumer, hung))
    elif way == "loop":
        for message in consumer:
            with message:
                hung.charge()
    else:
        consumer.run(lambda _: hung.charge(), threads=1)


def test_a_message_that_times_out_names_its_own_call_whatever_others_run(monkeypatch):
    monkeypatch.setattr(calls, "_NAMED_MAX", 1)
    hung, broker = Hung(), MemoryBroker()
    broker.publish([b"one", b"two"])
    with Consumer(MemorySource(broker), drain_secs=0.0) as consumer, ThreadPoolExecutor(2) as pool:
        try:
            trees = []
            for message in consumer:
                message.submit(pool, hung.charge)
                assert hung.begun.wait(LONG)
                hung.begun.clear()
                trees.append(message._tree)
                if len(trees) == 2:
                    break
            ran_longer, late = trees
            told = consumer._calls.told([late])
            assert told.keys() == {late.attempt.message_id} and "was in one call at test_calls.py:" in str(told)
            assert consumer._calls.told([ran_longer]).keys() == {ran_longer.attempt.message_id}
        finally:
            hung.ending.set()


@pytest.mark.parametrize(
    ("way", "who"), [("handler", "acker memory handler 0"), ("loop", "worker"), ("coroutine", r"Task-\d+")]
)
def test_a_message_that_timed_out_names_the_call_that_ran_and_stays_one_headline(way, who, caplog):
    """Also while the next attempt has not run for long."""
    hung = Hung()
    consumer = consumer_of(timeout_secs=1.0, backoff_secs=0, name="memory")
    worker = threading.Thread(target=work_in, args=(way, hung, consumer), name="worker")
    worker.start()
    called = re.compile(rf"timed out: {who} was in one call at test_calls.py:\d+ in \S*charge\S* for .* \(attempt 1\)")
    deadline = time.monotonic() + LONG
    try:
        while not any(map(called.search, caplog.messages)):
            assert time.monotonic() < deadline, caplog.messages
            time.sleep(0.01)
        if way == "coroutine":  # which is cancelled; other calls go on, and hang
            told = " hung: it was in one call with memory/0 at test_calls.py:"
            view = fresh(
                consumer.page, lambda view: re.search(rf"^{who}{told}.*, until that timed out.", text_of(view))
            )
            assert view["failures"]["rows"][0]["why"].startswith("Task-")
    finally:
        hung.ending.set()
        consumer.stop()
        worker.join()
        consumer.close()


def text_of(view):
    return view["headline"]["text"]


@pytest.mark.parametrize("trace", [False, True])
def test_a_failure_of_on_done_names_its_line_and_that_of_a_call_its_function(trace, caplog):
    def fail():
        raise LookupError("no sofa is left")

    def submit(message, work):
        message.submit(pool, work)

    def by_on_done(message):
        message.on_done(str)
        message.on_done(fail)
        submit(message, str)

    def by_call(message):
        submit(message, partial(fail))

    def own_pool(message):
        with OwnPool(1) as other:
            message.submit(other, fail)

    lines = {}
    for handle in (by_on_done, by_call, own_pool):
        caplog.clear()
        with ThreadPoolExecutor(1) as pool:
            consumer_of(timeout_secs=300, ui=None, attempts_max=1, dead_letters=MemoryPublisher(), trace=trace).run(
                handle, until="empty"
            )
        (lines[handle],) = (line for line in caplog.messages if "attempt 1 of memory/0 failed in" in line)
    in_on_done = by_on_done.__code__.co_firstlineno + 2
    name = rf"{re.escape(fail.__qualname__)} \("
    begin = r"failed in \n" if trace else "failed in "
    assert re.search(rf"{begin}.*test_calls.py.*{in_on_done}", lines[by_on_done], re.DOTALL), lines[by_on_done]
    assert re.search(rf"failed in {name}.*test_calls.py", lines[by_call], re.DOTALL), lines[by_call]
    assert re.search(rf"failed in {name}.*test_calls.py", lines[own_pool], re.DOTALL), lines[own_pool]


class OwnPool(ThreadPoolExecutor):
    """A pool of a class that may call again."""


def test_the_advice_on_timeouts_names_the_one_call_that_hangs_and_no_open_max(caplog):
    hung = Hung()
    with ThreadPoolExecutor(1, "packer") as pool, consumer_of(timeout_secs=1.0) as consumer:
        hung.begin(consumer, pool)
        while not (advice := [line for line in caplog.messages if "none was acked" in line]):
            time.sleep(0.01)
        hung.ending.set()
    assert "open_max" not in advice[0] and "longer timeout. 1 of 1 threads is busy" in advice[0]
    assert "; the longest is packer_0 with memory/0" in advice[0] and "in Hung.charge" in advice[0]


def test_a_message_waits_for_its_turn_where_no_call_runs_for_it():
    hung = Hung()
    with ThreadPoolExecutor(1) as pool, consumer_of(timeout_secs=300, ui=None) as consumer:
        next(iter(consumer)).submit(pool, hung.charge)
        hung.begun.wait()
        calls, attempts = consumer._calls, consumer._store.oldest()
        alone, behind = calls.some_wait(attempts, 1), calls.some_wait(attempts, 2)
        pool.submit(str)
        in_pool = calls.some_wait(attempts, 1)
        hung.ending.set()
    assert (alone, behind, in_pool) == (False, True, True)


def test_a_loop_works_on_the_message_that_it_has_taken():
    with consumer_of(timeout_secs=300, ui=None) as consumer:
        for message in consumer:
            with message:
                found = consumer._calls.some_wait(consumer._store.oldest(), 1)
            break
    assert not found


def test_a_coroutine_that_outlives_its_message_counts_and_tells_where_it_stands():
    hung = Hung()

    async def main():
        async with consumer_of(timeout_secs=0.1, backoff_secs=0) as consumer:
            task = await hung.begin_stubbornly(consumer)
            try:
                view = await asyncio.to_thread(fresh, consumer.page, lambda view: view["open_trees"]["over"])
            finally:
                hung.ending.set()  # else a failure would wait for ever for the coroutine
            await task
            assert consumer.stats().calls_over == 0
        return view

    view = asyncio.run(main())
    text = view["headline"]["text"]
    assert " hangs: it has been in one call with memory/0 at test_calls.py:" in text, text
    assert text.endswith(". 1 call runs, 1 with a message that timed out."), text
    assert "in Hung.charge_stubbornly for " in view["headline"]["text"]


def test_a_coroutine_that_comes_while_its_message_ends_does_not_begin(monkeypatch):
    """Else it would run on, and nobody would count it."""
    consumer = consumer_of(timeout_secs=0.1, ui=None)
    note_over = consumer._calls.note_over
    messages, tasks, begun = [], [], []

    async def work():
        begun.append(True)

    async def come():
        tasks.append(messages[0].spawn(work()))

    async def main():
        def note_over_and_come(tree):
            note_over(tree)
            asyncio.run_coroutine_threadsafe(come(), loop).result(60)

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(consumer._calls, "note_over", note_over_and_come)
        async with consumer:
            messages.append(await anext(consumer.aiter()))
            while not tasks:
                await asyncio.sleep(0.01)
            await asyncio.wait(tasks)

    asyncio.run(main())
    assert tasks[0].cancelled() and begun == []


def test_the_time_of_a_call_is_that_of_the_clock_that_is_given():
    hung = Hung()
    with ThreadPoolExecutor(1, "packer") as pool, consumer_of(timeout_secs=300, ui=None) as consumer:
        message = next(iter(consumer))
        before = time.monotonic_ns()
        message.submit(pool, hung.charge)
        hung.begun.wait()
        after = time.monotonic_ns()
        ((_, call),) = consumer._calls.of([], before + 90_000_000_000)
        hung.ending.set()
    assert 90_000 - (after - before) // 1_000_000 - 1 <= call.for_ms <= 90_000
    assert call.over is None and call.what == "memory/0"


def test_the_watchdog_names_the_line_of_the_longest_call(caplog):
    hung = Hung()
    with ThreadPoolExecutor(1, "packer") as pool, caplog.at_level(logging.WARNING):
        with consumer_of(timeout_secs=0.1, backoff_secs=0, ui=None) as consumer:
            hung.begin(consumer, pool)
            # It warns again and again; the first time maybe before the call has begun.
            while not (told := [each for each in caplog.messages if "nothing was" in each and "the longest" in each]):
                time.sleep(0.01)
        hung.ending.set()
    line = told[0]
    assert "the longest is packer_0 with memory/0" in line and f"at {__file__}:" in line and "in Hung.charge" in line


def test_a_loop_that_hangs_with_the_message_it_has_taken_is_named_with_its_line():
    hung = Hung()
    consumer = consumer_of(timeout_secs=0.4)

    def work():
        for message in consumer:
            with message:
                hung.charge()

    with consumer:
        loop = threading.Thread(target=work, name="loop")
        loop.start()
        hung.begun.wait()
        start = "loop hangs: it has been in one call with memory/0 at test_calls.py:"
        view = fresh(consumer.page, lambda view: view["headline"]["text"].startswith(start))
        over = fresh(consumer.page, lambda view: view["totals"]["timed_out"] and view["open_trees"]["over"])
        hung.ending.set()
        fresh(consumer.page, lambda view: not view["open_trees"]["over"])  # it waits for the next one
    loop.join()
    assert "in Hung.charge" in view["headline"]["text"]
    assert over["headline"]["text"].startswith(start)


def test_a_coroutine_that_hangs_with_the_message_it_has_taken_is_named_with_its_line():
    hung = Hung()

    async def main():
        async with consumer_of(timeout_secs=0.4) as consumer:

            async def work():
                async for message in consumer.aiter():
                    with message:
                        await hung.charge_stubbornly()

            task = asyncio.create_task(work(), name="loop")
            start = "loop hangs: it has been in one call with memory/0 at test_calls.py:"
            try:
                view = await asyncio.to_thread(
                    fresh, consumer.page, lambda view: view["headline"]["text"].startswith(start)
                )
            finally:
                hung.ending.set()  # else a failure would wait for ever for the coroutine
        await task
        return view

    assert "in Hung.charge_stubbornly" in asyncio.run(main())["headline"]["text"]


def test_a_loop_is_known_for_as_long_as_it_goes_on_however_many_others_end():
    broker = MemoryBroker()
    broker.publish([b"x"] * 101)
    taken, go_on, hung = threading.Event(), threading.Event(), Hung()

    def work():
        for number, message in enumerate(consumer):
            with message:
                if number:
                    hung.charge()
            if not number:
                taken.set()
                go_on.wait()

    def take_one():
        for message in consumer:
            message.ack()
            break

    with Consumer(MemorySource(broker), timeout_secs=0.4, drain_secs=0.0, ui=PAGE) as consumer:
        loop = threading.Thread(target=work, name="loop")
        loop.start()
        taken.wait()
        for _ in range(99):
            other = threading.Thread(target=take_one)
            other.start()
            other.join()
        go_on.set()
        hung.begun.wait()
        fresh(
            consumer.page, lambda view: view["headline"]["text"].startswith("loop hangs: it has been in one call with")
        )
        hung.ending.set()
    loop.join()
