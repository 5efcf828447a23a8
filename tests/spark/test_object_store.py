"""An object store, reached by one setting for Spark and acker: files, streams, topologies under kills, and faults."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import acker
from acker.spark.topologies.journal import BatchCommit, Journal
from tests.conftest import find_jars
from tests.spark.message_files import write_messages
from tests.spark.store_kit import SECRET, Bucket, Door
from tests.spark.topologies.test_kills import lines_of
from tests.torture.kills import LOCAL, Victim, plan_of, survive
from tests.torture.kills.run import environment_of
from tests.torture.stores import REFUSED_ONE_IN
from tests.torture.topology_kills import AccountError, Program
from tests.torture.topology_kills.account import CHECKPOINT
from tests.torture.topology_kills.words import BAD, FLAKY, SOUR

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.leaves_behind("Arrow's client of S3 has an event loop as long as the process lives"),
]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def jars(monkeypatch):
    return find_jars("hadoop-aws", "S3_JARS", monkeypatch)


@pytest.fixture
def door(sqs):
    """The way to moto, which is here for SQS, and has buckets too."""
    with Door(sqs.url) as door:
        yield door


@pytest.fixture
def bucket(door, jars):
    bucket = Bucket(door.url, jars)
    yield bucket
    bucket.client.close()


def run_program(what, folder, bucket, uri):
    """Run tests/spark/store_program.py; return what it tells, and all that it wrote."""
    folder.mkdir(exist_ok=True)
    environment = {**environment_of(folder), **bucket.spark_conf(folder / "conf")}
    command = [sys.executable, "-W", "ignore", "-m", "tests.spark.store_program", what, str(folder), uri]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr


def write_there(folder, bucket, prefix):
    """Write files of messages to a disk and to the bucket."""
    for name in write_messages(folder / "messages"):
        bucket.client.upload_file(str(folder / "messages" / name), bucket.name, f"{prefix}/{name}")


def test_completions_from_files_there_are_those_from_disk(tmp_path, bucket):
    write_there(tmp_path, bucket, "a b")
    told, written = run_program("files", tmp_path, bucket, bucket.uri("a b"))
    assert len(told["disk"]) > 10
    assert told["folder"] == told["pattern"] == told["stream"] == told["disk"]
    alone = acker.completions_from_files(bucket.place("a b").path, filesystem=bucket.place("a b").filesystem)
    assert sorted([row[1], row[2], row[3]] for row in alone.rows()) == told["disk"]
    # Neither what Spark shows and logs nor what it keeps of each job has the key.
    kept = [path.read_bytes() for path in (tmp_path / "events").rglob("*") if path.is_file()]
    assert kept and not any(SECRET.encode() in each for each in kept)
    assert SECRET not in written


@pytest.mark.soak
def test_replays_and_the_checkpoint_of_a_stream_are_there(tmp_path, bucket):
    told, _ = run_program("replays", tmp_path, bucket, bucket.uri("orders"))
    assert told["dead"] == 1
    assert (told["counts"]["messages"], told["counts"]["waiting"], told["counts"]["open"]) == (2, 0, 0)


def test_drivers_that_are_killed_and_files_that_are_shown_late_lose_no_line(tmp_path, bucket, door):
    """State is read again by the tasks that Spark repeats; without the plan of a micro-batch no run begins."""
    special = {3: BAD, 11: SOUR, 20: f"{FLAKY}-1", 45: BAD, 47: SOUR, 61: f"{FLAKY}-2", 70: SOUR}
    program = Program(tmp_path / "run", lines_of(90, special), LOCAL, store=bucket)
    program.dies("committed", 2)
    door.hidden_part, door.hidden = "/state/", 2
    program.dies("planned", 2)
    assert door.requests["hidden"] == 2
    # Older plans may be gone: their micro-batches are committed.
    names = [key.rpartition("/")[2].split("-") for key in bucket.keys(f"{CHECKPOINT}/plans/") if key[-1] != "/"]
    batch, epoch = max((int(batch), int(epoch)) for epoch, batch in names)
    door.hidden_part, door.hidden = f"/plans/{epoch}-{batch}", 1
    with pytest.raises(AccountError, match=r"(?s)it ended with 1.*FileNotFoundError.*plans"):
        program.ends()
    account = program.ends()
    assert (account.acked, account.dead) == (85, 5)
    assert bucket.uploads() == []


@pytest.mark.soak
def test_make_run_goes_on_there_after_a_kill(tmp_path, bucket):
    """The first driver is killed when two micro-batches are committed."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("\n".join(lines_of(3000, {})))
    command = [sys.executable, str(ROOT / "examples/wordcount.py"), "--master", "local[2]"]
    command += ["--input", str(tmp_path / "texts"), "--checkpoint", bucket.uri("words"), "--output", str(tmp_path)]
    environment = {**environment_of(tmp_path), **bucket.spark_conf(tmp_path / "conf")}
    with (tmp_path / "told").open("w") as told:
        first = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=told,
        )
        while len({name.partition(".")[0] for name in bucket.keys("words/commits/")}) < 2:
            assert first.poll() is None, (tmp_path / "told").read_text()
            time.sleep(0.1)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost  nothing: each of 8 different words was counted as often as by the plain loop" in done.stdout


@pytest.mark.soak
def test_a_stream_with_its_state_there_completes_each_tree_once_under_kills(tmp_path, bucket, door):
    """Two are killed; `python -m tests.torture.kills --store s3` kills more."""
    door.refused_one_in = REFUSED_ONE_IN
    plan = plan_of(5, [Victim.DRIVER, Victim.WORKER], master=LOCAL, timeout_s=4)
    survived = survive(plan, tmp_path / "run", store=bucket, deadline_s=3000)
    assert len(survived.kills) == 2
    assert survived.outcomes["ACKED"] > 1000
    assert door.requests["refused"] > 0


def test_a_store_that_answers_503_and_is_slow_for_a_while_costs_time_only(bucket, door):
    """On the driver and on a worker, which gets the place as a pickle."""
    place = pickle.loads(pickle.dumps(bucket.place("count/it")))
    journal = Journal(place)
    journal.claim()
    door.refusals, door.slow_secs = 5, 0.1
    journal.commit(0, BatchCommit(tasks={"count": (1,)}))
    assert door.requests["refused"] == 5
    assert Journal(bucket.place("count/it")).last_commit()[1].tasks == {"count": (1,)}
    journal.release()
    assert bucket.uploads() == []
