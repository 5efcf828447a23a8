"""stable_hash_column: the stable hashes of Arrow columns, natively."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from acker._flow import chain_hashes, hash_numbers, hash_texts, hash_times
from acker.errors import ArgumentTypeError, ArgumentValueError
from acker.topology.hashing import stable_hash

if TYPE_CHECKING:
    import pyarrow as pa

Hashes = NDArray[np.uint32]

# Times are compared in microseconds: how many of a unit make one, or how many one of a unit is.
_FINER: Final = {"ns": 1000}
_COARSER: Final = {"us": 1, "ms": 1000, "s": 1_000_000}
_US_A_DAY: Final = 86_400_000_000


def stable_hash_column(*columns: Any) -> Hashes:
    """Return the stable hash of each row of one or more Arrow columns: that of `stable_hash` of the row's values.

    Parameters
    ----------
    *columns : pyarrow.Array or pyarrow.ChunkedArray
        All of one length.

    Returns
    -------
    (n,) uint32

    Raises
    ------
    ArgumentTypeError
        No column of Arrow, or of a type without a stable hash, such as a time of day or a struct.
    ArgumentValueError
        Without a column, or with columns of different lengths.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from acker.topology import stable_hash, stable_hash_column
    >>> words = pa.array(["storm", None, "storm"]).dictionary_encode()
    >>> stable_hash_column(words).tolist() == [stable_hash("storm"), stable_hash(None), stable_hash("storm")]
    True
    """
    if len({len(column) for column in columns}) != 1:
        lengths = ", ".join(str(len(column)) for column in columns) or "none"
        raise ArgumentValueError(f"expected one or more columns of one length, got {lengths}")
    hashes = [_hash(_one_array(column)) for column in columns]
    if len(hashes) == 1:
        return hashes[0]
    together = np.zeros(hashes[0].size, np.uint32)
    for each in hashes:
        chain_hashes(together, each)
    return together


def _one_array(column: Any) -> pa.Array[Any]:
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        combined: Any = column.combine_chunks()
        # Whether a column of one chunk is combined depends on the release of pyarrow.
        return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined
    if not isinstance(column, pa.Array):
        raise ArgumentTypeError(f"expected a column of pyarrow, got {type(column).__name__}")
    return column


def _hash(column: pa.Array[Any]) -> Hashes:
    hashes = _hash_values(column)
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = stable_hash(None)
    return hashes


def _hash_values(column: pa.Array[Any]) -> Hashes:
    """Return the hashes of the values; those of nulls may be any."""
    from pyarrow import types

    kind = column.type
    if types.is_dictionary(kind):
        return _hash_dictionary(column)
    if types.is_string(kind) or types.is_binary(kind):
        return _hash_bytes(column, np.int32)
    if types.is_large_string(kind) or types.is_large_binary(kind):
        return _hash_bytes(column, np.int64)
    if types.is_boolean(kind) or (types.is_integer(kind) and not types.is_uint64(kind)):
        return hash_numbers(_integers(column))
    if types.is_uint64(kind):
        return hash_numbers(_integers(column, np.uint64))
    if types.is_floating(kind):
        return hash_numbers(np.ascontiguousarray(column.to_numpy(zero_copy_only=False), np.float64))
    if types.is_timestamp(kind) or types.is_duration(kind) or types.is_date(kind):
        return hash_times(_microseconds(column))
    return _hash_rarer(column)


def _integers(column: pa.Array[Any], dtype: Any = np.int64) -> NDArray[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count:
        column = pc.fill_null(column, pa.scalar(0).cast(column.type))
    return np.ascontiguousarray(column.to_numpy(zero_copy_only=False), dtype)


def _microseconds(column: pa.Array[Any]) -> NDArray[np.int64]:
    import pyarrow as pa

    kind = column.type
    days = pa.types.is_date(kind)
    counts = _integers(column.view(pa.int32() if pa.types.is_date32(kind) else pa.int64()))
    if days:  # a date64 is a day too, in milliseconds
        return (counts if pa.types.is_date32(kind) else counts // 86_400_000) * _US_A_DAY
    return counts // _FINER[kind.unit] if kind.unit in _FINER else counts * _COARSER[kind.unit]


def _hash_bytes(column: pa.Array[Any], offset_type: Any) -> Hashes:
    _, offsets, data = column.buffers()
    if not len(column) or offsets is None:
        return np.zeros(len(column), np.uint32)
    first = np.frombuffer(offsets, offset_type)[column.offset : column.offset + len(column) + 1]
    content = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return hash_texts(first.astype(np.int64), content)


def _hash_dictionary(column: Any) -> Hashes:
    return _take(_hash(column.dictionary), column)


def _hash_rarer(column: Any) -> Hashes:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.uint32)
    if pa.types.is_fixed_size_binary(kind):
        return _hash_values(column.cast(pa.binary()))
    if str(kind) in ("string_view", "binary_view"):
        return _hash_values(column.cast(pa.large_string() if str(kind) == "string_view" else pa.large_binary()))
    if pa.types.is_decimal128(kind) or pa.types.is_decimal256(kind):
        encoded = column.dictionary_encode()  # Python makes each number, so each one once
        return _take(_by_value(encoded.dictionary), encoded)
    return _by_value(column)


def _take(hashes: Hashes, encoded: Any) -> Hashes:
    if not hashes.size:
        return np.zeros(len(encoded), np.uint32)
    taken: Hashes = hashes[_integers(encoded.indices)]
    return taken


def _by_value(column: pa.Array[Any]) -> Hashes:
    try:
        return np.array([stable_hash(value) for value in column.to_pylist()], np.uint32)
    except TypeError:
        raise ArgumentTypeError(
            f"a column of type {column.type} has no stable hash; group by text, binaries, numbers, dates, timestamps, "
            "durations, or lists of these"
        ) from None
