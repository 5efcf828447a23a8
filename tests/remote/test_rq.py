"""RQ with real workers: the kit for task queues, and what only RQ has."""

import sys
from collections import Counter
from datetime import timedelta

import pytest
import rq

import acker.remote.rq
from acker import ArgumentTypeError, ArgumentValueError
from acker.remote import MemoryReplies, tree
from acker.testing.remote import JobNotes, JobPlan, QueueContract
from tests.marks import slow
from tests.remote.shops import RedisShop, opened


class Shop(RedisShop):
    """The queue, in this process, and a worker of it, which forks for each job."""

    module = "tests.remote.rq_shop"
    ready = "Listening on "
    runs_one_job = True
    threads_outlive = False
    after_process_kill = after_worker_kill = "fails"

    def __init__(self, *servers):
        super().__init__(*servers)
        self.queue = self.shop.queue

    @property
    def replies(self):
        return self.shop.Job.replies

    def command(self):
        command = [sys.executable, "-m", "rq.cli", "worker", self.queue_name, "--job-class", f"{self.module}.Job"]
        return [*command, "--url", self._redis.url, "--with-scheduler"]

    def send(self, plan):
        self.queue.enqueue(self.shop.work, plan)

    def send_with_token(self, plan, token):
        self.queue.enqueue(self.shop.work, plan, meta={"acker": token})

    def send_with_retries(self, plan, retries):
        self.queue.enqueue(self.shop.work, plan, retry=rq.Retry(max=retries))

    def send_later(self, plan, secs):
        self.queue.enqueue_in(timedelta(seconds=secs), self.shop.work, plan)

    def send_revoked(self, plan):
        self.queue.enqueue_in(timedelta(hours=1), self.shop.work, plan).cancel()

    def send_unknown(self, plan):
        self.queue.enqueue("tests.remote.rq_shop.sofa", plan)

    def send_with_time_limit(self, plan, secs):
        self.queue.enqueue(self.shop.work, plan, job_timeout=round(secs))

    def send_lost(self, plan):
        name = f"{self.queue_name}-without-worker"
        rq.Queue(name, connection=self.client, job_class=self.shop.Job).enqueue(self.shop.work, plan)

    def kill_worker(self):
        super().kill_worker()
        # What it had is abandoned for the next worker, and that looks for it, so that no test waits until RQ does so.
        registry = self.queue.started_job_registry.key
        for job in self.client.zrange(registry, 0, -1):
            self.client.zadd(registry, {job: 1})
        self.queue.release_maintenance_lock()


@pytest.fixture(scope="module")
def shop(redis, tmp_path_factory):
    with opened(Shop, tmp_path_factory.mktemp("shop"), redis) as shop:
        shop.start_worker()
        yield shop


pytestmark = pytest.mark.leaves_behind("a worker of RQ and its connections belong to the module")


class TestRQ(QueueContract):
    test_a_job_of_an_owner_that_is_gone_is_skipped_where_this_is_wanted = slow(
        QueueContract.test_a_job_of_an_owner_that_is_gone_is_skipped_where_this_is_wanted
    )

    @pytest.fixture(autouse=True)
    def use(self, shop):
        self.shop = shop

    def harness(self):
        return self.shop


POSTS = ["post 0", "post 1", "post 2"]


@pytest.mark.parametrize(
    ("kind", "done"),
    [("depends_on", POSTS), ("many", POSTS), ("one dictionary", POSTS), ("callback", ["post 0", "callback"])],
)
def test_what_is_composed_is_awaited(shop, tmp_path, kind, done):
    with tree(shop.replies) as jobs:
        shop.queue.enqueue(shop.shop.composed, str(tmp_path), kind)
    jobs.wait(shop.patience_secs)
    assert JobNotes(tmp_path).done == Counter([*done, kind])


def test_a_retry_that_a_job_returns_is_awaited(shop, tmp_path):
    plan = JobPlan(str(tmp_path), "job", [JobPlan(str(tmp_path), "child of run {run}")], ends="raises", fails=1)
    with tree(shop.replies) as jobs:
        shop.queue.enqueue(shop.shop.retried, plan.text, 2)
    jobs.wait(shop.patience_secs)
    assert JobNotes(tmp_path).done == Counter(["job", "child of run 1", "child of run 2"])


def test_reasons_say_how_a_job_ended(shop):
    plan = JobPlan(str(shop.folder), "killed", ends="is killed").text
    assert "work: Work-horse terminated unexpectedly; waitpid returned 9 (signal 9)" in shop.failure(shop.send, plan)
    assert shop.failure(shop.send_revoked, plan) == "tests.remote.rq_shop.work: it was cancelled"


def test_a_job_class_without_replies_is_refused(shop):
    with pytest.raises(ArgumentTypeError, match="has no replies"):
        rq.Queue("none", connection=shop.shop.client, job_class=acker.remote.rq.Job).enqueue(shop.shop.work, "")
    with pytest.raises(ArgumentTypeError, match="has no replies"):
        type("Job", (acker.remote.rq.Job,), {})
    with pytest.raises(ArgumentValueError, match="'raise' or 'ignore'"):
        type("Job", (acker.remote.rq.Job,), {"replies": MemoryReplies(), "unattributed": "drop"})
