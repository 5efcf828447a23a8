"""Settlement of blocks on Spark: their trees end as the reference says, and wrong blocks fail the job."""

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PythonException, SparkRuntimeException

from acker import AckerError
from acker._engine.combiner import Combiner
from acker.errors import ArgumentTypeError, ArgumentValueError
from acker.spark import block_settlement, completions_from_blocks
from acker.spark.blocks import encode_blocks
from tests.marks import slow_after
from tests.oracles import settle_as_sets
from tests.spark.test_blocks import columns, combiner_of


@pytest.fixture(scope="module")
def block_rows():
    """Blocks of messages that were combined in five places, and what they come to."""
    messages = columns(2000)
    rows = []
    for part in np.array_split(np.random.default_rng(1).permutation(2000), 5):
        combiner = combiner_of([column[part] for column in messages])
        rows += [(shard, bytearray(block)) for shard, block in encode_blocks(combiner, 6)]
    return rows, messages


@pytest.mark.spark
@pytest.mark.parametrize("shards", [6, None])
@pytest.mark.parametrize("include_pending", slow_after(1, [False, True]))
def test_blocks_are_settled_on_spark(spark, block_rows, shards, include_pending):
    rows, messages = block_rows
    frame = spark.createDataFrame(rows, "`the.``number%s` bigint, `the ``block` binary").repartition(3)
    done = completions_from_blocks(
        frame, column="the `block", shard="the.`number%s", shards=shards, include_pending=include_pending
    )
    found = sorted(map(tuple, done.collect()))
    assert found == settle_as_sets(*messages, include_pending=include_pending).rows()
    assert done.dtypes == [
        ("root_id", "bigint"),
        ("message_id", "bigint"),
        ("task_id", "int"),
        ("outcome", "tinyint"),
        ("elapsed_ms", "bigint"),
    ]


@pytest.mark.slow
@pytest.mark.spark
def test_blocks_that_are_wrong_fail_the_job_and_say_why(spark, block_rows):
    rows, _ = block_rows
    shard, block = rows[0]
    damaged = bytearray(block)
    damaged[80] ^= 1
    for bad, shards, text in (
        ([(shard, damaged)], None, "block: the checksum does not fit the bytes"),
        ([(shard, None)], None, "expected a shard and a block in each row, got null"),
        ([(None, block)], 6, "expected a shard and a block in each row, got null"),
        ([((shard + 1) % 6, block)], 6, "of 6 holds other trees"),
        ([(5, block)], 5, "expected a shard from 0 to 4 in column 'shard', since shards is 5, got 5: give the number"),
        ([(-1, block)], 6, "expected a shard from 0 to 5 in column 'shard', since shards is 6, got -1"),
        ([(2**40, block)], 6, f"since shards is 6, got {2**40}: give the number of shards into which"),
    ):
        frame = spark.createDataFrame(bad, "shard long, block binary")
        with pytest.raises((PythonException, SparkRuntimeException), match=text):
            completions_from_blocks(frame, shards=shards).collect()


@pytest.mark.spark
def test_frames_without_blocks_are_refused(spark):
    frame = spark.createDataFrame([(1, "x")], "shard int, block string")
    with pytest.raises(ArgumentTypeError, match="expected column 'block' of type binary, got string"):
        completions_from_blocks(frame)
    with pytest.raises(ArgumentValueError, match="there is no column 'carrier'; there are shard, block"):
        completions_from_blocks(frame, column="carrier")
    good = spark.createDataFrame([(1, bytearray())], "shard int, block binary")
    with pytest.raises(ArgumentValueError, match="shards: expected an integer from 1 to 1024, got 0"):
        completions_from_blocks(good, shards=0)
    assert issubclass(ArgumentValueError, AckerError)


def test_completions_leave_in_batches_that_spark_takes_well(monkeypatch):
    monkeypatch.setattr(block_settlement, "_COMPLETION_BATCH_ROWS", 100)
    combiner = Combiner()
    combiner.add(0, np.arange(250), np.zeros(250, np.int64), np.zeros(250, np.int32))
    batches = list(block_settlement.completion_batches(combiner.settle()))
    assert [batch.num_rows for batch in batches] == [100, 100, 50]
    assert pa.Table.from_batches(batches).column("root_id").to_pylist() == list(range(250))
