"""A spout over a broker in memory."""

import json
import threading
from typing import ClassVar

import pytest

from acker import TopologyError
from acker.connectors import SourceSpout
from acker.local import LocalRuntime
from acker.testing.connectors import MemoryBroker, MemoryPublisher, MemorySource
from acker.topology import Bolt, Topology
from acker.ui import LivePage
from tests.ui.fakes import ask


class Work(Bolt):
    """Calls a function of the test, which `config` names."""

    def initialize(self, conf, context):
        self.work = conf["user.work"]

    def process(self, tup):
        self.work(tup)


def topology_of(broker, work, make=None, **options):
    options = {"backoff_secs": 0.001, "backoff_secs_max": 0.002, **options}

    class Orders(Topology):
        orders = SourceSpout.spec(source=make or (lambda: MemorySource(broker)), **options)
        work_ = Work.spec(name="work", inputs=[orders], config={"user.work": work})

    return Orders


def run(topology, broker, condition=lambda broker: broker.left() == 0, conf=None):
    with LocalRuntime(topology, conf) as runtime:
        broker.wait_until(condition)
    assert broker.violations == []
    return runtime.stats().components()["orders"]


def test_a_message_is_acked_with_its_tree():
    broker, seen = MemoryBroker(), []
    broker.publish([b"a", b"b"], {"n": 1})
    stats = run(topology_of(broker, lambda tup: seen.append(tuple(tup))), broker)
    assert sorted(seen) == [(b"a", "memory/0", {"n": 1}), (b"b", "memory/1", {"n": 1})]
    assert sorted(broker.acked) == [b"a", b"b"] and stats.acked == 2


def test_failures_are_tried_again_and_then_given_up():
    broker, letters, attempts = MemoryBroker(), MemoryPublisher(), []
    broker.publish([b"good", b"bad"])

    def work(tup):
        if tup.value == "bad":
            attempts.append(1)
            raise LookupError("no lamp")

    stats = run(topology_of(broker, work, decode=bytes.decode, attempts_max=3, dead_letters=lambda: letters), broker)
    assert len(attempts) == 3 and len(letters.published) == 1
    assert "LookupError: no lamp" in letters.published[0].headers["acker-reason"]
    assert "(attempt 3)" in letters.published[0].headers["acker-reason"]
    assert stats.dead_letters == 1 and stats.user["retried"] == 2


@pytest.mark.parametrize(
    ("own_place", "note"),
    [
        (False, "They lie at memory publisher, and are acked at the broker"),
        (True, "The broker has moved them to its own place"),
    ],
    ids=["a publisher", "the broker"],
)
def test_the_live_page_lists_dead_letters_and_says_where_they_lie(own_place, note):
    broker = MemoryBroker(dead_letters=own_place)
    broker.publish([b"bad"])

    def work(tup):
        raise LookupError("no lamp")

    place = "broker" if own_place else MemoryPublisher
    page = LivePage(port=0, interval_secs=0.02, values=True)
    with LocalRuntime(topology_of(broker, work, attempts_max=2, dead_letters=place), ui=page) as runtime:

        def get(path):
            return json.loads(ask(runtime.page, path)[2])

        while not (letters := get("/api/view")["dead_letters"])["rows"]:
            pass
        (row,) = letters["rows"]
        assert (row["id"], row["spout"], row["values"], row["attempt"]) == ("memory/0", "orders", "b'bad'", 2)
        assert row["why"] == "LookupError: no lamp" and not row["can_replay"]
        assert letters["note"].startswith(f"orders: {note}") and not letters["can_replay"]
        kinds = [each["what"] for each in get("/api/find?id=memory/0")["found"]]
        assert kinds == ["failure", "failure", "dead letter"], "the page knows a message by the broker's key"
        token = runtime.page.token
        status, _, answer = ask(runtime.page, "/api/actions/replay", "POST", {"all": True}, x_acker_token=token)
        assert (status, "cannot be emitted again from here" in json.loads(answer)["error"]) == (409, True)


def test_a_body_that_cannot_be_decoded_is_a_dead_letter():
    broker, letters = MemoryBroker(), MemoryPublisher()
    broker.publish([b"\xff", b"good"])
    stats = run(
        topology_of(broker, lambda tup: None, decode=bytes.decode, attempts_max=3, dead_letters=lambda: letters), broker
    )
    assert (
        letters.published[0].value == b"\xff" and "UnicodeDecodeError" in letters.published[0].headers["acker-reason"]
    )
    assert (stats.acked, stats.dead_letters) == (1, 1)


def test_leases_live_while_the_topology_is_full():
    # Time passes with renewals alone, so nobody is late.
    broker = MemoryBroker(lease_secs=0.1, clock=lambda: 0.05 * (broker.counts["extended"] // 20))
    broker.publish(b"%d" % number for number in range(20))
    sources, go = [], threading.Event()

    def make():
        sources.append(MemorySource(broker))
        return sources[-1]

    topology = topology_of(broker, lambda tup: go.wait(60), make)
    with LocalRuntime(topology, {"topology.max.spout.pending": 2}):
        broker.wait_until(lambda broker: broker.counts["extended"] >= 200)
        go.set()
        broker.wait_until(lambda broker: broker.left() == 0)
    assert broker.counts["delivered"] == 20 and broker.counts["returned"] == 0


def test_what_a_stop_leaves_open_goes_back():
    broker, entered, go = MemoryBroker(), threading.Event(), threading.Event()
    broker.publish([b"a", b"b", b"c"])

    def work(tup):
        entered.set()
        go.wait(60)

    with LocalRuntime(topology_of(broker, work), {"topology.drain.secs": 0}) as runtime:
        assert entered.wait(60)
        stopping = threading.Thread(target=runtime.stop)
        stopping.start()
        broker.wait_until(lambda broker: broker.counts["released"] + broker.counts["returned"] >= 3)
        go.set()
        stopping.join()
    assert broker.left() == 3 and broker.acked == []


class CrashesOnce(SourceSpout):
    """Crashes once, before or after it has emitted its first tuple."""

    crashed: ClassVar[list[str]] = []
    where = "after"

    def next_tuple(self):
        super().next_tuple()
        if self.where == "after" and self._collector.pending and not self.crashed:
            self.crashed.append("after")
            raise RuntimeError("a crash")

    def emit(self, *arguments, **options):
        if self.where == "before" and not self.crashed:
            self.crashed.append("before")
            raise RuntimeError("a crash")
        return super().emit(*arguments, **options)


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_restart_gives_messages_back_and_counts_no_attempt(where):
    broker, held = MemoryBroker(), threading.Event()
    broker.publish([b"a"])
    CrashesOnce.where = where
    CrashesOnce.crashed.clear()

    class Orders(Topology):
        orders = CrashesOnce.spec(
            source=lambda: MemorySource(broker), attempts_max=1, dead_letters=MemoryPublisher, backoff_secs=0
        )
        work = Work.spec(inputs=[orders], config={"user.work": lambda tup: held.wait(0.2)})

    stats = run(Orders, broker, lambda broker: broker.counts["released"] or (where == "after" and broker.acked))
    assert CrashesOnce.crashed == [where] and stats.dead_letters == 0


def test_each_task_has_a_source():
    broker, sources = MemoryBroker(), []

    def make():
        sources.append(MemorySource(broker))
        return sources[-1]

    class Orders(Topology):
        orders = SourceSpout.spec(source=make, par=3)
        work = Work.spec(inputs=[orders], config={"user.work": lambda tup: None})

    broker.publish(b"%d" % number for number in range(50))
    run(Orders, broker)
    assert len(sources) == 3 and len({id(source) for source in sources}) == 3


class Own(SourceSpout):
    outputs = ["text"]
    broker = MemoryBroker()

    def source(self):
        return MemorySource(self.broker)

    def values(self, value, delivery):
        return [value.decode() + delivery.key]


def test_a_class_may_define_source_and_values():
    seen = []

    class Orders(Topology):
        orders = Own.spec()
        work = Work.spec(inputs=[orders], config={"user.work": lambda tup: seen.append(tup.text)})

    Own.broker.publish([b"a"])
    run(Orders, Own.broker)
    assert seen == ["amemory/0"]


def test_wrong_options_are_refused_when_the_topology_is_defined():
    with pytest.raises(TopologyError, match="unknown option 'attempt_max'"):
        SourceSpout.spec(source=lambda: None, attempt_max=3)
    with pytest.raises(TopologyError, match=r"SourceSpout\.spec: backoff_secs is 90 and backoff_secs_max is 60"):
        SourceSpout.spec(source=lambda: None, backoff_secs=90)
    with pytest.raises(TopologyError, match=r"SourceSpout\.spec: open_max: expected at least 1, got 0"):
        SourceSpout.spec(source=lambda: None, open_max=0)
    with pytest.raises(TopologyError, match="write source=lambda"):
        SourceSpout.spec(source=MemorySource(MemoryBroker()))


async def decode_async(body):
    return body


class HidesCoroutine:
    """A callable whose coroutine shows only when it is called."""

    def __call__(self, body):
        return decode_async(body)


class AsyncDecode(SourceSpout):
    async def decode(self, body):
        return body


@pytest.mark.parametrize("spec", [lambda: SourceSpout.spec(source=print, decode=decode_async), AsyncDecode.spec])
def test_a_coroutine_function_is_no_decode(spec):
    with pytest.raises(TopologyError, match=r"decode: .* is a coroutine function: nobody awaits it"):
        spec()


def test_a_decode_that_returns_a_coroutine_is_the_fault_of_the_message():
    broker, letters = MemoryBroker(), MemoryPublisher()
    broker.publish([b"a"])
    options = {"decode": HidesCoroutine(), "attempts_max": 1, "dead_letters": lambda: letters}
    run(topology_of(broker, print, **options), broker)
    assert "decode returned decode_async, a coroutine" in letters.published[0].headers["acker-reason"]
