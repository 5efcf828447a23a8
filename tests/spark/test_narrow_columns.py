"""Columns of whole numbers in few bytes."""

import numpy as np
import pytest

from acker._engine.protocol import INT64_MAX, INT64_MIN
from acker.spark.narrow_columns import narrow, widen, width_of


@pytest.mark.parametrize("least", [INT64_MIN, -1, 0, 5])
@pytest.mark.parametrize(
    ("span", "width"),
    [(0, 0), (1, 1), (255, 1), (256, 2), (65_535, 2), (65_536, 4), (2**32 - 1, 4), (2**32, 8), (INT64_MAX, 8)],
)
def test_a_column_takes_the_bytes_that_it_needs_and_comes_back(least, span, width):
    most = min(least + span, INT64_MAX)
    column = np.array([most, least, most, least + span // 2 if span < INT64_MAX else least], np.int64)
    start, above = narrow(column)
    assert width_of(above) == width
    assert widen(b"xyz" + above.tobytes(), 3, 4, start, width).tolist() == column.tolist()


def test_the_highest_numbers_take_one_byte_too_and_no_rows_take_none():
    column = np.array([INT64_MAX, INT64_MAX - 255], np.int64)
    least, above = narrow(column)
    assert (least, width_of(above)) == (INT64_MAX - 255, 1)
    assert widen(above.tobytes(), 0, 2, least, 1).tolist() == column.tolist()
    least, above = narrow(column[:0])
    assert (least, width_of(above), widen(b"", 0, 0, least, 0).tolist()) == (0, 0, [])
