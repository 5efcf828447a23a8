"""The stateful operator that Spark calls for each shard: rows of blocks in, completions and a report out."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from acker._engine.completions import Completions
from acker._engine.schemas import COMPLETION_SCHEMA
from acker.errors import CheckpointError
from acker.spark.notes import Failed
from acker.spark.pipelines.completions import PipelineCompletions
from acker.spark.streams.micro_batch import ShardBatch, update
from acker.spark.streams.state_format import HEAD_KEY, VARIABLE, decode_head
from acker.spark.streams.table_cache import worker_cache
from acker.spark.text_ids import text_type
from acker.spark.versioned_pickle import VersionedPickle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from acker.spark.streams.reports import MicroBatchReport
    from acker.spark.streams.shard_rules import ShardRules

# The output: completions, whose last column is null, and reports, whose other columns are 0.
OUTPUT_DDL: Final = "root_id long, message_id long, task_id int, outcome tinyint, elapsed_ms long, report string"
# The types of the state variable. As text each worker would ask the JVM to parse them, twice in each micro-batch.
_KEY: Final = StructType([StructField("chunk", IntegerType())])
_VALUE: Final = StructType([StructField("bytes", BinaryType())])
# The other columns of a report.
_NO_COMPLETION: Final = Completions.from_rows([(0, 0, 0, 0, 0)])


class SparkStore:
    """A shard's state in Spark's state store; valid while Spark handles the shard's key."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._log = handle.getMapState(VARIABLE, _KEY, _VALUE)

    def get(self, key: int) -> bytes | None:
        """Return the bytes at a key, None if there are none."""
        row = self._log.getValue((key,))
        return None if row is None else row[0]

    def put(self, key: int, data: bytes) -> None:
        """Write the bytes at a key."""
        self._log.updateValue((key,), (data,))

    def remove(self, key: int) -> None:
        """Remove the bytes at a key."""
        self._log.removeKey((key,))


class AckerProcessor(StatefulProcessor):
    """Settles the blocks of each shard with `acker.spark.streams.micro_batch.update`.

    Parameters
    ----------
    rules : ShardRules
    name : str
        Name of the observation, which distinguishes the ackers of one query.
    """

    def __init__(self, rules: ShardRules, name: str) -> None:
        self._rules = rules
        self._no_completion = _NO_COMPLETION
        if rules.ids is not None:
            message_id = _NO_COMPLETION.message_id if text_type(rules.ids) is None else np.full(1, None, object)
            nothing = np.full(1, None, object)
            self._no_completion = PipelineCompletions.of(_NO_COMPLETION, message_id, nothing, nothing)
        # Part of file names, while an observation may have any name.
        self._name = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
        # Used in place of the query's id, which workers do not know if the query was started through Spark Connect.
        self._plan = os.urandom(8).hex()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the release of acker, which the driver's helper process and the workers open."""
        return VersionedPickle(_PickledProcessor(self)).__reduce__()

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state variable; on the driver too, which asks for its name and type."""
        self._handle = handle
        self._store = SparkStore(handle)

    def handleInputRows(  # noqa: N802  Spark's names.
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Settle one micro-batch of one shard."""
        shards = set()
        blocks: list[Any] = []
        clock_ms = None
        for frame in rows:
            shards.update(frame["shard"].tolist())
            blocks += [block for block in frame["block"] if block is not None]
            clock_ms = int(frame["clock_ms"].iloc[0])
        if len(shards) != 1 or clock_ms is None:
            raise CheckpointError(f"shard: expected one shard for the partition key {key[0]}, got {sorted(shards)}")
        if self._rules.event_time:
            clock_ms = max(timerValues.getCurrentWatermarkInMs(), 0)
        yield from self._update(int(shards.pop()), blocks, clock_ms)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,  # noqa: ARG002
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803, ARG002
    ) -> Iterator[pd.DataFrame]:
        """Let trees time out by the watermark if no message came."""
        data = self._store.get(HEAD_KEY)
        if data is None:
            return
        head, watermark_ms = decode_head(data), timerValues.getCurrentWatermarkInMs()
        # Spark calls for timers after the rows. If the rows came with this watermark a second update of the micro-batch
        # would find nothing to do, and its report would replace the first one.
        if head.clock_ms < watermark_ms:
            yield from self._update(head.shard, [], watermark_ms)

    def _update(self, shard: int, blocks: list[Any], clock_ms: int) -> Iterator[pd.DataFrame]:
        context = TaskContext.get()
        assert context is not None
        batch = ShardBatch(int(context.getLocalProperty("streaming.sql.batchId") or -1), blocks, clock_ms)
        query = context.getLocalProperty("sql.streaming.queryId") or self._plan
        key = f"{query}-{self._name}-{shard}"
        completions, report, details = update(self._store, worker_cache(), key, shard, batch, self._rules)
        if self._rules.event_time:
            self._set_timer(report)
        if len(completions):
            yield frame_of(completions)
        told = report._asdict() | details.to_json()
        yield frame_of(self._no_completion, json.dumps(told))

    def _set_timer(self, report: MicroBatchReport) -> None:
        """Set a timer for the next rotation while entries are held, and remove all others."""
        due_ms = self._rules.next_rotation_ms(report.time_ms) if report.pending else None
        is_set = False
        for timer in list(self._handle.listTimers()):
            if timer == due_ms:
                is_set = True
            else:
                self._handle.deleteTimer(timer)
        if due_ms is not None and not is_set:
            self._handle.registerTimer(due_ms)

    def close(self) -> None:
        """Do nothing: tables stay for the next micro-batch."""


class _PickledProcessor:
    """A processor as `VersionedPickle` pickles it: without another one around it."""

    def __init__(self, processor: AckerProcessor) -> None:
        self._processor = processor

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_processor, (type(self._processor), vars(self._processor))


def _restore_processor(kind: type[AckerProcessor], fields: dict[str, Any]) -> AckerProcessor:
    processor = kind.__new__(kind)
    vars(processor).update(fields)
    return processor


def frame_of(done: Completions, report: str | None = None) -> pd.DataFrame:
    """Return rows of the operator's output; of a pipeline, with why trees failed."""
    columns = {name: getattr(done, name) for name in COMPLETION_SCHEMA.names}
    columns["report"] = np.full(len(done), report, object)
    if isinstance(done, PipelineCompletions):
        columns |= {name: getattr(done, name) for name in Failed._fields}
    return pd.DataFrame(columns)
