"""stable_hash_column: equal to stable_hash of each value, whatever the column's type."""

import datetime as dt
import math
import uuid
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker import _flow
from acker.errors import ArgumentTypeError, ArgumentValueError
from acker.topology import stable_hash, stable_hash_column

# Naive, as Arrow's without a zone; what fits nanoseconds.
ORIGIN, FIRST, LAST = (dt.datetime(year, 1, 1) for year in (1970, 1678, 2261))  # noqa: DTZ001
TIMES = st.datetimes(FIRST, LAST)
DURATIONS = st.timedeltas(dt.timedelta(days=-100_000), dt.timedelta(days=100_000))
FLOATS = st.floats() | st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0**61, 2.0**61 - 512, -(2.0**63), 5e-324])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9)


def integers(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.integers(low, high) | st.sampled_from([low, high, 0, 1, max(low, -1)])


def whole(times: st.SearchStrategy[Any], unit: dt.timedelta) -> st.SearchStrategy[Any]:
    return times.map(lambda value: ORIGIN + (value - ORIGIN) // unit * unit)


KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    *((kind(), integers(bits)) for kind, bits in [(pa.int8, 8), (pa.int16, 16), (pa.int32, 32), (pa.int64, 64)]),
    *(
        (kind(), integers(bits, signed=False))
        for kind, bits in [(pa.uint8, 8), (pa.uint16, 16), (pa.uint32, 32), (pa.uint64, 64)]
    ),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), FLOATS),
    *((kind(), TEXTS) for kind in (pa.string, pa.large_string, pa.string_view)),
    *((kind(), st.binary()) for kind in (pa.binary, pa.large_binary, pa.binary_view)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.date32(), st.dates()),
    (pa.date64(), st.dates()),
    (pa.timestamp("s"), whole(TIMES, dt.timedelta(seconds=1))),
    (pa.timestamp("ms"), whole(TIMES, dt.timedelta(milliseconds=1))),
    (pa.timestamp("us"), TIMES),
    (pa.timestamp("ns"), TIMES),
    (pa.timestamp("us", "UTC"), TIMES.map(lambda value: value.replace(tzinfo=dt.UTC))),
    (
        pa.timestamp("ms", "Asia/Tokyo"),
        whole(TIMES, dt.timedelta(milliseconds=1)).map(lambda v: v.replace(tzinfo=dt.UTC)),
    ),
    (pa.duration("us"), DURATIONS),
    (pa.duration("ns"), DURATIONS),
    (pa.decimal128(20, 3), DECIMALS),
    (pa.decimal256(40, 3), DECIMALS),
    (pa.null(), st.none()),
    (pa.list_(pa.int64()), st.lists(integers(64), max_size=3)),
    (pa.large_list(pa.string()), st.lists(TEXTS, max_size=3)),
    (pa.uuid(), st.uuids().map(lambda value: value.bytes)),
]


@pytest.mark.parametrize(("kind", "values"), KINDS, ids=[str(kind) for kind, _ in KINDS])
@settings(max_examples=15)
@given(data=st.data())
def test_a_column_hashes_as_each_of_its_values(kind, values, data):
    column = pa.array(data.draw(st.lists(values | st.none(), max_size=20)), kind)
    start = data.draw(st.integers(0, len(column)))
    expected = [stable_hash(value) for value in column.to_pylist()]
    assert stable_hash_column(column).tolist() == expected
    assert stable_hash_column(column.slice(start)).tolist() == expected[start:]
    assert (
        stable_hash_column(pa.chunked_array([column, column.slice(start)], kind)).tolist()
        == expected + expected[start:]
    )


@settings(max_examples=30)
@given(st.lists(st.none() | TEXTS, max_size=20))
def test_a_dictionary_hashes_as_its_values(texts):
    column = pa.array(texts, pa.string())
    assert stable_hash_column(column.dictionary_encode()).tolist() == stable_hash_column(column).tolist()
    held = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array(["a", None]))
    assert stable_hash_column(held).tolist() == [stable_hash(value) for value in ("a", None, None)]


@settings(max_examples=30)
@given(st.lists(FLOATS, min_size=1, max_size=20))
def test_floats_hash_as_equal_numbers_of_other_types(numbers):
    exact = [value if not math.isfinite(value) else Fraction(value) for value in numbers]
    assert stable_hash_column(pa.array(numbers)).tolist() == [stable_hash(value) for value in exact]


@settings(max_examples=30)
@given(st.lists(st.tuples(TEXTS, integers(64), FLOATS), max_size=20))
def test_several_columns_hash_as_several_values(rows):
    columns = [
        pa.array([row[i] for row in rows], kind) for i, kind in enumerate([pa.string(), pa.int64(), pa.float64()])
    ]
    assert stable_hash_column(*columns).tolist() == [stable_hash(*row) for row in rows]


def test_half_floats_and_encoded_runs_hash_as_their_values():
    halves = pa.array(np.array([0.5, -0.0, 65504, np.nan], np.float16))
    assert stable_hash_column(halves).tolist() == [stable_hash(value) for value in (0.5, 0, 65504, math.nan)]
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3]), pa.array(["a", "b"]))
    assert stable_hash_column(runs).tolist() == [stable_hash(value) for value in "aab"]


def test_decimals_hash_as_equal_numbers():
    column = pa.array([Decimal("1.000"), Decimal("-0.500"), None], pa.decimal128(10, 3))
    assert stable_hash_column(column).tolist() == [stable_hash(value) for value in (1, -0.5, None)]
    assert stable_hash_column(pa.array([uuid.UUID(int=7).bytes], pa.uuid())).tolist() == [stable_hash(uuid.UUID(int=7))]


@pytest.mark.parametrize(
    "column",
    [pa.array([dt.time(1)]), pa.array([{"a": 1}]), pa.array([[{"a": 1}]])],
    ids=lambda column: str(column.type),
)
def test_a_type_without_a_hash_is_named(column):
    with pytest.raises(ArgumentTypeError, match=r"a column of type .* has no stable hash; group by text"):
        stable_hash_column(column)


def test_what_is_no_column_or_of_another_length_is_refused():
    with pytest.raises(ArgumentTypeError, match="expected a column of pyarrow, got list"):
        stable_hash_column([1, 2])
    with pytest.raises(ArgumentValueError, match="columns of one length, got 1, 2"):
        stable_hash_column(pa.array([1]), pa.array([1, 2]))
    with pytest.raises(ArgumentValueError, match="columns of one length, got none"):
        stable_hash_column()


def test_offsets_outside_the_data_raise():
    with pytest.raises(IndexError, match="value 1: bytes 2 to 9 of 4"):
        _flow.hash_texts(np.array([0, 2, 9]), np.zeros(4, np.uint8))
    with pytest.raises(ValueError, match="one more than there are values"):
        _flow.hash_texts(np.empty(0, np.int64), np.empty(0, np.uint8))
    with pytest.raises(ValueError, match="1 hashes, expected 2"):
        _flow.chain_hashes(np.zeros(2, np.uint32), np.zeros(1, np.uint32))
