"""Spouts over a broker, here one in memory, on Spark: when the broker hears of a message, and what a crash does."""

import json
import queue
import threading
from collections import Counter

import pytest

from acker import CheckpointError, TopologyError
from acker.connectors import ArrowSourceSpout, JournaledSourceSpout, SourceSpout
from acker.local import LocalRuntime
from acker.spark.topologies.micro_batches import MicroBatches
from acker.spark.topologies.run import run
from acker.testing.connectors import MemoryBroker, MemoryPublisher, MemorySource
from acker.topology import Grouping, StatefulBolt, Topology
from acker.ui import LivePage
from acker.ui.server import LiveServer
from tests.torture.topology_kills.account import counts_in
from tests.ui.fakes import ask

WORDS = [b"lamp", b"desk", b"lamp", b"sofa", b"desk", b"lamp"]


class Count(StatefulBolt):
    """Counts values; refuses those that begin with "bad"."""

    outputs = ["value", "n"]

    def process(self, tup):
        if tup.value.startswith(b"bad"):
            raise LookupError("no lamp")
        self.state[tup.value] = self.state.get(tup.value, 0) + 1


def topology_of(broker, spout, **options):
    options = {"backoff_secs": 0.001, "backoff_secs_max": 0.002, **options}

    class Orders(Topology):
        orders = spout.spec(source=lambda: MemorySource(broker), **options)
        count = Count.spec(inputs={orders: Grouping.fields("value")}, par=2)

    return Orders


class Letters(MemoryPublisher):
    """Dead letters; after each the broker gets one more message, so that a run can end behind it."""

    def __init__(self, broker):
        super().__init__()
        self.orders = broker

    def publish(self, messages):
        answers = super().publish(messages)
        self.orders.publish([b"last"] * len(messages))
        return answers


class CrashError(Exception):
    """Stands for the end of the driver."""


@pytest.fixture
def checkpoint(tmp_path):
    return str(tmp_path / "checkpoint")


def crash(patch, where):
    """Let the first micro-batch with tuples end like a crash: "planned", when its plan is written, or "committed"."""
    crashed = []
    name = "_evaluate" if where == "planned" else "_deliver"

    def call(batches, *arguments):
        crashed.append(where)
        raise CrashError

    patch.setattr(MicroBatches, name, call)
    return crashed


def run_until(topology, spark, checkpoint, until):
    return run(topology, spark=spark, checkpoint=checkpoint, until=until, trigger="0 seconds")


IN_COLUMNS = pytest.param(ArrowSourceSpout, marks=pytest.mark.slow)


@pytest.mark.parametrize("spout", [SourceSpout, JournaledSourceSpout, IN_COLUMNS])
def test_failures_are_tried_again_and_then_given_up(spark, checkpoint, spout):
    broker = MemoryBroker()
    letters = Letters(broker)
    broker.publish([*WORDS, b"bad"], {"h": 1})
    topology = topology_of(broker, spout, attempts_max=3, dead_letters=lambda: letters)
    report = run_until(topology, spark, checkpoint, "7")
    assert broker.left() == 0 and broker.violations == []
    (letter,) = letters.published
    assert letter.value == b"bad" and letter.headers["h"] == 1 and letter.headers["acker-attempts"] == 3
    assert "LookupError: no lamp" in letter.headers["acker-reason"]
    assert counts_in(checkpoint) == Counter([*WORDS, b"last"])
    stats = report.stats.components()["orders"]
    assert (stats.acked, stats.dead_letters) == (7, 1)


@pytest.mark.slow
def test_the_live_page_replays_a_dead_letter_of_the_journal(spark, checkpoint, monkeypatch):
    broker = MemoryBroker()
    letters = Letters(broker)
    broker.publish([b"bad"])
    pages, rows, answers = queue.SimpleQueue(), [], []
    monkeypatch.setattr(LiveServer, "announce", lambda page: pages.put(page))  # noqa: PLW0108  put is no method

    def replay():
        page = pages.get()
        while not (found := json.loads(ask(page, "/api/view")[2])["dead_letters"]["rows"]):
            pass
        rows.extend(found)
        body = {"number": found[0]["number"]}
        answers.append(ask(page, "/api/actions/replay", "POST", body, x_acker_token=page.token)[2])

    replaying = threading.Thread(target=replay, daemon=True)
    replaying.start()
    topology = topology_of(broker, JournaledSourceSpout, attempts_max=1, dead_letters=lambda: letters)
    page = LivePage(port=0, interval_secs=0.05)
    report = run(topology, spark=spark, checkpoint=checkpoint, until="2", trigger="0 seconds", ui=page)
    replaying.join()
    assert [(row["id"], row["can_replay"]) for row in rows] == [("memory/0", True)]
    assert [json.loads(answer) for answer in answers] == [{"did": "replayed memory/0"}]
    assert [letter.value for letter in letters.published] == [b"bad", b"bad"], "it has failed again"
    assert report.stats.components()["orders"].dead_letters == 2


@pytest.mark.parametrize(("where", "twice"), [("planned", False), ("committed", True)])
@pytest.mark.parametrize("spout", [SourceSpout, IN_COLUMNS])
def test_a_source_spout_leaves_a_crash_to_the_broker(spark, checkpoint, monkeypatch, spout, where, twice):
    broker = MemoryBroker()
    broker.publish(WORDS)
    topology = topology_of(broker, spout)
    with monkeypatch.context() as patch:
        crash(patch, where)
        with pytest.raises(CrashError):
            run_until(topology, spark, checkpoint, None)
    assert broker.acked == [] and broker.left() == len(WORDS)  # whatever the journal has
    first = counts_in(checkpoint)
    assert bool(first) is twice
    run_until(topology, spark, checkpoint, str(len(WORDS)))
    assert sorted(broker.acked) == sorted(WORDS)
    assert counts_in(checkpoint) == Counter(WORDS) + first


@pytest.mark.parametrize("where", ["planned", "committed"])
def test_the_journal_has_what_a_journaled_spout_has_acked(spark, checkpoint, monkeypatch, where):
    broker = MemoryBroker()
    letters = Letters(broker)
    broker.publish([*WORDS, b"bad"])
    topology = topology_of(broker, JournaledSourceSpout, attempts_max=2, dead_letters=lambda: letters)
    with monkeypatch.context() as patch:
        crash(patch, where)
        with pytest.raises(CrashError):
            run_until(topology, spark, checkpoint, None)
    assert len(broker.acked) > 0
    committed = counts_in(checkpoint).total()
    assert (committed > 0) is (where == "committed")
    run_until(topology, spark, checkpoint, str(7 - committed))
    assert broker.left() == 0 and sorted(broker.acked) == sorted([*WORDS, b"bad", b"last"])
    assert counts_in(checkpoint) == Counter([*WORDS, b"last"])
    assert [letter.value for letter in letters.published] == [b"bad"]


def test_a_run_without_a_journal_on_disk_refuses_a_journaled_spout(spark):
    topology = topology_of(MemoryBroker(), JournaledSourceSpout)
    with pytest.raises(TopologyError, match="leaves its messages to the journal"):
        LocalRuntime(topology)
    with pytest.raises(TopologyError, match="leaves its messages to the journal"):
        run(topology, spark=spark)


def test_a_journaled_spout_refuses_the_brokers_place_for_dead_letters(spark, checkpoint):
    topology = topology_of(MemoryBroker(dead_letters=True), JournaledSourceSpout, attempts_max=2, dead_letters="broker")
    with pytest.raises(TopologyError, match="the broker no longer has messages that are in the journal"):
        run_until(topology, spark, checkpoint, "1")


def test_messages_of_the_journal_are_not_left_to_a_source_spout(spark, checkpoint, monkeypatch):
    broker = MemoryBroker()
    broker.publish(WORDS)
    with monkeypatch.context() as patch:
        crash(patch, "planned")
        with pytest.raises(CrashError):
            run_until(topology_of(broker, JournaledSourceSpout), spark, checkpoint, None)
    with pytest.raises(CheckpointError, match="SourceSpout takes no tuples from the journal"):
        run_until(topology_of(broker, SourceSpout), spark, checkpoint, "1")
