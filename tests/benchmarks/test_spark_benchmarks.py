"""The Spark benchmark at a tiny size: that it runs, checks its work and can be reported. Never how fast anything is."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from acker.spark import completions
from acker.spark.session_checks import PROVIDER_CONF
from benchmarks.suite import live_page, spark_columns, spark_steps, spark_topologies, streaming
from benchmarks.suite.measure import TINY, Goal
from benchmarks.suite.run import select
from benchmarks.suite.spark import CASES, batch, checksum_of, write_messages

pytestmark = [pytest.mark.spark, pytest.mark.soak]

ROOT = Path(__file__).resolve().parents[2]


def test_both_ways_are_measured_against_the_xor_alone(spark):
    (case,) = CASES
    result = case.run(TINY)
    assert case.run is batch
    assert result.checksum == {"completions": 500, "root_xor": -974365843336619368}
    assert {side: len(samples) for side, samples in result.samples.items()} == dict.fromkeys(
        ("bit_xor", "rows", "files"), 2
    )
    assert [(ratio.of, ratio.to) for ratio in result.ratios] == [("rows", "bit_xor"), ("bit_xor", "files")]
    assert spark.range(1).count() == 1  # A session that was there before is not stopped.


def test_the_workload_is_what_its_checksum_says(spark, tmp_path):
    expected = write_messages(tmp_path, 1001, pending=40, files=3)
    rows = [pq.read_metadata(path).num_rows for path in sorted(tmp_path.iterdir())]
    assert rows == [333 + 40, 333, 335]
    assert checksum_of(completions(spark.read.parquet(str(tmp_path)))) == expected


def test_streams_are_measured_and_checked(spark):
    before = spark.conf.get(PROVIDER_CONF)
    goals = {
        ("bit_xor HDFS", "files"): Goal(at_least=1.5),
        ("files", "empty"): Goal(at_most=1.3),
        ("transformWithState", "files"): None,
    }
    result = streaming.micro_batches(TINY, messages=2000, goals=goals)
    assert [(ratio.of, ratio.to, ratio.goal) for ratio in result.ratios] == [(*pair, None) for pair in goals]
    assert {side: len(samples) for side, samples in result.samples.items()} == dict.fromkeys(
        ("bit_xor HDFS", "files", "empty", "transformWithState"), 1
    )
    assert min(sample for samples in result.samples.values() for sample in samples) > 0
    assert result.checksum["completions"] == 400
    assert spark.conf.get(PROVIDER_CONF) == before


def test_streams_are_measured_where_many_trees_are_open(spark):
    (case,) = select(streaming.CASES, ["spark-streaming/held"])
    result = case.run(TINY)
    assert [(ratio.of, ratio.to) for ratio in result.ratios] == [("10000000 held", "100000 held")]
    assert (result.parameters["10000000 held"], result.parameters["100000 held"]) == (2500, 100)
    assert {len(samples) for samples in result.samples.values()} == {1}


def test_rivals_are_measured_where_many_trees_are_open(spark):
    (case,) = select(streaming.CASES, ["spark-streaming/open/5m"])
    result = case.run(TINY)
    rivals = ["bit_xor RocksDB", "bit_xor HDFS", "transformWithState"]
    assert [(ratio.of, ratio.to) for ratio in result.ratios] == [(rival, "files") for rival in rivals]
    assert result.parameters["held"] == 1250
    assert {side: len(samples) for side, samples in result.samples.items()} == dict.fromkeys(["files", *rivals], 1)


def test_streams_are_measured_with_the_settings_of_the_site(spark):
    before = [spark.conf.get(name, None) for name in streaming.SETTINGS]
    (case,) = select(streaming.CASES, ["spark-streaming/settings"])
    result = case.run(TINY)
    assert [(ratio.of, ratio.to) for ratio in result.ratios] == [
        (side, "Spark's own") for side in ("file manager", "changelogs", "both")
    ]
    assert {len(samples) for samples in result.samples.values()} == {1}
    page = (ROOT / "docs/streaming.md").read_text(encoding="utf-8")
    assert [text for setting in streaming.SETTINGS.items() for text in setting if text not in page] == []
    assert [spark.conf.get(name, None) for name in streaming.SETTINGS] == before


def test_the_cases_of_streams_can_be_typed_without_a_slash():
    sizes = ("1m", "5m", "small", "small/own", "settings", "held", "open/5m", "open/10m")
    names = [f"spark/streaming/{size}" for size in sizes]
    for typed in ("spark-streaming", "spark/streaming", "spark"):
        assert [case.name for case in select(streaming.CASES, [typed])] == names
    assert [case.name for case in select(streaming.CASES, ["spark-streaming/5m"])] == names[1:2]


def test_topologies_are_measured_and_their_words_counted(spark):
    result = spark_topologies.batch(TINY)
    assert [(ratio.of, ratio.to) for ratio in result.ratios] == [("untracked", "tracked"), ("tracked", "by hand")]
    assert result.checksum == {"words": 5 * result.parameters["tuples"] // 6}
    assert {len(samples) for samples in result.samples.values()} == {2}


def test_small_micro_batches_of_a_topology_are_measured(spark):
    result = spark_topologies.small(TINY)
    assert [(ratio.of, ratio.to) for ratio in result.ratios] == [("topology", "empty")]
    assert {side: len(samples) for side, samples in result.samples.items()} == {"topology": 1, "empty": 1}


def test_a_stream_of_a_topology_is_measured_with_an_open_page_and_without_one(spark):
    result = live_page.live_spark(TINY)
    assert result.checksum == {"units": 600} and all(each["readings"] for each in result.parameters["seen"])
    assert {side: len(samples) for side, samples in result.samples.items()} == {"page open": 2, "no page": 2}
    assert min(sample for samples in result.samples.values() for sample in samples) > 0


def test_columns_are_measured_against_pyspark_and_one_process(spark):
    results = {case.name: case.run(TINY) for case in spark_columns.CASES}
    ratios = [(ratio.of, ratio.to) for result in results.values() for ratio in result.ratios]
    assert ratios == [("columns", "by hand"), ("columns, untracked", "columns"), ("columns", "one process")]
    assert [result.checksum for result in results.values()] == [{"words": 2080}, {"rows": 1000}]


def test_dataframe_steps_are_measured_with_trees_and_without(spark):
    steps, totals = (case.run(TINY) for case in spark_steps.CASES)
    assert [(ratio.of, ratio.to) for ratio in steps.ratios] == [("tracked", "untracked"), ("settled", "untracked")]
    assert steps.checksum == {"completions": 2500} and steps.parameters["rows"] == 2500
    assert [(ratio.of, ratio.to) for ratio in totals.ratios] == [("tracked", "untracked"), ("acked", "untracked")]
    assert totals.checksum == {"groups": 900}
