"""Completions from rows and from files: one result, that of the reference, however messages are ordered and cut."""

import itertools
import os
import signal
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import fs
from pyspark import cloudpickle
from pyspark.errors import PythonException, SparkRuntimeException

import acker
from acker import COMPLETION_SCHEMA, MESSAGE_SCHEMA, Kind
from acker._engine.protocol import INT64_MAX, INT64_MIN
from acker._files import paths
from acker._files import reader as files
from acker.errors import ArgumentTypeError, ArgumentValueError, ColumnTypeError, ColumnValueError
from acker.spark import (
    completions,
    completions_from_blocks,
    completions_from_files,
    completions_of,
    spout,
)
from tests.marks import slow_after
from tests.oracles import settle_as_sets

# The workers cannot import the tests; what they run of this module travels as code.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.spark

DDL = "kind tinyint, root_id bigint, value bigint, task_id int, message_id bigint"
# Few, so that messages of one tree meet and TRACKs are doubled; the extremes by name.
ROOTS = np.array([0, -1, INT64_MIN, INT64_MAX, *range(1, 30), *(i << 40 for i in range(1, 10))])
VALUES = np.array([0, 0, 1, 2, 3, -1, INT64_MIN, INT64_MAX])


def messages_of(seed, rows):
    """Return a table of random messages, null where a row that is no TRACK may be; and its columns without nulls."""
    rng = np.random.default_rng(seed)
    columns = [
        rng.choice(np.array([0, 0, 1, 2, 2, 3, 4], np.int8), rows),
        rng.choice(ROOTS, rows),
        rng.choice(VALUES, rows),
        rng.choice(np.array([0, 1, 2**31 - 1], np.int32), rows),
        rng.choice(np.array([0, 42, INT64_MIN, INT64_MAX]), rows),
    ]
    masks = [None, None, None, *((columns[0] != Kind.TRACK) & (rng.random(rows) < share) for share in rng.random(2))]
    arrays = [pa.array(column, mask=mask) for column, mask in zip(columns, masks, strict=True)]
    return pa.table(arrays, schema=MESSAGE_SCHEMA), columns


def write(table, path, kind, piece_rows):
    """Write messages as a file of one of the three formats, in pieces of so many rows."""
    if kind == files.PARQUET:
        pq.write_table(table, path, row_group_size=piece_rows)
        return
    new = pa.ipc.new_file if kind == files.ARROW_FILE else pa.ipc.new_stream
    with new(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=piece_rows)


def rows_of(done):
    """Collect completions in the order of the reference."""
    return sorted(map(tuple, done.collect()))


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(0, 400),
    cuts=st.lists(st.floats(0, 1), max_size=3),
    kinds=st.lists(st.sampled_from([files.PARQUET, files.ARROW_FILE, files.ARROW_STREAM]), min_size=4, max_size=4),
    piece_rows=st.integers(1, 200),
    partitions=st.integers(1, 4),
    shards=st.sampled_from([None, 1, 3]),
    include_pending=st.booleans(),
)
@settings(max_examples=3, suppress_health_check=list(HealthCheck))
def test_neither_order_nor_partitions_nor_files_have_a_say(
    spark, tmp_path_factory, seed, rows, cuts, kinds, piece_rows, partitions, shards, include_pending
):
    table, columns = messages_of(seed, rows)
    expected = settle_as_sets(*columns, include_pending=include_pending).rows()
    shuffled = table.take(np.random.default_rng(seed).permutation(rows))
    frame = spark.createDataFrame(shuffled).repartition(partitions)
    assert rows_of(completions(frame, include_pending=include_pending)) == expected

    folder = tmp_path_factory.mktemp("messages")
    bounds = [0, *sorted(int(cut * rows) for cut in cuts), rows]
    for number, (first, end) in enumerate(itertools.pairwise(bounds)):
        write(shuffled.slice(first, end - first), str(folder / f"{number}.messages"), kinds[number], piece_rows)
    done = completions_from_files(spark, folder, shards=shards, include_pending=include_pending)
    assert rows_of(done) == expected
    alone = acker.completions_from_files(folder, threads=partitions, include_pending=include_pending)
    assert sorted(alone.rows()) == expected


def frame_of(spark, rows, ddl=DDL):
    return spark.createDataFrame(rows, ddl)


@pytest.mark.slow
def test_a_doubled_track_is_harmless_wherever_it_lies(spark, tmp_path):
    tree = [(0, 7, 5, 1, 42), (2, 7, 6, None, None), (2, 7, 3, None, None)]
    lost = [(0, 8, 5, 1, 43), (0, 8, 5, 1, 43)]  # Storm would ack this one: its ack val reads 0.
    expected = [(7, 42, 1, 0, 0), (8, 43, 1, 4, 0)]
    frame = frame_of(spark, [*tree, *lost, tree[0]])
    assert rows_of(completions(frame.repartition(4), include_pending=True)) == expected
    for number, row in enumerate([*tree, *lost, tree[0]]):
        table = pa.Table.from_pylist([dict(zip(MESSAGE_SCHEMA.names, row, strict=True))], MESSAGE_SCHEMA)
        pq.write_table(table, tmp_path / f"{number}.parquet")
    assert rows_of(completions_from_files(spark, tmp_path, include_pending=True)) == expected


def test_completions_have_the_schema(spark, tmp_path):
    table, _ = messages_of(1, 50)
    pq.write_table(table, tmp_path / "m.parquet")
    wanted = [(entry.name, str(entry.type)) for entry in COMPLETION_SCHEMA]
    arrow = {"bigint": "int64", "int": "int32", "tinyint": "int8"}
    for done in (completions(frame_of(spark, [])), completions_from_files(spark, tmp_path / "m.parquet")):
        assert [(name, arrow[dtype]) for name, dtype in done.dtypes] == wanted


@pytest.mark.slow
def test_integers_of_another_width_are_converted(spark, tmp_path):
    rows = [(0, 7, 5, 1, 42), (2, 7, 5, None, None), (0, 8, 1, 2**31 - 1, -3)]
    expected = [(7, 42, 1, 0, 0), (8, -3, 2**31 - 1, 4, 0)]
    wide = frame_of(spark, rows, "kind bigint, root_id int, value smallint, task_id bigint, message_id int")
    assert rows_of(completions(wide, include_pending=True)) == expected
    columns = list(zip(*rows, strict=True))
    types = [pa.uint64(), pa.int16(), pa.uint8(), pa.int64(), pa.int32()]
    arrays = [pa.array(column, dtype) for column, dtype in zip(columns, types, strict=True)]
    pq.write_table(pa.table(arrays, names=MESSAGE_SCHEMA.names), tmp_path / "m.parquet")
    assert rows_of(completions_from_files(spark, tmp_path, include_pending=True)) == expected


BAD_ROWS = [
    ((5, 7, 1, 0, 0), "kind: expected a kind from 0 to 4, got 5 (root id 7)"),
    ((-1, 7, 1, 0, 0), "kind: expected a kind from 0 to 4, got -1 (root id 7)"),
    ((None, 7, 1, 0, 0), "kind: expected a kind from 0 to 4, got null (root id 7)"),
    ((2, None, 1, 0, 0), "root_id: expected int64, got null (root id null)"),
    ((3, 7, None, 0, 0), "value: expected int64, got null (root id 7)"),
    ((2, 7, 1, -3, 0), "task_id: expected an int32 >= 0, got -3 (root id 7)"),
    ((0, 7, 1, 2**31, 0), "task_id: expected an int32 >= 0, got 2147483648 (root id 7)"),
    ((0, 7, 1, None, 0), "task_id: expected an int32 >= 0 for a TRACK, got null (root id 7)"),
    ((0, 7, 1, 0, None), "message_id: expected int64 for a TRACK, got null (root id 7)"),
]
WIDE_DDL = "kind bigint, root_id bigint, value bigint, task_id bigint, message_id bigint"


@pytest.mark.parametrize(("row", "text"), slow_after(2, BAD_ROWS), ids=[text.split(":")[0] for _, text in BAD_ROWS])
def test_bad_values_name_column_and_root_id(spark, row, text):
    good = (2, 1, 1, 0, 0)
    with pytest.raises(SparkRuntimeException) as caught:
        completions(frame_of(spark, [good, row], WIDE_DDL)).collect()
    assert text in str(caught.value)


def test_a_bad_value_in_a_file_fails_the_job_and_says_where(spark, tmp_path):
    good, (row, text) = (2, 1, 1, 0, 0), BAD_ROWS[-1]
    arrays = [pa.array(column, pa.int64()) for column in zip(good, good, row, strict=True)]
    path = tmp_path / "bad.parquet"
    pq.write_table(pa.table(arrays, names=MESSAGE_SCHEMA.names), path, row_group_size=2)
    with pytest.raises(PythonException) as caught:
        completions_from_files(spark, path).collect()
    assert f"{path}, row 2: {text}" in str(caught.value)


def test_frames_of_another_shape_are_refused_before_a_job(spark):
    with pytest.raises(
        ColumnValueError, match="message_id: expected a column of bigint, got the columns kind, root_id"
    ):
        completions(frame_of(spark, [], DDL.rsplit(",", 1)[0]))
    with pytest.raises(ColumnValueError, match="kind: expected a column of tinyint, got 2 columns of that name"):
        completions(frame_of(spark, [], DDL + ", kind tinyint"))
    for dtype in ("double", "string", "boolean", "decimal(10,0)"):
        with pytest.raises(ColumnTypeError) as caught:
            completions(frame_of(spark, [], DDL.replace("task_id int", f"task_id {dtype}")))
        assert str(caught.value) == f"task_id: expected int, got {dtype}"
    with pytest.raises(ArgumentTypeError, match=r"messages: expected a DataFrame of PySpark, got builtins\.list"):
        completions([1])


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"protocol": "fsshelter"}, ArgumentValueError, "needs the order of messages, which a DataFrame does not have"),
        ({"protocol": "heron"}, ArgumentValueError, "protocol: expected 'storm' or 'storm-0.9', got 'heron'"),
        ({"shards": 0}, ArgumentValueError, "shards: expected an integer from 1 to 1024, got 0"),
        ({"shards": True}, ArgumentTypeError, "shards: expected an integer from 1 to 1024, got bool"),
        ({"timeout": "soon"}, ArgumentValueError, "timeout: expected a duration such as '90 seconds'"),
        ({"timeout": "0 seconds"}, ArgumentValueError, "got '0 seconds'"),
        ({"timeout": -1.5}, ArgumentValueError, "got -1.5"),
        ({"timeout": float("nan")}, ArgumentValueError, "got nan"),
        ({"timeout": True}, ArgumentTypeError, "got bool"),
    ],
)
def test_bad_options_are_refused_both_ways(spark, tmp_path, options, error, text):
    frame = frame_of(spark, [])
    pq.write_table(MESSAGE_SCHEMA.empty_table(), tmp_path / "m.parquet")
    for call in (lambda: completions(frame, **options), lambda: completions_from_files(spark, tmp_path, **options)):
        with pytest.raises(error) as caught:
            call()
        assert text in str(caught.value)


STREAM_OPTIONS = {
    "timeout": "1.5 minutes",
    "buckets": 3,
    "high_water": 5,
    "event_time": "at",
    "watermark_delay": "1 second",
    "name": "acker",
}
SOURCE_OPTIONS = {"max_files_per_trigger": 1, "source_options": {}, "skip_foreign_files": True}


@pytest.fixture(scope="module")
def batches(spark):
    """The four ways into a batch, each a function of the options."""
    messages = frame_of(spark, [])
    blocks = spark.createDataFrame([], "shard int, block binary")
    rows = spark.createDataFrame([], "line long, at long")
    pipeline = spout(rows, message_id="line").bolt(lambda row: None, schema="x int", component="end", sink=True)
    return {
        "rows": lambda **options: completions(messages, **options),
        "files": lambda **options: completions_from_files(spark, "nowhere", **options),
        "blocks": lambda **options: completions_from_blocks(blocks, shards=2, **options),
        "pipelines": lambda **options: completions_of(pipeline, **options),
        "pipeline": pipeline.completions,
    }


@pytest.mark.parametrize("way", ["rows", "files", "blocks", "pipelines", "pipeline"])
@pytest.mark.parametrize("name", STREAM_OPTIONS)
def test_an_option_of_streams_is_refused_for_a_batch_with_one_error(batches, way, name):
    with pytest.raises(ArgumentValueError) as caught:
        batches[way](**{name: STREAM_OPTIONS[name]})
    expected = f"{name}: only a stream has this option, and this is a batch: leave it out"
    assert str(caught.value) == expected + (", or give streaming=True" if way == "files" else "")


@pytest.mark.parametrize("name", SOURCE_OPTIONS)
def test_an_option_of_the_file_source_is_refused_for_a_batch(batches, name):
    with pytest.raises(ArgumentValueError, match=rf"^{name}: only a stream has this option, .*, or give streaming="):
        batches["files"](**{name: SOURCE_OPTIONS[name]})


@pytest.mark.parametrize("way", ["rows", "files", "blocks", "pipelines"])
def test_a_stream_has_nothing_pending(spark, tmp_path, way):
    stream = spark.readStream.format("rate").load()
    messages = stream.selectExpr("tinyint(0) kind", "value root_id", "value", "int(0) task_id", "value message_id")
    blocks = stream.selectExpr("int(0) shard", "binary(null) block")
    call = {
        "rows": lambda: completions(messages, include_pending=True),
        "files": lambda: completions_from_files(None, tmp_path, streaming=True, include_pending=True),
        "blocks": lambda: completions_from_blocks(blocks, shards=2, include_pending=True),
        "pipelines": lambda: completions_of(spout(stream, message_id="value", run_seed=1), include_pending=True),
    }[way]
    with pytest.raises(ArgumentValueError, match=r"^include_pending: only a batch has this option, and this is a str"):
        call()


@pytest.mark.slow
def test_each_protocol_gives_a_batch_the_same_result(spark, tmp_path):
    rows = [(0, 7, 0, 1, 42), (3, 8, 0, None, None)]
    frame = frame_of(spark, rows)
    columns = list(zip(*rows, strict=True))
    pq.write_table(
        pa.table([pa.array(c, f.type) for c, f in zip(columns, MESSAGE_SCHEMA, strict=True)], MESSAGE_SCHEMA.names),
        tmp_path / "m.parquet",
    )
    for options in ({}, {"protocol": "storm-0.9"}, {"protocol": "storm", "shards": 3}):
        assert rows_of(completions(frame, **options)) == [(7, 42, 1, 0, 0)]
        assert rows_of(completions_from_files(spark, str(tmp_path), **options)) == [(7, 42, 1, 0, 0)]


def killing_filesystem(marker, driver):
    """Return the local filesystem, but for the first process that opens a file and is not the driver: it is killed."""
    local = fs.LocalFileSystem()

    def delegate(name):
        return lambda self, *arguments: getattr(local, name)(*arguments)

    def open_input_file(self, path):
        if os.getpid() != driver:
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                pass
        return local.open_input_file(path)

    methods = {name: delegate(name) for name in fs.FileSystemHandler.__abstractmethods__}
    methods |= {"open_input_file": open_input_file, "get_type_name": lambda self: "killing"}
    return fs.PyFileSystem(type("KillingHandler", (fs.FileSystemHandler,), methods)())


def test_a_worker_that_is_killed_is_replaced_and_nothing_counts_twice(spark, tmp_path, monkeypatch):
    table, columns = messages_of(5, 1000)
    folder = tmp_path / "messages"
    folder.mkdir()
    for number in range(4):
        pq.write_table(table.slice(250 * number, 250), folder / f"{number}.parquet")
    marker = tmp_path / "killed"
    filesystem = killing_filesystem(marker, os.getpid())
    monkeypatch.setattr(paths, "resolve", lambda path, *_: (filesystem, path, []))
    done = rows_of(
        completions_from_files(spark, [str(folder / f"{i}.parquet") for i in range(4)], include_pending=True)
    )
    assert marker.exists()  # A worker was killed, and its task ran again.
    assert done == settle_as_sets(*columns, include_pending=True).rows()


def test_a_file_that_changes_under_a_plan_is_told(spark, tmp_path):
    table, _ = messages_of(6, 100)
    path = tmp_path / "m.parquet"
    pq.write_table(table, path, row_group_size=50)
    done = completions_from_files(spark, path)
    pq.write_table(table, path, row_group_size=10)
    with pytest.raises(PythonException, match="changed while it was read: 2 pieces before, now 10"):
        done.collect()
