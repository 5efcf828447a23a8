"""Celery with real workers over a real Redis: trees end with their last task, and fail with whatever ends one."""

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

import acker.remote.celery
from acker import ArgumentTypeError, ArgumentValueError, JobsError, RuntimeStateError
from acker.connectors import Consumer
from acker.remote import tree
from acker.testing.connectors import MemoryBroker, MemorySource

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECS = 60.0


class Shop:
    """The app, in this process, and workers of it."""

    def __init__(self, url, folder):
        os.environ["ACKER_SHOP_REDIS"] = url
        os.environ["ACKER_SHOP_QUEUE"] = f"shop-{uuid.uuid4().hex[:8]}"
        sys.modules.pop("tests.remote.celery_shop", None)
        self.tasks = importlib.import_module("tests.remote.celery_shop")
        self.log = folder / "worker.log"

    def __getattr__(self, name):
        return getattr(self.tasks, name)

    @contextlib.contextmanager
    def worker(self, pool="prefork", size=2, **environ):
        """Run a worker in a session of its own, which a test may kill."""
        command = [sys.executable, "-m", "celery", "-A", "tests.remote.celery_shop", "worker", f"--pool={pool}"]
        command += [f"--concurrency={size}", "--loglevel=INFO", "--without-gossip", "--without-mingle"]
        with self.log.open("wb") as log:
            worker = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True, env=os.environ | environ
            )
        try:
            self.until(lambda: worker.poll() is not None or b" ready." in self.log.read_bytes())
            yield worker
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()

    def until(self, condition):
        pause, end = threading.Event(), time.monotonic() + PATIENCE_SECS
        while not condition():
            assert time.monotonic() < end, self.log.read_text()
            pause.wait(0.02)

    @property
    def done(self):
        """What has been done."""
        return sorted(text.decode() for text in self.client.lrange(f"{self.QUEUE}:done", 0, -1))

    def run(self, task, *args, **options):
        """Run a task as a tree, and return what was done at its end."""
        self.client.delete(f"{self.QUEUE}:done")
        with tree(self.replies) as jobs:
            task.apply_async(args, **options)
        jobs.wait(PATIENCE_SECS)
        return self.done

    def failure(self, task, *args, **options):
        with pytest.raises(JobsError) as caught:
            self.run(task, *args, **options)
        return str(caught.value)


@contextlib.contextmanager
def opened(url, folder):
    shop = Shop(url, folder)
    yield shop
    shop.replies.close()
    shop.client.close()
    shop.app.close()


@pytest.fixture(scope="module")
def shop(redis, tmp_path_factory):
    with opened(redis.url, tmp_path_factory.mktemp("shop")) as shop:
        yield shop


@pytest.fixture
def own_shop(redis, tmp_path):
    """A shop whose workers a test runs itself."""
    with opened(redis.url, tmp_path) as shop:
        yield shop


@pytest.fixture(scope="module")
def worker(shop):
    with shop.worker() as worker:
        yield worker


pytestmark = pytest.mark.leaves_behind("a worker of Celery and its connections belong to the module")

THREE = ["post 0", "post 1", "post 2"]


def packed(text):
    return [f"pack {text}", f"post {text} 0", f"post {text} 1"]


def test_a_tree_ends_with_the_last_grandchild(shop, worker):
    assert shop.run(shop.split) == sorted([*packed("0"), *packed("1"), *packed("2"), "split"])


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
def test_what_a_canvas_sends_is_awaited(shop, worker, kind, done):
    assert shop.run(shop.canvas, kind) == sorted([*done, "canvas"])


@pytest.mark.parametrize(
    ("kind", "done"), [("task", packed("in its place")), ("group", ["post 0", *packed("1")])], ids=["task", "group"]
)
def test_a_task_in_the_place_of_another_is_awaited(shop, worker, kind, done):
    assert shop.run(shop.replaced, kind) == sorted([*done, "replaced"])


def test_a_retry_is_awaited_and_so_is_what_the_run_before_it_sent(shop, worker):
    tries = [text for number in range(3) for text in [f"try {number}", *packed(f"of try {number}")]]
    assert shop.run(shop.retried, 2) == sorted(tries)


def test_a_task_for_later_is_awaited_and_a_detached_one_is_not(shop, worker):
    assert shop.run(shop.later) == ["post later"]
    shop.run(shop.untracked_send)
    shop.until(lambda: "detached" in shop.done)


def test_a_thread_of_the_only_task_sends_for_it(shop, worker):
    assert shop.run(shop.in_a_thread) == packed("of a thread")


@pytest.mark.parametrize(
    ("kind", "error"), [("with its context", "TupleStateError"), ("without it", "UnattributedError")]
)
def test_a_thread_that_outlives_its_task_sends_nothing_and_is_told(shop, worker, kind, error):
    assert shop.run(shop.outlived, kind) == []
    shop.client.rpush(f"{shop.QUEUE}:outlived", "go")
    shop.until(lambda: shop.done == [f"refused: {error}"])


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("raises", "ends: ValueError: no lamp"),
        ("rejects", "ends: Reject: "),
        ("ignores", "ends: Ignore: not now"),
        ("is killed", "ends: WorkerLostError: Worker exited prematurely: signal 9 (SIGKILL)"),
        ("exits", "ends: WorkerLostError: "),
    ],
)
def test_a_task_that_ends_otherwise_fails_the_tree_at_once(shop, worker, kind, reason):
    assert reason in shop.failure(shop.ends, kind)


def test_a_task_that_runs_into_its_time_limit_fails_the_tree(shop, worker):
    assert "ends: TimeLimitExceeded: TimeLimitExceeded(1" in shop.failure(shop.ends, "hangs", time_limit=1)
    assert "ends: SoftTimeLimitExceeded: " in shop.failure(shop.ends, "hangs", soft_time_limit=1)


def test_a_task_that_uses_up_its_retries_fails_the_tree(shop, worker):
    assert "retried: ValueError: no lamp" in shop.failure(shop.retried, 9)


def test_a_task_that_expires_or_is_revoked_or_unknown_fails_the_tree(shop, worker):
    assert "post: it expired before it ran" in shop.failure(shop.post, expires=-1)
    shop.app.control.revoke("wanted", reply=True, timeout=PATIENCE_SECS, limit=1)
    assert "post: it was revoked" in shop.failure(shop.post, task_id="wanted")
    assert "sofa: the worker knows no task of this name" in shop.failure(shop.app.signature("sofa"))


def test_a_send_that_raises_and_is_swallowed_fails_the_tree(shop, worker):
    assert "swallows: the send of tests.remote.celery_shop.post raised EncodeError" in shop.failure(shop.swallows)


def test_a_run_that_was_put_back_does_not_count(shop, worker):
    done = shop.run(shop.requeued)
    assert set(packed("of a run that counts")) <= set(done)


def test_a_task_that_the_main_process_sends_again_is_awaited(shop, worker):
    assert set(packed("of a run that counts")) <= set(shop.run(shop.lost_once))


def test_a_send_for_no_message_is_logged_where_others_are_for_one(shop, worker, caplog):
    shop.run(shop.post)
    thread = threading.Thread(target=shop.post.delay, args=("stray",), name="stray")
    thread.start()
    thread.join()
    assert "celery_shop.post is sent by stray for no message, so none waits for it" in caplog.text
    shop.until(lambda: "stray" in shop.done)


def test_a_worker_may_send_what_nobody_awaits(own_shop):
    with own_shop.worker(ACKER_SHOP_UNATTRIBUTED="ignore"):
        own_shop.run(own_shop.outlived, "without it")
        own_shop.client.rpush(f"{own_shop.QUEUE}:outlived", "go")
        own_shop.until(lambda: "too late" in own_shop.done)


def test_a_token_that_is_none_lets_the_task_run_and_logs_an_error(shop, worker):
    def seen():
        return [text for text in shop.done if "current" in text]

    shop.who.apply_async(headers={"acker": "a1.nonsense"})
    shop.until(lambda: len(seen()) == 1)
    assert "and no message waits for it: this is no token" in shop.log.read_text()
    shop.who.apply_async(headers={"acker": "a2." + "A" * 44})
    shop.until(lambda: len(seen()) == 2)
    assert all("_Detached" in text for text in seen())


def test_a_message_of_a_consumer_is_acked_after_the_last_task(shop, worker):
    broker, acked_when = MemoryBroker(), []
    broker.publish([b"3"])
    shop.client.delete(f"{shop.QUEUE}:done")

    def handle(message):
        shop.split.delay(int(message.value))
        message.on_done(lambda: acked_when.extend(shop.done))

    assert Consumer(MemorySource(broker), replies=shop.replies).run(handle, threads=1, until="empty").acked == 1
    assert {*packed("0"), *packed("1"), *packed("2"), "split"} <= set(acked_when)


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_other_pools_await_the_same(own_shop, pool):
    with own_shop.worker(pool, 4):
        trees = []
        for _ in range(5):
            with tree(own_shop.replies) as jobs:
                own_shop.split.delay()
            trees.append(jobs)
        for jobs in trees:
            jobs.wait(PATIENCE_SECS)
        assert own_shop.run(own_shop.retried, 1) == sorted(["try 0", *packed("of try 0"), "try 1", *packed("of try 1")])
        assert "ends: ValueError: no lamp" in own_shop.failure(own_shop.ends, "raises")


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_killed_workers_lose_no_message_and_none_is_acked_early(own_shop, kills):
    """All processes of a worker are killed again and again; Celery's queue delivers what they had once more."""
    broker, early = MemoryBroker(), []
    count = 6 * kills
    broker.publish(b"%d" % number for number in range(count))
    own_shop.client.delete(f"{own_shop.QUEUE}:done")

    def check(order):
        missing = {f"post {order} {number}" for number in range(2)} - set(own_shop.done)
        early.extend([(order, missing)] if missing else [])

    def handle(message):
        own_shop.pack.delay(message.value.decode())
        message.on_done(check, message.value.decode())

    consumer = Consumer(MemorySource(broker), replies=own_shop.replies, timeout_secs=40, backoff_secs=0.01)
    owner = threading.Thread(target=consumer.run, args=(handle,), kwargs={"threads": 2, "until": "empty"})
    owner.start()
    for number in range(kills):
        with own_shop.worker(ACKER_SHOP_VISIBILITY="4"):
            own_shop.until(lambda more=3 * number + 1: len(own_shop.done) > more)
    with own_shop.worker(ACKER_SHOP_VISIBILITY="4"):
        own_shop.until(lambda: not owner.is_alive())
    owner.join()
    assert early == []
    assert sorted(broker.acked) == sorted({b"%d" % number for number in range(count)})


@pytest.mark.slow
def test_no_task_counts_as_done_that_a_kill_of_the_server_has_lost(own_shop, redis):
    """Redis has the tasks and the reports here, and keeps both; but Celery takes a task before it notes that."""
    with own_shop.worker(ACKER_SHOP_VISIBILITY="4"):
        own_shop.client.delete(f"{own_shop.QUEUE}:done")
        with tree(own_shop.replies) as jobs:
            for number in range(20):
                own_shop.pack.delay(str(number))
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
