"""taskiq with real workers and brokers: the kit for task queues, and what only taskiq has."""

import asyncio
import contextlib
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import taskiq.exceptions
from taskiq import AckableMessage, InMemoryBroker, SimpleRetryMiddleware, TaskiqMiddleware
from taskiq.formatters.proxy_formatter import ProxyFormatter
from taskiq.receiver import Receiver

import acker.remote.taskiq
from acker import ArgumentTypeError, ArgumentValueError, JobsError, RuntimeStateError
from acker.remote import MemoryReplies, current, runs, tree
from acker.testing.remote import QueueContract, QueueHarness
from tests.remote.shops import RedisShop, opened


class Shop(RedisShop):
    """The broker, on a loop in a thread of this process, and a worker of it."""

    module = "tests.remote.taskiq_shop"
    ready = "Listening started"
    skips = {}
    # `RedisStreamBroker` looks for messages of killed workers only when another one has come.
    after_worker_kill = None

    def __init__(self, *servers):
        super().__init__(*servers)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.call(self.shop.broker.startup())

    def call(self, work):
        """Run a coroutine on the loop, in the context of this thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(self.patience_secs)

    def command(self):
        return [sys.executable, "-m", "taskiq", "worker", f"{self.module}:broker", "--workers=1"]

    def send(self, plan):
        self.call(self.shop.work.kiq(plan))

    def send_with_token(self, plan, token):
        self.call(self.shop.kicker(acker=token).kiq(plan))

    def send_with_retries(self, plan, retries):
        self.call(self.shop.kicker(retry_on_error=True, max_retries=retries + 1).kiq(plan))

    def send_unknown(self, plan):
        self.call(self.shop.kicker("sofa").kiq(plan))

    def send_with_time_limit(self, plan, secs):
        self.call(self.shop.kicker(timeout=secs).kiq(plan))

    def send_lost(self, plan):
        self.call(self.shop.kicker(queue_name=f"{self.queue_name}-without-worker").kiq(plan))

    def close(self):
        self.call(self.shop.broker.shutdown())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        super().close()


class RabbitShop(Shop):
    after_worker_kill = "repeats"
    send_lost = QueueHarness.send_lost  # there is one queue

    def send_later(self, plan, secs):
        self.call(self.shop.kicker(delay=secs).kiq(plan))


@pytest.fixture(scope="module")
def shop(redis, tmp_path_factory):
    with opened(Shop, tmp_path_factory.mktemp("shop"), redis) as shop:
        shop.start_worker()
        yield shop


@pytest.fixture(scope="module")
def rabbit_shop(redis, rabbitmq, tmp_path_factory):
    with opened(RabbitShop, tmp_path_factory.mktemp("shop"), redis, rabbitmq) as shop:
        shop.start_worker()
        yield shop


pytestmark = pytest.mark.leaves_behind("a worker of taskiq and its connections belong to the module")


@pytest.mark.slow
class TestTaskiq(QueueContract):
    @pytest.fixture(autouse=True)
    def use(self, shop):
        self.shop = shop

    def harness(self):
        return self.shop


@pytest.mark.slow
class TestRabbitMQ(QueueContract):
    @pytest.fixture(autouse=True)
    def use(self, rabbit_shop):
        self.shop = rabbit_shop

    def harness(self):
        return self.shop


# ---- in one process ----


@pytest.fixture(autouse=True)
def _integrated(monkeypatch):
    monkeypatch.setattr(runs, "INTEGRATED", set())  # else consumers of other tests would warn


class Orders:
    """A broker of taskiq in memory whose tasks note what they do, and replies in memory."""

    def __init__(self, *middlewares):
        self.done, self.replies = [], MemoryReplies()
        self.broker = InMemoryBroker()
        self.broker.add_middlewares(*middlewares)
        acker.remote.taskiq.install(self.broker, self.replies)

        async def post(item):
            self.done.append(item)

        async def pack(order):
            for item in order.split():
                await self.post.kiq(item)

        async def fails(runs):
            self.done.append("run")
            await self.post.kiq(f"post of run {self.done.count('run')}")
            if self.done.count("run") <= runs:
                raise LookupError("no lamp")

        self.post, self.pack, self.fails = map(
            self.broker.register_task, (post, pack, fails), ("post", "pack", "fails")
        )

    def run(self, send):
        """Run what is sent as a tree; return what is done at its end."""

        async def run():
            await self.broker.startup()
            with tree(self.replies) as jobs:
                await send()
            try:
                await asyncio.to_thread(jobs.wait, 60)
            finally:
                await self.broker.shutdown()

        with self.replies:
            asyncio.run(run())
        return sorted(self.done)


def test_a_tree_ends_with_the_last_task_that_a_task_sends():
    orders = Orders()
    assert orders.run(lambda: orders.pack.kiq("lamp rug")) == ["lamp", "rug"]


def test_a_retry_is_awaited_and_what_the_run_before_it_has_sent():
    orders = Orders(SimpleRetryMiddleware(default_retry_label=True))
    assert orders.run(lambda: orders.fails.kiq(1)) == ["post of run 1", "post of run 2", "run", "run"]


def test_a_task_that_raises_fails_the_tree():
    orders = Orders()
    with pytest.raises(JobsError, match="fails: LookupError: no lamp"):
        orders.run(lambda: orders.fails.kiq(1))


@pytest.mark.parametrize("end", ["ack", "fail"])
def test_a_task_that_ends_its_part_itself_is_acked_and_its_result_saved(end, monkeypatch):
    kicked, acked = [], []

    async def kick(_, message):
        kicked.append(message.message)

    async def ends_itself():
        getattr(current(), end)()
        return "packed"

    async def send():
        sent = await task.kiq()
        message = AckableMessage(data=kicked[0], ack=lambda: acked.append(sent.task_id))
        await Receiver(orders.broker, run_startup=False).callback(message)
        assert acked == [sent.task_id]
        assert (await sent.get_result()).return_value == "packed"

    monkeypatch.setattr(InMemoryBroker, "kick", kick)
    orders = Orders()
    task = orders.broker.register_task(ends_itself, "ends_itself")
    with (
        contextlib.nullcontext() if end == "ack" else pytest.raises(JobsError, match="ends_itself: no reason was given")
    ):
        orders.run(send)


def test_a_task_that_wants_no_result_is_done_and_one_that_a_schedule_repeats_is_not():
    class SchedulesRetries(TaskiqMiddleware):
        def on_error(self, message, result, exception):
            if message.task_name == "fails":  # as SmartRetryMiddleware with a schedule source
                result.error = taskiq.exceptions.NoResultError()

    async def wants_none():
        raise taskiq.exceptions.NoResultError

    orders = Orders(SchedulesRetries())
    assert orders.run(orders.broker.register_task(wants_none, "wants_none").kiq) == []
    orders = Orders(SchedulesRetries())
    with pytest.raises(JobsError, match="fails: NoResultError"):
        orders.run(lambda: orders.fails.kiq(1))


def test_reports_need_no_thread_that_tasks_use():
    """Else tasks that wait for others in threads could keep these from reporting for ever."""
    orders, done = Orders(), threading.Event()

    async def waits():
        assert await asyncio.to_thread(done.wait, 60)

    waiting = orders.broker.register_task(waits, "waits")

    async def send():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        await waiting.kiq()
        with tree(orders.replies) as jobs:
            await orders.post.kiq("lamp")
        while jobs.missing():
            await asyncio.sleep(0.01)
        done.set()

    assert orders.run(send) == ["lamp"]


def test_what_cannot_be_written_fails_the_tree():
    orders = Orders()

    async def send():
        with pytest.raises(taskiq.exceptions.SendTaskError):
            await orders.post.kiq(threading.Lock())

    with pytest.raises(JobsError, match="the send of post raised"):
        orders.run(send)


def test_a_middleware_that_stops_a_task_leaves_no_run_behind():
    class Stops(TaskiqMiddleware):
        def pre_execute(self, message):
            raise OSError("not today")

    orders = Orders(Stops())
    ends = orders.broker.middlewares[0]

    async def send():
        await orders.pack.kiq("lamp")
        (task,) = orders.broker._running_tasks
        with pytest.raises(OSError, match="not today"):
            await task
        await asyncio.sleep(0)  # for the callbacks of the task
        assert (ends._runs._runs, ends._before, ends._running) == ({}, {}, {})
        raise LookupError("the test has seen it")

    with pytest.raises(LookupError):
        orders.run(send)
    orders.broker.executor.shutdown()


def test_install_refuses_what_is_wrong():
    replies, broker = MemoryReplies(), InMemoryBroker()
    acker.remote.taskiq.install(broker, replies)
    with pytest.raises(RuntimeStateError, match="install was called before"):
        acker.remote.taskiq.install(broker, replies)
    with pytest.raises(ArgumentTypeError, match="expected Replies"):
        acker.remote.taskiq.install(InMemoryBroker(), "redis://")
    with pytest.raises(ArgumentTypeError, match=r"expected a taskiq\.AsyncBroker"):
        acker.remote.taskiq.install(None, replies)
    with pytest.raises(ArgumentValueError, match="'raise' or 'ignore'"):
        acker.remote.taskiq.install(InMemoryBroker(), replies, unattributed="drop")
    with pytest.raises(ArgumentValueError, match="without skip_gone"):
        acker.remote.taskiq.install(InMemoryBroker(), MemoryReplies(skip_gone=True))


def test_a_worker_does_not_begin_when_another_middleware_is_the_first():
    broker = InMemoryBroker()
    acker.remote.taskiq.install(broker, MemoryReplies())
    broker.middlewares.insert(0, TaskiqMiddleware())
    with pytest.raises(RuntimeStateError, match="has to be the first middleware"):
        asyncio.run(broker.startup())
    del broker.middlewares[0]
    broker.with_formatter(ProxyFormatter(broker))
    with pytest.raises(RuntimeStateError, match="call install after with_formatter"):
        asyncio.run(broker.startup())
