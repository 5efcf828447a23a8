"""HDFS, a namenode and a datanode: files, streams, Replays, and topologies under kills, as in an object store."""

import pytest

import acker
from tests.spark.hdfs_kit import Hdfs
from tests.spark.test_object_store import run_program
from tests.spark.topologies.test_kills import lines_of
from tests.torture.kills import LOCAL
from tests.torture.topology_kills import Program
from tests.torture.topology_kills.words import BAD, FLAKY, KILL_WORKER, KILL_WRITING, KILL_WRITTEN, SOUR

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.leaves_behind("the JVM that reads HDFS for this process stays with it"),
]


@pytest.fixture
def hdfs(hadoop):
    return Hdfs(hadoop)


@pytest.mark.soak
def test_completions_from_files_there_are_those_from_disk(tmp_path, hdfs):
    hdfs.write_messages("a b", tmp_path / "messages")
    told, _ = run_program("files", tmp_path, hdfs, hdfs.uri("a b"))
    assert len(told["disk"]) > 10
    assert told["folder"] == told["pattern"] == told["stream"] == told["disk"]
    alone = acker.completions_from_files(hdfs.place("a b").path, filesystem=hdfs.place("a b").filesystem)
    assert sorted([row[1], row[2], row[3]] for row in alone.rows()) == told["disk"]


@pytest.mark.soak
def test_replays_and_the_checkpoint_of_a_stream_are_there(tmp_path, hdfs):
    told, _ = run_program("replays", tmp_path, hdfs, hdfs.uri("orders"))
    assert told["dead"] == 1
    assert (told["counts"]["messages"], told["counts"]["waiting"], told["counts"]["open"]) == (2, 0, 0)


def test_drivers_workers_and_the_namenode_are_killed_and_each_line_counts_once(tmp_path, hdfs, hadoop):
    special = {3: BAD, 11: SOUR, 20: f"{FLAKY}-1", 30: f"{KILL_WRITING}-1", 45: BAD, 50: f"{KILL_WORKER}-1", 61: SOUR}
    special |= {70: f"{KILL_WRITTEN}-1"}
    program = Program(tmp_path / "run", lines_of(110, special), LOCAL, store=hdfs)
    program.dies("written", 4)
    hadoop.kill()
    hadoop.start()
    program.dies("committed", 2)
    account = program.ends()
    assert (account.acked, account.dead) == (106, 4)
