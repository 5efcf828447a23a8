"""Celery with real workers and brokers: the kit for task queues, and what only Celery has."""

import asyncio
import contextlib
import os
import sys
import threading
import uuid
from importlib.util import find_spec

import nats as nats_py
import pytest

import acker.remote.celery
from acker import ArgumentTypeError, ArgumentValueError, JobsError, RuntimeStateError
from acker.remote import tree
from acker.testing.remote import JobNotes, JobPlan, QueueContract, QueueHarness
from tests.marks import slow
from tests.remote.shops import RedisShop, lose_workers, opened


class Shop(RedisShop):
    """The app, in this process, and a worker of it."""

    module = "tests.remote.celery_shop"
    ready = " ready."
    pool = "prefork"
    runs_one_job = True
    after_process_kill = "fails"

    def __init__(self, *servers):
        super().__init__(*servers)
        self.tasks, self.app = self.shop, self.shop.app

    def command(self):
        command = [sys.executable, "-m", "celery", "-A", self.module, "worker", f"--pool={self.pool}"]
        return [*command, "--concurrency=4", "--loglevel=INFO", "--without-gossip", "--without-mingle"]

    def send(self, plan):
        self.tasks.work.delay(plan)

    def send_with_token(self, plan, token):
        self.tasks.work.apply_async((plan,), headers={"acker": token})

    def send_with_retries(self, plan, retries):
        self.tasks.retried.delay(plan, retries)

    def send_later(self, plan, secs):
        self.tasks.work.apply_async((plan,), countdown=secs)

    def send_expired(self, plan):
        self.tasks.work.apply_async((plan,), expires=-1)

    def send_revoked(self, plan):
        name = uuid.uuid4().hex
        self.app.control.revoke(name, reply=True, timeout=self.patience_secs, limit=1)
        self.tasks.work.apply_async((plan,), task_id=name)

    def send_unknown(self, plan):
        self.app.signature("sofa", (plan,)).apply_async()

    def send_with_time_limit(self, plan, secs):
        self.tasks.work.apply_async((plan,), time_limit=secs)

    def send_lost(self, plan):
        self.tasks.work.apply_async((plan,), queue=f"{self.queue_name}-without-worker")

    def kill_worker(self):
        super().kill_worker()
        # What it had is old enough for the next worker, so that no test waits for a visibility timeout.
        for tag in self.client.zrange("unacked_index", 0, -1):
            self.client.zadd("unacked_index", {tag: 0}, xx=True)

    def close(self):
        super().close()
        self.app.close()

    @contextlib.contextmanager
    def worker(self, **environ):
        self.start_worker(**environ)
        try:
            yield
        finally:
            self.kill_worker()

    @property
    def done(self):
        """What the tasks of the shop have done."""
        return sorted(text.decode() for text in self.client.lrange(f"{self.queue_name}:done", 0, -1))

    def run(self, task, *args, **options):
        """Run a task as a tree, and return what was done at its end."""
        self.client.delete(f"{self.queue_name}:done")
        with tree(self.replies) as jobs:
            task.apply_async(args, **options)
        jobs.wait(self.patience_secs)
        return self.done

    def failure_of(self, task, *args, **options):
        return self.failure(lambda: task.apply_async(args, **options))


class ThreadsShop(Shop):
    pool = "threads"
    runs_one_job = False
    after_exit = after_process_kill = None
    send_with_time_limit = QueueHarness.send_with_time_limit  # the pool has none


class SoloShop(ThreadsShop):
    pool = "solo"
    runs_one_job = True


class GeventShop(ThreadsShop):
    pool = "gevent"
    # Kombu's loop for this pool looks for tasks of killed workers only when its `BRPOP` does not end first.
    after_worker_kill = None


class NATSRepliesShop(Shop):
    """Tasks over Redis, and reports over NATS."""

    def __init__(self, folder, redis, nats):
        self._nats = nats
        os.environ["ACKER_SHOP_NATS"] = nats.url
        super().__init__(folder, redis)

    @contextlib.contextmanager
    def replies_away(self):
        self._nats.kill()
        try:
            yield
        finally:
            self._nats.start()

    def forget_replies(self):
        async def forget():
            client = await nats_py.connect(self._nats.url)
            await client.jsm().delete_stream(f"{self.queue_name}-replies")
            await client.close()

        asyncio.run(forget())

    def close(self):
        super().close()
        del os.environ["ACKER_SHOP_NATS"]


@pytest.fixture(scope="module")
def shop(redis, tmp_path_factory):
    with opened(Shop, tmp_path_factory.mktemp("shop"), redis) as shop:
        shop.start_worker()
        yield shop


@pytest.fixture
def own_shop(redis, tmp_path):
    """A shop whose workers a test runs itself."""
    with opened(Shop, tmp_path, redis) as shop:
        yield shop


pytestmark = pytest.mark.leaves_behind("a worker of Celery and its connections belong to the module")


class TestCelery(QueueContract):
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


@pytest.fixture(scope="class")
def other_shop(request, redis, tmp_path_factory):
    with opened(request.cls.kind, tmp_path_factory.mktemp("shop"), redis, *request.cls.brokers(request)) as shop:
        shop.start_worker()
        yield shop


class OtherShops(QueueContract):
    @pytest.fixture(autouse=True)
    def use(self, other_shop):
        self.shop = other_shop

    def harness(self):
        return self.shop

    @staticmethod
    def brokers(request):
        return []


@pytest.mark.soak
class TestThreads(OtherShops):
    kind = ThreadsShop


@pytest.mark.soak
class TestSolo(OtherShops):
    kind = SoloShop


if find_spec("gevent"):

    @pytest.mark.slow
    class TestGevent(OtherShops):
        kind = GeventShop


@pytest.mark.slow
@pytest.mark.usefixtures("rabbitmq")
class TestRabbitMQ(OtherShops):
    kind = Shop

    @staticmethod
    def brokers(request):
        return [request.getfixturevalue("rabbitmq")]


@pytest.mark.soak
@pytest.mark.usefixtures("nats")
class TestNATSReplies(OtherShops):
    kind = NATSRepliesShop

    @staticmethod
    def brokers(request):
        return [request.getfixturevalue("nats")]


THREE = ["post 0", "post 1", "post 2"]


def packed(text):
    return [f"pack {text}", f"post {text} 0", f"post {text} 1"]


@pytest.mark.parametrize(
    ("kind", "done"),
    [
        ("chain", THREE),
        ("group", THREE),
        ("chord", [*THREE, "body"]),
        ("chord in a chain", [*THREE, "first", "body", *packed("last")]),
        ("link", ["post 0", *packed("linked")]),
    ],
)
def test_what_a_canvas_sends_is_awaited(shop, kind, done):
    assert shop.run(shop.tasks.canvas, kind) == sorted([*done, "canvas"])


@pytest.mark.parametrize(
    ("kind", "done"), [("task", packed("in its place")), ("group", ["post 0", *packed("1")])], ids=["task", "group"]
)
def test_a_task_in_the_place_of_another_is_awaited(shop, kind, done):
    assert shop.run(shop.tasks.replaced, kind) == sorted([*done, "replaced"])


@pytest.mark.parametrize(("kind", "reason"), [("rejects", "ends: Reject: "), ("ignores", "ends: Ignore: not now")])
def test_a_task_that_is_rejected_or_ignored_fails_the_tree(shop, kind, reason):
    assert reason in shop.failure_of(shop.tasks.ends, kind)


def test_a_soft_time_limit_fails_the_tree(shop):
    plan = JobPlan(str(shop.folder), "soft", ends="hangs").text
    assert "work: SoftTimeLimitExceeded: " in shop.failure_of(shop.tasks.work, plan, soft_time_limit=1)


def test_reasons_say_how_a_task_ended_that_did_not_run_to_its_end(shop):
    killed = JobPlan(str(shop.folder), "killed", ends="is killed").text
    assert "work: WorkerLostError: Worker exited prematurely: signal 9" in shop.failure_of(shop.tasks.work, killed)
    assert "post: it expired before it ran" in shop.failure_of(shop.tasks.post, expires=-1)
    assert "sofa: the worker knows no task of this name" in shop.failure_of(shop.app.signature("sofa"))


def test_a_run_that_was_put_back_does_not_count(shop):
    done = shop.run(shop.tasks.requeued)
    assert set(packed("of a run that counts")) <= set(done)
    # Nobody waits for these, and the next test looks at what is done.
    shop.wait_until(lambda: set(packed("of a run that does not")) <= set(shop.done))


def test_a_task_that_the_main_process_sends_again_is_awaited(shop):
    assert set(packed("of a run that counts")) <= set(shop.run(shop.tasks.lost_once))
    shop.wait_until(lambda: set(packed("of a run that does not count")) <= set(shop.done))


def test_eager_tasks_are_a_part_of_the_code_that_calls_them(shop, monkeypatch):
    monkeypatch.setattr(shop.app.conf, "task_always_eager", True)
    shop.client.delete(f"{shop.queue_name}:done")
    with tree(shop.replies) as jobs:
        shop.tasks.pack.delay("eager")
    jobs.wait(0)  # nothing was sent
    assert shop.done == packed("eager")


def test_a_send_for_no_message_is_logged_where_others_are_for_one(shop, caplog):
    shop.run(shop.tasks.post)
    thread = threading.Thread(target=shop.tasks.post.delay, args=("stray",), name="stray")
    thread.start()
    thread.join()
    assert "celery_shop.post is sent by stray for no message, so none waits for it" in caplog.text
    shop.wait_until(lambda: "stray" in shop.done)


def test_a_worker_may_send_what_nobody_awaits(own_shop):
    notes = JobNotes(own_shop.folder)
    child = JobPlan(str(own_shop.folder), "child")
    with own_shop.worker(ACKER_SHOP_UNATTRIBUTED="ignore"):
        own_shop.run(own_shop.tasks.work, JobPlan(str(own_shop.folder), "job", [child], sends_in="late thread").text)
        notes.open("late job")
        own_shop.wait_until(lambda: notes.done["child"])


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.soak)])
def test_killed_workers_lose_no_message_and_none_is_acked_early(own_shop, kills):
    lose_workers(own_shop, kills, own_shop.tasks.pack.delay, lambda: own_shop.done)


@pytest.mark.soak
def test_killed_workers_on_rabbitmq_lose_no_message_and_none_is_acked_early(redis, rabbitmq, tmp_path):
    with opened(Shop, tmp_path, redis, rabbitmq) as shop:
        lose_workers(shop, 10, shop.tasks.pack.delay, lambda: shop.done)


@pytest.mark.slow
def test_no_task_counts_as_done_that_a_kill_of_the_server_has_lost(own_shop, redis):
    """Redis has the tasks and the reports here, and keeps both; but Celery takes a task before it notes that."""
    with own_shop.worker():
        own_shop.client.delete(f"{own_shop.queue_name}:done")
        with tree(own_shop.replies) as jobs:
            for number in range(20):
                own_shop.tasks.pack.delay(str(number))
        redis.kill()
        redis.start()
        try:
            jobs.wait(20)
        except TimeoutError:  # tasks are lost, and are still open
            missing, done = len(jobs.missing()), set(own_shop.done)
            assert sum(not set(packed(str(number))) <= done for number in range(20)) <= missing
        except JobsError:
            return  # a task could not send its children, so the tree has failed
        else:
            assert set(own_shop.done) == {text for number in range(20) for text in packed(str(number))}


def test_install_refuses_what_is_wrong(shop):
    with pytest.raises(RuntimeStateError, match="install was called before"):
        acker.remote.celery.install(shop.app, shop.replies)
    with pytest.raises(ArgumentTypeError, match="expected Replies"):
        acker.remote.celery.install(shop.app, "redis://")
    with pytest.raises(ArgumentTypeError, match=r"expected a celery\.Celery"):
        acker.remote.celery.install(None, shop.replies)
    with pytest.raises(ArgumentValueError, match="'raise' or 'ignore'"):
        acker.remote.celery.install(shop.app, shop.replies, unattributed="drop")
