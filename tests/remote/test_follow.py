"""Consumers whose messages are jobs of other consumers: over brokers in memory, and over real ones with kills."""

import contextlib
import signal
import subprocess
import sys
import threading
import uuid

import pytest

from acker import ArgumentTypeError, ConnectionLostError, JobsError, RuntimeStateError, TupleStateError
from acker.connectors import Consumer, Outgoing
from acker.connectors.handles import MessageTree
from acker.connectors.headers import is_own_header
from acker.connectors.redis_streams import RedisStreams, RedisStreamsPublisher
from acker.remote import MemoryReplies, current, detached, job, tree
from acker.remote.redis import RedisReplies
from acker.testing.connectors import MemoryBroker, MemoryPublisher, MemorySource
from tests.remote.test_trees import wait_for

QUICK = {"backoff_secs": 0.001, "backoff_secs_max": 0.002}
PATIENCE_SECS = 60.0


class Replies(MemoryReplies):
    """Replies whose server can be away."""

    def __init__(self, **options):
        super().__init__(**options)
        self.is_away = False
        self.tries = self.sent = 0

    def send(self, address, report):
        self.tries += 1
        if self.is_away:
            raise ConnectionLostError("not today")
        self.sent += 1
        return super().send(address, report)


@pytest.fixture
def replies():
    with Replies() as replies:
        yield replies


def send(broker, replies, *, block=lambda jobs: None):
    """Send a message that is a job of a tree, and return the tree."""
    with tree(replies) as jobs:
        broker.publish([b"order"], headers={"acker": jobs.token("order")})
        block(jobs)
    return jobs


@contextlib.contextmanager
def following(broker, follow, **options):
    """The messages of a consumer that follows."""
    with Consumer(MemorySource(broker), follow=follow, **{**QUICK, **options}) as consumer:
        yield iter(consumer)


@contextlib.contextmanager
def running(consumer, handle, **options):
    """A thread in which a consumer runs."""
    thread = threading.Thread(target=consumer.run, args=(handle,), kwargs={"threads": 2, **options})
    thread.start()
    try:
        yield thread
    finally:
        consumer.stop()
        thread.join()


# ---- two consumers ----


def test_a_message_is_acked_when_the_consumer_that_follows_is_done(broker, replies):
    second = MemoryBroker()
    broker.publish([b"order"])
    packs = MemoryPublisher(second)
    packs.open()

    def handle(message):
        assert packs.publish([Outgoing(b"pack")], part=message) == [None]

    owner = Consumer(MemorySource(broker), replies=replies, **QUICK)
    with running(owner, handle), following(second, replies) as messages:
        with next(messages):
            wait_for(lambda: owner.oldest() and owner.oldest()[0].jobs)
            assert [each.name for each in owner.oldest()[0].jobs] == ["memory publisher"]
            assert broker.acked == []
        broker.wait_until(lambda broker: broker.acked)
        second.wait_until(lambda broker: broker.acked)
    assert (broker.acked, second.acked) == ([b"order"], [b"pack"])


def test_the_report_is_confirmed_before_the_ack(broker, replies):
    jobs = send(broker, replies)
    with following(broker, replies) as messages:
        replies.is_away = True
        with next(messages):
            pass
        wait_for(lambda: replies.tries)
        assert broker.acked == [] and jobs.alive
        replies.is_away = False
        broker.wait_until(lambda broker: broker.acked)
    jobs.wait(PATIENCE_SECS)


def test_attempts_that_fail_are_tried_again_and_only_the_last_one_is_reported(broker, replies):
    jobs = send(broker, replies)
    with following(broker, replies) as messages:
        for _ in range(2):
            with next(messages):
                raise OSError("not yet")
        assert jobs.alive
        with next(messages) as message:
            assert message.attempt == 3
        jobs.wait(PATIENCE_SECS)
    assert replies.counts.reports == 1


@pytest.mark.parametrize("place", ["publisher", "broker"])
def test_a_message_that_is_given_up_fails_the_tree_after_its_dead_letter(replies, place):
    broker = MemoryBroker(dead_letters=True)
    letters = MemoryPublisher()
    jobs = send(broker, replies)
    options = {"dead_letters": letters if place == "publisher" else "broker", "attempts_max": 2, "name": "packer"}
    with following(broker, replies, **options) as messages:
        letters.block()
        for _ in range(2):
            with next(messages):
                raise OSError("no lamp")
        if place == "publisher":
            assert jobs.alive
        letters.unblock()
        with pytest.raises(JobsError, match=r"^packer: failed: OSError: no lamp"):
            jobs.wait(PATIENCE_SECS)
        broker.wait_until(lambda broker: broker.acked or broker.given_up)
    assert replies.counts.reports == 1


def test_a_message_that_nobody_may_take_any_more_fails_the_tree(broker, replies):
    """The broker has delivered it too often, so it becomes a dead letter without an attempt."""
    jobs = send(broker, replies)
    for _ in range(3):
        with following(broker, replies, drain_secs=0) as messages:
            next(messages)
    with following(broker, replies, deliveries_max=2, dead_letters=MemoryPublisher()):
        with pytest.raises(JobsError, match="deliveries_max is 2"):
            jobs.wait(PATIENCE_SECS)
        broker.wait_until(lambda broker: broker.acked)


def test_a_message_that_comes_twice_counts_once(broker, replies):
    broker.deliver_twice(1)
    jobs = send(broker, replies)
    with following(broker, replies) as messages:
        for _ in range(2):
            with next(messages):
                pass
        jobs.wait(PATIENCE_SECS)
        wait_for(lambda: replies.counts.reports == 2)


def test_a_consumer_that_ends_reports_nothing_and_the_next_one_does(broker, replies):
    jobs = send(broker, replies)
    with following(broker, replies, drain_secs=0) as messages:
        message = next(messages)
    assert jobs.alive and replies.counts.reports == 0 and not message.alive
    with following(broker, replies) as messages, next(messages):
        pass
    jobs.wait(PATIENCE_SECS)


def test_keys_wait_for_the_report(broker, replies):
    jobs = send(broker, replies)
    broker.publish([b"second"])
    with following(broker, replies, key=lambda delivery: 1) as messages:
        replies.is_away = True
        with next(messages):
            pass
        wait_for(lambda: replies.tries)
        replies.is_away = False
        with next(messages) as message:
            assert message.value == b"second" and replies.sent == 1
        broker.wait_until(lambda broker: broker.acked == [b"order", b"second"])
    jobs.wait(PATIENCE_SECS)


# ---- jobs of what follows ----


@pytest.mark.parametrize("own", [False, True])
def test_jobs_of_such_a_message_are_awaited(broker, replies, own):
    """By the tree that it belongs to; with `replies`, by the message itself."""
    jobs = send(broker, replies)
    options = {"replies": replies} if own else {}
    with following(broker, replies, **options) as messages:
        with next(messages) as message:
            assert current() is message
            token = current().token("post")
        if own:
            assert broker.acked == []
        else:
            broker.wait_until(lambda broker: broker.acked)
            wait_for(lambda: [each.name for each in jobs.missing()] == ["post"])
            with pytest.raises(TupleStateError):
                message.token()
        assert jobs.alive
        job(token, replies).ack()
        jobs.wait(PATIENCE_SECS)
        broker.wait_until(lambda broker: broker.acked)


def test_jobs_of_an_attempt_that_failed_are_not_awaited(broker, replies):
    jobs = send(broker, replies)
    with following(broker, replies) as messages:
        with next(messages) as message:
            message.token("of the first attempt")
            message.not_sent("the send of post raised OSError")
        with next(messages) as again:
            assert again.attempt == 2
            with pytest.raises(TupleStateError, match="its message is over"):
                message._tree.owner.jobs.token(message._tree, "late", message.child)
        jobs.wait(PATIENCE_SECS)


def test_a_message_without_a_token_is_nobodys_job(broker, replies):
    broker.publish([b"order"])
    with following(broker, replies) as messages:
        with next(messages) as message:
            assert current() is None
            with pytest.raises(RuntimeStateError, match="has come without a token, so nobody waits for more"):
                message.token("post")
        broker.wait_until(lambda broker: broker.acked)
    assert replies.tries == 0


@pytest.mark.parametrize("token", [b"a1.nonsense", "a1.nonsense", 5])
def test_a_message_with_a_broken_token_is_worked_on_and_says_so(broker, replies, caplog, token):
    broker.publish([b"order"], headers={"acker": token})
    with following(broker, replies) as messages:
        with next(messages):
            pass
        broker.wait_until(lambda broker: broker.acked)
    assert "no message waits for it: this is no token" in caplog.text
    assert replies.counts.damaged_tokens == 1


def test_tokens_may_be_bytes_as_kafka_has_them(broker, replies):
    with tree(replies) as jobs:
        broker.publish([b"order"], headers={"acker": jobs.token().encode()})
    with following(broker, replies) as messages, next(messages):
        pass
    jobs.wait(PATIENCE_SECS)


def test_a_reset_of_the_timeout_goes_to_the_owner_too(broker, replies, monkeypatch):
    second = MemoryBroker()
    broker.publish([b"order"])
    owners, reset = [], MessageTree.reset_timeout
    monkeypatch.setattr(MessageTree, "reset_timeout", lambda self: (owners.append(self.owner), reset(self)))
    with Consumer(MemorySource(broker), replies=replies, drain_secs=0) as owner:
        with next(iter(owner)) as message:
            second.publish([b"pack"], headers={"acker": message.token()})
        with following(second, replies) as messages, next(messages) as message:
            message.reset_timeout()
            wait_for(lambda: owner in owners)
        broker.wait_until(lambda broker: broker.acked)


# ---- faults ----


def test_after_the_patience_of_the_replies_messages_are_acked_and_the_log_says_so(broker, caplog):
    with Replies(report_secs=0.2) as replies:
        trees = [send(broker, replies) for _ in range(50)]
        with following(broker, replies) as messages:
            replies.is_away = True
            for _ in trees:
                with next(messages):
                    pass
            broker.wait_until(lambda broker: len(broker.acked) == 50)
        assert replies.counts.unconfirmed == 50
        assert "its report was not confirmed within 0.2 s, so its tree may time out: not today" in caplog.text
        assert all(jobs.alive for jobs in trees)


@pytest.mark.parametrize("fault", ["refuse", "fail", "raise"])
def test_a_message_that_is_not_confirmed_fails_its_tree(replies, fault):
    publisher = MemoryPublisher()
    with publisher, tree(replies) as jobs:
        if fault == "raise":
            publisher.write = None
            with pytest.raises(TypeError):
                publisher.publish([Outgoing(b"pack", to="lamps")], part=current())
        else:
            getattr(publisher, fault)()
            publisher.publish([Outgoing(b"pack", to="lamps"), Outgoing(b"pack")], part=current())
    with pytest.raises(JobsError, match="a message for memory publisher is not confirmed: "):
        jobs.wait(0)


def test_what_is_published_in_a_detached_block_or_for_nobody_has_no_token(replies):
    with MemoryPublisher() as publisher, tree(replies) as jobs, detached():
        assert publisher.publish([Outgoing(b"mail")], part=current()) == [None]
        assert publisher.publish([Outgoing(b"mail")], part=None) == [None]
    assert [each.headers for each in publisher.published] == [{}, {}]
    jobs.wait(0)


def test_a_letter_that_is_published_again_has_no_token_of_the_failed_tree(broker, replies):
    letters = MemoryBroker()
    jobs = send(broker, replies)
    options = {"dead_letters": MemoryPublisher(letters), "attempts_max": 1}
    with following(broker, replies, **options) as messages, next(messages):
        raise OSError("no lamp")
    with pytest.raises(JobsError):
        jobs.wait(PATIENCE_SECS)
    with Consumer(MemorySource(letters)) as consumer:
        assert next(iter(consumer)).headers["acker"].startswith("a1.")
    assert not is_own_header("acker")


def test_other_things_are_no_replies(broker):
    with pytest.raises(ArgumentTypeError, match="follow: expected Replies, such as RedisReplies"):
        Consumer(MemorySource(broker), follow="redis://user:s3cret@localhost")


# ---- owners that are gone, and that stop ----


@pytest.mark.parametrize("skips", [False, True])
def test_messages_of_owners_that_are_gone_are_skipped_where_this_is_wanted(broker, skips, caplog):
    with MemoryReplies(skip_gone=skips) as replies:
        send(broker, replies)
        replies.close()
        jobs = send(broker, replies)
        worked = []
        with following(broker, replies) as messages:
            for _ in range(1 if skips else 2):
                with next(messages) as message:
                    worked.append(message.headers["acker"])
            broker.wait_until(lambda broker: len(broker.acked) == 2)
        jobs.wait(PATIENCE_SECS)
        assert replies.counts.skipped == skips and ("is skipped, since nobody waits" in caplog.text) == skips


def test_an_owner_that_stops_says_how_many_jobs_run_again(broker, replies, caplog):
    broker.publish([b"order"])
    with Consumer(MemorySource(broker), replies=replies, drain_secs=0) as owner, next(iter(owner)) as message:
        for _ in range(3):
            message.token()
        job(message.token(), replies).ack()
        wait_for(lambda: message._tree.remote.open == 3)
    assert owner.stats().repeated_jobs == 3
    assert "3 jobs in other processes were not done when their messages went back: they run again" in caplog.text


# ---- from Redis to RabbitMQ and back ----

PACKER = """
import sys
from acker.connectors import Consumer, Outgoing
from acker.connectors.headers import is_own_header
from acker.connectors.rabbitmq import RabbitMQ
from acker.connectors.redis_streams import RedisStreamsPublisher
from acker.remote.redis import RedisReplies

rabbitmq, redis, queue = sys.argv[1:]
posts = RedisStreamsPublisher(redis, stream=queue + "-posts")

def pack(message):
    for number in range(2):
        posts.publish([Outgoing(message.value + b" %d" % number)], part=message)
    print("packed", flush=True)

Consumer(RabbitMQ(rabbitmq, queue, declare="quorum"), follow=RedisReplies(redis)).run(pack, threads=2)
"""


def order_posts(rabbitmq, redis, kills, count):
    """Await orders that a second consumer packs behind RabbitMQ, and a third one posts from Redis; check each ack."""
    import redis as redis_py

    from acker.connectors.rabbitmq import RabbitMQPublisher

    name = f"orders-{uuid.uuid4().hex[:8]}"
    posted, early, packers = [], [], []
    replies = RedisReplies(redis.url)
    packs = RabbitMQPublisher(rabbitmq.url, routing_key=name, declare="quorum")

    def start_packer():
        command = [sys.executable, "-c", PACKER, rabbitmq.url, redis.url, name]
        packers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))

    def check(order):
        early.extend([] if {f"{order} 0", f"{order} 1"} <= set(posted) else [order])

    def handle(message):
        assert packs.publish([Outgoing(message.value)], part=message) == [None]
        message.on_done(check, message.value.decode())

    def post(message):
        posted.append(message.value.decode())

    owner = Consumer(
        RedisStreams(redis.url, stream=name, group="owner"), replies=replies, timeout_secs=10 * PATIENCE_SECS
    )
    poster = Consumer(RedisStreams(redis.url, stream=f"{name}-posts", group="poster"), follow=replies)
    with RedisStreamsPublisher(redis.url, stream=name) as orders:
        assert orders.publish([Outgoing(b"%d" % number) for number in range(count)]) == [None] * count
    try:
        with replies, packs, running(poster, post), running(owner, handle, until="empty") as ended:
            start_packer()
            for _ in range(kills):
                packers[-1].stdout.readline()
                packers[-1].send_signal(signal.SIGKILL)
                start_packer()
            ended.join(5 * PATIENCE_SECS)  # a packer that starts on a busy machine takes half a minute
            assert not ended.is_alive(), (owner.stats(), owner.oldest().text())
    finally:
        for packer in packers:
            packer.kill()
            packer.wait()
            packer.stdout.close()
    stats = owner.stats()
    with redis_py.Redis.from_url(redis.url) as client:
        assert client.xpending(name, "owner")["pending"] == 0
    assert (early, stats.acked) == ([], count)
    assert {f"{order} {number}" for order in range(count) for number in range(2)} == set(posted)
    return stats


def test_a_message_waits_for_consumers_behind_rabbitmq_and_redis(rabbitmq, redis):
    stats = order_posts(rabbitmq, redis, kills=1, count=20)
    assert stats.timed_out == 0


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_kills_of_the_second_consumer_lose_no_message_and_none_is_acked_early(rabbitmq, redis):
    assert order_posts(rabbitmq, redis, kills=12, count=400).timed_out == 0
