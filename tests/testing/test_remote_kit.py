"""The kit for task queues: a queue of threads passes it, and one with a mistake does not."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from acker import TokenError, TupleStateError, UnattributedError
from acker.remote import MemoryReplies, current, detached, job
from acker.remote.jobs import DETACHED
from acker.testing.remote import SCENARIOS, QueueContract, QueueHarness, perform


class ThreadsHarness(QueueHarness):
    """Jobs in threads of this process. No worker can be killed, and nothing expires."""

    after_exit = after_worker_kill = None
    replies = None

    def __init__(self, folder):
        super().__init__(folder)
        self.replies = MemoryReplies()
        self.told = []
        self.pool = ThreadPoolExecutor(8)
        self.owner = threading.get_ident()

    def command(self):
        raise AssertionError("there is none")

    @property
    def log(self):
        return "\n".join(self.told)

    def send(self, plan):
        part = current()
        if part is None and threading.get_ident() != self.owner:
            raise UnattributedError("a thread that works for nobody")
        token = None if part in (None, DETACHED) else part.token("work")
        if not isinstance(plan, str):
            part.not_sent("the send of work raised TypeError")
            raise TypeError("not text")
        self.send_with_token(plan, token)

    def send_with_token(self, plan, token):
        self.pool.submit(self.work, plan, token)

    def send_lost(self, plan):
        current().token("work")

    def send_unknown(self, plan):
        job(current().token("sofa"), self.replies, "sofa").fail("nobody knows it")

    def work(self, plan, token):
        with contextlib.suppress(ValueError), self.part(token):
            perform(plan, self.send)

    def part(self, token):
        try:
            return detached() if token is None else job(token, self.replies, "work")
        except TokenError as error:
            self.told.append(str(error))
            return detached()

    def close(self):
        self.pool.shutdown()
        super().close()


class EarlyHarness(ThreadsHarness):
    """It reports before the job runs."""

    def work(self, plan, token):
        if token is not None:
            with self.part(token):
                pass
        perform(plan, self.send)


class StubbornHarness(ThreadsHarness):
    """It ends parts that have ended."""

    def __init__(self, folder):
        super().__init__(folder)
        self.pool = ThreadPoolExecutor(1)

    def work(self, plan, token):
        with self.part(token) as part:
            perform(plan, self.send)
            try:
                part.ack()
            except TupleStateError as error:
                self.told.append(repr(error))


class UntrackedHarness(ThreadsHarness):
    """What jobs send has no token."""

    def send(self, plan):
        part = current()
        is_first = part is not None and not repr(part).startswith("<Job ")
        self.send_with_token(plan, part.token("work") if is_first else None)


@pytest.fixture
def harness(request, tmp_path):
    harness = request.param(tmp_path)
    yield harness
    harness.close()


@pytest.mark.parametrize("harness", [ThreadsHarness], indirect=True)
class TestThreads(QueueContract):
    @pytest.fixture(autouse=True)
    def use(self, harness):
        self.mine = harness

    def harness(self):
        return self.mine


@pytest.mark.parametrize(
    ("harness", "broken"),
    [
        (EarlyHarness, "a_tree_ends_with_its_last_grandchild"),
        (EarlyHarness, "a_job_that_raises_fails_the_tree"),
        (StubbornHarness, "a_job_that_fails_its_part_itself_fails_the_tree"),
        (UntrackedHarness, "a_tree_is_open_while_a_grandchild_runs"),
        (UntrackedHarness, "a_thread_that_outlives_its_job_sends_nothing"),
    ],
    indirect=["harness"],
)
def test_a_queue_with_a_mistake_does_not_pass(harness, broken, monkeypatch):
    monkeypatch.setattr(type(harness), "patience_secs", 0.5)
    (scenario,) = (each for each in SCENARIOS if each.__name__ == broken)
    with pytest.raises(AssertionError):
        scenario(harness)
