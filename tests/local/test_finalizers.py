"""Finalizers that ack, which Python may run at any point, and exceptions that cannot say their text."""

from __future__ import annotations

import threading

import pytest

from acker._flow import AckSender
from acker.local.clock import Flag
from acker.local.queues import Queue
from acker.testing import FeederSpout, Scheduler
from acker.topology import Bolt, ReasonKind, Topology


def topology_of(feeder, bolt):
    class Finalized(Topology):
        numbers = feeder.spec()
        last = bolt.spec(inputs=[numbers])

    return Finalized


class Interrupting:
    """A queue within whose put something else is done first, as by a finalizer."""

    def __init__(self):
        self.batches, self.meanwhile = [], []

    def put(self, batch, items):
        if self.meanwhile:
            self.meanwhile.pop()()
        self.batches.append((len(batch), items))


@pytest.mark.parametrize("ackers", [1, 3])
def test_an_ack_while_a_batch_is_put_into_its_queue_is_sent_later(ackers):
    queues = [Interrupting() for _ in range(ackers)]
    sender = AckSender(queues)
    sender.track(0, 1, 2, 3)
    queues[0].meanwhile.append(lambda: sender.track(0, 4, 5, 6))
    sender.send()
    assert queues[0].batches == [(1, 1)]
    sender.send()
    assert queues[0].batches == [(1, 1), (1, 1)]


class Sets:
    """A signal that, when it is asked, lets something else be done by the same thread."""

    def __init__(self):
        self.flag, self.meanwhile = Flag(), []

    def is_set(self):
        if self.meanwhile:
            self.meanwhile.pop()()
        return self.flag.is_set()

    def set(self):
        self.flag.set()


@pytest.mark.timeout(60)
def test_a_put_within_a_put_of_the_same_thread_does_not_wait_for_ever():
    signal = Sets()
    queue = Queue(10, signal)
    signal.meanwhile.append(lambda: queue.put("inner", 1))
    queue.put("outer", 1)
    assert (queue.take(), queue.take(), queue.size) == ("outer", "inner", 2)


class Finalized:
    """A value with a finalizer."""

    def __init__(self, finalize):
        self.finalize = finalize

    def __del__(self):
        self.finalize()


def test_what_a_queue_drops_is_finalized_while_other_threads_can_put():
    queue = Queue(10, Flag())
    has_put = []

    def put_in_another_thread():
        thread = threading.Thread(target=queue.put, args=("new", 1), daemon=True)
        thread.start()
        thread.join(60)
        has_put.append(not thread.is_alive())

    queue.put(Finalized(put_in_another_thread), 1)
    assert queue.clear() == 1
    assert has_put == [True]
    assert (queue.take(), queue.size) == ("new", 1)


class MuteError(Exception):
    def __str__(self):
        raise ZeroDivisionError


def test_an_exception_without_a_text_fails_its_tuple_alone():
    class Raises(Bolt):
        def process(self, tup):
            if tup.number == 1:
                raise MuteError

    feeder = FeederSpout.with_outputs("number")
    for number in range(3):
        feeder.feed([number], number)
    with Scheduler.of(topology_of(feeder, Raises)) as scheduler:
        scheduler.settle()
        assert scheduler.runtime.report().restarts == 0
    assert sorted(feeder.tracker.acked) == [0, 2] and feeder.tracker.failed == [1]
    reason = feeder.tracker.reason_of(1)
    assert reason.kind is ReasonKind.FAILED
    assert reason.exception == "MuteError: (no text: its __str__ raised ZeroDivisionError)"
