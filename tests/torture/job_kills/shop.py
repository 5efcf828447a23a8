"""The app of the workers: an order is split, each part is packed, and each pack is posted by a task and mailed.

The mail goes over another queue, to a consumer that follows.
"""

from __future__ import annotations

import os
from typing import Any, Final

from celery import Celery

import acker.remote.celery
from acker.connectors import Outgoing, Publisher
from acker.remote import Replies, current
from tests.torture.job_kills.truth import Notes, new_name

# The longest that a tree waits for what a queue has lost.
TIMEOUT_SECS: Final = 30.0
# What Redis gives to others again when the worker that had it does not ack it.
VISIBILITY_SECS: Final = 15
PARTS: Final = 2
# Executions of one attempt that nothing disturbs.
EXECUTIONS: Final = 1 + 3 * PARTS

FOLDER: Final = os.environ["ACKER_KILLS_FOLDER"]
BROKER: Final = os.environ["ACKER_KILLS_BROKER"]
REPLIES: Final = os.environ["ACKER_KILLS_REPLIES"]
QUEUE: Final = os.environ["ACKER_KILLS_QUEUE"]
IS_REDIS: Final = BROKER.startswith("redis")

notes: Final = Notes(FOLDER)


def make_replies() -> Replies:
    """Return replies over the server of the replies."""
    if IS_REDIS:
        from acker.remote.redis import RedisReplies

        return RedisReplies(REPLIES, prefix=f"{QUEUE}:replies:")
    from acker.remote.rabbitmq import RabbitMQReplies

    return RabbitMQReplies(REPLIES)


def mails() -> Publisher:
    """Return a publisher to the queue of the mails."""
    name = f"{QUEUE}-mails"
    if IS_REDIS:
        from acker.connectors.redis_streams import RedisStreamsPublisher

        return RedisStreamsPublisher(BROKER, stream=name)
    from acker.connectors.rabbitmq import RabbitMQPublisher

    return RabbitMQPublisher(BROKER, routing_key=name, declare="quorum")


replies: Final = make_replies()
app: Final = Celery("shop", broker=BROKER, set_as_current=False)
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={"visibility_timeout": VISIBILITY_SECS} if IS_REDIS else {"confirm_publish": True},
    task_acks_late=True,
    task_default_queue=QUEUE,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
)
acker.remote.celery.install(app, replies)
_publishers: dict[int, Publisher] = {}


def _publisher() -> Publisher:
    """Return the publisher of this process: a connection does not survive a fork."""
    process = os.getpid()
    if process not in _publishers:
        _publishers[process] = mails()
    return _publishers[process]


def _split(job: str) -> None:
    packs = [new_name() for _ in range(PARTS)]
    for each in packs:
        pack.delay(each)
    notes.executed(job, packs)


def _pack(job: str) -> None:
    mail, letter = new_name(), new_name()
    post.delay(letter)
    (fault,) = _publisher().publish([Outgoing(mail.encode())], part=current())
    if fault is not None:
        raise fault
    notes.executed(job, [letter, mail])


def _post(job: str) -> None:
    notes.executed(job, [])


split: Final[Any] = app.task(name="split", shared=False)(_split)
pack: Final[Any] = app.task(name="pack", shared=False)(_pack)
post: Final[Any] = app.task(name="post", shared=False)(_post)
