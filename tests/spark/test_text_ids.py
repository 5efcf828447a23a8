"""The numbers of message ids that are texts or bytes."""

import uuid

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812

from acker.spark.text_ids import is_text, number_of, numbers_of

TEXTS = ["", "a", "storm", "ünï ☃", "x" * 31, "y" * 32, "z" * 100, *(str(uuid.UUID(int=n)) for n in range(20))]

# The second block of 32 bytes takes back what the first one changes: a program finds such a pair in a second.
OF_ONE_HASH = (
    "wrhlat2a-order-of-customer-numbefjj2y1jk/in/the/shop/of/colors!!",
    "sftgacff-order-of-customer-numbe^RDa:P6g/in/the/shop/of/colors!!",
)


def test_whoever_wants_two_texts_of_one_hash_can_have_them():
    assert len(set(map(number_of, OF_ONE_HASH))) == 1 < len(set(OF_ONE_HASH))


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str)
def test_a_column_is_hashed_as_its_values_are(type_):
    column = pa.array([text.encode() for text in TEXTS]).cast(type_)
    expected = [number_of(text) for text in TEXTS]
    assert is_text(type_)
    assert numbers_of(column).tolist() == expected
    assert numbers_of(column[3:9]).tolist() == expected[3:9]
    assert numbers_of(column[:0]).tolist() == [] and numbers_of(column[:0]).dtype == np.int64
    assert len(set(expected)) == len(TEXTS)


def test_other_columns_are_not_hashed():
    assert not any(map(is_text, (pa.int64(), pa.float64(), pa.bool_(), pa.list_(pa.string()))))


@pytest.mark.spark
def test_the_number_is_what_sparks_own_function_gives(spark):
    rows = spark.createDataFrame([(text,) for text in TEXTS], "id string").select(
        F.xxhash64("id"), F.xxhash64(F.col("id").cast("binary"))
    )
    assert [tuple(row) for row in rows.collect()] == [(number_of(text),) * 2 for text in TEXTS]
