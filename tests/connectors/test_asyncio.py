"""A consumer on event loops: coroutines, cancellations, threads and loops beside each other, and the end."""

import asyncio
import os
import random
import signal
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pika
import pytest

from acker import ArgumentTypeError, SourceError, TupleStateError
from acker.connectors import Consumer, Outgoing
from acker.connectors.rabbitmq import RabbitMQ, RabbitMQPublisher
from acker.testing.connectors import MemoryBroker, MemoryPublisher, MemorySource
from acker.testing.connectors.consumer_run import wait_until
from tests.connectors.harnesses import RedisHarness

QUICK = {"backoff_secs": 0.001, "backoff_secs_max": 0.002}
# No test waits for so long, unless it fails.
LONG = 600.0


def stop_when_done(consumer, broker):
    """Stop a consumer once the broker has no message left."""

    def wait():
        try:
            broker.wait_until(lambda broker: broker.left() == 0)
        finally:
            consumer.stop()

    threading.Thread(target=wait).start()


def test_coroutines_consume(broker):
    broker.publish(b"%d" % number for number in range(200))
    running, most = set(), 0

    async def part(message):
        nonlocal most
        running.add(message.value)
        most = max(most, len(running))
        for _ in range(10):
            await asyncio.sleep(0)
        running.discard(message.value)
        if message.value == b"13" and message.attempt == 1:
            raise LookupError("once")

    async def handle(message):
        message.spawn(part(message))
        await asyncio.sleep(0)

    async def main():
        async with Consumer(MemorySource(broker), **QUICK) as consumer:
            stop_when_done(consumer, broker)
            async for message in consumer.aiter():
                message.spawn(handle(message))

    asyncio.run(main())
    assert len(broker.acked) == 200 and most > 1 and broker.counts["delivered"] == 200


def test_a_cancelled_iteration_ends_and_gives_back(broker):
    broker.publish([b"a"])

    async def main():
        arrived = asyncio.Event()
        async with Consumer(MemorySource(broker), drain_secs=0.05) as consumer:

            async def iterate():
                async for message in consumer.aiter():
                    with message:
                        arrived.set()
                        await asyncio.sleep(3600)

            task = asyncio.create_task(iterate())
            await arrived.wait()
            consumer.stop()
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()

    asyncio.run(main())
    assert broker.left() == 1 and broker.acked == []


def test_coroutines_of_a_message_that_timed_out_are_cancelled(broker):
    broker.publish([b"a"])
    cancelled = []

    async def handle(message):
        if not cancelled:  # by then: the first attempts may time out before their coroutines begin
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled.append(message.alive)
                raise

    async def main():
        async with Consumer(MemorySource(broker), timeout_secs=0.05, **QUICK) as consumer:
            stop_when_done(consumer, broker)
            async for message in consumer.aiter():
                message.spawn(handle(message))

    asyncio.run(main())
    assert cancelled and not any(cancelled) and broker.acked == [b"a"]


def test_a_wait_that_is_cancelled_takes_no_message_and_ends_nothing(broker):
    async def main():
        async with Consumer(MemorySource(broker), **QUICK) as consumer, asyncio.timeout(LONG):
            messages = consumer.aiter()
            for steps in range(10):
                waiting = asyncio.create_task(anext(messages))
                for _ in range(steps):
                    await asyncio.sleep(0)
                waiting.cancel()
                assert await asyncio.gather(waiting, return_exceptions=True) != [None]
                assert waiting.cancelled()
            broker.publish([b"a"])
            with await anext(messages) as message:
                assert message.attempt == 1

    asyncio.run(main())
    assert broker.acked == [b"a"] and broker.counts["delivered"] == 1


def test_tasks_share_an_iteration_and_loops_a_consumer(broker):
    broker.publish(b"%d" % number for number in range(90))
    takers = Counter()

    async def take(messages, name):
        async for message in messages:
            with message:
                takers[name] += 1
                await asyncio.sleep(0)

    async def main(name):
        messages = consumer.aiter()
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(take(messages, (name, number)))

    with Consumer(MemorySource(broker), **QUICK) as consumer, ThreadPoolExecutor(2) as pool:
        stop_when_done(consumer, broker)
        for end in [pool.submit(asyncio.run, main(name)) for name in "ab"]:
            end.result(LONG)
    assert sum(takers.values()) == len(broker.acked) == 90


def test_stop_ends_an_iteration_while_the_broker_does_not_answer(broker):
    source, asked, answer = MemorySource(broker), threading.Event(), threading.Event()

    def hang():
        asked.set()
        answer.wait(2 * LONG)

    async def main():
        async with Consumer(source, drain_secs=0) as consumer:
            source.on("poll", hang, at=2)
            waiting = asyncio.create_task(anext(consumer.aiter()))
            await asyncio.to_thread(asked.wait)
            consumer.stop()
            try:
                with pytest.raises(StopAsyncIteration):
                    await asyncio.wait_for(waiting, LONG)
            finally:
                answer.set()

    asyncio.run(main())


def test_a_source_that_fails_ends_an_iteration_with_its_error(broker):
    source = MemorySource(broker)
    source.mistake("poll", at=3)

    async def main():
        async with Consumer(source) as consumer, asyncio.timeout(LONG):
            await anext(consumer.aiter())

    with pytest.raises(SourceError, match="no such queue"):
        asyncio.run(main())


def test_an_end_waits_for_no_call_in_the_threads_of_the_loop(broker):
    held = threading.Event()

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        async with asyncio.timeout(LONG):
            async with Consumer(MemorySource(broker), drain_secs=0):
                hung = loop.run_in_executor(None, held.wait, 2 * LONG)
            held.set()
        await hung

    try:
        asyncio.run(main())
    finally:
        held.set()


def test_what_is_no_coroutine_is_refused_and_fails_nothing(broker):
    broker.publish([b"a"])

    async def work():
        pass

    async def main():
        async with Consumer(MemorySource(broker)) as consumer:
            message = await anext(consumer.aiter())
            for wrong in (work, print, None):
                with pytest.raises(ArgumentTypeError, match="spawn: expected a coroutine, such as work"):
                    message.spawn(wrong)
            await message.spawn(work())
            with pytest.raises(TupleStateError):
                message.spawn(work())

    asyncio.run(main())
    assert broker.acked == [b"a"]


# ---- a hostile program at real brokers ------------------------------------------------------------------------------


class Hostile:
    """Work that ends in every way; each value is in `done` when, and only when, its message may be acked."""

    def __init__(self, letters):
        self.letters = letters
        self.done = Counter()
        self.random = random.Random(5)
        self.pool = ThreadPoolExecutor(4)
        self.stray = []

    @staticmethod
    def decode(body):
        if body.endswith(b"7"):
            raise ValueError("sevens are refused")
        return int(body)

    async def step(self):
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)

    async def leaf(self, message):
        await self.step()
        if message.value % 10 == 1 and message.attempt == 1:
            raise LookupError("once")
        self.done[message.value] += 1

    async def deaf(self, message):
        """Go on after a cancellation, and make more parts."""
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            self.stray.append(message.spawn(self.step()))

    async def handle(self, message):
        kind, is_first = message.value % 10, message.attempt == 1
        await self.step()
        if kind == 2 and is_first:
            message.spawn(self.deaf(message))
            await self.step()
            raise LookupError("while another part is deaf")
        if kind == 3 and is_first:
            task = message.spawn(self.leaf_after(message, LONG))
            await self.step()
            task.cancel()
        elif kind == 4:
            self.pool.submit(self.end_on_thread, message, message.child())
        elif kind == 5 and is_first:
            self.pool.submit(message.child().fail)
        elif kind == 6 and is_first:
            message.child()  # which nothing ends
        else:
            message.spawn(self.leaf(message))

    async def leaf_after(self, message, secs):
        await asyncio.sleep(secs)
        await self.leaf(message)

    def end_on_thread(self, message, part):
        self.done[message.value] += 1
        part.ack()

    async def take(self, messages):
        """Take messages as several tasks, each of which is cancelled again and again while it waits."""
        while True:
            waiting = asyncio.ensure_future(anext(messages))
            for _ in range(self.random.randrange(1, 30)):
                await asyncio.sleep(0)
            if not waiting.done():
                waiting.cancel()
            try:
                message = await waiting
            except asyncio.CancelledError:
                continue
            except StopAsyncIteration:
                return
            message.spawn(self.handle(message))

    async def main(self, consumer):
        messages = consumer.aiter()
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(self.take(messages))

    async def both(self, consumer, kill):
        """Work on this loop, and on one of another thread, until SIGTERM."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop)
        # Within the life of the handler: without one, the signal would end the process of the tests.
        killing = threading.Thread(target=kill)
        killing.start()
        try:
            async with consumer:
                other = threading.Thread(target=asyncio.run, args=[self.main(consumer)])
                other.start()
                await self.main(consumer)
        finally:
            killing.join()
        other.join(LONG)
        assert not other.is_alive()

    def run(self, queue, is_enough):
        """Consume until SIGTERM comes, which is sent when enough is done."""
        letters = {"attempts_max": 50, "dead_letters": self.letters}
        consumer = Consumer(queue.source(), decode=self.decode, drain_secs=LONG, **letters, **QUICK)

        def kill():
            try:
                wait_until(is_enough, "enough is done", LONG)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

        asyncio.run(self.both(consumer, kill))
        return consumer.stats()


class QuorumQueue:
    """A queue of RabbitMQ, as far as the hostile program needs one."""

    def __init__(self, server):
        self.url, self.name = server.url, f"hostile-{uuid.uuid4().hex[:12]}"

    def source(self):
        return RabbitMQ(self.url, self.name, declare="quorum")

    def publish(self, values):
        with RabbitMQPublisher(self.url, routing_key=self.name, declare="quorum") as publisher:
            assert not any(publisher.publish([Outgoing(value) for value in values]))

    def left(self):
        """Return how many messages are in the queue; those that a consumer has are not."""
        with pika.BlockingConnection(pika.URLParameters(self.url)) as connection:
            return connection.channel().queue_declare(self.name, passive=True).method.message_count

    def close(self):
        with pika.BlockingConnection(pika.URLParameters(self.url)) as connection:
            connection.channel().queue_delete(self.name)


@pytest.mark.slow
@pytest.mark.parametrize(("server", "kind"), [("redis", RedisHarness), ("rabbitmq", QuorumQueue)])
def test_a_hostile_program_loses_nothing_and_acks_nothing_early(server, kind, request):
    queue = kind(request.getfixturevalue(server))
    queue.lease_secs = 60.0  # where there are leases, none is to end
    hostile = Hostile(MemoryPublisher())
    good, bad = ({value for value in range(200) if (value % 10 == 7) is is_bad} for is_bad in (False, True))
    try:
        queue.publish([b"%d" % value for value in range(200)])
        hostile.run(queue, lambda: len(hostile.done) >= 80)
        unfinished = good - hostile.done.keys()
        wait_until(lambda: queue.left() >= len(unfinished), "what was not done is at the broker", LONG)
        stats = hostile.run(queue, lambda: hostile.done.keys() == good)
        assert stats.pending == 0 and hostile.done.keys() == good
        assert {int(letter.value) for letter in hostile.letters.published} <= bad
        wait_until(lambda: queue.left() <= len(bad), "what was done is acked", LONG)
    finally:
        hostile.pool.shutdown()
        queue.close()


def test_messages_that_are_there_leave_the_loop_time_for_other_tasks():
    broker = MemoryBroker()
    broker.publish([b"x"] * 800)

    async def run():
        turns = 0

        async def other():
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        task, taken = asyncio.create_task(other()), 0
        async with Consumer(MemorySource(broker)) as consumer:
            async for message in consumer.aiter():
                message.ack()
                taken += 1
                if taken == 800:
                    break
            task.cancel()
        return turns

    assert asyncio.run(run()) >= 40  # a turn after 16 messages, but for the first ones
