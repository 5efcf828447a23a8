"""Messages that wait for jobs in other processes, and what runs when all is done, over a broker in memory."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from acker import ArgumentTypeError, ConnectionLostError, JobsError, RuntimeStateError, TupleStateError
from acker.connectors import Consumer, current_message
from acker.connectors.consumer_view import _holder_of_job
from acker.connectors.handles import MessageTree
from acker.remote import MemoryReplies, current, detached, job, runs, tree
from acker.remote.jobs import DETACHED
from acker.remote.wire import Report, ReportKind, read_token, write_report
from acker.testing.connectors import MemoryBroker, MemorySource
from tests.remote.test_trees import wait_for

QUICK = {"backoff_secs": 0.001, "backoff_secs_max": 0.002}


@pytest.fixture
def replies():
    with MemoryReplies() as replies:
        yield replies


@pytest.fixture
def one(broker, replies):
    """A consumer that has handed out one message, and its iterator."""
    broker.publish([b"order"])
    with Consumer(MemorySource(broker), replies=replies, drain_secs=0, **QUICK) as consumer:
        messages = iter(consumer)
        yield consumer, next(messages), messages


def wait_for_ack(broker):
    broker.wait_until(lambda broker: broker.acked == [b"order"])


# ---- what the code works for ----


def told():
    """Return the message and the part that this code works for."""
    message = current_message()
    return message and message.key, current()


def test_a_job_within_a_message_and_a_message_within_a_job_hide_nothing_of_each_other(broker, replies, one):
    _, message, _ = one
    with message:
        assert told() == ("memory/0", message)
        with job(message.token(), replies) as inner:
            assert told() == ("memory/0", inner)
            with message.child() as child:
                assert told() == ("memory/0", child)
                with detached():
                    assert told() == ("memory/0", DETACHED)
                assert told() == ("memory/0", child)
            assert told() == ("memory/0", inner)
        assert told() == ("memory/0", message)
    assert told() == (None, None)
    wait_for_ack(broker)


@pytest.mark.parametrize("awaits_jobs", [True, False])
def test_a_job_that_takes_messages_works_for_both(broker, replies, awaits_jobs):
    """What is sent for a message whose consumer awaits no jobs is awaited by the job around it."""
    broker.publish([b"order"])
    options = {"replies": replies} if awaits_jobs else {}
    with tree(replies) as jobs:
        token = jobs.token("take")
    with Consumer(MemorySource(broker), **options) as consumer:
        with job(token, replies) as outer:
            message = next(iter(consumer))
            with message:
                assert told() == ("memory/0", message if awaits_jobs else outer)
            assert told() == (None, outer)
        assert told() == (None, None)
        wait_for_ack(broker)
    jobs.wait(60)


# ---- tokens ----


def test_a_message_is_acked_when_the_last_job_that_derives_from_it_has_reported(broker, replies, one):
    consumer, message, _ = one
    with message:
        tokens = [message.token("split"), current().token("bill")]
    with job(tokens[0], replies, "split") as split:
        below = split.token("pack")
    with job(tokens[1], replies):
        pass
    wait_for(lambda: [each.name for each in consumer.oldest()[0].jobs] == ["pack"])
    assert consumer.oldest()[0].jobs[0].made_by == "split"
    assert broker.acked == [] and message.alive
    with job(below, replies, "pack"):
        pass
    wait_for_ack(broker)


def test_jobs_that_are_done_before_the_block_ends_do_not_end_the_message(broker, replies, one):
    _, message, _ = one
    with message:
        with job(message.token(), replies):
            pass
        wait_for(lambda: replies.counts.reports == 1)
        token = message.token()
        assert message.alive
    assert broker.acked == []
    job(token, replies).ack()
    wait_for_ack(broker)


def test_a_failed_job_fails_the_message_with_its_reason_and_it_is_tried_again(broker, replies, one):
    _, message, messages = one
    with message:
        token = message.token("pack")
    job(token, replies, "pack").fail("no lamp")
    again = next(messages)
    assert again.attempt == 2
    with again:
        pass
    wait_for_ack(broker)
    # The first attempt is over: what its jobs say now changes nothing.
    job(token, replies).fail("late")
    wait_for(lambda: replies.counts.late == 1)


@pytest.mark.parametrize("kind", ["thread", "coroutine", "on its own"])
def test_the_current_part_follows_into_threads_of_submit_and_coroutines(broker, replies, one, kind):
    _, message, _ = one
    tokens = []

    def work():
        tokens.append(current().token("pack"))

    async def main():
        with message:
            await message.spawn(asyncio.to_thread(work))

    if kind == "coroutine":
        asyncio.run(main())
    elif kind == "on its own":
        thread = threading.Thread(target=lambda: tokens.append(current()))
        with message:
            thread.start()
            thread.join()
            tokens[:] = [message.token()] if tokens == [None] else []
    else:
        with ThreadPoolExecutor(1) as pool, message:
            message.submit(pool, work).result()
    assert current() is None and broker.acked == []
    job(tokens[0], replies).ack()
    wait_for_ack(broker)


def test_tokens_need_replies_and_an_open_handle(broker, replies, one):
    _, message, _ = one
    with message:
        child = message.child()
    with pytest.raises(TupleStateError, match="take tokens before"):
        message.token()
    child.ack()
    wait_for_ack(broker)
    with pytest.raises(ArgumentTypeError, match="replies: expected Replies, such as RedisReplies"):
        Consumer(MemorySource(broker), replies="redis://user:s3cret@localhost")
    other = MemoryBroker()
    other.publish([b"order"])
    with Consumer(MemorySource(other), drain_secs=0) as consumer:
        message = next(iter(consumer))
        with pytest.raises(RuntimeStateError, match="tokens need a Consumer with replies="):
            message.token()
        message.ack()


def test_a_message_that_times_out_names_the_jobs_that_it_waits_for(broker, replies, caplog):
    broker.publish([b"order"])
    with Consumer(MemorySource(broker), replies=replies, timeout_secs=0.2, drain_secs=0, **QUICK) as consumer:
        for message in itertools.islice(consumer, 100):
            if "timed out: not done are pack, " in caplog.text:
                break
            with message:
                message.token("pack")  # if the machine stands still, the message has timed out before, and comes again
    assert message.attempt > 1 and "timed out: not done are pack, " in caplog.text


def test_a_job_resets_the_timeout_of_its_message(broker, replies, one, monkeypatch):
    _, message, _ = one
    rows, reset = [], MessageTree.reset_timeout
    with message:
        token = message.token()
        monkeypatch.setattr(MessageTree, "reset_timeout", lambda tree: (rows.append(tree), reset(tree)))
        job(token, replies).reset_timeout()
        wait_for(lambda: rows)
        parts = read_token(token)
        other = Report(parts.tree, parts.maker, 77, 1, 0, ReportKind.MORE_TIME)
        assert replies.send(parts.address, write_report(other))  # for a job that there is not
        job(token, replies).ack()
    wait_for_ack(broker)
    assert len(rows) == 1


@pytest.mark.parametrize("end", ["acked", "failed", "timed_out"])
def test_the_ledger_goes_with_its_message_however_that_ends(broker, replies, end):
    broker.publish([b"order"])
    options = QUICK | {"timeout_secs": 0.1} if end == "timed_out" else QUICK
    with Consumer(MemorySource(broker), replies=replies, drain_secs=0, **options) as consumer:
        with next(iter(consumer)) as message:
            token = message.token()
        if end == "acked":
            job(token, replies).ack()
        elif end == "failed":
            job(token, replies).fail("broken")
        wait_for(lambda: getattr(consumer.stats(), end))
        wait_for(lambda: not any(reader._trees for reader in replies._readers.values()))


def test_lost_replies_fail_the_message_at_once(broker, replies, one):
    _, message, messages = one
    with message:
        message.token()
    replies._inboxes.clear()
    again = next(messages)
    with again:
        token = again.token()  # with a new address
    job(token, replies).ack()
    wait_for_ack(broker)


def test_a_send_that_may_be_lost_and_too_many_jobs_fail_the_message(broker, replies, one, caplog):
    _, message, messages = one
    with message:
        message.token()
        message.not_sent("the send of pack raised OSError")
    replies.jobs_max = 1
    with next(messages) as message:
        message.token()
        with pytest.raises(JobsError, match="more than 1 jobs"):
            message.token()
    with next(messages) as message:
        assert message.attempt == 3
    wait_for_ack(broker)
    assert "failed: the send of pack raised OSError" in caplog.text


def test_replies_without_a_server_fail_the_message(broker):
    class Unreachable(MemoryReplies):
        def open_inbox(self):
            raise ConnectionLostError("not today")

    broker.publish([b"order"])
    with Consumer(MemorySource(broker), replies=Unreachable(), drain_secs=0, **QUICK) as consumer:
        messages = iter(consumer)
        with next(messages) as message:
            message.token()
        assert next(messages).attempt == 2  # not in a block of the message, which would take the error


def test_open_jobs_are_shown_in_a_notebook_and_on_the_page(broker, replies, one):
    consumer, message, _ = one
    with message:
        message.token("pack <b>")
        (known,) = consumer.oldest()
        assert "pack &lt;b&gt;" in consumer.oldest()._repr_html_() and "(pack <b>, " in consumer.oldest().text()
        (holder,) = map(_holder_of_job, known.jobs)
        assert (holder.component, holder.text) == ("pack <b>", "is a job in another process")
        job(message.token(), replies).ack()


# ---- on_done ----


def test_on_done_runs_once_when_all_is_done_and_before_the_ack(broker, replies, one):
    _, message, _ = one
    seen = []

    def receipt(number, *, text):
        seen.append((number, text, broker.acked[:], threading.current_thread().name))

    with message:
        child, token = message.child(), message.token()
        message.on_done(receipt, 1, text="a")
        message.on_done(receipt, 2, text="b")
    child.ack()
    assert seen == []
    job(token, replies).ack()
    wait_for_ack(broker)
    assert [each[:3] for each in seen] == [(1, "a", []), (2, "b", [])]
    assert "on_done" in seen[0][3]


def test_on_done_that_raises_fails_the_attempt_and_runs_again_with_the_next(broker, one, caplog):
    _, message, messages = one
    seen = []

    def receipt(attempt):
        seen.append(attempt)
        if attempt == 1:
            raise OSError("no printer")

    while True:
        with message:
            message.on_done(receipt, message.attempt)
        if message.attempt == 2:
            break
        message = next(messages)
    wait_for_ack(broker)
    assert seen == [1, 2]
    assert "OSError: no printer" in caplog.text


def test_on_done_does_not_run_for_a_message_that_failed(broker, replies, one):
    _, message, messages = one
    seen = []
    with message:
        message.on_done(seen.append, 1)
        token = message.token()
    job(token, replies).fail("broken")
    with next(messages):
        pass
    wait_for_ack(broker)
    assert seen == []


def test_what_on_done_sends_is_awaited_too(broker, replies, one):
    _, message, _ = one
    tokens = []
    with message:
        message.on_done(lambda: tokens.append(current().token("mail")))
    wait_for(lambda: tokens)
    wait_for(lambda: message._tree.parts == 1)
    assert broker.acked == []
    job(tokens[0], replies).ack()
    wait_for_ack(broker)


def test_on_done_without_replies_and_its_mistakes(broker):
    broker.publish([b"order"])

    async def coroutine():
        pass

    with Consumer(MemorySource(broker), drain_secs=0, **QUICK) as consumer:
        messages = iter(consumer)
        with next(messages) as message:
            message.on_done(coroutine)
        with next(messages) as message:
            assert message.attempt == 2
            with pytest.raises(ArgumentTypeError, match="expected a callable"):
                message.on_done(None)
        with pytest.raises(TupleStateError, match="call on_done before"):
            message.on_done(print)
        wait_for_ack(broker)


def test_handlers_work_for_their_messages(broker, replies):
    broker.publish([b"%d" % number for number in range(20)])
    seen = []

    def handle(message):
        seen.append(current() is message)
        token = current().token()
        job(token, replies).ack()

    consumer = Consumer(MemorySource(broker), replies=replies)
    assert consumer.run(handle, threads=2, until="empty").acked == 20

    async def handle_async(message):
        handle(message)

    broker.publish([b"%d" % number for number in range(20)])
    consumer = Consumer(MemorySource(broker), replies=replies)

    async def main():
        stats = await consumer.run_async(handle_async, until="empty")
        assert current() is None
        return stats

    assert asyncio.run(main()).acked == 20
    assert seen == [True] * 40


# ---- a process that is killed ----

OWNER = """
import sys
from acker.connectors import Consumer
from acker.connectors.redis_streams import RedisStreams
from acker.remote.redis import RedisReplies

source = RedisStreams(sys.argv[1], stream=sys.argv[2], group="g")
with Consumer(source, replies=RedisReplies(sys.argv[1])) as consumer:
    for message in consumer:
        with message:
            print(message.token("pack"), flush=True)
            message.on_done(print, "done", message.attempt, flush=True)
"""


def test_a_killed_owner_loses_nothing_and_its_old_jobs_end_nothing(redis):
    import redis as redis_py

    from acker.remote.redis import RedisReplies

    def owner():
        return subprocess.Popen([sys.executable, "-c", OWNER, redis.url, stream], stdout=subprocess.PIPE, text=True)

    stream = f"orders-{os.getpid()}"
    with redis_py.Redis.from_url(redis.url) as client, RedisReplies(redis.url) as replies:
        client.xadd(stream, {"value": "order"})
        with owner() as first:
            old = first.stdout.readline().strip()
            first.send_signal(signal.SIGKILL)
        # Its lease ends at once: another consumer of the group has had the message for long.
        (pending,) = client.xpending_range(stream, "g", "-", "+", 1)
        client.xclaim(stream, "g", "other", 0, [pending["message_id"]], idle=3_600_000, justid=True)
        with owner() as second:
            new = second.stdout.readline().strip()
            job(old, replies).ack()  # of a tree that nobody has any more
            assert client.xpending(stream, "g")["pending"] == 1
            job(new, replies).ack()
            assert second.stdout.readline().startswith("done")
            wait_for(lambda: client.xpending(stream, "g")["pending"] == 0)
            second.send_signal(signal.SIGKILL)


def test_a_consumer_without_replies_says_that_it_awaits_no_jobs_of_an_integrated_queue(
    broker, replies, caplog, monkeypatch
):
    """Else whoever forgot them would see his messages acked too early, and no word of it."""
    monkeypatch.setattr(runs, "INTEGRATED", set())

    def warns(**options):
        caplog.clear()
        Consumer(MemorySource(broker), **options).run(print, threads=1, until="empty")
        return "has no replies=, so messages do not wait for jobs that they send by stand-in" in caplog.text

    assert not warns()
    runs.Runs(replies, "stand-in.", "raise")
    assert warns() and not warns(replies=replies) and not warns(follow=replies)
