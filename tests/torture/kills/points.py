"""The points of a micro-batch at which processes report to the killer and wait for its answer."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext

from acker.spark.streams import micro_batch
from acker.spark.streams.operator import AckerProcessor
from acker.spark.streams.state_format import HEAD_KEY

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

    from acker.spark.streams.shard_rules import ShardRules
    from acker.spark.streams.state_format import Store

# Points of the driver, and those of workers.
SINK, KEPT = "sink", "kept"
DRIVER_POINTS: Final = (SINK, KEPT)
READ = "read"
HEAD_UNREAD, HEAD_UNWRITTEN, HEAD_WRITTEN = (
    "before the head is read",
    "before the head is written",
    "after the head was written",
)
CHUNK_WRITTEN, CHUNK_REMOVED = "after a chunk was written", "after a chunk was removed"
TABLE_LEFT = "before rows are given out, the table being left for others"
WORKER_POINTS: Final = (READ, HEAD_UNREAD, CHUNK_REMOVED, CHUNK_WRITTEN, HEAD_UNWRITTEN, HEAD_WRITTEN, TABLE_LEFT)

_HOST: Final = "127.0.0.1"
# Fewer than a shard writes in a micro-batch.
_LOG_ROWS_SPARE: Final = 200


def reach(port: int, point: str, batch_id: int | None = None) -> None:
    """Wait at a point until the killer, which listens at a port of this machine, lets this process continue."""
    if batch_id is None:
        context = TaskContext.get()
        batch_id = int((context and context.getLocalProperty("streaming.sql.batchId")) or -1)
    tell(port, {"point": point, "process": os.getpid(), "session": os.getsid(0), "batch": batch_id})


def tell(port: int, what: dict[str, Any]) -> None:
    """Send a report to the killer, and wait for its answer."""
    try:
        with socket.create_connection((_HOST, port)) as connection:
            connection.sendall(json.dumps(what).encode() + b"\n")
            connection.recv(1)
    except OSError:
        return  # The run is over.


def pass_on(port: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield messages as they come; one point for each Arrow batch."""
    for batch in batches:
        reach(port, READ)
        yield batch


class WatchedStore:
    """A store with a point before and after each call of a micro-batch."""

    def __init__(self, store: Store, port: int) -> None:
        self._store = store
        self._port = port

    def get(self, key: int) -> bytes | None:
        """Return the bytes at a key."""
        if key == HEAD_KEY:
            reach(self._port, HEAD_UNREAD)
        return self._store.get(key)

    def put(self, key: int, data: bytes) -> None:
        """Write the bytes at a key."""
        if key == HEAD_KEY:
            reach(self._port, HEAD_UNWRITTEN)
        self._store.put(key, data)
        reach(self._port, HEAD_WRITTEN if key == HEAD_KEY else CHUNK_WRITTEN)

    def remove(self, key: int) -> None:
        """Remove the bytes at a key."""
        self._store.remove(key)
        reach(self._port, CHUNK_REMOVED)


class WatchedProcessor(AckerProcessor):
    """The operator, with points."""

    def __init__(self, port: int, rules: ShardRules, name: str) -> None:
        super().__init__(rules, name)
        self._port = port

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Put the points into the store."""
        super().init(handle)
        # So that a log as short as here is cleaned, too: the oldest chunks go, and what counts is written again.
        setattr(micro_batch, "_LOG_ROWS_SPARE", _LOG_ROWS_SPARE)  # noqa: B010
        self._store = WatchedStore(self._store, self._port)  # type: ignore[assignment]

    def _update(self, shard: int, blocks: list[Any], clock_ms: int) -> Iterator[pd.DataFrame]:
        for frame in super()._update(shard, blocks, clock_ms):
            reach(self._port, TABLE_LEFT)
            yield frame
