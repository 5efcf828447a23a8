"""The partition of each shard: keys that Spark's hash partitioning spreads evenly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from acker._engine.combiner import SHARDS_MAX

if TYPE_CHECKING:
    import numpy.typing as npt
    from pyspark.sql import Column


def partition_key(number: Column, partitions: int) -> Column:
    """Return a key that Spark's hash partitioning puts into the partition with this number.

    If there are more partitions than there can be shards the number itself is the key: an array of keys would cost
    more than an uneven spread. The key of a shard does not depend on the number of shards, so a query with another
    number than its checkpoint finds the state that tells.
    """
    from pyspark.sql import functions as F  # noqa: N812

    if partitions > SHARDS_MAX:
        return number
    return F.element_at(F.array(*map(F.lit, partition_keys(partitions).tolist())), number + 1)


def partition_keys(shards: int) -> npt.NDArray[np.int32]:
    """Return for each shard an int that Spark's ``hash`` maps to the shard's number.

    Hash partitioning then puts shard s into partition s modulo the number of partitions. The hash is Murmur3 (x86, 32
    bits) of one int with seed 42, and each of its operations can be undone. With another hash shards would merely share
    partitions: results do not depend on it.
    """

    def unfold(mixed: Any, bits: int) -> Any:
        """Undo ``mixed ^= mixed >> bits``, for 11 bits or more."""
        once = mixed ^ (mixed >> np.uint32(bits))
        return once if bits >= 16 else mixed ^ (once >> np.uint32(bits))

    def unrotate(word: Any, bits: int) -> Any:
        return (word >> np.uint32(bits)) | (word << np.uint32(32 - bits))

    def inverse(odd: int) -> np.uint32:
        return np.uint32(pow(odd, -1, 2**32))

    mixed = unfold(np.arange(shards, dtype=np.uint32), 16) * inverse(0xC2B2AE35)
    mixed = unfold(mixed, 13) * inverse(0x85EBCA6B)
    mixed = unfold(mixed, 16) ^ np.uint32(4)  # the length in bytes
    mixed = unrotate((mixed - np.uint32(0xE6546B64)) * inverse(5), 13) ^ np.uint32(42)
    mixed = unrotate(mixed * inverse(0x1B873593), 15) * inverse(0xCC9E2D51)
    return mixed.view(np.int32)  # type: ignore[no-any-return]
