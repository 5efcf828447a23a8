"""Tests of a topology, on one thread and with a clock that the test controls.

Run it: python -m pytest examples/test_topology.py
"""

import pytest

from acker.testing import FeederSpout, Scheduler, complete_topology, make_tuple, run_bolt
from examples.topology import Count, Print, Split, WordCount


def test_one_bolt() -> None:
    """Gives tuples to one bolt and checks its outputs."""
    done = run_bolt(Split, [make_tuple(["to be or"], ["line"])])
    assert done.tuples() == [("to",), ("be",), ("or",)]


@pytest.mark.parametrize("seed", range(10))  # each seed is another order of all steps
def test_whole_topology(seed: int) -> None:
    """Feeds the spout, then checks the outputs of a bolt and the counts of lines that were acked and failed."""
    done = complete_topology(WordCount, {"lines": [["a b a"], ["not 4"]]}, seed=seed)
    assert sorted(done.tuples("count")) == [("a", 1), ("a", 2), ("b", 1), ("not", 1)]
    assert (done.acked, done.failed) == (1, 1)


def test_timeout() -> None:
    """Freezes a bolt and advances the clock until the line times out, without waiting."""
    feeder = FeederSpout.with_outputs("line")

    class Tested(WordCount):
        lines = feeder.spec()  # replaces the spout of that name
        split = Split.spec(inputs=[lines])
        count = Count.spec(inputs=[split])
        show = Print.spec(inputs=[count])

    with Scheduler.of(Tested, {"topology.message.timeout.secs": 30}) as scheduler:
        scheduler.settle()
        scheduler.freeze("count*")
        feeder.feed(["a line"], tup_id=1)
        scheduler.advance(45)
        assert str(feeder.tracker.reason_of(1)) == "timed out (attempt 1)"
        scheduler.thaw()
