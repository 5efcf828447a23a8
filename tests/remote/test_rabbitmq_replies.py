"""Replies over a real RabbitMQ; what all replies share is in test_trees.py."""

import logging
import os
import signal
import subprocess
import sys
import threading
import uuid

import pika
import pytest

from acker import ArgumentValueError, ConnectionLostError, JobsError
from acker.remote import job, tree
from acker.remote.rabbitmq import RabbitMQReplies
from acker.remote.wire import read_token
from tests.remote.test_trees import error_of_fork, wait_for

PATIENCE_SECS = 120.0


@pytest.fixture
def replies(rabbitmq):
    with RabbitMQReplies(rabbitmq.url, report_secs=PATIENCE_SECS) as replies:
        yield replies


@pytest.fixture
def delete(rabbitmq):
    """Delete the queue of a token."""
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        channel = connection.channel()
        yield lambda token: channel.queue_delete("acker.replies." + read_token(token).address.hex())


def test_a_tree_over_rabbitmq_ends_and_an_owner_that_is_gone_is_known(rabbitmq, replies, caplog):
    with tree(replies) as jobs:
        token = jobs.token("split")
    with RabbitMQReplies(rabbitmq.url) as elsewhere:
        with job(token, elsewhere, "split") as part:
            below = [part.token("pack") for _ in range(3)]
        for each in below:
            job(each, elsewhere).ack()
        jobs.wait(PATIENCE_SECS)
        replies.close()
        part = job(token, elsewhere, "split")
        assert not part.alive
        part.ack()
        assert elsewhere.counts.unowned == 1 and "nobody waits for <Job split, ended> any more" in caplog.text


def test_a_queue_that_is_lost_fails_open_trees_at_once(replies, delete, caplog):
    with tree(replies) as jobs:
        token = jobs.token()
    delete(token)
    with pytest.raises(JobsError, match="the reply queue is gone: it was deleted, RabbitMQ has lost its data"):
        jobs.wait(PATIENCE_SECS)
    with tree(replies) as jobs:  # the next one has another address
        job(jobs.token(), replies).ack()
    jobs.wait(PATIENCE_SECS)
    assert replies.counts.lost_addresses == 1


@pytest.mark.slow
def test_reports_survive_a_kill_of_the_broker(rabbitmq, replies):
    with tree(replies) as jobs:
        early, late = jobs.token("early"), jobs.token("late")
    with job(early, replies):
        pass
    rabbitmq.kill()
    thread = threading.Thread(target=lambda: job(late, replies).ack())
    thread.start()  # it tries until the broker is back
    rabbitmq.start()
    thread.join()
    jobs.wait(PATIENCE_SECS)


@pytest.mark.slow
def test_a_broker_that_hangs_ends_the_patience_of_a_job_and_not_the_tree(rabbitmq, replies, caplog, monkeypatch):
    monkeypatch.setattr("acker.remote.rabbitmq._ANSWER_SECS", 0.2)
    with tree(replies) as jobs:
        token = jobs.token()
    with RabbitMQReplies(rabbitmq.url, report_secs=0.3) as impatient:
        assert job(token, impatient).alive
        rabbitmq.pause()
        job(token, impatient, "pack").ack()
        assert "its report was not confirmed within 0.3 s, so its tree may time out: replies over" in caplog.text
        rabbitmq.resume()
    job(token, replies).ack()
    jobs.wait(PATIENCE_SECS)


OWNER = """
import sys
from acker.remote import tree
from acker.remote.rabbitmq import RabbitMQReplies
with tree(RabbitMQReplies(sys.argv[1], expiry_secs=6)) as jobs:
    print(jobs.token(), flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_a_killed_owner_leaves_nothing_behind_and_its_jobs_learn_of_it(rabbitmq, replies):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, rabbitmq.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with owner:
        part = job(owner.stdout.readline().strip(), replies)
        assert part.alive
        owner.send_signal(signal.SIGKILL)
    wait_for(lambda: not part.alive)
    part.ack()
    assert replies.counts.unowned == 1


@pytest.mark.slow
def test_a_forked_process_reports_over_a_connection_of_its_own(replies):
    with tree(replies) as jobs:
        token, other = jobs.token(), jobs.token()
    job(other, replies).ack()  # this process is connected
    assert error_of_fork(lambda: job(token, replies).ack()) == "no error"
    jobs.wait(PATIENCE_SECS)


@pytest.mark.slow
def test_an_idle_worker_keeps_its_connection(rabbitmq, replies, monkeypatch, caplog):
    """RabbitMQ ends a connection without heartbeats, and logs that."""
    monkeypatch.setattr("acker.remote.rabbitmq._HEARTBEAT_SECS", 3)

    def keeps_it():
        job(jobs.token(), worker).ack()
        connection = worker._senders[os.getpid()]._connection
        threading.Event().wait(10)  # the broker ends a connection that is silent for six seconds
        job(jobs.token(), worker).ack()
        return worker._senders[os.getpid()]._connection is connection

    with RabbitMQReplies(rabbitmq.url) as worker, tree(replies) as jobs:
        assert any(keeps_it() for _ in range(3))  # unless the machine stands still for as long
    jobs.wait(PATIENCE_SECS)


def test_a_password_is_in_no_text(caplog):
    caplog.set_level(logging.DEBUG)
    secret = uuid.uuid4().hex
    with RabbitMQReplies(f"amqp://me:{secret}@127.0.0.1:9/") as replies:
        with pytest.raises(ConnectionLostError, match="replies over RabbitMQ: ") as caught:
            tree(replies)
        assert secret not in str(caught.value) + repr(replies) + str(vars(replies)) + caplog.text
    with pytest.raises(ArgumentValueError, match="pika cannot read this URL") as caught:
        RabbitMQReplies(f"amqp://me:{secret}@[::1/")
    assert secret not in str(caught.value)
    with pytest.raises(ArgumentValueError, match="expiry_secs must be finite"):
        RabbitMQReplies("amqp://localhost", expiry_secs=0)
