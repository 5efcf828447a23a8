"""Replies over a real NATS; what all replies share is in test_trees.py."""

import asyncio
import contextlib
import logging
import signal
import subprocess
import sys
import threading
import uuid
from importlib.util import find_spec

import nats as nats_py
import pytest
from nats.js.api import RetentionPolicy, StreamConfig
from nats.js.errors import NotFoundError

from acker import ArgumentValueError, ConnectionLostError, JobsError
from acker.connectors import Consumer, Outgoing
from acker.connectors.nats import JetStream, JetStreamPublisher
from acker.remote import fail, job, tree
from acker.remote.nats import NATSReplies
from acker.remote.replies import GoneError
from acker.remote.wire import read_token
from acker.testing.connectors import MemoryPublisher
from tests.marks import slow_after
from tests.remote.test_trees import error_of_fork, report_from_forks_and_threads, wait_for

PATIENCE_SECS = 120.0
STREAM = "acker-replies"


@pytest.fixture
def replies(nats):
    with NATSReplies(nats.url, report_secs=PATIENCE_SECS) as replies:
        yield replies


@pytest.fixture
def ask(nats):
    """Call a method of the management of JetStream; None if there is no such thing."""

    async def answer(method, *args, **options):
        client = await nats_py.connect(nats.url)
        try:
            return await getattr(client.jsm(timeout=PATIENCE_SECS), method)(*args, **options)
        except NotFoundError:
            return None
        finally:
            await client.close()

    return lambda *args, **options: asyncio.run(answer(*args, **options))


def name_of(token):
    return read_token(token).address.hex()


def test_a_tree_over_nats_ends_and_an_owner_that_is_gone_is_known(nats, replies, ask, caplog):
    with tree(replies) as jobs:
        token = jobs.token("split")
    with NATSReplies(nats.url) as elsewhere:
        with job(token, elsewhere, "split") as part:
            assert part.alive
            below = [part.token("pack") for _ in range(3)]
        for each in below:
            job(each, elsewhere).ack()
        jobs.wait(PATIENCE_SECS)
        replies.close()
        part = job(token, elsewhere, "split")
        assert not part.alive
        part.ack()
        assert elsewhere.counts.unowned == 1 and "nobody waits for <Job split, ended> any more" in caplog.text
    assert ask("consumer_info", STREAM, name_of(token)) is None
    wait_for(lambda: ask("stream_info", STREAM).state.messages == 0)


@pytest.mark.parametrize("method", ["delete_consumer", "delete_stream"])
def test_a_consumer_that_is_lost_fails_open_trees_at_once(replies, ask, method):
    with tree(replies) as jobs:
        token = jobs.token()
    ask(method, STREAM, *[name_of(token)][: method == "delete_consumer"])
    with pytest.raises(JobsError, match="the consumer of the replies is gone: it or its stream was deleted"):
        jobs.wait(PATIENCE_SECS)
    part = job(token, replies)
    assert not part.alive
    part.ack()
    with tree(replies) as jobs:  # the next one has another address
        job(jobs.token(), replies).ack()
    jobs.wait(PATIENCE_SECS)
    assert (replies.counts.lost_addresses, replies.counts.unowned) == (1, 1)


@pytest.mark.slow
def test_a_process_that_stood_still_for_too_long_learns_it(nats):
    """NATS does not answer a request to a consumer that is not there."""
    with NATSReplies(nats.url, expiry_secs=1.1) as replies:
        inbox = replies.open_inbox()
        assert inbox.read(0.01) == []
        wait_for(lambda: not replies.has(inbox.address))
        inbox._arrived.clear()
        inbox._left = 0  # whatever the server has said of the last request

        def read():
            inbox._request_end = float("-inf")  # as if it had waited for an answer to a request, if there is one
            return inbox.read(0.1)

        with pytest.raises(GoneError):
            wait_for(read)
        inbox.close()


def test_reports_that_a_lost_connection_has_taken_along_come_again(replies, monkeypatch):
    """An ack of later ones does not ack them."""
    monkeypatch.setattr("acker.remote.nats._ACK_WAIT_SECS", 0.2)
    inbox = replies.open_inbox()
    for number in range(10):
        assert replies.send(inbox.address, b"%d" % number)
    inbox._link.run(inbox._ask())
    wait_for(lambda: len(inbox._arrived) >= 10)
    inbox._arrived.clear()
    inbox._link.close()
    assert replies.send(inbox.address, b"later")
    found = set()
    wait_for(lambda: found.update(inbox.read(0.1)) or len(found) == 11)
    inbox.close()


def test_a_stream_that_would_lose_reports_is_refused(nats, ask):
    name = uuid.uuid4().hex
    ask("add_stream", StreamConfig(name=name, subjects=[f"{name}.*"]))
    with (
        NATSReplies(nats.url, stream=name) as replies,
        pytest.raises(ArgumentValueError, match="need a stream with the retention policy interest"),
    ):
        tree(replies)
    name = uuid.uuid4().hex
    config = StreamConfig(name=name, subjects=[f"{name}.*"], retention=RetentionPolicy.INTEREST)
    ask("add_stream", config)
    with NATSReplies(nats.url, stream=name) as replies, tree(replies) as jobs:
        job(jobs.token(), replies).ack()
    ask("update_stream", config, max_msgs=10)
    with NATSReplies(nats.url, stream=name) as replies, pytest.raises(ArgumentValueError, match="if it has limits"):
        tree(replies)


def test_reports_of_forks_and_threads_do_not_mix(replies):
    with tree(replies) as jobs:
        tokens = [[jobs.token() for _ in range(20)] for _ in range(10)]
        job(jobs.token(), replies).ack()  # there is a connection that a fork must not use
    report_from_forks_and_threads(replies, tokens)
    jobs.wait(PATIENCE_SECS)
    assert replies.counts.duplicates == 0


@pytest.mark.slow
def test_a_forked_process_has_trees_of_its_own(replies):
    with tree(replies) as jobs:
        token = jobs.token()

    def work():
        with tree(replies) as own:
            job(own.token(), replies).ack()
        own.wait(PATIENCE_SECS)
        job(token, replies).ack()
        replies.close()

    assert error_of_fork(work) == "no error"
    jobs.wait(PATIENCE_SECS)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_reports_survive_an_end_of_the_server(nats, replies, end):
    with tree(replies) as jobs:
        early, late = jobs.token("early"), jobs.token("late")
    with job(early, replies):
        pass
    getattr(nats, end)()
    threads = [threading.Thread(target=lambda: fail(late, replies, "no lamp")) for _ in range(5)]
    for thread in threads:  # they try until the server is back
        thread.start()
    nats.start()
    for thread in threads:
        thread.join()
    with pytest.raises(JobsError, match="no lamp"):
        jobs.wait(PATIENCE_SECS)
    assert replies.counts.lost_addresses == replies.counts.unconfirmed == 0


@pytest.mark.slow
def test_unread_reports_survive_a_kill_of_the_server(nats, replies):
    inbox = replies.open_inbox()
    for number in range(50):
        assert replies.send(inbox.address, b"%d" % number)
    nats.kill()
    nats.start()
    found = []

    def read():
        with contextlib.suppress(ConnectionLostError):
            found.extend(inbox.read(0.1))
        return len(found) == 50

    wait_for(read)
    inbox.close()


@pytest.mark.slow
def test_a_server_that_hangs_ends_the_patience_of_a_job_and_not_the_tree(nats, replies, caplog, monkeypatch):
    with tree(replies) as jobs:
        token = jobs.token()
    with NATSReplies(nats.url, report_secs=0.3) as impatient:
        assert job(token, impatient).alive
        monkeypatch.setattr("acker.remote.nats.ANSWER_SECS", 0.2)
        nats.pause()
        job(token, impatient, "pack").ack()
        assert "its report was not confirmed within 0.3 s, so its tree may time out: replies over" in caplog.text
        assert job(token, impatient).alive  # as far as one can know
        nats.resume()
    monkeypatch.setattr("acker.remote.nats.ANSWER_SECS", PATIENCE_SECS)
    job(token, replies).ack()
    jobs.wait(PATIENCE_SECS)


OWNER = """
import sys
from acker.remote import tree
from acker.remote.nats import NATSReplies
with tree(NATSReplies(sys.argv[1], expiry_secs=15)) as jobs:
    print(jobs.token(), flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_a_killed_owner_leaves_nothing_behind_and_its_jobs_learn_of_it(nats, replies, ask):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, nats.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with owner:
        token = owner.stdout.readline().strip()
        part = job(token, replies)
        assert part.alive
        owner.send_signal(signal.SIGKILL)
    part.reset_timeout()  # a report that nobody reads
    assert ask("stream_info", STREAM).state.messages == 1
    wait_for(lambda: not part.alive)  # a look does not put off its expiry
    part.ack()
    assert replies.counts.unowned == 1
    wait_for(lambda: ask("stream_info", STREAM).state.messages == 0)


@pytest.mark.timeout(PATIENCE_SECS)
@pytest.mark.parametrize("is_down", slow_after(1, [False, True]))
def test_the_end_of_replies_does_not_wait_until_a_read_has_waited(nats, is_down, monkeypatch):
    monkeypatch.setattr("acker.remote.replies.READ_SECS", 10 * PATIENCE_SECS)
    replies = NATSReplies(nats.url, expiry_secs=3e4)
    with tree(replies) as jobs:
        job(jobs.token(), replies).ack()
    jobs.wait(PATIENCE_SECS)
    if is_down:
        nats.kill()
    replies.close()
    nats.restore()


if find_spec("gevent"):

    @pytest.mark.slow
    def test_gevent_is_refused():
        """Two event loops of one thread would wait for each other, and reports never be sent."""
        code = (
            "from gevent import monkey; monkey.patch_all(); from acker.remote.nats import NATSReplies; NATSReplies('a')"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
        assert (
            "RuntimeStateError: replies over NATS need threads, and gevent has put greenlets in their place"
            in done.stderr
        )


def test_a_password_is_in_no_text(caplog):
    caplog.set_level(logging.DEBUG)
    secret = uuid.uuid4().hex
    with NATSReplies(f"nats://me:{secret}@127.0.0.1:9", token=secret) as replies:
        with pytest.raises(ConnectionLostError, match="replies over NATS: ") as caught:
            tree(replies)
        assert secret not in str(caught.value) + repr(replies) + str(vars(replies)) + caplog.text
    with (
        NATSReplies(f"nats://me:{secret}@[::1") as replies,
        pytest.raises(ConnectionLostError, match="invalid connect url option") as caught,
    ):
        tree(replies)
    assert secret not in str(caught.value)
    with pytest.raises(ArgumentValueError, match="expiry_secs must be finite"):
        NATSReplies("nats://localhost", expiry_secs=0)
    with pytest.raises(ArgumentValueError, match=r"stream: expected letters, digits, - and _, got 'acker\.replies'"):
        NATSReplies("nats://localhost", stream="acker.replies")


# ---- from JetStream to JetStream, with replies over NATS ----


def make_streams(ask, *names):
    for name in names:
        ask("add_stream", StreamConfig(name=name, subjects=[name]))


def pack(replies, nats, name, handle, **options):
    """Return a consumer of another stream that follows, and the thread in which it runs."""
    packer = Consumer(JetStream(nats.url, stream=name, durable="packer"), follow=replies, backoff_secs=0.01, **options)
    thread = threading.Thread(target=packer.run, args=(handle,), kwargs={"threads": 2})
    thread.start()
    return packer, thread


@pytest.mark.slow
def test_a_message_waits_for_a_consumer_that_follows_over_nats(nats, replies, ask):
    orders, packs = (f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("orders", "packs"))
    make_streams(ask, orders, packs)
    packed, early = [], []

    def order(message):
        items = [Outgoing(b"%s %d" % (message.value, number)) for number in range(3)]
        assert publisher.publish(items, part=message) == [None] * 3
        message.on_done(check, message.value)

    def check(name):
        early.extend({b"%s %d" % (name, number) for number in range(3)} - {*packed})

    def note(message):
        if message.attempt == 1 and message.value.endswith(b"1"):
            raise OSError("not yet")
        packed.append(message.value)

    with NATSReplies(nats.url) as elsewhere, JetStreamPublisher(nats.url, subject=packs) as publisher:
        packer, thread = pack(elsewhere, nats, packs, note)
        with JetStreamPublisher(nats.url, subject=orders) as first:
            assert first.publish([Outgoing(b"lamp"), Outgoing(b"rug")]) == [None] * 2
        owner = Consumer(JetStream(nats.url, stream=orders, durable="owner"), replies=replies)
        owner.run(order, threads=2, until="empty")
        packer.stop()
        thread.join()
    assert (early, owner.stats().acked, len({*packed})) == ([], 2, 6)
    for consumer in ((orders, "owner"), (packs, "packer")):
        wait_for(lambda consumer=consumer: ask("consumer_info", *consumer).num_ack_pending == 0)


def test_a_message_that_a_consumer_over_nats_gives_up_fails_its_tree(nats, replies, ask):
    name = uuid.uuid4().hex
    make_streams(ask, name)

    def refuse(message):
        raise OSError("no lamp")

    packer, thread = pack(replies, nats, name, refuse, attempts_max=2, dead_letters=MemoryPublisher())
    with JetStreamPublisher(nats.url, subject=name) as publisher, tree(replies) as jobs:
        assert publisher.publish([Outgoing(b"lamp")], part=jobs) == [None]
    with pytest.raises(JobsError, match="failed: OSError: no lamp"):
        jobs.wait(PATIENCE_SECS)
    packer.stop()
    thread.join()
