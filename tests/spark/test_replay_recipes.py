"""The recipe of docs/spark.md that sends what is not finished to Kafka again."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import find_jars
from tests.connectors.kafka_kit import Cluster
from tests.spark.replay_recipe import SENT_AGAIN, recipe
from tests.torture.spark_home import JVM_OPTIONS

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SESSION = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
"""
READ = """
import json

values = spark.read.format("kafka").option("kafka.bootstrap.servers", {url!r}).option("subscribe", {topic!r}).load()
rows = values.select(F.from_json(F.col("value").cast("string"), lines.schema.simpleString()).alias("row"))
print(json.dumps(sorted(map(list, rows.select("row.*").collect()))))
"""


def test_a_message_is_sent_to_kafka_again(kafka, monkeypatch, tmp_path) -> None:
    """In a process of its own, whose session has the jars."""
    topic = Cluster(kafka.url).topic()
    jars = ",".join(map(str, sorted(find_jars("spark-kafka", "SPARK_JARS", monkeypatch).iterdir())))
    sent = (
        recipe("tests/spark/test_replay_recipes.py")
        .replace("localhost:9092", kafka.url)
        .replace('"orders"', repr(topic))
    )
    assert kafka.url in sent and topic in sent
    program = tmp_path / "program.py"
    program.write_text(SESSION + sent + READ.format(url=kafka.url, topic=topic))
    options = f"--master local[2] --conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=2 --jars {jars}"
    variables = {"PYSPARK_SUBMIT_ARGS": f"{options} pyspark-shell", "JAVA_TOOL_OPTIONS": JVM_OPTIONS}
    command = [sys.executable, str(program), str(tmp_path)]
    done = subprocess.run(command, env=os.environ | variables, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-8000:]
    assert json.loads(done.stdout.splitlines()[-1]) == SENT_AGAIN
    assert "2 FAILED parse - number: try_cast(text as int) is null Row(" in done.stdout
