"""The benchmarks of growth on Spark at a tiny size; those without Spark run in test_benchmarks.py."""

import subprocess
import sys

import pytest

from benchmarks.suite import spark_growth
from benchmarks.suite.measure import TINY

pytestmark = [pytest.mark.spark, pytest.mark.soak]


def test_partitions_of_state_are_timed_and_weighed(spark):
    result = spark_growth.partitions(TINY)
    assert {side: len(samples) for side, samples in result.samples.items()} == {"2 partitions": 1, "8 partitions": 1}
    assert min(sample for samples in result.samples.values() for sample in samples) > 0
    few, many = result.parameters["weights"].values()
    assert 0 < few["files_a_micro_batch"] < many["files_a_micro_batch"]
    assert 0 < few["progress_bytes"] < many["progress_bytes"]


def test_what_spark_writes_of_the_state_is_weighed(spark):
    result = spark_growth.checkpoint(TINY)
    assert result.spread("state files").least > 1  # each logged byte is written once at least
    assert result.checksum["completions"] > 0


def test_micro_batches_are_timed_with_few_and_many_keys_kept(spark):
    result = spark_growth.kept(TINY)
    assert {len(samples) for samples in result.samples.values()} == {2}
    assert [ratio.to for ratio in result.ratios] == ["Counts 10,000", "Seconds 10,000"]
    assert result.parameters["slowest"].keys() == result.samples.keys()


def test_tasks_and_completions_are_timed(spark):
    assert set(spark_growth.tasks(TINY).samples) == {"8 tasks", "80 tasks", "800 tasks"}
    result = spark_growth.completions(TINY)
    assert result.parameters["bytes_a_completion"] == 8 + 8 + 4 + 1 + 8
    assert {len(samples) for samples in result.samples.values()} == {2}


def test_processor_time_is_that_of_all_children():
    before = spark_growth.tree_cpu_ns()
    # Twice as much as asked for: the system tells whole ticks of 10 ms, for each process.
    burn = "import time\nwhile time.process_time() < 0.4: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert spark_growth.tree_cpu_ns() - before >= 0.2e9
