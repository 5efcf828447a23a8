"""The four functions that turn messages into completions: from rows, files, blocks and tracked pipelines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from acker.errors import ArgumentTypeError, ArgumentValueError
from acker.spark.aggregate import aggregate_completions, check_message_columns
from acker.spark.block_settlement import check_block_columns, check_block_rows, settle_rows
from acker.spark.files import blocks_of_files
from acker.spark.options import (
    CompletionKeywords,
    ShardedKeywords,
    check_options,
    check_source_options,
    refuse_in_batch,
    takes_options,
)
from acker.spark.pipelines.pipeline_settlement import settle_pipelines
from acker.spark.streams.file_source import blocks_of_directory
from acker.spark.streams.plan import completions_of_block_stream
from acker.spark.streams.rows import blocks_of_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from acker.spark.pipelines.aggregated import Aggregated
    from acker.spark.pipelines.tracked import Tracked


@takes_options(ShardedKeywords)
def completions(
    messages: DataFrame,
    **options: Unpack[ShardedKeywords],
) -> DataFrame:
    """Settle the messages in a DataFrame: all rows of a batch as one set, each micro-batch of a stream as a set.

    Parameters
    ----------
    messages : DataFrame
        With the columns of `acker.MESSAGE_SCHEMA` by name; further ones are ignored. Integers of another width are
        converted when no value changes. task_id and message_id may be null where no row is a TRACK.
    shards : int, 1 to 1024, optional
        Streams: the number of parts into which the trees are split; by default Spark's shuffle partitions, at most
        1024. The checkpoint keeps it. A batch has no use for it: Spark's shuffle partitions decide.
    timeout : str or number, optional
        Streams only: "90 seconds", or seconds above 0, after which a tree ends TIMED_OUT. None: trees wait for ever,
        and a warning says so.
    protocol : {"storm", "storm-0.9"}
        Both give the same result for one set of messages. "fsshelter" needs an order.
    include_pending : bool
        Batches only: report the trees that are still open too, with outcome PENDING.
    buckets : int, 2 to 15, optional
        Streams only: a tree times out after more than `timeout` and at most ``timeout * buckets / (buckets - 1)``. By
        default 3.
    high_water : int >= 0, optional
        Streams only: bounds the state, an equal part for each shard. While more than twice as many tracked trees are
        held, a TRACK of a tree that its micro-batch does not finish is answered REJECTED. None: no limit.
    event_time : str, optional
        Streams only: a column of timestamps, or of bigint milliseconds, without nulls. Each message counts at its own
        time, and trees expire by the watermark instead of by the clock.
    watermark_delay : str, optional
        Streams only: how far the watermark stays behind the latest event time. By default "0 seconds".
    name : str, optional
        Streams only: name of the observation that reports what each shard did, by default "acker". The ackers of one
        query need different names.

    Returns
    -------
    DataFrame
        Columns of `acker.COMPLETION_SCHEMA`, one row for each finished tree that had a TRACK. Messages of one tree may
        lie in any partitions, in any order. Batch: `elapsed_ms` is 0, nothing times out, and nothing runs before an
        action. Streaming: see docs/streaming.md.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        A wrong argument; an option that only a stream has, for a batch, or the other way round.
    SessionError
        The session cannot run a streaming acker; the text says what to do.
    ColumnTypeError, ColumnValueError
        A column that is missing or does not hold integers. A bad value in a row fails the job with an error that names
        the column and the root id.

    Examples
    --------
    >>> import acker.spark as aspark
    >>> done = aspark.completions(spark.read.parquet("messages"))                                       # doctest: +SKIP
    >>> done.groupBy("outcome").count().show()                                                          # doctest: +SKIP
    """
    checked = check_options(**options)
    if not hasattr(messages, "isStreaming") or not hasattr(messages, "schema"):
        raise ArgumentTypeError(
            f"messages: expected a DataFrame of PySpark, got {type(messages).__module__}.{type(messages).__qualname__}"
        )
    types = check_message_columns(messages.schema)
    if messages.isStreaming:
        checked.refuse_batch_options()
        shards = checked.stream_shards(messages.sparkSession)
        blocks = blocks_of_rows(messages, types, shards, checked)
        return completions_of_block_stream(blocks, shards, checked)
    checked.refuse_stream_options()
    return aggregate_completions(messages, types, include_pending=checked.include_pending)


@takes_options(ShardedKeywords)
def completions_from_files(
    spark: SparkSession,
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    streaming: bool = False,
    max_files_per_trigger: int | None = None,
    source_options: Mapping[str, Any] | None = None,
    skip_foreign_files: bool = False,
    **options: Unpack[ShardedKeywords],
) -> DataFrame:
    """Settle the messages in Parquet and Arrow IPC files: all of them as one set, or those that keep coming.

    The workers read the files themselves, so every executor must be able to reach them. This is the fast way: no
    message becomes a row of Spark's.

    With ``streaming=True`` the files are those of one directory, present and future, and the DataFrame is a streaming
    one: the messages in the files of each micro-batch are one set, and trees stay open from one micro-batch to the
    next. A file must appear whole, as one that is moved in does, and must not change. Its format and columns are
    checked when it appears: a wrong one fails the query.

    Parameters
    ----------
    spark : SparkSession
    paths : path or paths
        Files, directories (searched to the bottom, without what Spark takes for hidden, such as ``_SUCCESS``) and
        patterns with ``*``, ``?``, ``[...]`` and ``**``; local, or URIs of a filesystem that pyarrow knows. A path that
        exists as written is no pattern. Where a file sink of Structured Streaming wrote, only the files in its log
        count; a file that is named itself is read all the same, with a warning. The first bytes of a file tell its
        format. With `streaming` one directory that exists. Columns as in `acker.MESSAGE_SCHEMA`, found by name, further
        ones ignored; integers of another width are converted when no value changes; task_id and message_id may be null
        where no row is a TRACK.
    shards : int, 1 to 1024, optional
        The number of parts into which the trees are split before they are settled, each by one task. By default the
        larger of the session's parallelism and one shard for 16 million messages; with `streaming` Spark's shuffle
        partitions, at most 1024.
    timeout, protocol, include_pending, buckets, high_water, watermark_delay, name
        As for `completions`.
    event_time : str, optional
        With `streaming` only: a column of the files, of timestamps or of integers in milliseconds since 1970, by which
        trees time out.
    streaming : bool
        Watch one directory. Without it the options that follow, and those of streams, are refused.
    max_files_per_trigger : int, optional
        The most files that one micro-batch takes. By default all that are there.
    source_options : mapping of str to object, optional
        Options of Spark's file source by Spark's own names: `acker.spark.options.SOURCE_OPTIONS`. Without
        `maxFileAge` files of any age are taken.
    skip_foreign_files : bool
        Skip a file of another format, without the columns, or with a damaged footer, where otherwise the query would
        end. The worker logs a warning, `AckerListener` counts it, and `skipped_files` names it.

    Returns
    -------
    DataFrame
        Columns of `acker.COMPLETION_SCHEMA`, one row for each finished tree that had a TRACK; `elapsed_ms` is 0 in a
        batch. Each evaluation of a batch reads the files again.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        A wrong argument; an option that only a stream has, for a batch, or the other way round; paths that match
        nothing; a file of another format.
    ColumnTypeError, ColumnValueError
        The file, the column, what was expected and what the footer says. A bad value inside a file fails the job with
        an error that names the file, the row, the column and the root id.

    Examples
    --------
    >>> import acker.spark as aspark
    >>> aspark.completions_from_files(spark, "messages/*.parquet").groupBy("outcome").count().show()    # doctest: +SKIP
    """
    checked = check_options(**options)
    source = check_source_options(
        max_files_per_trigger=max_files_per_trigger,
        source_options=source_options,
        skip_foreign_files=skip_foreign_files,
    )
    if streaming:
        checked.refuse_batch_options()
        shards = checked.stream_shards(spark)
        return completions_of_block_stream(blocks_of_directory(spark, paths, shards, source, checked), shards, checked)
    hint = ", or give streaming=True"
    checked.refuse_stream_options(hint)
    if max_files_per_trigger is not None:
        refuse_in_batch("max_files_per_trigger", hint)
    if source_options is not None:
        refuse_in_batch("source_options", hint)
    if skip_foreign_files:
        refuse_in_batch("skip_foreign_files", hint)
    blocks, split = blocks_of_files(spark, paths, checked.shards)
    return settle_rows(blocks, split, include_pending=checked.include_pending)


@takes_options(ShardedKeywords)
def completions_from_blocks(
    blocks: DataFrame,
    *,
    column: str = "block",
    shard: str = "shard",
    **options: Unpack[ShardedKeywords],
) -> DataFrame:
    """Merge blocks and settle every tree: for the blocks that `Tracked.blocks` returned and your program stored.

    Parameters
    ----------
    blocks : DataFrame
        With a binary column of blocks and an integer column with the shard of each. All blocks must have been split
        into the same number of shards, so that the parts of a tree meet. Each micro-batch of a stream is settled as a
        set, and trees stay open from one to the next.
    column, shard : str
        Names of the two columns; others are ignored.
    shards : int, 1 to 1024, optional
        The number of shards. If given, each shard has a partition of its own, and its blocks are checked to belong to
        it. Otherwise Spark's shuffle distributes them by the hashes of the shards. A stream needs it.
    timeout, protocol, include_pending, buckets, high_water, watermark_delay, name
        As for `completions`.
    event_time : str, optional
        Streams only: a column with the latest event time in each block, of timestamps or of bigint milliseconds; the
        blocks must have event times.

    Returns
    -------
    DataFrame
        Columns of `acker.COMPLETION_SCHEMA`, one row for each finished tree that had a TRACK; `elapsed_ms` is 0 in a
        batch.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        A wrong argument; an option that only a stream has, for a batch, or the other way round. A damaged block fails
        the job with an error that says so.
    """
    checked = check_options(**options)
    check_block_columns(blocks, column, shard)
    if not blocks.isStreaming:
        checked.refuse_stream_options()
        rows = check_block_rows(blocks, column, shard, checked)
        return settle_rows(rows, checked.shards, include_pending=checked.include_pending)
    checked.refuse_batch_options()
    if checked.shards is None:
        raise ArgumentValueError("shards: expected the number of shards for a stream of blocks, got None")
    rows = check_block_rows(blocks, column, shard, checked)
    return completions_of_block_stream(rows, checked.shards, checked)


@takes_options(CompletionKeywords)
def completions_of(
    *pipelines: Tracked | Aggregated,
    **options: Unpack[CompletionKeywords],
) -> DataFrame:
    """Settle the messages of one tracked pipeline, or of several that share trees (`Tracked.branches`).

    Parameters
    ----------
    *pipelines : Tracked or Aggregated
        No two may carry the messages of the same component. `spout` says how many shards there are.
    event_time : str, optional
        Streams only: a column of the spout's own rows, of timestamps or of bigint milliseconds, null in no row that has
        a message id. All messages of a tree count at the time of its row, and the tree expires by the watermark instead
        of by the clock. Bolts need not pass the column on. If there are several spouts each must have it.
    timeout, protocol, include_pending, buckets, high_water, watermark_delay, name
        As for `completions`. The completions of several pipelines in one query need different names.

    Returns
    -------
    DataFrame
        Columns of `acker.COMPLETION_SCHEMA`, one row a tree; then component and reason (string): why a tree failed,
        null where none did. A streaming one if the pipelines are.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        A wrong argument; an option that only a stream has, for a batch, or the other way round; no pipeline; messages
        that would count twice.
    """
    if not pipelines:
        raise ArgumentValueError("completions_of: expected at least one pipeline, got none")
    checked = check_options(**options)
    return settle_pipelines([pipeline.plan for pipeline in pipelines], checked)
