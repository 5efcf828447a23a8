"""A spout over Kafka that Spark reads: in parallel, with offsets in the checkpoint of the query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from acker.errors import TopologyError
from acker.topology.component import Outputs
from acker.topology.specs import ComponentSpec
from acker.topology.spout import ReliableSpout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OPTIONS: Final = "user.acker.kafka"
_PACKAGE: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13"


class KafkaSpout(ReliableSpout):
    """A spout whose tuples are the messages of Kafka topics, read by Spark's own source.

    Spark reads the partitions in parallel and keeps the offsets in the checkpoint; nothing is committed to Kafka. A
    message that fails is tried again from the journal after a back-off, as with any `ReliableSpout`, and never holds up
    the messages behind it.

    A tuple has the values ``value`` and ``key`` (bytes or None), ``headers`` (a list of dicts with "key" and "value",
    or None) and ``timestamp``. Its id is a text such as ``orders/3@17``: topic, partition and offset. For other columns
    override `frame` and `outputs`.

    The session needs Spark's package for Kafka: ``spark.jars.packages`` with
    ``org.apache.spark:spark-sql-kafka-0-10_2.13:<release of Spark>``.

    Examples
    --------
    >>> orders = KafkaSpout.spec(options={"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"})
    """

    outputs: ClassVar[Outputs | None] = ["value", "key", "headers", "timestamp"]
    tup_id_column: ClassVar[str | None] = "tup_id"

    @classmethod
    def spec(
        cls,
        name: str | None = None,
        par: int | Mapping[str, int] | None = None,
        config: Mapping[str, Any] | None = None,
        executors: int | None = None,
        *,
        options: Mapping[str, Any] | None = None,
    ) -> ComponentSpec:
        """Return the definition of this spout in a topology.

        Parameters
        ----------
        name, par, config, executors
            See `Spout.spec`. How many partitions are read at a time is Spark's matter, not that of `par`.
        options : mapping of str to Any
            Those of Spark's source, such as "kafka.bootstrap.servers", "subscribe", "maxOffsetsPerTrigger" or
            "minPartitions". By default "startingOffsets" is "earliest", for streams too, and "includeHeaders" is true.
        """
        return ComponentSpec(
            cls, name=name, par=par, executors=executors, config={**(config or {}), _OPTIONS: dict(options or {})}
        )

    def frame(self, spark: SparkSession, conf: Mapping[str, Any]) -> DataFrame:
        """Return the messages: of a stream those that come, of a batch job those that are there.

        Raises
        ------
        TopologyError
            The session has no source for Kafka.
        """
        from pyspark.errors import AnalysisException
        from pyspark.sql import functions as F  # noqa: N812

        options = {"startingOffsets": "earliest", "includeHeaders": "true", **conf[_OPTIONS]}
        reader: Any = spark.readStream if conf["topology.spark.streaming"] else spark.read
        try:
            rows = reader.format("kafka").options(**options).load()
        except AnalysisException as error:
            if error.getCondition() == "KAFKA_DATA_SOURCE_NOT_ENABLED":
                raise TopologyError(
                    f"component {self.component_name!r}: this Spark session has no source for Kafka; start it with"
                    f" spark.jars.packages={_PACKAGE}:{spark.version}"
                ) from error
            raise
        tup_id = F.concat_ws("", "topic", F.lit("/"), "partition", F.lit("@"), "offset")
        messages: DataFrame = rows.withColumn("tup_id", tup_id)
        return messages
