"""The I/O thread: sources that fail at any call, outcomes that no lost connection may swallow, and its end."""

import logging
import math
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from acker import SourceError
from acker.connectors import Consumer
from acker.connectors.io_thread import IoThread
from acker.connectors.message_store import MessageStore
from acker.connectors.options import MessageOptions
from acker.connectors.source import Delivery, Source
from acker.observe.reasons import Reason, ReasonKind
from acker.testing.connectors import MemoryBroker, MemoryPublisher, MemorySource
from acker.testing.connectors.broker import Claim

QUICK = {"backoff_secs": 0.001, "backoff_secs_max": 0.002}


@pytest.fixture(autouse=True)
def _reconnect_soon(monkeypatch):
    monkeypatch.setattr("acker.connectors.io_thread._RECONNECT_SECS", 0.01)


def wait_until(condition):
    """Wait until a condition holds."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def consume_all(consumer, broker, work):
    """Work on messages until nothing is left."""

    def stop():
        try:
            broker.wait_until(lambda broker: broker.left() == 0)
        finally:
            consumer.stop()

    stopping = threading.Thread(target=stop)
    stopping.start()
    with consumer:
        for message in consumer:
            with message:
                work(message)
    stopping.join()


# ---- a connection that is lost while outcomes are settled -----------------------------------------------------------


@pytest.mark.parametrize("method", ["retry", "give_up", "ack", "extend"])
@pytest.mark.parametrize("after", [False, True])
def test_no_outcome_is_forgotten_when_the_connection_breaks_meanwhile(method, after):
    """With leases, deliveries outlive their connection: nobody delivers again what the consumer holds."""
    # Leases that are short are renewed soon; none ends by itself.
    broker = MemoryBroker(lease_secs=0.3 if method == "extend" else 60, dead_letters=True, clock=lambda: 0.0)
    broker.publish(b"%d" % number for number in range(30))
    source = MemorySource(broker)
    source.lose(method, at=1 if method == "extend" else 2, after=after)
    gate = threading.Barrier(30)

    def work(message):
        if message.attempt == 1:
            gate.wait(60)  # so that all end in one turn, or nearly
            wait_until(lambda: method != "extend" or source.calls["extend"])
        if int(message.value) % 3 == 1 or (int(message.value) % 3 == 2 and message.attempt < 2):
            raise LookupError("no lamp")

    consumer = Consumer(source, attempts_max=3, dead_letters="broker", drain_secs=5, **QUICK)
    with consumer, ThreadPoolExecutor(30) as pool:

        def iterate():
            for message in consumer:
                with message:
                    work(message)

        ends = [pool.submit(iterate) for _ in range(30)]
        broker.wait_until(lambda broker: broker.left() == 0)
        consumer.stop()
        for end in ends:
            end.result(60)
    assert sorted(broker.acked) == sorted(b"%d" % number for number in range(30) if number % 3 != 1)
    assert len(broker.given_up) == 10 and broker.violations == []
    assert consumer.stats().reconnects == 1


def test_nothing_is_given_up_without_a_connection():
    broker = MemoryBroker(lease_secs=60, dead_letters=True)
    broker.publish([b"bad"])
    source = MemorySource(broker)
    with Consumer(source, attempts_max=1, dead_letters="broker", **QUICK) as consumer:
        message = next(iter(consumer))
        broker.stop()
        wait_until(lambda: not source.connected)
        message.fail("no lamp")
        wait_until(lambda: not message.alive)
        broker.start()
        broker.wait_until(lambda broker: broker.given_up)
    assert consumer.stats().dead_letters == 1 and broker.violations == []


def test_a_dead_letter_that_is_confirmed_without_a_connection_is_taken_at_once():
    """As long as nobody takes it, the thread waits for nothing, and turns without a pause until the broker is back."""
    broker = MemoryBroker(lease_secs=60)
    broker.publish([b"bad"])
    source, letters = MemorySource(broker), MemoryBroker()
    with Consumer(source, attempts_max=1, dead_letters=MemoryPublisher(letters), **QUICK) as consumer:
        message = next(iter(consumer))
        broker.stop()
        wait_until(lambda: not source.connected)
        message.fail("no lamp")
        wait_until(lambda: consumer.stats().dead_letters == 1)
        assert letters.left() == 1 and broker.acked == []
        broker.start()
        broker.wait_until(lambda broker: broker.acked)
    assert consumer.stats().dead_letters == 1 and broker.violations == []


def test_a_connection_that_breaks_while_messages_are_given_back_is_no_error(caplog):
    broker = MemoryBroker()
    broker.publish(b"%d" % number for number in range(5))
    source = MemorySource(broker)
    source.lose("release")
    with Consumer(source, **QUICK) as consumer:
        iterator = iter(consumer)
        message = next(iterator)
        wait_until(lambda: len(consumer) == 5)
        consumer.stop()
        assert list(iterator) == []  # raises no ConnectionLostError
        message.ack()
    assert broker.left() in (4, 5) and broker.violations == []
    assert "the I/O thread failed" not in caplog.text


def test_a_loss_at_the_end_tells_what_is_done_and_not_acked(caplog):
    broker = MemoryBroker()
    broker.publish([b"a"])
    source = MemorySource(broker)
    with Consumer(source, drain_secs=0.1, **QUICK) as consumer:
        message = next(iter(consumer))
        source.refuse(10**6)
        source.lose("ack")
        source.lose("ack", at=2, times=10**6)
        message.ack()
    assert broker.left() == 1
    assert message.alive is False


def test_acks_that_cannot_be_sent_are_named(caplog):
    broker = MemoryBroker(lease_secs=60)
    broker.publish([b"a"])
    source = MemorySource(broker)
    with Consumer(source, drain_secs=0.1, **QUICK) as consumer:
        message = next(iter(consumer))
        broker.stop()
        wait_until(lambda: not source.connected)
        message.ack()
    assert broker.acked == []
    assert "1 messages, such as memory/0, are done and could not be acked" in caplog.text


@pytest.mark.parametrize("secs", [0.0, 0.3])
def test_stop_ends_a_consumer_that_has_no_connection(secs):
    broker = MemoryBroker()
    broker.stop()
    source = MemorySource(broker)
    consumer = Consumer(source, drain_secs=secs)
    consumer.start()
    wait_until(lambda: consumer.stats().reconnects >= 1)
    consumer.close()
    assert consumer.stats().state == "stopped"


# ---- a source with bugs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["open", "poll", "ack", "retry", "give_up", "extend", "release", "close"])
@pytest.mark.parametrize("kind", [ZeroDivisionError, SystemExit, KeyboardInterrupt, SourceError])
def test_whatever_a_source_raises_ends_every_iteration_with_it(method, kind, caplog):
    broker = MemoryBroker(lease_secs=0.3, dead_letters=True, clock=lambda: 0.0)  # no lease ends by itself
    broker.publish([b"good", b"again", b"bad"])
    source = MemorySource(broker)

    def fail():
        raise kind("a bug")

    source.on(method, fail)
    consumer = Consumer(source, attempts_max=2, dead_letters="broker", **QUICK)
    consumer.start()
    with ThreadPoolExecutor(2) as pool:

        def iterate():
            for message in consumer:
                with message:
                    wait_until(lambda: method != "extend" or source.calls["extend"])
                    if message.value == b"bad" or (message.value == b"again" and message.attempt == 1):
                        raise LookupError("no lamp")

        ends = [pool.submit(iterate) for _ in range(2)]
        if method in ("release", "close"):
            broker.wait_until(lambda broker: broker.given_up)
            broker.deliver_late(1)
            wait_until(lambda: len(consumer) == 0)
        if method == "release":
            # One more that stays open.
            broker.publish([b"late"])
            broker.deliver_now()
        if method in ("release", "close"):
            consumer.stop()
        faults = [end.exception(60) for end in ends]
    consumer.close()
    if method != "release" or source.calls["release"]:
        assert all(isinstance(fault, kind) or fault is None for fault in faults)
        assert "a bug" in caplog.text
    if method not in ("release", "close"):
        assert all(isinstance(fault, kind) for fault in faults)
    assert consumer.stats().state == "stopped"


def test_an_iteration_after_a_failed_close_ends():
    broker = MemoryBroker()
    source = MemorySource(broker)

    def fail():
        raise ZeroDivisionError("a bug in close")

    source.on("close", fail)
    consumer = Consumer(source)
    consumer.start()
    consumer.close()
    with pytest.raises(ZeroDivisionError):
        next(iter(consumer))


class Generous(MemorySource):
    """Returns more than it is asked for."""

    def poll(self, limit, wait_secs):
        return super().poll(2 * limit, wait_secs)


def test_a_source_that_returns_too_much_is_asked_for_less():
    broker = MemoryBroker()
    broker.publish(b"%d" % number for number in range(100))
    seen = []
    consumer = Consumer(Generous(broker), open_max=4, **QUICK)
    consume_all(consumer, broker, lambda message: seen.append(message.value))
    assert len(seen) == 100 and broker.violations == []


# ---- handing out ----------------------------------------------------------------------------------------------------


def delivery_of(number):
    return Delivery(f"jobs#{number}", b"", {}, 1, None, number)


def test_a_message_that_the_broker_delivers_too_often_is_handed_to_nobody():
    """It may be what ended the processes before."""
    for _ in range(100):
        broker, letters = MemoryBroker(), MemoryPublisher()
        broker.publish([b"bad"])
        first = MemorySource(broker)
        first.open(None, 1)
        first.poll(1, 0.0)
        first.close()
        consumer = Consumer(MemorySource(broker), attempts_max=1, deliveries_max=1, dead_letters=letters, **QUICK)
        consume_all(consumer, broker, lambda _: pytest.fail("it was handed out"))
        assert len(letters.published) == 1


@pytest.mark.parametrize("place", [0, 20, 39])
@pytest.mark.parametrize("deliveries_max", [3, 10])
def test_what_ends_its_process_takes_no_other_message_with_it(place, deliveries_max, caplog):
    """To the broker, a lost connection is as the end of a process: it counts a delivery of all that was sent."""
    broker = MemoryBroker()
    values = [b"%d" % number for number in range(40)]
    broker.publish(values)
    letters = MemoryPublisher()
    ended = 0

    def work(message):
        nonlocal ended
        if message.value == values[place]:
            ended += 1
            broker.cut()
            wait_until(lambda: not message.alive)

    options = {"attempts_max": 5, "deliveries_max": deliveries_max, "dead_letters": letters, **QUICK}
    consume_all(Consumer(MemorySource(broker), **options), broker, work)
    assert [letter.value for letter in letters.published] == [values[place]]
    assert ended == deliveries_max and sorted(broker.acked) == sorted(values)
    assert "which may end its process" in caplog.text


def test_suspects_are_handed_out_alone():
    broker = MemoryBroker()
    broker.publish(b"%d" % number for number in range(30))
    working, most = set(), 0

    def work(message):
        nonlocal most
        working.add(message.value)
        most = max(most, len(working))
        working.discard(message.value)

    for _ in range(3):  # processes that ended
        source = MemorySource(broker)
        source.open(None, 30)
        assert len(source.poll(30, 0.0)) == 30
        source.close()
    broker.publish([b"last"])
    consumer = Consumer(MemorySource(broker), deliveries_max=5, dead_letters=MemoryPublisher())
    with ThreadPoolExecutor(4) as pool:
        consume_all(consumer, broker, lambda message: message.submit(pool, work, message))
    assert most == 1 and broker.left() == 0 and broker.acked[-1] == b"last"


def store_of(**options):
    """Return a store without a source."""
    return MessageStore("memory", MessageOptions(**options), logging.getLogger("acker.connectors"))


def deliver(store, count):
    store.accept([Delivery(f"jobs#{number}", b"", {}, count, None, None) for number in range(2)])


def test_of_many_failures_the_latest_are_remembered(monkeypatch):
    monkeypatch.setattr("acker.connectors.message_store._REASONS_MAX", 2)
    store = store_of(deliveries_max=5, dead_letters=MemoryPublisher())
    for number in (1, 2, 1, 3):
        store.accept([Delivery(f"jobs#{number}", b"", {}, 1, None, None)])
        store.end(store.take(0).message_id, Reason(ReasonKind.FAILED, exception="no lamp"))
    store.accept([Delivery(f"jobs#{number}", b"", {}, 6, None, None) for number in (1, 2, 3)])
    assert ["no lamp" in letter.reason.exception for letter in store.letters()] == [True, False, True]


def test_failures_that_count_as_deliveries_make_no_suspect(caplog):
    store = store_of(attempts_max=30, dead_letters=MemoryPublisher())
    deliver(store, 30)
    assert store.take(0) and store.take(0)
    assert store.room > 0 and caplog.text == ""
    deliver(store, 31)  # no failure is behind this
    assert store.room == 0 and "this is delivery 31" in caplog.text


@pytest.mark.parametrize(
    ("limits", "suspect_from"),
    [
        ({}, math.inf),
        ({"deliveries_max": 3}, 2),
        ({"deliveries_max": 10}, 6),
        ({"attempts_max": 5}, 8),
        ({"attempts_max": 30}, 31),
        ({"attempts_max": 6, "deliveries_max": 6}, 4),
        ({"attempts_max": 30, "deliveries_max": 30}, 26),
        ({"attempts_max": 30, "deliveries_max": 100}, 51),
    ],
)
def test_enough_deliveries_of_a_suspect_are_made_alone(limits, suspect_from):
    letters = {"dead_letters": MemoryPublisher()} if limits else {}
    assert MessageOptions(**limits, **letters).suspect_from == suspect_from


def test_the_suspect_that_was_delivered_least_often_is_next():
    store = store_of(deliveries_max=6, dead_letters=MemoryPublisher())
    store.accept([Delivery(str(number), b"", {}, number, None, None) for number in (5, 4)])
    store.hand_out_suspect()
    first = store.take(0)
    assert first.delivery.key == "4" and store.room == 0
    store.hand_out_suspect()
    with pytest.raises(queue.Empty):
        store.take(0)
    store.revoke(lambda delivery: delivery.key == "5")
    store.hand_out_suspect()
    assert store.room == 0  # somebody still works on the first one
    store.end(first.message_id, None)
    assert store.room > 0


def test_after_a_suspect_one_message_is_taken_at_a_time_until_one_is_none():
    store = store_of(deliveries_max=6, dead_letters=MemoryPublisher())
    store.accept([delivery_of(1)])
    store.end(store.take(0).message_id, None)
    assert store.room > 1
    store.accept([Delivery("jobs#4", b"", {}, 4, None, None)])  # its lease ended later
    store.hand_out_suspect()
    store.end(store.take(0).message_id, None)
    assert store.room == 1
    store.accept([delivery_of(1)])
    assert store.room > 1


def test_a_wait_to_gather_ends_when_somebody_finds_nothing():
    store = store_of()
    store.accept([delivery_of(number) for number in range(500)])
    gathering = threading.Thread(target=store.gather, args=[3600.0], daemon=True)
    gathering.start()
    for _ in range(500):
        assert store.take(0)
    until = time.monotonic() + 60
    while gathering.is_alive() and time.monotonic() < until:
        with pytest.raises(queue.Empty):
            store.take(0)
    assert not gathering.is_alive()


def test_without_plenty_of_messages_nothing_is_gathered():
    store = store_of()
    store.accept([delivery_of(1)])
    store.gather(3600.0)


def test_an_attempt_that_was_drawn_and_not_handed_out_is_offered_again():
    store = store_of()
    store.accept([delivery_of(1)])
    assert store.ready.get() is not None  # and then came a KeyboardInterrupt
    store.rescue()
    taken = store.take(0)
    assert taken is not None and taken.state == "open"
    store.rescue()
    store.close()
    assert store.take() is None


def test_nothing_is_kept_of_what_the_broker_has_taken_back():
    """Else each new connection would add as many bodies, as long as all threads are busy."""
    store = store_of(backoff_secs=60, backoff_secs_max=60)
    store.accept([delivery_of(number) for number in range(10)])
    for _ in range(4):
        failed = store.take(0)
        store.end(failed.message_id, Reason(ReasonKind.FAILED))
    for failed in store.failed():
        store.wait(failed, 60.0)
    heard = []
    store.listen(lambda: heard.append(store.ready.qsize()))
    store.revoke(lambda delivery: delivery.receipt % 2 == 0)
    assert (len(store), store.retrying, store.ready.qsize()) == (5, 2, 3)
    assert heard == [3], "a coroutine may have found the queue empty"
    store.retry_due(math.inf)
    assert [store.take(0).delivery.receipt for _ in range(5)] == [5, 7, 9, 1, 3]
    store.accept([delivery_of(2)])
    store.close()
    store.revoke(lambda _: True)
    assert store.ready.get(False) is None, "the end is told to whoever waits"


def test_an_end_whose_wake_up_was_swallowed_is_noticed(monkeypatch):
    monkeypatch.setattr("acker.connectors.message_store._LOOK_SECS", 0.01)
    store = store_of()
    store.close()
    assert store.ready.get() is None  # and then came a KeyboardInterrupt
    assert store.take() is None and store.take(0) is None


def test_asking_again_after_the_end_needs_no_memory():
    store = store_of()
    store.close()
    for _ in range(1000):
        assert store.take(0) is None
    assert store.ready.qsize() <= 1


def test_listeners_may_leave_while_they_are_told():
    store = store_of()
    ends = []

    def closed():
        for end in ends:
            end()
        raise RuntimeError("Event loop is closed")

    ends.append(store.listen(closed))
    store.accept([delivery_of(1)])
    store.accept([delivery_of(2)])


def test_no_signals_pile_up_while_there_is_room():
    broker = MemoryBroker()
    broker.publish(b"%d" % number for number in range(2000))
    consumer = Consumer(MemorySource(broker), open_max=10_000, **QUICK)
    with ThreadPoolExecutor(4) as pool, consumer:

        def iterate():
            for message in consumer:
                message.ack()

        ends = [pool.submit(iterate) for _ in range(4)]
        broker.wait_until(lambda broker: broker.left() == 0)
        wait_until(lambda: consumer._io._signal.qsize() <= 1)
        consumer.stop()
        for end in ends:
            end.result(60)


# ---- rebalances -----------------------------------------------------------------------------------------------------


def test_a_rebalance_hands_out_nothing_that_it_takes_away():
    broker = MemoryBroker()
    broker.publish(b"%d" % number for number in range(10))
    source = MemorySource(broker)
    with Consumer(source, **QUICK) as consumer:
        iterator = iter(consumer)
        first = next(iterator)
        wait_until(lambda: len(consumer) == 10)
        began = threading.Event()

        def concerned(delivery):
            began.set()
            return delivery.value < b"5"

        source.rebalance(concerned, secs=30)
        assert began.wait(60)
        wait_until(lambda: source.calls["ack"] == 0 and len(consumer._store._withheld) == 4)
        # Meanwhile the other ones are handed out, and those of the rebalance are not.
        others = [next(iterator) for _ in range(5)]
        assert [message.value for message in others] == [b"5", b"6", b"7", b"8", b"9"]
        for message in [first, *others]:
            message.ack()
        again = [next(iterator) for _ in range(4)]
        assert sorted(message.value for message in again) == [b"1", b"2", b"3", b"4"]
        for message in again:
            message.ack()
        broker.wait_until(lambda broker: broker.left() == 0)
    assert broker.counts["acked"] == 10 and broker.violations == []


def test_failures_wait_for_the_end_of_a_rebalance():
    broker = MemoryBroker(delays=True)
    broker.publish([b"a", b"b"])
    source = MemorySource(broker)
    called = []
    source.on("retry", lambda: called.append(source._inside[1]), times=10)
    with Consumer(source, **QUICK) as consumer:
        iterator = iter(consumer)
        first, second = next(iterator), next(iterator)
        source.rebalance(lambda delivery: delivery.value == b"a", secs=30)
        wait_until(lambda: source._rebalances == source._rebalances.__class__())
        second.fail("no lamp")
        first.ack()
        again = next(iterator)
        again.ack()
        broker.wait_until(lambda broker: broker.left() == 0)
    assert called == ["retry"] and broker.violations == []


def test_a_connection_that_breaks_in_a_rebalance_is_opened_again():
    broker = MemoryBroker()
    broker.publish([b"a", b"b"])
    source = MemorySource(broker)
    with Consumer(source, **QUICK) as consumer:
        iterator = iter(consumer)
        first, second = next(iterator), next(iterator)
        source.lose("ack")
        source.rebalance(secs=30)
        first.ack(), second.ack()
        for _ in range(2):
            next(iterator).ack()
        broker.wait_until(lambda broker: broker.left() == 0)
    assert sorted(broker.acked) == [b"a", b"b"] and broker.violations == []
    assert consumer.stats().reconnects == 1


def test_a_mistake_is_logged_even_if_nobody_iterates(caplog):
    caplog.set_level(logging.ERROR)
    source = MemorySource(MemoryBroker())
    source.mistake("poll")
    with Consumer(source) as consumer:
        wait_until(lambda: consumer.stats().state == "stopped")
    assert "there is no such queue" in caplog.text


def test_a_stop_is_told_to_the_source_at_once_though_nothing_goes_back():
    """Else a broker that sends messages unasked would go on until the open ones are done."""
    broker = MemoryBroker(lease_secs=60)
    broker.publish([b"open"])
    source = MemorySource(broker)
    with Consumer(source, **QUICK) as consumer:
        message = next(iter(consumer))
        consumer.stop()
        wait_until(lambda: source.calls["release"])
        source.lose("poll")
        wait_until(lambda: source.calls["release"] == 2)  # a new connection does not know of it
        message.ack()
    assert broker.acked == [b"open"] and broker.counts["released"] == 0
    assert source.calls["release"] == 2 and broker.violations == []


def test_a_stop_does_not_wait_once_everything_is_done(monkeypatch):
    """Nobody would end that wait: half a second was lost at the end of every consumer."""
    waits, wait = [], IoThread._wait

    def look(self, secs):
        if secs > 0 and self.is_stopping:
            waits.append(len(self._store))
        wait(self, secs)

    monkeypatch.setattr(IoThread, "_wait", look)
    for _ in range(20):
        broker = MemoryBroker()
        broker.publish([b"a", b"b"])
        with Consumer(MemorySource(broker)) as consumer, ThreadPoolExecutor(1) as pool:
            for number, message in enumerate(consumer, 1):
                with message:
                    message.submit(pool, int)
                if number == 2:
                    consumer.stop()
        assert broker.left() == 0
    assert 0 not in waits


# ---- an end that something holds up ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["poll", "ack", "release"])
def test_a_stop_ends_although_the_broker_answers_nothing(method, monkeypatch, caplog):
    monkeypatch.setattr("acker.connectors.stopping._ANSWER_SECS", 0.1)
    broker = MemoryBroker()
    broker.publish([b"a", b"b"])
    source = MemorySource(broker)
    consumer = Consumer(source, drain_secs=0.1)
    messages = iter(consumer)
    first, _ = next(messages), next(messages)
    hangs, answer = threading.Event(), threading.Event()
    source.on(method, lambda: hangs.set() or answer.wait())
    first.ack()
    # Not before that, or on a slow machine the time to drain is over before the thread comes to it.
    wait_until((lambda: len(consumer) == 1) if method == "release" else hangs.is_set)
    consumer.close()
    assert "the broker has not answered for 0.1 s after the time to drain" in caplog.text
    unacked = consumer.stats().unacked
    assert unacked in {"poll": (0, 1), "ack": (1,), "release": (0,)}[method]  # it may be acked before that poll
    assert f"what is not acked, also {unacked} messages that are done" in caplog.text
    consumer.close()
    assert caplog.text.count("has not answered") == 1 and consumer.stats().state == "draining"
    answer.set()
    wait_until(lambda: consumer.stats().state == "stopped")
    assert consumer.stats().unacked == 0, "the broker answered after all"


def test_an_end_without_a_connection_counts_what_is_done_and_not_acked(caplog):
    broker = MemoryBroker(lease_secs=60.0)
    broker.publish([b"a", b"b"])
    source = MemorySource(broker)
    with Consumer(source, drain_secs=0.1) as consumer:
        messages = [next(iter(consumer)), next(iter(consumer))]
        source.lose("ack", times=10_000)
        source.refuse(10_000)
        for message in messages:
            message.ack()
    assert consumer.stats().unacked == 2
    assert "2 messages, such as" in caplog.text and "are done and could not be acked" in caplog.text


def test_an_end_says_for_what_it_waits(monkeypatch, caplog):
    monkeypatch.setattr("acker.connectors.stopping._SILENCE_SECS", 0.0)
    broker = MemoryBroker()
    broker.publish([b"a"])
    with Consumer(MemorySource(broker)) as consumer:
        message = next(iter(consumer))
        consumer.stop()
        wait_until(lambda: "stopping, and 1 messages, such as memory/0, are not done" in caplog.text)
        message.ack()
    assert broker.acked == [b"a"] and caplog.text.count("stopping, and") == 1


def test_an_end_names_the_threads_that_hold_the_program_up(caplog):
    broker = MemoryBroker()
    broker.publish([b"a", b"b"])
    begun, ending = threading.Semaphore(0), threading.Event()

    def hang():
        begun.release()
        ending.wait()

    with ThreadPoolExecutor(1, thread_name_prefix="packer") as pool:
        with Consumer(MemorySource(broker), drain_secs=0.0) as consumer:
            messages = iter(consumer)
            for _ in range(2):
                next(messages).submit(pool, hang)  # the second one waits in the pool's queue, and never begins
            begun.acquire()
        ending.set()
    (line,) = [record.getMessage() for record in caplog.records if "still run in pools" in record.getMessage()]
    assert "1 calls still run in pools, and the program ends only when they return: packer_0 with memory/0" in line
    assert "test_io_thread.py:" in line and "memory/1" not in line


def test_an_end_names_a_call_that_runs_though_its_message_has_timed_out(caplog):
    broker = MemoryBroker()
    broker.publish([b"a"])
    begun, ending = threading.Event(), threading.Event()

    def hang():
        begun.set()
        ending.wait()

    def handle(message):
        if not begun.is_set():
            call = message.submit(pool, hang)
            # Where the message times out before a thread of the pool is there, its next attempt begins the call.
            wait_until(lambda: begun.is_set() or call.done())

    with ThreadPoolExecutor(1, thread_name_prefix="packer") as pool:
        Consumer(MemorySource(broker), timeout_secs=0.1, **QUICK).run(handle, until="empty")
        ending.set()
    (line,) = [record.getMessage() for record in caplog.records if "still run in pools" in record.getMessage()]
    assert "packer_0 with memory/0, which timed out, for " in line and "in test_an_end_names" in line


# ---- what a source of one's own answers -----------------------------------------------------------------------------


class OnlyEven(MemorySource):
    """Holds each second delivery."""

    def holds(self, delivery):
        return int(delivery.value) % 2 == 0


class ManyAtOnce(MemorySource):
    """Answers for many deliveries at once, as Kafka does."""

    def held(self, deliveries):
        return [each for each in deliveries if int(each.value) < 3]


class OnlyEvenOfMany(ManyAtOnce):
    holds = OnlyEven.holds


class MixedIn(OnlyEven, ManyAtOnce):
    pass


class BothOfMany(OnlyEvenOfMany):
    held = ManyAtOnce.held


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (MemorySource, []),  # its broker knows none of these
        (OnlyEven, [0, 2, 4]),
        (ManyAtOnce, [0, 1, 2]),
        (OnlyEvenOfMany, [0, 2, 4]),
        (MixedIn, [0, 2, 4]),
        (BothOfMany, [0, 1, 2]),
    ],
)
def test_what_a_source_holds_of_many_is_what_its_most_derived_class_says(kind, expected):
    deliveries = [Delivery("x", b"%d" % number, {}, 1, None, Claim(0, number)) for number in range(5)]
    assert [int(each.value) for each in kind(MemoryBroker()).held(deliveries)] == expected


def test_a_source_that_says_nothing_of_it_holds_all():
    deliveries = [Delivery("x", b"", {}, 1, None, None)]
    assert Source.held(Silent(), deliveries) == deliveries and Silent().held(deliveries) == deliveries


class Silent(Source):
    name = "silent"

    def open(self, events, limit):
        pass

    def poll(self, limit, wait_secs):
        return ()

    def ack(self, deliveries):
        pass

    def close(self):
        pass


@pytest.mark.parametrize("options", [{}, {"rate_max": 1e6}])
def test_what_is_no_delivery_ends_the_consumer_with_an_error_that_says_so(options):
    class PollsBodies(MemorySource):
        def poll(self, limit, wait_secs):
            return [*super().poll(limit, wait_secs), b"a body"]

    broker = MemoryBroker()
    broker.publish([b"1"])
    source = PollsBodies(broker, name="bodies")
    with pytest.raises(TypeError, match=r"^bodies: poll returned b'a body', expected a Delivery$"):
        Consumer(source, **options).run(lambda message: None)
    assert source.calls["close"] and not source.connected


def test_a_lost_connection_is_told_with_the_name_of_the_source_once(caplog):
    broker = MemoryBroker()
    broker.publish([b"1"])
    source = MemorySource(broker)
    source.lose("poll")
    Consumer(source).run(lambda message: None, until="empty")
    (told,) = (line for line in caplog.messages if "no connection" in line)
    assert told == "memory: no connection, next attempt in 0.01 s: the connection was lost in poll"
