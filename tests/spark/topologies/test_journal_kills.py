"""A driver of a topology that dies between any two steps with its files, and what Spark promises it, without Spark."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.marks import slow_after

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[3]


def run_without_spark(folder, how, topology):
    program = [sys.executable, "-W", "ignore", "-m", "tests.spark.topologies.journal_kills"]
    command = [*program, str(folder), str(how), topology]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("topology", slow_after(1, ["WordCount", "WordCountInColumns"]))
def test_drivers_that_die_at_each_kind_of_step_with_their_files_count_each_line_once(tmp_path, topology):
    """The files of plans, commits and state, those that are merged or removed, the lease, Spark's log, and the acks."""
    (account,) = run_without_spark(tmp_path, "again", topology)
    assert (account["acked"], account["dead"]) == (120, 24)


@pytest.mark.minutes(2)
@pytest.mark.soak
@pytest.mark.parametrize(("topology", "every"), [("WordCount", 5), ("WordCountInColumns", 3)])
def test_a_driver_that_dies_at_any_step_with_its_files_counts_each_line_once(tmp_path, topology, every):
    """At every fifth or third of them: with EVERY 1, the program takes each."""
    accounts = run_without_spark(tmp_path, every, topology)
    assert len(accounts) > 30
    assert {(account["acked"], account["dead"]) for account in accounts} == {(10, 2)}
