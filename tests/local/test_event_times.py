"""Windows by event time behind any number of tasks at any depth: of a source in order, no tuple is late."""

import asyncio
import itertools
import logging
import random
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from acker.local import read_state, run
from acker.testing import FeederSpout, Scheduler
from acker.topology import Bolt, Grouping, ReliableSpout, Spout, TicklessBatchingBolt, Topology, Window, WindowedBolt

FIELDS = ["at", "number", "key"]


class Source:
    """The part of a spout that emits one partition of `rows` for each task, as many at a time as `burst` says."""

    outputs = FIELDS
    rows = ()
    burst = 3

    def initialize(self, conf, context):
        self.place = 0

    def next_tuple(self):
        for _ in range(self.burst):
            if self.place == len(self.rows[self.task_index]):
                self.finish()
                return
            row = self.rows[self.task_index][self.place]
            self.place += 1
            self.emit_row(row)


class Tracked(Source, ReliableSpout):
    def emit_row(self, row):
        self.emit(row, tup_id=row[1])


class Untracked(Source, Spout):
    def emit_row(self, row):
        self.emit(row)


class Pass(Bolt):
    outputs = FIELDS

    def process(self, tup):
        self.emit(list(tup))


class Twice(Pass):
    def process(self, tup):
        self.emit(list(tup))
        self.emit(list(tup))


class Awaits(Pass):
    async def process(self, tup):
        for _ in range(tup.number % 5):
            await asyncio.sleep(0)
        if tup.number % 7 == 0:
            await asyncio.sleep(0.5)
        self.emit(list(tup))


class Batches(TicklessBatchingBolt):
    outputs = FIELDS
    secs_between_batches = 1

    def process_batch(self, key, tups):
        for tup in reversed(tups):
            self.emit(list(tup), anchors=[tup])


class MixedBatches(Batches):
    """What it emits belongs to all trees of the batch."""

    def process_batch(self, key, tups):
        for tup in reversed(tups):
            self.emit(list(tup))


class Holds(Pass):
    """Emits and acks each tuple when the next one has come, or at a tick."""

    auto_ack = auto_anchor = False
    config = {"topology.tick.tuple.freq.secs": 1}
    held = None

    def process(self, tup):
        self.release()
        self.held = tup

    def process_tick(self, tup):
        self.release()

    def release(self):
        held, self.held = self.held, None
        if held is not None:
            self.emit(list(held), anchors=[held])
            self.ack(held)


class Windows(WindowedBolt):
    outputs = ["end", "count"]
    timestamp_field = "at"
    seen = None

    def group_key(self, tup):
        return tup.key

    def process_window(self, window):
        self.seen.append((window.end, [tup.number for tup in window.tuples]))
        self.emit([window.end, len(window)])


def grouping_of(rng):
    return rng.choice(
        [
            Grouping.SHUFFLE,
            Grouping.fields("key"),
            Grouping.fields("number"),
            Grouping.custom(lambda values, tasks: [tasks[-1 if values[1] % 50 == 0 else 0]]),
        ]
    )


def make_rows(rng, par, numbers, lag):
    """Return a partition of rows for each task: in order up to the lag, and each at its own pace."""
    parts = []
    for _ in range(par):
        at, rows = rng.randrange(200), []
        for _ in range(rng.randrange(60, 120)):
            at += rng.choice([0, 0.25, 1, 1, 3])
            rows.append([at - rng.uniform(0, lag), next(numbers), rng.randrange(5)])
        parts.append(rows)
    return parts


def make_topology(rng, lag, length):
    """Return a topology of random depth, its rows, and the windows that will be seen."""
    seen, all_rows, specs, copies = [], [], {}, 1
    inputs, numbers = [], itertools.count()
    for number in range(rng.choice([1, 1, 2])):
        par = rng.randint(1, 3)
        rows = make_rows(rng, par, numbers, lag)
        all_rows += [row for part in rows for row in part]
        members = {"rows": rows, "burst": rng.choice([1, 3, 40])}
        spout = specs[f"spout{number}"] = type("S", (rng.choice([Tracked, Untracked]),), members).spec(par=par)
        inputs.append(spout)
    for depth in range(rng.randint(0, 3)):
        kind = rng.choice([Pass, Pass, Twice, Awaits, Batches, MixedBatches, Holds])
        copies *= 2 if kind is Twice else 1
        layer = kind.spec(inputs={each: grouping_of(rng) for each in inputs}, par=rng.randint(1, 4))
        specs[f"layer{depth}"] = layer
        inputs = [layer]
    members = {"seen": seen, "lag_secs": lag, "window": Window.tumbling(secs=length)}
    windows = type("W", (Windows,), members)
    inputs = {each: Grouping.fields("key") for each in inputs}
    specs["windows"] = windows.spec(inputs=inputs, par=rng.randint(1, 3))
    return type("T", (Topology,), specs), all_rows, copies, seen


def slow_some(rng, scheduler):
    for executor in scheduler.runtime.lifecycle.executors:
        if rng.random() < 0.3:
            scheduler.slow_down(executor.name, rng.choice([0.001, 0.01, 0.1]))


@pytest.mark.parametrize("seed", range(25))
def test_no_tuple_of_a_source_in_order_is_late(seed):
    check_that_nothing_is_late(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 300))
def test_no_tuple_of_a_source_in_order_is_late_in_many_topologies(seed):
    check_that_nothing_is_late(seed)


def check_that_nothing_is_late(seed):
    rng = random.Random(seed)
    lag, length = rng.choice([0, 1, 10]), rng.choice([5, 20, 60])
    topology, rows, copies, seen = make_topology(rng, lag, length)
    conf = {"topology.max.spout.pending": rng.choice([1, 10, 100]), "topology.drain.secs": 1000}
    scheduler = Scheduler.of(topology, conf, seed=seed)
    scheduler.run(lambda: scheduler.runtime.state == "running")
    slow_some(rng, scheduler)
    tasks = list(scheduler.runtime.lifecycle.executors.spout_tasks())
    scheduler.run(lambda: all(task.finished and not task.collector.followed for task in tasks))
    report = scheduler.stop()
    counts = report.stats.components()["windows"]
    assert counts.executed == len(rows) * copies
    assert not counts.user
    # All windows have ended that could, each tuple was in one of them, and windows ended in their order.
    last = max(at for at, *_ in rows) - lag
    expected = [number for at, number, _ in rows if (round(at * 1000) // (length * 1000) + 1) * length <= last]
    found = Counter(number for _, numbers in seen for number in numbers)
    assert found == Counter(dict.fromkeys(expected, copies))


# One thing at a time.


def times_of(seen):
    return sorted(end for end, _ in seen)


def windows_of(seen, lag=0, length=10, idle=60):
    members = {"seen": seen, "lag_secs": lag, "window": Window.tumbling(secs=length), "idle_secs": idle}
    return type("W", (Windows,), members)


def feeders(count):
    return [FeederSpout.with_outputs(*FIELDS) for _ in range(count)]


def make(kinds, windows, layers=(), **options):
    """Return a topology of feeders, layers of bolts one behind the other, and windows."""
    specs, inputs = {}, []
    for number, feeder in enumerate(kinds):
        specs[f"feeder{number}"] = feeder.spec()
        inputs.append(specs[f"feeder{number}"])
    for number, layer in enumerate(layers):
        specs[f"layer{number}"] = layer.spec(inputs=inputs, par=2)
        inputs = [specs[f"layer{number}"]]
    specs["windows"] = windows.spec(inputs={each: Grouping.fields("key") for each in inputs}, **options)
    return type("T", (Topology,), specs)


def feed(feeder, *times, key=0):
    for at in times:
        feeder.feed([at, at, key], (at, key))


def late(scheduler):
    return scheduler.runtime.stats().components()["windows"].user.get("late_tuples", 0)


@pytest.mark.parametrize("layers", [(), (Pass,), (Awaits, Batches)])
def test_windows_end_while_the_source_goes_on(layers):
    """Also those of keys that come seldom: all tasks know how far the source is."""
    seen, [source] = [], feeders(1)
    with Scheduler.of(make([source], windows_of(seen, lag=5), layers, par=3), seed=1) as scheduler:
        for key, at in enumerate(range(4)):
            feed(source, at, key=key)
        feed(source, *range(10, 36))
        scheduler.advance(5)
        assert times_of(seen) == [10] * 4 + [20, 30]
        feed(source, 45)
        scheduler.advance(5)
        assert times_of(seen) == [10] * 4 + [20, 30, 40] and not late(scheduler)


def test_a_source_has_not_reached_the_times_of_others_in_its_batch():
    seen, sources = [], feeders(2)
    with Scheduler.of(make(sources, windows_of(seen), [MixedBatches])) as scheduler:
        feed(sources[0], *range(1000, 1020))
        feed(sources[1], *range(8))
        scheduler.advance(5)
        feed(sources[1], *range(8, 30))
        scheduler.advance(5)
        assert not late(scheduler) and set(times_of(seen)) <= {10, 20}


def test_the_slowest_of_several_sources_counts_until_it_has_finished():
    seen, sources = [], feeders(2)
    with Scheduler.of(make(sources, windows_of(seen), [Pass])) as scheduler:
        feed(sources[0], *range(100))
        scheduler.settle()
        assert not seen  # nobody knows what the other one will send
        feed(sources[1], 5, 25)
        scheduler.settle()
        assert times_of(seen) == [10, 20]
        sources[1].end()
        scheduler.advance(2)
        assert times_of(seen) == [*range(10, 100, 10)]


def test_an_idle_source_holds_nothing_back_and_what_it_sends_then_may_be_late(caplog):
    seen, sources = [], feeders(2)
    with Scheduler.of(make(sources, windows_of(seen, idle=20), [Pass])) as scheduler:
        feed(sources[0], *range(50))
        feed(sources[1], 5)
        scheduler.settle()
        scheduler.advance(18)
        assert not seen
        scheduler.advance(4)
        assert times_of(seen) == [10, 20, 30, 40]
        feed(sources[1], 35, 6)
        scheduler.settle()
        assert late(scheduler) == 2
        [text] = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
        assert re.match(
            "windows: a tuple of 'layer0' with at = (35|6) came late: its last window ended at [14]0 s", text
        )
        assert "or idle_secs (20) if it pauses for longer" in text
        # It counts again.
        feed(sources[1], 47)
        feed(sources[0], 100)
        scheduler.settle()
        assert times_of(seen) == [10, 20, 30, 40]


def test_a_source_with_a_tuple_under_way_is_not_idle():
    seen, sources = [], feeders(2)
    topology = make(sources, windows_of(seen, idle=20), [Pass])
    with Scheduler.of(topology, {"topology.message.timeout.secs": 1000}) as scheduler:
        feed(sources[0], *range(50))
        feed(sources[1], 1)
        scheduler.settle()
        scheduler.freeze("layer0*")
        feed(sources[0], *range(50, 80))
        feed(sources[1], 2)
        scheduler.advance(500)
        assert not seen
        scheduler.thaw()
        scheduler.settle()
        assert not seen and not late(scheduler)


def test_a_pause_makes_no_source_idle():
    seen, sources = [], feeders(2)
    with Scheduler.of(make(sources, windows_of(seen, idle=20))) as scheduler:
        feed(sources[0], *range(50))
        feed(sources[1], 5)
        scheduler.settle()
        scheduler.runtime.pause()
        scheduler.advance(100)
        scheduler.runtime.resume()
        scheduler.advance(10)
        assert not seen
        scheduler.advance(11)
        assert times_of(seen) == [10, 20, 30, 40]


def test_a_replay_may_be_late_and_is_counted():
    seen, failed = [], []

    class Fails(Pass):
        def process(self, tup):
            if tup.number == 15 and not failed:
                failed.append(tup.number)
                raise OSError("once")
            super().process(tup)

    rows = [[[at, at, 0] for at in range(100)]]
    source = type("S", (Tracked,), {"rows": rows, "backoff_secs": 5})
    spec = source.spec()
    fails = Fails.spec(inputs=[spec])
    specs = {"source": spec, "fails": fails, "windows": windows_of(seen).spec(inputs=[fails])}
    with Scheduler.of(type("T", (Topology,), specs)) as scheduler:
        scheduler.advance(60)
        assert late(scheduler) == 1
    assert sorted(number for _, numbers in seen for number in numbers) == [at for at in range(90) if at != 15]


@pytest.mark.parametrize("seed", range(4))
def test_windows_end_once_over_restarts_and_snapshots(seed):
    seen, [source], crashes = [], feeders(1), []

    class Crashes(Pass):
        def process(self, tup):
            if crashes:
                raise crashes.pop()
            super().process(tup)

    class Kept(Crashes):
        auto_fail = False

    topology = make([source], windows_of(seen), [Kept])
    state = None
    for day in range(3):
        with Scheduler.of(topology, state=state, seed=seed) as scheduler:
            feed(source, *range(day * 60, day * 60 + 30))
            scheduler.settle()
            crashes.append(OSError("restart"))
            feed(source, day * 60 + 30)
            scheduler.advance(60)
            feed(source, *range(day * 60 + 31, day * 60 + 60))
            scheduler.advance(60)
            assert scheduler.runtime.stats().restarts == 1
            if day:
                feed(source, 3, key=day)  # of a window that ended in an earlier run
                scheduler.settle()
                assert late(scheduler) > 0
            state = scheduler.runtime.snapshot_state()
    ends = times_of(seen)
    assert ends == [*range(10, 180, 10)]
    assert read_state(state)["windows"][0]["window", "ended"] == 170_000


def test_windows_of_windows():
    """What a bolt emits of its windows has no trees; its tasks are the sources of the next bolt."""
    seen, [source] = [], feeders(1)

    class Short(WindowedBolt):
        outputs = FIELDS
        window = Window.tumbling(secs=10)
        timestamp_field = "at"

        def group_key(self, tup):
            return tup.key

        def process_window(self, window):
            self.emit([window.start, len(window), 0])

    feeder = source.spec()
    short = Short.spec(inputs={feeder: Grouping.fields("key")}, par=3)
    long = windows_of(seen, length=100).spec(inputs={short: Grouping.fields("key")})
    topology = type("T", (Topology,), {"feeder": feeder, "short": short, "windows": long})
    scheduler = Scheduler.of(topology, seed=3)
    scheduler.run(lambda: scheduler.runtime.state == "running")
    scheduler.slow_down("short*[[]2[]]", 0.1)
    for at in range(1000):
        feed(source, at, key=at % 6)
    scheduler.advance(30)
    source.end()
    scheduler.stop()
    assert times_of(seen) == [*range(100, 1000, 100)] and not late(scheduler)
    assert [sum(numbers) for _, numbers in sorted(seen)] == [100] * 9


def test_a_loop_is_part_of_the_trees():
    seen, [source] = [], feeders(1)

    class Again(Bolt):
        outputs = [*FIELDS, "left"]

        def process(self, tup):
            left = tup.number % 4 if tup.component == "feeder" else tup.left
            if left:
                self.emit([tup.at, tup.number, tup.key, left - 1])
            else:
                self.emit([*list(tup)[:3], -1])

    class Out(Pass):
        def process(self, tup):
            if tup.left < 0:
                self.emit(list(tup)[:3])

    class Only(Again):
        def process(self, tup):
            if tup.component == "feeder" or tup.left >= 0:
                super().process(tup)

    feeder = source.spec()
    again = Only.spec(inputs=[feeder, "again"], par=3)
    out = Out.spec(inputs=[again], par=2)
    windows = windows_of(seen).spec(inputs=[out], par=2)
    topology = type("T", (Topology,), {"feeder": feeder, "again": again, "out": out, "windows": windows})
    with Scheduler.of(topology, seed=5) as scheduler:
        feed(source, *range(100))
        scheduler.settle()
        assert not late(scheduler)
    assert sorted(number for _, numbers in seen for number in numbers) == [*range(90)]


# On threads.


class Pooled(Pass):
    """Hands its tuples to threads of its own, which emit and ack."""

    auto_ack = False

    def initialize(self, conf, context):
        self.pool = ThreadPoolExecutor(3)

    def process(self, tup):
        self.pool.submit(self.work, tup)

    def work(self, tup):
        self.emit(list(tup), anchors=[tup])
        self.ack(tup)

    def close(self):
        self.pool.shutdown()


@pytest.mark.parametrize(("kind", "layers"), [(Tracked, [Pooled, Pass]), (Untracked, [Pass, Awaits, Pass])])
def test_on_threads_no_tuple_is_late(kind, layers):
    seen, rows = [], [[[at, at, at % 7] for at in range(2000)]]
    specs = {"source": type("S", (kind,), {"rows": rows}).spec()}
    inputs = [specs["source"]]
    for number, layer in enumerate(layers):
        specs[f"layer{number}"] = layer.spec(inputs=inputs, par=3)
        inputs = [specs[f"layer{number}"]]
    specs["windows"] = windows_of(seen).spec(inputs={inputs[0]: Grouping.fields("key")}, par=2)
    report = run(type("T", (Topology,), specs))
    assert not report.stats.components()["windows"].user
    assert sorted(number for _, numbers in seen for number in numbers) == [*range(1990)]


def test_without_an_acker_the_senders_of_a_bolt_count():
    seen, rows = [], [[[at, at, at % 7] for at in range(2000)]]
    source = type("S", (Untracked,), {"rows": rows}).spec()
    layer = Pass.spec(inputs=[source], par=3)
    specs = {"source": source, "layer": layer, "windows": windows_of(seen).spec(inputs=[layer])}
    report = run(type("T", (Topology,), specs), {"topology.acker.tasks": 0})
    assert not report.stats.components()["windows"].user
    assert sorted(number for _, numbers in seen for number in numbers) == [*range(1990)]
