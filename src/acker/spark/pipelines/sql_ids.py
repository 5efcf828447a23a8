"""Keyed ids as SQL expressions: the same numbers as those of `acker._engine.ids`, computed by Spark without Python."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.

from acker._engine.ids import INSTEAD_OF_ZERO, hash_key


def sql_root_ids(run_seed: int, source: Column | None, message_id: Column, attempt: Column, component: str) -> Column:
    """Return the root id of each row of a spout, as `root_ids` computes it; all columns are bigint without nulls."""
    if source is None:
        return _hash(run_seed, ("root", component, ""), message_id, attempt)
    return _hash(run_seed, ("root", component), source, message_id, attempt)


def sql_tuple_ids(
    run_seed: int, root_id: Column, parent_tuple_id: Column | int, component: str, ordinal: Column | int
) -> Column:
    """Return the id of each tuple, as `tuple_ids` computes it; all columns are bigint without nulls."""
    return _hash(run_seed, ("tuple", component), root_id, _bigint(parent_tuple_id), _bigint(ordinal))


def _hash(run_seed: int, purpose: tuple[str, ...], *columns: Column) -> Column:
    first, last = hash_key(run_seed, *purpose)
    words = F.xxhash64(_bigint(first), *columns, _bigint(last))
    return F.when(words == 0, F.lit(int(INSTEAD_OF_ZERO))).otherwise(words)


def _bigint(number: Column | int) -> Column:
    return number if isinstance(number, Column) else F.lit(number).cast("bigint")
