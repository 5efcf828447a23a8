"""Columns of whole numbers in as few bytes a row as their values need, for blocks that travel and chunks of a log.

A column is kept as its least value and what is above it, in unsigned numbers of 0, 1, 2 or 4 bytes; with a width of 8
as int64, with a least value of 0. A width of 0 has no bytes: all rows are alike. Numbers are little-endian.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

WIDTHS: Final = (0, 1, 2, 4, 8)


def narrow(column: npt.NDArray[Any]) -> tuple[int, npt.NDArray[Any]]:
    """Return the least value of a column, and what is above it in as few bytes a row as it needs."""
    if not len(column):
        return 0, column[:0]
    least, most = int(column.min()), int(column.max())
    width = next(width for width in WIDTHS if most - least < 1 << 8 * width)
    if width == WIDTHS[-1]:
        return 0, column.astype("<i8", copy=False)
    # The difference of two int64 may overflow here, and is right nevertheless modulo 2**64.
    return least, (column.astype(np.int64, copy=False) - np.int64(least)).astype(f"<u{width}") if width else column[:0]


def width_of(above: npt.NDArray[Any]) -> int:
    """Return how many bytes a row takes in what `narrow` returned."""
    return above.itemsize if above.size else 0


def widen(content: Any, offset: int, count: int, least: int, width: int) -> npt.NDArray[np.int64]:
    """Return a column as int64, which is the caller's.

    Parameters
    ----------
    content : bytes-like
    offset : int
        Where the column begins.
    count : int
        Number of rows.
    least, width : int
        The width is one of `WIDTHS`. A sum that overflows, which nobody writes, wraps around.
    """
    if not width:
        return np.full(count, least, np.int64)
    above = np.frombuffer(content, f"<i{width}" if width == WIDTHS[-1] else f"<u{width}", count, offset)
    column = above.astype(np.int64)
    if least:
        column += np.int64(least)
    return column
