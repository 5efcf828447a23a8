"""A shop on Celery, for the worker and the tests: the job of the kit, and what only Celery has."""

import functools
import os
import signal

import redis
from celery import Celery, chain, chord, group
from celery.exceptions import Ignore, Reject

import acker.remote.celery
from acker.remote.nats import NATSReplies
from acker.remote.redis import RedisReplies
from acker.testing.remote import perform

URL = os.environ["ACKER_SHOP_REDIS"]
BROKER = os.environ["ACKER_SHOP_BROKER"]
QUEUE = os.environ["ACKER_SHOP_QUEUE"]

app = Celery("shop", broker=BROKER, backend=URL, set_as_current=False)
app.conf.update(
    task_acks_late=True,
    task_default_queue=QUEUE,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)
SKIPS = "ACKER_SHOP_SKIPS" in os.environ
if NATS := os.environ.get("ACKER_SHOP_NATS"):
    replies = NATSReplies(NATS, stream=f"{QUEUE}-replies", skip_gone=SKIPS)
else:
    replies = RedisReplies(URL, prefix=f"{QUEUE}:replies:", socket_timeout=120.0, skip_gone=SKIPS)
acker.remote.celery.install(app, replies, unattributed=os.environ.get("ACKER_SHOP_UNATTRIBUTED", "raise"))
# Not for other apps of the process: the tests import this file again for each.
task = functools.partial(app.task, shared=False)
client = redis.Redis.from_url(URL, socket_timeout=120.0)


def note(text):
    """Write what has been done: the truth."""
    client.rpush(f"{QUEUE}:done", text)


@task
def work(plan):
    perform(plan, work.delay)


@task(bind=True)
def retried(self, plan, retries):
    try:
        perform(plan, work.delay)
    except ValueError as error:
        raise self.retry(exc=error, max_retries=retries, countdown=0) from error


@task
def post(text="post"):
    note(text)
    return text


@task
def pack(text, posts=2):
    for number in range(posts):
        post.delay(f"post {text} {number}")
    note(f"pack {text}")


@task
def canvas(kind):
    posts = [post.si(f"post {number}") for number in range(3)]
    work = {
        "chain": lambda: chain(*posts),
        "group": lambda: group(posts),
        "chord": lambda: chord(posts, post.si("body")),
        "chord in a chain": lambda: chain(post.si("first"), group(posts), post.si("body"), pack.si("last")),
        "link": lambda: post.signature(("post 0",), immutable=True, link=pack.si("linked")),
    }[kind]()
    work.apply_async()
    note("canvas")


@task(bind=True)
def replaced(self, kind):
    note("replaced")
    raise self.replace(pack.si("in its place") if kind == "task" else group(post.si("post 0"), pack.si("1")))


@task
def ends(kind):
    raise {"rejects": Reject("not mine", requeue=False), "ignores": Ignore("not now")}[kind]


@task(retry_on_worker_lost=True, default_retry_delay=0.01)
def lost_once():
    """Lose the process once, after it has sent something: then Celery's main process sends the task again."""
    is_first = client.set(f"{QUEUE}:lost", "1", get=True) is None
    pack.delay("of a run that does not count" if is_first else "of a run that counts")
    if is_first:
        os.kill(os.getpid(), signal.SIGKILL)


@task
def requeued():
    """Goes back to the queue once, after it has sent something."""
    pack.delay("of a run that counts" if client.get(f"{QUEUE}:again") else "of a run that does not")
    if not client.set(f"{QUEUE}:again", "1", get=True):
        raise Reject("once more", requeue=True)
