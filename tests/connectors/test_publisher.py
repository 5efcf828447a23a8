"""What every publisher has from its base: one thread at a time, and one process."""

from __future__ import annotations

import pickle
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from acker import BusyError
from acker.connectors import Outgoing
from acker.connectors.publisher import Publisher

LAMP = [Outgoing(b"lamp")]


class Alone(Publisher):
    """Fails if a second thread is inside while the first waits in `write`."""

    def __init__(self):
        super().__init__("alone")
        self.inside = 0
        self.most = 0

    def connect(self):
        pass

    def write(self, messages):
        self.inside += 1
        self.most = max(self.most, self.inside)
        for _ in range(1_000):
            pass
        self.inside -= 1
        return [None] * len(messages)

    def disconnect(self):
        assert not self.inside


def test_one_thread_at_a_time_is_inside():
    publisher = Alone()
    begin = threading.Barrier(4)

    def publish(_):
        begin.wait(60)
        for _ in range(300):
            publisher.open()
            assert publisher.publish(LAMP) == [None]
            publisher.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(publish, range(4)))
    assert publisher.most == 1


class Interrupted(Alone):
    """Is interrupted by a signal in the middle of a call."""

    def write(self, messages):
        signal.raise_signal(signal.SIGUSR1)
        return super().write(messages)


def test_a_handler_that_calls_the_publisher_that_it_interrupts_is_refused():
    publisher = Interrupted()
    before = signal.signal(signal.SIGUSR1, lambda *_: publisher.publish(LAMP))
    try:
        with pytest.raises(BusyError, match="alone: a signal's handler calls the publisher that it has interrupted"):
            publisher.publish(LAMP)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        assert publisher.publish(LAMP) == [None], "the refused call has taken nothing with it"
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_copy_for_another_process_begins_anew():
    publisher = Alone()
    publisher.publish(LAMP)
    copy = pickle.loads(pickle.dumps(publisher))
    assert not copy._one_thread.is_foreign and copy._one_thread._process is None
    assert copy.publish(LAMP) == [None] and copy.name == "alone"
