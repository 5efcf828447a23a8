"""Bolt functions: which rows fail, with which words, whatever a user's function does."""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row

from acker.spark.pipelines.user_functions import REASON_CHARS_MAX, Outputs, reason_of, run_batch, run_rows

NUMBERS = pa.RecordBatch.from_pydict({"n": pa.array([0, 1, 2, 3])})
ONE = pa.schema([("x", pa.int32())])
TWO = pa.schema([("x", pa.int32()), ("s", pa.string())])
NESTED = pa.schema([("xs", pa.list_(pa.int64())), ("s", pa.struct([("a", pa.int64())]))])


def rows_of(produced) -> list[tuple]:
    return [tuple(row.values()) for row in produced.rows.to_pylist()]


def test_rows_may_be_values_tuples_or_dicts() -> None:
    shapes = [lambda row: [row.n], lambda row: ((n,) for n in [row.n]), lambda row: [{"x": row.n}], lambda row: {row.n}]
    for shape in shapes:
        produced = run_rows(shape, NUMBERS, ONE)
        assert rows_of(produced) == [(0,), (1,), (2,), (3,)] and not produced.failed
        assert produced.parents.row.tolist() == produced.parents.output.tolist() == [0, 1, 2, 3]
    produced = run_rows(
        lambda row: [(row.n, "a"), {"s": "b", "x": None}, [7, None]] if row.n == 2 else None, NUMBERS, TWO
    )
    assert rows_of(produced) == [(2, "a"), (None, "b"), (7, None)]
    assert produced.parents.row.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("result", "schema", "text"),
    [
        (5, ONE, "ArgumentTypeError: a bolt function returns None or an iterable of rows, not int"),
        ("word", ONE, "ArgumentTypeError: a bolt function returns None or an iterable of rows, not str"),
        ({"x": 1}, ONE, "ArgumentTypeError: a bolt function returns None or an iterable of rows, not dict"),
        ([(1, 2)], ONE, "ArgumentValueError: expected 1 columns (x), got 2"),
        ([(1,)], TWO, "ArgumentValueError: expected 2 columns (x, s), got 1"),
        ([7], TWO, "ArgumentTypeError: an output row is a tuple or a dict, not int"),
        ([{"x": 1}], TWO, "ArgumentValueError: expected the columns x, s, got x"),
        ([(1, 2)], TWO, "ArrowTypeError: "),
        (["no number"], ONE, "ArrowInvalid: "),
        ([2**31], ONE, "ArrowInvalid: Value 2147483648 too large to fit"),
        ([1.5], ONE, "ArgumentValueError: x: expected int32, got 1.5"),
        ([Decimal("1.5")], ONE, "ArgumentValueError: x: expected int32, got Decimal('1.5')"),
        ([float("nan")], ONE, "ValueError: cannot convert float NaN to integer"),
        ([([1, 2.5], {"a": 1})], NESTED, "ArgumentValueError: xs: expected int64, got 2.5"),
        ([([1], {"a": 0.5})], NESTED, "ArgumentValueError: s.a: expected int64, got 0.5"),
        ([([1], {"a": 1, "b": 2})], NESTED, "ArgumentValueError: s: expected struct<a: int64>, which has no field 'b'"),
        ([Row(x=1, t="a")], TWO, "ArgumentValueError: expected the columns x, s, got a Row of x, t"),
        ([Row(n=1)], ONE, "ArgumentValueError: expected the columns x, got a Row of n"),
    ],
)
def test_a_result_that_does_not_fit_fails_its_row_only(result, schema, text) -> None:
    good = {1: [1], 2: [([1], None)] if schema is NESTED else [(1, "a")]}[len(schema)]
    produced = run_rows(lambda row: result if row.n == 1 else good * row.n, NUMBERS, schema)
    assert list(produced.failed) == [1] and produced.failed[1].startswith(text)
    assert produced.parents.row.tolist() == [2, 2, 3, 3, 3] and produced.rows.num_rows == 5


class Named(NamedTuple):
    s: str
    x: int


def test_a_row_is_read_by_its_names() -> None:
    for shape in (Row(s="a", x=7), Row(x=7, s="a"), Named(x=7, s="a"), Row(7, "a"), (7, "a")):
        produced = run_rows(lambda row, shape=shape: [shape, (row.n, "b")], NUMBERS.slice(1, 1), TWO)
        assert rows_of(produced) == [(7, "a"), (1, "b")] and not produced.failed
    for shape in (Row(x=7), Row(7), (7,), {"x": 7}, 7, 7.0):
        assert rows_of(run_rows(lambda _, shape=shape: [shape], NUMBERS.slice(1, 1), ONE)) == [(7,)]


def test_a_row_may_be_the_value_of_a_column() -> None:
    schema = pa.schema([("p", pa.struct([("x", pa.int32()), ("s", pa.string())]))])
    produced = run_rows(lambda _: [Row(p={"x": 1, "s": "a"}), ({"x": 2, "s": "b"},)], NUMBERS.slice(1, 1), schema)
    assert [row["p"] for row in produced.rows.to_pylist()] == [{"x": 1, "s": "a"}, {"x": 2, "s": "b"}]


def test_numbers_with_fractions_in_columns_fail_their_rows() -> None:
    produced = run_batch(lambda batch: Outputs({"x": [1, 2.5]}, [0, 1]), NUMBERS.slice(0, 2), ONE, divide=False)
    assert produced.failed == dict.fromkeys(range(2), "ArgumentValueError: x: expected int32, got 2.5")


def test_nanoseconds_of_pandas_are_kept_or_fail_their_rows() -> None:
    time = pd.Timestamp("2026-06-01") + pd.Timedelta(1, "ns")
    for unit, is_kept in (("us", False), ("ns", True)):
        produced = run_rows(lambda _: [time], NUMBERS.slice(0, 1), pa.schema([("x", pa.timestamp(unit))]))
        assert bool(produced.rows.num_rows) is is_kept
        assert produced.failed == (
            {} if is_kept else {0: f"ArgumentValueError: x: expected timestamp[us], got {time!r}"}
        )


def test_a_generator_that_raises_half_way_emits_nothing() -> None:
    def half(row):
        yield row.n
        if row.n % 2:
            raise KeyError(row.n)

    produced = run_rows(half, NUMBERS, ONE)
    assert produced.failed == {1: "KeyError: 1", 3: "KeyError: 3"} and rows_of(produced) == [(0,), (2,)]


def test_memory_errors_and_interrupts_are_not_failures_of_a_row() -> None:
    for fault in (MemoryError, KeyboardInterrupt, SystemExit):

        def raises(_, fault=fault):
            raise fault

        for call in (lambda: run_rows(raises, NUMBERS, ONE), lambda: run_batch(raises, NUMBERS, ONE, divide=True)):
            with pytest.raises(fault):
                call()


def test_a_value_that_python_cannot_hold_fails_its_row_without_a_call() -> None:
    due = pa.array([0, 6_659_600, None], pa.date32())
    batch = pa.RecordBatch.from_pydict(
        {"n": [1, 2, 3], "due": due, "each": pa.array([[0], [0], [6_659_600]], pa.list_(due.type))}
    )
    seen = []

    def keep(row):
        seen.append(row.n)
        return [row.n]

    produced = run_rows(keep, batch, ONE)
    assert rows_of(produced) == [(1,)] and produced.parents.row.tolist() == [0] and seen == [1]
    assert produced.failed == {
        1: "'due' is date32[day]: OverflowError: date value out of range",
        2: "'each' is list<item: date32[day]>: OverflowError: date value out of range",
    }


class Panic(BaseException):
    """What native libraries raise, as polars does."""


def test_what_is_no_exception_and_ends_no_program_fails_its_row() -> None:
    def of_row(row):
        return of_batch(pa.RecordBatch.from_pydict({"n": [row.n]}))

    def of_batch(batch):
        if 2 in batch["n"].to_pylist():
            raise Panic("2")

    for produced in (run_rows(of_row, NUMBERS, ONE), run_batch(of_batch, NUMBERS, ONE, divide=True)):
        assert produced.failed == {2: "Panic: 2"}


def test_columns_that_are_no_names_and_frames_without_columns() -> None:
    batch = pa.RecordBatch.from_pydict({"a b": [1.5], "class": [None], "n": [b"x"]})
    seen = []
    run_rows(seen.append, batch, ONE)
    assert tuple(seen[0]) == (1.5, None, b"x") and seen[0].n == b"x"
    empty = pa.RecordBatch.from_pydict({"n": pa.array([1, 2])}).select([])
    assert empty.num_rows == 2 and rows_of(run_rows(lambda row: [len(row)], empty, ONE)) == [(0,), (0,)]


def test_a_batch_function_is_called_for_halves_until_the_culprits_are_found() -> None:
    calls = []

    def fussy(batch):
        calls.append(batch.num_rows)
        numbers = batch.column("n").to_pylist()
        if 2 in numbers:
            raise ValueError("two")
        return Outputs({"x": numbers * 2}, [*range(len(numbers))] * 2, {0: "first"} if numbers == [3] else None)

    produced = run_batch(fussy, NUMBERS.slice(0, 3), ONE, divide=True)
    assert produced.failed == {2: "ValueError: two"}
    assert rows_of(produced) == [(0,), (0,), (1,), (1,)]
    assert (produced.parents.output.tolist(), produced.parents.row.tolist()) == ([0, 1, 2, 3], [0, 0, 1, 1])
    assert calls == [3, 1, 2, 1, 1]
    whole = run_batch(fussy, NUMBERS, ONE, divide=False)
    assert whole.failed == dict.fromkeys(range(4), "ValueError: two") and whole.rows.num_rows == 0


def search_among(rows: int, culprits: set[int], text: str = "bad", *, named: bool = False):
    """Return what a batch of so many rows came to, and how often the function was called for it."""
    calls = 0

    def fussy(batch):
        nonlocal calls
        calls += 1
        numbers = batch.column("n").to_pylist()
        for number in numbers:
            if number in culprits:
                raise ValueError(f"{text} {number}" if named else text)
        return Outputs({"x": numbers}, range(len(numbers)))

    produced = run_batch(fussy, pa.RecordBatch.from_pydict({"n": list(range(rows))}), ONE, divide=True)
    good = [row for row in range(rows) if row not in produced.failed]
    assert [row for (row,) in rows_of(produced)] == produced.parents.row.tolist() == good
    assert produced.parents.output.tolist() == list(range(len(good)))
    return produced.failed, calls


@pytest.mark.parametrize("culprit", [0, 1, 4_999, 5_000, 7_321, 9_999])
def test_one_bad_row_is_found_in_log_time(culprit) -> None:
    failed, calls = search_among(10_000, {culprit})
    assert failed == {culprit: "ValueError: bad"} and calls <= 2 * 14 + 2


def test_several_bad_rows_are_found_and_no_others() -> None:
    rng = np.random.default_rng(3)
    for culprits in (
        {0, 9_999},
        set(range(40)),
        {1 << place for place in range(13)} | {0},  # one in every second half
        set(range(0, 10_000, 2)),
        set(range(5_000, 10_000)),
        set(rng.choice(10_000, 20, replace=False).tolist()),
    ):
        failed, calls = search_among(10_000, culprits, named=True)
        if culprits != set(range(5_000, 10_000)):
            assert failed == {row: f"ValueError: bad {row}" for row in culprits}
        assert set(failed) == culprits
        assert calls <= 2 * len(culprits) * 14 + 40


def test_a_function_that_always_raises_is_not_called_for_every_row() -> None:
    failed, calls = search_among(10_000, set(range(10_000)))
    assert failed == dict.fromkeys(range(10_000), "ValueError: bad") and calls <= 1 + 14 + 32
    failed, calls = search_among(10_000, set(range(10_000)), named=True)
    assert len(failed) == 10_000 and calls <= 1 + 14 + 32
    texts = {text: row for row, text in failed.items()}
    assert texts.pop("ValueError: bad 0 (raised for the batch of 10000 rows)") is not None
    assert texts == {f"ValueError: bad {row}": row for row in texts.values()} and len(texts) == 32
    # Of few rows each has its own text.
    failed, _ = search_among(64, set(range(64)), named=True)
    assert failed == {row: f"ValueError: bad {row}" for row in range(64)}
    # Half of a batch is a batch: what is wrong with all of it is told soon, too.
    assert search_among(10_000, set(range(5_000, 10_000)))[1] < 100


def test_other_errors_on_the_way_are_looked_into() -> None:
    def fussy(batch):
        if batch.num_rows > 1000:
            raise ValueError(batch.num_rows)
        raise LookupError("small")

    produced = run_batch(fussy, pa.RecordBatch.from_pydict({"n": list(range(1500))}), ONE, divide=True)
    assert produced.failed == dict.fromkeys(range(1500), "LookupError: small")


@pytest.mark.parametrize("parent", [np.array([2, 0]), [2, 0], pa.array([2, 0]), pa.chunked_array([[2], [0]])])
def test_parents_may_be_any_integers(parent) -> None:
    produced = run_batch(lambda batch: Outputs({"x": [1, 2]}, parent), NUMBERS, ONE, divide=False)
    assert (produced.parents.output.tolist(), produced.parents.row.tolist()) == ([0, 1], [2, 0]) and not produced.failed


@pytest.mark.parametrize("parent", [[[2, 0], [], 1], pa.array([[2, 0], [], [1]])])
def test_parents_may_be_lists(parent) -> None:
    produced = run_batch(lambda batch: Outputs({"x": [1, 2, 3]}, parent), NUMBERS, ONE, divide=False)
    assert (produced.parents.output.tolist(), produced.parents.row.tolist()) == ([0, 0, 2], [2, 0, 1])


def test_nothing_is_an_answer_of_a_batch_function() -> None:
    produced = run_batch(lambda batch: None, NUMBERS, TWO, divide=False)
    assert produced.rows.num_rows == 0 and not produced.failed
    failed = run_batch(lambda batch: Outputs({"x": []}, [], {3: KeyError("k"), 0: "plain"}), NUMBERS, ONE, divide=False)
    assert failed.failed == {3: "KeyError: 'k'", 0: "plain"}


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"x": [1]}, "ArgumentTypeError: a batch function returns acker.spark.Outputs or None, not dict"),
        (Outputs([1], [0]), "ArgumentTypeError: rows: expected a RecordBatch, a Table or a mapping, got list"),
        (Outputs({"y": [1]}, [0]), "ArgumentValueError: rows: expected the columns x, got y"),
        (Outputs({"x": [1], "y": [1]}, [0]), "ArgumentValueError: rows: expected the columns x, got x, y"),
        (Outputs({"x": ["a"]}, [0]), "ArrowInvalid: "),
        (Outputs({"x": [1]}, []), "ArgumentValueError: parent: expected one entry for each of 1 output rows, got 0"),
        (Outputs({"x": [1]}, [4]), "ArgumentValueError: parent: output row 0 names input row 4 of a batch of 4"),
        (Outputs({"x": [1]}, [-1]), "ArgumentValueError: parent: output row 0 names input row -1 of a batch of 4"),
        (Outputs({"x": [1]}, np.array([0.5])), "ArgumentTypeError: parent: expected integers or lists of them, got"),
        (Outputs({"x": [1]}, [0], {4: "z"}), "ArgumentValueError: failed: the batch has 4 rows, there is no row 4"),
        (
            Outputs({"x": [1]}, [[1, 2]], {2: "z"}),
            "ArgumentValueError: failed: input row 2 failed and is a parent of output row 0",
        ),
    ],
)
def test_an_answer_that_cannot_be_fails_the_batch(result, text) -> None:
    produced = run_batch(lambda batch: result, NUMBERS, ONE, divide=False)
    assert list(produced.failed) == [0, 1, 2, 3] and produced.failed[0].startswith(text)
    assert produced.rows.num_rows == 0


def test_reasons_are_short_and_always_text() -> None:
    class Mute(Exception):  # noqa: N818
        def __str__(self):
            raise RuntimeError

    assert reason_of(ValueError()) == "ValueError"
    assert reason_of("plain") == "plain"
    assert reason_of(" ") == reason_of(None) == "no reason was given in Outputs.failed"
    assert reason_of(Mute()) == "Mute: (no text: its __str__ raised RuntimeError)"
    assert reason_of(ValueError("\ud800")) == "ValueError: \\ud800"
    assert len(reason_of("x" * 5000)) == REASON_CHARS_MAX
