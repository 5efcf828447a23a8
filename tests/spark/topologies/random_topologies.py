"""Random topologies whose components decide all by what is in the tuple: so they do the same on any runtime.

Their shapes are those of the simulation (tests/torture/simulation/plan.py), without loops and restarts. Many of them
are parts of one topology, beside each other: a Spark job costs the same for one and for many. Some of the spouts and
bolts emit and process batches.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa

from acker.topology import ArrowBolt, BatchingBolt, Bolt, Grouping, ReliableSpout, Spout, StatefulBolt, Stream, Topology
from tests.spark.topologies.both import is_first, note
from tests.torture.simulation.plan import Input, plan_of

FIELDS = ["path", "key", "hops"]
KEYS = 5
HOPS_MAX = 2
STREAMS = [Stream(FIELDS), Stream(FIELDS, "side"), Stream(FIELDS, "direct", direct=True)]
TYPES = {"path": pa.string(), "key": pa.int64(), "hops": pa.int64()}
TYPED = [Stream(TYPES), Stream(TYPES, "side"), Stream(TYPES, "direct", direct=True)]
# Which part of the components emits and processes batches, of those that can.
COLUMNS = 0.4


def number_of(*what):
    """Return a number that looks random, the same for the same arguments."""
    return int.from_bytes(hashlib.blake2b(repr(what).encode(), digest_size=8).digest(), "big")


def chance(share, *what):
    """Return True that often, the same for the same arguments."""
    return number_of(*what) / 2**64 < share


def pick(choices, *what):
    """Return one of some values, the same for the same arguments."""
    return choices[number_of(*what) % len(choices)]


def root_of(path):
    """Return the tuple of the spout that a path begins with."""
    return path.partition(".")[0]


class Planned:
    """A component that follows its plan."""

    def initialize(self, conf, context):
        self.plan = conf["user.plan"]
        readers = conf["user.direct_readers"]
        self.direct_tasks = [task for name in readers for task in context["component->tasks"][name]]

    def stream_of(self, path):
        """Return the stream and the direct task of a tuple."""
        stream = pick(self.plan.streams, "stream", path)
        if stream != "direct":
            return stream, None
        return ("direct", pick(self.direct_tasks, "task", path)) if self.direct_tasks else ("default", None)


class PlannedSpout(Planned, Spout):
    """Emits so many tuples, some of them untracked. It replays nothing."""

    outputs = STREAMS

    def initialize(self, conf, context):
        Planned.initialize(self, conf, context)
        self.emitted = 0

    def next_tuple(self):
        for _ in range(self.plan.burst):
            if self.emitted >= self.plan.tuples:
                self.finish()
                return
            self.emitted += 1
            path = f"{self.component_name}/{self.task_index}/{self.emitted}"
            tracked = self.plan.kind != "untracked" and not chance(0.1, "untracked", path)
            self.send(path, path if tracked else None)

    def send(self, path, tup_id):
        stream, task = self.stream_of(path)
        values = [path, number_of("key", path) % KEYS, number_of("hops", path) % (HOPS_MAX + 1)]
        self.emit(values, tup_id=tup_id, stream=stream, direct_task=task)

    def ack(self, tup_id):
        super().ack(tup_id)
        note(self, "acked", tup_id)

    def fail(self, tup_id, reason):
        note(self, "failed", tup_id, reason.kind.name, reason.attempt)
        note(self, "reason", tup_id, reason.kind.name, reason.component, reason.exception)
        self.give_up(tup_id, reason)

    def give_up(self, tup_id, reason):
        pass


class PlannedAsyncSpout(PlannedSpout):
    """A PlannedSpout that awaits."""

    async def next_tuple(self):
        await asyncio.sleep(0)
        super().next_tuple()


class PlannedRetryingSpout(PlannedSpout):
    """A PlannedSpout that emits what failed again, inside of `fail`."""

    def initialize(self, conf, context):
        super().initialize(conf, context)
        self.retries = {}

    def give_up(self, tup_id, reason):
        self.retries[tup_id] = self.retries.get(tup_id, 0) + 1
        if self.retries[tup_id] <= 2:
            self.send(tup_id, tup_id)


class PlannedReliableSpout(PlannedSpout, ReliableSpout):
    """A PlannedSpout that replays."""

    backoff_secs = 0.05
    attempts_max = 3

    def give_up(self, tup_id, reason):
        ReliableSpout.fail(self, tup_id, reason)

    def dead_letter(self, tup_id, values, reason):
        note(self, "dead", tup_id, tuple(values), reason.kind.name, reason.attempt)


class Columns(Planned):
    """A component that collects rows, and emits those of each stream as a batch."""

    def emit_all(self, emitted, **column):
        """Emit (stream, direct task, values, parents or tuple id) in batches."""
        for stream, task in dict.fromkeys(each[:2] for each in emitted):
            rows = [each for each in emitted if each[:2] == (stream, task)]
            columns = dict(zip(FIELDS, zip(*(row[2] for row in rows), strict=True), strict=True))
            more = {name: [row[3] for row in rows] for name in column}
            self.emit_batch(columns, stream=stream, direct_task=task, **more)


class ColumnsSpout(Columns, PlannedSpout):
    """A PlannedSpout that emits batches."""

    outputs = TYPED

    def next_tuple(self):
        self.rows = []
        super().next_tuple()
        self.emit_all(self.rows, tup_ids=None)

    def send(self, path, tup_id):
        values = [path, number_of("key", path) % KEYS, number_of("hops", path) % (HOPS_MAX + 1)]
        self.rows.append((*self.stream_of(path), values, tup_id))


class ColumnsReliableSpout(ColumnsSpout, PlannedReliableSpout):
    """A ColumnsSpout that replays."""


class FramedSpout(PlannedSpout):
    """A PlannedSpout that gives its tuples as a DataFrame on Spark, and one by one elsewhere."""

    tup_id_column = "path"

    def stream_of(self, path):
        return "default", None

    def rows(self):
        """Return the tuples."""
        paths = [f"{self.component_name}/{self.task_index}/{number + 1}" for number in range(self.plan.tuples)]
        return [(path, number_of("key", path) % KEYS, number_of("hops", path) % (HOPS_MAX + 1)) for path in paths]

    def frame(self, spark, conf):
        return spark.createDataFrame(self.rows(), "path string, key long, hops long")

    def next_tuple(self):
        for row in self.rows():
            self.emit(row, tup_id=row[0])
        self.finish()


class FramedReliableSpout(FramedSpout, PlannedReliableSpout):
    """A FramedSpout that replays."""


class PlannedBolt(Planned, Bolt):
    """The base of the bolts."""

    outputs = STREAMS

    def pass_on(self, tup, anchors=None):
        """Emit none, one or two tuples."""
        count = pick((0, 1, 1, 2), "count", self.component_name, tup.path) if tup.hops else 0
        for number in range(count):
            path = f"{tup.path}.{self.component_name}-{number}"
            stream, task = self.stream_of(path)
            alone = chance(self.plan.unanchored, "alone", path)
            if alone:
                note(self, "alone", path)
            values = [path, number_of("key", path) % KEYS, tup.hops - 1]
            self.emit(values, stream=stream, direct_task=task, anchors=[] if alone else anchors)

    def is_due(self, share, what, tup):
        """Return whether a fault is due: some only once, so that the next attempt is acked."""
        if not chance(share, what, self.component_name, tup.path):
            return False
        if chance(0.5, "once", what, self.component_name, tup.path):
            return is_first(self, what, tup.path.replace("/", "_"))
        return True

    def maybe_raise(self, tup):
        if self.is_due(self.plan.raises, "raise", tup):
            text = f"{self.component_name} refuses {tup.path}"
            note(self, "injected", root_of(tup.path), f"ValueError: {text}")
            raise ValueError(text)


class AutoBolt(PlannedBolt):
    """Leaves anchors and acks to the runtime."""

    def process(self, tup):
        note(self, "got", tup.path, tup.stream)
        self.pass_on(tup)
        self.maybe_raise(tup)


class AsyncBolt(PlannedBolt):
    """An AutoBolt that awaits."""

    async def process(self, tup):
        note(self, "got", tup.path, tup.stream)
        await asyncio.sleep(0)
        self.pass_on(tup)
        self.maybe_raise(tup)


class ManualBolt(PlannedBolt):
    """Anchors, acks and fails by itself; some tuples it never settles."""

    auto_anchor = auto_ack = auto_fail = False

    def process(self, tup):
        note(self, "got", tup.path, tup.stream)
        self.pass_on(tup, [tup, tup] if chance(0.2, "twice", tup.path) else [tup])
        if self.is_due(self.plan.holds, "hold", tup):
            return
        if self.is_due(self.plan.fails, "fail", tup):
            text = f"{self.component_name} gives {tup.path} back"
            note(self, "injected", root_of(tup.path), text)
            self.fail(tup, text)
        else:
            self.ack(tup)


class HoldingBolt(PlannedBolt):
    """Holds tuples until the next tick, and resets their timeouts."""

    auto_ack = False

    def initialize(self, conf, context):
        super().initialize(conf, context)
        self.held = []

    def process(self, tup):
        note(self, "got", tup.path, tup.stream)
        self.reset_timeout(tup)
        self.held.append(tup)

    def process_tick(self, tup):
        held, self.held = self.held, []
        for each in held:
            self.pass_on(each, [each])
            self.ack(each)


class TreeBatchesBolt(PlannedBolt, BatchingBolt):
    """Processes the tuples of one tree that have come, and anchors to all of them."""

    def group_key(self, tup):
        return root_of(tup.path) if tup.id else tup.path

    def process_batch(self, key, tups):
        for tup in tups:
            note(self, "got", tup.path, tup.stream)
            self.pass_on(tup)
        # Once all are emitted: nothing can be anchored to a batch of which a tuple has failed, and how many tuples of a
        # tree meet in one depends on the ticks.
        for tup in tups:
            if self.is_due(self.plan.raises, "raise", tup):
                text = f"{self.component_name} gives {tup.path} back"
                note(self, "injected", root_of(tup.path), text)
                self.fail(tup, text)


class CountingBolt(PlannedBolt, StatefulBolt):
    """Counts each tuple in its state, and may raise after that."""

    def process(self, tup):
        note(self, "got", tup.path, tup.stream)
        self.state[tup.path] = self.state.get(tup.path, 0) + 1
        self.pass_on(tup)
        self.maybe_raise(tup)


class ColumnsBolt(Columns, PlannedBolt, ArrowBolt):
    """Processes batches; a row that raises does so each time, since the search for it calls again."""

    outputs = TYPED

    def process_rows(self, batch):
        rows = [SimpleNamespace(**row) for row in batch.to_pylist()]
        bad = [row for row in rows if chance(self.plan.raises / 2, "raise", self.component_name, row.path)]
        if not bad or len(rows) == 1:
            for row in rows:
                note(self, "got", row.path, None)
        if bad:
            text = f"{self.component_name} refuses {bad[0].path}"
            note(self, "injected", root_of(bad[0].path), f"ValueError: {text}")
            raise ValueError(text)
        self.pass_all(rows)

    def pass_all(self, rows, passes=lambda row: True):
        """Emit what tuples would, for some rows; fail others."""
        self.emitted = []
        for self.row, row in enumerate(rows):
            if self.is_due(self.plan.raises / 2, "fail", row) or not passes(row):
                text = f"{self.component_name} gives {row.path} back"
                note(self, "injected", root_of(row.path), text)
                self.fail_rows([self.row], text)
            else:
                self.pass_on(row)
        self.emit_all(self.emitted, parents=None)

    def emit(self, values, stream, direct_task, anchors):
        self.emitted.append((stream, direct_task, values, self.row if anchors is None else []))


class ColumnsCountingBolt(ColumnsBolt, StatefulBolt):
    """Counts each row in its state, and may fail it after that."""

    def process_rows(self, batch):
        rows = [SimpleNamespace(**row) for row in batch.to_pylist()]
        for row in rows:
            note(self, "got", row.path, None)
            self.state[row.path] = self.state.get(row.path, 0) + 1
        self.pass_all(rows, lambda row: not chance(self.plan.raises / 2, "raise", self.component_name, row.path))


SPOUTS = {
    "untracked": PlannedSpout,
    "tracked": PlannedSpout,
    "async": PlannedAsyncSpout,
    "retrying": PlannedRetryingSpout,
    "reliable": PlannedReliableSpout,
}
BOLTS = {
    "auto": AutoBolt,
    "async": AsyncBolt,
    "manual": ManualBolt,
    "aggregate": HoldingBolt,
    "keeper": CountingBolt,
    "batching": TreeBatchesBolt,
}
IN_COLUMNS = {
    "untracked": ColumnsSpout,
    "tracked": ColumnsSpout,
    "reliable": ColumnsReliableSpout,
    "auto": ColumnsBolt,
    "manual": ColumnsBolt,
    "keeper": ColumnsCountingBolt,
}


def component_of(kind, classes, share, seed, name):
    """Return the class of a component: that part of them which can emits and processes batches."""
    if kind in IN_COLUMNS and chance(share, "columns", seed, name):
        return IN_COLUMNS[kind]
    return classes[kind]


def spout_of(plan, seed, columns):
    """Return the class of a spout: some give DataFrames."""
    framed = {"tracked": FramedSpout, "reliable": FramedReliableSpout}
    if plan.par == 1 and plan.kind in framed and chance(0.4, "frame", seed, plan.name):
        return framed[plan.kind]
    return component_of(plan.kind, SPOUTS, columns, seed, plan.name)


def chosen_tasks(values, tasks):
    """Return none, one or two tasks, for custom groupings."""
    return [] if values[1] == 0 else sorted({tasks[values[1] % len(tasks)], tasks[-1]})


def grouping_of(kind, number):
    """Return a grouping."""
    if kind == "fields":
        # The simulation knows no partial_key.
        return Grouping.partial_key("key") if number % 4 == 0 else Grouping.fields("key")
    return Grouping.custom(chosen_tasks) if kind == "custom" else getattr(Grouping, kind)


def plan_without_loops(seed):
    """Return a plan of the simulation, cut to what ends by itself."""
    plan = plan_of(seed)
    known = [spout.name for spout in plan.spouts]
    bolts = []
    for bolt in plan.bolts:
        inputs = tuple(one for one in bolt.inputs if one.source in known)
        bolts.append(replace(bolt, inputs=inputs or (Input(known[0], "default", "shuffle"),)))
        known.append(bolt.name)
    spouts = tuple(replace(spout, tuples=min(spout.tuples, 6), par=min(spout.par, 2)) for spout in plan.spouts)
    return replace(plan, spouts=spouts, bolts=tuple(bolts))


def topology_of(seeds, *, stateful=True, columns=COLUMNS):
    """Return one topology with the components of many plans, of which a part processes batches."""
    body = {}
    for seed in seeds:
        plan = plan_without_loops(seed)
        names = {one.name: f"t{seed}_{one.name}" for one in (*plan.spouts, *plan.bolts)}
        readers = {
            source: [
                names[bolt.name]
                for bolt in plan.bolts
                if any(one.source == source and one.stream == "direct" for one in bolt.inputs)
            ]
            for source in names
        }
        for part in (*plan.spouts, *plan.bolts):
            config = {"user.plan": part, "user.direct_readers": readers[part.name]}
            options = {"par": part.par, "config": config}
            if part in plan.spouts:
                body[names[part.name]] = spout_of(part, seed, columns).spec(**options, executors=1)
                continue
            kind = part.kind if stateful or part.kind != "keeper" else "auto"
            if kind in {"aggregate", "batching"}:
                config["topology.tick.tuple.freq.secs"] = 0.5
            options["inputs"] = {
                f"{names[one.source]}:{one.stream}": grouping_of(one.grouping, seed + number)
                for number, one in enumerate(part.inputs)
            }
            body[names[part.name]] = component_of(kind, BOLTS, columns, seed, part.name).spec(**options)
    return type("RandomTopologies", (Topology,), body)
