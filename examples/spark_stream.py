"""A tracked pipeline on Structured Streaming.

Run it: python examples/spark_stream.py (needs acker[spark] and a JDK)

Orders arrive as files in a folder. The program prints how each order ended. A failed order is sent again, and after
three attempts it is given up. The query keeps open orders in its checkpoint and continues from there after a crash. In
production, use `processingTime="5 seconds"` instead of `availableNow=True`, and a back-off.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
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
    if row.item == "boat" or (row.item == "sofa" and row.attempt == 1):
        raise LookupError(f"no {row.item} is left")  # fails its order; the second attempt finds a sofa
    return [f"parcel with a {row.item}"]


def show(done: Completions, batch_id: int) -> None:
    """Print how orders ended, after each micro-batch; after a crash it may be called again with the same batch id."""
    for number, outcome in sorted(zip(done.message_id.tolist(), done.outcome.tolist(), strict=True)):
        print(f"micro-batch {batch_id}, order {number}: {Outcome(outcome).name}")


def send_again(messages: pa.Table, batch_id: int) -> None:  # noqa: ARG001
    """Drop failed orders into the folder; called again after a crash, it writes the same files."""
    for message in messages.to_pylist():
        send(message["message_id"], orders[message["message_id"]], message["attempt"])


(folder / "orders").mkdir()
orders = {1: "lamp lamp desk", 2: "chair sofa", 3: "rug", 4: "boat"}
for number, text in orders.items():
    send(number, text, attempt=1)
rows = spark.readStream.schema("number long, text string, attempt int").json(str(folder / "orders"))
pipeline = (
    aspark.spout(rows, message_id="number", attempt="attempt", run_seed=7)  # the same seed at each start
    .bolt(split, schema="item string, attempt int")
    .bolt(pack, schema="parcel string", sink=True)
)
done = pipeline.completions(timeout="1 minute")
replays = aspark.Replays(
    folder / "replays", replay=send_again, dead_letter=folder / "given-up", attempts_max=3, backoff_secs=0
)
writer = done.writeStream.foreachBatch(aspark.for_each_completion(show, replays=replays))
writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
for _ in range(3):  # the next query continues where the last one ended, with the orders that were sent again
    writer.trigger(availableNow=True).start().awaitTermination()
for row in spark.read.parquet(str(folder / "given-up")).collect():
    print(f"given up: order {row.message_id} after {row.attempt} attempts")
spark.stop()
