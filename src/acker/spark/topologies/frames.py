"""Spouts whose tuples are the rows of a DataFrame: their emission by the workers, and their outcomes on the driver."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from acker.errors import TopologyError
from acker.spark import text_ids
from acker.spark.topologies.stage_rows import batches_of
from acker.spark.versioned_pickle import pack_function
from acker.topology.graph import Node
from acker.topology.spout import ReliableSpout
from acker.topology.streams import DEFAULT_STREAM, Stream
from acker.topology.tuple_batch import value_rows, values_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from acker.spark.topologies.micro_batch_plan import MicroBatchPlan
    from acker.spark.topologies.stage_worker import StageWorker

# The least root id of a Spark task that reads rows is below it.
_FIRST_ROOTS: Final = 2**62


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
    except Exception as error:
        error.add_note(f"{where} raised it")
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


def numbers_of(column: pa.Array[Any]) -> npt.NDArray[np.int64]:
    """Return the message id of each tuple id of a column without nulls.

    Raises
    ------
    TopologyError
        No object of Python can hold one of them, so the spout could not hear of its tuple.
    """
    import pyarrow as pa

    if text_ids.is_text(column.type):
        return text_ids.numbers_of(column)
    if pa.types.is_integer(column.type) and not pa.types.is_uint64(column.type):
        return np.asarray(column.to_numpy(), np.int64)
    tup_ids, errors = values_of(column)
    for row, text in errors.items():
        raise TopologyError(
            f"frame(): Python cannot hold the tuple id of row {row}, which is {column.type} ({text}): cast the column"
            " that `tup_id_column` names to a string or a number"
        )
    return np.array([number_of(each) for each in tup_ids], np.int64)


def emit_rows(
    plan: MicroBatchPlan, component: str, message_id: str | None, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Emit the rows of one partition, and run the bolts beside the spout; the function of `mapInArrow`."""
    from acker.spark.topologies.stage_worker import run_task

    return run_task(plan, 0, component, lambda worker: emit_frame(worker, plan, component, message_id, batches))


def emit_frame(
    worker: StageWorker,
    plan: MicroBatchPlan,
    component: str,
    message_id: str | None,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Emit rows by a worker, as Spark has read them, and run the bolts beside the spout."""
    worker.open()
    executor = next(each for each in worker.executors.spouts if each.tasks[0].collector.component == component)
    collector: Any = executor.tasks[0].collector
    route = collector.route_for(None)
    stream = plan.graph.nodes[component].streams[DEFAULT_STREAM]

    # Root ids that follow one another travel in few bytes. From here on none is 0, and none is above 2**63.
    next_root = int(collector.take_ids(1)[0]) % _FIRST_ROOTS + 1

    def emit(batch: pa.RecordBatch, numbers: npt.NDArray[np.int64] | None) -> None:
        nonlocal next_root
        columns = route.batches.read(_as_declared(batch.select(list(stream.fields)), stream, component))
        root_ids = None
        if numbers is not None and plan.tracked:
            root_ids = np.arange(next_root, next_root + len(columns))
            next_root += len(columns)
        values = np.zeros(len(columns), np.int64)
        collector.send_rows(route, route.batches.split(columns), values, root_ids)
        if root_ids is not None:
            collector.ack_sender.track_rows(root_ids, values, collector.task, numbers)

    for batch in batches:
        numbers = None
        if message_id is not None:
            column = batch.column(message_id)
            if column.null_count:
                raise TopologyError(f"component {component!r}: frame() has a row whose {message_id!r} is null")
            numbers = numbers_of(column)
        worker.executors.call(executor, partial(emit, batch, numbers))
        worker.work()
        yield from batches_of(worker.full())
    yield from worker.finish()


def _as_declared(columns: pa.RecordBatch, stream: Stream, component: str) -> pa.RecordBatch:
    """Return columns with the types that a stream declares: Spark has fewer types than Arrow."""
    import pyarrow as pa

    for place, field in enumerate(columns.schema):
        kind = stream.types.get(field.name, field.type)
        if kind == field.type:
            continue
        where = f"component {component!r}: frame(): field {field.name!r} is {field.type}, and `outputs` says {kind}"
        if _is_text(kind) != _is_text(field.type):  # Arrow would write numbers as text, and read text as numbers
            raise TopologyError(f"{where}; cast it in frame()")
        try:
            columns = columns.set_column(place, field.name, columns.column(place).cast(kind))
        except pa.ArrowException as error:
            raise TopologyError(f"{where}: {error}") from None
    return columns


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    if isinstance(kind, pa.DictionaryType):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def find_rows(rows: FrameRows, wanted: frozenset[int]) -> dict[int, tuple[Any, tuple[Any, ...]]]:
    """Return message id -> (tuple id, values) of some rows, which are read again; see `values_of` for the values.

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
            yield batch.filter(pyarrow.array(np.isin(numbers_of(batch.column(name)), list(wanted))))

    table = rows.frame.mapInArrow(pack_function(select), rows.frame.schema).toArrow()
    tup_ids: list[Any] = table.column(name).to_pylist()
    fields = list(range(rows.width))
    values = [row for batch in table.to_batches() for row in value_rows(batch.select(fields))]
    found = {number_of(tup_id): (tup_id, row) for tup_id, row in zip(tup_ids, values, strict=True)}
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
