"""An end of the program within the work for a message is no failure of it: no dead letter, even of its last attempt."""

import asyncio
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from acker.connectors import Consumer
from acker.testing.connectors import MemoryPublisher, MemorySource
from acker.testing.connectors.consumer_run import wait_until
from tests.connectors.harnesses import RedisHarness
from tests.connectors.test_asyncio import QuorumQueue, stop_when_done

# No test waits for so long, unless it fails.
LONG = 120.0


class Program:
    """A consumer whose every failure makes a dead letter."""

    def __init__(self, broker, **options):
        self.broker = broker
        self.letters = MemoryPublisher()
        last = {"attempts_max": 1, "dead_letters": self.letters, "backoff_secs": 0.001, "backoff_secs_max": 0.002}
        self.consumer = Consumer(MemorySource(broker), **last, **options)

    def loop(self, work):
        """Take messages in a loop, and work for each in its block."""
        with self.consumer:
            for message in self.consumer:
                with message:
                    work(message)

    def gave_back(self, *values):
        """Return whether these messages, and no others, are at the broker, and none has failed."""
        stats = self.consumer.stats()
        left = {value for value in values if value not in self.broker.acked}
        return (self.letters.published, stats.failed, stats.released, self.broker.left(), len(left)) == (
            [],
            0,
            *[len(values)] * 3,
        )


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_end_within_a_block_gives_the_message_back(broker, end):
    broker.publish([b"a"])
    program = Program(broker)

    def work(_):
        raise end

    with pytest.raises(end):
        program.loop(work)
    assert program.gave_back(b"a")


def test_a_program_that_goes_on_gets_the_message_again_as_the_same_attempt(broker):
    """As in a notebook whose cell was interrupted."""
    broker.publish([b"a"])
    program, attempts = Program(broker), []
    with program.consumer:
        messages = iter(program.consumer)
        for _ in range(3):
            message = next(messages)
            attempts.append(message.attempt)
            with pytest.raises(KeyboardInterrupt), message:
                raise KeyboardInterrupt
        with next(messages) as message:
            attempts.append(message.attempt)
    assert broker.acked == [b"a"] and attempts == [1] * 4 and program.letters.published == []


def test_a_generator_that_is_closed_within_a_block_gives_the_message_back(broker):
    broker.publish([b"a"])
    program = Program(broker)

    def values():
        for message in program.consumer:
            with message:
                yield message.value

    with program.consumer:
        taken = values()
        assert next(taken) == b"a"
        taken.close()
    assert program.gave_back(b"a")


@pytest.mark.parametrize("is_async", [False, True], ids=["threads", "coroutines"])
def test_an_end_in_a_handler_ends_the_run_before_anybody_takes_the_message_again(broker, is_async):
    broker.publish([b"a"])
    program, calls = Program(broker), []

    def handle(message):
        calls.append(message.value)
        sys.exit(3)

    async def handle_async(message):
        handle(message)

    def run():
        return asyncio.run(program.consumer.run_async(handle_async)) if is_async else program.consumer.run(handle)

    with pytest.raises(SystemExit, match="3"):
        run()
    wait_until(lambda: program.consumer.stats().state == "stopped", "the consumer has stopped", LONG)
    assert program.gave_back(b"a") and calls == [b"a"]


def test_an_end_in_a_pool_ends_the_loop_over_messages(broker):
    """A pool keeps the exception, so that nothing else would tell the program."""
    broker.publish([b"a"])
    program = Program(broker)
    with ThreadPoolExecutor(1) as pool, pytest.raises(SystemExit, match="3"):
        program.loop(lambda message: message.submit(pool, sys.exit, 3))
    assert program.gave_back(b"a")


def test_an_end_in_the_last_work_of_a_message_ends_the_loop_over_messages(broker):
    broker.publish([b"a"])
    program = Program(broker)
    with pytest.raises(SystemExit, match="3"):
        program.loop(lambda message: message.on_done(sys.exit, 3))
    assert program.gave_back(b"a")


# ---- event loops -----------------------------------------------------------------------------------------------------


def test_ctrl_c_on_an_event_loop_gives_the_message_back(broker):
    broker.publish([b"a"])
    program = Program(broker)

    async def main():
        async with program.consumer:
            async for message in program.consumer.aiter():
                with message:
                    os.kill(os.getpid(), signal.SIGINT)
                    await asyncio.sleep(LONG)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert program.gave_back(b"a")


def run_once_each(program, work):
    """Run a program that works for each message in a coroutine; return how often it began with one."""
    calls = []

    async def main():
        async with program.consumer:
            async for message in program.consumer.aiter():
                calls.append(message.value)
                await work(message)

    program.broker.publish([b"a"])
    stop_when_done(program.consumer, program.broker)
    asyncio.run(main())
    return len(calls)


async def time_out(message):
    """Time out within the block."""
    with message:
        await asyncio.wait_for(asyncio.sleep(LONG), 0.01)


async def time_out_around(message):
    """Time out around the block: it is cancelled as at the end of the program."""

    async def hang():
        with message:
            await asyncio.sleep(LONG)

    try:
        async with asyncio.timeout(0.01):
            await hang()
    except TimeoutError:
        pass


async def cancel_part(message):
    """Cancel a coroutine that works for the message."""
    with message:
        task = message.spawn(asyncio.sleep(LONG))
        await asyncio.sleep(0)
        task.cancel()


async def await_cancelled(message):
    """Await what somebody else has cancelled."""
    task = asyncio.create_task(asyncio.sleep(LONG))
    task.cancel()
    try:
        with message:
            await task
    except asyncio.CancelledError:
        pass


@pytest.mark.parametrize(
    ("work", "calls"), [(time_out, 1), (time_out_around, 2), (cancel_part, 1), (await_cancelled, 1)]
)
def test_work_that_is_cancelled_fails_the_message(broker, work, calls):
    """Around the block not at first: if the message comes again, and is cancelled again, the program has not ended."""
    program = Program(broker)
    assert run_once_each(program, work) == calls
    assert len(program.letters.published) == 1 and program.consumer.stats().failed == 1


def test_a_coroutine_that_is_cancelled_while_the_consumer_stops_gives_the_message_back(broker):
    broker.publish([b"a"])
    program = Program(broker)

    async def main():
        async with program.consumer:
            async for message in program.consumer.aiter():
                task = message.spawn(asyncio.sleep(LONG))
                await asyncio.sleep(0)
                program.consumer.stop()
                task.cancel()

    asyncio.run(main())
    assert program.gave_back(b"a")


# ---- real brokers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("server", "kind"), [("redis", RedisHarness), ("rabbitmq", QuorumQueue)])
def test_real_brokers_deliver_again_what_an_end_has_cut_short(server, kind, request):
    queue, letters, done = kind(request.getfixturevalue(server)), MemoryPublisher(), []

    def handle(message):
        if message.value == b"7" and not cut:
            cut.append(message.value)
            sys.exit(3)
        done.append(message.value)

    cut = []
    options = {"attempts_max": 1, "dead_letters": letters}
    try:
        queue.publish([b"%d" % value for value in range(20)])
        with pytest.raises(SystemExit, match="3"):
            Consumer(queue.source(), **options).run(handle, threads=2)
        Consumer(queue.source(), **options).run(handle, threads=2, until="empty")
        assert set(done) == {b"%d" % value for value in range(20)} and cut and letters.published == []
    finally:
        queue.close()
