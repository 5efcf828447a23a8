"""Checkpoints of real queries, read back: of an acker, of one whose state is broken, and of something else."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from acker import MESSAGE_SCHEMA, Kind
from acker._engine.combiner import shard_of
from acker._engine.open_trees import TOKEN_BYTES, TreeCounts, TreeEntries
from acker.cli import state as cli_state
from acker.cli.commands import cli
from acker.errors import ArgumentValueError
from acker.spark import batch_report, completions, session_checks
from acker.spark.streams.checkpoint import AGE_BOUNDS_MS, _metadata, _summarise, inspect_checkpoint
from acker.spark.streams.state_format import ChunkSize, Head, encode_chunk, encode_head

SHARDS = 4
ONE = (ChunkSize(1, 100),)
MESSAGES = "kind byte, root_id long, value long, task_id int, message_id long"


@pytest.fixture(scope="module")
def rocks(spark):
    before = spark.conf.get(session_checks.PROVIDER_CONF)
    spark.conf.set(session_checks.PROVIDER_CONF, session_checks.PROVIDER)
    yield spark
    spark.conf.set(session_checks.PROVIDER_CONF, before)


def run(frame, folder, mode="append"):
    """Let a query do what there is to do; return its checkpoint and its last progress."""
    writer = frame.writeStream.format("noop").outputMode(mode).option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return str(folder / "checkpoint"), query.lastProgress


@pytest.fixture(scope="module")
def made(rocks, tmp_path_factory):
    """An acker after two micro-batches: trees 0 to 99 began in the first, and 30 of them ended in the second."""
    folder = tmp_path_factory.mktemp("made")
    roots = np.arange(100)
    rows = [
        [(Kind.TRACK, root, root + 1, 0, root) for root in roots],
        [(Kind.OK, root, root + 1, None, None) for root in roots[:30]] + [(Kind.OK, 1000, 5, None, None)],
    ]
    for number, batch in enumerate(rows):
        table = pa.Table.from_arrays(
            [pa.array(list(column)) for column in zip(*batch, strict=True)], MESSAGE_SCHEMA.names
        )
        path = folder / f"{number}.parquet"
        pq.write_table(table.cast(MESSAGE_SCHEMA), path)
        os.utime(path, (number, number))  # the order in which they are taken
    messages = rocks.readStream.schema(MESSAGES).option("maxFilesPerTrigger", 1).parquet(str(folder))
    checkpoint, progress = run(completions(messages, shards=SHARDS, timeout="1 hour"), folder)
    return SimpleNamespace(path=checkpoint, report=batch_report(progress), roots=roots[30:])


@pytest.fixture
def command(rocks, monkeypatch):
    """`acker state inspect` with the session of the tests."""

    @contextmanager
    def session(*args, **kwargs):
        yield rocks

    monkeypatch.setattr(cli_state, "spark_session", session)
    return lambda *arguments: CliRunner().invoke(cli, ["state", "inspect", *arguments])


@pytest.mark.spark
def test_a_checkpoint_says_of_each_shard_what_the_query_said(rocks, made):
    (acker,) = inspect_checkpoint(rocks, made.path)
    assert (acker.operator, acker.batch_id, acker.version, acker.shards, acker.partitions) == (0, 1, 4, SHARDS, 2)
    assert not acker.event_time and [state.shard for state in acker.states] == list(range(SHARDS))
    held = np.bincount(shard_of(np.append(made.roots, 1000), SHARDS), minlength=SHARDS)
    assert [state.pending for state in acker.states] == held.tolist()
    assert sum(state.open for state in acker.states) == 70 and not any(state.fault for state in acker.states)
    for state in acker.states:
        assert sum(state.ages) == state.pending and state.partition == state.shard % 2
        assert (state.batch_id, state.clock_ms) == (1, state.time_ms)
    whole, report = acker.states, made.report
    assert max(state.oldest_age_ms for state in whole) > 0
    assert sum(state.log_bytes for state in whole) == report.state_bytes
    assert sum(state.chunks for state in whole) == report.chunks
    assert min(state.time_ms for state in whole) == report.time_ms
    counts = TreeCounts(*(sum(column) for column in zip(*(state.counts for state in whole), strict=True)))
    assert counts == TreeCounts(tracked=100, acked=30)


def waits(path):
    """Return what the command says before it waits."""
    return f"starting Spark at local[2] ...\nreading {path} ...\n"


@pytest.mark.spark
def test_the_command_shows_a_table_and_ages(command, made):
    answer = command(made.path)
    assert (answer.exit_code, answer.stderr) == (0, waits(made.path))
    lines = answer.stdout.splitlines()
    assert lines[0] == f"{made.path}, operator 0, after micro-batch 1"
    assert lines[1] == "format 4; 4 shards in 2 partitions; trees expire by the clock; 4 shards have state"
    (total,) = [line.split("\N{BOX DRAWINGS LIGHT VERTICAL}") for line in lines if " all " in line]
    assert [cell.strip() for cell in total[1:4]] == ["all", "71", "70"] and total[7].strip() == "30"
    assert sum(int(line.split()[-1]) for line in lines if line.startswith("  ")) == 71


@pytest.mark.slow
@pytest.mark.spark
def test_the_command_writes_json(command, made):
    answer = command(made.path, "--json", "--operator", "0")
    assert (answer.exit_code, answer.stderr) == (0, waits(made.path))
    whole = json.loads(answer.stdout)
    (acker,) = whole["ackers"]
    assert whole["checkpoint"] == made.path and acker["age_bounds_ms"] == list(AGE_BOUNDS_MS)
    assert sum(state["pending"] for state in acker["states"]) == 71
    assert acker["states"][0]["counts"]["tracked"] > 0


@pytest.mark.soak  # as `acker doctor` does in tests/cli/test_doctor.py
@pytest.mark.spark
def test_the_real_command_starts_a_spark_of_its_own(made):
    command = [sys.executable, "-m", "acker", "state", "inspect", made.path, "--json"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, waits(made.path))
    assert sum(state["pending"] for state in json.loads(answer.stdout)["ackers"][0]["states"]) == 71


@pytest.mark.slow
@pytest.mark.spark
def test_what_has_no_acker_is_refused(rocks, command, made, tmp_path):
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"key": [1, 2]}), tmp_path / "in" / "0.parquet")
    counted = rocks.readStream.schema("key long").parquet(str(tmp_path / "in")).groupBy("key").count()
    other, _ = run(counted, tmp_path, "complete")
    for arguments, text in (
        ([str(tmp_path / "none")], "expected the checkpointLocation of a query with state, found no folder there"),
        ([str(tmp_path)], "expected the checkpointLocation of a query with state, found no state there"),
        ([other], "there is no acker in this checkpoint, but 0: stateStoreSave"),
        (
            [made.path, "--operator", "3"],
            "operator: expected one of an acker (0: transformWithStateInPandasExec), got 3",
        ),
        ([other, "--operator", "0"], "operator: expected one of an acker (there is none), got 0"),
    ):
        answer = command(*arguments)
        assert (answer.exit_code, answer.stdout) == (2, "")
        assert answer.stderr.endswith(f"{text}\n") and answer.stderr.removeprefix(waits(arguments[0])).count("\n") == 1


@pytest.mark.spark
def test_a_checkpoint_that_was_moved_is_told(rocks, made, tmp_path, monkeypatch):
    """Spark keeps the absolute path of the state's schema; here it leads nowhere."""
    row = _metadata(rocks, made.path)[0]
    copy = tmp_path / "checkpoint"
    subprocess.run(["cp", "-r", made.path, str(copy)], check=True)
    metadata = copy / "state" / "0" / "_metadata" / "v2" / "0"
    metadata.write_text(metadata.read_text().replace(made.path, str(tmp_path / "gone")))
    (metadata.parent / f".{metadata.name}.crc").unlink()
    assert row.numPartitions == 2
    with pytest.raises(ArgumentValueError, match="a checkpoint that was moved or copied cannot be read"):
        inspect_checkpoint(rocks, str(copy))
    assert not (tmp_path / "gone").exists(), "to look at a copy makes nothing where it came from"


def head(**fields):
    whole = dict.fromkeys(Head._fields, 0)
    whole |= {"token": bytes(TOKEN_BYTES), "shards": 4, "partitions": 2, "first_chunk": 1, "chunks": ()}
    return Head(**(whole | {"counts": TreeCounts()} | fields))


def entries(*start_ms):
    count = len(start_ms)
    roots, zeros = np.arange(count), np.zeros(count, np.int64)
    start = np.array(start_ms, np.int64)
    return TreeEntries(roots, zeros, zeros, start, start, np.zeros(count, np.int32))


@pytest.mark.slow
@pytest.mark.spark
def test_a_shard_whose_state_cannot_be_read_is_named_and_the_others_are_shown(rocks, command, tmp_path):
    fine = encode_head(head(shard=3, time_ms=5))
    heads = {
        0: fine,
        1: fine[:8] + b"\x09" + fine[9:],
        2: fine[:-1] + b"\x00",
        3: encode_head(head(shard=1, entries=5)),
        4: encode_head(head(shard=2, entries=2, open=2, chunks=ONE)),
    }
    chunk = encode_chunk(entries(1), np.empty((2, 0), np.int64))
    broken, _ = run(written(rocks, tmp_path, heads, {4: chunk}), tmp_path)
    answer = command(broken)
    assert answer.exit_code == 1
    told = [line.rpartition("shard ")[2] if "shard" in line else line for line in answer.stderr.splitlines()[2:]]
    assert len(told) == 4
    for text in (
        "head: expected format version 4, got 9: it was written by another release of acker;",
        "head: the checksum does not fit the bytes: the checkpoint is damaged",
        "1: its log is missing: the checkpoint is damaged",
        "2: the log holds 1 entries, 1 of them tracked, and the head says 2 and 2: the checkpoint is damaged",
    ):
        assert text in answer.stderr
    assert answer.stdout.count("?") == 2 and " 3 " in answer.stdout


def written(spark, folder, heads, chunks):
    """A query whose state has the variable of an acker, and in it what it is told."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Writer(StatefulProcessor):
        def init(self, handle):
            self.log = handle.getMapState("log", "chunk int", "bytes binary")

        def handleInputRows(self, key, rows, timerValues):  # noqa: N802, N803
            yield from ()
            self.log.updateValue((0,), (heads[key[0]],))
            if key[0] in chunks:
                self.log.updateValue((1,), (chunks[key[0]],))

        def close(self):
            pass

    (folder / "in").mkdir()
    pq.write_table(pa.table({"partition_key": pa.array(list(heads), pa.int32())}), folder / "in" / "0.parquet")
    keys = spark.readStream.schema("partition_key int").parquet(str(folder / "in")).groupBy("partition_key")
    return keys.transformWithStateInPandas(Writer(), "partition_key int", "Append", "None")


def test_ages_are_counted_up_to_their_bounds():
    bounds = [*AGE_BOUNDS_MS]
    starts = [10**9 - age for age in (0, bounds[0] - 1, bounds[0], bounds[-1] - 1, bounds[-1], 10**9)]
    chunks = {1: encode_chunk(entries(*starts), np.empty((2, 0), np.int64))}
    found = _summarise(7, chunks, head(time_ms=10**9, entries=6, open=6, chunks=ONE))
    assert (found.fault, found.partition_key, found.oldest_ms) == ("", 7, 0)
    assert found.ages == [2, 1, 0, 0, 0, 1, 2]


def test_a_log_is_read_as_the_operator_reads_it():
    """Later chunks over earlier ones, without what is gone, and without what was placed before expired_ms."""
    chunks = {
        4: encode_chunk(entries(10, 20, 30, 40), np.empty((2, 0), np.int64)),
        5: encode_chunk(entries(35), np.array([[2, 9], [30, 0]])),
    }
    known = head(time_ms=100, entries=2, open=2, first_chunk=4, chunks=2 * ONE, expired_ms=25)
    assert _summarise(0, chunks, known)[1:] == (35, [2, 0, 0, 0, 0, 0, 0], "")
    fault = _summarise(0, {4: chunks[4]}, known).fault
    assert fault == "the log should have the chunks 4 to 5 and has 1: the checkpoint is damaged"
    chunks[5] = chunks[5][:-1] + b"?"
    assert _summarise(0, chunks, known).fault == "chunk: the checksum does not fit the bytes: the checkpoint is damaged"


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0.0 s"), (59_000, "59.0 s"), (90_000, "1.5 min"), (7_200_000, "2.0 h"), (86_400_000 * 40, "40.0 d")],
)
def test_ages_are_told_in_a_unit_that_suits_them(ms, text):
    assert cli_state.age(ms) == text


def test_the_bounds_are_told_as_they_are():
    units = {"s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
    told = [int(number) * units[unit] for number, unit in (bound.split() for bound in cli_state._BOUNDS)]
    assert told == list(AGE_BOUNDS_MS)
