"""The checks of columns that the compiled tables make, for the tables in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np


def check_rows(names: str, dtypes: str, *columns: Any) -> None:
    """Raise unless the columns are arrays of these dtypes, all as long as ``root_id``.

    Parameters
    ----------
    names, dtypes : str
        Of the columns in their order, separated by spaces. A column whose name ends with ``?`` may be None.
    """
    given = dict(zip(names.split(), zip(dtypes.split(), columns, strict=True), strict=True))
    rows = -1
    for name in sorted(given, key=lambda name: name != "root_id"):
        dtype, column = given[name]
        if column is None and name.endswith("?"):
            continue
        if not isinstance(column, np.ndarray) or column.ndim != 1:
            raise TypeError(f"{name.rstrip('?')}: expected a column, got {type(column).__name__}")
        if column.dtype != dtype:
            raise ValueError(f"{name.rstrip('?')}: expected {np.dtype(dtype)}, got {column.dtype}")
        rows = len(column) if name == "root_id" else rows
        if len(column) != rows:
            raise ValueError(f"{name.rstrip('?')}: expected {rows} rows like root_id, got {len(column)}")


PARTIALS = "root_id value flags track_value task_id message_id", "i8 i8 u1 i8 i4 i8"
ENTRIES = "root_id value message_id start_ms since_ms task_id", "i8 i8 i8 i8 i8 i4"
