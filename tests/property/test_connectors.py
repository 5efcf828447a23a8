"""Random trees of children on several threads, random faults of the source, and an account that nothing else keeps.

Each message carries its number, and each part of its tree writes what it did. Whatever happens, nothing is lost,
nothing is acked before its parts are done, and each further delivery has a reason.
"""

import logging
import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker import TupleStateError
from acker.connectors import Consumer
from acker.testing.connectors import MemoryBroker, MemoryPublisher, MemorySource

METHODS = ["open", "poll", "ack", "retry", "extend", "release", "any"]
PUBLISHER_FAULTS = ["refuse", "fail", "be_unreachable"]


class Account:
    """What the parts of each attempt wrote: how many were begun, and how many are done."""

    def __init__(self):
        self.lock = threading.Lock()
        self.attempts = defaultdict(list)  # number of the message -> [[begun, done, failed], ...]
        self.early = []

    def begin(self, number):
        with self.lock:
            parts = [1, 0, 0]
            self.attempts[number].append(parts)
            return parts

    def write(self, parts, place):
        with self.lock:
            parts[place] += 1

    def check_ack(self, number):
        """Note an ack for which no attempt has done all its parts."""
        with self.lock:
            if not any(begun == done and not failed for begun, done, failed in self.attempts[number]):
                self.early.append((number, self.attempts[number]))


class Watched(MemoryBroker):
    """Compares each ack with the account when it arrives."""

    def __init__(self, account, given_up, **options):
        super().__init__(**options)
        self._account = account
        self._given_up = given_up

    def ack(self, claim):
        held = self._held.get(claim)
        if held is not None and not held.message.done:
            number = int(held.message.value)
            if number not in self._given_up():
                self._account.check_ack(number)
        return super().ack(claim)


class Run:
    """One run: messages, threads that make trees and end them in any order, and faults."""

    def __init__(self, seed, messages, faults, *, leases, delays, counts, lag, letters, open_max):
        self.random = Random(seed)
        self.account = Account()
        self.letters = MemoryPublisher()
        self.messages = messages
        self.broker = Watched(
            self.account,
            lambda: {int(each.value) for each in self.letters.published},
            lease_secs=0.5 if leases else None,  # so what a lost poll took comes back soon
            delays=delays,
            counts_attempts=counts,
        )
        self.broker.publish(b"%d" % number for number in range(messages))
        # No broker has both: acks that lag would be of leases that are over.
        self.source = MemorySource(self.broker, lag=lag and not leases)
        for method, at, after in faults:
            self.source.lose(method, at=at, after=after)
        for fault in letters:
            getattr(self.letters, fault)()
        self.open_max = open_max
        self.lost = 0

    def work(self, pool, handle, parts, depth, random):
        """Do one part: make children on any thread, then end it, or fail it, or lose it."""
        children = random.choice([0, 0, 1, 2, 3]) if depth < 3 else 0
        for _ in range(children):
            child = handle.child()
            self.account.write(parts, 0)
            seed = random.random()
            if random.random() < 0.5:
                pool.submit(self.guarded, pool, child, parts, depth + 1, Random(seed))
            else:
                self.guarded(pool, child, parts, depth + 1, Random(seed))
            del child
        chance = random.random()
        if chance < 0.03:
            self.account.write(parts, 2)
            handle.fail("it was to fail")
        elif chance < 0.05:
            self.account.write(parts, 2)
            with handle:
                raise LookupError("in a block")
        elif chance < 0.06:
            self.account.write(parts, 2)  # and forgets the handle
        else:
            self.account.write(parts, 1)
            handle.ack()

    def guarded(self, *arguments):
        try:
            self.work(*arguments)
        except TupleStateError as fault:  # none of these handles is ended twice
            self.account.early.append(fault)

    def iterate(self, consumer, pool, seed):
        random = Random(seed)
        for message in consumer:
            parts = self.account.begin(int(message.value))
            self.guarded(pool, message, parts, 0, random)
            del message

    def until_nothing_is_left(self):
        """Consume with one consumer after the other, each stopped at any time, until all is settled."""
        stops = self.random.choice([0, 0, 1, 2])
        with ThreadPoolExecutor(4) as pool:
            while self.broker.left():
                enough = self.random.randrange(self.messages) if stops else self.messages + 1
                stops -= 1
                self.consume(pool, lambda broker, enough=enough: len(broker.acked) >= enough or broker.left() == 0)

    def consume(self, pool, condition):
        consumer = Consumer(
            self.source,
            timeout_secs=30,
            open_max=self.open_max,
            attempts_max=8,
            dead_letters=self.letters,
            backoff_secs=0.001,
            backoff_secs_max=0.002,
            drain_secs=self.random.choice([0, 0.01, 5]),
        )
        with consumer, ThreadPoolExecutor(3) as takers:
            ends = [takers.submit(self.iterate, consumer, pool, self.random.random()) for _ in range(3)]
            try:
                self.broker.wait_until(condition)
            finally:
                consumer.stop()
            for end in ends:
                end.result(60)
        assert consumer.stats().state == "stopped" and len(consumer) == 0
        assert consumer._io._signal.qsize() <= 4

    def check(self):
        assert self.account.early == []
        assert self.broker.violations == []
        done = {int(value) for value in self.broker.acked}
        assert done == set(range(self.messages))
        given_up = {int(each.value) for each in self.letters.published}
        for number in range(self.messages):
            attempts = self.account.attempts[number]
            complete = sum(begun == finished for begun, finished, _ in attempts)
            assert complete or number in given_up
        # Each further delivery follows one that came back to the broker.
        counts = self.broker.counts
        assert counts["delivered"] == self.messages + counts["returned"] + counts["retried"]
        assert Counter(self.broker.acked).most_common(1)[0][1] == 1


faults = st.lists(st.tuples(st.sampled_from(METHODS), st.integers(1, 30), st.booleans()), max_size=5)


@pytest.fixture(autouse=True, scope="module")
def _soon():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("acker.connectors.io_thread._RECONNECT_SECS", 0.002)
        patch.setattr("acker.connectors.io_thread._RECONNECT_SECS_MAX", 0.01)
        patch.setattr("acker.connectors.dead_letters._BACKOFF_SECS", 0.002)
        patch.setattr("acker.connectors.dead_letters._BACKOFF_SECS_MAX", 0.01)
        patch.setattr(logging.getLogger("acker.connectors"), "disabled", True)
        yield


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    messages=st.integers(1, 60),
    faults=faults,
    leases=st.booleans(),
    delays=st.booleans(),
    counts=st.booleans(),
    lag=st.booleans(),
    letters=st.lists(st.sampled_from(PUBLISHER_FAULTS), max_size=3),
    open_max=st.sampled_from([1, 2, 10, 1000]),
)
def test_nothing_is_lost_and_nothing_is_acked_early(seed, messages, faults, **options):
    run = Run(seed, messages, faults, **options)
    run.until_nothing_is_left()
    run.check()
