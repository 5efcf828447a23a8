"""Settlement of a batch of blocks: each shard's blocks are merged in one task, which yields the completions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from acker._engine.combiner import Combiner
from acker.errors import ArgumentTypeError, ArgumentValueError
from acker.spark.blocks import decode_block, decode_block_of, tracks_of
from acker.spark.event_columns import check_event_column, event_ms_of
from acker.spark.messages import describe_shared_ids, quote_column
from acker.spark.notes import Notes, is_note
from acker.spark.partition_keys import partition_key
from acker.spark.text_ids import text_type
from acker.spark.versioned_pickle import pack_function

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from acker._engine.completions import Completions
    from acker.spark.options import CompletionOptions

_COMPLETION_BATCH_ROWS: Final = 131_072

# Without nulls, as Spark would test each value of each row.
COMPLETIONS_DDL: Final = (
    "root_id long not null, message_id long not null, task_id int not null, outcome tinyint not null,"
    " elapsed_ms long not null"
)


def check_block_columns(blocks: DataFrame, column: str, shard: str) -> None:
    """Refuse a DataFrame without a column of blocks and one of shards."""
    types = dict(blocks.dtypes)
    for name, expected in ((column, ("binary",)), (shard, ("tinyint", "smallint", "int", "bigint"))):
        found = types.get(name)
        if found is None:
            raise ArgumentValueError(f"blocks: there is no column {name!r}; there are {', '.join(blocks.columns)}")
        if found not in expected:
            raise ArgumentTypeError(f"blocks: expected column {name!r} of type {' or '.join(expected)}, got {found}")


def check_block_rows(blocks: DataFrame, column: str, shard: str, options: CompletionOptions) -> DataFrame:
    """Return rows of (shard, block), with event_ms if event times are asked for.

    A row that is not legal fails the job before Spark looks for its partition.
    """
    from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.

    number, block = F.col(quote_column(shard)), F.col(quote_column(column))
    nothing = F.lit("blocks: expected a shard and a block in each row, got null")
    fault = F.when(number.isNull() | block.isNull(), nothing)
    shards = options.shards
    if shards is not None:
        expected = (
            f"blocks: expected a shard from 0 to {shards - 1} in column {shard!r}, since shards is {shards}, got "
        )
        hint = ": give the number of shards into which the blocks were split"
        text = F.concat(F.lit(expected), number.cast("string"), F.lit(hint))
        fault = fault.when(~number.between(0, shards - 1), text)
    checked = F.when(fault.isNull(), number.cast("int")).otherwise(F.raise_error(fault).cast("int"))
    rows = [checked.alias("shard"), block.alias("block")]
    if options.event_time is not None:
        check_event_column(blocks, options.event_time)
        rows.append(event_ms_of(blocks, options.event_time).alias("event_ms"))
    return blocks.select(*rows)


def by_shard(rows: DataFrame, shards: int | None) -> DataFrame:
    """Bring the rows (shard, block) of each shard to one partition."""
    if shards is None:
        return rows.repartition("shard")
    return rows.repartition(shards, partition_key(rows.shard, shards))


def settle_rows(rows: DataFrame, shards: int | None, *, include_pending: bool, ids: str | None = None) -> DataFrame:
    """Settle a batch of rows (shard, block).

    Parameters
    ----------
    ids : str, optional
        The rows are those of a pipeline, whose message ids have this type: there are notes among the blocks, and
        completions say why trees failed; a tree with two TRACKs is an error, see `describe_shared_ids`.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return settle_blocks(batches, shards, include_pending, ids)

    return by_shard(rows, shards).mapInArrow(pack_function(run, "settle"), completions_ddl(COMPLETIONS_DDL, ids))


def completions_ddl(ddl: str, ids: str | None) -> str:
    """Return the columns of completions, with those that a pipeline with such message ids adds."""
    if ids is None:
        return ddl
    ids_ddl = ddl if ids == "bigint" else re.sub(r"message_id long(?: not null)?", f"message_id {ids}", ddl)
    return f"{ids_ddl}, component string, reason string"


def settle_blocks(
    batches: Iterator[pa.RecordBatch], shards: int | None, include_pending: bool, ids: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Merge the blocks of one partition and yield its completions; runs in Spark's Python workers."""
    combiner = Combiner()
    notes = Notes()
    tracks: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
    for batch in batches:
        for number, block in zip(batch.column(0), batch.column(1), strict=True):
            if ids is not None and is_note(block.as_buffer()):
                notes.add(block.as_buffer())
                continue
            data = block.as_buffer()
            partials, _ = decode_block(data) if shards is None else decode_block_of(number.as_py(), shards, data)
            combiner.merge(partials)
            if ids is not None:
                tracks.append(tracks_of(partials))
    if ids is not None and combiner.duplicates:
        raise ArgumentValueError(f"message_id: {describe_shared_ids(tracks, notes.text_ids())}")
    done = combiner.settle(include_pending)
    yield from completion_batches(done, None if ids is None else notes, ids)


def completion_batches(
    done: Completions, notes: Notes | None = None, ids: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the completions as Arrow batches of a size that Spark takes well.

    With the notes of a pipeline they also say why trees failed, and have its message ids, of the given type.
    """
    batch = done.to_arrow()
    if notes is not None:
        if (type_ := text_type(ids)) is not None:
            index = batch.schema.get_field_index("message_id")
            batch = batch.set_column(index, "message_id", notes.text_ids().of(done.root_id, type_))
        for name, column in notes.failed(done.root_id)._asdict().items():
            batch = batch.append_column(name, column)
    for first in range(0, len(done), _COMPLETION_BATCH_ROWS):
        yield batch.slice(first, _COMPLETION_BATCH_ROWS)
