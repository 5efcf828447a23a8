"""The rows that travel between the stages of a topology: tuple blocks for tasks, and what goes to the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# The column `stage` of rows that hold no tuple block. All of them travel to the settlement.
MESSAGES: Final = -1  # a block of messages of one shard
REASONS: Final = -2  # why trees failed, a pickle
COUNTERS: Final = -3  # the counters of one Spark task, a pickle
STATE: Final = -4  # which files of state one Spark task wrote, a pickle
OUTCOMES: Final = -5  # the outcomes of the trees of one shard, a pickle
TOUCHED: Final = -6  # root ids whose tuples reached a stateful bolt, int64, of one shard
CHANGED: Final = -7  # which attributes of its bolts one Spark task has changed, a pickle
TOO_MANY: Final = -8  # instead of messages: there are more trees than the driver wants to settle
TREE_TIMES: Final = -9  # the latest event times in the trees of one shard that reached a bolt, a pickle
TIMES: Final = -10  # the latest event times that reached a bolt, by source, a pickle
TOOK: Final = -11  # how long one Spark task took, a pickle

STAGE_ROW_SCHEMA: Final = pa.schema(
    {"partition_key": pa.int32(), "stage": pa.int32(), "source": pa.int64(), "seq": pa.int64(), "block": pa.binary()}  # type: ignore[arg-type]
)

# About the size of an Arrow batch: Spark copies each batch through memory several times.
_BATCH_BYTES: Final = 4_000_000


def stage_row_type() -> StructType:
    """Return the schema as Spark has it: an object, since Spark's parser takes longer than a small micro-batch has."""
    from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

    types = (IntegerType(), IntegerType(), LongType(), LongType(), BinaryType())
    return StructType([StructField(name, kind) for name, kind in zip(STAGE_ROW_SCHEMA.names, types, strict=True)])


class StageRow(NamedTuple):
    """One row.

    Attributes
    ----------
    partition_key : int
        The key that leads it to its partition.
    stage : int
        The stage that reads it; a negative number for what goes to the settlement.
    source, seq : int
        The writer, and the number of the row there. A stage reads its rows in this order, so that a task that runs
        again reads the same.
    block : bytes
    """

    partition_key: int
    stage: int
    source: int
    seq: int
    block: bytes


def equals(column: pa.Array[Any], number: int) -> pa.Array[Any]:
    """Return where a column has this number."""
    return pc.equal(column, pa.scalar(number, column.type))


def batches_of(rows: Iterator[StageRow] | list[StageRow]) -> Iterator[pa.RecordBatch]:
    """Yield rows as Arrow batches of a good size."""
    held: list[StageRow] = []
    held_bytes = 0
    for row in rows:
        held.append(row)
        held_bytes += len(row.block)
        if held_bytes >= _BATCH_BYTES:
            yield _batch_of(held)
            held, held_bytes = [], 0
    if held:
        yield _batch_of(held)


def _batch_of(rows: list[StageRow]) -> pa.RecordBatch:
    columns: list[Any] = [
        pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), STAGE_ROW_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=STAGE_ROW_SCHEMA)
