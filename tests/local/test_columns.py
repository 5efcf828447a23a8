"""Columnar topologies: rows and batches mix with every grouping, and each row ends as it does as a tuple."""

import datetime as dt
import logging
from collections import Counter
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from acker.errors import ArgumentTypeError, ArgumentValueError, RuntimeStateError, TopologyError
from acker.local import Hook, LocalRuntime, run
from acker.local.executors.base import STEP_TUPLES
from acker.observe.reasons import ReasonKind
from acker.testing import Scheduler, complete_topology
from acker.topology import (
    ArrowBolt,
    BatchingBolt,
    Bolt,
    Grouping,
    ReliableSpout,
    Spout,
    StatefulBolt,
    Stream,
    Topology,
    Window,
    WindowedArrowBolt,
    stable_hash,
)
from acker.topology.arrow_columns import array_of, read_parents
from tests.marks import slow_after

ROWS = 60
GROUPINGS = {
    "shuffle": Grouping.shuffle,
    "fields": Grouping.fields("word"),
    "two fields": Grouping.fields("word", "n"),
    "partial_key": Grouping.partial_key("word"),
    "all": Grouping.all,
    "global": Grouping.global_,
    "none": Grouping.none,
    "local_or_shuffle": Grouping.local_or_shuffle,
    "custom": Grouping.custom(lambda values, tasks: [tasks[0]] * (values[1] % 3)),
}


class Seen:
    """What the tasks of the last topology have seen."""

    rows: list = []
    acked: list = []
    failed: list = []
    batches: list = []
    calls: list = []
    begun: list = []


def clear():
    for each in (Seen.rows, Seen.acked, Seen.failed, Seen.batches, Seen.calls, Seen.begun):
        each.clear()


@pytest.fixture(autouse=True)
def _empty():
    clear()


class Words(Spout):
    """Emits `ROWS` rows, as a batch, as tuples, or in turn."""

    outputs = {"word": pa.string(), "n": pa.int64()}
    how = "batches"
    tracked = True
    rows = ROWS

    def initialize(self, conf, context):
        self.next = 0

    def next_tuple(self):
        if self.next >= self.rows:
            self.finish()
            return
        n = range(self.next, min(self.rows, self.next + 10))
        self.next = n.stop
        words = [None if each % 11 == 0 else f"w{each % 7}" for each in n]
        if self.how == "batches" or (self.how == "mixed" and n.start % 20 == 0):
            self.emit_batch({"word": words, "n": list(n)}, tup_ids=list(n) if self.tracked else None)
        else:
            for word, each in zip(words, n, strict=True):
                self.emit([word, each], tup_id=each if self.tracked else None)

    def ack(self, tup_id):
        Seen.acked.append(tup_id)

    def fail(self, tup_id, reason):
        Seen.failed.append((tup_id, reason))


class Tuples(Words):
    how = "tuples"


class Mixed(Words):
    how = "mixed"


class Untracked(Words):
    tracked = False


class Keep(Bolt):
    """A bolt that notes what comes, row by row."""

    def process(self, tup):
        Seen.rows.append((self.task_id, *tup.values))


class KeepRows(ArrowBolt):
    """The same in batches."""

    def process_rows(self, batch):
        Seen.batches.append(batch)
        Seen.rows.extend((self.task_id, *row.values()) for row in batch.to_pylist())


class Twice(ArrowBolt):
    """Emits each row twice."""

    outputs = {"word": pa.string(), "n": pa.int64()}

    def process_rows(self, batch):
        parents = np.repeat(np.arange(batch.num_rows), 2)
        self.emit_batch(batch.take(pa.array(parents)), parents=parents)


class TwiceByRow(Bolt):
    outputs = ["word", "n"]

    def process(self, tup):
        self.emit(tup.values)
        self.emit(list(tup.values))


def topology(spout, *bolts, grouping=Grouping.shuffle, par=3, **config):
    """Return a topology of a spout and a chain of bolts, and of tasks for each."""
    specs = {"words": spout.spec()}
    before = specs["words"]
    for number, bolt in enumerate(bolts):
        before = specs[f"bolt{number}"] = bolt.spec(inputs={before: grouping}, par=par)
    return type("Columnar", (Topology,), {**specs, "config": config})


def drain(*arguments, seed=1, hooks=(), conf=None, **options):
    with Scheduler.of(topology(*arguments, **options), conf, seed=seed, hooks=hooks, no_restart=True) as scheduler:
        return scheduler.drain()


# --- mixing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GROUPINGS)
@pytest.mark.parametrize("spout", [Words, Mixed, Tuples])
@pytest.mark.parametrize("bolts", [(Twice, KeepRows), (TwiceByRow, KeepRows), (Twice, Keep)], ids=["bb", "rb", "br"])
def test_rows_and_batches_bring_what_tuples_bring(spout, bolts, name):
    report = drain(spout, *bolts, grouping=GROUPINGS[name], seed=len(name))
    assert report.stats.totals.acked == ROWS and sorted(Seen.acked) == list(range(ROWS)) and not Seen.failed
    got, tasks = Counter(row[1:] for row in Seen.rows), {row[0] for row in Seen.rows}
    by_task = Counter(Seen.rows)
    Seen.rows.clear()
    drain(Tuples, TwiceByRow, Keep, grouping=GROUPINGS[name], seed=3)
    assert got == Counter(row[1:] for row in Seen.rows)
    if name in ("fields", "two fields", "all", "global", "custom"):
        assert by_task == Counter(Seen.rows)
    elif name != "partial_key":
        assert len(tasks) == 3


@pytest.mark.parametrize("ackers", [0, 1, 3])
@pytest.mark.parametrize("spout", [Words, Untracked])
def test_rows_are_processed_with_any_number_of_ackers(spout, ackers):
    report = drain(spout, Twice, KeepRows, conf={"topology.acker.tasks": ackers})
    assert len(Seen.rows) == 2 * ROWS
    assert report.stats.totals.acked == len(Seen.acked) == (ROWS if spout is Words else 0)


@pytest.mark.parametrize("seed", range(5))
def test_a_runtime_with_threads_acks_every_row(seed):
    report = run(topology(Mixed, Twice, TwiceByRow, KeepRows, par=2), seed=seed)
    assert (report.stats.totals.acked, len(Seen.rows)) == (ROWS, 4 * ROWS)


def test_a_batch_is_processed_whole_and_not_copied():
    class Long(Words):
        rows = 10

    drain(Long, KeepRows, par=1)
    assert {batch.num_rows for batch in Seen.batches} <= set(range(1, 11))
    run(topology(Long, KeepRows, par=1))
    assert Seen.batches[-1].num_rows == 10


def test_a_batch_has_at_most_the_rows_of_the_option():
    class Long(Words):
        def next_tuple(self):
            self.emit_batch({"word": ["a"] * 1000, "n": range(1000)}, tup_ids=range(1000))
            self.finish()

    run(topology(Long, KeepRows, par=1), {"topology.arrow.batch.rows": 300})
    assert [batch.num_rows for batch in Seen.batches] == [300, 300, 300, 100]
    assert len(Seen.acked) == 1000


def test_tuples_that_wait_are_one_batch():
    run(topology(Tuples, KeepRows, par=1))
    assert sum(batch.num_rows for batch in Seen.batches) == ROWS
    assert Seen.batches[0].schema == pa.schema({"word": pa.string(), "n": pa.int64()})


# --- anchors ---------------------------------------------------------------------------------------------------------


class Pairs(ArrowBolt):
    """Each output derives from two rows, and some from a row twice."""

    outputs = {"n": pa.int64()}

    def process_rows(self, batch):
        rows = batch.num_rows
        parents = [[row, (row + 1) % rows] for row in range(rows)]
        self.emit_batch({"n": range(rows)}, parents=pa.array(parents))


class Hold(BatchingBolt):
    """Acks all at its tick."""

    def process_batch(self, key, tups):
        Seen.rows.extend(tup.values for tup in tups)


def test_an_output_of_two_parents_of_one_tree_does_not_cancel_itself():
    """Twice makes two rows of each tree, which Pairs joins again: with one id an output the tree would end early."""

    class Doubled(Words):
        rows = 10

    shape = topology(Doubled, Twice, Pairs, Hold, par=1, **{"topology.tick.tuple.freq.secs": 5})
    with Scheduler.of(shape, seed=4, no_restart=True) as scheduler:
        scheduler.advance(4)
        assert not Seen.acked
        scheduler.drain()
    assert sorted(Seen.acked) == list(range(10)) and len(Seen.rows) == 20


def test_a_row_that_has_led_to_others_needs_no_message():
    """One message of the spout for each row, and one of the last bolt for the rows of each tree."""
    shape = topology(Words, Twice, KeepRows, par=1)
    with Scheduler.of(shape, seed=2, no_restart=True) as scheduler:
        scheduler.drain()
        figures = scheduler.runtime.stats()
    (acker,) = [task for task in figures.tasks if task.kind == "acker"]
    assert len(Seen.acked) == ROWS and 2 * ROWS <= acker.executed < 2.5 * ROWS


@pytest.mark.parametrize("grouping", [Grouping.all, Grouping.fields("n"), Grouping.shuffle], ids=str)
def test_several_anchors_reach_all_tasks(grouping):
    specs = {"words": Words.spec()}
    specs["pairs"] = Pairs.spec(inputs=[specs["words"]])
    specs["again"] = Pairs.spec(inputs={specs["pairs"]: grouping}, par=2)
    specs["keep"] = KeepRows.spec(inputs={specs["again"]: grouping}, par=3)
    for seed in range(5):
        Seen.acked.clear()
        with Scheduler.of(type("Anchored", (Topology,), specs), seed=seed, no_restart=True) as scheduler:
            scheduler.drain()
        assert sorted(Seen.acked) == list(range(ROWS))


def test_a_row_without_a_parent_joins_no_tree():
    class Loose(ArrowBolt):
        outputs = {"n": pa.int64()}

        def process_rows(self, batch):
            self.emit_batch({"n": [1, 2]}, parents=pa.nulls(2, pa.int64()))
            self.emit_batch({"n": [3]}, parents=[[]])

    class Free(ArrowBolt):
        outputs = {"n": pa.int64()}
        auto_anchor = False

        def process_rows(self, batch):
            self.emit_batch({"n": [4]})

    class Forget(Bolt):
        auto_ack = False

        def process(self, tup):
            assert not tup.id
            Seen.rows.append(tup.values)

    for bolt in (Loose, Free):
        specs = {"words": Words.spec()}
        specs["loose"] = bolt.spec(inputs=[specs["words"]])
        specs["forget"] = Forget.spec(inputs=[specs["loose"]])
        with Scheduler.of(type("Loosely", (Topology,), specs), seed=1, no_restart=True) as scheduler:
            scheduler.drain()
    assert len(Seen.acked) == 2 * ROWS and {value for (value,) in Seen.rows} == {1, 2, 3, 4}


def test_an_empty_batch_goes_nowhere():
    class Empty(ArrowBolt):
        outputs = {"n": pa.int64()}

        def process_rows(self, batch):
            self.emit_batch({"n": []}, parents=[])

    drain(Words, Empty, KeepRows)
    assert len(Seen.acked) == ROWS and not Seen.rows


# --- streams, loops --------------------------------------------------------------------------------------------------


def test_named_and_direct_streams():
    class Route(ArrowBolt):
        outputs = [Stream({"n": pa.int64()}, name="even"), Stream({"n": pa.int64()}, name="odd", direct=True)]

        def initialize(self, conf, context):
            self.tasks = context["component->tasks"]["odd"]

        def process_rows(self, batch):
            for rest, stream, task in [(0, "even", None), (1, "odd", self.tasks[1])]:
                rows = np.flatnonzero(batch["n"].to_numpy() % 2 == rest)
                self.emit_batch({"n": batch["n"].take(pa.array(rows))}, rows, stream, task)

    specs = {"words": Words.spec()}
    specs["route"] = Route.spec(inputs=[specs["words"]])
    specs["even"] = Keep.spec(inputs=[specs["route"]["even"]])
    specs["odd"] = KeepRows.spec(inputs=[specs["route"]["odd"]], par=2)
    with Scheduler.of(type("Routed", (Topology,), specs), seed=2, no_restart=True) as scheduler:
        scheduler.drain()
    assert Counter(row[0] for row in Seen.rows) == {3: ROWS // 2, 5: ROWS // 2} and len(Seen.acked) == ROWS


@pytest.mark.parametrize("seed", range(3))
def test_a_loop_of_batches_ends(seed):
    class Halve(ArrowBolt):
        outputs = {"word": pa.string(), "n": pa.int64()}

        def process_rows(self, batch):
            Seen.rows.extend(batch["n"].to_pylist())
            rows = np.flatnonzero(batch["n"].to_numpy() > 0)
            again = batch.take(pa.array(rows))
            self.emit_batch({"word": again["word"], "n": pc.divide(again["n"], 2)}, parents=rows)

    specs = {"words": Words.spec()}
    specs["halve"] = Halve.spec(inputs={specs["words"]: Grouping.shuffle, "halve": Grouping.fields("n")}, par=2)
    with Scheduler.of(type("Loop", (Topology,), specs), seed=seed, no_restart=True) as scheduler:
        scheduler.drain()
    assert len(Seen.acked) == ROWS and len(Seen.rows) == sum(1 + n.bit_length() for n in range(ROWS))


# --- failures --------------------------------------------------------------------------------------------------------


class FailOdd(ArrowBolt):
    outputs = {"n": pa.int64()}

    def process_rows(self, batch):
        odd = pc.equal(pc.bit_wise_and(batch["n"], 1), 1)
        self.fail_rows(odd, "odd")
        rows = np.flatnonzero(~odd.to_numpy(zero_copy_only=False))
        self.emit_batch({"n": batch["n"].take(pa.array(rows))}, parents=rows)


def test_rows_fail_with_their_reason_and_others_do_not():
    report = drain(Words, FailOdd)
    assert sorted(Seen.acked) == list(range(0, ROWS, 2))
    assert sorted(tup_id for tup_id, _ in Seen.failed) == list(range(1, ROWS, 2))
    reasons = {(reason.kind, reason.component, reason.exception, reason.attempt) for _, reason in Seen.failed}
    assert reasons == {(ReasonKind.FAILED, "bolt0", "odd", 1)} and report.stats.totals.failed == ROWS // 2
    assert all("test_columns.py" in reason.line for _, reason in Seen.failed)


@pytest.mark.parametrize("rows", [[2, 5], pa.array([2, 5]), np.array([2, 5]), [n in (2, 5) for n in range(10)]])
def test_rows_to_fail_are_numbers_or_a_mask(rows):
    class Ten(Words):
        rows = 10

    class Fail(ArrowBolt):
        def process_rows(self, batch):
            if batch.num_rows == 10:
                self.fail_rows(rows, ["two", ValueError("five")])

    run(topology(Ten, Fail, par=1))
    assert {(tup_id, reason.exception) for tup_id, reason in Seen.failed} == {(2, "two"), (5, "ValueError: five")}


class RaiseFor(ArrowBolt):
    """Raises for some rows, after it has emitted."""

    outputs = {"n": pa.int64()}
    bad = {17, 18, 41}

    def process_rows(self, batch):
        Seen.calls.append(batch.num_rows)
        self.emit_batch({"n": batch["n"]})
        for n in batch["n"].to_pylist():
            if n in self.bad:
                raise ValueError(f"no {n}")


def test_the_bad_rows_of_a_batch_are_found_and_emit_nothing(caplog):
    specs = {"words": Words.spec()}
    specs["raise"] = RaiseFor.spec("raise", inputs=[specs["words"]])
    specs["keep"] = Keep.spec(inputs=[specs["raise"]])
    with caplog.at_level(logging.ERROR):
        run(type("Bad", (Topology,), specs))
    assert sorted(row[1] for row in Seen.rows) == sorted(Seen.acked) == sorted(set(range(ROWS)) - RaiseFor.bad)
    failed = sorted((tup_id, reason.exception, reason.component) for tup_id, reason in Seen.failed)
    assert failed == [(n, f"ValueError: no {n}", "raise") for n in sorted(RaiseFor.bad)]
    assert all("test_columns.py" in reason.line for _, reason in Seen.failed)
    assert "raise: task 2 failed 1 of 10 rows, the first of them {'word': 'w3', 'n': 17} of 'words'" in caplog.text


def test_a_bolt_that_always_raises_is_not_called_for_each_row():
    class Long(Words):
        def next_tuple(self):
            self.emit_batch({"word": ["a"] * 5000, "n": range(5000)}, tup_ids=range(5000))
            self.finish()

    class Always(ArrowBolt):
        def process_rows(self, batch):
            Seen.calls.append(batch.num_rows)
            raise ValueError("always")

    run(topology(Long, Always, par=1))
    assert len(Seen.failed) == 5000 and len(Seen.calls) < 100


def test_a_bolt_with_state_is_not_called_again(caplog):
    class Count(ArrowBolt, StatefulBolt):
        def process_rows(self, batch):
            for n in batch["n"].to_pylist():
                if n == 17:
                    raise ValueError("seventeen")
                self.state[n] = self.state.get(n, 0) + 1

    runtime = LocalRuntime(topology(Words, Count, par=1))
    with runtime:
        runtime.run_until("drained")
    assert len(Seen.failed) == 10 and len(Seen.acked) == ROWS - 10


def test_auto_fail_false_restarts_the_topology():
    class Strict(RaiseFor):
        auto_fail = False

    with pytest.raises(ValueError, match="no 17"):
        drain(Words, Strict)


def test_a_value_that_does_not_fit_fails_its_tuple_alone(caplog):
    class Odd(Tuples):
        outputs = ["word", "n"]

        def next_tuple(self):
            for tup_id, n in enumerate([1, 2, "three", None, 5, 2**70]):
                self.emit(["a", n], tup_id=tup_id)
            self.finish()

    with caplog.at_level(logging.ERROR):
        drain(Odd, KeepRows, par=1)
    assert sorted(Seen.acked) == [0, 1, 3, 4]
    texts = {tup_id: reason.exception for tup_id, reason in Seen.failed}
    assert texts[2].startswith("field of a tuple of 'words', stream 'default': 'n' is int64, got 'three'")
    assert texts[5].startswith(
        "field of a tuple of 'words', stream 'default': 'n' is int64, got 1180591620717411303424"
    )


JUNE = dt.datetime(2026, 6, 1)  # noqa: DTZ001  A column without a zone.
# The values of a field without a declared type, and the places of those that fail.
ODD_VALUES = {
    "a key that is new": ([{"a": 1}, {"a": 2, "b": 3}, {"a": 4}, {}], {1}),
    "a key within a list": ([[{"a": 1}], [{"b": 1}]], {1}),
    "a time where dates were": ([JUNE.date(), JUNE, JUNE.replace(hour=3)], {2}),
    "a fraction in a list": ([[1], [1.5], [2]], {1}),
    "nothing, then something": ([[], [1, 2], {"a": 1}, []], {2}),
    "none, then something": ([{"a": None}, {"a": "x"}, {"a": 1}], {2}),
    "no keys, then some": ([{}, {"a": 5}], set()),
    "no type, then some": ([Fraction(1, 3), 1, 2, "three"], {0, 3}),
}


@pytest.mark.parametrize(("values", "bad"), ODD_VALUES.values(), ids=ODD_VALUES)
@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
def test_no_part_of_a_value_is_dropped_without_a_word(values, bad, together):
    class Odd(Tuples):
        outputs = ["word", "n"]

        def next_tuple(self):
            for tup_id, n in enumerate(values):
                self.emit(["a", n], tup_id=tup_id)
            self.finish()

    drain(Odd, KeepRows, par=1, **{} if together else {"topology.arrow.batch.rows": 1})
    failed = {tup_id for tup_id, _ in Seen.failed}
    # Arrow finds the type of all values together where none is known.
    assert failed == bad or (together and failed < bad), Seen.failed
    kept = [row[2] for row in Seen.rows]
    for place, value in enumerate(values):
        if place not in failed:
            assert any(_holds(each, value) for each in kept), (value, kept)


def _holds(found, value):
    """Return whether a value is whole in what a bolt got: structs may have further fields without a value."""
    if isinstance(value, dict):
        return isinstance(found, dict) and all(_holds(found.get(key), each) for key, each in value.items())
    if isinstance(value, list):
        return isinstance(found, list) and len(found) == len(value) and all(map(_holds, found, value))
    return found == value or found == getattr(value, "date", lambda: None)()


LOSSES = [
    (pa.struct({"a": pa.int64()}), [{"a": 1, "b": 2}], "which has no field 'b'"),
    (pa.struct({"a": pa.int64()}), [[("a", 1), ("b", 2)]], "which has no field 'b'"),
    (pa.struct({"a": pa.int64()}), [(1.5,)], "x.a: expected int64, got 1.5"),
    (pa.map_(pa.string(), pa.int64()), [{"a": 1.5}], "got 1.5"),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1.5)]], "got 1.5"),
    (pa.list_(pa.int64()), [np.array([1.5])], r"got np.float64\(1.5\)"),
    (pa.list_view(pa.int64()), [[1.5]], "got 1.5"),
    (pa.dictionary(pa.int32(), pa.int64()), [1.5], "got 1.5"),
    (pa.date32(), [JUNE.replace(second=1)], "expected date32"),
    (pa.timestamp("s"), [JUNE.replace(microsecond=1)], "expected timestamp"),
    (pa.timestamp("ms"), [JUNE.replace(microsecond=1)], "expected timestamp"),
    (pa.time32("s"), [dt.time(1, 2, 3, 4)], "expected time32"),
    (pa.duration("s"), [dt.timedelta(seconds=1, microseconds=5)], "expected duration"),
]


@pytest.mark.parametrize(("kind", "values", "text"), LOSSES)
def test_a_part_that_a_type_has_no_place_for_is_refused(kind, values, text):
    with pytest.raises(ArgumentValueError, match=text):
        array_of([None, *values], kind, "x")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.struct({"a": pa.int64(), "b": pa.int64()}), {"a": 1}),
        (pa.struct({"a": pa.int64()}), [("a", 1)]),
        (pa.struct({"a": pa.int64()}), (1,)),
        (pa.map_(pa.string(), pa.int64()), {"a": 1}),
        (pa.date32(), JUNE),
        (pa.timestamp("ms"), JUNE.replace(microsecond=1000)),
        (pa.duration("us"), dt.timedelta(microseconds=1)),
        (pa.list_(pa.int64()), np.array([1, 2])),
    ],
)
def test_a_value_that_a_type_holds_whole_is_taken(kind, value):
    assert array_of([None, value], kind, "x").null_count == 1


class Panic(BaseException):
    """What native libraries raise, as polars does."""


def panic_at_17(rows):
    if 17 in rows["n"].to_pylist():
        raise Panic("17")


class PanicsInRows(ArrowBolt):
    def process_rows(self, batch):
        panic_at_17(batch)


class PanicsInWindows(WindowedArrowBolt):
    window = Window.tumbling(count=1)

    def process_window(self, window):
        panic_at_17(window.table)


@pytest.mark.parametrize("bolt", [PanicsInRows, PanicsInWindows])
def test_what_is_no_exception_fails_its_row_alone_as_in_a_tuple(bolt):
    drain(Words, bolt, par=1)
    assert [(tup_id, reason.exception) for tup_id, reason in Seen.failed] == [(17, "Panic: 17")]
    assert len(Seen.acked) == ROWS - 1


def test_rows_have_the_values_of_tuples_for_a_custom_grouping():
    by_name = Grouping.custom(lambda values, tasks: [tasks[values.n % len(tasks)]])
    for spout in (Words, Tuples):
        clear()
        drain(spout, Keep, grouping=by_name)
        assert {(n % 3, task) for task, _, n in Seen.rows} == {(0, 2), (1, 3), (2, 4)}


# --- spouts ----------------------------------------------------------------------------------------------------------


class Reliable(ReliableSpout):
    outputs = {"n": pa.int64()}
    backoff_secs = 1
    attempts_max = 3

    def next_tuple(self):
        if not Seen.begun:  # also after a restart
            Seen.begun.append(True)
            self.emit_batch({"n": range(ROWS)}, tup_ids=[f"id{n}" for n in range(ROWS)])
        self.finish()

    def dead_letter(self, tup_id, values, reason):
        Seen.failed.append((tup_id, values, reason.attempt))


class FailTwice(ArrowBolt):
    """Fails the rows 3 and 4 the first time, row 7 always."""

    def process_rows(self, batch):
        Seen.batches.append(batch["n"].to_pylist())
        seen = Counter(n for each in Seen.batches for n in each)
        bad = [n == 7 or (n in (3, 4) and seen[n] == 1) for n in Seen.batches[-1]]
        self.fail_rows(bad, "not yet")


@pytest.mark.parametrize("traced", [False, True], ids=["columns", "rows"])
def test_a_reliable_spout_replays_failed_rows_as_batches(traced):
    conf = {"topology.trace.sample": 1} if traced else None  # with traces each row is a tuple
    shape = topology(Reliable, FailTwice, par=1)
    with Scheduler.of(shape, conf, seed=5, no_restart=True) as scheduler:
        report = scheduler.drain()
    seen = Counter(n for each in Seen.batches for n in each)
    assert {n: count for n, count in seen.items() if count > 1} == {3: 2, 4: 2, 7: 3}
    assert Seen.failed == [("id7", (7,), 3)]
    assert (report.stats.totals.acked, report.stats.totals.dead_letters, report.stats.totals.failed) == (ROWS - 1, 1, 5)


def test_a_row_whose_dead_letter_nobody_has_kept_comes_again():
    class DiskFull(Reliable):
        def dead_letter(self, tup_id, values, reason):
            super().dead_letter(tup_id, values, reason)
            if len(Seen.failed) == 1:
                raise OSError("disk full")

    with Scheduler.of(topology(DiskFull, FailTwice, par=1)) as scheduler:
        report = scheduler.drain()
    assert Seen.failed == [("id7", (7,), 3)] * 2
    totals = report.stats.totals
    assert (report.restarts, totals.acked, totals.dead_letters, totals.pending) == (1, ROWS - 1, 1, 0)


def test_replayed_rows_come_as_one_batch(monkeypatch):
    # Of whole batches, as a thread takes them. There the flusher may send some failures before the others.
    monkeypatch.setattr("acker.testing.scheduler._LIMITS", (STEP_TUPLES,))
    drain(Reliable, FailTwice, par=1)
    assert Seen.batches == [list(range(ROWS)), [3, 4, 7], [7]]


def test_a_reliable_spout_hears_of_batches():
    class Hears(Reliable):
        def ack_batch(self, tup_ids):
            assert isinstance(tup_ids, pa.Array)
            Seen.acked.extend(tup_ids.to_pylist())

        def fail_batch(self, tup_ids, reasons):
            Seen.calls.extend(zip(tup_ids.to_pylist(), [reason.exception for reason in reasons], strict=True))

    class HearsRows(Reliable):
        def ack(self, tup_id):
            Seen.acked.append(tup_id)
            super().ack(tup_id)

        def fail(self, tup_id, reason):
            Seen.calls.append((tup_id, reason.exception))
            super().fail(tup_id, reason)

    for spout in (Hears, HearsRows):
        clear()
        drain(spout, FailTwice, par=1)
        assert sorted(Seen.acked) == sorted(f"id{n}" for n in range(ROWS) if n != 7)
        assert sorted(Seen.calls) == [(f"id{n}", "not yet") for n in (3, 4, 7, 7, 7)]


@pytest.mark.parametrize("base", [Spout, ReliableSpout])
def test_a_spout_that_hears_of_batches_alone_hears_of_rows_that_travel_as_tuples(base):
    class Hears(Words, base):
        outputs = Words.outputs
        attempts_max = 1
        ack, fail = base.ack, base.fail

        def ack_batch(self, tup_ids):
            Seen.acked.extend(tup_ids.to_pylist())

        def fail_batch(self, tup_ids, reasons):
            Seen.failed.extend(zip(tup_ids.to_pylist(), [reason.exception for reason in reasons], strict=True))

    class Refuses(Bolt):
        def process(self, tup):
            if tup.n == 7:
                raise ValueError("no 7")

    specs = {"words": Hears.spec()}
    specs["refuses"] = Refuses.spec(inputs=[specs["words"]])
    with Scheduler.of(type("Heard", (Topology,), specs), seed=1, no_restart=True, hooks=[Hook()]) as scheduler:
        scheduler.drain()
    assert sorted(Seen.acked) == [n for n in range(ROWS) if n != 7]
    assert Seen.failed == [(7, "ValueError: no 7")]


def test_a_restart_replays_the_open_rows_and_forgets_none():
    class Crash(ArrowBolt):
        auto_fail = False

        def process_rows(self, batch):
            Seen.calls.append(batch.num_rows)
            if len(Seen.calls) == 1:
                raise ValueError("once")
            Seen.rows.extend(batch["n"].to_pylist())

    with Scheduler.of(topology(Reliable, Crash, par=1), seed=6) as scheduler:
        report = scheduler.drain()
    assert report.restarts == 1 and sorted(set(Seen.rows)) == list(range(ROWS)) and report.stats.totals.acked == ROWS


@pytest.mark.parametrize("rows", [True, False], ids=["rows", "tuples"])
def test_what_an_abandoned_spout_had_open_is_replayed(rows):
    """The spout hangs in user code for longer than a stop takes, while a bolt lets the topology restart."""

    class Hangs(Reliable):
        def next_tuple(self):
            if rows:
                super().next_tuple()
                return
            if not Seen.begun:
                Seen.begun.append(True)
                for n in range(ROWS):
                    self.emit([n], tup_id=f"id{n}")
            self.finish()

    class Holds(Bolt):
        auto_ack = False

        def process(self, tup):
            Seen.rows.append(tup.n)
            if len(Seen.rows) > ROWS:
                self.ack(tup)

        def process_tick(self, tup):
            if Seen.calls:
                Seen.calls.clear()
                raise ValueError("once")

    specs = {"words": Hangs.spec("words")}
    specs["holds"] = Holds.spec(inputs=[specs["words"]], config={"topology.tick.tuple.freq.secs": 1})
    conf = {"topology.drain.secs": 3, "topology.message.timeout.secs": 30}
    with Scheduler.of(type("Hung", (Topology,), specs), conf, seed=2) as scheduler:
        scheduler.settle()
        scheduler.freeze("words*")
        Seen.calls.append("crash")
        scheduler.advance(10)
        scheduler.thaw()
        report = scheduler.drain()
    totals = report.stats.totals
    assert (report.restarts, totals.acked, totals.pending) == (1, ROWS, 0)
    assert Counter(Seen.rows) == dict.fromkeys(range(ROWS), 2)


def test_rows_whose_ack_raised_are_replayed_after_the_restart():
    class Raises(Reliable):
        def ack_batch(self, tup_ids):
            Seen.calls.append(len(tup_ids))
            if len(Seen.calls) == 1:
                raise ValueError("once")
            Seen.acked.extend(tup_ids.to_pylist())

    with Scheduler.of(topology(Raises, KeepRows, par=1), seed=6) as scheduler:
        report = scheduler.drain()
    assert report.restarts == 1 and report.stats.totals.ack_errors > 0
    assert set(Seen.acked) == {f"id{n}" for n in range(ROWS)}


def test_rows_behind_one_whose_ack_raised_are_acked():
    class Raises(Words):
        def ack(self, tup_id):
            if tup_id == 4 and not Seen.begun:
                Seen.begun.append(True)
                raise ValueError("four")
            super().ack(tup_id)

    with Scheduler.of(topology(Raises, KeepRows, par=1), seed=6) as scheduler:
        report = scheduler.drain()
    assert report.stats.totals.ack_errors == 1
    # Before the restart and after it, when this spout begins again.
    assert set(range(5, 10)) <= set(Seen.acked[: Seen.acked.index(0, 1)])


def test_pending_counts_rows():
    class Slow(Words):
        def next_tuple(self):
            Seen.calls.append(self._collector.pending_count)
            super().next_tuple()

    class Never(ArrowBolt):
        def process_rows(self, batch):
            Seen.batches.append(batch)

    run(topology(Slow, Never, par=1), {"topology.max.spout.pending": 15})
    assert max(Seen.calls) < 15 and len(Seen.acked) == ROWS


def test_null_ids_are_untracked():
    class Some(Words):
        def next_tuple(self):
            self.emit_batch({"word": ["a", "b", "c"], "n": [1, 2, 3]}, tup_ids=[1, None, 3])
            self.finish()

    drain(Some, KeepRows)
    assert sorted(Seen.acked) == [1, 3] and len(Seen.rows) == 3


def test_rows_time_out_and_are_replayed():
    class Late(Reliable):
        attempts_max = None

    class Drop(Bolt):
        auto_ack = False

        def process(self, tup):
            Seen.rows.append(tup["n"])
            if Seen.rows.count(tup["n"]) > 1 or tup["n"] % 2:
                self.ack(tup)

    conf = {"topology.message.timeout.secs": 5}
    with Scheduler.of(topology(Late, Drop, par=1), conf, seed=7, no_restart=True) as scheduler:
        report = scheduler.drain()
    assert Counter(Seen.rows) == {n: 1 if n % 2 else 2 for n in range(ROWS)}
    assert (report.stats.totals.acked, report.stats.totals.timed_out) == (ROWS, ROWS // 2)


# --- errors ----------------------------------------------------------------------------------------------------------


def error_of(emit, spout=Words, outputs=None):
    """Return the error of the first row of a bolt that calls `emit(self, batch)`."""

    class Wrong(ArrowBolt):
        def process_rows(self, batch):
            emit(self, batch)

    class Five(spout):
        rows = 5

    Wrong.outputs = {"n": pa.int64()} if outputs is None else outputs
    Wrong.finds_bad_rows = False
    run(topology(Five, Wrong, par=1))
    assert len(Seen.failed) == 5
    return Seen.failed[0][1].exception


@pytest.mark.parametrize(
    ("emit", "text"),
    [
        (lambda self, batch: self.emit_batch({"n": [1]}), "1 rows for a batch of 5 rows; write parents="),
        (
            lambda self, batch: self.emit_batch({"n": [1]}, [5]),
            "parents: output row 0 names input row 5 of a batch of 5",
        ),
        (
            lambda self, batch: self.emit_batch({"n": [1, 2]}, [0]),
            "parents: expected one entry for each of 2 output rows",
        ),
        (lambda self, batch: self.emit_batch({"n": [1]}, ["a"]), "parents: expected integers or lists of them, got"),
        (lambda self, batch: self.emit_batch({"m": [1]}, [0]), "expected the columns n, got m"),
        (lambda self, batch: self.emit_batch({"n": ["x"]}, [0]), "field 'n', which is int64: "),
        (
            lambda self, batch: self.emit_batch({"n": [1.5]}, [0]),
            "field 'n', which is int64: n: expected int64, got 1.5",
        ),
        (
            lambda self, batch: self.emit_batch({"n": pa.array([1.5])}, [0]),
            "field 'n' is double, and `outputs` says int64; cast it",
        ),
        (
            lambda self, batch: self.emit_batch([1], [0]),
            "columns: expected a RecordBatch, a Table or a mapping, got list",
        ),
    ],
)
def test_what_does_not_fit_the_stream_is_named(emit, text):
    assert error_of(emit).startswith(f"TopologyError: bolt0: emits to stream 'default': {text}")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda self, batch: self.emit_batch({"n": [1]}, stream="x"), "emits to stream 'x', which it does not declare"),
        (lambda self, batch: self.fail_rows([5], "x"), "fail_rows: there is no row 5, the batch has 5 rows"),
        (lambda self, batch: self.fail_rows([True], "x"), "fail_rows: a mask of 1 for 5 rows"),
        (lambda self, batch: self.fail_rows([0.5], "x"), "fail_rows: expected rows or a mask, got float64"),
        (lambda self, batch: self.fail_rows([0], ["x", "y"]), "fail_rows: 2 reasons for 1 rows"),
        (
            lambda self, batch: (self.emit_batch({"n": [1]}, [3]), self.fail_rows([3], "x")),
            "fail_rows: row 3 is a parent of what was emitted",
        ),
        (
            lambda self, batch: (self.fail_rows([3], "x"), self.emit_batch({"n": [1]}, [3])),
            "emits to stream 'default': parents: input row 3 has failed and is a parent of output row 0",
        ),
        (lambda self, batch: self.emit([1]), "emit() in process_rows: which row it derives from is unknown"),
        (lambda self, batch: self.emit_batch({"n": [1]}, [0], None, 9), "emits to stream 'default' with direct_task=9"),
    ],
)
def test_wrong_calls_are_named(call, text):
    assert error_of(call).startswith(f"TopologyError: bolt0: {text}")


def test_a_column_of_another_type_than_outputs_say_is_told_so():
    words = pa.array(["x"]).dictionary_encode()
    text = error_of(lambda self, batch: self.emit_batch({"w": words}, [0]), outputs={"w": pa.string()})
    kind = "dictionary<values=string, indices=int32, ordered=0>"
    assert f"field 'w' is {kind}, and `outputs` says string; cast it, or change `outputs`" in text


@pytest.mark.parametrize("spout", [True, False], ids=["spout", "bolt"])
def test_a_batch_of_more_bytes_than_the_limit_is_refused(spout):
    class Long(Words):
        def next_tuple(self):
            self.emit_batch({"word": ["x" * 1000] * 10, "n": range(10)}, tup_ids=range(10))
            self.finish()

    class Longer(ArrowBolt):
        outputs = {"word": pa.string()}

        def process_rows(self, batch):
            self.emit_batch({"word": ["x" * 20_000] * batch.num_rows})

    conf = {"topology.arrow.batch.bytes": 5000 if spout else 15_000}
    text = "of 10 rows and 10,120 bytes, more than the 5,000 of 'topology.arrow.batch.bytes'; emit fewer rows at once"
    if spout:
        with pytest.raises(TopologyError, match=f"words: emits to stream 'default': a batch {text}"):
            drain(Long, KeepRows, conf=conf)
    else:
        drain(Long, Longer, KeepRows, conf=conf, par=1)
        assert len(Seen.failed) == 10
        assert all("bolt0: emits to stream 'default': a batch of" in reason.exception for _, reason in Seen.failed)
    clear()
    drain(Long, KeepRows, conf={"topology.arrow.batch.bytes": None})
    assert len(Seen.acked) == 10


def test_tuples_of_more_bytes_than_the_limit_are_several_batches():
    class Long(Words):
        def next_tuple(self):
            for n in range(16):
                self.emit(["x" * (1000 if n else 9000), n], tup_id=n)
            self.finish()

    run(topology(Long, KeepRows, par=1), {"topology.arrow.batch.bytes": 5000})
    assert sorted(Seen.acked) == list(range(16)) and [row[2] for row in Seen.rows] == list(range(16))
    assert all(batch.num_rows == 1 or batch.nbytes <= 5000 for batch in Seen.batches)


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None, "c"], pa.string_view()),
        pa.array([b"a", None, b"c"], pa.binary_view()),
        pa.array([["a"], None, ["c"]], pa.list_(pa.string_view())),
    ],
    ids=lambda column: str(column.type),
)
@pytest.mark.parametrize("grouping", [Grouping.fields("x"), Grouping.custom(lambda row, tasks: [tasks[0]])], ids=str)
def test_views_of_text_travel_by_each_grouping_and_are_replayed(column, grouping):
    class Views(ReliableSpout):
        outputs = {"x": column.type}
        backoff_secs = 1

        def next_tuple(self):
            ids = pa.array(["0", "1", "2"], pa.string_view())
            self.emit_batch({"x": column}, tup_ids=ids)
            self.finish()

        def ack_batch(self, tup_ids):
            Seen.acked += tup_ids.to_pylist()

    class Once(ArrowBolt):
        def process_rows(self, batch):
            again = [value in Seen.rows for value in batch["x"].to_pylist()]
            Seen.rows.extend(batch["x"].to_pylist())
            self.fail_rows([not each for each in again], "not yet")

    drain(Views, Once, grouping=grouping)
    assert sorted(Seen.acked) == ["0", "1", "2"] and len(Seen.rows) == 6


@pytest.mark.parametrize("grouping", [Grouping.shuffle, Grouping.fields("n")], ids=str)
def test_a_spout_that_always_emits_a_wrong_batch_ends_the_topology(grouping):
    """Also after good batches, which are replayed in each life."""

    class Wrong(Reliable):
        outputs = {"n": pa.int64()}

        def next_tuple(self):
            self.emit_batch({"n": [1, 2]}, tup_ids=[1, 2])
            self.emit_batch({"n": ["x"]}, tup_ids=[3])

    with Scheduler.of(topology(Wrong, KeepRows, grouping=grouping), seed=1) as scheduler:
        with pytest.raises(TopologyError, match="words: emits to stream 'default': field 'n', which is int64"):
            scheduler.drain()
        assert scheduler.runtime.report().restarts == 5


def test_a_value_that_no_tuple_holds_is_named_where_rows_travel_as_tuples():
    class Far(Spout):
        outputs = {"at": pa.timestamp("us")}

        def next_tuple(self):
            self.emit_batch({"at": pa.array([0, 2**60], pa.timestamp("us"))})

    text = r"words: emits to stream 'default': row 1: field 'at' is timestamp\[us\]: "
    with pytest.raises(TopologyError, match=text):
        drain(Far, KeepRows, conf={"topology.trace.sample": 1})


def test_columns_of_different_lengths_are_refused():
    text = error_of(lambda self, batch: self.emit_batch({"a": [1], "b": [1, 2]}, [0]), outputs=["a", "b"])
    assert text.startswith("TopologyError: bolt0: emits to stream 'default': ") and "expected length" in text


def test_a_type_that_has_no_hash_is_named():
    class Times(Spout):
        outputs = {"at": pa.time64("us")}

        def next_tuple(self):
            self.emit_batch({"at": pa.array([1], pa.time64("us"))})

    with pytest.raises(
        TopologyError, match=r"words: emits to stream 'default' for bolt0, which is grouped by field 'at': "
    ):
        drain(Times, KeepRows, grouping=Grouping.fields("at"))


def test_a_later_batch_of_another_type_is_refused():
    class Changes(Spout):
        outputs = ["n"]

        def next_tuple(self):
            self.emit_batch({"n": [None]})
            self.emit_batch({"n": [1]})
            self.emit_batch({"n": ["x"]})

    with pytest.raises(TopologyError, match="words: emits to stream 'default': field 'n', which is int64: "):
        drain(Changes, KeepRows)


@pytest.mark.parametrize(
    ("ids", "text"),
    [([1], "tup_ids: 1 ids for 2 rows"), ([[1], [2]], r"tup_ids: a column of list<item: int64> holds no ids")],
)
def test_ids_that_are_none_are_refused(ids, text):
    class Wrong(Words):
        def next_tuple(self):
            self.emit_batch({"word": ["a", "b"], "n": [1, 2]}, tup_ids=ids)

    with pytest.raises((TopologyError, TypeError), match=f"words: {text}"):
        drain(Wrong, KeepRows)


def test_definitions_are_checked():
    class Processes(ArrowBolt):
        def process(self, tup):
            pass

        def process_rows(self, batch):
            pass

    class Holds(KeepRows):
        auto_ack = False

    class Both(ArrowBolt, BatchingBolt):
        def process_rows(self, batch):
            pass

        def process_batch(self, key, tups):
            pass

    class Coroutine(ArrowBolt):
        async def process_rows(self, batch):
            pass

    class NoType(Words):
        outputs = {"word": str}

    texts = {
        Processes: "gets rows by process_rows",
        Holds: "auto_ack is False",
        Both: "derive it from one of them",
        Coroutine: "cannot be `async def`",
        ArrowBolt: "does not define process_rows",
    }
    for bolt, text in texts.items():
        with pytest.raises(TopologyError, match=text):
            topology(Words, bolt).graph()
    with pytest.raises(
        TopologyError, match=r"field 'word' has a type of Arrow such as pyarrow.string\(\), got <class 'str'>"
    ):
        topology(NoType, KeepRows).graph()


@pytest.mark.parametrize("as_array", [np.array, pa.array, lambda values: pa.chunked_array([values])])
def test_reasons_may_be_a_column(as_array):
    class Fails(ArrowBolt):
        def process_rows(self, batch):
            self.fail_rows([0, 1], as_array(["zero", "one"]))

    class Two(Words):
        rows = 2

        def fail(self, tup_id, reason):
            Seen.failed.append(reason.exception)

    drain(Two, Fails, par=1)
    assert sorted(Seen.failed) == ["one", "zero"]


def test_parents_may_be_a_matrix():
    pairs = read_parents(np.array([[0, 1], [2, 2]]), 2, 3)
    assert pairs.output.tolist() == [0, 0, 1, 1]
    assert pairs.row.tolist() == [0, 1, 2, 2]
    with pytest.raises(ArgumentTypeError, match="expected integers or lists of them"):
        read_parents(np.zeros((2, 1, 1), np.int64), 2, 3)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2**60, 1, 2], pa.timestamp("us")),
        pa.array([b"\xff", b"a", b"b"]).view(pa.string()),
    ],
    ids=["timestamp", "string"],
)
@pytest.mark.parametrize("reader", ["bolt", "arrow"])
def test_a_value_that_python_cannot_hold_fails_its_row_alone(column, reader):
    class Far(ReliableSpout):
        outputs = {"x": column.type}
        attempts_max = 1

        def next_tuple(self):
            self.emit_batch({"x": column}, tup_ids=[0, 1, 2])
            self.finish()

        def ack(self, tup_id):
            Seen.acked.append(tup_id)

        def dead_letter(self, tup_id, values, reason):
            Seen.failed.append((tup_id, type(values[0]), reason))

    class Read(Bolt):
        def process(self, tup):
            assert tup.x is not None

    class Fails(ArrowBolt):
        def process_rows(self, batch):
            if batch["x"][0].equals(column[0]):
                raise ValueError("too far")

    class Topo(Topology):
        far = Far.spec()
        read = (Read if reader == "bolt" else Fails).spec(inputs=[far])

    run(Topo)
    assert sorted(Seen.acked) == [1, 2]
    [(tup_id, kind, reason)] = Seen.failed
    assert (tup_id, reason.component) == (0, "read")
    assert issubclass(kind, pa.Array)
    assert f"'x' is {column.type}" in reason.exception or reader == "arrow"


def test_a_spout_may_write_to_an_array_again_once_it_is_emitted():
    class Reuses(ReliableSpout):
        outputs = {"n": pa.int64()}
        numbers, ids, emitted = np.zeros(3, np.int64), np.zeros(3, np.int64), 0

        def next_tuple(self):
            self.numbers[:] = self.ids[:] = np.arange(3) + self.emitted
            self.emit_batch({"n": self.numbers}, tup_ids=self.ids)
            self.emitted += 3
            if self.emitted == 9:
                self.finish()

        def ack(self, tup_id):
            Seen.acked.append(tup_id)

    class Read(ArrowBolt):
        def process_rows(self, batch):
            Seen.rows += batch["n"].to_pylist()

    class Reused(Topology):
        config = {"topology.max.spout.pending": 100}
        reuses = Reuses.spec()
        read = Read.spec(inputs=[reuses])

    run(Reused)
    assert sorted(Seen.rows) == sorted(Seen.acked) == list(range(9))


def test_other_threads_cannot_emit_batches():
    import threading

    class Threads(ArrowBolt):
        outputs = {"n": pa.int64()}

        def process_rows(self, batch):
            thread = threading.Thread(target=self._emit)
            thread.start()
            thread.join()

        def _emit(self):
            try:
                self.emit_batch({"n": [1]}, [0])
            except RuntimeStateError as error:
                Seen.calls.append(str(error))

    run(topology(Words, Threads, par=1))
    assert Seen.calls[0].startswith("bolt0: emit_batch from another thread")


# --- what sees rows --------------------------------------------------------------------------------------------------


def test_hooks_see_each_row():
    class Watch(Hook):
        def __init__(self):
            self.seen = Counter()

        def emit(self, component, task, stream, values, tasks):
            self.seen["emit", component] += len(tasks)

        def execute(self, component, task, tup):
            self.seen["execute", component] += 1

        def ack(self, component, task, tup):
            self.seen["ack", component] += 1

        def fail(self, component, task, tup, reason):
            self.seen["fail", component, reason.exception] += 1

        def spout_ack(self, component, task, tup_id, complete_ms):
            self.seen["spout_ack"] += 1

    watch = Watch()
    drain(Words, FailOdd, hooks=[watch])
    half = ROWS // 2
    assert +watch.seen == {
        ("emit", "words"): ROWS,
        ("execute", "bolt0"): ROWS,
        ("ack", "bolt0"): half,
        ("fail", "bolt0", "odd"): half,
        "spout_ack": half,
    }


def test_a_hook_does_not_change_what_becomes_of_a_value_that_python_cannot_hold():
    class Late(ArrowBolt):
        outputs = {"at": pa.timestamp("s")}

        def process_rows(self, batch):
            self.emit_batch({"at": pa.array([253_402_300_800] * batch.num_rows, pa.timestamp("s"))})  # the year 10000

    class Count(ArrowBolt):
        def process_rows(self, batch):
            Seen.rows.append(batch.num_rows)

    class Watch(Hook):
        def emit(self, component, task, stream, values, tasks):
            Seen.calls.append(len(values))

    drain(Words, Late, Count, par=1, hooks=[Watch()])
    assert sum(Seen.rows) == len(Seen.acked) == ROWS and len(Seen.calls) == 2 * ROWS


def test_complete_topology_feeds_and_records_rows():
    done = complete_topology(topology(Words, Twice, KeepRows), {"words": [["a", 1], ["b", 2]]}, seed=2)
    assert sorted(done.tuples("bolt0")) == [("a", 1), ("a", 1), ("b", 2), ("b", 2)] and done.acked == 2


def test_figures_count_rows_and_batches():
    runtime = LocalRuntime(topology(Words, Twice, KeepRows, par=1))
    with runtime:
        runtime.run_until("drained")
        stats = {row.component: row for row in runtime.stats().tasks}
    words, twice, keep = stats["words"], stats["bolt0"], stats["bolt1"]
    assert (words.emitted["default"], words.transferred, words.acked) == (ROWS, ROWS, ROWS)
    assert (twice.executed, twice.acked, twice.emitted["default"]) == (ROWS, ROWS, 2 * ROWS)
    assert keep.executed == 2 * ROWS and keep.user["batches"] <= 12 and twice.execute_latency.total == ROWS
    assert words.user["batches"] == 6


def test_traces_name_who_holds_a_row():
    class Drop(Bolt):
        auto_ack = False

        def process(self, tup):
            pass

    conf = {"topology.trace.sample": 1, "topology.message.timeout.secs": 3}
    with Scheduler.of(topology(Words, Twice, Drop, par=1), conf, seed=1, no_restart=True) as scheduler:
        report = scheduler.drain()
    assert report.stats.totals.timed_out == ROWS
    assert any("bolt1[3] holds 2 tuples of bolt0" in text for text in report.timed_out_traces)


def test_a_fields_grouping_sends_rows_where_stable_hash_says():
    drain(Words, KeepRows, grouping=Grouping.fields("word"), par=4)
    assert {row[0] for row in Seen.rows} == {2 + stable_hash(word) % 4 for _, word, _ in Seen.rows}


# --- random topologies -----------------------------------------------------------------------------------------------


def fate_of(bolt, n):
    """Return what a bolt does with a row: None if it fails it, else the rows that it emits for it."""
    mixed = (n * 2654435761 + bolt * 40503) % 1009
    if mixed % 53 == 0:
        return None
    return [] if n < 8 else [n // 2 + bolt] * (mixed % 3)


class ByTuple(Bolt):
    """Does with a tuple what `fate_of` says, and raises where that fails it."""

    outputs = ["word", "n"]
    number = 0

    def process(self, tup):
        rows = fate_of(self.number, tup["n"])
        if rows is None:
            raise ValueError("fated")
        Seen.rows.append((self.number, tup["word"], tup["n"]))
        for row in rows:
            self.emit([f"w{row % 7}", row])


class ByBatch(ArrowBolt):
    """The same in batches: some bolts raise, others call `fail_rows`."""

    outputs = {"word": pa.string(), "n": pa.int64()}
    number = 0

    def process_rows(self, batch):
        fates = [fate_of(self.number, n) for n in batch["n"].to_pylist()]
        if self.number % 2 and None in fates:
            raise ValueError("fated")
        self.fail_rows([fate is None for fate in fates], "fated")
        Seen.rows.extend(
            (self.number, *row.values()) for row, fate in zip(batch.to_pylist(), fates, strict=True) if fate is not None
        )
        children = [(row, child) for row, fate in enumerate(fates) for child in fate or ()]
        columns = {"word": [f"w{n % 7}" for _, n in children], "n": [n for _, n in children]}
        self.emit_batch(columns, parents=[row for row, _ in children])


def random_topology(seed, *, batches):
    """Return the topology of a seed: with batches here and there, or of tuples alone."""
    rng = np.random.default_rng(seed)
    groupings = [
        Grouping.shuffle,
        Grouping.fields("word"),
        Grouping.fields("n", "word"),
        Grouping.all,
        Grouping.global_,
    ]
    spouts = [Words, Mixed, Tuples]
    specs, names = {}, []
    for number in range(int(rng.integers(1, 3))):
        chosen = spouts[rng.integers(3)]
        specs[f"spout{number}"] = (chosen if batches else Tuples).spec()
        names.append(f"spout{number}")
    loops = rng.random() < 0.3
    count = int(rng.integers(2, 5))
    for number in range(count):
        base = ByBatch if rng.random() < 0.6 and batches else ByTuple
        bolt = type(f"{base.__name__}{number}", (base,), {"number": number})
        sources = list(rng.choice(names, size=min(len(names), int(rng.integers(1, 3))), replace=False))
        chosen = {str(source): groupings[rng.integers(len(groupings))] for source in sources}
        if loops and number == count - 1:
            chosen[f"bolt{number}"] = Grouping.fields("n")
        specs[f"bolt{number}"] = bolt.spec(inputs=chosen, par=int(rng.integers(1, 4)))
        names.append(f"bolt{number}")
    config = {
        "topology.acker.tasks": int(rng.integers(1, 4)),
        "topology.max.spout.pending": int(rng.choice([1, 15, 1000])),
        "topology.executor.receive.buffer.size": int(rng.choice([2, 64])),
        "topology.arrow.batch.rows": int(rng.choice([1, 7, 8192])),
    }
    return type("Random", (Topology,), {**specs, "config": config})


@pytest.mark.parametrize("seed", slow_after(8, range(24)))
def test_a_random_topology_of_rows_and_batches_does_what_it_does_with_tuples(seed):
    """Each row is processed as often, and each tree ends in the same way; the order of steps is another one."""
    ends = []
    for batches, steps in [(False, 1), (True, 1), (True, 2)]:
        clear()
        with Scheduler.of(random_topology(seed, batches=batches), seed=steps, no_restart=True) as scheduler:
            scheduler.drain()
        failed = {tup_id for tup_id, _ in Seen.failed}
        assert {reason.exception.removeprefix("ValueError: ") for _, reason in Seen.failed} <= {"fated"}
        ends.append((Counter(Seen.rows), Counter(Seen.acked), failed, len(Seen.failed)))
    assert ends[0] == ends[1] == ends[2]
