"""Columnar topologies on Spark: rows and batches mix, and each row ends as it does in one process."""

from __future__ import annotations

import datetime as dt
import pickle
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from acker.errors import TopologyError
from acker.spark.topologies.frames import emit_frame
from acker.spark.topologies.micro_batch_plan import MicroBatchPlan
from acker.spark.topologies.stage_plan import plan_stages
from acker.spark.topologies.stage_rows import COUNTERS, StageRow
from acker.spark.topologies.stage_worker import StageWorker
from acker.spark.topologies.tuple_blocks import decode_tuples
from acker.topology import ArrowBolt, Bolt, Grouping, ReliableSpout, Spout, StatefulBolt, Stream, Topology
from acker.topology.tuple_batch import TupleBatch
from tests.spark.topologies.both import Numbers, is_first, note, run_both
from tests.torture.kills import LOCAL
from tests.torture.topology_kills import Program
from tests.torture.topology_kills.words import BAD, FLAKY, KILL_COUNTING, KILL_WORKER, SOUR

ROWS = 120
DICTIONARY = pa.dictionary(pa.int32(), pa.string())
GROUPINGS = {
    "fields": Grouping.fields("word"),
    "both_fields": Grouping.fields("word", "n"),
    "partial": Grouping.partial_key("word"),
    "all": Grouping.all,
    "global": Grouping.global_,
    "custom": Grouping.custom(lambda values, tasks: [tasks[0]] * (values[1] % 3)),
    "shuffle": Grouping.shuffle,
}
# Where the same rows go to the same tasks on both runtimes.
SAME_TASKS = {"fields", "both_fields", "all", "global", "custom"}

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"]


def word_of(n):
    return None if n % 11 == 0 else f"w{n % 7}"


class Words(Spout):
    """The same rows as a DataFrame on Spark, and as batches in one process."""

    outputs = {"word": pa.string(), "n": pa.int64()}
    tup_id_column = "n"

    def frame(self, spark, conf):
        rows = [(word_of(n), n) for n in range(ROWS)]
        return spark.createDataFrame(rows, "word string, n int").repartition(3)

    def initialize(self, conf, context):
        self.next = 0

    def next_tuple(self):
        if self.next == ROWS:
            self.finish()
            return
        n = range(self.next, self.next + 10)
        self.next = n.stop
        self.emit_batch({"word": [word_of(each) for each in n], "n": list(n)}, tup_ids=list(n))

    def ack_batch(self, tup_ids):
        for tup_id in tup_ids.to_pylist():
            note(self, "ack", tup_id)

    def fail_batch(self, tup_ids, reasons):
        for tup_id, reason in zip(tup_ids.to_pylist(), reasons, strict=True):
            note(self, "fail", tup_id, reason.kind.name, reason.component, reason.exception)


class Fan(ArrowBolt):
    """Passes rows on, to three streams; some fail, one raises in the middle, and some join no tree."""

    outputs = [
        Stream({"word": pa.string(), "n": pa.int64()}),
        Stream({"word": pa.string(), "n": pa.int64()}, name="side"),
        Stream({"n": pa.int64()}, name="direct", direct=True),
    ]

    def process_rows(self, batch):
        n = batch["n"].to_numpy()
        if 57 in n.tolist():
            raise ValueError("no 57")
        bad = n % 10 == 3
        self.fail_rows(bad, [f"no {each}" for each in n[bad]])
        good = np.flatnonzero(~bad)
        self.emit_batch(batch.take(pa.array(good)), parents=good)
        loose = np.flatnonzero(~bad & (n % 10 == 4))
        self.emit_batch(batch.take(pa.array(loose)), parents=[[]] * loose.size, stream="side")
        *_, last = self.context["component->tasks"]["direct"]
        self.emit_batch({"n": n[good]}, parents=good, stream="direct", direct_task=last)


class Keep(Bolt):
    def process(self, tup):
        note(self, *tup.values)


class KeepRows(ArrowBolt):
    def process_rows(self, batch):
        for row in batch.to_pylist():
            note(self, *row.values())


class PassOn(Bolt):
    outputs = ["word", "n"]

    def process(self, tup):
        self.emit(tup.values)


class Sum(ArrowBolt):
    """Emits a row for each batch, anchored to all of its rows."""

    outputs = {"n": pa.int64()}

    def process_rows(self, batch):
        self.emit_batch({"n": [pc.sum(batch["n"]).as_py()]}, parents=[list(range(batch.num_rows))])


class Batches(Numbers, ReliableSpout):
    """Emits batches on the driver, and again what failed."""

    outputs = {"n": pa.int64(), "key": pa.int64()}
    backoff_secs = 0.02
    attempts_max = 3

    def next_tuple(self):
        if not self.todo:
            self.finish()
            return
        n, self.todo = self.todo[:7], self.todo[7:]
        self.emit_batch({"n": n, "key": [each % 5 for each in n]}, tup_ids=n)

    def ack(self, tup_id):
        note(self, "ack", tup_id)
        ReliableSpout.ack(self, tup_id)

    def fail(self, tup_id, reason):
        Numbers.fail(self, tup_id, reason)
        ReliableSpout.fail(self, tup_id, reason)

    def dead_letter(self, tup_id, values, reason):
        note(self, "dead", tup_id, tuple(values), reason.component, reason.exception, reason.attempt)


class Count(ArrowBolt, StatefulBolt):
    """Counts in its state, and fails rows after that: one of them always, one once."""

    def process_rows(self, batch):
        for row in batch.to_pylist():
            self.state[row["n"]] = self.state.get(row["n"], 0) + 1
        bad = [row for row, n in enumerate(batch["n"].to_pylist()) if n == 11 or (n == 12 and is_first(self, n))]
        self.fail_rows(bad, "not now")


class Few(Numbers):
    numbers = range(3)


class Wrong(ArrowBolt):
    """The base of bolts that make a mistake."""

    outputs = {"n": pa.int64(), "key": pa.int64()}

    def process_rows(self, batch):
        if 1 in batch["n"].to_pylist():
            self.mistake(batch)


class WrongColumn(Wrong):
    def mistake(self, batch):
        self.emit_batch({"n": batch["n"], "kex": batch["key"]})


class WrongType(Wrong):
    def mistake(self, batch):
        self.emit_batch({"n": batch["n"], "key": batch["key"].cast(pa.float64())})


class WrongLength(Wrong):
    def mistake(self, batch):
        self.emit_batch({"n": [1] * 9, "key": [1] * 9})


class WrongParent(Wrong):
    def mistake(self, batch):
        self.emit_batch({"n": [1], "key": [1]}, parents=[99])


class WrongValue(Bolt):
    outputs = {"n": pa.int64()}

    def process(self, tup):
        self.emit(["one" if tup.n == 1 else tup.n])


MISTAKES = (WrongColumn, WrongType, WrongLength, WrongParent, WrongValue)


def wide_topology():
    """Return one topology with all of it: a Spark job costs the same for one part and for many."""
    body = {"words": Words.spec(), "fan": Fan.spec(inputs=["words"], par=2)}
    for name, grouping in GROUPINGS.items():
        body[f"{name}_rows"] = Keep.spec(inputs={"fan": grouping}, par=3)
        body[f"{name}_columns"] = KeepRows.spec(inputs={"fan": grouping}, par=3)
    body["side"] = KeepRows.spec(inputs=["fan:side"])
    body["direct"] = KeepRows.spec(inputs={"fan:direct": Grouping.direct}, par=3)
    body["pass_on"] = PassOn.spec(inputs=["fan"], par=2)
    body["after_rows"] = KeepRows.spec(inputs={"pass_on": Grouping.fields("word")}, par=3)
    body["sum"] = Sum.spec(inputs={"pass_on": Grouping.fields("n")}, par=2)
    body["sums"] = Keep.spec(inputs=["sum"])
    body["batches"] = Batches.spec()
    body["count"] = Count.spec(inputs={"batches": Grouping.fields("key")}, par=2)
    for mistake in MISTAKES:
        name = mistake.__name__.lower()
        body[f"few_{name}"] = Few.spec()
        body[name] = mistake.spec(inputs=[f"few_{name}"])
        body[f"of_{name}"] = KeepRows.spec(inputs=[name])
    return type("Wide", (Topology,), body)


@pytest.mark.spark
@pytest.mark.usefixtures("quiet")
def test_rows_and_batches_end_as_in_one_process(spark, tmp_path):
    both = run_both(wide_topology(), spark, tmp_path)
    # The state lets the micro-batch run twice, so what was seen counts once; the figures count it.
    for name in [f"{name}_{what}" for name in GROUPINGS for what in ("rows", "columns")] + ["after_rows", "direct"]:
        tasks = name.rpartition("_")[0] in {*SAME_TASKS, "after"} or name == "direct"
        assert set(both.spark.of(name, tasks=tasks)) == set(both.local.of(name, tasks=tasks)) != set(), name
    good = [n for n in range(ROWS) if n % 10 != 3 and n != 57]
    assert set(both.spark.of("side", tasks=False)) == {(word_of(n), n) for n in good if n % 10 == 4}
    spouts = ["words", "batches", *(f"few_{mistake.__name__.lower()}" for mistake in MISTAKES)]
    for name in spouts:
        assert both.spark.of(name, tasks=False) == both.local.of(name, tasks=False), name
    assert sum(both.spark.of("words").values()) == ROWS
    assert both.spark.of("words", tasks=False)["fail", 57, "FAILED", "fan", "ValueError: no 57"] == 1
    # How many rows meet in a batch differs, and so how many sums there are; and the second time, rows that failed are
    # left out of what has state.
    different = both.differences("user")
    assert {name for name, _ in different} <= {"sum", "sums", "count"}, different
    dead = [key for key in both.spark.of("batches", tasks=False) if key[0] == "dead"]
    assert dead == [("dead", 11, (11, 1), "count", "not now", 3)]


@pytest.mark.minutes(2)
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kills_of_workers_and_of_the_driver_leave_exact_counts(tmp_path):
    special = {3: BAD, 5: f"{KILL_WORKER}-1", 11: SOUR, 20: f"{FLAKY}-1", 44: f"{KILL_COUNTING}-1"}
    lines = [" ".join(WORDS[(number + place) % len(WORDS)] for place in range(3)) for number in range(60)]
    for number, word in special.items():
        lines[number] += f" {word}"
    program = Program(tmp_path / "run", lines, LOCAL, "WordCountInColumns")
    program.dies("evaluated", 2, seconds=600)
    program.dies("planned", 1, seconds=600)
    account = program.ends(seconds=600)
    assert (account.acked, account.dead) == (58, 2)


class Small(Topology):
    words = Words.spec()
    fan = Fan.spec(inputs=[words], par=2)
    fields_rows = Keep.spec(inputs={fan: Grouping.fields("word")}, par=2)
    fields_columns = KeepRows.spec(inputs={fan: Grouping.fields("word")}, par=2)
    direct = KeepRows.spec(inputs={"fan:direct": Grouping.direct}, par=2)


@pytest.fixture
def plan(tmp_path):
    graph = Small.graph()
    return MicroBatchPlan(
        graph, {"user.notes": str(tmp_path)}, plan_stages(graph), partitions=2, shards=2, seed=b"seed"
    )


def rows_of(batches):
    return [StageRow(*row.values()) for batch in batches for row in batch.to_pylist()]


def first_stage(plan, *, tracked=True):
    """Return what stage 0 makes of the words."""
    worker = StageWorker(plan, 0, 0, "words")
    words = [word_of(n) for n in range(40)]
    batch = pa.RecordBatch.from_pydict({"word": words, "n": pa.array(range(40), pa.int32())})
    return rows_of(emit_frame(worker, plan, "words", "n" if tracked else None, iter([batch])))


def chunks_of(plan, rows, excluded=frozenset()):
    blocks = [row.block for row in rows if row.stage == 1]
    return [chunk for block in blocks for chunk in decode_tuples(block, plan.graph.source, excluded)]


def test_no_row_is_between_stages_of_columns(plan, monkeypatch):
    def refuse(batch):
        raise AssertionError("columns became tuples")

    with monkeypatch.context() as patched:
        patched.setattr(TupleBatch, "tuples", refuse)
        chunks = chunks_of(plan, first_stage(plan))
    assert chunks
    assert all(isinstance(rows, TupleBatch) for _, rows in chunks)


def test_a_stage_that_runs_again_repeats_its_blocks(plan):
    before = [row for row in first_stage(plan) if row.stage >= -1]
    assert [row for row in first_stage(plan) if row.stage >= -1] == before
    assert first_stage(replace(plan, seed=b"other"))[0].block != before[0].block


@pytest.mark.parametrize("tracked", [True, False])
def test_rows_without_trees_are_processed(plan, tracked):
    plan = replace(plan, tracked=tracked)
    rows = first_stage(plan, tracked=not tracked)  # no acker, or no ids
    assert not [row for row in rows if row.stage == -1]
    assert all(batch.root_ids is None for _, batch in chunks_of(plan, rows))
    (counters,) = [pickle.loads(row.block) for row in rows if row.stage == COUNTERS]
    (fan,) = [each for each in counters if each["executed"]]
    assert (fan["executed"], fan["failed"], fan["user"]) == (40, 4, {"batches": 1})


def test_trees_that_failed_are_left_out_of_columns(plan):
    rows = first_stage(plan)
    roots = {
        root for _, batch in chunks_of(plan, rows) if batch.root_ids is not None for root in batch.root_ids.tolist()
    }
    excluded = frozenset(sorted(roots)[:5])
    left = [batch for _, batch in chunks_of(plan, rows, excluded) if batch.root_ids is not None]
    assert {root for batch in left for root in batch.root_ids.tolist()} == roots - excluded


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pa.array(["a", "b"]), r"field 'n' is string, and `outputs` says int64; cast it in frame\(\)"),
        (pa.array([1.5, 2.0]), r"field 'n' is double, and `outputs` says int64: .*1.5"),
    ],
    ids=["text", "fraction"],
)
def test_a_frame_whose_types_do_not_fit_is_named(plan, column, text):
    worker = StageWorker(plan, 0, 0, "words")
    batch = pa.RecordBatch.from_pydict({"word": ["x", "y"], "n": column})
    with pytest.raises(TopologyError, match=rf"component 'words': frame\(\): {text}"):
        list(emit_frame(worker, plan, "words", None, iter([batch])))


class Odd(Spout):
    """The types that Spark has, and one that it has not."""

    outputs = [
        "map",
        "struct",
        "list",
        "decimal",
        "day",
        "time",
        "void",
        "bytes",
        Stream({"word": DICTIONARY}, "other"),
    ]

    def frame(self, spark, conf):
        raise NotImplementedError


class Words8(Words):
    outputs = {"word": DICTIONARY, "n": pa.int64()}


class Oddly(Topology):
    odd = Odd.spec()
    words = Words8.spec()
    rows = Keep.spec(inputs=[odd, words])
    columns = KeepRows.spec(inputs={odd: Grouping.global_, words: Grouping.global_})


def test_each_type_of_spark_comes_to_rows_and_columns_as_it_is(tmp_path):
    graph = Oddly.graph()
    plan = MicroBatchPlan(
        graph, {"user.notes": str(tmp_path)}, plan_stages(graph), partitions=1, shards=1, seed=b"seed"
    )
    columns = {
        "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int32())),
        "struct": [{"x": 1, "y": [None]}, None],
        "list": [[1, None], []],
        "decimal": [Decimal("1.50"), None],
        "day": [dt.date(2026, 1, 2), None],
        "time": pa.array([dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC), None], pa.timestamp("us", "UTC")),
        "void": [None, None],
        "bytes": [b"x", None],
    }
    batch = pa.RecordBatch.from_pydict(columns)
    left = rows_of(emit_frame(StageWorker(plan, 0, 0, "odd"), plan, "odd", None, iter([batch, batch.slice(0, 0)])))
    words = pa.RecordBatch.from_pydict({"word": ["a", "a"], "n": pa.array([1, 2], pa.int32())})
    left += rows_of(emit_frame(StageWorker(plan, 0, 0, "words"), plan, "words", "n", iter([words])))
    received = {rows.source.component: rows for _, rows in chunks_of(plan, left)}
    assert received["odd"].columns.to_pylist() == batch.to_pylist()
    assert [tup.values for tup in received["odd"].tuples()] == [tuple(row.values()) for row in batch.to_pylist()]
    assert received["words"].columns.schema.field("word").type == DICTIONARY
    assert received["words"].columns.to_pylist() == [{"word": "a", "n": 1}, {"word": "a", "n": 2}]
