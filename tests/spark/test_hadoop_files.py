"""Filesystems of Hadoop as those of pyarrow: here the one for local disks; test_object_store.py has HDFS."""

import os
import pickle

import pytest
from pyarrow.fs import FileSelector, FileType, PyFileSystem

from acker.errors import ArgumentValueError
from acker.spark import hadoop_files
from acker.spark.hadoop import place_of
from acker.spark.hadoop_files import HadoopFiles, open_hadoop, setup_of

pytestmark = pytest.mark.spark


@pytest.fixture
def files(spark):
    return PyFileSystem(HadoopFiles("file", setup_of(spark)))


def write(files, path, content):
    with files.open_output_stream(path) as stream:
        stream.write(content)


def names_in(files, folder, **options):
    found = files.get_file_info(FileSelector(str(folder), **options))
    return {each.path.removeprefix(f"{folder}/"): each.size for each in found}


def test_files_are_written_read_listed_and_removed(files, tmp_path):
    large = os.urandom(3 * hadoop_files._MESSAGE_BYTES)
    write(files, f"{tmp_path}/a b/one", b"1")
    write(files, f"{tmp_path}/a b/one", large)
    write(files, f"{tmp_path}/two%20", b"22")
    assert names_in(files, tmp_path) == {"a b": None, "two%20": 2}
    assert names_in(files, tmp_path, recursive=True) == {"a b": None, "a b/one": len(large), "two%20": 2}
    assert [path.name for path in tmp_path.glob("*/*") if not path.name.endswith(".crc")] == ["one"]
    with files.open_input_file(f"{tmp_path}/a b/one") as stream:
        assert stream.size() == len(large)
        assert stream.read_at(7, 5) == large[5:12]
        assert stream.read_at(2 * hadoop_files._MESSAGE_BYTES, 3) == large[3 : 3 + 2 * hadoop_files._MESSAGE_BYTES]
        stream.seek(0)
        assert stream.read() == large and stream.read() == b""
    files.move(f"{tmp_path}/a b/one", f"{tmp_path}/two%20")
    files.copy_file(f"{tmp_path}/two%20", f"{tmp_path}/three")
    assert (tmp_path / "three").read_bytes() == (tmp_path / "two%20").read_bytes() == large
    files.create_dir(f"{tmp_path}/deep/er", recursive=True)
    files.delete_dir(f"{tmp_path}/a b")
    files.delete_file(f"{tmp_path}/three")
    assert names_in(files, tmp_path) == {"deep": None, "two%20": len(large)}


def test_what_is_not_there_is_told_as_python_tells_it(files, tmp_path):
    missing = f"{tmp_path}/none"
    assert files.get_file_info(missing).type == FileType.NotFound
    assert names_in(files, missing, allow_not_found=True) == {}
    for act in (files.open_input_stream, files.delete_file, lambda path: names_in(files, path)):
        with pytest.raises(FileNotFoundError):
            act(missing)
    (tmp_path / "file").write_bytes(b"")
    assert names_in(files, tmp_path / "file") == {}


def test_a_file_that_was_not_written_whole_does_not_appear(files, tmp_path, monkeypatch):
    write(files, f"{tmp_path}/one", b"1")

    def is_full(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(hadoop_files._Java, "write", is_full)
    with pytest.raises(OSError, match="the disk is full"):
        write(files, f"{tmp_path}/one", b"2")
    assert (tmp_path / "one").read_bytes() == b"1"
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []


def test_workers_get_the_filesystem_as_it_is_configured(files, spark, tmp_path):
    again = pickle.loads(pickle.dumps(files))
    assert again == files and again.type_name == "py::hadoop"
    write(again, f"{tmp_path}/one", b"1")
    assert files.get_file_info(f"{tmp_path}/one").size == 1
    assert files != PyFileSystem(HadoopFiles("file", hadoop_files.HadoopSetup()))


def test_uris_that_pyarrow_has_no_filesystem_for_are_left_to_hadoop(spark):
    place = place_of("hdfs://127.0.0.1:1/a b", spark)
    assert (place.filesystem.type_name, place.path) == ("py::hadoop", "127.0.0.1:1/a b")
    with pytest.raises(ArgumentValueError, match=r'what://there: Hadoop opens no .* No FileSystem for scheme "what"'):
        open_hadoop("what://there/a", setup_of(spark))
