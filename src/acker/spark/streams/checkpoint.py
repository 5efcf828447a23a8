"""The state of ackers in a checkpoint, read with Spark's state data source; their query may run meanwhile."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.

from acker._engine.codes import UNTRACKED_FAILED
from acker._engine.open_trees import TreeCounts
from acker._engine.protocol import INT64_MIN
from acker.errors import ArgumentValueError, CheckpointError
from acker.spark.streams.state_format import HEAD_KEY, VARIABLE, VERSION, Head, decode_chunk, decode_head
from acker.spark.versioned_pickle import pack_function

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

# Exclusive upper ends of the groups in which ages are counted; the last group has none.
AGE_BOUNDS_MS: Final = (1_000, 10_000, 60_000, 600_000, 3_600_000, 86_400_000)

_VARIABLES: Final = {VARIABLE: "MapState"}
# The task id of an entry that is gone; entries have greater ones.
_GONE: Final = UNTRACKED_FAILED - 1
_LOG_DDL: Final = "partition_key int, oldest_ms long, ages array<long>, fault string"
_LOG_SCHEMA: Final = pa.schema(
    [
        pa.field("partition_key", pa.int32()),
        pa.field("oldest_ms", pa.int64()),
        pa.field("ages", pa.list_(pa.int64())),
        pa.field("fault", pa.string()),
    ]
)


class ShardState(NamedTuple):
    """The state of one shard in a checkpoint.

    Attributes
    ----------
    shard, partition : int
        The shard is -1 if the state cannot be read.
    batch_id : int
        The last micro-batch in which it received anything.
    pending, open : int
        Entries held, and how many of them have a TRACK.
    oldest_age_ms : int
        Exact age of the oldest entry; 0 if nothing is held.
    ages : tuple of int
        Entries by age, one number for each group of `AGE_BOUNDS_MS`; the last number is of older ones.
    log_bytes, log_rows, chunks : int
        Size of the log.
    time_ms, clock_ms : int
        The shard's clock, which does not go back, and the last time of Spark's clock or watermark.
    counts : TreeCounts
        Since the beginning.
    fault : str
        Why its state cannot be read, or how it contradicts itself. Empty if it is sound.
    """

    shard: int
    partition: int
    batch_id: int = -1
    pending: int = 0
    open: int = 0
    oldest_age_ms: int = 0
    ages: tuple[int, ...] = (0,) * (len(AGE_BOUNDS_MS) + 1)
    log_bytes: int = 0
    log_rows: int = 0
    chunks: int = 0
    time_ms: int = 0
    clock_ms: int = 0
    counts: TreeCounts = TreeCounts()
    fault: str = ""


class AckerState(NamedTuple):
    """The state of one acker in a checkpoint.

    Attributes
    ----------
    operator : int
        Number of the stateful operator in the query.
    batch_id : int
        The micro-batch after which this is the state.
    version : int
        Of the format.
    shards, partitions : int
        Number of shards and of state partitions. A shard without any state yet is not in `states`.
    event_time : bool
        Whether trees expire by the watermark.
    states : tuple of ShardState
    """

    operator: int
    batch_id: int
    version: int
    shards: int
    partitions: int
    event_time: bool
    states: tuple[ShardState, ...]


def inspect_checkpoint(spark: SparkSession, path: str, operator: int | None = None) -> list[AckerState]:
    """Read the state of the ackers in a checkpoint. Their query may run meanwhile.

    Parameters
    ----------
    spark : SparkSession
    path : str
        The query's checkpointLocation, where it was written: Spark keeps absolute paths in it.
    operator : int, optional
        Number of the only stateful operator to read.

    Returns
    -------
    list of AckerState
        In the order of the operators.

    Raises
    ------
    ArgumentValueError
        There is no checkpoint, or no acker in it; the text names what was found.
    """
    found = _metadata(spark, path)
    if not found:
        raise ArgumentValueError(f"{path}: expected the checkpointLocation of a query with state, found no state there")
    ackers = {number: row for number, row in found.items() if _is_acker(row)}
    if operator is not None:
        if operator not in ackers:
            raise ArgumentValueError(
                f"operator: expected one of an acker ({_describe(ackers) or 'there is none'}), got {operator}"
            )
        ackers = {operator: ackers[operator]}
    if not ackers:
        raise ArgumentValueError(f"{path}: there is no acker in this checkpoint, but {_describe(found)}")
    return [_read(spark, path, number, row) for number, row in sorted(ackers.items())]


def _metadata(spark: SparkSession, path: str) -> dict[int, Any]:
    """Return Spark's metadata of each stateful operator, by its number."""
    rows = _collect(spark.read.format("state-metadata").load, path)
    return {row.operatorId: row for row in rows}


def _is_acker(row: Any) -> bool:
    """Return whether an operator is an acker, which its state variables tell."""
    properties = json.loads(row.operatorProperties or "{}")
    named = {each.get("stateName"): each.get("stateVariableType") for each in properties.get("stateVariables", ())}
    return named == _VARIABLES


def _describe(rows: Mapping[int, Any]) -> str:
    return ", ".join(f"{number}: {row.operatorName}" for number, row in sorted(rows.items()))


def _read(spark: SparkSession, path: str, operator: int, row: Any) -> AckerState:
    def load(which: Column) -> DataFrame:
        # The same micro-batch both times: the query may be writing the next one.
        options = {"operatorId": operator, "batchId": row.maxBatchId, "stateVarName": VARIABLE}
        return spark.read.format("statestore").options(**options).load(path).where(which)

    number = F.col("user_map_key.chunk")

    heads: dict[int, Head] = {}
    states: list[ShardState] = []
    columns = ("key.partition_key", "partition_id", "user_map_value.bytes")
    partition_of: dict[int, int] = {}
    for key, partition, data in _collect(lambda _: load(number == HEAD_KEY).select(*columns), path):
        partition_of[key] = partition
        try:
            heads[key] = decode_head(bytes(data))
        except CheckpointError as unreadable:
            states.append(ShardState(shard=-1, partition=partition, fault=str(unreadable)))
    logs = _collect(lambda _: _read_logs(load(number > HEAD_KEY), heads), path)
    found = {log.partition_key: log for log in logs}
    empty = _summarise(-1, {}, None)
    for key, head in heads.items():
        log = found.get(key)
        fault = log.fault if log else "" if not head.entries else "its log is missing: the checkpoint is damaged"
        states.append(_shard(head, partition_of[key], log or empty, fault))
    first = next(iter(heads.values()), None)
    return AckerState(
        operator=operator,
        batch_id=row.maxBatchId,
        version=VERSION,
        shards=first.shards if first else 0,
        partitions=row.numPartitions,
        event_time=bool(first and first.event_time),
        states=tuple(sorted(states)),
    )


def _shard(head: Head, partition: int, log: Any, fault: str) -> ShardState:
    return ShardState(
        shard=head.shard,
        partition=partition,
        batch_id=head.batch_id,
        pending=head.entries,
        open=head.open,
        oldest_age_ms=max(0, head.time_ms - log.oldest_ms) if sum(log.ages) else 0,
        ages=tuple(log.ages),
        log_bytes=head.log_bytes,
        log_rows=head.log_rows,
        chunks=head.next_chunk - head.first_chunk,
        time_ms=head.time_ms,
        clock_ms=head.clock_ms,
        counts=head.counts,
        fault=fault,
    )


def _read_logs(log: DataFrame, heads: Mapping[int, Head]) -> DataFrame:
    """Return a row for each shard that has a log. The workers read the logs and send summaries only."""
    known = dict(heads)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        chunks: dict[int, dict[int, bytes]] = {}
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in ("partition_key", "chunk", "bytes"))
            for key, number, data in zip(*columns, strict=True):
                chunks.setdefault(key, {})[number] = data
        rows = [_summarise(key, chunks[key], known.get(key)) for key in sorted(chunks)]
        yield pa.RecordBatch.from_pylist([row._asdict() for row in rows], schema=_LOG_SCHEMA)

    columns = ("key.partition_key", "user_map_key.chunk", "user_map_value.bytes")
    return log.select(*columns).mapInArrow(pack_function(run, "summarize"), _LOG_DDL)


class _LogSummary(NamedTuple):
    """A log: the start of its oldest entry, the entries by age, and what is wrong with it."""

    partition_key: int
    oldest_ms: int
    ages: list[int]
    fault: str


def _summarise(key: int, chunks: Mapping[int, bytes], head: Head | None) -> _LogSummary:
    """Read a log as the operator does that lost its table."""
    nothing = _LogSummary(key, 0, [0] * (len(AGE_BOUNDS_MS) + 1), "")
    if head is None or not chunks:
        return nothing
    try:
        start_ms = _starts(chunks, head)
    except CheckpointError as error:
        return nothing._replace(fault=str(error))
    if not len(start_ms):
        return nothing
    group = np.searchsorted(AGE_BOUNDS_MS, head.time_ms - start_ms, side="right")
    ages = np.bincount(group, minlength=len(AGE_BOUNDS_MS) + 1)
    return _LogSummary(key, int(start_ms[0]), ages.tolist(), "")


def _starts(chunks: Mapping[int, bytes], head: Head) -> npt.NDArray[np.int64]:
    """Return the start of each entry that a log holds, in ascending order.

    Raises
    ------
    CheckpointError
        It is damaged, of another version, or contradicts the head.
    """
    numbers = range(head.first_chunk, head.next_chunk)
    if sorted(chunks) != list(numbers):
        raise CheckpointError(
            f"the log should have the chunks {numbers.start} to {numbers.stop - 1} and has {len(chunks)}: the"
            " checkpoint is damaged"
        )
    # In the order of writing, which in a chunk begins with what is gone. Of the rows with one root id and start, which
    # identify an entry, the last one counts.
    root_id, start_ms, since_ms, task_id = [], [], [], []
    for number in numbers:
        entries, gone = decode_chunk(chunks[number])
        root_id += [gone[0], entries.root_id]
        start_ms += [gone[1], entries.start_ms]
        since_ms += [np.full_like(gone[0], INT64_MIN), entries.since_ms]
        task_id += [np.full_like(gone[0], _GONE), entries.task_id]
    root, start, since, task = (np.concatenate(column) for column in (root_id, start_ms, since_ms, task_id))
    # Stable, so that the last row of an entry stays the last one.
    order = np.lexsort((start, root))
    is_last = np.ones(len(order), bool)
    is_last[:-1] = (np.diff(root[order]) != 0) | (np.diff(start[order]) != 0)
    start, since, task = (column[order[is_last]] for column in (start, since, task))
    held = (task != _GONE) & (since >= head.expired_ms)
    tracked = int(np.count_nonzero(held & (task >= 0)))
    found = int(np.count_nonzero(held))
    if (found, tracked) != (head.entries, head.open):
        raise CheckpointError(
            f"the log holds {found} entries, {tracked} of them tracked, and the head says {head.entries} and"
            f" {head.open}: the checkpoint is damaged"
        )
    oldest_first: npt.NDArray[np.int64] = np.sort(start[held])
    return oldest_first


def _collect(load: Any, path: str) -> list[Any]:
    """Run a query on a checkpoint; an error says in one sentence why it cannot be read."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        rows: list[Any] = load(path).collect()
    except (Py4JError, PySparkException) as error:
        lines = [line.strip(": ") for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        if isinstance(error, Py4JError):  # The first line tells which call failed, the second one why.
            why = lines[min(1, len(lines) - 1)]
        elif "Traceback" in str(error):  # Of a Python worker.
            why = lines[-1]
        else:
            why = lines[0]
        moved = "; a checkpoint that was moved or copied cannot be read" if "FileNotFound" in why else ""
        raise ArgumentValueError(f"{path}: Spark cannot read it as a checkpoint: {why}{moved}") from error
    return rows
