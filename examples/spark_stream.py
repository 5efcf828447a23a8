"""A tracked pipeline on Structured Streaming.

Run it: python examples/spark_stream.py (needs acker[spark] and a JDK)

Orders arrive as files in a folder. The program prints how each order ended, and sends failed orders again. The
query keeps open orders in its checkpoint and continues from there after a crash. In production, use
`processingTime="5 seconds"` instead of `availableNow=True`.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import acker.spark as aspark
from acker import Completions, Outcome

folder = Path(tempfile.mkdtemp())
store = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.sql.shuffle.partitions", 2)  # the checkpoint keeps this number: choose it before the first start
    .config("spark.sql.streaming.stateStore.providerClass", store)
    .getOrCreate()
)


def send(number: int, text: str, attempt: int) -> None:
    """Drop an order into the folder. A file must appear whole, so it is written elsewhere and moved."""
    new = folder / f"{number}-{attempt}.json"
    new.write_text(json.dumps({"number": number, "text": text, "attempt": attempt}))
    new.rename(folder / "orders" / new.name)


def split(row: Any) -> list[tuple[str, int]]:
    return [(item, row.attempt) for item in row.text.split()]


def pack(row: Any) -> list[str]:
    if row.item == "sofa" and row.attempt == 0:
        raise LookupError("no sofa is left")  # fails its order; the second attempt finds one
    return [f"parcel with a {row.item}"]


def settle(done: Completions, batch_id: int) -> None:
    """Print how orders ended, after each micro-batch; after a crash it may be called again with the same batch id."""
    for number, outcome in sorted(zip(done.message_id.tolist(), done.outcome.tolist(), strict=True)):
        print(f"micro-batch {batch_id}, order {number}: {Outcome(outcome).name}")
        if outcome != Outcome.ACKED:
            send(number, orders[number], attempt=1)


(folder / "orders").mkdir()
orders = {1: "lamp lamp desk", 2: "chair sofa", 3: "rug"}
for number, text in orders.items():
    send(number, text, attempt=0)
rows = spark.readStream.schema("number long, text string, attempt int").json(str(folder / "orders"))
pipeline = (
    aspark.spout(rows, message_id="number", attempt="attempt", run_seed=7)  # the same seed at each start
    .bolt(split, schema="item string, attempt int")
    .bolt(pack, schema="parcel string", sink=True)
)
done = pipeline.completions(timeout="1 minute")
writer = done.writeStream.foreachBatch(aspark.for_each_completion(settle))
writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
for _ in range(2):  # the second query continues where the first one ended, with the order that was sent again
    writer.trigger(availableNow=True).start().awaitTermination()
spark.stop()
