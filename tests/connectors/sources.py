"""What the tests of single sources share: the events that they tell, polls until something comes, and leases."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time

import pytest

from acker.connectors import Consumer
from acker.errors import ConnectionLostError

# No wait is for a time; one that comes to this is a failure.
LONG = 60.0


class Seen:
    """The events that a source tells."""

    def __init__(self):
        self.gone = []

    def finish(self, concerned, secs):
        raise AssertionError("nothing is rebalanced here")

    def revoked(self, concerned):
        self.gone.append(concerned)


@contextlib.contextmanager
def closed_at_the_end(construct):
    """Give a function that makes sources, as `construct` does, which are closed in the end."""
    made = []

    def make(*args, **settings):
        made.append(construct(*args, **settings))
        return made[-1]

    yield make
    for source in made:
        source.close()


def opens(make):
    """Return a function that makes sources, as `make` does, and opens them."""

    def opened(*args, **settings):
        source = make(*args, **settings)
        source.open(Seen(), 100)
        return source

    return opened


def take(source, count, limit=100):
    """Poll until so many deliveries have come, and no more."""
    found, end = [], time.monotonic() + LONG
    while len(found) < count and time.monotonic() < end:
        got = source.poll(limit, 0.1)
        assert len(got) <= limit
        found += got
    assert len(found) == count, [delivery.key for delivery in found]
    return found


def values(deliveries):
    """Return the numbers that deliveries hold."""
    return [int(delivery.value) for delivery in deliveries]


def texts_of(error):
    """Return what a traceback tells of an error, its causes included."""
    texts = []
    while error is not None:
        texts.append(f"{error} {error!r}")
        error = error.__cause__ or error.__context__
    return texts


class LeaseContract:
    """What a source promises whose broker lends messages for some time.

    A subclass or its module has these fixtures: `make` and `opened`, which make sources; `add`, which adds so many
    messages with the numbers 0, 1, 2 and so on; `end_leases`, which ends those of some deliveries; `end_all_leases`;
    `source_code`, the code that makes `source` in another process; `left`, which counts the messages not acked.

    Attributes
    ----------
    attempt_of_released : int
        What the broker counts for a message that was given back.
    in_order : bool
        Whether messages come in the order in which they were added, also when they come again.
    """

    attempt_of_released = 2
    in_order = True

    def look(self, source):
        """Let the next poll look for messages whose lease is over."""

    def values(self, deliveries):
        return values(deliveries) if self.in_order else sorted(values(deliveries))

    def test_a_poll_with_no_limit_waits_until_it_is_woken(self, opened):
        source = opened()
        threading.Timer(0.05, source.wake).start()
        begin = time.monotonic()
        assert not source.poll(0, LONG)
        assert time.monotonic() - begin < LONG

    def test_a_killed_process_loses_nothing(self, opened, add, source_code, end_all_leases):
        add(5)
        code = f"""
import os, signal
{source_code}
source.open(None, 10)
found = []
while len(found) < 5:
    found += source.poll(10, 1.0)
source.ack([delivery for delivery in found if int(delivery.value) < 2])
source.poll(0, 0.0)
print(len(found), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True, timeout=LONG)
        assert done.stdout == "5\n", done.stderr
        end_all_leases()
        found = take(opened(), 3)
        assert self.values(found) == [2, 3, 4]
        assert {delivery.attempt for delivery in found} == {2}

    def test_extended_leases_are_left_alone(self, opened, add, end_leases):
        add(3)
        holder, other = opened(), opened()
        found = take(holder, 3)
        end_leases(found)
        assert not holder.extend(found[:2])
        self.look(other)
        assert values(take(other, 1)) == values(found[2:])
        self.look(other)
        assert not other.poll(100, 0.0)
        assert holder.extend(found) == found[2:]

    def test_a_lease_that_this_process_forgot_is_a_new_delivery(self, opened, add, end_leases, left):
        add(2)
        source = opened()
        found = take(source, 2)
        end_leases(found[:1])
        self.look(source)
        (again,) = take(source, 1)
        assert (again.value, again.attempt) == (found[0].value, 2)
        assert [source.holds(delivery) for delivery in (*found, again)] == [False, True, True]
        (concerned,) = source._leases._events.gone
        assert [concerned(delivery) for delivery in (*found, again)] == [True, False, False]
        assert source.extend([found[0], again]) == [found[0]]
        source.ack(found[:1])
        source.poll(0, 0.0)
        assert source.holds(again)
        assert left() == 2

    def test_what_is_released_is_due_at_once(self, opened, add):
        add(14)
        source, other = (opened(lease_secs=3600) for _ in range(2))  # nobody waits for the end of these
        found = take(source, 14)
        source.release(found[2:])
        assert [source.holds(delivery) for delivery in found[1:3]] == [True, False]
        source.ack(found[:2])
        source.close()
        self.look(other)
        taken = take(other, 12)
        assert self.values(taken) == self.values(found[2:])
        assert {delivery.attempt for delivery in taken} == {self.attempt_of_released}

    def test_another_consumer_on_the_same_object_holds_nothing_of_the_first(self, opened, add):
        add(1)
        source = opened()
        found = take(source, 1)
        source.close()
        source.open(Seen(), 100)
        assert not source.holds(found[0])

    def test_close_may_come_at_any_time(self, make, add):
        source = make()
        source.close()
        source.close()
        with pytest.raises(ConnectionLostError):
            source.poll(1, 0.0)
        source.open(Seen(), 10)
        add(1)
        self.look(source)
        found = take(source, 1)
        source.close()
        source.wake()
        with pytest.raises(ConnectionLostError):
            source.ack(found)
        with pytest.raises(ConnectionLostError):
            source.release(found)
        source.close()


class OwnerContract(LeaseContract):
    """What a source promises, too, whose broker knows the owner of each lease."""

    def stand_still(self, source):
        """Let a source look as if its process had stood still for ten leases."""
        raise NotImplementedError

    def test_messages_of_a_dead_consumer_are_taken_over(self, opened, add, end_leases, left):
        add(10)
        dead, other = opened(), opened()
        found = take(dead, 10)
        self.look(other)
        assert not other.poll(100, 0.0), "their leases are not over"
        end_leases(found[:7])
        self.look(other)
        taken = take(other, 7, limit=3)
        assert sorted(values(taken)) == values(found[:7])
        assert {delivery.attempt for delivery in taken} == {2}
        # The first one is not dead after all.
        assert dead.extend(found) == found[:7]
        assert [dead.holds(delivery) for delivery in found] == [False] * 7 + [True] * 3
        assert not other.extend(taken), "nothing was stolen back"
        dead.ack(found[7:])
        dead.close()
        assert left() == 7
        assert all(map(other.holds, taken))

    def test_a_process_that_stood_still_renews_its_own_leases_first(self, opened, add, end_leases):
        add(2)
        source = opened()
        found = take(source, 2)
        end_leases(found)
        self.stand_still(source)
        assert not source.poll(100, 0.0)
        assert not source.extend(found)
        self.look(source)
        assert not source.poll(100, 0.0)


def check_that_a_stop_counts_unacked(server, source, monkeypatch, caplog):
    """Take three messages, let the server hang, be done with two of them, and stop."""
    monkeypatch.setattr("acker.connectors.stopping._ANSWER_SECS", 0.1)
    consumer = Consumer(source, drain_secs=0.0)
    messages = iter(consumer)
    found = [next(messages) for _ in range(3)]
    server.pause()
    for message in found[:2]:
        message.ack()
    consumer.close()
    server.resume()
    assert "what is not acked, also 2 messages that are done" in caplog.text
    end = time.monotonic() + LONG
    while consumer.stats().state != "stopped":
        assert time.monotonic() < end
        time.sleep(0.01)
