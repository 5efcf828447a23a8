"""stable_hash: equal values hash alike, in every process, and different ones apart."""

import datetime as dt
import enum
import math
import os
import subprocess
import sys
import uuid
from decimal import Decimal
from fractions import Fraction
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker.topology import stable_hash


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Level(enum.IntEnum):
    LOW = 1


class Mode(enum.StrEnum):
    FAST = "fast"


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


# --- streams and groupings --------------------------------------------------------------------------------------------


MIDNIGHT = dt.datetime(2024, 1, 2)  # noqa: DTZ001 - naive, as is NumPy's
NOON = dt.datetime(2024, 1, 2, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    "values",
    [
        (
            1,
            1.0,
            True,
            Decimal(1),
            Fraction(1),
            1 + 0j,
            np.int8(1),
            np.uint64(1),
            np.float32(1),
            np.bool_(True),
            Level.LOW,
        ),
        (0, 0.0, -0.0, False, Decimal("-0"), np.float64(-0.0)),
        (0.5, Decimal("0.5"), Fraction(1, 2), np.float16(0.5), np.longdouble(0.5)),
        (2**64, float(2**64), Decimal(2**64)),
        (-(2**63), np.int64(-(2**63)), float(-(2**63))),
        (math.inf, np.float32("inf"), Decimal("inf")),
        (math.nan, float("nan"), np.float32("nan"), Decimal("nan"), Decimal("sNaN"), complex(math.nan, 1)),
        ("fast", Mode.FAST, np.str_("fast")),
        (b"a", bytearray(b"a"), np.bytes_(b"a")),
        (NOON, NOON.astimezone(ZoneInfo("Asia/Tokyo")), NOON.astimezone(ZoneInfo("Asia/Tokyo")).replace(fold=1)),
        (MIDNIGHT, np.datetime64("2024-01-02T00:00:00"), np.datetime64("2024-01-02", "ns")),
        (dt.date(2024, 1, 2), np.datetime64("2024-01-02")),
        (dt.timedelta(days=1), dt.timedelta(hours=24), np.timedelta64(1, "D"), np.timedelta64(24, "h")),
        ((1, "a"), (1.0, "a"), [True, "a"], (Decimal(1), np.str_("a"))),
        (uuid.UUID(int=5), uuid.UUID(int=5)),
        (Access.READ | Access.WRITE, Access.WRITE | Access.READ),
    ],
    ids=lambda values: repr(values[0]),
)
def test_equal_values_hash_alike(values):
    assert len({stable_hash(value) for value in values}) == 1


def test_what_differs_hashes_apart():
    # Not -1 and -2, whose Python hashes are one.
    values = [
        "a",
        "b",
        "1",
        1,
        2,
        1.5,
        -1,
        None,
        math.nan,
        NOON,
        dt.date(2024, 1, 2),
        dt.timedelta(1),
        uuid.UUID(int=5),
    ]
    values += [Colour.RED, Colour.GREEN, Access.READ]
    values += [(), ("a",), ("a", "b"), ("b", "a"), (("a",), "b"), ("a", ("b",))]
    assert len({stable_hash(value) for value in values}) == len(values)
    assert len({stable_hash(*several) for several in [("a", "b"), ("b", "a"), ("ab", ""), ("a", 1), ("a",)]}) == 5


def test_times_that_are_missing_or_beyond_python():
    assert stable_hash(np.datetime64("NaT", "ns")) == stable_hash(np.datetime64("NaT", "s"))
    assert stable_hash(np.timedelta64("NaT", "ns")) == stable_hash(np.timedelta64("NaT", "s"))
    assert stable_hash(np.datetime64("20000-01-01")) == stable_hash(np.datetime64("20000-01-01T00", "h"))


def test_text_of_any_kind():
    assert stable_hash("größe") != stable_hash("grosse")
    assert stable_hash("\ud800") != stable_hash("\ud801")


@pytest.mark.parametrize("value", [object(), {"a": 1}, {1}, print, ("a", object()), [{}]])
def test_another_type_is_named(value):
    with pytest.raises(
        TypeError, match=r"a value of type (object|dict|set|builtin_function_or_method) has no stable hash"
    ):
        stable_hash(value)


# Also run by another process, so the sample is text.
SAMPLE = """
import datetime as dt, math, uuid
from decimal import Decimal
from acker.topology import stable_hash
values = ["storm", "gr\\u00f6\\u00dfe", b"storm", None, 0, 1, -1, 2**70, 1.5, math.nan, (1, "a", None)]
values += [dt.datetime(2024, 1, 2, 12, tzinfo=dt.timezone.utc), dt.date(2024, 1, 2), dt.timedelta(seconds=3)]
values += [uuid.UUID(int=5), Decimal("1.1"), 3 + 4j]
hashes = [stable_hash(value) for value in values]
"""
# Pinned, so that a change is a decision: state that was divided by these hashes would be divided anew.
PINNED = [
    4052537413,
    1540598153,
    4052537413,
    0,
    1696784233,
    2844319735,
    3991854978,
    4072525376,
    3024080787,
    2143289344,
    579558284,
    3414140008,
    1918416822,
    192619527,
    2630991834,
    311646706,
    2440993893,
]


def test_hashes_are_pinned():
    names: dict[str, object] = {}
    exec(SAMPLE, names)
    assert names["hashes"] == PINNED


@pytest.mark.parametrize("seed", ["1", "2"])
def test_another_process_finds_the_same(seed):
    command = [sys.executable, "-c", SAMPLE + "print(*hashes)"]
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert list(map(int, printed.split())) == PINNED


numbers = [st.booleans(), st.integers(), st.floats(), st.decimals(allow_nan=False), st.fractions()]
times = [st.dates(), st.datetimes(), st.timedeltas()]
scalars = st.one_of(st.none(), st.text(), st.binary(), st.uuids(), *numbers, *times)


@given(st.lists(scalars, max_size=4), st.lists(scalars, max_size=4))
def test_equality_decides(first, second):
    for one, other in zip(first, second, strict=False):
        result = stable_hash(one)
        assert 0 <= result < 2**32
        if one == other:
            assert result == stable_hash(other)
    assert stable_hash(first) == stable_hash(tuple(first))


@given(st.integers(-(2**40), 2**40))
def test_numbers_that_are_equal_in_two_types_meet(number):
    assert (
        stable_hash(number)
        == stable_hash(float(number))
        == stable_hash(Decimal(number))
        == stable_hash(np.int64(number))
    )


@pytest.mark.parametrize("par", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("step", [1, 2, 4, 1000, 4096])
def test_ids_at_equal_distances_are_spread(par, step):
    tasks = [0] * par
    for number in range(4000):
        tasks[stable_hash(number * step) % par] += 1
    assert min(tasks) > 4000 / par * 0.8
