"""The files of the ledger: what they say together, which are removed when, and which are refused."""

import json
import pickle
import random
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from acker import Completions, Outcome
from acker.errors import CheckpointError
from acker.spark import hadoop
from acker.spark.checksums import seal_parquet
from acker.spark.folders import Folder
from acker.spark.streams import replay_ledger
from acker.spark.streams.replay_ledger import REPLAY_SCHEMA, FolderLedger, ReplayCounts, number_keys
from acker.spark.streams.replay_rules import ReplayRules, decide, fingerprint

RULES = ReplayRules(attempts_max=3, backoff_secs=1.0, backoff_secs_max=60.0)
QUERY = "a8b0"


def completions(*rows):
    return Completions.from_rows([(root, message, 0, how, 5) for root, (message, how) in enumerate(rows)])


def open_ledger(path):
    return FolderLedger(Folder("ledger", path))


def run(ledger, batch_id, done, query=QUERY):
    state = ledger.state()
    decisions = decide(state, done, RULES, 1000 * batch_id)
    ledger.record(state, batch_id, decisions, query, fingerprint(done))
    return decisions


def decided(ledger, batch_id, query=QUERY, failed=((1, Outcome.FAILED),)):
    return ledger.decisions_of(ledger.state(), batch_id, query, fingerprint(completions(*failed)))


def files(path):
    return sorted(file.name for file in path.iterdir())


@pytest.mark.parametrize("seed", range(3))
def test_what_is_read_is_what_was_written_and_old_files_go(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(replay_ledger, "_FILES_MAX", 5)
    draw = random.Random(seed)
    ledger, seen, query = open_ledger(tmp_path), set(), ""
    for batch_id in range(0, 60, 2):
        rows = [(draw.randrange(8), draw.choice(list(Outcome))) for _ in range(draw.randrange(4))]
        query = query or draw.choice(["", QUERY])
        decisions = run(ledger, batch_id, completions(*rows), query)
        state, other = ledger.state(), open_ledger(tmp_path).state()
        key = [("message_id", "ascending")]
        assert other.held.sort_by(key) == state.held.sort_by(key) == decisions.held.sort_by(key)
        assert other[1:] == state[1:]
        assert (other.last, other.query, other.counts) == (batch_id, query, decisions.counts)
        assert decided(open_ledger(tmp_path), batch_id) == decisions.rows
        assert decided(open_ledger(tmp_path), batch_id + 1) is None
        seen.add(len(files(tmp_path)))
    assert max(seen) == 6  # as many as may be, and that of the last micro-batch


def test_it_is_written_anew_once_it_has_many_more_rows_than_messages(tmp_path, monkeypatch):
    monkeypatch.setattr(replay_ledger, "_ROWS_SPARE", 10)
    ledger = open_ledger(tmp_path)
    most = 0
    for batch_id in range(30):
        run(ledger, batch_id, completions(*((message, Outcome(batch_id % 2)) for message in range(6))))
        most = max(most, ledger.state().rows)
    # Two rows for each message held, the spare ones, and those of the last micro-batch.
    assert most <= 2 * 6 + 10 + 6
    assert files(tmp_path)[-1].startswith("state-")


def test_a_crash_between_the_new_state_and_the_removal_of_old_files(tmp_path, monkeypatch):
    monkeypatch.setattr(replay_ledger, "_FILES_MAX", 2)
    ledger = open_ledger(tmp_path)
    for batch_id in range(3):
        run(ledger, batch_id, completions((batch_id, Outcome.FAILED)))
    (tmp_path / ".batch-000000003.parquet-a1.tmp").touch()
    (tmp_path / "notes.txt").touch()
    before = open_ledger(tmp_path).state()
    with monkeypatch.context() as patched:
        patched.setattr(Folder, "remove", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(ledger, 3, completions((3, Outcome.FAILED)))
    assert "state-000000002.parquet" in files(tmp_path) and len(files(tmp_path)) == 6
    after = open_ledger(tmp_path).state()
    assert after.held == before.held and after[1:4] == before[1:4]
    run(open_ledger(tmp_path), 3, completions((3, Outcome.FAILED)))
    assert files(tmp_path) == ["batch-000000003.parquet", "notes.txt", "state-000000002.parquet"]
    assert open_ledger(tmp_path).state().counts == ReplayCounts(messages=4, failures=4, replayed=3, waiting=1, open=3)


def interrupt(*_):
    raise KeyboardInterrupt


def test_a_reader_beside_the_query_reads_again_when_files_go(tmp_path, monkeypatch):
    ledger, reader = open_ledger(tmp_path), open_ledger(tmp_path)
    for batch_id in range(3):
        run(ledger, batch_id, completions((batch_id, Outcome.FAILED)))
    read = Folder.read

    def shorten_meanwhile(self, name):
        monkeypatch.setattr(Folder, "read", read)
        monkeypatch.setattr(replay_ledger, "_FILES_MAX", 2)
        run(ledger, 3, completions((3, Outcome.FAILED)))
        return read(self, name)

    monkeypatch.setattr(Folder, "read", shorten_meanwhile)
    assert reader.state().last == 3 and reader.state().counts == ledger.state().counts
    monkeypatch.setattr(Folder, "read", lambda self, name: (_ for _ in ()).throw(FileNotFoundError(name)))
    with pytest.raises(CheckpointError, match=r"changes while it is read; only one query may use it"):
        open_ledger(tmp_path).state()


def test_nothing_is_read_again_while_the_files_are_the_same(tmp_path, monkeypatch):
    ledger = open_ledger(tmp_path)
    run(ledger, 0, completions((1, Outcome.FAILED)))
    monkeypatch.setattr(Folder, "read", interrupt)
    assert ledger.state().held.num_rows == 1
    copy = pickle.loads(pickle.dumps(ledger))
    with pytest.raises(KeyboardInterrupt):
        copy.state()


def test_a_lost_file_is_noticed(tmp_path):
    ledger = open_ledger(tmp_path)
    for batch_id in (0, 3, 4):
        run(ledger, batch_id, completions((batch_id, Outcome.FAILED)))
    (tmp_path / "batch-000000003.parquet").unlink()
    with pytest.raises(CheckpointError, match=r"the file of micro-batch 3 is missing, which was before 4; put it back"):
        open_ledger(tmp_path).state()


def test_damage_and_another_version_are_refused_by_name(tmp_path):
    run(open_ledger(tmp_path), 0, completions((1, Outcome.FAILED)))
    path = tmp_path / "batch-000000000.parquet"
    whole = path.read_bytes()
    for data in (b"PAR1" + bytes(40) + b"PAR1", pq_bytes(pa.table({"a": [1]}))):
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=r"batch-000000000.parquet is damaged \(.*\); begin with a new"):
            open_ledger(tmp_path).state()
    table = pq.read_table(pa.BufferReader(whole))
    note = json.loads(table.schema.metadata[b"acker.replays"])
    other = table.replace_schema_metadata({"acker.replays": json.dumps({**note, "version": "1"})})
    path.write_bytes(seal_parquet(pq_bytes(other), path.name))
    with pytest.raises(CheckpointError, match=r"expected format version 4, got 1; run the query with the release"):
        open_ledger(tmp_path).state()


def test_a_file_with_a_byte_flipped_or_its_end_cut_off_is_refused_by_its_name(tmp_path):
    """Here some of them; tests/spark/test_checksums.py flips each byte."""
    run(open_ledger(tmp_path), 0, completions((1, Outcome.FAILED)))
    path = tmp_path / "batch-000000000.parquet"
    whole = path.read_bytes()
    places = range(0, len(whole), 61)
    damaged = [whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :] for place in places]
    damaged += [whole[:place] for place in places]
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(CheckpointError) as caught:
            open_ledger(tmp_path).state()
        assert f"{path} is damaged" in str(caught.value)
    path.write_bytes(whole)
    assert open_ledger(tmp_path).state().counts.messages == 1


def test_a_file_is_one_that_any_reader_of_parquet_reads(tmp_path):
    decisions = run(open_ledger(tmp_path), 0, completions((1, Outcome.FAILED), (2, Outcome.FAILED)))
    assert pq.read_table(tmp_path / "batch-000000000.parquet").replace_schema_metadata(None) == decisions.rows


def pq_bytes(table):
    target = pa.BufferOutputStream()
    pq.write_table(table, target)
    return target.getvalue().to_pybytes()


def test_a_checkpoint_that_is_behind_and_another_query_are_refused(tmp_path):
    ledger = open_ledger(tmp_path)
    run(ledger, 4, completions((1, Outcome.FAILED)))
    for query in (QUERY, ""):
        assert decided(ledger, 4, query).num_rows == 1 and decided(ledger, 5, query) is None
    with pytest.raises(CheckpointError, match=r"has decided micro-batch 4, and the query runs micro-batch 3: .* new"):
        decided(ledger, 3)
    with pytest.raises(CheckpointError, match=r"belongs to the query a8b0, and this is the query c9: each checkpoint"):
        decided(ledger, 4, "c9")


def test_the_folder_may_be_on_any_filesystem_of_pyarrow(tmp_path, monkeypatch):
    """Where pyarrow writes, a file is moved into its place."""
    opened = []

    class Watched(fs.SubTreeFileSystem):
        def open_output_stream(self, path, *rest, **named):
            opened.append(path)
            return super().open_output_stream(path, *rest, **named)

    elsewhere = Watched(str(tmp_path), fs.LocalFileSystem())
    monkeypatch.setattr(hadoop, "locate", lambda path, settings: (elsewhere, "bucket/ledger/"))
    ledger = open_ledger("s3://bucket/ledger/")
    assert ledger.state().held.num_rows == 0
    run(ledger, 0, completions((1, Outcome.FAILED)))
    assert open_ledger("s3://bucket/ledger").state().counts.waiting == 1
    assert opened == ["bucket/ledger/.batch-000000000.parquet.tmp"]
    assert files(tmp_path / "bucket/ledger") == ["batch-000000000.parquet"]


@pytest.mark.leaves_behind("Arrow's client of S3 has an event loop as long as the process lives")
def test_the_ledger_may_be_in_s3(sqs, monkeypatch):
    """Moto, which is here for SQS, has buckets too."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
    scheme, _, host = sqs.url.partition("://")
    options = f"endpoint_override={host}&scheme={scheme}&region=us-east-1"
    bucket = uuid.uuid4().hex
    makes_buckets, _ = fs.FileSystem.from_uri(f"s3://{bucket}?{options}&allow_bucket_creation=true")
    makes_buckets.create_dir(bucket)
    uri = f"s3a://{bucket}/ledger?{options}"
    monkeypatch.setattr(replay_ledger, "_FILES_MAX", 2)
    ledger = open_ledger(uri)
    for batch_id in range(6):
        run(ledger, batch_id, completions((batch_id % 4, Outcome(batch_id % 2))))
    other = open_ledger(uri)
    assert other.state().counts == ledger.state().counts and other.state().last == 5
    assert decided(other, 5).num_rows == 1
    with pytest.raises(CheckpointError, match=r"replays: s3a://[0-9a-f]+/ledger has decided micro-batch 5"):
        decided(other, 1)


def test_a_uri_of_this_machine_is_the_same_folder(tmp_path, monkeypatch):
    run(open_ledger(f"file://{tmp_path}/ledger/"), 0, completions((1, Outcome.FAILED)))
    monkeypatch.chdir(tmp_path)
    ledger = open_ledger("ledger")
    monkeypatch.chdir("/")
    assert ledger.state().counts.waiting == 1


def test_keys_are_numbered_exactly():
    draw = np.random.default_rng(3)
    task = draw.choice(np.array([0, 1, 2**31 - 1], np.int32), 200)
    message = draw.choice(np.array([0, -1, -(2**63), 2**63 - 1, 7]), 200)
    numbers = number_keys(task, message)
    pairs = list(zip(task.tolist(), message.tolist(), strict=True))
    assert len(set(zip(pairs, numbers.tolist(), strict=True))) == len(set(pairs)) == len(set(numbers.tolist()))
    assert sorted(set(numbers.tolist())) == list(range(len(set(pairs))))
    assert number_keys(task[:0], message[:0]).size == 0


def test_users_see_these_columns():
    assert REPLAY_SCHEMA.names == ["task_id", "message_id", "attempt", "root_id", "outcome", "component", "reason"]
