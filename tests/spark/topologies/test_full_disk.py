"""A checkpoint that cannot be written: the run ends with an error that names the file, and nothing is lost by it."""

from __future__ import annotations

import errno
import itertools
import os
import types
from collections import Counter

import pytest

from acker._engine import storage
from acker.errors import CheckpointError
from acker.spark import run
from acker.spark.topologies import bolt_state
from acker.topology import Grouping, ReliableSpout, StatefulBolt, Topology
from tests.torture.topology_kills.account import counts_in

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quiet")]

NUMBERS = range(9)


@pytest.fixture
def acked(monkeypatch):
    """What the source knows to be done: it gives the others again."""
    done = set()
    monkeypatch.setattr(Remembered, "done", done)
    return done


class Remembered(ReliableSpout):
    """Numbers, a few in each micro-batch."""

    outputs = ["n"]
    done = set()

    def initialize(self, conf, context):
        self.todo = [n for n in NUMBERS if n not in self.done]

    def next_tuple(self):
        if not self.todo:
            self.finish()
            return
        n = self.todo.pop(0)
        self.emit([n], tup_id=n)

    def ack(self, tup_id):
        super().ack(tup_id)
        self.done.add(tup_id)


class Count(StatefulBolt):
    def process(self, tup):
        self.state[tup.n] = self.state.get(tup.n, 0) + 1


class Counted(Topology):
    config = {"topology.max.spout.pending": 3}
    numbers = Remembered.spec()
    count = Count.spec(inputs={numbers: Grouping.fields("n")}, par=2)


def run_stream(spark, checkpoint):
    return run(Counted, spark=spark, checkpoint=str(checkpoint), trigger="0 seconds", until="drained")


def test_a_disk_that_is_full_from_any_write_on_loses_and_repeats_nothing(spark, tmp_path, acked, monkeypatch):
    checkpoint = tmp_path / "checkpoint"
    for last in itertools.count():
        writes = itertools.count()

        def write(target, pieces, last=last, writes=writes):
            if next(writes) >= last:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return storage.write(target, pieces)

        with monkeypatch.context() as patch:  # of the files that the driver writes
            patch.setattr(bolt_state, "storage", types.SimpleNamespace(write=write))
            try:
                report = run_stream(spark, checkpoint)
                break
            except CheckpointError as fault:
                told = str(fault)
        assert told.startswith(str(checkpoint)) and "cannot be written: [Errno 28] No space left on device" in told
        counts = counts_in(checkpoint)
        assert acked <= counts.keys() and set(counts.values()) <= {1}
    assert report.outcome == "drained" and last > 3
    assert counts_in(checkpoint) == Counter(NUMBERS)
    assert acked == set(NUMBERS)


def test_state_that_a_worker_cannot_write_ends_the_run_and_counts_nothing(spark, tmp_path, acked):
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "state").mkdir(parents=True)
    in_the_way = [checkpoint / "state" / str(task) for task in Counted.graph().nodes["count"].tasks]
    for path in in_the_way:  # a file where the folder of a task should be
        path.touch()
    with pytest.raises(Exception, match=r"CheckpointError: .*/state/\d: the checkpoint cannot be written"):
        run_stream(spark, checkpoint)
    assert counts_in(checkpoint) == Counter() and acked == set()
    for path in in_the_way:
        path.unlink()
    assert run_stream(spark, checkpoint).outcome == "drained"
    assert counts_in(checkpoint) == Counter(NUMBERS)
    assert acked == set(NUMBERS)
