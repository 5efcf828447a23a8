"""The broker in memory, its source and its publisher: what they do, and each way in which they can misbehave."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable

import pytest

from acker.connectors import Delivery, Outgoing
from acker.errors import ConnectionLostError, PublishError, SourceError
from acker.testing import ManualClock
from acker.testing.connectors import MemoryBroker, MemoryPublisher, MemorySource
from acker.testing.connectors.consumer_run import wait_until

LONG = 60.0


class Events:
    """A consumer that acks what a rebalance concerns, if told to."""

    def __init__(self) -> None:
        self.open: list[Delivery] = []
        self.finishing: Callable[[Delivery], object] = lambda delivery: None
        self.forgotten: list[Delivery] = []

    def finish(self, concerned, secs):
        for delivery in filter(concerned, self.open):
            self.finishing(delivery)

    def revoked(self, concerned):
        self.forgotten += filter(concerned, self.open)


def opened(broker, events=None, **options):
    """Return a connected source."""
    source = MemorySource(broker, **options)
    source.open(events or Events(), 10)
    return source


def values(deliveries):
    return [delivery.value for delivery in deliveries]


def test_a_message_is_delivered_and_acked():
    broker = MemoryBroker()
    broker.publish([b"a", b"b"], {"kind": "letter"})
    source = opened(broker)
    first, second = source.poll(10, 0)
    assert (first.key, first.value, first.headers, first.attempt) == ("memory/0", b"a", {"kind": "letter"}, 1)
    assert source.holds(first) and first != second
    source.ack([first])
    assert not source.holds(first)
    assert (broker.left(), broker.held(), broker.acked) == (1, 1, [b"a"])
    source.close()
    assert (broker.left(), broker.held()) == (1, 0)
    assert not broker.violations


def test_a_cut_ends_a_poll_that_waits():
    """A poll must not go on in the session that the cut has ended, and take the message again."""
    broker = MemoryBroker()
    broker.publish([b"a"])
    source = opened(broker)
    source.poll(10, 0)
    wait = broker.changed.wait

    def wait_and_cut(secs):
        broker.changed.wait = wait
        broker.cut()

    broker.changed.wait = wait_and_cut
    with pytest.raises(ConnectionLostError):
        source.poll(10, LONG)
    assert broker.counts["delivered"] == 1 and not source.connected


def test_poll_respects_its_limit_and_waits():
    broker = MemoryBroker()
    source = opened(broker)
    threading.Timer(0.01, broker.publish, ([b"a", b"b", b"c"],)).start()
    while not (found := source.poll(2, LONG)):
        pass
    assert values(found) == [b"a", b"b"]
    assert source.poll(0, 0) == []
    source.wake()
    assert source.poll(0, LONG) == []


def test_what_a_lost_connection_held_comes_back_first_and_counts_its_attempts():
    broker = MemoryBroker()
    broker.publish([b"a", b"b"])
    source = opened(broker)
    (first,) = source.poll(1, 0)
    source.lose("poll")
    with pytest.raises(ConnectionLostError):
        source.poll(1, 0)
    assert not source.holds(first)
    source.open(Events(), 10)
    again, other = source.poll(2, 0)
    assert (again.value, again.attempt, other.value, other.attempt) == (b"a", 2, b"b", 1)
    # The tags begin at 1 again, and mean other messages.
    assert again.receipt != first.receipt and again.receipt.tag == first.receipt.tag
    assert not broker.violations
    source.ack([first])
    assert broker.violations == ["ack of memory/0, which the source does not hold"]
    assert broker.left() == 2


def test_a_connection_is_lost_at_the_call_that_was_named():
    broker = MemoryBroker()
    source = opened(broker)
    source.lose("any", at=3)
    source.poll(1, 0)
    source.ack([])
    with pytest.raises(ConnectionLostError):
        source.extend([])
    source.close()
    source.refuse(times=2)
    for _ in range(2):
        with pytest.raises(ConnectionLostError):
            source.open(Events(), 1)
    source.open(Events(), 1)
    assert source.calls["open"] == 4


def test_an_ack_has_its_effect_although_its_answer_is_lost():
    broker = MemoryBroker()
    broker.publish([b"a"])
    source = opened(broker)
    (delivery,) = source.poll(1, 0)
    source.lose("ack", after=True)
    with pytest.raises(ConnectionLostError):
        source.ack([delivery])
    assert broker.acked == [b"a"] and broker.left() == 0


def test_acks_that_lag_are_sent_with_the_next_poll_and_lost_with_the_connection():
    broker = MemoryBroker()
    broker.publish([b"a", b"b"])
    source = opened(broker, lag=True)
    first, second = source.poll(2, 0)
    source.ack([first])
    assert broker.acked == []
    source.poll(0, 0)
    assert broker.acked == [b"a"]
    source.ack([second])
    source.close()
    assert broker.acked == [b"a", b"b"]


def test_leases_outlive_the_connection_and_end():
    clock = ManualClock()
    broker = MemoryBroker(lease_secs=10, clock=lambda: clock.now_ms() / 1000)
    broker.publish([b"a", b"b"])
    source = opened(broker)
    first, second = source.poll(2, 0)
    source.close()
    source.open(Events(), 10)
    assert source.holds(first)
    clock.advance(9.0)
    assert source.extend([first]) == []
    clock.advance(9.0)
    assert source.extend([second]) == [second]
    source.ack([first])
    (again,) = opened(broker).poll(10, 0)
    assert (again.value, again.attempt) == (b"b", 2)
    assert broker.take_back() == 1
    assert broker.counts["extended"] == 1 and broker.counts["returned"] == 2


def test_a_rebalance_asks_to_finish_and_then_to_forget():
    broker, events = MemoryBroker(), Events()
    broker.publish([b"a", b"b", b"c"])
    source = opened(broker, events, lag=True)
    events.open = list(source.poll(3, 0))
    first, second, third = events.open
    events.finishing = lambda delivery: source.ack([delivery]) if delivery is first else None
    source.rebalance(lambda delivery: delivery is not third)
    source.poll(0, 0)
    assert broker.acked == [b"a"]
    assert events.forgotten == [first, second]
    assert not source.holds(second) and source.holds(third)
    assert not broker.violations


def test_delays_and_dead_letters_of_the_broker():
    clock = ManualClock()
    broker = MemoryBroker(delays=True, dead_letters=True, counts_attempts=False, clock=lambda: clock.now_ms() / 1000)
    broker.publish([b"a", b"b"])
    source = opened(broker)
    first, second = source.poll(2, 0)
    assert source.retry(first, 5.0)
    assert source.can_give_up
    source.give_up(second, "bad")
    assert source.poll(2, 0) == [] and broker.left() == 1
    clock.advance(6.0)
    (again,) = source.poll(2, 0)
    assert (again.value, again.attempt) == (b"a", 2)
    assert [(message.value, reason) for message, reason in broker.given_up] == [(b"b", "bad")]
    source.release([again])
    assert broker.counts["released"] == 1
    assert source.poll(1, 0)[0].attempt == 2


def test_a_broker_without_delays_and_dead_letters_says_so():
    broker = MemoryBroker()
    broker.publish([b"a"])
    source = opened(broker)
    (delivery,) = source.poll(1, 0)
    assert not source.retry(delivery, 1.0) and source.holds(delivery)
    assert not source.can_give_up
    with pytest.raises(NotImplementedError, match="set dead_letters="):
        source.give_up(delivery, "bad")


def test_a_message_that_is_delivered_twice_is_one_message():
    broker = MemoryBroker()
    broker.publish([b"a", b"b"])
    broker.deliver_twice(1)
    source = opened(broker)
    one, two, other = source.poll(3, 0)
    assert one.value == two.value == b"a" and one != two
    assert broker.left() == 2
    source.release([one])
    assert broker.left() == 2 and source.poll(3, 0) == []
    source.ack([two, other])
    assert broker.left() == 0


def test_late_messages_are_delivered_last():
    broker = MemoryBroker()
    broker.publish([b"a", b"b", b"c"])
    broker.deliver_late(2)
    source = opened(broker)
    assert values(source.poll(3, 0)) == [b"c"]
    assert broker.left() == 3
    broker.deliver_now()
    assert values(source.poll(3, 0)) == [b"a", b"b"]


def test_a_flood_needs_no_memory():
    broker = MemoryBroker()
    source = opened(broker)
    tracemalloc.start()
    try:
        broker.flood(1_000_000)
        for _ in range(20):
            source.ack(source.poll(100, 0))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert broker.left() == 1_000_000 - 2_000
    assert peak < 2**20
    assert broker.counts["acked"] == 2_000 and broker.acked == []


def test_a_stalled_call_answers_when_it_may():
    broker = MemoryBroker()
    source = opened(broker)
    answer = source.stall("ack")
    thread = threading.Thread(target=source.ack, args=([],))
    thread.start()
    wait_until(lambda: source.calls["ack"], "the call begins", LONG)  # the broker does not tell of that
    with broker.changed:
        assert thread.is_alive()
    source.poll(0, 0)
    assert broker.violations == ["poll was called during ack"]
    answer.set()
    thread.join(LONG)
    assert not thread.is_alive()


def test_calls_without_a_connection_are_violations():
    broker = MemoryBroker()
    source = MemorySource(broker)
    source.close()
    assert not broker.violations
    source.poll(1, 0)
    assert broker.violations == ["poll was called without a connection"]


def test_mistakes_and_faults_of_ones_own():
    source = MemorySource(MemoryBroker(), name="jobs")
    source.mistake()
    with pytest.raises(SourceError, match="jobs"):
        source.open(Events(), 1)
    source.open(Events(), 1)

    def broken():
        raise RuntimeError("broken")

    source.on("close", broken, after=True)
    with pytest.raises(RuntimeError, match="broken"):
        source.close()
    assert not source.connected


def test_a_wait_that_is_in_vain_names_the_counts():
    broker = MemoryBroker()
    broker.publish([b"a"])
    with pytest.raises(AssertionError, match=r"'published': 1.*1 left"):
        broker.wait_until(lambda broker: broker.left() == 0, timeout_secs=0.01)


def test_a_publisher_refuses_fails_and_blocks():
    broker = MemoryBroker()
    publisher = MemoryPublisher(broker)
    publisher.be_unreachable()
    with pytest.raises(ConnectionLostError):
        publisher.open()
    messages = [Outgoing(b"a"), Outgoing(b"b", headers={"x": 1}), Outgoing(b"c")]
    with publisher:
        publisher.refuse()
        publisher.fail()
        refused, failed, written = publisher.publish(messages)
        assert isinstance(refused, PublishError) and isinstance(failed, PublishError) and written is None
        assert publisher.published == messages[1:] and broker.left() == 2
        publisher.block()
        answers: list[object] = []
        thread = threading.Thread(target=lambda: answers.extend(publisher.publish(messages[:1])))
        thread.start()
        assert not answers
        publisher.unblock()
        thread.join(LONG)
        assert answers == [None]
    # As those of brokers do, it connects when it has to.
    publisher.be_unreachable()
    (error,) = publisher.publish(messages[:1])
    assert isinstance(error, PublishError) and isinstance(error.__cause__, ConnectionLostError)
    assert publisher.publish(messages[:1]) == [None]
