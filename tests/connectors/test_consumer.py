"""The consumer over a broker in memory: outcomes, attempts, dead letters, losses, and the end."""

import gc
import itertools
import json
import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
import weakref
from collections import Counter
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from acker import ArgumentTypeError, ArgumentValueError, ForkedError, RuntimeStateError, SourceError, TopologyError
from acker.connectors import Consumer, DeadLetterFile, PublishBolt, SourceSpout
from acker.local.prometheus import RuntimeCollector
from acker.testing.connectors import MemoryBroker, MemoryPublisher, MemorySource
from acker.testing.connectors.consumer_run import wait_until
from acker.ui import LivePage

# Seconds that no test waits for.
LONG = 600.0
QUICK = {"backoff_secs": 0.001, "backoff_secs_max": 0.002}


def stop_when(consumer, broker, condition=lambda broker: broker.left() == 0):
    """Stop a consumer once a condition of the broker holds; return the thread that waits for it."""

    def wait():
        try:
            broker.wait_until(condition)
        finally:
            consumer.stop()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def consume(broker, work, source=None, until=lambda broker: broker.left() == 0, **options):
    """Give each message to `work` within a block, until a condition holds; return the consumer."""
    with Consumer(source or MemorySource(broker), **{**QUICK, **options}) as consumer:
        waiting = stop_when(consumer, broker, until)
        for message in consumer:
            with message:
                work(message)
        waiting.join()
    return consumer


# ---- outcomes -------------------------------------------------------------------------------------------------------


def test_each_message_is_acked_when_its_parts_are_done(broker):
    broker.publish(b"%d" % number for number in range(300))
    done = []
    with ThreadPoolExecutor(4) as pool:

        def grandchild(handle, value):
            with handle:
                done.append(value)

        def child(handle, value):
            with handle:
                for _ in range(2):
                    pool.submit(grandchild, handle.child(), value)

        def work(message):
            for _ in range(3):
                pool.submit(child, message.child(), message.value)

        def acked_early(broker):
            counts = Counter(done[:])
            assert all(counts[value] == 6 for value in broker.acked)
            return broker.left() == 0

        consumer = consume(broker, work, until=acked_early)
    assert sorted(broker.acked) == sorted(set(done)) and Counter(Counter(done).values()) == {6: 300}
    stats = consumer.stats()
    assert (stats.acked, stats.failed, stats.pending, stats.delivered) == (300, 0, 0, 300)


def test_a_message_stays_open_until_its_last_child_ends(broker):
    broker.publish([b"a"])
    with Consumer(MemorySource(broker)) as consumer:
        with next(iter(consumer)) as message:
            child = message.child()
        assert child.alive and len(consumer) == 1 and broker.acked == []
        child.ack()
        broker.wait_until(lambda broker: broker.acked == [b"a"])
        assert not message.alive


def test_a_failed_message_is_tried_again_in_process(broker):
    broker.publish([b"a", b"b"])
    seen = []

    def work(message):
        seen.append((message.value, message.attempt))
        if message.value == b"a" and message.attempt < 4:
            raise LookupError("not yet")

    consumer = consume(broker, work)
    assert [attempt for value, attempt in seen if value == b"a"] == [1, 2, 3, 4]
    assert broker.counts["delivered"] == 2
    assert (consumer.stats().failed, consumer.stats().retried) == (3, 3)


def test_a_broker_with_delays_redelivers_itself():
    broker = MemoryBroker(delays=True)
    broker.publish([b"a"])
    attempts = []

    def work(message):
        attempts.append(message.attempt)
        if message.attempt < 3:
            raise LookupError("not yet")

    consume(broker, work)
    assert attempts == [1, 2, 3] and broker.counts["retried"] == 2 and broker.violations == []


def test_a_message_that_takes_too_long_is_tried_again(broker):
    broker.publish([b"a"])
    held = []

    def work(message):
        if message.attempt == 1:
            held.append(message.child())

    consumer = consume(broker, work, timeout_secs=0.05)
    assert not held[0].alive
    held[0].ack()  # too late, and without effect
    # On a machine that stands still the second attempt times out too.
    assert consumer.stats().timed_out >= 1 and (consumer.stats().acked, broker.counts["acked"]) == (1, 1)


@pytest.mark.slow  # its timeout has room for a machine that stands still
def test_a_message_that_makes_progress_does_not_time_out(broker):
    broker.publish([b"a", b"b"])
    handles, over = {}, threading.Event()

    def work(message):
        handles[message.value, message.attempt] = message.child()

    def keep(broker):
        handle = handles.get((b"a", 1))
        if handle is not None:
            handle.reset_timeout()
        if (b"b", 2) in handles and not over.is_set():  # by now its timeout is over
            assert handle.alive
            over.set()
            handle.ack()
            handles[b"b", 2].ack()
        return broker.left() == 0

    with Consumer(MemorySource(broker), timeout_secs=6, **QUICK) as consumer:
        iterator = iter(consumer)
        for _ in range(2):
            with next(iterator) as message:
                work(message)
        third = threading.Thread(target=lambda: work_on(iterator, work))
        third.start()
        while not keep(broker):
            third.join(0.02)
        third.join()
    assert sorted(broker.acked) == [b"a", b"b"] and consumer.stats().timed_out == 1


def work_on(iterator, work):
    with next(iterator) as message:
        work(message)


def test_a_lost_handle_fails_its_message_with_a_warning(broker, caplog):
    broker.publish([b"a"])

    def work(message):
        if message.attempt == 1:
            message.child()

    consumer = consume(broker, work)
    assert consumer.stats().lost_handles == 1 and broker.acked == [b"a"]
    assert f"{__file__}:{work.__code__.co_firstlineno + 2}" in caplog.text


def test_handles_and_messages_are_freed_without_the_collector(broker):
    broker.publish([b"a", b"b", b"c"])
    trees = []

    def work(message):
        trees.append(weakref.ref(message._tree))
        with message.child():
            if message.value == b"b" and message.attempt == 1:
                message.fail("once")

    gc.disable()
    try:
        consume(broker, work)
        assert [tree() for tree in trees[:-1]] == [None] * 3  # the last message is still the loop's variable
    finally:
        gc.enable()


class InterruptError(BaseException):
    """Stands for a KeyboardInterrupt."""


@pytest.mark.parametrize("place", ["before the tree", "in the decoder", "before the handle"])
def test_a_message_whose_hand_out_is_interrupted_comes_again(broker, monkeypatch, place):
    broker.publish([b"a"])
    interrupts = [InterruptError()]

    def interrupted(original, *, is_called):
        def interrupt(*arguments):
            if not interrupts:
                return original(*arguments)
            if is_called:
                original(*arguments)
            raise interrupts.pop()

        return interrupt

    decode = interrupted(bytes.decode, is_called=False) if place == "in the decoder" else bytes.decode
    consumer = Consumer(MemorySource(broker), timeout_secs=0.1, **QUICK, decode=decode)
    if place != "in the decoder":
        begin = interrupted(Consumer.begin_message, is_called=place == "before the handle")
        monkeypatch.setattr(Consumer, "begin_message", begin)
    with consumer:
        with pytest.raises(InterruptError):
            next(iter(consumer))
        stop_when(consumer, broker)
        for message in consumer:  # more than once, if an ack comes after the timeout
            assert message.value == "a" and message.attempt > 1
            message.ack()
    assert broker.acked == [b"a"]


def test_a_message_that_was_taken_back_while_it_was_handed_out_has_no_effect(broker, monkeypatch):
    broker.publish([b"a"])
    source = MemorySource(broker)
    consumer = Consumer(source, **QUICK)
    original = Consumer.begin_message
    made = []

    def begin_message(*arguments):
        if not made:
            broker.cut()
            broker.wait_until(lambda broker: broker.counts["delivered"] == 2)
        message = original(*arguments)
        made.append(message._tree)
        return message

    monkeypatch.setattr(Consumer, "begin_message", begin_message)
    with consumer:
        iterator = iter(consumer)
        first, second = next(iterator), next(iterator)
        assert not first.alive and second.alive
        assert made[0].is_cancelled and made[0].attempt.tree is None
        first.ack()
        second.ack()
        broker.wait_until(lambda broker: broker.left() == 0)
    assert broker.counts["acked"] == 1


def test_a_decoder_may_raise_what_has_no_text(broker):
    class MuteError(Exception):
        def __str__(self):
            raise ZeroDivisionError

    def decode(body):
        raise MuteError

    broker.publish([b"a"])
    letters = MemoryPublisher()
    consume(broker, lambda _: None, decode=decode, attempts_max=5, dead_letters=letters)
    assert "MuteError: (no text: its __str__ raised " in letters.published[0].headers["acker-reason"]


# ---- limits ---------------------------------------------------------------------------------------------------------


def test_no_more_than_open_max_are_in_the_process(broker):
    broker.flood(100_000)
    highest = 0
    with Consumer(MemorySource(broker), open_max=50) as consumer:
        for count, message in enumerate(consumer, 1):
            highest = max(highest, broker.held(), len(consumer))
            message.ack()
            if count == 3000:
                consumer.stop()
    assert 2 <= highest <= 50 and broker.counts["delivered"] <= 3050


def test_retries_go_on_while_the_limit_is_reached(broker):
    broker.publish(b"%d" % number for number in range(100))

    def work(message):
        if message.attempt < 3:
            raise LookupError("not yet")

    consume(broker, work, open_max=4)
    assert len(broker.acked) == 100


def test_a_wait_for_a_retry_does_not_stop_other_messages(broker):
    broker.publish([b"poison", *[b"%d" % number for number in range(500)]])

    def work(message):
        if message.value == b"poison":
            raise LookupError("never")

    consumer = consume(
        broker, work, open_max=10, until=lambda broker: len(broker.acked) == 500, backoff_secs=60, backoff_secs_max=60
    )
    assert broker.left() == 1 and consumer.stats().released == 1


# ---- dead letters ---------------------------------------------------------------------------------------------------


def test_a_dead_letter_is_confirmed_before_the_ack(broker):
    broker.publish([b"bad", b"good"], {"n": 1})
    letters = MemoryPublisher()
    letters.block()
    gave_up = threading.Event()
    logger = logging.getLogger("acker.connectors")
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: gave_up.set()
    logger.addHandler(handler)

    def work(message):
        if message.value == b"bad":
            raise LookupError("no lamp")

    def progress(broker):
        if gave_up.is_set() and letters.calls["publish"] and not letters.published:
            assert broker.acked == [b"good"] or broker.acked == []
            letters.unblock()
        return broker.left() == 0

    try:
        with Consumer(MemorySource(broker), attempts_max=3, dead_letters=letters, **QUICK) as consumer:
            iterating = threading.Thread(target=lambda: [work_in_block(each, work) for each in consumer])
            iterating.start()
            while not progress(broker):
                iterating.join(0.01)
            consumer.stop()
            iterating.join()
    finally:
        logger.removeHandler(handler)
    (letter,) = letters.published
    assert letter.value == b"bad" and letter.headers["n"] == 1
    assert letter.headers["acker-attempts"] == 3 and "LookupError: no lamp" in letter.headers["acker-reason"]
    assert letter.headers["acker-key"] == "memory/0" and letter.headers["acker-source"] == "memory"
    assert (consumer.stats().dead_letters, consumer.stats().acked) == (1, 1) and letters.calls["close"] >= 1


def work_in_block(message, work):
    with message:
        work(message)


@pytest.mark.parametrize("fault", ["refuse", "fail", "be_unreachable"])
def test_a_dead_letter_that_is_not_confirmed_is_written_again(broker, fault, caplog):
    broker.publish([b"bad"])
    letters = MemoryPublisher()
    getattr(letters, fault)(1)

    def work(message):
        raise LookupError("no lamp")

    consume(broker, work, attempts_max=1, dead_letters=letters)
    assert len(letters.published) == (2 if fault == "fail" else 1) and broker.acked == [b"bad"]
    assert "are not confirmed" in caplog.text


def test_a_dead_letter_that_is_never_confirmed_goes_back(broker):
    broker.publish([b"bad"])
    letters = MemoryPublisher()
    letters.refuse(10**6)

    def work(message):
        raise LookupError("no lamp")

    def refused(broker):
        return letters.calls["publish"] >= 1

    with Consumer(MemorySource(broker), attempts_max=1, dead_letters=letters, drain_secs=0.2, **QUICK) as consumer:
        work_in_block(next(iter(consumer)), work)
        while not letters.calls["publish"]:
            threading.Event().wait(0.005)
    assert refused(broker) and broker.left() == 1 and broker.acked == [] and broker.counts["released"] == 1


def test_the_broker_keeps_dead_letters_where_it_can():
    broker = MemoryBroker(dead_letters=True)
    broker.publish([b"bad", b"good"])

    def work(message):
        if message.value == b"bad":
            raise LookupError("no lamp")

    consume(broker, work, attempts_max=2, dead_letters="broker")
    ((message, reason),) = broker.given_up
    assert message.value == b"bad" and "no lamp" in reason and broker.violations == []


def deliver_to_processes_that_died(broker, times):
    for _ in range(times):
        source = MemorySource(broker)
        source.open(None, 1)
        source.poll(1, 0.0)
        source.close()


def test_what_came_before_is_counted(broker):
    broker.publish([b"of a process that was killed"])
    deliver_to_processes_that_died(broker, 2)
    broker.publish([b"new"])
    stats = consume(broker, lambda _: None).stats()
    assert stats.delivered == 2 and stats.redelivered == stats.tasks[0].user["redelivered"] == 1


def test_a_message_that_killed_earlier_processes_becomes_a_dead_letter(broker):
    broker.publish([b"bad"])
    letters = MemoryPublisher()
    deliver_to_processes_that_died(broker, 12)
    consumer = consume(broker, lambda _: pytest.fail("it was handed out"), attempts_max=2, dead_letters=letters)
    reason = letters.published[0].headers["acker-reason"]
    assert "this is its delivery 13 by the broker, and deliveries_max is 12" in reason
    assert consumer.stats().dead_letters == 1


def test_a_message_that_was_delivered_too_often_has_its_last_failure_as_its_reason():
    """It merely failed, again and again: without its exception nobody knows why."""
    broker = MemoryBroker(delays=True)
    broker.publish([b"a"])
    letters = MemoryPublisher()

    def work(message):
        raise LookupError(f"no lamp {message.attempt}")

    consume(broker, work, deliveries_max=3, dead_letters=letters)
    reason = letters.published[0].headers["acker-reason"]
    assert "deliveries_max is 3; its last failure in this process: failed: LookupError: no lamp 3" in reason


def test_stops_and_crashes_are_no_attempts_where_the_process_tries_again(broker):
    broker.publish([b"a"])
    letters = MemoryPublisher()
    deliver_to_processes_that_died(broker, 5)
    attempts = []

    def work(message):
        attempts.append(message.attempt)
        if len(attempts) < 3:
            raise LookupError("not yet")

    consume(broker, work, attempts_max=3, dead_letters=letters)
    assert attempts == [6, 7, 8] and not letters.published


def test_a_delivery_is_an_attempt_where_the_broker_tries_again():
    broker = MemoryBroker(delays=True)
    broker.publish([b"a"])
    letters = MemoryPublisher()
    deliver_to_processes_that_died(broker, 1)
    attempts = []

    def work(message):
        attempts.append(message.attempt)
        raise LookupError("never")

    consume(broker, work, attempts_max=3, dead_letters=letters)
    assert attempts == [2, 3] and len(letters.published) == 1


def test_a_body_that_cannot_be_decoded_is_a_dead_letter_at_once(broker, tmp_path):
    broker.publish([b'{"n": 1}', b"\xff", b"{"])
    values = []
    path = tmp_path / "letters.jsonl"
    consumer = consume(
        broker,
        lambda message: values.append(message.value),
        decode=json.loads,
        attempts_max=5,
        dead_letters=DeadLetterFile(path),
    )
    assert values == [{"n": 1}]
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row.get("value_base64") or row["value"] for row in rows] == ["/w==", "{"]
    assert all(row["headers"]["acker-attempts"] == 1 for row in rows)
    assert "UnicodeDecodeError" in rows[0]["headers"]["acker-reason"]
    assert consumer.stats().undecodable == 2


# ---- losses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["open", "poll", "ack", "any"])
@pytest.mark.parametrize("after", [False, True])
def test_nothing_is_lost_with_a_connection(broker, method, after):
    broker.publish(b"%d" % number for number in range(40))
    source = MemorySource(broker)
    source.lose(method, at=2 if method == "any" else 1, after=after)
    consumer = consume(broker, lambda _: None, source)
    assert set(broker.acked) == {b"%d" % number for number in range(40)} and broker.left() == 0
    assert consumer.stats().reconnects == 1


def test_an_outcome_of_a_lost_connection_is_dropped(broker):
    broker.publish([b"a"])
    source = MemorySource(broker)
    with Consumer(source, **QUICK) as consumer:
        iterator = iter(consumer)
        first = next(iterator)
        source.lose("poll")
        second = next(iterator)
        assert not first.alive and second.alive and second.attempt == 2
        first.ack()
        assert broker.acked == []
        second.ack()
        broker.wait_until(lambda broker: broker.left() == 0)
    assert broker.counts["acked"] == 1 and consumer.stats().revoked == 1


def test_a_lost_lease_is_noticed(caplog):
    broker = MemoryBroker(lease_secs=0.2, clock=lambda: 0.0)  # no lease ends by itself
    broker.publish([b"a"])
    with Consumer(MemorySource(broker), **QUICK) as consumer:
        iterator = iter(consumer)
        first = next(iterator)
        broker.take_back()
        second = next(iterator)
        second.ack()
        broker.wait_until(lambda broker: broker.left() == 0)
        while first.alive:  # until leases are renewed the next time
            threading.Event().wait(0.005)
        first.ack()
    assert broker.counts["acked"] == 1 and broker.violations == []
    assert "the leases of 1 messages were lost" in caplog.text


def test_leases_are_renewed_while_a_message_is_open():
    # Time passes with renewals alone, so nobody is late.
    broker = MemoryBroker(lease_secs=0.1, clock=lambda: 0.05 * broker.counts["extended"])
    broker.publish([b"a"])
    with Consumer(MemorySource(broker)) as consumer:
        message = next(iter(consumer))
        broker.wait_until(lambda broker: broker.counts["extended"] >= 10)
        assert message.alive
        message.ack()
        broker.wait_until(lambda broker: broker.left() == 0)
    assert broker.counts["delivered"] == 1


def test_a_rebalance_lets_messages_finish_and_drops_the_rest(broker):
    broker.publish([b"a", b"b"])
    source = MemorySource(broker)
    with Consumer(source, **QUICK) as consumer:
        iterator = iter(consumer)
        messages = {message.value: message for message in (next(iterator), next(iterator))}
        broker.publish([b"c"])
        broker.wait_until(lambda broker: broker.held() == 3)
        ends = [messages[b"a"].ack]

        def concerned(delivery):
            # Asked first of what is not handed out, before the time to finish begins.
            while ends:
                ends.pop()()
            return delivery.value != b"c"

        source.rebalance(concerned, secs=0.2)
        broker.wait_until(lambda broker: broker.counts["released"] == 1)
        next(iterator).ack()  # c
        again = next(iterator)
        assert (again.value, broker.acked[0]) == (b"b", b"a")
        assert not messages[b"b"].alive
        messages[b"b"].ack()
        again.ack()
        broker.wait_until(lambda broker: broker.left() == 0)
    assert sorted(broker.acked) == [b"a", b"b", b"c"]


def test_a_broker_that_is_away_is_asked_again_and_again(broker, caplog):
    broker.publish([b"a"])
    source = MemorySource(broker)
    source.refuse(2)
    consume(broker, lambda _: None, source)
    assert broker.acked == [b"a"] and caplog.text.count("no connection") == 2


def test_a_mistake_reaches_every_thread_that_iterates(broker):
    source = MemorySource(broker)
    source.mistake("open")
    with Consumer(source) as consumer:
        for _ in range(2):
            with pytest.raises(SourceError, match="no such queue"):
                next(iter(consumer))


def test_a_bug_of_a_source_is_raised_where_messages_are_taken(broker, caplog):
    source = MemorySource(broker)

    def fail():
        raise ZeroDivisionError("a bug")

    source.on("poll", fail)
    with Consumer(source) as consumer, pytest.raises(ZeroDivisionError):
        next(iter(consumer))
    assert "the I/O thread failed" in caplog.text


# ---- the end --------------------------------------------------------------------------------------------------------


def test_the_end_waits_for_open_messages(broker):
    broker.publish([b"a"])
    go = threading.Event()
    with ThreadPoolExecutor(1) as pool, Consumer(MemorySource(broker)) as consumer:
        with next(iter(consumer)) as message:
            message.submit(pool, go.wait, 60)
        threading.Timer(0.05, go.set).start()
    assert broker.acked == [b"a"] and consumer.stats().state == "stopped"


def test_what_is_not_done_at_the_end_goes_back(broker, caplog):
    broker.publish([b"a", b"b"])
    with Consumer(MemorySource(broker), drain_secs=0.05) as consumer:
        message = next(iter(consumer))
    assert not message.alive and broker.left() == 2 and broker.counts["released"] == 2 and broker.acked == []
    assert "go back to the broker" in caplog.text
    message.ack()


def test_messages_that_were_not_handed_out_go_back_at_once(broker):
    broker.publish(b"%d" % number for number in range(10))
    with Consumer(MemorySource(broker)) as consumer:
        next(iter(consumer)).ack()
    assert broker.left() == 9 and len(broker.acked) == 1 and consumer.stats().released == 9


def test_a_failure_at_the_end_goes_back_and_is_not_tried_again(broker):
    broker.publish([b"a"])
    with Consumer(MemorySource(broker), backoff_secs=0) as consumer:
        message = next(iter(consumer))
        consumer.stop()
        message.fail("no")
    assert broker.left() == 1 and broker.counts["delivered"] == 1


def test_stop_ends_all_iterations(broker):
    with Consumer(MemorySource(broker)) as consumer, ThreadPoolExecutor(3) as pool:
        ends = [pool.submit(list, consumer) for _ in range(3)]
        consumer.stop()
        assert [end.result(60) for end in ends] == [[], [], []]


def test_a_signal_handler_may_stop(broker):
    broker.publish([b"a"])
    with Consumer(MemorySource(broker)) as consumer:
        before = signal.signal(signal.SIGUSR1, lambda *_: consumer.stop())
        try:
            for message in consumer:
                message.ack()
                os.kill(os.getpid(), signal.SIGUSR1)
        finally:
            signal.signal(signal.SIGUSR1, before)
    assert broker.acked == [b"a"]


def test_a_consumer_is_started_and_closed_once(broker):
    consumer = Consumer(MemorySource(broker))
    consumer.close()
    consumer.start()
    with pytest.raises(RuntimeStateError, match="started before"):
        consumer.start()
    consumer.close()
    consumer.close()
    assert list(consumer) == []


def test_a_source_serves_one_consumer_at_a_time(broker):
    broker.publish([b"1", b"2"])
    source = MemorySource(broker, name="orders")
    first, second = Consumer(source), Consumer(source, ui=LivePage(port=0))
    with first:
        next(iter(first)).ack()
        for _ in range(2):
            with pytest.raises(
                RuntimeStateError, match=r"orders: .* that is not closed uses this .*; make a new source"
            ):
                second.start()
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(second.page.url)
        broker.wait_until(lambda broker: len(broker.acked) == 1)  # the first one goes on
    third = Consumer(source)
    with third:
        next(iter(third)).ack()
    assert sorted(broker.acked) == [b"1", b"2"]


def test_a_source_of_another_process_is_refused(broker):
    """Its connection is shared after a fork: what the new process sends would break it."""
    source = MemorySource(broker)
    with Consumer(source):
        child = os.fork()
        if child == 0:
            try:
                Consumer(source).start()
            except ForkedError as refused:
                os._exit(0 if "this source of memory" in str(refused) and "make a source in" in str(refused) else 2)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_source_for_which_no_thread_can_be_had_is_free_again(broker, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    source = MemorySource(broker)
    consumer = Consumer(source)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            consumer.start()
    with Consumer(source):
        pass


def test_a_forked_process_is_refused(broker):
    consumer = Consumer(MemorySource(broker))
    consumer.process -= 1
    with pytest.raises(ForkedError, match="Consumer"):
        next(iter(consumer))
    consumer.process += 1


def test_a_forked_process_cannot_stop_a_consumer(broker):
    with Consumer(MemorySource(broker)) as consumer:
        child = os.fork()
        if child == 0:
            try:
                consumer.stop()
            except ForkedError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert consumer.stats().state != "draining"


def test_a_forked_process_does_no_part_of_a_message(broker):
    """Its acker is a copy: what it did would be done twice, and nobody would be told."""
    broker.publish([b"1"])
    with ThreadPoolExecutor(1) as pool, Consumer(MemorySource(broker)) as consumer:
        message = next(iter(consumer))
        with message:
            consumer.process -= 1
            calls = [
                message.child,
                message.ack,
                message.fail,
                message.reset_timeout,
                message.__enter__,
                lambda: message.submit(pool, print, "done in the forked process"),
                consumer.start,
                consumer.stop,
            ]
            for call in calls:
                with pytest.raises(ForkedError):
                    call()
            consumer.process += 1
    assert broker.acked == [b"1"]


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_decoder_that_ends_the_program_holds_no_message(broker, end):
    """The traceback holds the message's handle: without an end of its own the stop would wait for it."""
    broker.publish([b"1"])

    def decode(body):
        raise end

    consumer = Consumer(MemorySource(broker), decode=decode, drain_secs=LONG)
    messages = iter(consumer)
    with pytest.raises(end) as raised:  # and hold the traceback
        next(messages)
    consumer.close()
    assert raised.tb is not None and broker.left() == 1 and not broker.acked
    assert consumer.stats().released == 1


# ---- pools of processes ---------------------------------------------------------------------------------------------


def kill_at_13(value):
    """Work for a message; the first process that gets the 13th one is killed, as by the kernel without memory."""
    if value == b"13":
        os.kill(os.getpid(), signal.SIGKILL)
    return value


@pytest.mark.parametrize("start_method", ["spawn", "fork"])
def test_a_killed_process_of_a_pool_fails_no_message(broker, start_method, caplog, monkeypatch):
    monkeypatch.setattr("acker.connectors.stopping._SILENCE_SECS", LONG)  # however slow the end is, it is not told
    broker.publish(b"%d" % number for number in range(100))
    consumer = Consumer(MemorySource(broker), attempts_max=1, dead_letters=MemoryPublisher(), **QUICK)
    # As the page has it. Forked processes inherit it, and a broken pool ends them by this signal.
    before = signal.signal(signal.SIGTERM, lambda *_: consumer.stop())

    def work():
        with ProcessPoolExecutor(2, multiprocessing.get_context(start_method)) as pool, consumer:
            for message in consumer:
                with message:
                    message.submit(pool, kill_at_13, message.value)

    try:
        with caplog.at_level(logging.WARNING, "acker.connectors"), pytest.raises(BrokenExecutor):
            work()
    finally:
        signal.signal(signal.SIGTERM, before)
    counts = consumer.stats()
    assert (counts.failed, counts.dead_letters, counts.pending) == (0, 0, 0)
    assert len(broker.acked) + broker.left() == 100 and b"13" not in broker.acked
    assert [record.levelname for record in caplog.records] == ["ERROR"]  # one line for all of them, without traceback
    assert "what is open goes back: BrokenProcessPool" in caplog.text and not caplog.records[0].exc_info
    # The next one begins where this one ended.
    consume(broker, lambda message: None)
    assert len(broker.acked) == 100


def test_a_pool_that_breaks_after_stop_raises_nothing(broker):
    broker.publish([b"13"])
    with (
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool,
        Consumer(MemorySource(broker)) as consumer,
    ):
        for message in consumer:
            with message:
                consumer.stop()
                message.submit(pool, kill_at_13, message.value)
    assert broker.acked == [] and consumer.stats().failed == 0 and consumer.stats().released == 1


# ---- questions ------------------------------------------------------------------------------------------------------


def test_the_oldest_messages_are_shown(broker):
    broker.publish([b"a", b"b", b"c"])
    with Consumer(MemorySource(broker), trace=True, drain_secs=0) as consumer:
        iterator = iter(consumer)
        first, second = next(iterator), next(iterator)
        child = second.child()
        rows = consumer.oldest(5)
        assert [(row.key, row.attempt, row.parts) for row in rows] == [("memory/0", 1, 1), ("memory/1", 1, 2)]
        assert rows[0].age_secs >= rows[1].age_secs >= 0
        assert "test_the_oldest_messages_are_shown" in rows[1].made_in[0]
        assert len(consumer.oldest(1)) == 1
        html = consumer._repr_html_()
        assert "memory/1" in html and "&lt;Consumer of memory, running" in html
        assert "<p>Running: 3 messages pending" in html, "the headline of the live page"
        assert "<th>dead letters</th>" in html, "the counts"
        first.ack(), second.ack(), child.ack()


def test_figures_are_those_that_exporters_read_of_a_topology(broker):
    broker.publish([b"a"])
    consumer = consume(broker, lambda _: None, name="orders")
    stats = consumer.stats()
    assert stats.name == stats.topology == "orders" and stats.state == "stopped" and stats.acked == 1
    assert stats.complete_latency.total == 1 and stats.acker.acked == stats.tasks[1].acker.acked == 1
    assert stats.tasks[0].user["delivered"] == stats.to_json()["delivered"] == 1
    assert "<td>1</td>" in stats._repr_html_()
    families = {family.name: family for family in RuntimeCollector(consumer).collect()}
    sample = families["acker_messages_acked"].samples[0]
    assert sample.value == 1 and sample.labels["topology"] == "orders" and sample.labels["component"] == "memory"


def test_a_stall_is_reported_with_the_oldest(broker, caplog):
    broker.publish([b"a"])
    kept = []
    with Consumer(MemorySource(broker), timeout_secs=0.2, drain_secs=0, **QUICK) as consumer:
        # It takes each further attempt, too. The first warning may come before any is handed out.
        taking = threading.Thread(target=lambda: kept.extend(consumer))
        taking.start()
        told = re.compile(r"nothing was acked.*the oldest: memory/0 for .* with 1 open parts")
        while not any(map(told.search, caplog.messages)):
            taking.join(0.01)
    taking.join()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("redis://user:s3cret@host", r"write acker\.connectors\.redis_streams\.RedisStreams\(url, stream="),
        ("amqps://user:s3cret@host", r"write acker\.connectors\.rabbitmq\.RabbitMQ\(url, queue\)"),
        ("orders", r"got str; of acker\.connectors there are rabbitmq\.RabbitMQ\(url, queue\), redis_streams\."),
        (None, r"got NoneType; .*kafka\.Kafka\(config, topics\)"),
    ],
)
def test_what_is_no_source_is_told_the_sources(given, text):
    with pytest.raises(ArgumentTypeError, match=f"source: expected a Source, .*{text}") as raised:
        Consumer(given)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"timeout_secs": 0}, ArgumentValueError, "timeout_secs: expected more than 0"),
        ({"timeout_secs": "1"}, ArgumentTypeError, "timeout_secs"),
        ({"open_max": 0}, ArgumentValueError, "open_max: expected at least 1"),
        ({"open_max": True}, ArgumentTypeError, "open_max: expected an int"),
        ({"attempts_max": 3}, ArgumentValueError, "set dead_letters="),
        ({"backoff_secs": -1}, ArgumentValueError, "backoff_secs"),
        ({"backoff_secs": 90}, ArgumentValueError, "backoff_secs is 90 and backoff_secs_max is 60, .* raise"),
        ({"backoff_secs_max": 0.5}, ArgumentValueError, "backoff_secs is 1 and backoff_secs_max is 0.5"),
        ({"drain_secs": float("inf")}, ArgumentValueError, "drain_secs"),
        ({"deliveries_max": 3}, ArgumentValueError, "deliveries_max: 3 needs dead_letters="),
        ({"dead_letters": "file"}, ArgumentTypeError, r"got a text; for a file write DeadLetterFile\(path\)"),
        ({"dead_letters": "broker"}, ArgumentValueError, "no place for dead letters"),
        ({"decode": "json"}, ArgumentTypeError, "decode: expected a callable"),
    ],
)
def test_wrong_options_are_refused(broker, options, error, text):
    with pytest.raises(error, match=text):
        Consumer(MemorySource(broker), **options)


def test_limits_of_attempts_that_contradict_each_other_are_refused(broker):
    """Where each delivery is an attempt, a message would be given up before its last attempts."""
    limits = {"attempts_max": 5, "deliveries_max": 3, "dead_letters": MemoryPublisher()}
    with pytest.raises(ArgumentValueError, match=r"deliveries_max is 3 and attempts_max is 5, .* attempt 4 would"):
        Consumer(MemorySource(MemoryBroker(delays=True)), **limits)
    Consumer(MemorySource(broker), **limits)  # its attempts happen in one delivery


def test_a_consumer_needs_a_source():
    with pytest.raises(ArgumentTypeError, match="source: expected a Source, got the text of a URL"):
        Consumer("amqp://localhost")


def test_errors_show_no_passwords(broker):
    url = "amqp://user:secret@localhost"
    with pytest.raises(ArgumentTypeError) as wrong_source:
        Consumer(url)
    with pytest.raises(ArgumentTypeError) as wrong_letters:
        Consumer(MemorySource(broker), dead_letters=url)
    with pytest.raises(TopologyError) as wrong_spout:
        SourceSpout.spec(source=url)
    with pytest.raises(TopologyError) as wrong_bolt:
        PublishBolt.spec(publisher=url)
    for wrong in (wrong_source, wrong_letters, wrong_spout, wrong_bolt):
        assert "secret" not in str(wrong.value)


EXIT = """
import sys
from acker.connectors import Consumer
from acker.testing.connectors import MemoryBroker, MemorySource
broker = MemoryBroker()
broker.publish(b"%d" % number for number in range(100))
consumer = Consumer(MemorySource(broker))
iterator = iter(consumer)
messages = [next(iterator) for _ in range(50)]
children = [message.child() for message in messages]
cycle = [messages[0].child()]
cycle.append(cycle)
sys.messages = messages[:10]
"""


def test_a_program_that_ends_with_open_messages_ends_silently():
    done = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, check=True, text=True)
    assert done.stdout == done.stderr == ""


def test_memory_does_not_grow_with_the_messages_that_wait(broker):
    """Blocks that Python holds: a leak of one object for each message would be 20,000 of them."""
    blocks = []
    with Consumer(MemorySource(broker), open_max=1000) as consumer:
        iterator = iter(consumer)
        for _ in range(2):
            broker.flood(20_000)
            for message in itertools.islice(iterator, 20_000):
                with message, message.child():
                    pass
            del message
            wait_until(lambda: len(consumer) == 0, "nothing is open", 60.0)
            gc.collect()
            blocks.append(sys.getallocatedblocks())
    assert blocks[1] - blocks[0] < 10_000
