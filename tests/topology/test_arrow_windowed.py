"""WindowedArrowBolt: the same windows, acks, anchors and late rows as those of a WindowedBolt, in columns."""

import datetime
import pickle
import random
from collections import Counter

import pyarrow as pa
import pytest

from acker.local import read_state
from acker.testing import Scheduler, make_tuple, run_bolt
from acker.topology import (
    ArrowBolt,
    Bolt,
    Grouping,
    ReliableSpout,
    Spout,
    Stream,
    Topology,
    TopologyError,
    Window,
    WindowedArrowBolt,
    WindowedBolt,
)

UTC = datetime.UTC
WINDOWS = {
    "tumbling count": Window.tumbling(count=7),
    "sliding count": Window.sliding(count=10, every_count=4),
    "gaps by count": Window.sliding(count=3, every_count=5),
    "tumbling secs": Window.tumbling(secs=10),
    "sliding secs": Window.sliding(secs=10, every_secs=4),
    "gaps by secs": Window.sliding(secs=3, every_secs=5),
}


class Rows(WindowedBolt):
    """Emits what is in each window, row by row."""

    outputs = ["start", "end", "all", "new", "expired"]
    window = Window.tumbling(count=1)
    bad = frozenset()

    def process_window(self, window):
        texts = [str([tup.n for tup in part]) for part in (window.tuples, window.new, window.expired)]
        if window.tuples[-1].n in self.bad:
            raise ValueError("bad")
        self.emit([window.start, window.end, *texts])


class Columns(WindowedArrowBolt):
    """The same from tables."""

    outputs = {
        "start": pa.float64(),
        "end": pa.float64(),
        "all": pa.string(),
        "new": pa.string(),
        "expired": pa.string(),
    }
    window = Window.tumbling(count=1)
    bad = frozenset()

    def process_window(self, window):
        texts = [str(part["n"].to_pylist()) for part in (window.table, window.new, window.expired)]
        names = ["start", "end", "all", "new", "expired"]
        self.emit_batch(dict(zip(names, [[each] for each in (window.start, window.end, *texts)], strict=True)))
        if window.table["n"].to_pylist()[-1] in self.bad:
            raise ValueError("bad")


def both(tuples, *, ticks=0, **attributes):
    """Run both bolts on the same rows; return their runs."""
    runs = []
    for kind in (Rows, Columns):
        rows = [make_tuple(dict(row)) for row in tuples]
        runs.append(run_bolt(type(kind.__name__, (kind,), attributes), rows, ticks=ticks))
    return runs


def told(run):
    """Return what a run says of the rows that it was given, and of what it emitted."""
    anchors = [[tup.n for tup in each.anchors] for each in run.emitted]
    settled = [sorted(tup.n for tup in part) for part in (run.acked, run.failed)]
    reasons = sorted(reason.exception for reason in run.reasons)
    user = {name: count for name, count in run.report.stats.components()["tested"].user.items() if name != "batches"}
    return run.tuples(), anchors, settled, reasons, user


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("seed", range(4))
def test_windows_of_columns_are_those_of_tuples(name, seed):
    rng = random.Random(seed)
    window = WINDOWS[name]
    if window.kind == "count":
        rows = [{"n": n} for n in range(40)]
        bad = frozenset(rng.sample(range(40), 20))
        rows_run, columns_run = both(rows, window=window, bad=bad)
        assert rows_run.failed
    else:
        at = 0.0
        rows = []
        for n in range(60):
            at += rng.choice([0, 0.3, 2, 7])
            rows.append({"n": n, "at": max(0.0, at - rng.choice([0, 0, 1, 30]))})
        rows_run, columns_run = both(rows, window=window, timestamp_field="at", lag_secs=2)
    assert told(rows_run) == told(columns_run)
    assert len(rows_run.emitted) > 3


def test_windows_by_time_of_arrival_end_at_a_tick():
    runs = both([{"n": 1}, {"n": 2}], ticks=45, window=Window.sliding(secs=60, every_secs=20))
    assert [(run.tuples()[0], len(run.tuples())) for run in runs] == [((-40.0, 20.0, "[1, 2]", "[1, 2]", "[]"), 2)] * 2
    assert all(not each.anchors for run in runs for each in run.emitted)


TIMES = {
    "int": [1, 2, 10**12, None, 3],
    "with zone": [datetime.datetime(1970, 1, 1, 0, 0, n, 500_500, tzinfo=UTC) for n in range(5)],
    "naive": [datetime.datetime(1970, 1, 1, 0, 0, n, tzinfo=UTC).replace(tzinfo=None) for n in range(5)],
    "float": [0.0005, 0.0015, float("inf"), None, 1e300, 2.0],
}


@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES)
def test_a_time_is_read_as_of_a_tuple_or_fails_its_row_alone(times):
    rows = [{"n": n, "at": at} for n, at in enumerate(times)]
    by_row, by_batch = both(rows, window=Window.tumbling(secs=1), timestamp_field="at")
    assert told(by_row) == told(by_batch)


def test_late_rows_come_as_a_batch():
    late = []

    class Keeps(Columns):
        window = Window.tumbling(secs=10)
        timestamp_field = "at"

        def process_late(self, rows):
            late.extend(rows["n"].to_pylist())

    run = run_bolt(Keeps, [make_tuple({"n": n, "at": at}) for n, at in [(0, 1), (1, 40), (2, 3), (3, 4)]])
    assert late == [2, 3] and len(run.acked) == 4


def test_late_rows_may_be_emitted_and_failed_by_their_numbers():
    ended = {}

    class Source(Spout):
        outputs = {"n": pa.int64(), "at": pa.int64()}
        rows = {0: 1, 1: 40}

        def next_tuple(self):
            if self.rows:
                n, at = [*self.rows], [*self.rows.values()]
                Source.rows = {}
                self.emit_batch({"n": n, "at": at}, tup_ids=n)

        def ack(self, tup_id):
            ended[tup_id] = "acked"

        def fail(self, tup_id, reason):
            ended[tup_id] = reason.exception

    class Keeps(Columns):
        outputs = [Stream({"n": pa.int64()}, name="late")]
        window = Window.tumbling(secs=10)
        timestamp_field = "at"

        def process_window(self, window):
            pass

        def process_late(self, rows):
            n = rows["n"].to_pylist()
            self.fail_rows([each == 3 for each in n], "too late")
            kept = [row for row, each in enumerate(n) if each != 3]
            self.emit_batch({"n": [n[row] for row in kept]}, kept, stream="late")

    class Fails(Bolt):
        def process(self, tup):
            raise ValueError("behind")

    specs = {"source": Source.spec()}
    specs["keeps"] = Keeps.spec(inputs=[specs["source"]])
    specs["fails"] = Fails.spec(inputs=[specs["keeps"]["late"]])
    with Scheduler.of(type("Late", (Topology,), specs), seed=3, no_restart=True) as scheduler:
        scheduler.advance(5)
        Source.rows = {5: 41, 3: 4, 2: 3, 6: 42, 4: 2}
        scheduler.advance(5)
    acked = dict.fromkeys([0, 1, 5, 6], "acked")
    assert ended == acked | {3: "too late", 2: "ValueError: behind", 4: "ValueError: behind"}


def test_the_state_carries_the_open_windows_over_runs_and_is_empty_behind_them():
    told = []
    for kind in (Rows, Columns):
        bolt = type("Minutes", (kind,), {"window": Window.sliding(secs=60, every_secs=20)})
        first = run_bolt(bolt, [make_tuple({"n": n}) for n in (1, 2)], ticks=45)
        more = run_bolt(bolt, [make_tuple({"n": 3})], ticks=65, state=first.state)
        done = run_bolt(bolt, [], ticks=200, state=more.state)
        assert first.state and more.state and not done.state
        told.append([first.tuples(), more.tuples(), done.tuples()])
    assert told[0] == told[1] and all(told[0])


class Numbers(Spout):
    outputs = {"n": pa.int64()}
    begun = []
    rows = 1000

    def next_tuple(self):
        if not self.begun:
            self.begun.append(True)
            self.emit_batch({"n": range(self.rows)}, tup_ids=range(self.rows))
        self.finish()

    def ack(self, tup_id):
        Kept.acked.append(tup_id)


class Kept(Bolt):
    acked = []
    rows = []

    def process(self, tup):
        self.rows.append(tup.values)


def scheduler_of(bolt, spout=Numbers, **options):
    for each in (Numbers.begun, Kept.acked, Kept.rows):
        each.clear()
    specs = {"numbers": spout.spec()}
    specs["windows"] = bolt.spec(inputs=[specs["numbers"]])
    if bolt.outputs:
        specs["kept"] = Kept.spec(inputs={specs["windows"]: Grouping.shuffle})
    return Scheduler.of(type("Windows", (Topology,), specs), seed=1, **options)


def test_a_snapshot_has_the_rows_of_a_slice_and_not_its_whole_buffers():
    class Few(Columns):
        window = Window.sliding(count=1, every_count=999)

    with scheduler_of(Few, no_restart=True) as scheduler:
        scheduler.drain()
        state = scheduler.runtime.snapshot_state()
    assert len(pickle.dumps(read_state(state)["windows"])) < 4000
    assert len(Kept.acked) == 1000 and [row[2] for row in Kept.rows] == ["[998]"]


def test_a_restart_keeps_the_windows():
    class Crashes(Columns):
        window = Window.tumbling(secs=10)
        raised = []

        def process_window(self, window):
            if not self.raised:
                self.raised.append(True)
                raise ValueError("once")
            Kept.rows.append(window.table.num_rows)

    Crashes.outputs = None
    with scheduler_of(Crashes) as scheduler:
        scheduler.advance(60)
        assert scheduler.runtime.report().restarts == 1
    assert Kept.rows == [1000] and len(Kept.acked) == 1000


def test_several_streams_have_a_table_each():
    class Two(Columns):
        window = Window.tumbling(count=3)
        outputs = None
        seen = []

        def process_window(self, window):
            self.seen.append((window.of("a")["x"].to_pylist(), window.of("b")["y"].to_pylist(), window.of("c")))
            with pytest.raises(TopologyError, match=r"write one of of\('a', 'default'\), of\('b', 'default'\)"):
                window.table  # noqa: B018

    given = [
        make_tuple({"x": 1}, component="a"),
        make_tuple({"y": 2}, component="b"),
        make_tuple({"x": 3}, component="a"),
    ]
    run_bolt(Two, given)
    assert Two.seen == [([1, 3], [2], None)]


def test_the_window_by_count_anchors_to_the_row_that_completes_it_and_its_replay_completes_it_again():
    class Reliable(ReliableSpout):
        outputs = {"n": pa.int64()}

        def next_tuple(self):
            self.emit_batch({"n": range(9)}, tup_ids=range(9))
            self.finish()

    class FailsOnce(Columns):
        window = Window.tumbling(count=3)
        raised = []

        def process_window(self, window):
            super().process_window(window)
            if window.table["n"].to_pylist()[-1] == 5 and not self.raised:
                self.raised.append(True)
                raise ValueError("once")

    with scheduler_of(FailsOnce, Reliable, no_restart=True) as scheduler:
        report = scheduler.drain()
    assert report.stats.totals.acked == 9 and report.stats.totals.failed == 1
    assert sorted(row[2] for row in Kept.rows) == ["[0, 1, 2]", "[3, 4, 6]", "[7, 8, 5]"]


def test_wrong_calls_and_definitions_are_named():
    class Parents(Columns):
        window = Window.tumbling(count=1)

        def process_window(self, window):
            self.emit_batch({name: [None] for name in self.outputs}, parents=[0])

    class Fails(Columns):
        window = Window.tumbling(count=1)

        def process_window(self, window):
            self.fail_rows([0])

    class Keyed(Columns):
        def group_key(self, tup):
            return tup.n

    class Overrides(Columns):
        def process_rows(self, batch):
            pass

    for bolt, text in [(Parents, "parents: the rows of a window were acked"), (Fails, "raise instead")]:
        [reason] = run_bolt(bolt, [make_tuple({"n": 1})]).reasons
        assert text in reason.exception
    for bolt, text in [(Keyed, "group the table of the window"), (Overrides, "gets rows by process_window")]:
        with pytest.raises(TopologyError, match=text):
            run_bolt(bolt, [])


@pytest.mark.parametrize("seed", range(3))
def test_no_row_of_a_source_in_order_is_late_behind_several_tasks(seed):
    class InOrder(Spout):
        outputs = {"n": pa.int64(), "at": pa.int64()}

        def initialize(self, conf, context):
            self.next = 0

        def next_tuple(self):
            if self.next == 60:
                self.finish()
                return
            n = range(self.next, self.next + 10)
            self.next = n.stop
            self.emit_batch({"n": n, "at": n}, tup_ids=n)

    class Pass(ArrowBolt):
        outputs = {"n": pa.int64(), "at": pa.int64()}

        def process_rows(self, batch):
            self.emit_batch(batch)

    class ByTime(Columns):
        window = Window.sliding(secs=10, every_secs=5)
        timestamp_field = "at"

        def process_window(self, window):
            Kept.rows.extend((window.end, n) for n in window.table["n"].to_pylist())

        def process_late(self, rows):
            raise AssertionError

    Kept.rows.clear()
    specs = {"source": InOrder.spec(par=2)}
    specs["pass"] = Pass.spec(inputs=[specs["source"]], par=3)
    specs["windows"] = ByTime.spec(inputs=[specs["pass"]], par=2)
    with Scheduler.of(type("Timely", (Topology,), specs), seed=seed, no_restart=True) as scheduler:
        scheduler.drain()
    expected = Counter({(end, n): 2 for n in range(60) for end in (n // 5 * 5 + 5, n // 5 * 5 + 10) if end <= 55})
    assert Counter(row for row in Kept.rows if row[0] <= 55) == expected
