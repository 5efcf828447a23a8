"""The life of a bolt on Spark: in each micro-batch all of it, from `initialize` to `close`."""

from __future__ import annotations

import pytest
from pyspark.errors import PythonException

from acker.topology import Bolt, Grouping, Topology
from tests.spark.topologies.both import Numbers, note, run_both, run_spark

pytestmark = pytest.mark.spark

NAMES = ["initialize", "activate", "tick", "process", "deactivate", "close"]


class Living(Bolt):
    """Notes each call with how many came before it, and emits its last tuple when it is deactivated."""

    outputs = ["n", "key"]

    def initialize(self, conf, context):
        self.calls = []
        self.say("initialize")

    def say(self, name):
        if name not in self.calls:
            assert all(NAMES.index(name) > NAMES.index(before) for before in self.calls), (self.calls, name)
            self.calls.append(name)
            note(self, name)

    def activate(self):
        self.say("activate")

    def process_tick(self, tup):
        if "process" not in self.calls:
            self.say("tick")

    def process(self, tup):
        self.say("process")

    def deactivate(self):
        self.say("deactivate")
        self.emit([99, 0])

    def close(self):
        self.say("close")


class Last(Bolt):
    """Notes what it gets."""

    def process(self, tup):
        note(self, tup.n)


class Lives(Topology):
    """A bolt that emits in `deactivate`, and the reader of that."""

    numbers = Numbers.spec()
    living = Living.spec(inputs={numbers: Grouping.fields("n")}, par=2, config={"topology.tick.tuple.freq.secs": 600})
    last = Last.spec(inputs={living: Grouping.global_})


@pytest.mark.usefixtures("full_batches")
def test_a_bolt_is_activated_first_and_what_it_emits_when_deactivated_arrives(spark, tmp_path):
    both = run_both(Lives, spark, tmp_path, {"topology.max.spout.pending": len(Numbers.numbers)})
    assert both.spark.of("last") == both.local.of("last")
    assert sum(both.spark.of("last").values()) == 2
    assert both.spark.of("living") == both.local.of("living")


def test_an_instance_of_a_bolt_lives_for_a_micro_batch(spark, tmp_path):
    lives = run_spark(Lives, spark, tmp_path / "spark", {"topology.max.spout.pending": 15}).of("living", tasks=False)
    assert lives["initialize",] == lives["activate",] == lives["deactivate",] == lives["close",] >= 2 * 2


class Broken(Bolt):
    """Raises when it is deactivated."""

    def process(self, tup):
        pass

    def deactivate(self):
        raise OSError("no such device")


class Breaks(Topology):
    """A bolt that ends its run."""

    numbers = Numbers.spec()
    broken = Broken.spec(inputs=[numbers])


def test_what_deactivate_raises_names_the_component(spark, tmp_path, quiet):
    text = r"topology Breaks, component 'broken': raised by deactivate\(\) of task \d"
    with pytest.raises(PythonException, match=text):
        run_spark(Breaks, spark, tmp_path / "spark")
