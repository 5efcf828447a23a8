"""A shop on Celery: tasks of every way to end, for the worker and the tests. Each run writes its name to Redis."""

import contextvars
import os
import signal
import threading
import time

import redis
from celery import Celery, chain, chord, group
from celery.exceptions import Ignore, Reject

import acker.remote.celery
from acker.remote import current, detached
from acker.remote.redis import RedisReplies

URL = os.environ["ACKER_SHOP_REDIS"]
QUEUE = os.environ["ACKER_SHOP_QUEUE"]

app = Celery("shop", broker=URL, backend=URL, set_as_current=False)
app.conf.update(
    task_acks_late=True,
    task_default_queue=QUEUE,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": float(os.environ.get("ACKER_SHOP_VISIBILITY", "3600"))},
)
replies = RedisReplies(URL, prefix=f"{QUEUE}:replies:", socket_timeout=120.0)
acker.remote.celery.install(app, replies, unattributed=os.environ.get("ACKER_SHOP_UNATTRIBUTED", "raise"))
client = redis.Redis.from_url(URL, socket_timeout=120.0)


def note(text):
    """Write what has been done: the truth."""
    client.rpush(f"{QUEUE}:done", text)


def wait_for(name):
    """Wait until the test says so."""
    assert client.blpop(f"{QUEUE}:{name}", timeout=120), name


@app.task
def post(text="post"):
    note(text)
    return text


@app.task
def pack(text, posts=2):
    for number in range(posts):
        post.delay(f"post {text} {number}")
    note(f"pack {text}")


@app.task
def split(packs=3):
    for number in range(packs):
        pack.delay(str(number))
    note("split")


@app.task
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


@app.task(bind=True)
def replaced(self, kind):
    note("replaced")
    raise self.replace(pack.si("in its place") if kind == "task" else group(post.si("post 0"), pack.si("1")))


@app.task(bind=True, max_retries=2, default_retry_delay=0.01)
def retried(self, times):
    pack.delay(f"of try {self.request.retries}")
    note(f"try {self.request.retries}")
    if self.request.retries < times:
        raise self.retry(exc=ValueError("no lamp"))


@app.task
def later():
    post.apply_async(("post later",), countdown=0.5)


@app.task
def untracked_send():
    with detached():
        post.delay("detached")


@app.task
def in_a_thread():
    """A thread without its task's context, of the only task of its process."""
    thread = threading.Thread(target=pack.delay, args=("of a thread",))
    thread.start()
    thread.join()


@app.task
def outlived(kind):
    """A thread goes on when its task has reported, and sends then."""

    def send():
        wait_for("outlived")
        try:
            post.delay("too late")
        except Exception as error:  # noqa: BLE001 - the test looks which one
            note(f"refused: {type(error).__name__}")

    run = contextvars.copy_context().run if kind == "with its context" else lambda work: work()
    threading.Thread(target=run, args=(send,)).start()


@app.task
def swallows():
    try:
        post.delay(object())
    except Exception:  # noqa: BLE001 - as careless code does
        note("swallowed")


@app.task(bind=True)
def ends(self, kind):
    """End in some way that is no success."""
    if kind == "raises":
        raise ValueError("no lamp")
    if kind == "rejects":
        raise Reject("not mine", requeue=False)
    if kind == "ignores":
        raise Ignore("not now")
    if kind == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "hangs":
        time.sleep(600)
    if kind == "exits":
        raise SystemExit(3)


@app.task(retry_on_worker_lost=True, default_retry_delay=0.01)
def lost_once():
    """Lose the process once, after it has sent something: then Celery's main process sends the task again."""
    is_first = client.set(f"{QUEUE}:lost", "1", get=True) is None
    pack.delay("of a run that does not count" if is_first else "of a run that counts")
    if is_first:
        os.kill(os.getpid(), signal.SIGKILL)


@app.task
def requeued():
    """Goes back to the queue once, after it has sent something."""
    pack.delay("of a run that counts" if client.get(f"{QUEUE}:again") else "of a run that does not")
    if not client.set(f"{QUEUE}:again", "1", get=True):
        raise Reject("once more", requeue=True)


@app.task
def who():
    note(f"current: {current()}")
