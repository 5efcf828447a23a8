"""A topology whose spout is Spark's own source of Kafka, against a real server: batch, stream, and a killed driver."""

import json
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from acker import TopologyError
from acker.spark import run
from tests.conftest import find_jars
from tests.connectors.kafka_kit import Cluster
from tests.spark.topologies.broker_words import ATTEMPTS_MAX, topology_of
from tests.spark.topologies.test_broker_kills import BAD, GOOD, SHY, WORDS, run_words
from tests.torture.topology_kills.account import counts_in

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def jars(monkeypatch):
    """Spark's source for Kafka, for spark.jars."""
    folder = find_jars("spark-kafka", "SPARK_JARS", monkeypatch)
    return ",".join(map(str, sorted(folder.iterdir())))


@pytest.fixture
def topic(kafka):
    """A topic of three partitions with all words."""
    cluster = Cluster(kafka.url)
    name = cluster.topic(3)
    for number, word in enumerate([*WORDS[:45], *SHY, *BAD, *WORDS[45:]]):
        cluster.write(name, [word], number % 3, key=b"k", headers={"h": b"1"})
    return name


@pytest.mark.slow
@pytest.mark.parametrize("kill", ["committed", pytest.param("planned", marks=pytest.mark.soak)])
def test_a_killed_driver_loses_and_repeats_nothing(kafka, topic, jars, tmp_path, kill):
    settings = {"broker": "kafka", "url": kafka.url, "name": topic, "jars": jars, "folder": str(tmp_path)}
    code, text = run_words(**settings, kill=kill, words=sys.maxsize, letters=0)
    assert code == -signal.SIGKILL, text
    assert bool(counts_in(tmp_path / "checkpoint")) is (kill == "committed")
    code, text = run_words(**settings, words=GOOD.total(), letters=len(BAD))
    assert code == 0, text
    assert counts_in(tmp_path / "checkpoint") == GOOD
    letters = [json.loads(line) for line in (tmp_path / "letters").read_text().splitlines()]
    assert Counter(letter["value"] for letter in letters) == Counter(BAD)
    assert {letter["headers"]["acker-attempts"] for letter in letters} == {ATTEMPTS_MAX}
    keys = {letter["headers"]["acker-key"] for letter in letters}
    assert keys == {f"{topic}/{number % 3}@{number // 3}" for number in (50, 51)}


@pytest.mark.slow
def test_a_batch_job_reads_what_is_there_and_a_session_without_the_package_says_which_it_needs(
    kafka, topic, jars, spark, tmp_path
):
    """In one test, since a session that has got the package keeps it."""
    (tmp_path / "markers").mkdir()
    settings = {"broker": "kafka", "url": kafka.url, "name": topic}
    words = topology_of(settings, str(tmp_path / "letters"), str(tmp_path / "markers"))
    with pytest.raises(TopologyError, match=r"spark\.jars\.packages=org\.apache\.spark:spark-sql-kafka-0-10_2\.13:"):
        run(words, spark=spark)
    for jar in jars.split(","):
        spark.sql(f"ADD JAR '{jar}'")
    assert run(words, spark=spark).stats.totals.acked == GOOD.total()
    assert len((tmp_path / "letters").read_text().splitlines()) == len(BAD)
