"""A sink that calls a function with the completions of each micro-batch."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, runtime_checkable

import numpy as np
import pyarrow as pa

from acker._engine.completions import Completions
from acker._engine.schemas import COMPLETION_SCHEMA
from acker.errors import ArgumentTypeError, ColumnValueError
from acker.spark.notes import Failed
from acker.spark.pipelines.completions import PipelineCompletions
from acker.spark.session_checks import is_classic
from acker.spark.text_ids import is_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from acker.spark.streams.replays import Replays

_log: Final = logging.getLogger("acker.spark")

# The text before the Java part of an error, and the longest text that may follow it: 1,000 characters are safe for a
# stack of 1 MB, 2,000 overflow it before the JVM has compiled its regular expressions.
_PROXY_ERROR: Final = "py4j.protocol.Py4JJavaError: An error occurred while calling"
_REST_CHARS_MAX: Final = 800
_CAUSE_CHARS_MAX: Final = 300
# The local property of a job that holds the id of its query.
_QUERY_ID: Final = "sql.streaming.queryId"
_INTERRUPTIONS: Final = ("InterruptedException", "InterruptedIOException", "ClosedByInterruptException", "cancelled")

BatchFunction: TypeAlias = "Callable[[Completions, int], object]"


@runtime_checkable
class CompletionSink(Protocol):
    """Writes each micro-batch of a query once."""

    def write(self, completions: Completions, batch_id: int, query_id: str, /) -> object:
        """Write a micro-batch, unless it is written; the id of a query belongs to its checkpoint."""


def for_each_completion(
    batch_fn: BatchFunction | CompletionSink | None = None, *, empty: bool = False, replays: Replays | None = None
) -> Callable[[DataFrame, int], None]:
    """Return a function for `writeStream.foreachBatch` that calls `batch_fn` with the completions of each micro-batch.

    Parameters
    ----------
    batch_fn : callable or sink, optional
        A sink that knows by itself what it has written, such as `acker.connectors.kafka.KafkaSink`; or a function,
        called as ``batch_fn(completions, batch_id)`` with `acker.Completions` and an int, in the process that started
        the query (with Spark Connect: in one of the server's), for one micro-batch after the other. Its result is
        ignored. When it raises, the query ends with that error and the micro-batch counts as not done.
    empty : bool
        Call it for micro-batches without completions too.
    replays : Replays, optional
        Sends failed messages again or gives them up; it acts before `batch_fn` is called, in each micro-batch.

    Returns
    -------
    callable
        For `foreachBatch` on a stream with the columns of `acker.COMPLETION_SCHEMA`. With those of a pipeline,
        component and reason, `completions` is a `PipelineCompletions`, which has them too. Further ones are ignored.

    Raises
    ------
    ArgumentTypeError
        `batch_fn` cannot be called, `replays` is something else, or neither is given.

    Notes
    -----
    **Exactly once.** Spark records a micro-batch as done after `batch_fn` returned. After a crash in between, or when
    `batch_fn` raised, the restarted query calls it again with the same batch id and the same completions, in any order.
    So store the batch id with the effect in one transaction, and do nothing if it is stored already. Ids grow by one
    and belong to the checkpoint: a new checkpoint begins at 0, so delete the stored id with the old one. An effect that
    may be repeated, such as acking a message of a queue, needs no transaction.

    All completions of a micro-batch are in memory at once, about 60 bytes each in Python and 30 in the driver's JVM
    (`spark.driver.memory`). If that is too much, bound the micro-batches (`maxFilesPerTrigger` and the like), or write
    completions to a table instead.

    Examples
    --------
    >>> import acker.spark as aspark
    >>> from acker import Outcome
    >>> def settle(done, batch_id):
    ...     with database:  # one transaction
    ...         (last,) = database.execute("SELECT max(batch_id) FROM progress").fetchone()
    ...         if last is None or batch_id > last:
    ...             acked = done.message_id[done.outcome == Outcome.ACKED]
    ...             database.executemany("DELETE FROM inbox WHERE id = ?", [(id_,) for id_ in acked.tolist()])
    ...             database.execute("INSERT INTO progress VALUES (?)", (batch_id,))
    >>> completions = aspark.completions(messages, timeout="1 minute", shards=8)                        # doctest: +SKIP
    >>> writer = completions.writeStream.foreachBatch(aspark.for_each_completion(settle))               # doctest: +SKIP
    >>> query = writer.option("checkpointLocation", "checkpoint").start()                               # doctest: +SKIP
    """
    is_needed = batch_fn is not None or replays is None
    if is_needed and not (callable(batch_fn) or isinstance(batch_fn, CompletionSink)):
        raise ArgumentTypeError(
            f"batch_fn: expected a function of (completions, batch_id), got {type(batch_fn).__name__}"
        )
    if replays is not None and not callable(getattr(replays, "settle", None)):
        raise ArgumentTypeError(f"replays: expected acker.spark.Replays, got {type(replays).__name__}")

    def call(frame: DataFrame, batch_id: int) -> None:
        missing = [name for name in COMPLETION_SCHEMA.names if name not in frame.columns]
        if missing:
            raise ColumnValueError(
                f"for_each_completion: expected the columns of acker.COMPLETION_SCHEMA, {', '.join(missing)} among"
                f" them, got {', '.join(frame.columns)}"
            )
        try:
            # Only one action: each further one would run the stateful operator again.
            why = Failed._fields if set(Failed._fields) <= set(frame.columns) else ()
            done = _completions_of(frame.select(*COMPLETION_SCHEMA.names, *why).toArrow())
            if replays is not None:
                replays.settle(done, batch_id, _query_id(frame))
            if batch_fn is None or not (empty or len(done)):
                return
            if isinstance(batch_fn, CompletionSink):
                batch_fn.write(done, batch_id, _query_id(frame))
            else:
                batch_fn(done, batch_id)
        except Exception as error:
            short = _shorten(error)
            if short is None:
                raise
            is_stop = any(name in short for name in _INTERRUPTIONS)
            _log.log(logging.DEBUG if is_stop else logging.ERROR, "micro-batch %s failed", batch_id, exc_info=True)
            raise RuntimeError(short) from None

    return call


def _query_id(frame: DataFrame) -> str:
    """Return the id of the query that this micro-batch belongs to; "" in a batch, and with Spark Connect."""
    session = frame.sparkSession
    query: Any = session.sparkContext.getLocalProperty(_QUERY_ID) if is_classic(session) else None
    return query or ""


def _shorten(error: Exception) -> str | None:
    """Return the causes in a long error of Spark's, without the stack traces; None for any other error.

    When a query is stopped, Spark searches the error of its function for the stop's own interruption, with a regular
    expression that needs stack for each character. A stack trace is too long: the stop would end in a
    StackOverflowError. So the short text must keep what Spark searches for.
    """
    _, is_sparks, rest = "".join(traceback.format_exception(error)).partition(_PROXY_ERROR)
    if not is_sparks or len(rest) <= _REST_CHARS_MAX:
        return None
    call, *lines = rest.splitlines()
    causes = [line[:_CAUSE_CHARS_MAX] for line in lines if line.startswith((": ", "Caused by: "))]
    return f"{_PROXY_ERROR}{call}\n" + "\n".join(dict.fromkeys(causes))[:_REST_CHARS_MAX]


def _completions_of(table: pa.Table) -> Completions:
    """Return rows from Spark as columns that own their memory; with why trees failed, where a pipeline says it."""
    ids = table["message_id"]
    if is_text(ids.type):
        index = table.schema.get_field_index("message_id")
        table = table.set_column(index, "message_id", pa.nulls(len(table), pa.int64()).fill_null(0))
    columns = table.select(COMPLETION_SCHEMA.names).cast(COMPLETION_SCHEMA)
    empties = {field.name: np.zeros(0, field.type.to_pandas_dtype()) for field in COMPLETION_SCHEMA}
    plain = [
        np.concatenate([empty, *(chunk.to_numpy(zero_copy_only=False) for chunk in columns[name].chunks)])
        for name, empty in empties.items()
    ]
    done = Completions(*plain)
    if table.num_columns == len(COMPLETION_SCHEMA):
        return done
    component, reason = (_objects(table[name]) for name in Failed._fields)
    return PipelineCompletions.of(done, _objects(ids) if is_text(ids.type) else done.message_id, component, reason)


def _objects(column: pa.ChunkedArray[Any]) -> Any:
    return column.combine_chunks().to_numpy(zero_copy_only=False).astype(object)
