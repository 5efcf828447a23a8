"""Windows by event time on Spark: of a source in order, no tuple is late, whatever Spark runs where and how often."""

from __future__ import annotations

import logging
import random
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from acker.spark.topologies import micro_batches
from acker.spark.topologies.event_times import (
    LATEST,
    BatchWatermark,
    SourceState,
    SpoutLook,
    Watermarks,
    join_shared,
    latest_by_task,
    move_times,
)
from acker.spark.topologies.stage_plan import plan_stages
from acker.topology import (
    Bolt,
    Grouping,
    ReliableSpout,
    Spout,
    TicklessBatchingBolt,
    Topology,
    Window,
    WindowedBolt,
)
from acker.topology.tuples import TupleSource
from tests.spark.topologies.both import is_first, note, run_spark

SEC = 1_000_000_000
FIELDS = ["at", "n"]


class Paced(Spout):
    """Emits rows in order in each task, in one ten times as fast as in the other."""

    outputs = FIELDS
    count = 40

    def initialize(self, conf, context):
        self.at = 0

    def next_tuple(self):
        if self.at == self.count:
            self.finish()
            return
        n = self.task_index * 1000 + self.at
        self.emit([self.at * (1 if self.task_index else 10), n], tup_id=n)
        self.at += 1


class Untracked(Spout):
    outputs = FIELDS
    first, count, parts = 10_000, 100, 4

    def frame(self, spark, conf):
        rows = spark.range(self.first, self.first + self.count, 1, self.parts)
        return rows.selectExpr(f"id - {self.first} as at", "id as n")


class Tracked(Untracked, ReliableSpout):
    first = 20_000
    tup_id_column = "n"


class Pass(Bolt):
    outputs = FIELDS

    def process(self, tup):
        self.emit(list(tup))


class MixedBatches(TicklessBatchingBolt):
    """What it emits belongs to all trees of the batch."""

    outputs = FIELDS

    def process_batch(self, key, tups):
        for tup in tups:
            self.emit(list(tup))


class Windows(WindowedBolt):
    outputs = ["at", "n"]
    window = Window.tumbling(secs=10)
    timestamp_field = "at"

    def group_key(self, tup):
        return tup.n % 3

    def process_window(self, window):
        note(self, window.start, tuple(sorted(tup.n for tup in window.tuples)))
        self.emit([window.start, len(window)])


class Long(Windows):
    window = Window.tumbling(secs=100)

    def group_key(self, tup):
        return None

    def process_window(self, window):
        note(self, window.start, sum(tup.n for tup in window.tuples))


def check(end, numbers):
    """Each number was in one window, and none was late."""
    components = end.report.stats.components()
    assert not any(row.user for row in components.values())
    seen = Counter(n for *_, each in end.of("windows").elements() for n in each)
    assert seen == Counter(numbers)


@pytest.mark.spark
def test_nothing_is_late_of_several_sources_with_several_tasks_and_partitions(spark, tmp_path):
    class Mixed(Topology):
        paced = Paced.spec(par=2)
        untracked = Untracked.spec()
        tracked = Tracked.spec()
        passes = Pass.spec(inputs=[paced, untracked, tracked], par=2)
        behind = Pass.spec(inputs={passes: Grouping.fields("n")}, par=2)
        windows = Windows.spec(inputs={behind: Grouping.fields("n")}, par=2)
        long = Long.spec(inputs=[windows])

    end = run_spark(Mixed, spark, tmp_path / "run", {"topology.max.spout.pending": 20})
    # The fast task ends at 390 s; all that is earlier was in a window.
    check(end, [*range(39), *range(1000, 1040), *range(10_000, 10_100), *range(20_000, 20_100)])
    assert sorted(end.of("long", tasks=False)) == [(0.0, 250), (100.0, 10), (200.0, 10)]


@pytest.mark.spark
def test_nothing_is_late_of_sources_that_emit_more_than_the_bytes_of_a_micro_batch(spark, tmp_path):
    class Crowded(Topology):
        paced = Paced.spec(par=2)
        windows = Windows.spec(inputs={paced: Grouping.fields("n")}, par=2)

    end = run_spark(Crowded, spark, tmp_path / "run", {"topology.spark.batch.bytes": 400})
    assert not any(row.user for row in end.report.stats.components().values())  # none is late
    assert end.report.stats.components()["windows"].executed == 2 * Paced.count


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 6))])
def test_nothing_is_late_with_any_number_of_tasks_and_partitions(spark, tmp_path, seed):
    rng = random.Random(seed)
    specs, inputs, wanted = {}, [], []
    if seed % 3 < 2:
        par = rng.randint(1, 3)
        inputs.append(specs.setdefault("paced", Paced.spec(par=par)))
        wanted += [(at * (1 if task else 10), task * 1000 + at) for task in range(par) for at in range(Paced.count)]
    if seed % 3 > 0:
        kind = type("Rows", (rng.choice([Tracked, Untracked]),), {"parts": rng.randint(1, 7)})
        inputs.append(specs.setdefault("rows", kind.spec(par=rng.randint(1, 3))))
        wanted += [(at, kind.first + at) for at in range(kind.count)]
    for depth in range(rng.randint(0, 3)):
        grouping = rng.choice([Grouping.SHUFFLE, Grouping.fields("n")])
        layer = rng.choice([Pass, MixedBatches]).spec(inputs=dict.fromkeys(inputs, grouping), par=rng.randint(1, 5))
        inputs = [specs.setdefault(f"layer{depth}", layer)]
    specs["windows"] = Windows.spec(inputs=dict.fromkeys(inputs, Grouping.fields("n")), par=rng.randint(1, 4))
    conf = {"topology.max.spout.pending": rng.choice([10, 30, 1000])}
    end = run_spark(type("Any", (Topology,), specs), spark, tmp_path / "run", conf)
    last = max(at for at, _ in wanted)
    check(end, [n for at, n in wanted if at // 10 * 10 + 10 <= last])


class Stumbles(Pass):
    """Fails a tuple once, so that its replay comes after those that were behind it."""

    def process(self, tup):
        if tup.n == 15 and is_first(self):
            raise ValueError("once")
        super().process(tup)


class Patient(Paced):
    """Emits what failed again once a later tuple was acked, and ends when all were."""

    def initialize(self, conf, context):
        super().initialize(conf, context)
        self.acked, self.failed = {-1}, []

    def next_tuple(self):
        if self.failed and max(self.acked) > self.failed[0]:
            n = self.failed.pop()
            self.emit([10 * n, n], tup_id=n)
        elif self.at < self.count:
            super().next_tuple()
        elif len(self.acked) == 1 + self.count:
            self.finish()

    def ack(self, tup_id):
        self.acked.add(tup_id)

    def fail(self, tup_id, reason):
        self.failed.append(tup_id)


@pytest.mark.spark
def test_a_replay_may_be_late_and_is_counted_and_logged(spark, tmp_path, caplog):
    class Replayed(Topology):
        source = Patient.spec(config={"topology.max.spout.pending": 20})
        stumbles = Stumbles.spec(inputs=[source])
        windows = Windows.spec(inputs=[stumbles])

    with caplog.at_level(logging.WARNING):
        end = run_spark(Replayed, spark, tmp_path / "run")
    assert end.report.stats.components()["windows"].user == {"late_tuples": 1}
    seen = Counter(n for *_, each in end.of("windows").elements() for n in each)
    assert seen == Counter([n for n in range(39) if n != 15])
    [text] = {each.getMessage() for each in caplog.records if "came late" in each.getMessage()}
    assert "windows: a tuple of 'stumbles' with at = 150 came late: its last window ended at 160 s" in text


@pytest.mark.spark
@pytest.mark.slow
def test_a_micro_batch_that_runs_again_ends_the_same_windows(spark, tmp_path, monkeypatch):
    places = {0: 0, 1: 0}

    class Goes(Paced):
        """Goes on in the next run where it was."""

        count = 60

        def next_tuple(self):
            self.at = places[self.task_index]
            super().next_tuple()
            places[self.task_index] = self.at

    class Stream(Topology):
        paced = Goes.spec(par=2)
        passes = Pass.spec(inputs=[paced], par=2)
        windows = Windows.spec(inputs={passes: Grouping.fields("n")}, par=2)

    evaluated = []
    evaluate = micro_batches.MicroBatches._evaluate

    def crash(self, batch, planned, frames):
        done = evaluate(self, batch, planned, frames)
        evaluated.append((batch, planned.ended))
        if len(evaluated) in (2, 5):
            raise OSError("crash after the windows were processed, before the commit")
        return done

    monkeypatch.setattr(micro_batches.MicroBatches, "_evaluate", crash)
    conf, checkpoint = {"topology.max.spout.pending": 20}, str(tmp_path / "checkpoint")
    ends = []
    for number in range(3):
        try:
            ends.append(run_spark(Stream, spark, tmp_path / f"run{number}", conf, checkpoint=checkpoint))
        except OSError:
            continue
    [end] = ends
    assert not end.report.stats.components()["windows"].user
    by_batch = {}
    for batch, ended in evaluated:
        assert by_batch.setdefault(batch, ended) == ended
    assert len(evaluated) == len(by_batch) + 2


# Without Spark.


def spout_task(number, finished=False, pending=(), component=Paced, **emitted):
    spout = component()
    spout._finished = finished
    collector = SimpleNamespace(
        task=number,
        pending_count=len(pending),
        message_id=len(pending),
        routes={"default": SimpleNamespace(emitted=len(pending))},
    )
    executor = SimpleNamespace(step_since_ns=None, outbox=SimpleNamespace(dirty=[]))
    return number, (executor, SimpleNamespace(spout=spout, collector=collector, next_replay_ns=lambda: None))


class Two(Topology):
    paced = Paced.spec(par=2)
    frame = Tracked.spec()
    windows = Windows.spec(inputs=[paced, frame])
    long = Long.spec(inputs=[windows])


@pytest.fixture
def watermarks():
    graph = Two.graph()
    return Watermarks(graph, plan_stages(graph).order, began_ns=1000 * SEC)


def test_a_bolt_waits_for_its_slowest_source_until_that_is_idle_or_has_finished(watermarks):
    spouts = dict([spout_task(1, pending=[1]), spout_task(2, pending=[1]), spout_task(3, component=Tracked)])

    def ended(times, active=(), at=1001, spouts=spouts, before=()):
        return watermarks.ended({"windows": times}, dict(before), SpoutLook.at(spouts), active, at * SEC)

    times = {1: SourceState(95_000), 2: SourceState(31_000), "frame": SourceState(42_000)}
    assert ended(times) == {"windows": 30_000}
    # Windows that have ended stay so.
    assert ended(times, before=[("windows", 40_000)]) == {"windows": 40_000}
    # Of a source that was not heard of, nobody knows anything: for a minute since the run began.
    assert ended({1: SourceState(95_000), 2: SourceState(31_000)}) == {}
    assert ended({1: SourceState(95_000), 2: SourceState(31_000)}, at=1060) == {"windows": 30_000}
    # A source that was silent since before the run is idle after a minute of it, unless it has tuples by now.
    silent = {**times, 2: SourceState(31_000, silent_ns=5 * SEC)}
    assert ended(silent, at=1059) == {"windows": 30_000}
    assert ended(silent, at=1060) == {"windows": 40_000}
    assert ended(silent, at=1060, active={2}) == {"windows": 30_000}
    # What has finished holds nothing back; when all has, the latest time counts.
    spouts |= dict([spout_task(2, finished=True)])
    assert ended(times) == {"windows": 40_000}
    assert ended(times, active={2}) == {"windows": 30_000}
    spouts |= dict([spout_task(1, finished=True), spout_task(3, finished=True, component=Tracked)])
    assert ended(times) == {"windows": 90_000}
    assert ended(times, active={"frame"}) == {"windows": 40_000}


def test_a_bolt_behind_windows_waits_for_those_that_end_now(watermarks):
    spouts = dict([spout_task(number, finished=True) for number in (1, 2, 3)])
    times = {"windows": {1: SourceState(950_000)}, "long": {"windows": SourceState(310_000)}}
    first = watermarks.ended(times, {"long": 300_000}, SpoutLook.at(spouts), (), 1001 * SEC)
    assert first == {"windows": 950_000, "long": 300_000}


def test_what_is_kept_of_the_sources(watermarks):
    first = watermarks.after_batch({}, {"windows": {1: 5_000, "frame": 9_000}}, 7)
    assert first["windows"] == {1: SourceState(5_000), 2: SourceState(None, 7), "frame": SourceState(9_000)}
    second = watermarks.after_batch(first, {"windows": {1: 4_000, 2: 1_000}}, 8)
    assert second["windows"] == {1: SourceState(5_000), 2: SourceState(1_000), "frame": SourceState(9_000, 8)}
    third = watermarks.after_batch(second, {}, 9)
    assert third["windows"]["frame"] == SourceState(9_000, 8)
    moved = move_times({**third, "gone": {}}, Two.graph(), {1: 2, 2: None}.get)
    assert moved["windows"] == {2: SourceState(5_000, 9), "frame": SourceState(9_000, 8)}
    assert moved.keys() == {"windows", "long"}


@pytest.mark.parametrize("seed", range(20))
def test_the_latest_time_by_whose_trees_they_are(seed):
    rng = np.random.default_rng(seed)
    ended = np.unique(rng.integers(-50, 50, rng.integers(0, 60)))
    owners = rng.integers(1, 5, len(ended))
    roots = np.unique(rng.integers(-60, 60, rng.integers(0, 60)))
    times = rng.integers(0, 1000, len(roots))
    owner_of = dict(zip(ended.tolist(), owners.tolist(), strict=True))
    expected = {}
    for root, time in zip(roots.tolist(), times.tolist(), strict=True):
        if root in owner_of:
            expected[owner_of[root]] = max(time, expected.get(owner_of[root], 0))
    assert latest_by_task(roots, times, ended, owners) == expected


def test_times_of_other_trees_in_a_batch_are_no_progress_of_a_source():
    """A tuple of several trees may have the time of any: the earliest counts, and only for trees without own tuples."""
    watermark = BatchWatermark(Two.graph(), "windows", None)
    source = TupleSource("behind", "default", 9, FIELDS)
    for at, roots in ((5, [1]), (3, [1]), (900, [1, 2]), (7, [2, 3]), (800, [2, 3])):
        tup = source.tuple_type(source.make_values([at, 0]), source, dict.fromkeys(roots, 1))
        watermark.note(tup, 1000 * at)
    assert watermark.senders == {LATEST: 900_000}  # so that all windows end once all sources have ended
    assert watermark.trees == {1: 5_000} and watermark.shared == {1: 900_000, 2: 7_000, 3: 7_000}
    own, shared = [], []
    for is_shared, *columns in watermark.tree_columns():
        (shared if is_shared else own).append(np.stack(columns))
    other_task = np.array([[2, 4], [6_000, 1_000]])
    roots, times = join_shared(own, [*shared, other_task])
    assert dict(zip(roots.tolist(), times.tolist(), strict=True)) == {1: 5_000, 2: 6_000, 3: 7_000, 4: 1_000}
    assert [len(column) for column in join_shared([], [])] == [0, 0]


def test_the_latest_time_of_all_counts_once_all_sources_are_gone(watermarks):
    """As locally: of a source whose tuples all came in batches of several trees."""
    states = {1: SourceState(15_000), 2: SourceState(16_000), "frame": SourceState(17_000), LATEST: SourceState(90_000)}
    goes_on = SpoutLook(set(), set(), are_all_finished=False)
    assert watermarks.ended({"windows": states}, {}, goes_on, [1, 2], 1001 * SEC)["windows"] == 10_000
    is_over = SpoutLook({1, 2, 3}, set(), are_all_finished=True)
    assert watermarks.ended({"windows": states}, {}, is_over, [], 1001 * SEC)["windows"] == 90_000
    assert move_times({"windows": states}, Two.graph(), lambda task: task)["windows"] == states
