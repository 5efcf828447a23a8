"""Messages that failed are sent again after their back-off or given up, through crashes, and each is accounted for."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException

from acker import COMPLETION_SCHEMA, Completions, Outcome
from acker.errors import ArgumentTypeError, ArgumentValueError, CheckpointError
from acker.spark import ReplayCounts, Replays, for_each_completion, spout
from acker.spark.pipelines.completions import PipelineCompletions
from blocks import ROOT
from tests.spark.streams.replay_kills import EXPECTED

cloudpickle.register_pickle_by_value(sys.modules[__name__])

ENDED = "root_id long, message_id long, task_id int, outcome byte, elapsed_ms long"


def ended(*rows):
    """Return completions of (message id, outcome) of task 3."""
    return Completions.from_rows([(100 + message, message, 3, how, 5) for message, how in rows])


class Calls:
    """Takes what is replayed and given up, and may fail."""

    def __init__(self, folder, **options):
        self.now, self.seen, self.faults = 1000.0, [], []
        self.folder = folder / "ledger"
        self.options = options

    def replays(self, **options):
        return Replays(
            self.folder,
            replay=lambda rows, batch_id: self.take("replay", rows, batch_id),
            dead_letter=lambda rows, batch_id: self.take("dead", rows, batch_id),
            clock=lambda: self.now,
            **{"attempts_max": 2, **self.options, **options},
        )

    def take(self, what, rows, batch_id):
        assert rows.schema == Replays.schema
        self.seen.append((what, batch_id, [(row["message_id"], row["attempt"]) for row in rows.to_pylist()]))
        if what in self.faults:
            self.faults.remove(what)
            raise OSError("the network is gone")


@pytest.fixture
def calls(tmp_path):
    return Calls(tmp_path)


def test_a_message_is_replayed_when_its_back_off_is_over(calls):
    replays = calls.replays(attempts_max=3, backoff_secs=10, backoff_secs_max=15)
    replays.settle(ended((1, Outcome.FAILED), (2, Outcome.TIMED_OUT), (3, Outcome.ACKED)), 0)
    calls.now += 9.999
    replays.settle(ended(), 1)
    assert calls.seen == []
    assert replays.held().select(["task_id", "message_id", "attempt", "root_id", "reason"]).to_pylist() == [
        {"task_id": 3, "message_id": 1, "attempt": 1, "root_id": 101, "reason": "failed"},
        {"task_id": 3, "message_id": 2, "attempt": 1, "root_id": 102, "reason": "timed out"},
    ]
    assert [when.timestamp() for when in replays.held()["due"].to_pylist()] == [1010.0, 1010.0]
    calls.now += 0.001
    replays.settle(ended(), 2)
    assert calls.seen == [("replay", 2, [(1, 2), (2, 2)])]
    assert replays.held()["due"].to_pylist() == [None, None]
    replays.settle(ended((1, Outcome.ACKED), (2, Outcome.REJECTED)), 3)
    calls.now += 15  # not 20: the longest wait
    replays.settle(ended(), 4)
    replays.settle(ended((2, Outcome.FAILED)), 5)
    assert calls.seen[1:] == [("replay", 4, [(2, 3)]), ("dead", 5, [(2, 3)])]
    assert replays.counts() == ReplayCounts(messages=2, failures=4, replayed=3, recovered=1, dead_letters=1)
    assert replays.held().num_rows == 0


@pytest.mark.parametrize("fault", ["replay", "dead"])
def test_a_micro_batch_that_runs_again_does_the_same_at_any_time(calls, fault):
    replays = calls.replays()
    replays.settle(ended((1, Outcome.FAILED), (2, Outcome.FAILED)), 0)
    calls.now += 1
    replays.settle(ended(), 1)
    calls.seen.clear()
    done = ended((1, Outcome.FAILED), (4, Outcome.FAILED), (2, Outcome.ACKED))
    expected = [("dead", 2, [(1, 2)]), ("replay", 2, [(4, 2)])]
    quick = calls.replays(backoff_secs=0)
    calls.faults.append(fault)
    with pytest.raises(OSError, match="the network is gone"):
        quick.settle(done, 2)
    began = len(calls.seen)
    calls.now += 1000
    counts = quick.counts()
    for again in (quick, calls.replays(attempts_max=9)):  # what was decided stays, whatever the options are now
        again.settle(done, 2)
        assert calls.seen[began:] == expected
        began = len(calls.seen)
        assert again.counts() == counts
    assert counts == ReplayCounts(messages=3, failures=4, replayed=3, recovered=1, dead_letters=1, open=1)


def test_folders_get_a_file_for_each_micro_batch_once(tmp_path):
    now = [0.0]

    def start():
        folders = {"replay": tmp_path / "again", "dead_letter": f"file://{tmp_path}/dead"}
        return Replays(tmp_path / "ledger", attempts_max=2, clock=lambda: now[0], **folders)

    replays = start()
    assert {path.name for path in tmp_path.iterdir()} >= {"again", "dead"}, "a stream that reads them can be made now"
    replays.settle(ended((1, Outcome.FAILED), (2, Outcome.FAILED)), 0)
    now[0] = 1.0
    replays.settle(ended(), 4)
    (again,) = (tmp_path / "again").iterdir()
    before = again.stat()
    start().settle(ended(), 4)
    assert again.stat() == before and re.fullmatch(r"replay-[0-9a-f]{12}-000000004\.parquet", again.name)
    replays.settle(ended((1, Outcome.FAILED), (2, Outcome.ACKED)), 5)
    (dead,) = (tmp_path / "dead").iterdir()
    assert re.fullmatch(r"dead_letter-[0-9a-f]{12}-000000005\.parquet", dead.name)
    assert pq.read_table(dead).to_pylist() == [
        {
            "task_id": 3,
            "message_id": 1,
            "attempt": 2,
            "root_id": 101,
            "outcome": 1,
            "component": None,
            "reason": "failed",
        }
    ]
    assert pq.read_table(again)["attempt"].to_pylist() == [2, 2]


def test_queries_with_ledgers_of_their_own_may_share_folders(tmp_path):
    def start(ledger):
        return Replays(tmp_path / ledger, replay=tmp_path / "again", dead_letter=tmp_path / "dead", attempts_max=1)

    def letters():
        return sorted(pq.read_table(tmp_path / "dead")["message_id"].to_pylist())

    start("one").settle(ended((1, Outcome.FAILED)), 0, "query one")
    start("other").settle(ended((2, Outcome.FAILED)), 0, "query other")
    assert letters() == [1, 2]
    start("one").settle(ended((1, Outcome.FAILED)), 0, "query one")
    assert letters() == [1, 2], "a micro-batch that runs again writes nothing twice"
    start("a new checkpoint").settle(ended((3, Outcome.FAILED)), 0, "query three")
    assert letters() == [1, 2, 3]


def test_what_a_killed_run_had_begun_to_write_is_removed_by_the_next_one_and_by_no_other(tmp_path):
    def start(ledger):
        return Replays(tmp_path / ledger, replay=tmp_path / "again", dead_letter=tmp_path / "dead", attempts_max=1)

    def unfinished(*names):
        return sorted(path.name for name in names for path in (tmp_path / name).glob(".*"))

    for ledger in ("one", "other"):
        start(ledger).settle(ended((1, Outcome.FAILED)), 0, ledger)
    for name in ("one", "other", "dead"):
        for path in list((tmp_path / name).iterdir()):
            (tmp_path / name / f".{path.name}-a1.tmp").write_bytes(b"a part")
    assert len(unfinished("one", "other", "dead")) == 4
    kept = unfinished("other")
    (id_,) = {start("one")._ledger.state().id}
    start("one").settle(ended(), 1, "one")
    assert len(unfinished("one", "dead")) == 3, "only a run that writes a file knows that no other one does"
    start("one").settle(ended((2, Outcome.FAILED)), 2, "one")
    (left,) = unfinished("one", "dead")
    assert id_ not in left, "another query may be writing it at this moment"
    assert unfinished("other") == kept


def test_a_job_that_runs_once_more_is_not_taken_for_a_rerun(calls):
    calls.replays(attempts_max=1).settle(ended((1, Outcome.FAILED)), 0)
    replays = calls.replays(attempts_max=1)
    with pytest.raises(
        CheckpointError, match=r"has decided micro-batch 0 of a run in which other messages failed.* 1$"
    ):
        replays.settle(ended((2, Outcome.FAILED), (3, Outcome.ACKED)), 0)
    assert calls.seen == [("dead", 0, [(1, 1)])]
    replays.settle(ended((2, Outcome.FAILED), (3, Outcome.ACKED)), 1)
    assert calls.seen[1:] == [("dead", 1, [(2, 1)])] and replays.counts().dead_letters == 2


def test_a_replay_that_nobody_reads_counts_as_failed(calls, caplog):
    replays = calls.replays(attempts_max=3, backoff_secs=0, open_secs_max=100)
    replays.settle(ended((1, Outcome.FAILED), (2, Outcome.FAILED)), 0)
    calls.now += 100
    replays.settle(ended(), 1)
    assert replays.counts().open == 2 and not caplog.records
    calls.now += 1
    replays.settle(ended((2, Outcome.FAILED)), 2)
    assert calls.seen == [("replay", 0, [(1, 2), (2, 2)]), ("replay", 2, [(1, 3), (2, 3)])]
    assert replays.counts() == ReplayCounts(messages=2, failures=4, replayed=4, open=2, overdue=1)
    assert "1 messages were replayed, and no tree of them ended within 100 s" in caplog.text
    calls.now += 101
    replays.settle(ended((2, Outcome.ACKED)), 3)
    assert calls.seen[2:] == [("dead", 3, [(1, 3)])]
    assert replays.counts() == ReplayCounts(messages=2, failures=5, replayed=4, recovered=1, dead_letters=1, overdue=2)


def test_why_an_overdue_replay_became_a_dead_letter(tmp_path):
    now = [0.0]
    options = {"attempts_max": 2, "backoff_secs": 0, "open_secs_max": 60, "clock": lambda: now[0]}
    replays = Replays(tmp_path / "ledger", replay=tmp_path / "again", dead_letter=tmp_path / "dead", **options)
    replays.settle(ended((1, Outcome.FAILED)), 0)
    now[0] = 61.0
    replays.settle(ended(), 1)
    (letter,) = pq.read_table(tmp_path / "dead").to_pylist()
    assert letter["reason"] == "attempt 2 was replayed, and no tree of it ended within 60 s"
    assert (letter["outcome"], letter["root_id"]) == (Outcome.TIMED_OUT, 101)


def test_messages_may_have_ids_that_are_texts(tmp_path):
    now = [1000.0]

    def start(**options):
        folders = {"replay": tmp_path / "again", "dead_letter": tmp_path / "dead"}
        defaults = {"attempts_max": 2, "message_id": "string", "clock": lambda: now[0]}
        return Replays(tmp_path / "ledger", **folders, **{**defaults, **options})

    def completions(**ended):
        done = Completions.from_rows([(100 + place, 0, 3, how, 5) for place, how in enumerate(ended.values())])
        reasons = np.array([None if how == Outcome.ACKED else "ValueError: no" for how in ended.values()], object)
        return PipelineCompletions.of(done, np.array(list(ended), object), reasons, reasons)

    assert start().schema.field("message_id").type == pa.string() and "message_id string" in start().ddl
    start().settle(completions(a=Outcome.FAILED, b=Outcome.ACKED, ü=Outcome.FAILED), 0)
    assert start().held()["message_id"].to_pylist() == ["a", "ü"]
    now[0] += 1
    start().settle(completions(), 1)
    start().settle(completions(ü=Outcome.ACKED, a=Outcome.FAILED), 2)
    start().settle(completions(ü=Outcome.ACKED, a=Outcome.FAILED), 2)
    assert start().counts() == ReplayCounts(messages=2, failures=3, replayed=2, recovered=1, dead_letters=1)
    (letter,) = pq.read_table(tmp_path / "dead").to_pylist()
    assert (letter["message_id"], letter["attempt"], letter["reason"]) == ("a", 2, "ValueError: no")
    with pytest.raises(ArgumentTypeError, match=r"Replays was made for message ids of type string, .* have long ones"):
        start().settle(ended((1, Outcome.FAILED)), 3)
    with pytest.raises(CheckpointError, match=r"message ids are of type 'string', .* with message_id='long'"):
        start(message_id="long").counts()


def test_reasons_reach_the_dead_letters(tmp_path):
    texts = {101: "split: a negation", 102: "pack: no sofa"}
    seen = []
    replays = Replays(
        tmp_path,
        replay=print,
        dead_letter=lambda rows, _: seen.extend(rows["reason"].to_pylist()),
        attempts_max=1,
        reasons=lambda failed: [texts[root] for root in failed.root_id.tolist()],
    )
    replays.settle(ended((2, Outcome.FAILED), (3, Outcome.ACKED), (1, Outcome.TIMED_OUT)), 0)
    assert seen == ["split: a negation", "pack: no sofa"]


def test_what_happens_is_logged(calls, caplog):
    caplog.set_level(logging.INFO, "acker.spark")
    replays = calls.replays()
    replays.settle(ended((3, Outcome.ACKED)), 0)
    assert not caplog.messages
    replays.settle(ended((1, Outcome.FAILED), (2, Outcome.FAILED)), 1)
    calls.now += 1
    replays.settle(ended((2, Outcome.ACKED)), 2)
    replays.settle(ended((1, Outcome.TIMED_OUT)), 3)
    replays.settle(ended((1, Outcome.TIMED_OUT)), 3)
    texts = [text.removeprefix(f"replays of {calls.folder}: micro-batch ") for text in caplog.messages]
    assert texts == [
        "1: 2 begin to wait, 0 replayed, 0 recovered, 0 dead letters; now 2 wait and 0 are open",
        "2: 0 begin to wait, 1 replayed, 1 recovered, 0 dead letters; now 0 wait and 1 are open",
        "3: 0 begin to wait, 0 replayed, 0 recovered, 1 dead letters; now 0 wait and 0 are open",
        "3: messages that are given up: 1, one of them message 1 of task 3: timed out (attempt 2)",
        "3 runs again, as it was decided",
    ]
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO", "INFO", "WARNING", "INFO"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"ledger": 3},
            r"ledger: expected the path of a folder, or a ReplayStore with open, note, rows and save, got int",
        ),
        (
            {"replay": None},
            r"replay: expected a function of \(messages, batch_id\) or the path of a fold.*, got NoneType",
        ),
        ({"dead_letter": 7}, "dead_letter: expected a function of .*, got int"),
        ({"attempts_max": 0}, "attempts_max: expected an integer from 1 to 2147483647, got 0"),
        ({"attempts_max": 2.0}, "attempts_max: expected an integer .*, got float"),
        ({"backoff_secs": -1}, "backoff_secs: expected a number of seconds from 0 on, got -1"),
        ({"backoff_secs_max": float("inf")}, "backoff_secs_max: expected a number of seconds from 0 on, got inf"),
        ({"backoff_secs": 90}, "backoff_secs is 90 and backoff_secs_max is 60, but the first wait cannot .*"),
        ({"backoff_secs": True}, "backoff_secs: expected a number of seconds, got bool"),
        ({"message_id": "int"}, "message_id: expected one of 'long', 'string', 'binary', got 'int'"),
        ({"reasons": "failed"}, "reasons: expected a function, got str"),
        ({"clock": 5}, "clock: expected a function, got int"),
    ],
)
def test_wrong_arguments_are_refused_by_name(tmp_path, options, text):
    given = {"ledger": tmp_path, "replay": print, "dead_letter": print, **options}
    with pytest.raises((ArgumentTypeError, ArgumentValueError), match=f"^{text}$"):
        Replays(given.pop("ledger"), **given)


def test_what_is_no_replays_is_refused():
    with pytest.raises(ArgumentTypeError, match=r"replays: expected acker.spark.Replays, got str"):
        for_each_completion(replays="ledger")


@pytest.mark.minutes(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "every"), [("folder", 3), ("sqlite", 4), pytest.param("postgresql", 7, marks=pytest.mark.soak)]
)
def test_each_message_is_acked_or_given_up_once_wherever_the_driver_is_killed(request, tmp_path, where, every):
    """Between any two steps: `replay_kills` says which, and kills a process at some; with EVERY 1, at each."""
    if where == "postgresql":
        where = request.getfixturevalue(where).url
    command = [sys.executable, "-m", "tests.spark.streams.replay_kills", str(tmp_path), where, str(every)]
    told = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(told.stdout)
    assert found["steps"] > 50 and len(found["accounts"]) == found["steps"] // every + 4
    for account in found["accounts"]:
        assert account == EXPECTED


class Stream:
    """A folder of completions, one micro-batch a file."""

    def __init__(self, spark, folder):
        self._spark, self._folder, self._written = spark, folder, 0
        (folder / "files").mkdir()

    def write(self, *rows):
        table = pa.Table.from_batches([ended(*rows).to_arrow()]).cast(COMPLETION_SCHEMA)
        path = self._folder / f"files/{self._written}.parquet"
        pq.write_table(table, path)
        os.utime(path, (self._written, self._written))
        self._written += 1

    def run(self, function, checkpoint="checkpoint"):
        frame = self._spark.readStream.schema(ENDED).option("maxFilesPerTrigger", 1)
        writer = frame.parquet(str(self._folder / "files")).writeStream.foreachBatch(function)
        writer = writer.option("checkpointLocation", str(self._folder / checkpoint)).trigger(availableNow=True)
        writer.start().awaitTermination()


@pytest.mark.spark
def test_a_query_that_ends_before_its_micro_batch_is_recorded_goes_on_as_it_began(spark, tmp_path, calls):
    stream = Stream(spark, tmp_path)
    stream.write((1, Outcome.FAILED), (2, Outcome.FAILED))
    stream.write((5, Outcome.ACKED))
    stream.write((1, Outcome.ACKED), (2, Outcome.FAILED))
    settled, crashes = [], [1, 2]

    def settle(done, batch_id):
        calls.now += 1
        settled.append((batch_id, len(done)))
        if batch_id in crashes:
            crashes.remove(batch_id)
            raise OSError("the driver is gone")

    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="the driver is gone"):
            stream.run(for_each_completion(settle, replays=calls.replays()))
    stream.run(for_each_completion(settle, replays=calls.replays()))
    assert settled == [(0, 2), (1, 1), (1, 1), (2, 2), (2, 2)]
    again, dead = ("replay", 1, [(1, 2), (2, 2)]), ("dead", 2, [(2, 2)])
    assert calls.seen == [again, again, dead, dead]
    expected = ReplayCounts(messages=2, failures=3, replayed=2, recovered=1, dead_letters=1)
    assert calls.replays().counts() == expected
    # A new checkpoint needs a new ledger: by its id a query is known even where its micro-batches have larger numbers.
    for _ in range(2):
        stream.write()
    with pytest.raises(StreamingQueryException, match=r"belongs to the query [-0-9a-f]+, and this is the query"):
        stream.run(for_each_completion(replays=calls.replays()), "another")


@pytest.mark.spark
def test_the_ledger_may_be_written_by_another_process(spark, tmp_path):
    """As with Spark Connect, where the function runs beside the server."""
    stream = Stream(spark, tmp_path)
    stream.write((1, Outcome.FAILED), (2, Outcome.FAILED), (3, Outcome.ACKED))
    stream.write((1, Outcome.ACKED), (2, Outcome.FAILED))
    folders = {"replay": tmp_path / "again", "dead_letter": tmp_path / "dead"}
    replays = Replays(tmp_path / "ledger", attempts_max=2, backoff_secs=0, **folders)
    stream.run(for_each_completion(replays=replays))
    assert replays.counts() == ReplayCounts(messages=2, failures=3, replayed=2, recovered=1, dead_letters=1)
    assert pq.read_table(tmp_path / "again")["message_id"].to_pylist() == [1, 2]
    assert pq.read_table(tmp_path / "dead")["message_id"].to_pylist() == [2]


@pytest.mark.spark
def test_rounds_of_a_batch_go_on_until_nothing_is_left(spark, tmp_path):
    fails = {2: 1, 3: 5}

    def work(row):
        if row.attempt <= fails.get(row.id, 0):
            raise ValueError("not now")
        return [row.id]

    rounds, dead = [[(number, 1) for number in range(5)]], []
    replays = Replays(
        tmp_path,
        replay=lambda rows, _: rounds.append([(row["message_id"], row["attempt"]) for row in rows.to_pylist()]),
        dead_letter=lambda rows, _: dead.extend(rows.to_pylist()),
        attempts_max=3,
        backoff_secs=0,
    )
    settle = for_each_completion(replays=replays)
    for number, rows in enumerate(rounds):
        frame = spark.createDataFrame(rows, "id long, attempt int")
        pipeline = spout(frame, message_id="id", attempt="attempt").bolt(work, schema="id long", sink=True)
        settle(pipeline.completions(include_pending=True), number)
    assert rounds[1:] == [[(2, 2), (3, 2)], [(3, 3)]]
    (letter,) = dead
    assert (letter["message_id"], letter["attempt"]) == (3, 3)
    assert (letter["component"], letter["reason"]) == ("work", "ValueError: not now")
    assert replays.counts() == ReplayCounts(messages=2, failures=4, replayed=3, recovered=1, dead_letters=1)


@pytest.mark.minutes(3)
@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(1800)  # three sessions of Spark, one after the other
def test_a_stream_whose_driver_is_killed_accounts_for_each_message(tmp_path):
    """Killed after the ledger was written and before the replay was, then after that and before Spark's commit."""

    def run(step):
        command = [sys.executable, "-m", "tests.spark.streams.replay_stream", str(tmp_path), str(step)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        # A JVM that lives so shortly does not get back what its second compiler costs.
        quick = {**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
        with subprocess.Popen(command, cwd=ROOT, env=quick, text=True, start_new_session=True, **pipes) as process:
            out, error = process.communicate()
        return process.returncode, out, error

    def names(folder):
        return [path.name for path in sorted((tmp_path / folder).glob("[!.]*"))]

    assert run(5)[0] == -signal.SIGKILL
    assert names("ledger") == ["batch-000000000.parquet", "batch-000000001.parquet"] and names("again") == []
    assert run(2)[0] == -signal.SIGKILL
    (again,) = names("again")
    assert again.startswith("replay-") and again.endswith("-000000001.parquet") and names("checkpoint/commits") == ["0"]
    code, out, error = run(-1)
    assert code == 0, error
    expected = ReplayCounts(messages=3, failures=6, replayed=5, recovered=2, dead_letters=1)
    assert json.loads(out.splitlines()[-1]) == expected._asdict()
    done = [row for path in tmp_path.glob("done-*.json") for row in json.loads(path.read_text())]
    assert len({row[0] for row in done}) == len(done) == 11, "each attempt is a tree that ended once"
    assert Counter(row[1] for row in done) == {0: 1, 1: 1, 2: 1, 3: 2, 4: 3, 5: 3}
    assert sorted(row[1] for row in done if row[3] == Outcome.ACKED) == [0, 1, 2, 3, 4]
    (letter,) = pq.read_table(tmp_path / "dead").to_pylist()
    assert (letter["message_id"], letter["attempt"], letter["outcome"]) == (5, 3, Outcome.FAILED)


def test_the_ledger_of_another_checkpoint_is_refused_without_a_query_id(calls):
    replays = calls.replays()
    replays.settle(ended((1, Outcome.FAILED)), 3)
    with pytest.raises(CheckpointError, match="has decided micro-batch 3, and the query runs micro-batch 0"):
        replays.settle(ended((1, Outcome.FAILED)), 0)
