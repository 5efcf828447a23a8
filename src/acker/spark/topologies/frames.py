"""Spouts whose tuples are the rows of a DataFrame: their emission by the workers, and their outcomes on the driver."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from acker.errors import TopologyError
from acker.spark import text_ids
from acker.spark.topologies.stage_rows import batches_of
from acker.spark.versioned_pickle import pack_function
from acker.topology.graph import Node
from acker.topology.spout import ReliableSpout
from acker.topology.streams import DEFAULT_STREAM

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from acker.spark.topologies.micro_batch_plan import MicroBatchPlan
    from acker.spark.topologies.stage_worker import StageWorker


# So many rows are emitted before the bolts beside the spout run.
_EMIT_ROWS: Final = 4096


@dataclass(frozen=True)
class FrameRows:
    """The rows that a spout emits in one micro-batch.

    Attributes
    ----------
    frame : DataFrame
        The fields of the spout's default stream, then the column with the tuple's id if that is no field.
    message_id : str or None
        The column with the tuple's id; None: the tuples are not tracked.
    width : int
        Number of fields.
    """

    frame: DataFrame
    message_id: str | None
    width: int


def read_frame(node: Node, spout: Any, spark: SparkSession, options: Mapping[str, Any]) -> FrameRows:
    """Ask a spout for its DataFrame, and check its columns.

    Raises
    ------
    TopologyError
        The spout returns no DataFrame, or one without a column that it needs.
    """
    from pyspark.sql import DataFrame

    where = f"component {node.name!r}: frame()"
    try:
        frame = spout.frame(spark, options)
    except Exception as fault:
        fault.add_note(f"{where} raised it")
        raise
    if not isinstance(frame, DataFrame):
        raise TopologyError(f"{where} returned {_kind_of(frame)}; expected a DataFrame of PySpark")
    fields = node.streams[DEFAULT_STREAM].fields if DEFAULT_STREAM in node.streams else ()
    tup_id = spout.tup_id_column
    if tup_id is None and isinstance(spout, ReliableSpout):
        raise TopologyError(
            f"{where} has no ids for a ReliableSpout, which would replay nothing: name their column in `tup_id_column`,"
            " or derive from Spout"
        )
    columns = list(fields) if tup_id is None or tup_id in fields else [*fields, tup_id]
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        wanted = {"`outputs`": fields, "`tup_id_column`": [tup_id]}
        named = [name for name, columns in wanted.items() if {*missing} & {*columns}]
        raise TopologyError(
            f"{where} has no column {', '.join(map(repr, missing))}, which {' or '.join(named)} names;"
            f" its columns are {', '.join(frame.columns)}"
        )
    return FrameRows(frame.select(*(f"`{name}`" for name in columns)), tup_id, len(fields))


def _kind_of(frame: object) -> str:
    return "None (is there no `return`?)" if frame is None else f"a {type(frame).__name__}"


def number_of(tup_id: Any) -> int:
    """Return the message id of a tuple id: the number itself, or 64 bits of a hash of what is no number."""
    if type(tup_id) is str or type(tup_id) is bytes:
        return text_ids.number_of(tup_id)
    if isinstance(tup_id, int) and not isinstance(tup_id, bool) and -(2**63) <= tup_id < 2**63:
        return tup_id
    # Not `stable_hash`: its 32 bits are the same for two of a hundred thousand ids, and more likely than not.
    digest = hashlib.blake2b(repr(tup_id).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def numbers_of(column: pa.Array[Any]) -> list[int]:
    """Return the message id of each tuple id of a column without nulls."""
    if text_ids.is_text(column.type):
        numbers: list[int] = text_ids.numbers_of(column).tolist()
        return numbers
    return [number_of(each) for each in column.to_pylist()]


def emit_rows(
    plan: MicroBatchPlan, component: str, message_id: str | None, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Emit the rows of one partition, and run the bolts beside the spout; the function of `mapInArrow`."""
    from acker.spark.topologies.stage_worker import run_task

    return run_task(plan, 0, component, lambda worker: _emit_rows(worker, plan, component, message_id, batches))


def _emit_rows(
    worker: StageWorker,
    plan: MicroBatchPlan,
    component: str,
    message_id: str | None,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    worker.open()
    executor = next(each for each in worker.executors.spouts if each.tasks[0].collector.component == component)
    collector: Any = executor.tasks[0].collector
    width = len(plan.graph.nodes[component].streams[DEFAULT_STREAM].fields)

    def emit(columns: Sequence[list[Any]], ids: Sequence[Any], numbers: Sequence[int]) -> None:
        for row, tup_id, number in zip(zip(*columns, strict=True), ids, numbers, strict=True):
            collector.message_id = number
            collector.emit(row, tup_id)
        collector.pending.clear()

    for batch in batches:
        columns = [values.to_pylist() for values in batch.columns[:width]]
        ids: Any = [None] * batch.num_rows
        numbers: Sequence[int] = range(batch.num_rows)
        if message_id is not None:
            column = batch.column(message_id)
            if column.null_count:
                raise TopologyError(f"component {component!r}: frame() has a row whose {message_id!r} is null")
            ids, numbers = column.to_pylist(), numbers_of(column)
        for begin in range(0, batch.num_rows, _EMIT_ROWS):
            part = slice(begin, begin + _EMIT_ROWS)
            rows = [values[part] for values in columns], ids[part], numbers[part]
            worker.executors.call(executor, lambda rows=rows: emit(*rows))  # type: ignore[misc]
            worker.work()
            yield from batches_of(worker.full())
    yield from worker.finish()


def find_rows(rows: FrameRows, wanted: frozenset[int]) -> dict[int, tuple[Any, tuple[Any, ...]]]:
    """Return message id -> (tuple id, values) of some rows, which are read again.

    Raises
    ------
    TopologyError
        The DataFrame does not have them the second time, or has an id twice.
    """
    name = rows.message_id
    assert name is not None

    def select(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        for batch in batches:
            yield batch.filter(pyarrow.array([number in wanted for number in numbers_of(batch.column(name))]))

    table = rows.frame.mapInArrow(pack_function(select), rows.frame.schema).toArrow()
    tup_ids: Any = table.column(name).to_pylist()
    columns: Any = [column.to_pylist() for column in table.columns[: rows.width]]
    found = {number_of(tup_id): (tup_id, row) for tup_id, row in zip(tup_ids, zip(*columns, strict=True), strict=True)}
    if len(found) < len(tup_ids):
        twice, _ = Counter(map(number_of, tup_ids)).most_common(1)[0]
        raise TopologyError(f"column {name!r}: expected unique tuple ids, and {found[twice][0]!r} is there twice")
    missing = wanted - found.keys()
    if missing:
        raise TopologyError(
            f"column {name!r}: {len(missing)} rows that failed are no longer in the DataFrame, such as {min(missing)};"
            " frame() must give the same rows each time, so read from something that does not change, or persist it"
        )
    return found
