"""The stream from Kafka to Kafka of docs/spark-sinks.md on a real server; slow: its driver is killed."""

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict

import pytest

from acker.spark.session_checks import PROVIDER, PROVIDER_CONF
from blocks import ROOT
from tests.conftest import find_jars
from tests.connectors.kafka_kit import Cluster
from tests.connectors.kafka_sink_kills import PATIENT
from tests.connectors.running_page import programs_of
from tests.torture.kills.run import environment_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

(BLOCK,) = programs_of("spark-sinks.md", "tests/spark/streams/test_kafka_stream.py")
PARTITIONS, ORDERS, A_MICRO_BATCH = 2, 24, 8

BEGIN = """
import sys

from pyspark.sql import SparkSession

from tests.connectors.kafka_sink_kills import die_at

spark = SparkSession.builder.getOrCreate()
if len(sys.argv) > 1:
    die_at(sys.argv[1], int(sys.argv[2]))
"""
END = """
for query in spark.streams.active:
    query.awaitTermination()
spark.stop()
"""


def value_of(number):
    """Return an order of some items; one in ten is none, and fails."""
    return "7" if number % 10 == 3 else json.dumps([f"item-{number}-{place}" for place in range(number % 4)])


@pytest.fixture
def jars(monkeypatch):
    return find_jars("spark-kafka", "SPARK_JARS", monkeypatch)


class Stream:
    """The program of the page, with topics of its own."""

    def __init__(self, url, jars, folder):
        self.cluster, self._folder = Cluster(url), folder
        self.orders = self.cluster.topic(PARTITIONS)
        self.items, self.ended = self.cluster.topic(), self.cluster.topic()
        self.ids = []
        for number in range(ORDERS):
            partition, offset = number % PARTITIONS, number // PARTITIONS
            self.cluster.write(self.orders, [value_of(number)], partition)
            self.ids.append(f"{self.orders}/{partition}@{offset}")
        page = BLOCK.body
        for old, new in {
            '"localhost:9092"': f'"{url}"',
            'subscribe="orders"': f'subscribe="{self.orders}", maxOffsetsPerTrigger={A_MICRO_BATCH}',
            '"items"': f'"{self.items}"',
            '{"bootstrap.servers": server}': f'{{"bootstrap.servers": server, **{PATIENT}}}',
            '"orders-ended"': f'"{self.ended}"',
            '"/shared/': f'"{folder}/',
            ".start()": ".trigger(availableNow=True).start()",
        }.items():
            assert old in page, f"{BLOCK.where} does not say {old}"
            page = page.replace(old, new)
        self._program = folder / "page.py"
        self._program.write_text(BEGIN + page + END)
        settings = {
            "spark.jars": ",".join(map(str, sorted(jars.iterdir()))),
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            PROVIDER_CONF: PROVIDER,
        }
        options = " ".join(f"--conf {name}={value}" for name, value in settings.items())
        submit = {"PYSPARK_SUBMIT_ARGS": f"--master local[2] {options} pyspark-shell"}
        self._environment = {**environment_of(folder), **submit}

    def run(self, *death):
        """Run a driver, which is killed at a step and a number, if given."""
        command = [sys.executable, str(self._program), *death]
        path = os.pathsep.join([str(ROOT), self._environment["PYTHONPATH"]])
        done = subprocess.run(
            command,
            cwd=self._folder,
            env={**self._environment, "PYTHONPATH": path},
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert done.returncode == (-signal.SIGKILL if death else 0), done.stderr[-6000:]

    def check(self):
        """Check that each order ended once, and that each row is there."""
        ended = defaultdict(list)
        for message in self.cluster.committed_messages(self.ended):
            value = json.loads(message.value())
            ended[message.key().decode()].append((value["outcome"], (value["reason"] or "").partition(":")[0]))
        failed, acked = [("FAILED", "TypeError")], [("ACKED", "")]
        assert ended == {each: failed if number % 10 == 3 else acked for number, each in enumerate(self.ids)}
        items = {(row.key().decode(), row.value().decode()) for row in self.cluster.committed_messages(self.items)}
        assert items == {
            (f"{each}#{place}", f"item-{number}-{place}")
            for number, each in enumerate(self.ids)
            if number % 10 != 3
            for place in range(number % 4)
        }


@pytest.fixture
def stream(kafka, jars, tmp_path):
    made = Stream(kafka.url, jars, tmp_path)
    yield made
    made.cluster.close()


@pytest.mark.slow  # without Spark, tests/connectors/test_kafka_sink.py kills a driver at each step of a transaction
@pytest.mark.parametrize("step", ["before the commit", pytest.param("committed", marks=pytest.mark.soak)])
def test_each_order_ends_once_although_a_driver_is_killed(stream, step):
    """The page's program ends what it began."""
    stream.run(step, "2")
    stream.run()
    stream.check()
