"""Dramatiq with real workers and brokers: the kit for task queues, and what only Dramatiq has."""

import sys
from collections import Counter

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import MiddlewareError

import acker.remote.dramatiq
from acker import ArgumentTypeError, ArgumentValueError, RuntimeStateError
from acker.connectors import Consumer
from acker.remote import MemoryReplies, tree
from acker.testing.connectors import MemoryBroker, MemorySource
from acker.testing.remote import JobNotes, JobPlan, QueueContract
from tests.marks import slow
from tests.remote.shops import RedisShop, lose_workers, opened


class Shop(RedisShop):
    """The broker, in this process, and a worker of it: one process with four threads."""

    module = "tests.remote.dramatiq_shop"
    ready = "Worker process is ready for action."

    def command(self):
        return [sys.executable, "-m", "dramatiq", f"{self.module}:broker", "--processes=1", "--threads=4"]

    def send(self, plan):
        self.shop.work.send(plan)

    def send_with_token(self, plan, token):
        self.shop.work.send_with_options(args=(plan,), acker=token)

    def send_with_retries(self, plan, retries):
        self.shop.work.send_with_options(args=(plan,), max_retries=retries, min_backoff=1, max_backoff=2)

    def send_later(self, plan, secs):
        self.shop.work.send_with_options(args=(plan,), delay=round(1000 * secs))

    def send_expired(self, plan):
        message = self.shop.work.message_with_options(args=(plan,), max_age=1)
        self.shop.broker.enqueue(message.copy(message_timestamp=0))

    def send_revoked(self, plan):
        self.shop.work.send_with_options(args=(plan,), skipped=True)

    def send_unknown(self, plan):
        self.shop.broker.enqueue(self.shop.work.message(plan).copy(actor_name="sofa"))

    def send_with_time_limit(self, plan, secs):
        self.shop.work.send_with_options(args=(plan,), time_limit=1000 * secs)

    def send_lost(self, plan):
        queue = f"{self.queue_name}-without-worker"
        self.shop.broker.declare_queue(queue)
        self.shop.broker.enqueue(self.shop.work.message(plan).copy(queue_name=queue))

    def kill_worker(self):
        super().kill_worker()
        # What it had on Redis goes to the next worker at once, so that no test waits for a heartbeat's timeout.
        beats = f"{self.queue_name}:__heartbeats__"
        for worker in self.client.zrange(beats, 0, -1):
            self.client.zadd(beats, {worker: 0})

    def close(self):
        super().close()
        self.shop.broker.close()

    def run(self, actor, folder, *args, **options):
        """Run an actor as a tree, and return what was done at its end."""
        with tree(self.replies) as jobs:
            actor.send_with_options(args=(str(folder), *args), **options)
        jobs.wait(self.patience_secs)
        return JobNotes(folder).done


@pytest.fixture(scope="module")
def shop(redis, tmp_path_factory):
    with opened(Shop, tmp_path_factory.mktemp("shop"), redis) as shop:
        shop.start_worker()
        yield shop


@pytest.fixture(scope="module")
def rabbit_shop(redis, rabbitmq, tmp_path_factory):
    with opened(Shop, tmp_path_factory.mktemp("shop"), redis, rabbitmq) as shop:
        shop.start_worker()
        yield shop


pytestmark = pytest.mark.leaves_behind("a worker of Dramatiq and its connections belong to the module")


class TestDramatiq(QueueContract):
    test_a_job_of_an_owner_that_is_gone_is_skipped_where_this_is_wanted = slow(
        QueueContract.test_a_job_of_an_owner_that_is_gone_is_skipped_where_this_is_wanted
    )
    # Below is a quick test of that.
    test_a_job_whose_worker_is_killed_runs_again_or_fails_the_tree = slow(
        QueueContract.test_a_job_whose_worker_is_killed_runs_again_or_fails_the_tree
    )

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


POSTS = ["post 0", "post 1", "post 2"]


@pytest.mark.parametrize(
    ("kind", "done"),
    [
        ("pipeline", POSTS),
        ("group", POSTS),
        ("group with a callback", [*POSTS, "callback"]),
        ("one message three times", 3 * ["post 0"]),
    ],
)
def test_what_is_composed_is_awaited(shop, tmp_path, kind, done):
    assert shop.run(shop.shop.composed, tmp_path, kind) == Counter([*done, kind])


def test_reasons_say_how_a_message_ended_that_did_not_run(shop):
    assert shop.failure(shop.send_unknown, "{}") == "sofa: the worker knows no actor of this name"
    assert shop.failure(shop.send_expired, "{}") == "work: a middleware skipped it, such as that of age limits"
    assert shop.failure(shop.send, "{}") == "work: KeyError: 'sends'"


def test_a_group_that_a_message_begins_is_awaited_by_the_message_of_a_consumer(shop, tmp_path):
    broker, seen = MemoryBroker(), []
    broker.publish([b"order"])

    def handle(message):
        shop.shop.composed.send(str(tmp_path), "group with a callback")
        message.on_done(lambda: seen.append(JobNotes(tmp_path).done.total()))

    Consumer(MemorySource(broker), replies=shop.replies).run(handle, threads=1, until="empty")
    assert seen == [5]


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.soak)])
def test_killed_workers_lose_no_message_and_none_is_acked_early(redis, tmp_path, kills):
    with opened(Shop, tmp_path, redis) as shop:
        lose_packers(shop, kills)


@pytest.mark.soak
def test_killed_workers_on_rabbitmq_lose_no_message_and_none_is_acked_early(redis, rabbitmq, tmp_path):
    with opened(Shop, tmp_path, redis, rabbitmq) as shop:
        lose_packers(shop, 10)


def lose_packers(shop, kills):
    notes, folder = JobNotes(shop.folder), str(shop.folder)

    def pack(order):
        posts = [JobPlan(folder, f"post {order} {number}") for number in range(2)]
        shop.send(JobPlan(folder, f"pack {order}", posts).text)

    lose_workers(shop, kills, pack, lambda: list(notes.done.elements()))


def test_install_refuses_what_is_wrong(shop):
    with pytest.raises(RuntimeStateError, match="install was called before"):
        acker.remote.dramatiq.install(shop.shop.broker, shop.replies)
    with pytest.raises(ArgumentTypeError, match="expected Replies"):
        acker.remote.dramatiq.install(StubBroker(), "redis://")
    with pytest.raises(ArgumentTypeError, match=r"expected a dramatiq\.Broker"):
        acker.remote.dramatiq.install(None, shop.replies)
    with pytest.raises(ArgumentValueError, match="'raise' or 'ignore'"):
        acker.remote.dramatiq.install(StubBroker(), shop.replies, unattributed="drop")


def test_a_worker_does_not_begin_when_another_middleware_is_the_first():
    broker = StubBroker()
    acker.remote.dramatiq.install(broker, MemoryReplies())
    broker.add_middleware(dramatiq.Middleware(), before=type(broker.middleware[0]))
    worker = dramatiq.Worker(broker)
    with pytest.raises(MiddlewareError, match="has to be the first middleware"):
        worker.start()
