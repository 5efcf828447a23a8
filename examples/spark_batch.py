"""A tracked pipeline over a DataFrame.

Run it: python examples/spark_batch.py (needs acker[spark] and a JDK)

Each order is one row with an id. Bolts are plain functions from a row to rows. If one item of an order fails,
`acked()` leaves out all its parcels, so you can send the order again without counting anything twice.
"""

from typing import Any

from pyspark.sql import SparkSession

import acker.spark as aspark
from acker import Outcome

spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2).getOrCreate()
orders = spark.createDataFrame(
    [(1, "lamp lamp desk"), (2, "chair sofa"), (3, "rug")],
    "number long, text string",
)


def split(row: Any) -> list[str]:
    return list(row.text.split())


def pack(row: Any) -> list[str]:
    if row.item == "sofa":
        raise LookupError("no sofa is left")
    return [f"parcel with a {row.item}"]


pipeline = (
    aspark.spout(orders, message_id="number", component="orders")
    .bolt(split, schema="item string")
    .bolt(pack, schema="parcel string", sink=True)  # the last bolt: its outputs are results
    .persist()
)
for row in pipeline.completions().orderBy("message_id").collect():
    print(f"order {row.message_id}: {Outcome(row.outcome).name}")
for row in pipeline.failures().collect():
    print(f"failed in {row.component}: {row.reason}")
pipeline.acked().groupBy("parcel").count().orderBy("parcel").show(truncate=False)
pipeline.unpersist()
spark.stop()
