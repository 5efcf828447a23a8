"""The figures of a topology on Spark, as the driver adds them up; and the queue that bounds its micro-batches."""

import threading

import numpy as np
import pyarrow as pa
import pytest

from acker._engine.ids import IdGenerator
from acker.local import LocalRuntime
from acker.local.clock import Flag
from acker.local.page.components_view import ComponentsView
from acker.local.page.live_view import RuntimeView
from acker.local.task_stats import read_tasks
from acker.observe.failures import FailureLog
from acker.observe.latencies import LATENCY_BOUNDS_NS, LatencyRecorder
from acker.observe.stats import RuntimeStats
from acker.spark.topologies.spark_executor import DriverExecutors, SummedLatencies, WeighedQueue
from acker.spark.topologies.tuple_blocks import roots_of
from acker.topology import Bolt, Spout, Topology
from acker.topology.tuple_batch import TupleBatch
from acker.topology.tuples import TupleSource


def test_latencies_are_added_as_if_each_was_recorded():
    one_by_one, added = LatencyRecorder(), SummedLatencies()
    bounds = [LATENCY_BOUNDS_NS[0], LATENCY_BOUNDS_NS[7], LATENCY_BOUNDS_NS[-1]]
    for ns in (0, *(bound + step for bound in bounds for step in (-1, 0, 1))):
        added.add_many(ns, 3)
        for _ in range(3):
            one_by_one.record(ns)
    assert added.snapshot() == one_by_one.snapshot()


def test_latencies_of_workers_and_of_the_driver_are_one_histogram():
    of_worker, added, expected = LatencyRecorder(), SummedLatencies(), LatencyRecorder()
    of_worker.record(5_000)
    added.add_totals(*of_worker.totals())
    added.add_many(7_000_000, 1)
    added.record(9_000_000_000)
    for ns in (5_000, 7_000_000, 9_000_000_000):
        expected.record(ns)
    assert added.snapshot() == expected.snapshot()


class Numbers(Spout):
    outputs = ["n"]

    def next_tuple(self):
        """Never called: nothing runs."""


class Work(Bolt):
    outputs = ["n"]

    def process(self, tup):
        """Never called."""


class Chain(Topology):
    numbers = Numbers.spec()
    slow = Work.spec(inputs=[numbers])
    fast = Work.spec(inputs=[slow])


class OnDriver(LocalRuntime):
    def _make_executors(self):
        return DriverExecutors(self._parts, 100, 10_000)


def test_each_bolt_is_busy_for_the_time_that_its_workers_tell() -> None:
    runtime = OnDriver(Chain)
    executors, view = runtime._make_executors(), ComponentsView(runtime.graph)
    executors.spark.busy_ns = 10**10  # The micro-batch has taken all the time.

    def busy_at(now_ns):
        stats = RuntimeStats(topology="Chain", tasks=read_tasks(executors, [], 10**10))
        nodes = view.read(stats, executors, now_ns)["graph"]["nodes"]
        capacities = {name: row.capacity for name, row in stats.components().items()}
        return {node["name"]: node["busy"] for node in nodes}, capacities

    none = dict.fromkeys(("numbers", "slow", "fast"), 0.0)
    assert busy_at(0) == (none, none)
    executors.count(
        {
            **dict.fromkeys(("executed", "acked", "failed"), 1),
            "task": task.collector.task,
            "emitted": {},
            "sent": [0] * len(task.collector.outlets),
            "user": {},
            "latency": LatencyRecorder().totals(),
            "busy_ns": busy_ns,
        }
        for task, busy_ns in zip(executors.spark.tasks, (9 * 10**9, 10**9), strict=True)
    )
    shares = {"numbers": 0.0, "slow": 0.9, "fast": 0.1}
    assert busy_at(10**10) == (shares, shares)


def test_the_page_samples_spouts_on_the_driver_and_says_why_no_bolts() -> None:
    runtime = OnDriver(Chain)
    runtime.lifecycle.executors = runtime._make_executors()
    flames = RuntimeView(runtime, FailureLog(), None, values=False).view()["flames"]
    assert flames["of"] == ["numbers"] and flames["note"].startswith("Bolts run in Spark's workers")


class Forked(Topology):
    numbers = Numbers.spec()
    left = Work.spec(inputs=[numbers])
    right = Work.spec(inputs=[numbers])


@pytest.fixture
def forked():
    """The executors of a topology whose spout sends each tuple to two bolts."""
    return OnDriver(Forked)._make_executors()


@pytest.mark.parametrize("is_spouts_own", [True, False], ids=["the spout's thread", "another one"])
def test_a_micro_batch_waits_until_a_tuple_was_sent_to_each_bolt(forked, monkeypatch, is_spouts_own) -> None:
    (spout,) = forked.spouts
    put, taken, threads = WeighedQueue.put, [], []

    def put_and_take(queue, chunk, items):
        put(queue, chunk, items)
        if not threads:
            threads.append(threading.Thread(target=lambda: taken.append(forked.spark.take(is_whole=False))))
            threads[0].start()
            threads[0].join(0.2)  # time enough for one that does not wait

    monkeypatch.setattr(WeighedQueue, "put", put_and_take)
    if is_spouts_own:
        spout.outbox.enter()
    spout.tasks[0].collector.emit([1], tup_id=1)
    spout.flush()
    threads[0].join(60)
    assert [batch.tuples for batch in taken] == [2]


@pytest.mark.parametrize("rows", [0, 3], ids=["a tuple", "rows"])
def test_the_flusher_sends_no_part_of_an_emission(forked, monkeypatch, rows) -> None:
    """It may look whenever code of Python runs, such as that which makes ids."""
    (spout,) = forked.spouts
    task, take, sent = spout.tasks[0], IdGenerator.take, []

    def look_and_take(generator, count):
        sent.append(spout.outbox.send())
        return take(generator, count if rows else 1)

    monkeypatch.setattr(IdGenerator, "take", look_and_take)
    spout.outbox.enter()
    if rows:
        task.collector.emit_batch(task.spout, {"n": list(range(rows))}, list(range(rows)), None, None)
    else:
        task.collector.emit([1], tup_id=1)
    # For the tree, and for each of its tuples; the ids of a row's last tuples are what is left of its root id.
    assert len(sent) == (2 if rows else 3) and not any(sent)
    spout.flush()
    assert forked.spark.take(is_whole=False).tuples == 2 * max(1, rows)


SOURCE = TupleSource("spout", "default", 1, ["body"])


def chunk_of(task, *trees):
    """Return tuples for a task: root id and size of each."""
    return task, [
        SOURCE.tuple_type(SOURCE.make_values([bytes(size)]), SOURCE, None if root is None else {root: root})
        for root, size in trees
    ]


def put(queue, *chunks):
    for chunk in chunks:
        queue.put(chunk, len(chunk[1]))


def roots_in(taken):
    return [(task, [next(iter(tup._ids or [None])) for tup in tuples]) for task, tuples in taken.chunks]


def test_a_micro_batch_takes_all_that_fits():
    queue = WeighedQueue(100, Flag(), 10_000)
    assert queue.take_batch() == ([], 0, 0, None)
    put(queue, chunk_of(3, (1, 2000), (2, 3000)), chunk_of(4, (3, 1000)))
    taken = queue.take_batch()
    assert roots_in(taken) == [(3, [1, 2]), (4, [3])] and taken.tuples == 3
    assert 6000 <= taken.size_bytes < 6500
    assert taken.largest[0] == "spout" and 3000 <= taken.largest[1] < 3100
    assert (queue.size, queue.waiting_bytes) == (3, 0)
    queue.done_batch(taken)
    assert queue.size == 0


def test_what_does_not_fit_waits_for_the_next_micro_batch_in_its_order():
    queue = WeighedQueue(100, Flag(), 10_000)
    put(queue, chunk_of(3, (1, 6000), (2, 6000), (3, 100)), chunk_of(4, (4, 100), (5, 7000)))
    batches = []
    while (taken := queue.take_batch()).tuples:
        batches.append(roots_in(taken))
        assert taken.size_bytes <= 10_000
        queue.done_batch(taken)
    assert batches == [[(3, [1])], [(3, [2, 3]), (4, [4])], [(4, [5])]]
    assert (queue.size, queue.waiting_bytes) == (0, 0)


def test_all_that_waits_is_taken_where_its_order_matters():
    queue = WeighedQueue(100, Flag(), 10_000)
    put(queue, chunk_of(3, (1, 6000), (2, 6000)), chunk_of(4, (3, 6000)))
    assert roots_in(queue.take_batch(is_whole=True)) == [(3, [1, 2]), (4, [3])]


def test_a_tree_stays_together_and_one_that_is_larger_than_a_micro_batch_is_alone():
    queue = WeighedQueue(100, Flag(), 10_000)
    put(queue, chunk_of(3, (1, 8000), (2, 50_000), (None, 10)), chunk_of(4, (3, 10), (2, 50_000), (1, 8000)))
    batches = []
    while (taken := queue.take_batch()).tuples:
        batches.append(roots_in(taken))
        queue.done_batch(taken)
    assert batches == [[(3, [1]), (4, [1])], [(3, [2]), (4, [2])], [(3, [None]), (4, [3])]]


def test_spouts_wait_while_two_micro_batches_of_bytes_are_held():
    queue, spout = WeighedQueue(100, Flag(), 10_000), Flag()
    spout.clear()
    put(queue, chunk_of(3, (1, 9000)))
    taken = queue.take_batch()
    put(queue, chunk_of(3, (2, 9000)))
    assert queue.has_room(spout)
    put(queue, chunk_of(3, (3, 9000)))
    assert not queue.has_room(spout) and not spout.is_set()
    queue.done_batch(taken)
    assert spout.is_set() and queue.has_room(spout)
    put(queue, *(chunk_of(3, (root, 1)) for root in range(98)))
    assert not queue.has_room(spout)  # by their number
    assert queue.clear() == 100
    assert queue.has_room(spout) and queue.take_batch().tuples == 0


def rows_of(task, numbers):
    """Return rows as columns for a task, each in the tree of its number."""
    root_ids = np.array(numbers, np.int64)
    columns = pa.RecordBatch.from_pydict({"body": [bytes(92)] * root_ids.size})
    return task, TupleBatch(SOURCE, columns, root_ids, root_ids)


def test_rows_that_do_not_fit_wait_without_a_copy_of_their_trees_elsewhere():
    queue = WeighedQueue(1000, Flag(), 10_000)
    numbers = list(range(250))
    put(queue, rows_of(3, numbers), rows_of(4, numbers[::-1]), chunk_of(5, (7, 100), (1000, 100)))
    taken = []
    while (batch := queue.take_batch()).tuples:
        of_task = {}
        for task, rows in batch.chunks:
            of_task.setdefault(task, set()).update(roots_of(rows))
        assert of_task[3] == of_task[4], "a tree is in two micro-batches"
        taken.append(sorted(of_task[3]))
        assert batch.largest == ("spout", 96 if 5 not in of_task else batch.largest[1])
        queue.done_batch(batch)
    assert sorted(root for roots in taken for root in roots) == numbers and len(taken) > 2
    assert taken[0] == list(range(len(taken[0])))
    assert (queue.size, queue.waiting_bytes, queue._held_bytes) == (0, 0, 0)
