"""Archive the classes that Spark loads: spark_archive.py FILE. From it a JVM starts Spark in half the processor time.

Java calls it application class data sharing. An archive that does not fit a JVM or its class path is not used.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812


def use(session: SparkSession, folder: Path) -> None:
    """Let Spark load what tests use: a shuffle, Arrow, files, and a stream that keeps state."""
    numbers = session.range(10).withColumn("text", F.col("id").cast("string"))
    numbers.mapInArrow(lambda batches: batches, numbers.schema).groupBy("text").count().collect()
    numbers.write.parquet(str(folder / "in"))
    store = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    session.conf.set("spark.sql.streaming.stateStore.providerClass", store)
    stream = session.readStream.schema(numbers.schema).parquet(str(folder / "in")).groupBy("text").count()
    writer = stream.writeStream.format("memory").queryName("counts").outputMode("update")
    writer.trigger(availableNow=True).option(
        "checkpointLocation", str(folder / "checkpoint")
    ).start().awaitTermination()
    session.table("counts").toPandas()


def main() -> None:
    """Run Spark once, and let its JVM write the archive at its end."""
    file = Path(sys.argv[1]).absolute()
    options = f"-XX:ArchiveClassesAtExit={file} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
    with tempfile.TemporaryDirectory() as scratch:
        builder = SparkSession.builder.master("local[2]").config("spark.driver.extraJavaOptions", options)
        builder = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        session = builder.config("spark.sql.warehouse.dir", f"{scratch}/warehouse").getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        use(session, Path(scratch))
        gateway: Any = session.sparkContext._gateway
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # at which the JVM ends
        gateway.proc.wait()


if __name__ == "__main__":
    main()
