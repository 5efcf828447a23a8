"""One stage in one Spark task, without Spark: stage rows go in, and stage rows come out."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import zip_longest

import numpy as np
import pytest

from acker._engine.combiner import Combiner
from acker._engine.protocol import Kind, Outcome
from acker.spark.blocks import decode_block
from acker.spark.topologies import stage_worker
from acker.spark.topologies.bolt_state import read_files
from acker.spark.topologies.micro_batch_plan import MicroBatchPlan
from acker.spark.topologies.stage_plan import plan_stages
from acker.spark.topologies.stage_rows import COUNTERS, MESSAGES, REASONS, STATE, TOOK, TOUCHED, StageRow, batches_of
from acker.spark.topologies.stage_worker import StageWorker
from acker.spark.topologies.tuple_blocks import decode_tuples, encode_tuples
from acker.topology import Bolt, Grouping, Spout, StatefulBolt, Topology


class Numbers(Spout):
    outputs = ["n"]

    def next_tuple(self):
        self.finish()


class Double(Bolt):
    outputs = ["n"]

    def process(self, tup):
        self.report_metric("doubled")
        if tup.n == 3:
            raise ValueError("no threes")
        self.emit([tup.n])
        self.emit([tup.n + 100])


class Sum(StatefulBolt):
    outputs = ["n"]

    def process(self, tup):
        self.state["sum"] = self.state.get("sum", 0) + tup.n
        if tup.n == 105:
            raise ValueError("the state has it already")


class Sums(Topology):
    numbers = Numbers.spec()
    double = Double.spec(inputs=[numbers], par=2)
    sums = Sum.spec(inputs={double: Grouping.fields("n")}, par=3)


GRAPH = Sums.graph()
DOUBLES, SUMS = GRAPH.nodes["double"].tasks, GRAPH.nodes["sums"].tasks


@pytest.fixture
def plan(tmp_path):
    return MicroBatchPlan(
        GRAPH, {}, plan_stages(GRAPH), partitions=2, shards=2, seed=b"seed", state_root=str(tmp_path), run=b"run"
    )


def rows_of(batches):
    return [StageRow(*row.values()) for batch in batches for row in batch.to_pylist()]


def numbers_row(numbers, *, tracked=True):
    """Return the spout's tuples for one task, each with a tree: root id n + 1, tuple id n + 1000."""
    source = GRAPH.source(1, "default")
    tuples = [
        source.tuple_type(source.make_values([n]), source, {n + 1: n + 1000} if tracked else None) for n in numbers
    ]
    return StageRow(0, 0, -1, 0, encode_tuples([(DOUBLES[0], tuples)]))


def run_all(plan, rows):
    """Run all stages as Spark would; return the rows that are left."""
    rows = rows_of(StageWorker(plan, 0, 0).run(batches_of(rows)))
    worker = StageWorker(plan, 1, 0)
    keys = worker._keys
    left = []
    for partition in range(plan.partitions):
        here = sorted(
            (row for row in rows if row.partition_key == keys[partition]), key=lambda row: (row.source, row.seq)
        )
        left += rows_of(StageWorker(plan, 1, partition).run(batches_of(here)))
    return left


def settled(rows, numbers):
    """Return how the trees of some numbers end: root id -> outcome."""
    combiner = Combiner()
    for row in rows:
        if row.stage == MESSAGES:
            combiner.merge(decode_block(row.block)[0])
    roots, ids = (np.array([n + more for n in numbers], np.int64) for more in (1, 1000))
    combiner.add(Kind.TRACK, roots, ids, np.ones_like(roots), roots)
    done = combiner.settle(include_pending=True)
    return dict(zip(done.root_id.tolist(), map(Outcome, done.outcome.tolist()), strict=True))


def contents(rows, kind):
    return [pickle.loads(row.block) for row in rows if row.stage == kind]


def test_bolts_run_beside_each_other_and_pass_on_what_is_for_later_stages(plan):
    [*rest] = rows_of(StageWorker(plan, 0, 0).run(batches_of([numbers_row(range(4))])))
    source_of = cache(GRAPH.source)
    received = Counter(
        (task, tup.n)
        for row in rest
        if row.stage == 1
        for task, tuples in decode_tuples(row.block, source_of)
        for tup in tuples
    )
    assert Counter(n for _, n in received) == Counter([0, 1, 2, 100, 101, 102])
    assert {task for task, _ in received} <= set(SUMS)
    [[counters]] = contents(rest, COUNTERS)
    assert (counters["task"], counters["executed"], counters["acked"], counters["failed"]) == (DOUBLES[0], 4, 3, 1)
    assert counters["user"] == {"doubled": 4}
    assert counters["emitted"] == {"default": 6}
    assert sum(counters["sent"]) == 6
    [[(root_id, reason)]] = contents(rest, REASONS)
    assert (root_id, reason.component, reason.task, reason.exception) == (
        *(4, "double", DOUBLES[0]),
        "ValueError: no threes",
    )


def test_what_is_for_others_passes_through(plan):
    others = [StageRow(7, 5, 3, 4, b"later"), StageRow(1, MESSAGES, 3, 5, b"messages")]
    rows = rows_of(StageWorker(plan, 0, 0).run(batches_of([*others, numbers_row([1])])))
    assert [row for row in rows if row in others] == others


def test_a_task_that_runs_again_says_the_same(plan):
    first, again = (rows_of(StageWorker(plan, 0, 0).run(batches_of([numbers_row(range(9))]))) for _ in range(2))

    def without_times(rows):
        return [row for row in rows if row.stage not in (COUNTERS, TOOK)]

    assert without_times(first) == without_times(again)
    other = rows_of(StageWorker(replace(plan, seed=b"other"), 0, 0).run(batches_of([numbers_row(range(9))])))
    assert without_times(other) != without_times(first)


def test_all_stages_together_end_each_tree(plan):
    left = run_all(plan, [numbers_row(range(6))])
    assert {row.stage for row in left} == {MESSAGES, REASONS, COUNTERS, STATE, TOOK, TOUCHED}
    reasons = dict(pair for content in contents(left, REASONS) for pair in content)
    assert {root: reason.exception for root, reason in reasons.items()} == {
        4: "ValueError: no threes",
        6: "ValueError: the state has it already",
    }
    executed = Counter()
    for content in contents(left, COUNTERS):
        for counters in content:
            executed[GRAPH.component_of(counters["task"])] += counters["executed"]
    assert executed == {"double": 6, "sums": 10}
    acked, failed = Outcome.ACKED, Outcome.FAILED
    assert settled(left, range(6)) == {1: acked, 2: acked, 3: acked, 4: failed, 5: acked, 6: failed}


def test_trees_that_are_excluded_leave_no_trace(plan):
    left = run_all(replace(plan, excluded=frozenset({4, 6})), [numbers_row(range(6))])
    assert not contents(left, REASONS)
    chains = {task: chain for content in contents(left, STATE) for task, chain in content.items()}
    files = stage_worker.StateFiles(plan.state_root, chains, 1)
    assert sum(files.new_state(task).get("sum", 0) for task in SUMS) == sum(n * 2 + 100 for n in (0, 1, 2, 4))


def test_two_attempts_of_a_spark_task_at_once_say_the_same(plan):
    """As with speculation: only the names of their files of state differ, and each file is whole."""
    rows = rows_of(StageWorker(plan, 0, 0).run(batches_of([numbers_row(range(6))])))
    found = []
    for number, key in enumerate(stage_worker.partition_keys(plan.partitions).tolist()):
        here = sorted((row for row in rows if row.partition_key == key), key=lambda row: (row.source, row.seq))
        said = [], []
        attempts = [StageWorker(plan, 1, number).run(batches_of(here)) for _ in said]
        for pair in zip_longest(*attempts):  # a batch of the one, then a batch of the other
            for said_by_one, batch in zip(said, pair, strict=True):
                said_by_one.extend(rows_of([] if batch is None else [batch]))
        one, other = ([row for row in each if row.stage not in (COUNTERS, STATE, TOOK)] for each in said)
        assert one == other
        chains, others = (
            {task: chain for content in contents(each, STATE) for task, chain in content.items()} for each in said
        )
        assert chains.keys() == others.keys()
        for task, chain in chains.items():
            assert not set(chain.files) & set(others[task].files)
            values = read_files(plan.state_root, chain.files)
            assert values == read_files(plan.state_root, others[task].files)
            found.append(values["sum"])
    assert sum(found) == sum(n * 2 + 100 for n in range(6) if n != 3)


def test_large_blocks_leave_before_the_end(plan, monkeypatch):
    monkeypatch.setattr(stage_worker, "_BLOCK_TUPLES", 3)
    batches = StageWorker(plan, 0, 0).run(batches_of([numbers_row(range(20)), numbers_row([50])]))
    first = rows_of([next(batches)])
    assert {row.stage for row in first} == {1}
    assert rows_of(batches)


def test_untracked_topologies_send_no_messages(plan):
    row = numbers_row(range(4), tracked=False)
    rows = rows_of(StageWorker(replace(plan, tracked=False), 0, 0).run(batches_of([row])))
    assert not [row for row in rows if row.stage == MESSAGES]
