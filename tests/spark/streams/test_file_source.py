"""Files that come into a directory, as a stream of blocks: each is read once, whole, by whoever is dealt its slices."""

import os

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from acker import MESSAGE_SCHEMA
from acker._engine.combiner import Cohorts, Combiner
from acker._files import reader
from acker._files.paths import list_files
from acker._files.reader import inspect_file
from acker.errors import ArgumentTypeError, ArgumentValueError, ColumnTypeError, ColumnValueError
from acker.spark import completions_from_files, files
from acker.spark.blocks import decode_block
from acker.spark.files import gather_units
from acker.spark.options import CompletionOptions, check_options, check_source_options
from acker.spark.session_checks import PROVIDER, PROVIDER_CONF
from acker.spark.streams import file_source
from acker.spark.streams.file_source import blocks_of_directory
from acker.spark.streams.listener import skipped_files
from tests.oracles import settle_as_sets
from tests.sink_logs import commit
from tests.spark.test_files import table_of, write


def drop(table, path, kind=reader.PARQUET, piece_rows=100):
    """Write a file beside its place and move it in, as whoever feeds a stream has to."""
    path.parent.mkdir(exist_ok=True)
    hidden = path.with_name(f".{path.name}")
    write(table, hidden, kind, piece_rows=piece_rows)
    hidden.rename(path)


def messages(rows, seed):
    rng = np.random.default_rng(seed)
    columns = [
        rng.integers(0, 5, rows).astype(np.int8),
        rng.integers(0, rows // 4, rows),
        rng.integers(0, 4, rows),
        rng.integers(0, 3, rows).astype(np.int32),
        rng.integers(0, 3, rows),
    ]
    return pa.table(columns, schema=MESSAGE_SCHEMA)


COHORTS = Cohorts(timeout_ms=1000, buckets=3)


def latest_ms(path, column):
    units = [unit for file in list_files(path) for unit in inspect_file(*file, column)]
    ((_, event_ms),) = gather_units(units, resets=True, event_time=column, cohorts=COHORTS)
    return event_ms


@pytest.mark.parametrize("kind", [reader.PARQUET, reader.ARROW_FILE, reader.ARROW_STREAM])
def test_the_latest_event_time_is_found_in_whole_milliseconds(tmp_path, kind):
    path = tmp_path / "m"
    for dtype, values, expected in (
        (pa.timestamp("s"), [3, 0, -5], 3000),
        (pa.timestamp("ms"), [-6, -7, -5], -5),
        (pa.timestamp("us", "UTC"), [-1, -3, -2], -1),
        (pa.timestamp("ns", "Europe/Rome"), [5_999_999, 1, 0], 5),
        (pa.int64(), [7, 9, 8], 9),
        (pa.int16(), [-7, -9, -8], -7),
    ):
        table = table_of().append_column("at", pa.array((values * 4)[:10], pa.int64()).cast(dtype))
        write(table, path, kind)
        assert latest_ms(path, "at") == expected
    assert latest_ms(path, "message_id") == 9
    write(table_of().append_column("at", pa.array([1, 2, None] + [4] * 7)), path, kind)
    text = "m.*, row 2: at: expected a time in each row, in milliseconds since 1970 from year 1 to 9999, got null"
    with pytest.raises(ColumnValueError, match=text):
        latest_ms(path, "at")


def test_a_file_without_event_times_is_refused(tmp_path):
    path = tmp_path / "m"
    write(table_of().append_column("at", pa.array(["x"] * 10)), path)
    with pytest.raises(ColumnTypeError, match="m: at: expected timestamps or integers in milliseconds, got string"):
        latest_ms(path, "at")
    with pytest.raises(
        ColumnValueError,
        match="m: when: expected a column of timestamps or integers in milliseconds, got no column of that",
    ):
        latest_ms(path, "when")


def test_a_task_that_is_dealt_much_hands_on_what_it_has(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_TASK_ROOTS_MAX", 10)
    table = messages(400, 1)
    write(table, tmp_path / "m", piece_rows=50)
    merged, held = Combiner(), []
    for combiner, _ in gather_units([unit for file in list_files(tmp_path) for unit in inspect_file(*file)]):
        held.append(combiner.messages)
        merged.merge(combiner.partials()[0])
    assert len(held) > 3 and sum(held) == 400
    columns = [table.column(name).to_numpy() for name in MESSAGE_SCHEMA.names]
    assert sorted(merged.settle().rows()) == settle_as_sets(*columns).rows()


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (["in"], ArgumentTypeError),
        (5, ArgumentTypeError),
        ("in/*", ArgumentValueError),
        ("in/[ab]", ArgumentValueError),
        ("in/file", ArgumentValueError),
        ("nowhere", ArgumentValueError),
    ],
)
def test_a_stream_watches_one_directory(tmp_path, monkeypatch, given, error):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/file").touch()
    with pytest.raises(
        error, match=r"^paths: with streaming=True expected one directory that exists, without patterns"
    ):
        blocks_of_directory(None, given, 2, check_source_options(), CompletionOptions())


@pytest.fixture
def gathered(spark, tmp_path):
    """A function that runs a stream of blocks over a directory and returns, by micro-batch, what came of it."""

    def gather(directory, event_time=None, **source):
        batches = {}

        def take(frame, number):
            batches[number] = [tuple(row) for row in frame.collect()]

        timeout = None if event_time is None else COHORTS.timeout_ms / 1000
        options = check_options(event_time=event_time, timeout=timeout, buckets=COHORTS.buckets)
        stream = blocks_of_directory(spark, directory, 3, check_source_options(**source), options)
        query = (
            stream.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return [rows for _, rows in sorted(batches.items())], query

    return gather


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("event_time", [None, "at"])
def test_files_become_blocks_once_however_they_are_cut(gathered, tmp_path, monkeypatch, event_time):
    monkeypatch.setattr(file_source, "_SLICE_BYTES", 1000)
    directory = tmp_path / "in %41 é"
    names = ["a.parquet", "b #1.arrow", "deep er/c%20.stream", "one piece"]
    kinds = [reader.PARQUET, reader.ARROW_FILE, reader.ARROW_STREAM, reader.PARQUET]
    tables = [messages(rows, rows).append_column("at", pa.array([rows] * rows)) for rows in (990, 1000, 500, 40)]
    for name, kind, table in zip(names[:2], kinds, tables, strict=False):
        drop(table, directory / name, kind)
    # Spark takes the older file first, and both may have been written in one millisecond.
    written = (directory / names[1]).stat().st_mtime - 9
    os.utime(directory / names[0], (written, written))
    (directory / "_nothing").write_text("of ours")
    seen, query = gathered(directory, event_time=event_time, max_files_per_trigger=1)
    plan = query._jsq.explainInternal(False)
    # No content is read in the JVM: the paths are all it is asked for.
    assert "ReadSchema: struct<path:string,length:bigint>" in plan and "content" not in plan
    assert len(seen) == 2
    for name, kind, table in zip(names[2:], kinds[2:], tables[2:], strict=True):
        drop(table, directory / name, kind)
    later, _ = gathered(directory, event_time=event_time)
    assert len(later) == 1
    batches = [*seen, *later]
    expected = [[tables[0]], [tables[1]], tables[2:]]
    for rows, of_batch in zip(batches, expected, strict=True):
        whole = pa.concat_tables(of_batch)
        merged, counted, events = Combiner(), 0, set()
        for shard, block, *event in rows:
            partials, header = decode_block(bytes(block))
            assert shard in range(3) and event in ([], [header.event_ms])
            events |= {header.event_ms}
            counted += header.messages
            merged.merge(partials)
        columns = [whole.column(name).to_numpy() for name in MESSAGE_SCHEMA.names]
        assert counted == len(whole)
        sets = settle_as_sets(*columns, include_pending=True)
        assert sorted(merged.settle(include_pending=True).rows()) == sets.rows()
        times = {table.num_rows for table in of_batch}
        assert events <= (times | {None}) if event_time else events == {None}
        assert event_time is None or max(times) in events


def roots_of(batches):
    """The root ids that blocks hold, by micro-batch."""
    found = []
    for rows in batches:
        partials = [decode_block(bytes(row[1]))[0] for row in rows]
        found.append(sorted(root for part in partials for root in part.root_id.tolist()))
    return found


def one(root):
    """A file with one message."""
    return pa.table([[0], [root], [1], [0], [root]], schema=MESSAGE_SCHEMA)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("folder", ["in [1]", "{a,b}", "x*y?", "back\\\\slash"])
def test_names_that_could_be_patterns(gathered, tmp_path, folder):
    names = ["part[1].parquet", "a*b?.parquet", "{a,b}.parquet", "d[1]/e.parquet"]
    for number, name in enumerate(names):
        (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
        drop(one(number), tmp_path / folder / name)
    for decoy in ("in 1", "a", "xay_", "backslash"):
        drop(one(99), tmp_path / decoy / "m.parquet")
    seen, _ = gathered(tmp_path / folder)
    assert roots_of(seen) == [[0, 1, 2, 3]]


@pytest.mark.slow
@pytest.mark.spark
def test_files_of_any_age_are_taken_unless_an_option_says_otherwise(gathered, tmp_path):
    directory, week = tmp_path / "in", 7 * 86_400
    now = 1_700_000_000
    for number, age in enumerate((0, week - 60, week + 60, 9 * week, now)):
        drop(one(number), directory / f"{number}.parquet")
        os.utime(directory / f"{number}.parquet", (now - age, now - age))
    drop(one(0), directory / "0.parquet")
    os.utime(directory / "0.parquet", (now, now))
    for number in range(1, 5):
        (directory / f"{number}.parquet").rename(tmp_path / f"{number}")
    assert roots_of(gathered(directory)[0]) == [[0]]
    for number in range(1, 5):
        (tmp_path / f"{number}").rename(directory / f"{number}.parquet")
    assert roots_of(gathered(directory, source_options={"MAXFILEAGE": "7d"})[0]) == [[1]]
    assert roots_of(gathered(directory)[0]) == [[2, 3, 4]]


@pytest.mark.slow
@pytest.mark.spark
def test_options_of_sparks_source_reach_it(gathered, tmp_path):
    directory = tmp_path / "in"
    for number in range(4):
        drop(one(number), directory / f"{number}.{'parquet' if number else 'other'}")
        os.utime(directory / f"{number}.{'parquet' if number else 'other'}", (number, number))
    options = {"pathGlobFilter": "*.parquet", "maxBytesPerTrigger": 1, "latestFirst": True, "cleanSource": "delete"}
    seen, _ = gathered(directory, source_options=options)
    assert roots_of(seen) == [[3], [2], [1]]
    gathered(directory, source_options=options)  # Spark cleans up a micro-batch when the next one is planned.
    assert {path.name for path in directory.iterdir()} & {"0.other", "2.parquet", "3.parquet"} == {"0.other"}


def test_what_is_no_option_of_the_source_is_refused():
    for given, error, text in (
        (
            {"maxfilesage": 1},
            ArgumentValueError,
            "source_options: expected options of Spark's file source, maxFilesPer",
        ),
        ({5: 1}, ArgumentValueError, "got 5"),
        (["maxFileAge"], ArgumentTypeError, "source_options: expected a mapping of names to values, got list"),
        ({"maxFilesPerTrigger": 1}, ArgumentValueError, "max_files_per_trigger: expected it once"),
    ):
        with pytest.raises(error, match=text):
            check_source_options(source_options=given, max_files_per_trigger=3)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("event_time", [None, "message_id"])
def test_a_foreign_file_is_skipped_and_counted(gathered, tmp_path, monkeypatch, event_time):
    monkeypatch.setattr(file_source, "_SLICE_BYTES", 1000)
    directory = tmp_path / "in"
    drop(one(1), directory / "1.parquet")
    drop(messages(900, 1).drop_columns("value"), directory / "2.parquet")  # of several slices, and told of once
    (directory / "3.csv").write_text("kind,root_id\n")
    (directory / "4.parquet").write_bytes(b"PAR1")
    seen, query = gathered(directory, skip_foreign_files=True, event_time=event_time)
    assert roots_of(seen) == [[1]]
    texts = skipped_files(query.lastProgress)
    assert [text.partition(": ")[0] for text in texts] == [
        str(directory / name) for name in ("2.parquet", "3.csv", "4.parquet")
    ]
    assert "value: expected a column of int64, got no column" in texts[0] and "damaged" in texts[2]
    assert skipped_files(query.lastProgress, "other") == skipped_files(None) == []


@pytest.mark.slow
@pytest.mark.spark
def test_the_log_of_a_file_sink_is_followed_in_its_very_directory(gathered, tmp_path):
    directory = tmp_path / "in"
    for number in range(3):
        drop(one(number), directory / f"{number}.parquet")
    drop(one(7), directory / "day=1/left.parquet")
    commit(directory, 0, ["0.parquet"])
    assert roots_of(gathered(directory)[0]) == [[0]]
    commit(directory, 1, ["2.parquet"])
    assert roots_of(gathered(directory)[0]) == [[2]]


@pytest.mark.slow
@pytest.mark.spark
def test_a_log_that_spark_would_not_follow_is_refused(spark, gathered, tmp_path):
    for name in ("in", "[in]", "above/in"):
        drop(one(1), (tmp_path / name).joinpath("1.parquet")) if name != "above/in" else None
    above = tmp_path / "above"
    (above / "in").mkdir(parents=True)
    drop(one(1), above / "in" / "1.parquet")
    for directory in (tmp_path / "in", tmp_path / "[in]", above / "in"):
        commit(directory, 0, ["1.parquet"])
    (tmp_path / "in/day=1").mkdir()
    for directory, mend in (("in/day=1", f"watch {tmp_path}/in itself"), ("[in]", "give it a name without any of")):
        with pytest.raises(ArgumentValueError, match=mend):
            blocks_of_directory(spark, tmp_path / directory, 2, check_source_options(), CompletionOptions())
    with pytest.raises(StreamingQueryException, match=f"does not follow its log .* watch {above}/in itself"):
        gathered(above)


@pytest.mark.spark
def test_a_file_of_another_shape_fails_the_query_and_is_named(gathered, tmp_path):
    directory = tmp_path / "in"
    drop(table_of(task_id=pa.float64()), directory / "m.parquet")
    with pytest.raises(StreamingQueryException, match=r"in/m.parquet: task_id: expected int32, got double"):
        gathered(directory)


@pytest.fixture
def state_store(spark):
    spark.conf.set(PROVIDER_CONF, PROVIDER)
    yield
    spark.conf.unset(PROVIDER_CONF)


@pytest.mark.spark
@pytest.mark.parametrize("event_time", [pytest.param(None, marks=pytest.mark.slow), "at"])
def test_trees_end_that_lie_in_several_files(spark, state_store, tmp_path, event_time):
    """Each file is a micro-batch: OKs may come before their TRACK, and one tree is left open until its time is over."""
    directory, apart_ms = tmp_path / "in", 40_000
    lots = [
        [(0, 1, 7, 3, 11), (2, 2, 5, 0, 0), (0, 3, 9, 4, 13)],
        [(2, 1, 7, 0, 0), (0, 2, 5, 2, 12), (4, 9, 0, 0, 0)],
        [(3, 4, 0, 0, 0), (0, 4, 1, 1, 14)],
    ]
    expected = {(1, 11, 3, 0), (2, 12, 2, 0), (4, 14, 1, 1)} | ({(3, 13, 4, 2)} if event_time else set())
    for number, lot in enumerate([*lots, [(2, 5, 1, 0, 0)]]):
        table = pa.table(list(zip(*lot, strict=True)), schema=MESSAGE_SCHEMA)
        path = directory / f"{number}.parquet"
        drop(table.append_column("at", pa.array([number * apart_ms] * len(lot))), path)
        os.utime(path, (number, number))  # the order in which they are taken
    found = []

    def take(frame, _):
        found.append([tuple(row)[:4] for row in frame.collect()])

    done = completions_from_files(
        spark,
        directory,
        streaming=True,
        timeout="1 minute",
        shards=2,
        event_time=event_time,
        max_files_per_trigger=1,
    )
    assert done.isStreaming
    query = done.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = query.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    assert len(found) >= 4
    assert sorted(row for rows in found for row in rows) == sorted(expected)
