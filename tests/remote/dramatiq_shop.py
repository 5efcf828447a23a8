"""A shop on Dramatiq, for the worker and the tests: the job of the kit, and what only Dramatiq has."""

import os

import dramatiq
import redis
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import GroupCallbacks, SkipMessage
from dramatiq.rate_limits.backends import RedisBackend

import acker.remote.dramatiq
from acker.remote.redis import RedisReplies
from acker.testing.remote import JobNotes, perform

URL = os.environ["ACKER_SHOP_REDIS"]
BROKER = os.environ["ACKER_SHOP_BROKER"]
QUEUE = os.environ["ACKER_SHOP_QUEUE"]

if BROKER == URL:
    broker = RedisBroker(url=URL, namespace=QUEUE, maintenance_chance=1_000_000)  # always
else:
    broker = RabbitmqBroker(url=BROKER, confirm_delivery=True)
broker.add_middleware(GroupCallbacks(RedisBackend(url=URL)))


class Skips(dramatiq.Middleware):
    def before_process_message(self, broker, message):
        if message.options.get("skipped"):
            raise SkipMessage("no time for it")


broker.add_middleware(Skips())
replies = RedisReplies(
    URL, prefix=f"{QUEUE}:replies:", socket_timeout=120.0, skip_gone="ACKER_SHOP_SKIPS" in os.environ
)
acker.remote.dramatiq.install(broker, replies)
client = redis.Redis.from_url(URL, socket_timeout=120.0)
options = {"broker": broker, "queue_name": QUEUE}


@dramatiq.actor(max_retries=0, **options)
def work(plan):
    perform(plan, work.send)


@dramatiq.actor(max_retries=0, **options)
def note(folder, name, *results):
    JobNotes(folder).add("done", name)


@dramatiq.actor(max_retries=0, **options)
def composed(folder, kind):
    """Send what Dramatiq composes."""

    def post(name):
        return note.message_with_options(args=(folder, name), pipe_ignore=True)

    posts = [post(f"post {number}") for number in range(3)]
    if kind == "pipeline":
        dramatiq.pipeline(posts, broker=broker).run()
    elif kind == "group":
        dramatiq.group(posts, broker=broker).run()
    elif kind == "group with a callback":
        group = dramatiq.group(posts, broker=broker)
        group.add_completion_callback(post("callback"))
        group.run()
    else:
        # One message object, three times.
        for _ in range(3):
            broker.enqueue(posts[0])
    JobNotes(folder).add("done", kind)
