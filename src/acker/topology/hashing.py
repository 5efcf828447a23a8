"""stable_hash: a hash that is the same in every process, so that equal values go to the same task."""

from __future__ import annotations

import datetime as dt
import enum
import numbers
import uuid
import zlib
from decimal import Decimal
from typing import Any, Final

import numpy as np

_NAN: Final = 0x7FC0_0000
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - naive times have no zone to compare by
_EPOCH_UTC: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND: Final = dt.timedelta(microseconds=1)


def stable_hash(*values: Any) -> int:
    """Return a hash that is the same in every process and every run.

    Parameters
    ----------
    *values : str, bytes, None, number, Decimal, date, datetime, timedelta, UUID, Enum, NumPy scalar
        Also tuples and lists of these.

    Returns
    -------
    int
        0 <= hash < 2**32. Equal values have the same hash: 1, 1.0 and True, a datetime in two time zones. All nan have
        the same hash too, so that they reach one task.

    Raises
    ------
    TypeError
        For a value of another type.

    Notes
    -----
    CRC-32 over UTF-8 for text, and over Python's hash for numbers, which the language defines by value. Python's hash
    of text differs from process to process.

    Examples
    --------
    >>> from acker.topology import stable_hash
    >>> stable_hash("storm"), stable_hash(1) == stable_hash(1.0) == stable_hash(True)
    (4052537413, True)
    """
    if len(values) == 1:
        return _hash_one(values[0])
    result = 0
    for value in values:
        result = zlib.crc32(_hash_one(value).to_bytes(4, "little"), result)
    return result


def _hash_int(value: int) -> int:
    # Not the number itself, since ids that are all even would leave every second task without work.
    return zlib.crc32((value & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little"))


def _hash_one(value: Any) -> int:
    kind = type(value)
    if kind is str:
        try:
            return zlib.crc32(value.encode())
        except UnicodeEncodeError:
            pass  # a lone surrogate
    elif kind is int or (kind is float and value == value):
        return _hash_int(hash(value))
    if isinstance(value, str):
        return zlib.crc32(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, np.generic):
        value = _python_scalar(value)
    if isinstance(value, numbers.Number):
        if value.is_nan() if isinstance(value, Decimal) else value != value:
            return _NAN
        return _hash_int(hash(value))
    if value is None:
        return 0
    if isinstance(value, bytes | bytearray):
        return zlib.crc32(value)
    if isinstance(value, tuple | list):
        return stable_hash(len(value), *value)
    if isinstance(value, enum.Enum):
        name: str | None = value.name  # a combination of flags has none
        return stable_hash(type(value).__qualname__, value.value if name is None else name)
    return _hash_rarer(value)


def _hash_rarer(value: Any) -> int:
    if isinstance(value, dt.datetime):
        # Python compares two datetimes of one zone without fold, so fold must not matter here either.
        value = value.replace(fold=0)
        since = value - (_EPOCH if value.utcoffset() is None else _EPOCH_UTC)
        return _hash_int(since // _MICROSECOND)
    if isinstance(value, dt.date):
        return _hash_int((dt.datetime(value.year, value.month, value.day) - _EPOCH) // _MICROSECOND)  # noqa: DTZ001
    if isinstance(value, dt.timedelta):
        return _hash_int(value // _MICROSECOND)
    if isinstance(value, uuid.UUID):
        return zlib.crc32(value.bytes)
    raise TypeError(
        f"a value of type {type(value).__name__} has no stable hash; group by str, bytes, numbers, dates, UUID, Enum, "
        "None, or tuples of these"
    )


def _python_scalar(value: np.generic) -> Any:
    """Return the Python value that equals a NumPy scalar; times in microseconds, whatever their unit."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        if np.isnat(value):
            return None
        unit = "datetime64[us]" if isinstance(value, np.datetime64) else "timedelta64[us]"
        return value.astype(unit).item()
    return float(value) if isinstance(value, np.longdouble) else value.item()
