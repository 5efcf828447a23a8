"""for_each_completion: hands the trees that each micro-batch finished to a function of the user's, on the driver."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from acker._engine.completions import Completions
from acker._engine.schemas import COMPLETION_SCHEMA
from acker.errors import ArgumentTypeError, ColumnValueError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_log: Final = logging.getLogger("acker.spark")

# What stands before the Java side of an error, and how much may stand behind it: 1,000 characters are no danger to a
# stack of 1 MB, 2,000 overflow it while the JVM has not yet compiled its regular expressions.
_PROXY_ERROR: Final = "py4j.protocol.Py4JJavaError: An error occurred while calling"
_REST_CHARS_MAX: Final = 800
_CAUSE_CHARS_MAX: Final = 300
_INTERRUPTIONS: Final = ("InterruptedException", "InterruptedIOException", "ClosedByInterruptException", "cancelled")

BatchFunction: TypeAlias = "Callable[[Completions, int], object]"


def for_each_completion(batch_fn: BatchFunction, *, empty: bool = False) -> Callable[[DataFrame, int], None]:
    """Return what `writeStream.foreachBatch` takes, which calls `batch_fn` with the completions of each micro-batch.

    Parameters
    ----------
    batch_fn : callable
        Called as ``batch_fn(completions, batch_id)`` with `acker.Completions` and an int, in the process that started
        the query (with Spark Connect: in one of the server's), for one micro-batch after the other. What it returns is
        ignored. When it raises, the query ends with that error and the micro-batch counts as not done.
    empty : bool
        Call it for micro-batches without completions too.

    Returns
    -------
    callable
        For `foreachBatch`, on a stream with the columns of `acker.COMPLETION_SCHEMA`; further ones are ignored.

    Raises
    ------
    ArgumentTypeError
        `batch_fn` cannot be called.

    Notes
    -----
    **Exactly once.** `batch_fn` runs before Spark takes note that the micro-batch is done. After a crash in between, or
    when `batch_fn` raised, the restarted query calls it again, with the same batch id and the same completions, in
    whatever order. So keep the batch id with the effect, both in one transaction, and return when it is there already.
    Ids grow by one and belong to the checkpoint: a new checkpoint begins at 0, so forget the id with the old one. Where
    there is no transaction, effects that may be repeated do (acking a message of a queue twice).

    All completions of a micro-batch are in memory at once, about 60 bytes each in Python and 30 in the driver's JVM
    (`spark.driver.memory`). Where that is too much, bound the micro-batches (`maxFilesPerTrigger` and its like), or
    write completions to a table instead.

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
    if not callable(batch_fn):
        raise ArgumentTypeError(
            f"batch_fn: expected a function of (completions, batch_id), got {type(batch_fn).__name__}"
        )

    def call(frame: DataFrame, batch_id: int) -> None:
        missing = [name for name in COMPLETION_SCHEMA.names if name not in frame.columns]
        if missing:
            raise ColumnValueError(
                f"for_each_completion: expected the columns of acker.COMPLETION_SCHEMA, {', '.join(missing)} among"
                f" them, got {', '.join(frame.columns)}"
            )
        try:
            # One action and no more: each further one would run the stateful operator again.
            done = _completions_of(frame.select(*COMPLETION_SCHEMA.names).toArrow())
            if empty or len(done):
                batch_fn(done, batch_id)
        except Exception as fault:
            short = _shortened(fault)
            if short is None:
                raise
            is_stop = any(name in short for name in _INTERRUPTIONS)
            _log.log(logging.DEBUG if is_stop else logging.ERROR, "micro-batch %s failed", batch_id, exc_info=True)
            raise RuntimeError(short) from None

    return call


def _shortened(fault: Exception) -> str | None:
    """Return the causes that a long error of Spark's names, without its stack traces; None for any other error.

    When a query is stopped, Spark looks into the error that its function ended with for the stop's own interruption, by
    a regular expression that needs a piece of stack for each character. A stack trace is too long for that: the stop
    would end in a StackOverflowError. So what Spark looks for has to stand here too.
    """
    _, is_sparks, rest = "".join(traceback.format_exception(fault)).partition(_PROXY_ERROR)
    if not is_sparks or len(rest) <= _REST_CHARS_MAX:
        return None
    call, *lines = rest.splitlines()
    causes = [line[:_CAUSE_CHARS_MAX] for line in lines if line.startswith((": ", "Caused by: "))]
    return f"{_PROXY_ERROR}{call}\n" + "\n".join(dict.fromkeys(causes))[:_REST_CHARS_MAX]


def _completions_of(table: pa.Table) -> Completions:
    """Return rows that came from Spark as columns that own their memory."""
    columns = table.cast(COMPLETION_SCHEMA)
    empties = {field.name: np.zeros(0, field.type.to_pandas_dtype()) for field in COMPLETION_SCHEMA}
    return Completions(
        **{
            name: np.concatenate([empty, *(chunk.to_numpy(zero_copy_only=False) for chunk in columns[name].chunks)])
            for name, empty in empties.items()
        }
    )
