"""`Consumer.run` and `run_async`: handlers, their ends, signals, and the end of the program."""

import asyncio
import functools
import inspect
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from acker import (
    ArgumentTypeError,
    ArgumentValueError,
    ConnectionLostError,
    ForkedError,
    RuntimeStateError,
    SourceError,
    TupleStateError,
)
from acker._handles import this_process
from acker.connectors import Consumer, DeadLetters
from acker.testing.connectors import MemoryBroker, MemoryPublisher, MemorySource
from acker.testing.connectors.consumer_run import wait_until
from tests.connectors.harnesses import JetStreamHarness, KafkaHarness, PostgreSQLHarness, RedisHarness, SQSHarness
from tests.connectors.test_asyncio import stop_when_done

QUICK = {"backoff_secs": 0.001, "backoff_secs_max": 0.002}
# No test waits for so long, unless it fails.
LONG = 120.0


def consumer_of(broker, **options):
    return Consumer(MemorySource(broker), **{**QUICK, **options})


def run_any(consumer, handler, **options):
    """Run a handler, as a function in threads, or as a coroutine; return the figures."""
    if inspect.iscoroutinefunction(handler):
        return asyncio.run(consumer.run_async(handler, **options))
    return consumer.run(handler, **options)


def run_both(broker, handler, **options):
    """Run a handler of either kind until the broker is empty; return the figures."""
    return run_any(consumer_of(broker, **options), handler, until="empty")


def as_coroutine(work):
    async def handle(message):
        await asyncio.sleep(0)
        return work(message)

    return handle


@pytest.fixture(params=["threads", "coroutines"])
def kind(request):
    """Return a function that makes a handler of this kind of a function."""
    return as_coroutine if request.param == "coroutines" else lambda work: work


# ---- outcomes -------------------------------------------------------------------------------------------------------


def test_a_message_is_done_when_the_handler_returns_and_fails_when_it_raises(broker, kind, caplog):
    broker.publish(b"%d" % number for number in range(50))
    seen = Counter()

    def handle(message):
        seen[message.value] += 1
        if message.value == b"7" and message.attempt < 3:
            raise LookupError("not yet")

    stats = run_both(broker, kind(handle))
    assert broker.left() == 0 and sum(seen.values()) == 52 and seen[b"7"] == 3
    assert (stats.acked, stats.failed, stats.retried, stats.state) == (50, 2, 2, "stopped")
    # The line of the handler, and not one of acker, says where a message failed.
    told = [record.getMessage() for record in caplog.records if "failed in" in record.getMessage()]
    assert len(told) == 2 and all("test_run.py" in text for text in told)


def cancelled_call(_):
    """Wait for a call that somebody has cancelled."""
    call = Future()
    call.cancel()
    call.result()


async def cancelled_coroutine(_):
    """Wait for a coroutine that somebody has cancelled."""
    task = asyncio.create_task(asyncio.sleep(LONG))
    task.cancel()
    await task


def coroutine_by_itself(message):
    asyncio.run(cancelled_coroutine(message))


@pytest.mark.parametrize(
    ("wait", "options"),
    [
        (cancelled_call, {}),
        (cancelled_call, {"retry_on": OSError}),
        (as_coroutine(cancelled_call), {}),
        (coroutine_by_itself, {}),
        (cancelled_coroutine, {}),
    ],
)
def test_a_handler_that_waits_for_something_cancelled_fails_its_attempt_and_the_run_goes_on(
    broker, wait, options, caplog
):
    broker.publish([b"a", b"b"])
    letters, begun = MemoryPublisher(), Counter()

    async def handle_async(message):
        begun[message.value] += 1
        if message.value == b"a":
            await wait(message)

    def handle(message):
        begun[message.value] += 1
        if message.value == b"a":
            wait(message)

    consumer = consumer_of(broker, attempts_max=2, dead_letters=letters, **options)
    stop_when_done(consumer, broker)
    stats = run_any(consumer, handle_async if inspect.iscoroutinefunction(wait) else handle)
    assert begun == {b"a": 2, b"b": 1} and stats.failed == 2
    (letter,) = letters.published
    assert "CancelledError" in letter.headers["acker-reason"]
    told = [each for each in caplog.records if "attempt 1 of memory/0 failed in" in each.getMessage()]
    assert len(told) == 1 and told[0].exc_info is not None


@pytest.mark.parametrize("wait", [cancelled_call, coroutine_by_itself])
def test_a_handler_that_waits_for_something_cancelled_in_a_stop_gives_its_message_back(broker, wait):
    broker.publish([b"a"])
    consumer = consumer_of(broker, attempts_max=1, dead_letters=MemoryPublisher())

    def handle(message):
        consumer.stop()
        wait(message)

    stats = consumer.run(handle)
    assert (stats.failed, stats.dead_letters, stats.released, broker.left()) == (0, 0, 1, 1)


def test_until_empty_waits_for_what_the_broker_tries_again():
    broker = MemoryBroker(delays=True)
    broker.publish([b"a"])
    attempts = []

    def handle(message):
        attempts.append(message.attempt)
        if message.attempt == 1:
            raise LookupError("not yet")

    consumer_of(broker, backoff_secs=1.5, backoff_secs_max=2).run(handle, until="empty")
    assert attempts == [1, 2] and broker.left() == 0


def test_threads_work_at_the_same_time_on_one_message_each(broker):
    broker.publish(b"%d" % number for number in range(12))
    together = threading.Barrier(3)
    running = []
    consumer = consumer_of(broker)

    def handle(_):
        running.append(consumer.stats().calls_running)
        together.wait(LONG)

    consumer.run(handle, threads=3, until="empty")
    assert len(broker.acked) == 12 and max(running) <= 3


def test_tasks_are_at_most_so_many(broker):
    broker.publish(b"%d" % number for number in range(60))
    running, most = 0, 0

    async def handle(_):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    asyncio.run(consumer_of(broker).run_async(handle, tasks=5, until="empty"))
    assert len(broker.acked) == 60 and most == 5


def test_a_handler_may_end_its_message_itself(broker, kind):
    broker.publish([b"ack", b"fail", b"block", b"twice"])
    refused = []

    def handle(message):
        if message.value == b"fail" and message.attempt == 1:
            message.fail("by hand")
        elif message.value == b"block":
            with message:
                pass
        elif message.value == b"twice":
            message.ack()
            try:
                message.ack()
            except TupleStateError as error:
                refused.append(error)
        else:
            message.ack()

    stats = run_both(broker, kind(handle))
    assert (stats.acked, stats.failed, len(refused)) == (4, 1, 1)


def test_an_exception_after_the_ack_is_logged_as_an_error(broker, kind, caplog):
    broker.publish([b"submits", b"raises"])

    def handle(message):
        message.ack()
        if message.value == b"submits":
            message.submit(None, print)
        raise ValueError("no sofa is left")

    stats = run_both(broker, kind(handle))
    told = sorted(record.getMessage() for record in caplog.records if record.levelno == logging.ERROR)
    assert (stats.acked, stats.failed, len(told)) == (2, 0, 2)
    assert told[0].startswith("memory/0 was acked before its handler raised TupleStateError: ")
    assert told[1].startswith("memory/1 was acked before its handler raised ValueError: no sofa is left, in test_run")


def test_what_a_handler_submits_belongs_to_its_message(broker, kind):
    broker.publish([b"a"])
    gate, done = threading.Event(), []

    def part(number):
        gate.wait(LONG)
        done.append(number)

    with ThreadPoolExecutor(2) as pool:

        def handle(message):
            for number in range(3):
                message.submit(pool, part, number)
            threading.Timer(0.05, lambda: (done.append(list(broker.acked)), gate.set())).start()

        run_both(broker, kind(handle))
    assert done[0] == [] and sorted(done[1:]) == [0, 1, 2] and broker.acked == [b"a"]


def test_what_a_coroutine_spawns_belongs_to_its_message(broker):
    broker.publish([b"a"])
    order = []

    async def part():
        await asyncio.sleep(0.01)
        order.append(list(broker.acked))

    async def handle(message):
        message.spawn(part())
        message.spawn(part())

    run_both(broker, handle)
    assert order == [[], []] and broker.acked == [b"a"]


def test_a_body_that_cannot_be_decoded_does_not_reach_the_handler(broker, kind):
    broker.publish([b"1", b"x", b"3"])
    letters, seen = MemoryPublisher(), []
    stats = run_both(broker, kind(lambda message: seen.append(message.value)), decode=int, dead_letters=letters)
    assert sorted(seen) == [1, 3] and [letter.value for letter in letters.published] == [b"x"]
    assert (stats.acked, stats.undecodable) == (2, 1)


def test_a_message_that_times_out_cancels_its_coroutine(broker):
    broker.publish([b"a"])
    ends = []

    async def handle(_):
        try:
            await asyncio.sleep(0 if ends else LONG)
            ends.append("returned")
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    stats = run_both(broker, handle, timeout_secs=0.2)
    # On a machine that stands still the next attempt may time out, too, at any of its lines.
    assert ends[0] == "cancelled" and ends[-1] == "returned", ends
    assert stats.timed_out >= 1 and broker.acked == [b"a"]


@pytest.mark.server
@pytest.mark.parametrize(
    ("server", "kind"),
    [
        ("redis", RedisHarness),
        ("kafka", KafkaHarness),
        ("nats", JetStreamHarness),
        ("postgresql", PostgreSQLHarness),
        ("sqs", SQSHarness),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_until_empty_takes_all_that_a_real_broker_has_and_what_it_tries_again(request, server, kind):
    harness = kind(request.getfixturevalue(server))
    harness.lease_secs = LONG  # what is lost with its lease comes when the lease ends, and nobody waits for that
    seen = Counter()

    def handle(message):
        seen[message.value] += 1
        if message.value == b"13" and seen[message.value] == 1:
            raise LookupError("once")

    try:
        harness.publish([b"%d" % number for number in range(30)])
        stats = Consumer(harness.source(), backoff_secs=0.2).run(handle, threads=3, until="empty")
        assert len(seen) == 30 and seen[b"13"] == 2
        wait_until(lambda: harness.left() == 0, "the broker has counted the last acks", LONG)
        assert (stats.acked, stats.failed) == (30, 1)
    finally:
        harness.close()


# ---- what cannot be run ---------------------------------------------------------------------------------------------


async def coroutine(message):
    pass


def generator(message):
    yield


async def async_generator(message):
    yield


def behind(function):
    """Return a function whose code does not tell what it returns."""

    def call(argument):
        return function(argument)

    return call


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        ("work", "expected a function"),
        (lambda: None, "cannot be called with a message alone"),
        (lambda message, order: None, "cannot be called with a message alone"),
        (coroutine, "is a coroutine function: use Consumer.run_async"),
        (functools.partial(coroutine), "is a coroutine function"),
        (generator, "generator is a generator function: its call runs none of its lines"),
        (async_generator, "async_generator is an async generator function: its call runs none of its lines"),
    ],
)
def test_a_handler_is_checked_before_the_start(broker, handler, text):
    consumer = consumer_of(broker)
    with pytest.raises(ArgumentTypeError, match=text):
        consumer.run(handler)
    assert consumer.stats().state == "new"


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (behind(generator), "the handler returned generator, a generator: its call runs none"),
        (behind(async_generator), "the handler returned async_generator, an async generator"),
        (behind(coroutine), "make the handler an async def, for Consumer.run_async"),
    ],
)
def test_a_handler_that_returns_what_has_not_run_fails_its_message(broker, handler, text):
    broker.publish([b"a"])
    letters = MemoryPublisher()
    stats = run_both(broker, handler, dead_letters=letters, attempts_max=1)
    assert stats.dead_letters == 1 and text in letters.published[0].headers["acker-reason"]


@pytest.mark.parametrize("decode", [coroutine, generator, async_generator])
def test_a_decode_that_a_call_would_not_run_is_refused(broker, decode):
    with pytest.raises(ArgumentTypeError, match=f"decode: {decode.__name__} is an? .* function: "):
        consumer_of(broker, decode=decode)
    broker.publish([b"a"])
    letters = MemoryPublisher()
    run_both(broker, print, decode=behind(decode), dead_letters=letters)
    assert f"decode returned {decode.__name__}, a" in letters.published[0].headers["acker-reason"]


@pytest.mark.parametrize("handler", [generator, async_generator, functools.partial(async_generator)])
def test_a_generator_is_no_handler_of_run_async(broker, handler):
    with pytest.raises(ArgumentTypeError, match="generator function: its call runs none of its lines"):
        asyncio.run(consumer_of(broker).run_async(handler))


def test_a_plain_function_is_no_handler_of_run_async(broker):
    with pytest.raises(ArgumentTypeError, match="is no coroutine function"):
        asyncio.run(consumer_of(broker).run_async(print))


@pytest.mark.parametrize("options", [{"threads": 0}, {"until": "drained"}])
def test_options_of_a_run_are_checked_before_the_start(broker, options):
    consumer = consumer_of(broker)
    with pytest.raises(ArgumentValueError, match=next(iter(options))):
        consumer.run(print, **options)
    assert consumer.stats().state == "new"


def test_a_second_run_is_refused(broker):
    consumer = consumer_of(broker)
    consumer.run(print, until="empty")
    with pytest.raises(RuntimeStateError, match="started before"):
        consumer.run(print)
    with consumer_of(broker) as consumer, pytest.raises(RuntimeStateError, match="started before"):
        consumer.run(print)


def test_a_run_after_a_fork_is_refused(broker):
    consumer = consumer_of(broker)
    consumer.process += 1  # as a forked process sees it
    with pytest.raises(ForkedError):
        consumer.run(print)


def test_a_source_that_fails_ends_the_run(broker, kind):
    source = MemorySource(broker)
    source.open = lambda events, limit: (_ for _ in ()).throw(SourceError("no such queue"))
    consumer = Consumer(source)
    with pytest.raises(SourceError, match="no such queue"):
        run_any(consumer, kind(print))


# ---- the end --------------------------------------------------------------------------------------------------------


def test_an_exception_that_ends_the_program_ends_the_run(broker, kind):
    broker.publish([b"a", b"b"])

    def handle(message):
        if message.value == b"a":
            sys.exit(3)

    consumer = consumer_of(broker, open_max=1)
    with pytest.raises(SystemExit, match="3"):
        run_any(consumer, kind(handle))
    assert consumer.stats().state == "stopped" and b"a" not in broker.acked


def test_a_call_that_hangs_at_the_end_is_left_behind(broker, caplog):
    broker.publish([b"a"])
    gate, begun = threading.Event(), threading.Event()
    consumer = consumer_of(broker, drain_secs=0.1)

    def handle(_):
        begun.set()
        gate.wait(LONG)

    threading.Thread(target=lambda: (begun.wait(LONG), consumer.stop())).start()
    stats = consumer.run(handle)
    assert stats.released == 1 and broker.left() == 1
    (text,) = [record.getMessage() for record in caplog.records if "left behind" in record.getMessage()]
    assert "1 calls" in text and "test_run.py" in text
    assert "run in pools" not in caplog.text  # these threads are daemons
    gate.set()
    wait_until(lambda: not any("handler" in each.name for each in threading.enumerate()), "it returns", LONG)


def test_a_coroutine_that_hangs_at_the_end_is_cancelled(broker):
    broker.publish([b"a", b"b"])
    ends = []

    async def main():
        begun = asyncio.Event()

        async def handle(_):
            begun.set()
            try:
                await asyncio.sleep(LONG)
            finally:
                ends.append(asyncio.current_task().cancelling())

        consumer = consumer_of(broker, drain_secs=0.1)
        running = asyncio.create_task(consumer.run_async(handle, tasks=1))
        await begun.wait()
        consumer.stop()
        return await running

    assert asyncio.run(main()).released >= 1 and ends == [1] and broker.left() == 2


def test_a_cancelled_run_lets_open_messages_end(broker):
    broker.publish([b"a"])

    async def main():
        begun, gate = asyncio.Event(), asyncio.Event()

        async def handle(_):
            begun.set()
            await gate.wait()

        running = asyncio.create_task(consumer_of(broker).run_async(handle))
        await begun.wait()
        running.cancel()
        await asyncio.sleep(0)
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert broker.acked == [b"a"]


class StandsStill(MemorySource):
    """Its process stands still for a minute in its first empty poll; what was on its way comes with the next one."""

    def __init__(self, broker, monkeypatch):
        super().__init__(broker)
        self._patch, self._empty = monkeypatch, 0

    def poll(self, limit, wait_secs):
        if self._empty == 1:
            self.broker.deliver_now()
        found = super().poll(limit, wait_secs)
        if limit and not found:
            self._empty += 1
        if self._empty == 1:
            later = SimpleNamespace(monotonic=lambda: time.monotonic() + 60)
            self._patch.setattr("acker.connectors.source.time", later)
        return found


def test_a_process_that_stood_still_does_not_take_its_source_for_empty(broker, monkeypatch):
    broker.deliver_late(1)
    broker.publish([b"on its way"])
    taken = []
    Consumer(StandsStill(broker, monkeypatch)).run(lambda message: taken.append(message.value), until="empty")
    assert taken == [b"on its way"]


def test_a_process_that_stood_still_finds_all_letters(broker, monkeypatch):
    broker.deliver_late(1)
    broker.publish([b"on its way"])
    place = MemoryPublisher()
    place.reader = lambda **_: StandsStill(broker, monkeypatch)
    report = DeadLetters(place).find()
    assert [letter.value for letter in report.letters] == [b"on its way"] and report.is_all


def test_a_run_on_another_thread_says_that_signals_do_not_stop_it(broker, caplog):
    caplog.set_level(logging.INFO, "acker.connectors")
    broker.publish([b"a"])
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=lambda: consumer_of(broker).run(lambda _: None, until="empty"))
    thread.start()
    thread.join(LONG)
    assert broker.acked == [b"a"] and "this is not the main thread" in caplog.text
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_program_keeps_its_own_handlers(broker, caplog):
    caplog.set_level(logging.INFO, "acker.connectors")
    broker.publish([b"a"])
    own, during = lambda *_: None, []
    before = signal.signal(signal.SIGTERM, own)
    try:
        consumer_of(broker).run(lambda _: during.append(signal.getsignal(signal.SIGTERM)), until="empty")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert during == [own] and "the program has a handler of its own" in caplog.text


def test_handlers_of_signals_are_put_back(broker):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    consumer_of(broker).run(print, until="empty")
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


PROGRAM = """
import asyncio, signal, sys, threading
from acker.connectors import Consumer, DeadLetters
from acker.testing.connectors import MemoryBroker, MemorySource

broker = MemoryBroker()
broker.publish([b"a"])
gate = threading.Event()
consumer = Consumer(MemorySource(broker), drain_secs=60)

def handle(message):
    print("begun", flush=True)
    gate.wait()

async def handle_async(message):
    print("begun", flush=True)
    while not gate.is_set():
        await asyncio.sleep(0.01)

def open_gate():
    sys.stdin.readline()
    gate.set()

threading.Thread(target=open_gate, daemon=True).start()
if sys.argv[1] == "threads":
    stats = consumer.run(handle)
else:
    stats = asyncio.run(consumer.run_async(handle_async))
print(stats.acked, "acked", flush=True)
"""


@pytest.fixture
def program(request, kind):
    name = "coroutines" if kind is as_coroutine else "threads"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    ) as process:
        try:
            assert process.stdout.readline() == "begun\n", process.stderr.read()
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT], [signal.SIGTERM, signal.SIGTERM]])
def test_a_signal_lets_open_messages_end_and_the_exit_code_is_0(program, signals):
    for number in signals:
        program.send_signal(number)
    out, err = program.communicate("go\n", timeout=LONG)
    assert (out, program.returncode) == ("1 acked\n", 0), err


def test_a_second_ctrl_c_ends_the_program_at_once(program):
    while program.poll() is None:  # two that come at the same time are one
        program.send_signal(signal.SIGINT)
        threading.Event().wait(0.05)
    assert program.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in program.stderr.read()


def test_a_run_can_show_a_page_that_the_consumer_has_not(broker):
    broker.publish([b"a"])
    consumer, seen = consumer_of(broker, dead_letters=MemoryPublisher(), attempts_max=1), []

    def handle(_):
        with urllib.request.urlopen(f"{consumer.page.url}healthz", timeout=LONG) as answer:
            seen.append(answer.status)
        raise LookupError("no sofa is left")

    consumer.run(handle, until="empty", ui=0)
    assert seen == [200]


# ---- health ---------------------------------------------------------------------------------------------------------


def test_health_is_red_before_the_start_and_after_the_end(broker):
    consumer = consumer_of(broker)
    assert consumer.health() == (False, "new", "it was not started")
    broker.publish([b"a"])
    seen = []
    consumer.run(lambda _: seen.append(consumer.health()), until="empty")
    assert seen == [(True, "running", "all is well")]
    assert consumer.health() == (False, "stopped", "it was stopped")


def test_health_is_red_in_a_forked_process_and_says_whose_consumer_it_is(broker, monkeypatch):
    """As gunicorn's --preload forks an application."""
    consumer = consumer_of(broker)
    monkeypatch.setattr(this_process, "id", -1)  # what a child sees
    found = consumer.health()
    assert not found.ok and f"it belongs to process {os.getpid()}, from which this one was forked" in found.text


def test_health_is_red_when_the_source_has_failed(broker):
    source = MemorySource(broker)
    source.open = lambda events, limit: (_ for _ in ()).throw(SourceError("no such queue"))
    consumer = Consumer(source)
    with pytest.raises(SourceError):
        consumer.run(print)
    assert consumer.health() == (False, "stopped", "it ended: SourceError: no such queue")


def test_health_is_green_and_says_so_while_a_lost_connection_is_opened_again(broker):
    source = MemorySource(broker)
    source.open = lambda events, limit: (_ for _ in ()).throw(ConnectionLostError("nobody listens"))
    with Consumer(source) as consumer:
        wait_until(lambda: consumer.health().text != "all is well", "it has lost the connection", LONG)
        assert consumer.health().ok and "nobody listens" in consumer.health().text


def test_health_is_red_while_the_client_of_the_broker_hangs(broker, monkeypatch):
    monkeypatch.setattr("acker.connectors.consumer._SILENT_SECS_MAX", 0.2)
    source, gate = MemorySource(broker), threading.Event()
    polled = source.poll
    source.poll = lambda limit, wait_secs: (gate.wait(LONG), polled(limit, wait_secs))[1]
    with Consumer(source) as consumer:
        wait_until(lambda: not consumer.health().ok, "it hangs", LONG)
        assert "in one call of the broker's client" in consumer.health().text
        gate.set()
        wait_until(lambda: consumer.health().ok, "it goes on", LONG)


def test_a_call_that_holds_the_event_loop_is_named(broker, monkeypatch, caplog):
    """Its neighbours cannot get on, and time out: without a word of the cause, they look like the fault."""
    monkeypatch.setattr("acker.connectors.loop_watch.HELD_SECS", 0.05)
    broker.publish([b"a"])
    warned = threading.Event()

    class Sees(logging.Handler):
        def emit(self, record):
            if "has held the event loop" in record.getMessage():
                warned.set()

    async def handle(message):
        assert warned.wait(LONG)  # blocks, where it should await

    logger, seen = logging.getLogger("acker.connectors"), Sees()
    logger.addHandler(seen)
    try:
        asyncio.run(consumer_of(broker).run_async(handle, until="empty"))
    finally:
        logger.removeHandler(seen)
    (text,) = {record.getMessage().partition(" for ")[0] for record in caplog.records if "loop" in record.getMessage()}
    assert text == "memory: a call has held the event loop"
    assert "test_run.py:" in caplog.text and "asyncio.to_thread" in caplog.text


def test_tasks_bounds_handlers_and_not_what_they_spawn(broker):
    """`open_max` bounds that: the page says so."""
    broker.publish([b"%d" % number for number in range(20)])
    running, most, going = set(), [], asyncio.Event()

    async def work(message):
        running.add(message.key)
        most.append(len(running))
        if len(running) == 5:
            going.set()
        await going.wait()
        running.discard(message.key)

    async def handle(message):
        message.spawn(work(message))

    asyncio.run(consumer_of(broker, open_max=5).run_async(handle, tasks=1, until="empty"))
    assert max(most) == 5
