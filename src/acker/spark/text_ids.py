"""Message ids that are texts or bytes, such as UUIDs: the int64 that the acker has in their place.

It is the XXH64 of the bytes with seed 42, which is what Spark's SQL function ``xxhash64`` gives for one column. Of a
million ids some two have the same hash with a chance of 3 in 10^8, of a thousand million with one of 3 %. Such ids in
one batch are an error that names both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from acker._engine.combiner import xxh64_each

if TYPE_CHECKING:
    import numpy.typing as npt

_SEED: Final = 42


def is_text(type_: pa.DataType) -> bool:
    """Return whether ids of this type are hashed."""
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_binary(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_large_binary(type_)
    )


def text_type(ids: str | None) -> pa.DataType | None:
    """Return Arrow's type of message ids, by Spark's name; None for numbers."""
    if ids == "string":
        return pa.string()
    return pa.binary() if ids == "binary" else None


def numbers_of(column: pa.Array[Any]) -> npt.NDArray[np.int64]:
    """Return the number of each id of a column of texts or bytes without nulls, from Arrow's buffers."""
    large = column.cast(pa.large_binary())
    _, ends_buffer, data = large.buffers()
    if ends_buffer is None or not len(large):
        return np.empty(0, np.int64)
    ends = np.frombuffer(ends_buffer, np.int64)[large.offset : large.offset + len(large) + 1]
    content = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return xxh64_each(content, ends, _SEED)


def number_of(text: str | bytes) -> int:
    """Return the number of one id."""
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return int(xxh64_each(np.frombuffer(content, np.uint8), np.array([0, len(content)]), _SEED)[0])
