"""A shop on RQ, for the worker and the tests: the job of the kit, and what only RQ has."""

import os

import redis
import rq

import acker.remote.rq
from acker.remote.redis import RedisReplies
from acker.testing.remote import JobNotes, perform

URL = os.environ["ACKER_SHOP_REDIS"]
QUEUE = os.environ["ACKER_SHOP_QUEUE"]


class Job(acker.remote.rq.Job):
    replies = RedisReplies(
        URL, prefix=f"{QUEUE}:replies:", socket_timeout=120.0, skip_gone="ACKER_SHOP_SKIPS" in os.environ
    )


client = redis.Redis.from_url(URL, socket_timeout=120.0)
queue = rq.Queue(QUEUE, connection=client, job_class=Job)


def work(plan):
    perform(plan, lambda child: queue.enqueue(work, child))


def retried(plan, retries):
    """Ask for a retry by what it returns."""
    try:
        work(plan)
    except ValueError:
        return rq.Retry(max=retries)
    return None


def note(folder, name):
    JobNotes(folder).add("done", name)


def note_end(job, connection, result):
    queue.enqueue(note, job.args[0], "callback")


def composed(folder, kind):
    """Enqueue in the ways that RQ has."""
    if kind == "depends_on":
        first = queue.enqueue(note, folder, "post 0")
        second = queue.enqueue(note, folder, "post 1", depends_on=first)
        queue.enqueue(note, folder, "post 2", depends_on=[first, second])
    elif kind == "many":
        queue.enqueue_many([rq.Queue.prepare_data(note, (folder, f"post {number}")) for number in range(3)])
    elif kind == "one dictionary":
        meta = {"customer": 7}
        for number in range(3):
            queue.enqueue(note, folder, f"post {number}", meta=meta)
    else:
        queue.enqueue(note, folder, "post 0", on_success=rq.Callback(note_end))
    JobNotes(folder).add("done", kind)
