"""Bolts are activated before the first tuple, and deactivated after the last one."""

import logging

import pytest

from acker.local import run
from acker.testing import CapturingBolt, FeederSpout, Scheduler
from acker.topology import Bolt, Topology, TopologyError, auto_ack_bolt


class Hears(Bolt):
    """Writes down what it hears, and emits it."""

    outputs = ["what"]

    def process(self, tup):
        self.say(tup[0])

    def activate(self):
        self.say("activate")

    def deactivate(self):
        self.say("deactivate")

    def close(self):
        self.heard.append((self.component_name, "close"))

    def say(self, what):
        self.heard.append((self.component_name, what))
        self.emit([what])


def chain(heard, *bolts, **config):
    feeder, sink = FeederSpout.with_outputs("what"), CapturingBolt.fresh()
    specs = {"source": feeder.spec()}
    before = "source"
    for number, bolt in enumerate(bolts):
        name = f"bolt{number}"
        specs[name] = type(bolt.__name__, (bolt,), {"heard": heard}).spec(inputs=[before])
        before = name
    specs["sink"] = sink.spec(inputs=[before])
    return feeder, sink, type(Topology)("T", (Topology,), {"config": config, **specs})


@pytest.mark.parametrize("seed", range(10))
def test_bolts_hear_it_in_order_and_what_they_emit_is_processed(seed):
    heard = []
    feeder, sink, topology = chain(heard, Hears, Hears)
    with Scheduler.of(topology, seed=seed) as scheduler:
        scheduler.settle()
        assert sorted(heard) == [("bolt0", "activate"), ("bolt1", "activate"), ("bolt1", "activate")]
        feeder.feed(["x"], "m")
        scheduler.settle()
        assert feeder.tracker.acked == ["m"]
    after = heard[heard.index(("bolt1", "x")) + 1 :]
    # What the first bolt emits when it is deactivated reaches the second one before that is deactivated.
    assert after[:3] == [("bolt0", "deactivate"), ("bolt1", "deactivate"), ("bolt1", "deactivate")]
    assert sorted(after[3:]) == [("bolt0", "close"), ("bolt1", "close")]
    assert [what for (what,) in sink.tuples()].count("deactivate") == 2
    assert all(heard.count(("bolt0", what)) == 1 for what in ("activate", "deactivate", "close"))


def test_threads_do_so_too():
    heard = []
    feeder, sink, topology = chain(heard, Hears)
    for number in range(100):
        feeder.feed([number], number)
    feeder.end()
    report = run(topology, until="drained")
    assert heard == [("bolt0", what) for what in ("activate", *range(100), "deactivate", "close")]
    assert [what for (what,) in sink.tuples()] == ["activate", *range(100), "deactivate"]
    assert report.stats.totals.acked == 100


def test_pausing_is_for_spouts():
    heard = []
    _, _, topology = chain(heard, Hears)
    with Scheduler.of(topology) as scheduler:
        scheduler.settle()
        scheduler.runtime.pause()
        scheduler.settle()
        scheduler.runtime.resume()
        scheduler.settle()
        assert heard == [("bolt0", "activate")]


def test_a_restart_activates_anew():
    class Breaks(Hears):
        auto_fail = False

        def process(self, tup):
            raise OSError("no store")

    heard = []
    feeder, _, topology = chain(heard, Breaks)
    with Scheduler.of(topology) as scheduler:
        feeder.feed(["x"], 1)
        scheduler.settle()
        scheduler.advance(2)
    assert [what for _, what in heard] == ["activate", "deactivate", "close"] * 2


def test_a_bolt_that_holds_what_is_open_is_deactivated_when_it_is_closed():
    class Holds(Hears):
        auto_ack = False

    heard = []
    feeder, _, topology = chain(heard, Holds)
    with Scheduler.of(topology, {"topology.drain.secs": 0}) as scheduler:
        feeder.feed(["x"], 1)
        scheduler.settle()
    assert [what for _, what in heard] == ["activate", "x", "deactivate", "close"]


def test_a_deactivate_that_raises_does_not_keep_close_from_being_called(caplog):
    class Breaks(Hears):
        auto_ack = False

        def deactivate(self):
            raise OSError("no store")

    heard = []
    feeder, _, topology = chain(heard, Breaks)
    caplog.set_level(logging.ERROR, "acker.local")
    with Scheduler.of(topology, {"topology.drain.secs": 0}) as scheduler:
        feeder.feed(["x"], 1)
        scheduler.settle()
    assert heard[-1] == ("bolt0", "close")
    assert "bolt0: task 2 raised in deactivate" in caplog.messages


def test_functions_are_given_tuples_as_by_withactivation():
    seen = []

    def keep(args, tup, emit):
        seen.append((tup.what, tup.component, tup.stream, tup.id))
        emit([tup.what])

    feeder, sink = FeederSpout.with_outputs("what"), CapturingBolt.fresh()

    class Tested(Topology):
        source = feeder.spec()
        keep_ = auto_ack_bolt(keep, outputs=["what"], activation={"what": "begin"}, deactivation={"what": "end"}).spec(
            inputs=[source]
        )
        last = sink.spec(inputs=[keep_])

    with Scheduler.of(Tested) as scheduler:
        feeder.feed(["x"])
        scheduler.settle()
    assert seen == [
        ("begin", "__system", "__activate", ""),
        ("x", "source", "default", ""),
        ("end", "__system", "__deactivate", ""),
    ]
    assert sink.tuples() == [("begin",), ("x",), ("end",)]


def test_an_activation_is_a_dict_of_fields_and_for_plain_functions():
    def keep(args, tup, emit):
        pass

    async def later(args, tup, emit):
        pass

    for wrong in (["x"], {1: "x"}, "x"):
        with pytest.raises(TopologyError, match="activation: expected a dict of fields such as"):
            auto_ack_bolt(keep, activation=wrong)
    with pytest.raises(TopologyError, match="deactivation: later is `async def`, which no runtime awaits here"):
        auto_ack_bolt(later, deactivation={"what": 1})
