"""The partition of each shard: Spark's own hash partitioning puts every shard into one of its own."""

import pytest
from pyspark.sql import functions as F  # noqa: N812

from acker.spark.partition_keys import partition_keys


@pytest.mark.spark
def test_each_shard_has_a_partition_of_its_own(spark):
    for shards in (1, 2, 5, 64):
        keys = partition_keys(shards)
        rows = [(int(key), shard) for shard, key in enumerate(keys)]
        frame = spark.createDataFrame(rows, "key int, shard int").repartition(shards, "key")
        placed = frame.select(F.spark_partition_id(), "shard").collect()
        assert sorted(map(tuple, placed)) == [(shard, shard) for shard in range(shards)]
