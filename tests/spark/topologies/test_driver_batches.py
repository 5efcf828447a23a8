"""Batches of spouts on the driver: columns from the spout to the stages, and each row ends by itself."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from acker.spark.topologies import micro_batches
from acker.spark.topologies.journal import Journal, _with_values, _without_values
from acker.spark.topologies.spark_runtime import SparkRuntime
from acker.spark.topologies.taken_trees import TakenTrees
from acker.spark.topologies.tuple_blocks import decode_tuples, encode_tuples
from acker.topology import ArrowBolt, Grouping, ReliableSpout, StatefulBolt, Topology
from acker.topology.tuple_batch import TupleBatch
from acker.topology.tuples import TupleSource
from tests.spark.topologies.journal_kills import JobHere, spark_of

ROWS = 300


class Numbers(ReliableSpout):
    """One batch, and what became of its rows."""

    outputs = {"n": pa.int64(), "word": pa.string()}
    backoff_secs = 0.001
    attempts_max = 2

    def initialize(self, conf, context):
        self.heard = conf["user.heard"]

    def next_tuple(self):
        n = list(range(ROWS))
        self.emit_batch({"n": n, "word": [f"w{each % 7}" for each in n]}, tup_ids=n)
        self.finish()

    def ack_batch(self, tup_ids):
        self.heard.append(("acked", tup_ids.to_pylist()))

    def fail_batch(self, tup_ids, reasons):
        self.heard.append(("failed", tup_ids.to_pylist(), [reason.exception for reason in reasons]))

    def dead_letter(self, tup_id, values, reason):
        self.heard.append(("dead", tup_id, values))


class Count(ArrowBolt, StatefulBolt):
    def process_rows(self, batch):
        for n in batch["n"].to_pylist():
            self.state[n] = self.state.get(n, 0) + 1
        self.fail_rows(pc.equal(batch["n"], 11), "no 11")


class Counts(Topology):
    numbers = Numbers.spec()
    count = Count.spec(inputs={numbers: Grouping.fields("word")}, par=2)


def run(checkpoint, heard):
    """Run the topology as a stream of micro-batches whose stages run in this process."""
    runtime = SparkRuntime(Counts, {"user.heard": heard}, spark_of(), checkpoint=checkpoint)
    runtime.watch_for("drained")
    runtime.start()
    while not runtime.lifecycle.reached.wait(0.01):
        runtime.run_batch(runtime.batches.last + 1, {})
    runtime.stop()
    runtime.raise_error()
    runtime.release()


@pytest.fixture
def plans(monkeypatch):
    """The plans that are written."""
    written = []
    write = Journal.write_plan

    def keep(journal, batch, plan):
        written.append(plan)
        write(journal, batch, plan)

    monkeypatch.setattr(micro_batches, "MicroBatchJob", JobHere)
    monkeypatch.setattr(Journal, "write_plan", keep)
    return written


@pytest.mark.usefixtures("quiet")
def test_a_batch_stays_one_through_the_journal_and_the_row_that_fails_is_tried_again_alone(tmp_path, plans):
    heard = []
    run(str(tmp_path), heard)
    source_of = Counts.graph().source
    for plan in plans:
        assert plan.batches and not plan.entries
        received = [rows for row in plan.rows for _, rows in decode_tuples(row.block, source_of)]
        assert received and all(isinstance(rows, TupleBatch) for rows in received)
    assert [sum(len(rows.tup_ids) for rows in plan.batches) for plan in plans] == [ROWS, 1]
    assert [rows.attempt for plan in plans for rows in plan.batches] == [1, 2]
    acked = [tup_id for what, tup_ids, *_ in heard if what == "acked" for tup_id in tup_ids]
    assert sorted(acked) == [n for n in range(ROWS) if n != 11]
    assert len([each for each in heard if each[0] == "acked"]) == 1, "row by row"
    assert [each for each in heard if each[0] == "failed"] == [("failed", [11], ["no 11"])] * 2
    assert heard[-1] == ("dead", 11, (11, "w4"))


def test_rows_in_the_journal_are_entries_for_the_next_run(tmp_path, plans):
    run(str(tmp_path), [])
    read = _with_values(_without_values(plans[0]))
    assert not read.batches
    assert sorted(entry.tup_id for entry in read.entries.values()) == list(range(ROWS))
    for root, entry in read.entries.items():
        assert entry.values == (entry.tup_id, f"w{entry.tup_id % 7}") and root in read.tracks


SOURCE = TupleSource("numbers", "default", 1, ["n"])


def batch_of(numbers, roots):
    ids = pa.array(roots, pa.int64()).to_numpy()
    return TupleBatch(SOURCE, pa.RecordBatch.from_pydict({"n": numbers}), ids, ids + 100)


def test_the_trees_of_rows_that_go_to_several_tasks_are_one():
    trees = TakenTrees(
        [
            (3, batch_of([1, 2], [7, 5])),
            (4, batch_of([1, 2], [7, 5])),
            (3, TupleBatch(SOURCE, batch_of([9], [9]).columns)),
        ]
    )
    assert trees.tracks() == {5: 0, 7: 0}
    trees = TakenTrees([(3, batch_of([1, 2], [7, 5])), (4, batch_of([3], [-9]))])
    assert trees.tracks() == {5: 105, 7: 107, -9: 91}
    roots, ack_vals = trees.rows_among([7, 8, -9])
    assert (roots.tolist(), ack_vals.tolist()) == ([-9, 7], [91, 107])
    assert trees.values_of_rows(roots) == {7: (1,), -9: (3,)}
    assert encode_tuples([(3, batch_of([1], [7]))])
