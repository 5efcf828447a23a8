"""Completions of files without Spark: the rules of sets, whatever is spilled and split; errors; what ends a call."""

import contextlib
import itertools
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import fs

import acker
from acker import MESSAGE_SCHEMA, Kind, Outcome
from acker._engine.protocol import INT64_MAX, INT64_MIN
from acker._files import reader, settlement, spill
from acker.errors import ArgumentTypeError, ArgumentValueError, ColumnTypeError, ColumnValueError
from tests.message_files import write
from tests.oracles import settle_as_sets

FORMATS = (reader.PARQUET, reader.ARROW_FILE, reader.ARROW_STREAM)


def messages_of(seed, rows, roots=60):
    """Return random messages, whose trees meet and have several TRACKs; and their columns without nulls."""
    rng = np.random.default_rng(seed)
    columns = [
        rng.choice(np.array([0, 0, 1, 2, 2, 3, 4], np.int8), rows),
        rng.choice(np.array([0, -1, INT64_MIN, INT64_MAX, *range(1, roots)]), rows),
        rng.choice(np.array([0, 0, 1, 2, 3, -1, INT64_MIN, INT64_MAX]), rows),
        rng.choice(np.array([0, 1, 2**31 - 1], np.int32), rows),
        rng.choice(np.array([0, 42, INT64_MIN, INT64_MAX]), rows),
    ]
    is_other = columns[0] != Kind.TRACK
    arrays = [pa.array(column, mask=is_other if number > 2 else None) for number, column in enumerate(columns)]
    return pa.table(arrays, schema=MESSAGE_SCHEMA), columns


def rows_of(*parts):
    return sorted(row for part in parts for row in part.rows())


@contextlib.contextmanager
def limits(**values):
    """Lower the limits of tables, so that few messages are stored, spilled and split."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setattr(settlement, name, value)
        yield


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(0, 400),
    cuts=st.lists(st.floats(0, 1), max_size=3),
    kinds=st.lists(st.sampled_from(FORMATS), min_size=4, max_size=4),
    piece_rows=st.integers(1, 200),
    threads=st.sampled_from([None, 1, 2, 5]),
    roots=st.sampled_from([1, 7, 10**6]),
    kept_bytes=st.sampled_from([0, 500, 10**6]),
    include_pending=st.booleans(),
)
@settings(max_examples=12, suppress_health_check=list(HealthCheck), deadline=None)
def test_neither_files_nor_threads_nor_spills_have_a_say(
    tmp_path_factory, seed, rows, cuts, kinds, piece_rows, threads, roots, kept_bytes, include_pending
):
    table, columns = messages_of(seed, rows)
    folder = tmp_path_factory.mktemp("messages")
    bounds = [0, *sorted(int(cut * rows) for cut in cuts), rows]
    for number, (first, end) in enumerate(itertools.pairwise(bounds)):
        write(table.slice(first, end - first), folder / f"{number}.messages", kinds[number], piece_rows)

    class Small(spill.PartialStore):
        def __init__(self, _, path):
            super().__init__(kept_bytes, path)

    with limits(_CACHED_ROOTS=roots, _ROOTS_LEAST=roots, _ROOT_BYTES=2**31, PartialStore=Small):
        done = acker.completions_from_files(folder, threads=threads, include_pending=include_pending)
    assert rows_of(done) == settle_as_sets(*columns, include_pending=include_pending).rows()


def test_a_shard_of_too_many_trees_is_halved_until_it_fits(tmp_path):
    table, columns = messages_of(1, 3000, roots=1000)
    write(table, tmp_path / "m")
    parts = []
    with limits(_CACHED_ROOTS=100, _ROOTS_LEAST=30, _ROOT_BYTES=2**31):
        parts = list(acker.completion_batches_from_files(tmp_path, threads=2, include_pending=True))
    assert max(map(len, parts)) <= 30 and len(parts) > 20
    assert rows_of(*parts) == settle_as_sets(*columns, include_pending=True).rows()


def test_integers_of_other_widths_are_converted_in_each_file_for_itself(tmp_path):
    columns = {"kind": [0, 2], "root_id": [7, 7], "value": [5, 5], "task_id": [1, None], "message_id": [42, None]}
    narrow = pa.schema([(name, pa.int8()) for name in columns])
    unsigned = pa.schema([(name, pa.uint64()) for name in columns])
    pq.write_table(pa.table(columns, narrow).slice(0, 1), tmp_path / "a")
    pq.write_table(pa.table(columns, unsigned).slice(1), tmp_path / "b")
    assert acker.completions_from_files(tmp_path).rows() == [(7, 42, 1, Outcome.ACKED, 0)]


def append_stream(path, table):
    with pa.OSFile(str(path), "ab") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)


def test_all_streams_of_a_file_are_read_that_a_program_has_appended_to(tmp_path):
    table, columns = messages_of(4, 100)
    narrow = table.schema.set(2, pa.field("value", pa.int64(), nullable=False, metadata={"of": "another program"}))
    for begin, end, schema in ((0, 40, table.schema), (40, 40, table.schema), (40, 100, narrow)):
        append_stream(tmp_path / "m", table.slice(begin, end - begin).cast(schema))
    done = acker.completions_from_files(tmp_path / "m", include_pending=True)
    assert rows_of(done) == settle_as_sets(*columns, include_pending=True).rows()
    with (tmp_path / "m").open("ab") as file:
        file.write(b"\0" * 8)
    with pytest.raises(ArgumentValueError, match="m: damaged, or changed while it was read: "):
        acker.completions_from_files(tmp_path / "m")


def test_a_bad_row_or_column_of_an_appended_stream_is_named(tmp_path):
    table, _ = messages_of(4, 10)
    append_stream(tmp_path / "m", table)
    append_stream(tmp_path / "m", table.set_column(0, "kind", pa.array([0] * 6 + [9] + [0] * 3, pa.int8())))
    with pytest.raises(ColumnValueError, match=r"m, row 16: kind"):
        acker.completions_from_files(tmp_path / "m")
    append_stream(tmp_path / "n", table)
    append_stream(tmp_path / "n", table.drop_columns("value"))
    with pytest.raises(ColumnValueError, match=r"n: value: expected a column of int64, got no column of that name"):
        acker.completions_from_files(tmp_path / "n")


def test_files_are_found_on_a_filesystem_of_pyarrow(tmp_path):
    table, columns = messages_of(2, 100)
    for name in ("a.parquet", "b/c.parquet", "b/other.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(table, tmp_path / name)
    below = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    expected = settle_as_sets(*columns).rows()
    for paths in ("a.parquet", "*.parquet", ["b/*.parquet"], "**/c.parquet"):
        assert rows_of(acker.completions_from_files(paths, filesystem=below)) == expected
    with pytest.raises(ArgumentTypeError, match="filesystem: expected a filesystem of pyarrow, got str"):
        acker.completions_from_files("a", filesystem="s3")


def test_a_file_with_several_names_is_read_once(tmp_path):
    """Its values would cancel each other, without a word."""
    table, columns = messages_of(3, 100)
    write(table, tmp_path / "a.parquet")
    (tmp_path / "b.parquet").symlink_to(tmp_path / "a.parquet")
    (tmp_path / "folder").mkdir()
    for name in ("loop", "same"):  # two, so that there are 2**40 ways to the depth that the system allows
        (tmp_path / "folder" / name).symlink_to(tmp_path)
    (tmp_path / "folder/itself").symlink_to("itself")
    for paths in (tmp_path, f"{tmp_path}/**", [tmp_path, tmp_path / "folder/../a.parquet", f"{tmp_path}/*.parquet"]):
        assert rows_of(acker.completions_from_files(paths)) == settle_as_sets(*columns).rows()
    above = fs.SubTreeFileSystem(str(tmp_path.parent), fs.LocalFileSystem())
    for part in (fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), fs.SubTreeFileSystem(tmp_path.name, above)):
        for paths in (["a.parquet", "b.parquet"], ["folder/loop/a.parquet", ".//a.parquet"], "", ".", "/", "**"):
            found = acker.completions_from_files(paths, filesystem=part)
            assert rows_of(found) == settle_as_sets(*columns).rows()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"threads": 0}, ArgumentValueError, "threads: expected"),
        ({"threads": "two"}, ArgumentTypeError, "threads: expected"),
        ({"memory_bytes": 1000}, ArgumentValueError, "memory_bytes: expected"),
        ({"paths": []}, ArgumentValueError, "paths: expected at least one path"),
        ({"paths": "empty"}, ArgumentValueError, "'empty' names no file: the folder has no files"),
        ({"paths": "missing"}, ArgumentValueError, "'missing' names no file: there is no "),
        ({"paths": "*.csv"}, ArgumentValueError, "'*.csv' names no file: nothing below "),
    ],
)
def test_wrong_arguments_are_refused_at_once(tmp_path, monkeypatch, options, error, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    write(messages_of(1, 10)[0], tmp_path / "m")
    with pytest.raises(error) as caught:
        acker.completion_batches_from_files(**{"paths": "m", **options})
    assert text in str(caught.value)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_bad_row_is_named(tmp_path, threads):
    table, _ = messages_of(4, 500)
    for name in ("a", "b"):
        write(table, tmp_path / name)
    kinds = table["kind"].to_pylist()
    write(table.set_column(0, "kind", pa.array([*kinds[:333], 9, *kinds[334:]], pa.int8())), tmp_path / "c")
    root = table["root_id"][333]
    with pytest.raises(ColumnValueError) as caught:
        acker.completions_from_files(tmp_path, threads=threads)
    assert str(caught.value) == f"{tmp_path}/c, row 333: kind: expected a kind from 0 to 4, got 9 (root id {root})"


@pytest.mark.parametrize(
    ("column", "error", "text"),
    [
        (pa.array([1.5] * 10), ColumnTypeError, "value: expected int64, got double; cast the column"),
        (None, ColumnValueError, "value: expected a column of int64, got no column of that name; write one"),
    ],
)
def test_a_file_of_another_schema_among_others_is_named(tmp_path, column, error, text):
    table, _ = messages_of(5, 10)
    write(table, tmp_path / "a")
    other = table.drop_columns("value")
    write(other if column is None else other.append_column("value", column), tmp_path / "b")
    with pytest.raises(error) as caught:
        acker.completions_from_files(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/b: {text}")


def test_a_damaged_page_is_named_with_its_row_group(tmp_path):
    path = tmp_path / "m"
    write(messages_of(6, 100)[0], path)
    chunk = pq.ParquetFile(path).metadata.row_group(1).column(1)
    with path.open("r+b") as file:
        file.seek(chunk.data_page_offset)
        file.write(bytes(chunk.total_compressed_size))
    with pytest.raises(ArgumentValueError) as caught:
        acker.completions_from_files(path)
    assert str(caught.value).startswith(f"{path}, row group 1: damaged, or changed while it was read: ")


@pytest.mark.parametrize(
    ("rows", "piece_rows", "text"),
    [(100, 100, "2 pieces before, now 1"), (90, 50, "row group 1 had 50 rows before, now 40")],
)
def test_a_file_that_changes_while_it_is_read_is_named(tmp_path, rows, piece_rows, text):
    path = tmp_path / "m"
    table, _ = messages_of(7, 100)
    write(table, path)
    parts = acker.completion_batches_from_files(path)
    write(table.slice(0, rows), path, piece_rows=piece_rows)
    with pytest.raises(ArgumentValueError) as caught:
        list(parts)
    assert str(caught.value).startswith(f"{path}: changed while it was read: {text}; ")


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_that_is_cut_while_it_is_read_ends_the_call_and_not_the_process(tmp_path, kind):
    path = tmp_path / "m"
    write(messages_of(8, 10_000)[0], path, kind, piece_rows=1000)
    parts = acker.completion_batches_from_files(path)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises((ArgumentValueError, OSError), match=str(path)):
        list(parts)


@pytest.mark.parametrize("kind", [reader.PARQUET, reader.ARROW_FILE])
def test_a_file_of_many_small_pieces_is_opened_once_to_be_read(tmp_path, kind, monkeypatch):
    """Else each piece would read the footer, which tells of all of them."""
    table, _ = messages_of(11, 300, roots=50)
    for name in ("a", "b"):
        write(table, tmp_path / name, kind, piece_rows=1)
    opened, really_open = [], reader._open

    def count_and_open(filesystem, path):
        opened.append(path)
        return really_open(filesystem, path)

    monkeypatch.setattr(reader, "_open", count_and_open)
    acker.completions_from_files(tmp_path, threads=1)
    assert len(opened) == 2 * 2  # once for its footer


@pytest.fixture
def endless(tmp_path):
    """A path whose one file never ends; an event is set when some of it was spilled."""
    table, _ = messages_of(9, 1000, roots=1000)
    write(table, tmp_path / "m")
    spilled = threading.Event()

    def read_units(units):
        units = list(units)
        while units:
            yield from reader.read_units(units)

    class Watched(spill.PartialStore):
        def add(self, parts):
            super().add(parts)
            spilled.set()

    with limits(_CACHED_ROOTS=10, read_units=read_units, PartialStore=Watched):
        yield tmp_path / "m", spilled


def left():
    """Return what a call left: its threads, and open files that have no name."""
    links = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing, or a thread has closed it meanwhile
            links.append(str(each.readlink()))
    threads = [each.name for each in threading.enumerate() if each.name.startswith("acker-files")]
    return threads + [link for link in links if "(deleted)" in link and "acker" in link]


def test_an_interrupt_ends_the_call_and_leaves_nothing(endless, tmp_path):
    path, spilled = endless
    folder = tmp_path / "acker-spill"
    folder.mkdir()
    main = threading.get_ident()

    def interrupt():
        spilled.wait()
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        acker.completions_from_files(path, threads=2, memory_bytes=2**20, spill_folder=folder)
    thread.join()
    assert not left() and not list(folder.iterdir())


def test_an_iterator_that_is_closed_leaves_nothing(tmp_path):
    folder = tmp_path / "acker-spill"
    folder.mkdir()
    write(messages_of(10, 5000, roots=4000)[0], tmp_path / "m")
    with limits(_CACHED_ROOTS=100, _ROOTS_LEAST=100, _ROOT_BYTES=2**31, _SHARD_MESSAGES=100):
        parts = acker.completion_batches_from_files(tmp_path / "m", memory_bytes=2**20, spill_folder=folder)
        next(parts)
        assert any("acker-files" in each for each in left())
        parts.close()
    assert not left() and not list(folder.iterdir())


def test_a_folder_that_is_full_is_named_with_what_to_do(tmp_path):
    write(messages_of(11, 5000, roots=4000)[0], tmp_path / "m")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with limits(_CACHED_ROOTS=100, PartialStore=lambda _, folder: spill.PartialStore(0, folder)):
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
        try:
            with pytest.raises(OSError, match=r"name another folder as `spill_folder`") as caught:
                acker.completions_from_files(tmp_path / "m", spill_folder=tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert str(caught.value).count(str(tmp_path)) == 1
        with pytest.raises(FileNotFoundError, match=r"missing: .* cannot be written"):
            acker.completions_from_files(tmp_path / "m", spill_folder=tmp_path / "missing")


FORK = """
import os, sys, warnings, acker
from acker._files import settlement
settlement._CACHED_ROOTS = settlement._ROOTS_LEAST = settlement._SHARD_MESSAGES = 100
parts = acker.completion_batches_from_files(sys.argv[1], threads=2)
rows = len(next(parts))
warnings.simplefilter("ignore")
child = os.fork()
if child == 0:
    try:
        next(parts)
    except acker.ForkedError:
        os._exit(len(acker.completions_from_files(sys.argv[1], threads=2)) != int(sys.argv[2]))
    os._exit(2)
rows += sum(map(len, parts))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), rows)
"""


def test_a_forked_child_cannot_go_on_with_an_iterator_but_can_begin_one(tmp_path):
    table, columns = messages_of(12, 5000, roots=4000)
    write(table, tmp_path / "m")
    expected = str(len(settle_as_sets(*columns)))
    command = [sys.executable, "-c", FORK, str(tmp_path / "m"), expected]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["0", expected]


PEAK = """
import re, sys, acker, pyarrow.parquet
from pathlib import Path
from acker._files import reader, settlement
def peak(): return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
before = peak()
trees = sum(map(len, acker.completion_batches_from_files(sys.argv[1], threads=2, memory_bytes=int(sys.argv[2]))))
print(trees, peak() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("memory_mib", [32, 128])
def test_memory_is_bounded_whatever_the_number_of_trees(tmp_path, memory_mib):
    """Six million messages of three million trees, none near another one of its tree: 222 MB that are combined."""
    trees, groups = 3_000_000, 6
    order = np.random.default_rng(1).permutation(2 * trees)
    columns = {
        "kind": order // trees * int(Kind.OK),
        "root_id": order % trees,
        "value": np.full(2 * trees, 5),
        "task_id": np.zeros(2 * trees),
        "message_id": order,
    }
    table = pa.table([pa.array(columns[field.name]).cast(field.type) for field in MESSAGE_SCHEMA], MESSAGE_SCHEMA)
    pq.write_table(table, tmp_path / "m", row_group_size=2 * trees // groups)
    command = [sys.executable, "-c", PEAK, str(tmp_path / "m"), str(memory_mib << 20)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    found, peak_bytes = map(int, done.stdout.split())
    assert found == trees
    assert peak_bytes < (memory_mib + 2 * 64 + 32) << 20
