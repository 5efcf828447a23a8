"""A bolt that publishes: a tuple is acked when its message is confirmed."""

import threading

import pytest

from acker import TopologyError
from acker.connectors import Outgoing, PublishBolt, SourceSpout
from acker.connectors.topologies.publish_bolt import to_bytes
from acker.local import LocalRuntime
from acker.testing.connectors import MemoryBroker, MemoryPublisher, MemorySource
from acker.topology import Topology


def run(broker, publisher, spout=SourceSpout, **options):
    class Copy(Topology):
        source = spout.spec(source=lambda: MemorySource(broker), backoff_secs=0.001, backoff_secs_max=0.002, **options)
        copy = PublishBolt.spec(inputs=[source], publisher=lambda: publisher)

    with LocalRuntime(Copy) as runtime:
        broker.wait_until(lambda broker: broker.left() == 0)
    assert broker.violations == []
    return runtime.stats().components()["copy"]


def test_each_tuple_is_published_and_then_acked():
    broker, publisher = MemoryBroker(), MemoryPublisher()
    broker.publish((b"%d" % number for number in range(500)), {"n": 1})
    stats = run(broker, publisher)
    assert sorted(message.value for message in publisher.published) == sorted(broker.acked)
    assert publisher.published[0].headers == {"n": 1} and publisher.published[0].key.startswith(b"memory/")
    assert stats.acked == 500 and publisher.calls["publish"] < 500 and publisher.calls["close"] == 1


@pytest.mark.parametrize("fault", ["refuse", "fail"])
def test_what_is_not_confirmed_is_published_again(fault):
    broker, publisher = MemoryBroker(), MemoryPublisher()
    broker.publish(b"%d" % number for number in range(50))
    getattr(publisher, fault)(10)
    stats = run(broker, publisher)
    assert {message.value for message in publisher.published} == set(broker.acked)
    assert len(publisher.published) == (60 if fault == "fail" else 50)
    assert stats.failed == 10 and stats.user["unconfirmed"] == 10


def test_nothing_is_acked_before_it_is_confirmed():
    broker, publisher = MemoryBroker(), MemoryPublisher()
    broker.publish([b"a"])
    publisher.block()
    thread = threading.Thread(target=run, args=(broker, publisher))
    thread.start()
    while not publisher.calls["publish"]:
        thread.join(0.01)
    assert broker.acked == [] and broker.left() == 1
    publisher.unblock()
    thread.join()
    assert broker.acked == [b"a"]


class Strange(MemoryPublisher):
    """Does something strange at the first call."""

    def __init__(self, answer):
        super().__init__()
        self._answer = answer

    def publish(self, messages):
        faults = super().publish(messages)
        return self._answer(faults) if self.calls["publish"] == 1 else faults


def crash(faults):
    raise ZeroDivisionError("a bug")


def leave(faults):
    raise SystemExit


def forget(faults):
    return faults[1:]


@pytest.mark.parametrize("answer", [crash, leave, forget])
def test_whatever_a_publisher_does_the_tuples_are_tried_again(answer, caplog):
    broker, publisher = MemoryBroker(), Strange(answer)
    broker.publish([b"a", b"b"])
    stats = run(broker, publisher)
    assert sorted(broker.acked) == [b"a", b"b"] and stats.user["unconfirmed"] >= 1
    assert "memory publisher failed" in caplog.text


def test_a_publisher_that_never_answers_does_not_hold_a_stop(monkeypatch, caplog):
    monkeypatch.setattr("acker.connectors.topologies.publish_bolt._CLOSE_SECS", 0.05)
    monkeypatch.setattr("acker.connectors.topologies.publish_bolt._PUT_SECS", 0.05)
    monkeypatch.setattr("acker.connectors.topologies.publish_bolt._WAITING_MAX", 2)
    # Each step ends, but on a slow machine not within a second.
    monkeypatch.setattr("acker.local.topology_run.GRACE_SECS", 60)
    broker, publisher = MemoryBroker(), MemoryPublisher()
    broker.publish(b"%d" % number for number in range(20))
    publisher.block()

    class Copy(Topology):
        source = SourceSpout.spec(source=lambda: MemorySource(broker))
        copy = PublishBolt.spec(inputs=[source], publisher=lambda: publisher)

    try:
        with LocalRuntime(Copy, {"topology.drain.secs": 0.2}):
            broker.wait_until(lambda broker: "has confirmed nothing for 0.05 s" in caplog.text)
    finally:
        publisher.unblock()
    assert "no answer within 0.05 s" in caplog.text
    assert broker.acked == [] and broker.left() == 20 and "abandoned" not in caplog.text


class NoValue(SourceSpout):
    outputs = ["body"]

    def values(self, value, delivery):
        return [value]


def test_a_tuple_without_a_value_fails_and_names_its_fields():
    broker, letters = MemoryBroker(), MemoryPublisher()
    broker.publish([b"a"])
    run(broker, MemoryPublisher(), NoValue, attempts_max=1, dead_letters=lambda: letters)
    reason = letters.published[0].headers["acker-reason"]
    assert "tuples of source have the fields ['body'], and none is named 'value'" in reason


def test_a_publisher_is_given_as_a_function():
    with pytest.raises(TopologyError, match="write publisher=lambda"):
        PublishBolt.spec(publisher=MemoryPublisher())


def test_values_become_bytes():
    assert to_bytes(b"a") == to_bytes(bytearray(b"a")) == to_bytes("a") == b"a"
    assert to_bytes({"n": [1, None]}) == b'{"n": [1, null]}'
    assert Outgoing(b"a").headers == {}
