"""Tokens and reports that are signed with a secret, with the example of docs/remote.md, and what is refused."""

import logging
import re

import pytest

from acker import ArgumentTypeError, ArgumentValueError, TokenError
from acker.connectors import Consumer
from acker.connectors.handles import MessageTree
from acker.remote import MemoryReplies, job, tree
from acker.remote.redis import RedisReplies
from acker.remote.wire import Report, ReportKind, Seal, read_report, read_token, write_report, write_token
from acker.testing.connectors import MemoryBroker, MemorySource
from tests.remote.test_trees import wait_for
from tests.remote.test_wire import OK, PAGE, TOKEN

SECRET = "correct horse battery staple"
PATIENCE_SECS = 60.0


class Replies(MemoryReplies):
    """Replies that remember what was sent."""

    def __init__(self, secret=SECRET):
        super().__init__(secret=secret)
        self.sent = []

    def send(self, address, report):
        self.sent.append((address, report))
        return super().send(address, report)


@pytest.fixture
def replies():
    with Replies() as replies:
        yield replies


def send_as(token, replies, secret, kind=ReportKind.OK):
    """Send a report as somebody does who has another secret, or none."""
    address, *names = read_token(token.rpartition(".")[0])
    data = write_report(Report(*names, 7, 0, kind))
    if secret is not None:
        data = Seal(secret).sign_report(data, address, 1)
    assert replies.send(address, data)


def test_signed_tokens_and_reports_end_a_tree(replies):
    with tree(replies) as jobs:
        token = jobs.token("split")
    assert len(token) == 70 and re.fullmatch(r"a1\.[A-Za-z0-9_-]{44}\.[A-Za-z0-9_-]{22}", token)
    with job(token, replies, "split") as part:
        below = part.token("pack")
    job(below, replies).ack()
    job(below, replies).ack()
    jobs.wait(PATIENCE_SECS)
    assert (replies.counts.forged, replies.counts.replayed) == (0, 0)


@pytest.mark.parametrize("secret", [None, "another secret of somebody"])
def test_forged_reports_are_refused_counted_and_logged_once(replies, caplog, secret):
    with tree(replies) as jobs:
        token = jobs.token("pack")
    for kind in (ReportKind.FAIL, ReportKind.OK, ReportKind.MORE_TIME):
        send_as(token, replies, secret, kind)
    wait_for(lambda: replies.counts.forged == 3)
    assert [each.name for each in jobs.missing()] == ["pack"]
    assert caplog.text.count("reports were refused, since they are not signed with its secret") == 1
    job(token, replies).ack()
    jobs.wait(PATIENCE_SECS)


def test_a_report_that_was_changed_or_sent_to_another_address_is_refused(replies):
    with tree(replies) as jobs:
        job(jobs.token(), replies).ack()
        jobs.token("pack")
    wait_for(lambda: replies.counts.reports == 1)
    ((address, data),) = replies.sent
    for place in range(len(data)):
        assert replies.send(address, data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert replies.send(address, data[:place])
    wait_for(lambda: replies.counts.forged == 2 * len(data))
    assert replies.counts.reports == 1 + 2 * len(data)
    assert replies.seal.serial_of(data, address) == 1 and replies.seal.serial_of(data, bytes(13)) is None


def test_replayed_reports_change_nothing_and_are_counted(replies, caplog, monkeypatch):
    """A request for more time that is replayed would keep a message open for ever."""
    broker = MemoryBroker()
    broker.publish([b"order"])
    resets, reset = [], MessageTree.reset_timeout
    monkeypatch.setattr(MessageTree, "reset_timeout", lambda self: (resets.append(self), reset(self)))
    with Consumer(MemorySource(broker), replies=replies) as consumer:
        with next(iter(consumer)) as message:
            token, other = message.token("pack"), message.token("post")
        part = job(token, replies)
        part.reset_timeout()
        wait_for(lambda: len(resets) == 1)
        part.reset_timeout()
        wait_for(lambda: len(resets) == 2)
        for address, data in replies.sent[:2]:
            replies.send(address, data)
        part.ack()
        replies.send(*replies.sent[-1])
        wait_for(lambda: (replies.counts.replayed, replies.counts.duplicates) == (2, 1))
        assert replies.counts.reports == 6
        assert len(resets) == 2
        assert broker.acked == []
        job(other, replies).ack()
        broker.wait_until(lambda broker: broker.acked)
    assert caplog.text.count("requests for more time came a second time and were refused") == 1


def test_a_token_that_is_not_signed_or_by_somebody_else_is_refused(replies):
    with tree(replies) as jobs:
        token = jobs.token("pack")
        parts, mac = token.rpartition(".")[::2]
        other = write_token(read_token(parts)._replace(place=4), None)
        for forged in (parts, f"{other}.{mac}", write_token(read_token(parts), Seal("another secret of somebody"))):
            with pytest.raises(TokenError, match="is not signed with the secret= of these replies") as caught:
                job(forged, replies)
            assert forged[3:20] not in str(caught.value)
        with (
            MemoryReplies() as plain,
            pytest.raises(TokenError, match="this token is signed: give the replies secret="),
        ):
            job(token, plain)
        with pytest.raises(TokenError, match="this is no token"):
            job(token[:-1], replies)
        job(token, replies).ack()
    jobs.wait(PATIENCE_SECS)


@pytest.mark.parametrize("secret", ["short", b"", 5])
def test_a_secret_that_cannot_be_one_is_refused_and_not_shown(secret):
    with pytest.raises((ArgumentTypeError, ArgumentValueError), match="secret: expected") as caught:
        MemoryReplies(secret=secret)
    assert "short" not in str(caught.value)


def shown(found, depth=4):
    """Return all that can be seen of an object, and of what it is made of."""
    slots = [name for kind in type(found).__mro__ for name in getattr(kind, "__slots__", ())]
    parts = [*getattr(found, "__dict__", {}).values(), *(getattr(found, name, None) for name in slots)]
    texts = [repr(found), *(shown(part, depth - 1) for part in parts if depth and part is not found)]
    return " ".join(texts)


def test_the_secret_is_in_no_repr_no_attribute_and_no_log(redis, caplog):
    caplog.set_level(logging.DEBUG)
    with RedisReplies(redis.url, secret=SECRET) as replies:
        with tree(replies) as jobs:
            token = jobs.token()
            send_as(token, replies, None)
            with job(token, replies) as part:
                pass
        jobs.wait(PATIENCE_SECS)
        consumer = Consumer(MemorySource(MemoryBroker()), replies=replies, follow=replies)
        texts = [shown(each) for each in (replies, jobs, part, consumer)] + [caplog.text]
    assert SECRET not in " ".join(texts)


def test_the_vectors_of_the_page():
    page = PAGE.read_text(encoding="utf-8")
    seal = Seal(b"0123456789abcdef")
    (token,) = re.findall(r"^TOKEN (\S+)$", page, re.MULTILINE)
    assert token == write_token(TOKEN, seal)
    assert read_token(token, seal) == TOKEN
    (found,) = re.findall(r"^SIGNED ([0-9a-f ]+)$", page, re.MULTILINE)
    data = seal.sign_report(write_report(OK._replace(jobs=0)), TOKEN.address, 1)
    assert bytes.fromhex(found) == data, data.hex(" ", 4)
    assert read_report(data) == OK._replace(jobs=0)
