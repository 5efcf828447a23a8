"""The logs of file sinks: as Spark writes them, and damaged ones."""

import contextlib

import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from acker._files import sink_log
from acker._files.sink_log import read_log
from acker.errors import ArgumentValueError
from acker.spark import completions, completions_from_files
from tests.sink_logs import commit, entry
from tests.spark.test_files import table_of


def read(directory):
    return [uri.rpartition("/")[2] for uri in read_log(fs.LocalFileSystem(), str(directory))]


def test_a_log_is_its_last_compact_file_and_what_came_after(tmp_path):
    assert read(tmp_path) == []
    commit(tmp_path, 0, ["a", "b"])
    commit(tmp_path, 1, [])
    assert read(tmp_path) == ["a", "b"]
    commit(tmp_path, 2, ["b", "c"], compact=True)
    commit(tmp_path, 3, ["d", "c"])
    assert read(tmp_path) == ["b", "c", "d"]
    commit(tmp_path, 5, ["e"], compact=True)
    (tmp_path / "_spark_metadata/.6.crc").touch()
    (tmp_path / "_spark_metadata/.7.0ab1.tmp").touch()
    assert read(tmp_path) == ["e"]
    for number in range(6, 12):
        commit(tmp_path, number, [f"f{number}"])
    assert read(tmp_path) == ["e", *(f"f{number}" for number in range(6, 12))]


def test_what_was_deleted_and_directories_are_left_out(tmp_path):
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    (log / "0").write_text("\n".join(["v1", entry("file:/a"), entry("file:/b"), entry("file:/d", isDir=True)]))
    (log / "1").write_text("\n".join(["v1", entry("file:/a", "delete"), entry("file:/c")]))
    assert read(tmp_path) == ["b", "c"]


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("1", "", "_spark_metadata/1: expected the log of a file sink, of version v1, got ''"),
        ("1", "v2\n{}", "_spark_metadata/1: expected the log of a file sink, of version v1, got 'v2'"),
        ("1", "v1\n" + entry("file:/x")[:30], "_spark_metadata/1, line 2: damaged: JSONDecodeError"),
        ("1", f"v1\n{entry('file:/x')}\n", "_spark_metadata/1, line 3: damaged: JSONDecodeError"),
        ("1", "v1\n7", "_spark_metadata/1, line 2: damaged: TypeError"),
        ("1", 'v1\n{"path": "file:/x"}', "_spark_metadata/1, line 2: damaged: KeyError: 'action'"),
        ("1", "v1\n" + entry(5), "_spark_metadata/1, line 2: expected a path, and the action 'add' or 'delete', got"),
        ("1", "v1\n" + entry("file:/x", "move"), "_spark_metadata/1, line 2: expected a path, and the action"),
        ("1", f"v1\n{entry('file:/x')}\n{entry('file:/x')}", "_spark_metadata/1, line 3: damaged: file:/x is there tw"),
        ("1", b"v1\n\xff", "_spark_metadata/1: damaged: "),
        ("3", "v1", "_spark_metadata: damaged: micro-batch 1 is missing, but 3 exists"),
    ],
)
def test_a_damaged_log_is_an_error_that_names_the_file(tmp_path, name, content, text):
    commit(tmp_path, 0, ["a"])
    path = tmp_path / "_spark_metadata" / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ArgumentValueError) as caught:
        read(tmp_path)
    assert f"{tmp_path}/{text}" in str(caught.value)


def test_a_flipped_byte_leaves_no_file_out_that_exists(tmp_path):
    """Spark's log has no checksums: what is not refused changes nothing here, or names a file that is not there."""
    names = ["part-00000-6b1a.parquet", "part-00001-6b1a.parquet"]
    commit(tmp_path, 0, names)
    path = tmp_path / "_spark_metadata/0"
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in (0, 4):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            with contextlib.suppress(ArgumentValueError):
                assert len(set(read(tmp_path))) == 2


@pytest.mark.parametrize("still_wanted", [False, True])
def test_a_sink_that_compacts_its_log_meanwhile(tmp_path, monkeypatch, still_wanted):
    """A reader that comes too late for what it found begins anew; what is wanted for good is missed."""
    commit(tmp_path, 0, ["a"])
    commit(tmp_path, 1, ["b"])
    read_file = sink_log._read

    def compact_first(filesystem, path):
        if still_wanted:
            raise FileNotFoundError(path)
        if path.endswith("/0"):
            commit(tmp_path, 2, ["a", "b", "c"], compact=True)
            (tmp_path / "_spark_metadata/0").unlink()
        return read_file(filesystem, path)

    monkeypatch.setattr(sink_log, "_read", compact_first)
    if still_wanted:
        with pytest.raises(ArgumentValueError, match=f"damaged: a file of the log is missing: {tmp_path}/_spark_meta"):
            read(tmp_path)
    else:
        assert read(tmp_path) == ["a", "b", "c"]


@pytest.mark.spark
class TestOfSpark:
    """A log that Spark wrote, and what Spark makes of it."""

    @pytest.fixture
    def directory(self, spark, tmp_path):
        """What a stream wrote in 12 micro-batches, compacted on the way, and a file that nobody committed."""
        source, directory = tmp_path / "in", tmp_path / "out ü %41"
        source.mkdir()
        for number in range(12):
            pq.write_table(table_of(15).slice(number, 1), source / f"{number}.parquet")
        spark.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "5")
        try:
            schema = "kind tinyint, root_id bigint, value bigint, task_id int, message_id bigint"
            stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))
            writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
            writer.trigger(availableNow=True).start(str(directory)).awaitTermination()
        finally:
            spark.conf.unset("spark.sql.streaming.fileSink.log.compactInterval")
        assert (directory / "_spark_metadata/9.compact").exists()
        pq.write_table(table_of(15).slice(12), directory / "part-left.parquet")
        return directory

    @pytest.mark.slow
    def test_files_are_those_that_spark_reads(self, spark, directory, tmp_path):
        def rows(frame):
            return sorted(map(tuple, frame.collect()))

        def done(path):
            return rows(completions_from_files(spark, path, include_pending=True))

        whole = spark.read.parquet(str(directory))
        assert whole.count() == 12
        expected = rows(completions(whole, include_pending=True))
        assert done(directory) == done(directory.parent / "out*") == done([directory / "*.parquet"]) == expected
        spark.conf.set("spark.sql.streaming.fileStreamSink.ignoreMetadata", "true")
        try:
            assert spark.read.parquet(str(directory)).count() == 15
            assert done(directory) != expected
        finally:
            spark.conf.unset("spark.sql.streaming.fileStreamSink.ignoreMetadata")
