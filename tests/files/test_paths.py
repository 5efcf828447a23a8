"""Which files paths name, without Spark."""

import warnings
from pathlib import Path
from urllib.parse import quote

import pytest
from pyarrow import fs

from acker._files.paths import list_files
from acker.errors import ArgumentTypeError, ArgumentValueError
from tests.sink_logs import commit


def named(paths, **options):
    return [path for _, path in list_files(paths, **options)]


@pytest.fixture
def tree(tmp_path):
    """A folder with files at three depths, and some that are nobody's data."""
    for name in (
        "a.parquet",
        "b.arrow",
        "_SUCCESS",
        ".a.parquet.crc",
        "day=1/a.parquet",
        "day=2/x/a.parquet",
        "_tmp/c.parquet",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        ("", ["a.parquet", "b.arrow", "day=1/a.parquet", "day=2/x/a.parquet"]),
        ("a.parquet", ["a.parquet"]),
        ("_SUCCESS", ["_SUCCESS"]),
        ("*.parquet", ["a.parquet"]),
        ("?.*", ["a.parquet", "b.arrow"]),
        ("[b-z].arrow", ["b.arrow"]),
        ("day=*", ["day=1/a.parquet", "day=2/x/a.parquet"]),
        ("day=*/*.parquet", ["day=1/a.parquet"]),
        ("**/a.parquet", ["a.parquet", "day=1/a.parquet", "day=2/x/a.parquet"]),
        ("**", ["a.parquet", "b.arrow", "day=1/a.parquet", "day=2/x/a.parquet"]),
        (["day=2", "a.parquet", "*.parquet"], ["day=2/x/a.parquet", "a.parquet"]),
    ],
)
@pytest.mark.parametrize("as_uri", [False, True])
def test_paths_name_files(tree, paths, found, as_uri):
    several = [paths] if isinstance(paths, str) else paths
    full = [f"{tree.as_uri() if as_uri else tree}/{path}" for path in several]
    assert [path for _, path in list_files(full)] == [f"{tree}/{name}" for name in found]
    if len(full) == 1 and not as_uri:
        assert [path for _, path in list_files(Path(full[0]))] == [f"{tree}/{name}" for name in found]


def test_relative_paths_hold_wherever_workers_run(tree, monkeypatch):
    monkeypatch.chdir(tree)
    assert [path for _, path in list_files("day=1")] == [f"{tree}/day=1/a.parquet"]
    assert [path for _, path in list_files("*.arrow")] == [f"{tree}/b.arrow"]


@pytest.mark.parametrize(
    ("paths", "error", "text"),
    [
        (5, ArgumentTypeError, "paths: expected a path or several, got int"),
        (["a", 5], ArgumentTypeError, "got int among them"),
        ([], ArgumentValueError, "paths: expected at least one path"),
        ("nowhere.parquet", ArgumentValueError, "paths: 'nowhere.parquet' names no file"),
        ("no*where", ArgumentValueError, "paths: 'no*where' names no file"),
        ("nowhere/*/x", ArgumentValueError, "names no file"),
    ],
)
def test_paths_that_name_nothing(tree, monkeypatch, paths, error, text):
    monkeypatch.chdir(tree)
    (tree / "a").touch()
    with pytest.raises(error) as caught:
        list_files(paths)
    assert text in str(caught.value)


@pytest.mark.parametrize("name", ["part[1].parquet", "a*b?", "{a,b}", "100% #1", "c%20d", "é", "**", "[x", "x]"])
@pytest.mark.parametrize("as_uri", [False, True])
def test_what_exists_under_its_very_name_is_no_pattern(tmp_path, name, as_uri):
    """Of a file, of a directory, and of a directory above a pattern."""
    for folder in (name, f"in {name}"):
        (tmp_path / "files" / folder).mkdir(parents=True)
        (tmp_path / "files" / folder / "m.parquet").touch()
    for stranger in ("part1.parquet", "axbx", "a", "deep"):
        (tmp_path / stranger).mkdir()
        (tmp_path / stranger / "m.parquet").touch()
    (tmp_path / name).touch()

    def path(text):
        return f"file://{quote(str(tmp_path))}/{quote(text)}" if as_uri else f"{tmp_path}/{text}"

    assert named([path(name)]) == [f"{tmp_path}/{name}"]
    assert named(path(f"files/{name}")) == [f"{tmp_path}/files/{name}/m.parquet"]
    assert named(path(f"files/{name}/m.parquet")) == [f"{tmp_path}/files/{name}/m.parquet"]
    assert named(path(f"files/in {name}") + "/*.parquet") == [f"{tmp_path}/files/in {name}/m.parquet"]


def test_brackets_that_name_nothing_are_a_pattern(tmp_path):
    for name in ("part1", "part2", "part[3]"):
        (tmp_path / name).touch()
    assert named(f"{tmp_path}/part[12]") == [f"{tmp_path}/part1", f"{tmp_path}/part2"]
    assert named(f"{tmp_path}/part[[]3]") == [f"{tmp_path}/part[3]"]


def test_columns_whose_names_begin_with_an_underscore_are_partitions(tmp_path):
    for name in ("_day=1/a", "_temporary/b", "c._COPYING_", ".d", "_e"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert named(tmp_path) == named(f"{tmp_path}/*/*") == [f"{tmp_path}/_day=1/a"]


@pytest.fixture
def sink(tmp_path):
    """Two folders of files, one of which a file sink wrote; it did not commit all that lies there."""
    for name in ("sink/a", "sink/day=1/b", "sink/day=1/left", "sink/left", "plain/c"):
        path = tmp_path / "all" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    commit(tmp_path / "all/sink", 0, ["a", "day=1/b"])
    return tmp_path / "all"


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        ("sink", ["sink/a", "sink/day=1/b"]),
        ("", ["plain/c", "sink/a", "sink/day=1/b"]),
        ("s*", ["sink/a", "sink/day=1/b"]),
        ("*", ["plain/c", "sink/a", "sink/day=1/b"]),
        ("**", ["plain/c", "sink/a", "sink/day=1/b"]),
        ("sink/*", ["sink/a", "sink/day=1/b"]),
        ("sink/day=1", ["sink/day=1/b"]),
        ("sink/day=*/*", ["sink/day=1/b"]),
        ("**/left", []),
    ],
)
@pytest.mark.parametrize("as_uri", [False, True])
def test_the_log_of_a_file_sink_is_followed_wherever_files_are_searched(sink, paths, found, as_uri):
    full = f"{sink.as_uri() if as_uri else sink}/{paths}"
    if found:
        assert named(full) == [f"{sink}/{name}" for name in found]
    else:
        with pytest.raises(ArgumentValueError, match=r"left' names no file"):
            named(full)
    if paths == "sink":
        assert len(named(full, logs=False)) == 4


def test_a_file_that_is_named_is_read_though_its_log_does_not_hold_it(sink):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert named([f"{sink}/sink/a"]) == [f"{sink}/sink/a"]
    with pytest.warns(UserWarning, match=rf"{sink}/sink/left is named, .* not in {sink}/sink/_spark_metadata"):
        assert named([f"{sink}/sink/left"]) == [f"{sink}/sink/left"]


def test_the_log_of_a_file_sink_is_followed_on_a_part_of_a_filesystem(sink):
    part = fs.SubTreeFileSystem(str(sink), fs.LocalFileSystem())
    assert named("", filesystem=part) == [f"{sink}/{name}" for name in ("plain/c", "sink/a", "sink/day=1/b")]
    assert named(["sink//a", "./sink/a"], filesystem=part) == [f"{sink}/sink/a"]
    with pytest.raises(ArgumentValueError, match=rf"'/x' names no file: there is no {sink}/x"):
        named("/x", filesystem=part)


def test_a_path_with_slashes_and_dots_more_is_the_same_path():
    other = fs._MockFileSystem()  # has neither, as HDFS
    other.create_dir("in")
    other.open_output_stream("in/a").close()
    assert named(["in/a", "in//a", "./in/./a", "in/*", "in/"], filesystem=other) == ["in/a"]


def test_a_log_that_holds_nothing_leaves_nothing(sink):
    (sink / "sink/_spark_metadata/0").unlink()
    with pytest.raises(
        ArgumentValueError, match=rf"names no file; .* only the files in {sink}/sink/_spark_metadata count"
    ):
        named(sink / "sink")
    assert named(sink) == [f"{sink}/plain/c"]


def test_a_committed_file_that_is_gone_is_an_error(sink):
    (sink / "sink/a").unlink()
    for path in (sink, sink / "sink"):
        with pytest.raises(
            ArgumentValueError, match=rf"{sink}/sink/_spark_metadata holds {sink}/sink/a, which is missing"
        ):
            named(path)


def test_a_directory_that_was_moved_is_read_where_its_log_says(sink, tmp_path):
    """As Spark does: the log holds whole paths."""
    (sink / "sink/_spark_metadata").rename(sink / "plain/_spark_metadata")
    assert named(sink / "plain") == [f"{sink}/sink/a", f"{sink}/sink/day=1/b"]
    (sink / "sink").rename(tmp_path / "moved")
    with pytest.raises(ArgumentValueError, match="the directory was moved"):
        named(sink / "plain")


def test_of_logs_within_each_other_the_outermost_rules(sink):
    commit(sink, 0, ["sink/left"])
    assert named(sink) == named(sink / "sink") == [f"{sink}/sink/left"]
