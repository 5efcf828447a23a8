"""Snapshots in files: whole or not at all, whatever happens meanwhile; through file objects of every sort."""

import errno
import io
import os
import random
import socket
import stat
import subprocess
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import acker
from acker import BusyError, Kind, SnapshotError
from acker._engine.snapshot import BLOCK_ENTRIES, HEADER_BYTES, block_bytes
from acker.errors import ArgumentTypeError

POSIX = os.name == "posix"
BLOCK_BYTES = block_bytes(BLOCK_ENTRIES)


def tracking(acker_type=acker.Acker, trees=20_000, seed=1):
    """Return an acker with so many open trees; the same again for the same arguments."""
    a = acker_type(seed=seed)
    roots = np.arange(trees)
    a.ingest(Kind.TRACK, roots, roots + 1, roots % 7, -roots, now_ms=3)
    return a


def same(a, b):
    return a.stats() == b.stats() and sorted(a.rotate().rows()) == sorted(b.rotate().rows())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "acker.snapshot"


# --- paths ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_written_and_read(acker_type, kind, path):
    for trees in (0, 1, 9_000):
        a = tracking(acker_type, trees)
        blob = a.snapshot()
        assert a.snapshot_to(kind(path)) == len(blob)
        assert path.read_bytes() == blob
        assert same(acker_type.restore_from(kind(path)), a)
        assert list(path.parent.iterdir()) == [path]


def test_a_relative_path_is_that_of_the_working_folder(acker_type, path, monkeypatch):
    monkeypatch.chdir(path.parent)
    a = tracking(acker_type, 5)
    a.snapshot_to(path.name)
    assert path.read_bytes() == a.snapshot()
    assert len(acker_type.restore_from(path.name)) == 5


@pytest.mark.parametrize("size", [0, 5, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, 400, 1000])
def test_a_file_that_was_cut_is_refused(acker_type, size, path):
    a = tracking(acker_type, 30)
    a.snapshot_to(path)
    path.write_bytes(a.snapshot()[:size])
    with pytest.raises(SnapshotError, match=f"bytes.*, got {size}$"):
        acker_type.restore_from(path)


def test_a_file_that_goes_on_is_refused(acker_type, path):
    blob = tracking(acker_type, 30).snapshot()
    path.write_bytes(blob + b"\n")
    with pytest.raises(SnapshotError, match=f"expected {len(blob)} bytes for 30 entries, got {len(blob) + 1}"):
        acker_type.restore_from(path)


class CutError(Exception):
    """What goes wrong in the middle."""


@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
def test_an_error_leaves_what_was_there(acker_type, failing, path, monkeypatch):
    old, new = tracking(acker_type, 9), tracking(acker_type, 20_000, seed=2)
    old.snapshot_to(path)

    def fail(*_):
        raise CutError

    with monkeypatch.context() as patch:
        if failing == "write":
            patch.setattr("acker._engine.storage._write_file", fail)
        elif failing == "fsync":
            patch.setattr(os, "fsync", fail)
        else:
            patch.setattr(Path, "replace", fail)
        with pytest.raises(CutError):
            new.snapshot_to(path)
    assert list(path.parent.iterdir()) == [path]
    assert path.read_bytes() == old.snapshot()
    new.snapshot_to(path)
    assert path.read_bytes() == new.snapshot()


def test_a_folder_that_is_not_there_is_an_error(acker_type, path):
    with pytest.raises(FileNotFoundError):
        tracking(acker_type, 3).snapshot_to(path / "below")
    with pytest.raises(FileNotFoundError):
        acker_type.restore_from(path)


@pytest.mark.parametrize("nonsense", [None, 5, b"acker.snapshot", ["x"], object()])
def test_what_is_no_file_is_a_type_error(acker_type, nonsense):
    a = tracking(acker_type, 3)
    with pytest.raises(ArgumentTypeError, match=r"^target: expected a path or a binary file object, got"):
        a.snapshot_to(nonsense)
    with pytest.raises(ArgumentTypeError, match=r"^source: expected a path or a binary file object, got"):
        acker_type.restore_from(nonsense)
    assert len(a) == 3


if POSIX:

    @pytest.fixture(params=[0o000, 0o022, 0o077])
    def umask(request):
        before = os.umask(request.param)
        yield
        os.umask(before)

    def mode_of(path):
        return stat.S_IMODE(path.stat().st_mode)

    def test_a_new_file_is_for_its_owner_only(acker_type, umask, path):
        tracking(acker_type, 3).snapshot_to(path)
        assert mode_of(path) == 0o600

    @pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o400])
    def test_a_file_that_is_replaced_keeps_its_permissions(acker_type, mode, umask, path):
        path.write_bytes(b"old")
        path.chmod(mode)
        tracking(acker_type, 3).snapshot_to(path)
        assert mode_of(path) == mode

    def test_a_link_stays_and_its_file_is_replaced(acker_type, path, tmp_path):
        (tmp_path / "folder").mkdir()
        target = tmp_path / "folder" / "behind"
        target.write_bytes(b"old")
        path.symlink_to(target)
        a = tracking(acker_type, 3)
        a.snapshot_to(path)
        assert path.is_symlink()
        assert target.read_bytes() == a.snapshot()
        assert list(target.parent.iterdir()) == [target]

    def test_a_named_pipe_is_written_to(acker_type, path):
        os.mkfifo(path)
        a = tracking(acker_type)
        with ThreadPoolExecutor(1) as pool:
            restoring = pool.submit(acker_type.restore_from, path)
            assert a.snapshot_to(path) == len(a.snapshot())
            assert same(restoring.result(), a)
        assert stat.S_ISFIFO(path.stat().st_mode)

    def test_the_file_is_on_the_disk_before_it_has_the_name(acker_type, path, monkeypatch):
        done = []

        def fsync(descriptor, fsync=os.fsync):
            done.append("sync folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "sync file")
            fsync(descriptor)

        def replace(self, target, replace=Path.replace):
            done.append("replace")
            return replace(self, target)

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(Path, "replace", replace)
        tracking(acker_type, 3).snapshot_to(path)
        assert done == ["sync file", "replace", "sync folder"]

    @pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
    def test_a_folder_that_cannot_be_synced_is_an_error_unless_none_can(acker_type, code, path, monkeypatch):
        def fsync(descriptor, fsync=os.fsync):
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise OSError(code, os.strerror(code))
            fsync(descriptor)

        a = tracking(acker_type, 3)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            if code == errno.EIO:
                with pytest.raises(OSError, match=os.strerror(code)):
                    a.snapshot_to(path)
            else:
                a.snapshot_to(path)
        assert path.read_bytes() == a.snapshot()


if Path("/dev/full").exists():

    def test_a_full_device_is_an_error(acker_type):
        a = tracking(acker_type)
        before = a.snapshot()
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            a.snapshot_to("/dev/full")
        assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)
        assert a.snapshot() == before


# --- killed -----------------------------------------------------------------------------------------------------------

# Forks a process for each line that it reads, which takes one snapshot after the other until it is killed: by itself at
# the n-th thing it does to the file system, or by its parent after n turns of a loop.
KILLED = """
import os, signal, sys, tempfile
from pathlib import Path
import numpy as np
import acker, acker._engine.storage

path, ackers = sys.argv[1], []
for seed in (1, 2):
    ackers.append(acker.Acker(seed=seed))
    roots = np.arange(20_000)
    ackers[-1].ingest(acker.Kind.TRACK, roots, roots + 1, roots % 7, -roots, now_ms=3)

def die_at(step):
    left = [step]
    def live():
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    def dying(function):
        def call(*arguments, **options):
            live()
            result = function(*arguments, **options)
            live()
            return result
        return call
    os.fsync, tempfile.mkstemp = dying(os.fsync), dying(tempfile.mkstemp)
    Path.replace, Path.chmod = dying(Path.replace), dying(Path.chmod)
    write_to = acker._engine.storage._write_file
    def write_file(file, blocks):
        class Dying:
            write = staticmethod(dying(file.write))
        return write_to(Dying, blocks)
    acker._engine.storage._write_file = write_file

for line in sys.stdin:
    how, count = line.split()
    child = os.fork()
    if child == 0:
        if how == "itself":
            die_at(int(count))
        while True:
            for each in ackers:
                each.snapshot_to(path)
    if how == "parent":
        for _ in range(int(count)):
            pass
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    print("killed", flush=True)
"""

if POSIX:

    class Killer:
        """A process that has snapshots taken by processes that are killed; tells what is left of them."""

        def __init__(self, path):
            self.path = path
            # More than one thread would make forking a gamble.
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            self.process = subprocess.Popen(
                [sys.executable, "-c", KILLED, str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.process.communicate()

        def kill(self, how, count):
            """Return the bytes of the file, and how many temporary ones were left, which are removed."""
            self.process.stdin.write(f"{how} {count}\n")
            self.process.stdin.flush()
            assert self.process.stdout.readline() == "killed\n"
            left = [file for file in self.path.parent.iterdir() if file != self.path]
            for file in left:
                assert file.name.startswith(".acker-")
                file.unlink()
            return self.path.read_bytes(), len(left)

    def test_a_killed_process_leaves_the_old_snapshot_or_the_new_one(path):
        old = tracking(trees=5).snapshot()
        first, second = (tracking(seed=seed).snapshot() for seed in (1, 2))
        path.write_bytes(old)
        found, temporaries = [], []
        with Killer(path) as killer:
            for step in range(1, 19):
                content, left = killer.kill("itself", step)
                found.append({old: "old", first: "first", second: "second"}[content])
                temporaries.append(left)
                path.write_bytes(old)
        # Before and after: made, header and three blocks written, synced, given permissions, renamed, folder synced.
        assert found == ["old"] * 15 + ["first"] * 3
        assert temporaries == [0] + [1] * 14 + [0] * 3

    def test_a_process_killed_at_any_moment_leaves_a_whole_snapshot(path):
        blobs = {tracking(seed=seed).snapshot() for seed in (1, 2)} | {tracking(trees=5).snapshot()}
        tracking(trees=5).snapshot_to(path)
        rng = random.Random(7)
        with Killer(path) as killer:
            for _ in range(150):
                content, _ = killer.kill("parent", int(10 ** rng.uniform(2, 5.7)))
                assert content in blobs
        assert same(acker.Acker.restore_from(path), acker.Acker.restore(path.read_bytes()))


# --- file objects -----------------------------------------------------------------------------------------------------


class Trickle(io.RawIOBase):
    """A raw file that takes and gives a few bytes at a time."""

    def __init__(self, content=b"", seed=1):
        self.content = bytearray(content)
        self.random = random.Random(seed)

    def readable(self):
        return True

    def writable(self):
        return True

    def write(self, data):
        taken = min(len(data), self.random.choice([1, 7, 100, 4096, 100_000]))
        self.content += data[:taken]
        return taken

    def readinto(self, buffer):
        given = min(len(buffer), len(self.content), self.random.choice([1, 7, 100, 4096, 100_000]))
        buffer[:given] = self.content[:given]
        del self.content[:given]
        return given


def test_short_writes_and_short_reads_go_on(acker_type):
    a = tracking(acker_type)
    blob = a.snapshot()
    for seed in range(5):
        file = Trickle(seed=seed)
        assert a.snapshot_to(file) == len(blob)
        assert file.content == blob
        assert same(acker_type.restore_from(file), acker_type.restore(blob))


def test_a_buffered_file_and_its_position_are_the_callers(acker_type, path):
    a, b = tracking(acker_type, 10), tracking(acker_type, 20)
    with path.open("wb") as file:
        file.write(b"before")
        a.snapshot_to(file)
        assert not file.closed
        assert file.tell() == 6 + len(a.snapshot())
    with path.open("rb") as file:
        file.seek(6)
        assert same(acker_type.restore_from(file), a)
        assert not file.closed
    # Two snapshots in one file are one with trailing bytes.
    with path.open("wb") as file:
        b.snapshot_to(file)
        b.snapshot_to(file)
    with path.open("rb") as file, pytest.raises(SnapshotError, match="for 20 entries, got more"):
        acker_type.restore_from(file)


def test_what_a_file_was_given_is_not_written_to_again(acker_type):
    class Keeping:
        def __init__(self):
            self.pieces = []

        def write(self, data):
            self.pieces.append(data)  # not the bytes, but the view of them; and says nothing

    a, file = tracking(acker_type), Keeping()
    a.snapshot_to(file)
    assert b"".join(file.pieces) == a.snapshot()


def test_sockets_carry_snapshots(acker_type):
    a = tracking(acker_type)
    near, far = socket.socketpair()
    with near, far, ThreadPoolExecutor(1) as pool:

        def receive():
            with far.makefile("rb", buffering=0) as file:
                return acker_type.restore_from(file)

        receiving = pool.submit(receive)
        with near.makefile("wb", buffering=0) as file:
            a.snapshot_to(file)
        near.shutdown(socket.SHUT_WR)
        assert same(receiving.result(), a)


def test_pipes_between_processes_carry_snapshots(acker_type):
    code = (
        "import sys, acker\n"
        f"a = acker.{acker_type.__name__}.restore_from(sys.stdin.buffer)\n"
        "a.rotate()\n"
        "a.snapshot_to(sys.stdout.buffer)\n"
    )
    a = tracking(acker_type)
    with (
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
        ThreadPoolExecutor(1) as pool,
    ):
        receiving = pool.submit(acker_type.restore_from, process.stdout)
        a.snapshot_to(process.stdin)
        process.stdin.close()
        b = receiving.result()
    a.rotate()
    assert same(b, a)


class Full:
    """A file on a disk with so many free bytes."""

    def __init__(self, free):
        self.free = free

    def write(self, data):
        if self.free == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = min(self.free, len(data))
        self.free -= taken
        return taken


def test_a_full_disk_leaves_the_acker_as_it_was(acker_type):
    a = tracking(acker_type)
    blob = a.snapshot()
    edges = (1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, BLOCK_BYTES, HEADER_BYTES + BLOCK_BYTES)
    for free in (0, *edges, 2 * BLOCK_BYTES, len(blob) - 1):
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            a.snapshot_to(Full(free))
        assert a.snapshot() == blob
    assert a.snapshot_to(Full(len(blob))) == len(blob)
    assert len(a.ingest(Kind.OK, [5], [6])) == 1


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (0, BlockingIOError, "expected a blocking file object"),
        (-1, OSError, f"expected write to return at most {HEADER_BYTES}, got -1"),
        (HEADER_BYTES + 1, OSError, f"expected write to return at most {HEADER_BYTES}, got {HEADER_BYTES + 1}"),
    ],
)
def test_a_file_that_takes_nothing_or_more_than_there_is_is_an_error(acker_type, answer, error, text):
    class Odd:
        def write(self, data):
            return answer

    a = tracking(acker_type, 3)
    with pytest.raises(error, match=text):
        a.snapshot_to(Odd())
    assert len(acker_type.restore(a.snapshot())) == 3


def test_a_raw_file_that_is_not_ready_is_an_error(acker_type):
    class NotReady(io.RawIOBase):
        def writable(self):
            return True

        def readable(self):
            return True

        def write(self, data):
            return None

        def readinto(self, buffer):
            return None

    with pytest.raises(BlockingIOError, match="target: it accepts no bytes now"):
        tracking(acker_type, 3).snapshot_to(NotReady())
    with pytest.raises(BlockingIOError, match="source: it has no bytes now"):
        acker_type.restore_from(NotReady())


def test_text_files_are_refused(acker_type, path):
    a = tracking(acker_type, 3)
    with path.open("w") as file, pytest.raises(TypeError):
        a.snapshot_to(file)
    path.write_text("ACKERSNP")
    with path.open() as file, pytest.raises(ArgumentTypeError, match="expected a file that reads bytes, got str"):
        acker_type.restore_from(file)


def test_a_file_that_reads_too_much_is_an_error(acker_type):
    class Generous:
        def read(self, size):
            return bytes(size + 1)

    with pytest.raises(OSError, match=f"expected read to return at most {HEADER_BYTES} bytes, got {HEADER_BYTES + 1}"):
        acker_type.restore_from(Generous())


def test_errors_of_a_source_pass_through(acker_type):
    blob = tracking(acker_type).snapshot()

    class Broken(io.BytesIO):
        def read(self, size=-1):
            if self.tell() >= HEADER_BYTES + BLOCK_BYTES:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().read(size)

    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        acker_type.restore_from(Broken(blob))


# --- one at a time, and one block at a time ---------------------------------------------------------------------------


def test_nobody_else_is_let_in_until_the_snapshot_is_written(acker_type):
    a = tracking(acker_type)
    refused = []

    class Curious(io.BytesIO):
        def write(self, data):
            for call in (
                lambda: a.ingest(Kind.OK, [1], [2]),
                a.rotate,
                a.snapshot,
                lambda: a.snapshot_to(io.BytesIO()),
                lambda: 1 in a,
            ):
                for run in (call, lambda call=call: in_thread(call)):
                    try:
                        run()
                    except BusyError:
                        refused.append(call)
            assert len(a) == a.stats().pending == 20_000
            return super().write(data)

    file = Curious()
    a.snapshot_to(file)
    assert len(refused) == 10 * 4  # header and three blocks
    assert file.getvalue() == a.snapshot()


def in_thread(call):
    """Call on another thread, and raise what it raises."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def test_a_snapshot_to_a_file_beside_batches_is_never_torn(acker_type):
    """A thread ingests batches of a thousand trees while snapshots are written: each holds whole batches."""
    a = acker_type(seed=1)
    stop = threading.Event()

    def ingest():
        batch = 0
        while not stop.is_set():
            roots = np.arange(1000) + 1000 * (batch % 20)
            try:
                a.ingest(Kind.TRACK if batch % 40 < 20 else Kind.OK, roots, roots + 1, np.zeros(1000, int))
            except BusyError:
                continue
            batch += 1

    with ThreadPoolExecutor(1) as pool:
        ingesting = pool.submit(ingest)
        taken = 0
        while taken < 20:
            file = io.BytesIO()
            try:
                a.snapshot_to(file)
            except BusyError:
                continue
            assert len(acker_type.restore(file.getvalue())) % 1000 == 0
            taken += 1
        stop.set()
        ingesting.result()


def test_a_block_is_all_that_is_in_memory():
    """Python's own memory; the native table does not count."""

    class Sink:
        def write(self, data):
            return len(data)

    a = tracking(trees=30 * BLOCK_ENTRIES)
    file = io.BytesIO(a.snapshot())
    tracemalloc.start()
    try:
        a.snapshot_to(Sink())
        written = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        b = acker.Acker.restore_from(file)
        read = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert len(b) == len(a)
    assert written < 3 * BLOCK_BYTES
    assert read < 3 * BLOCK_BYTES


def test_an_interrupt_lets_go_of_the_acker(acker_type):
    class Interrupted:
        def write(self, data):
            raise KeyboardInterrupt

    a = tracking(acker_type, 3)
    with pytest.raises(KeyboardInterrupt):
        a.snapshot_to(Interrupted())
    assert len(a.ingest(Kind.OK, [2], [3])) == 1
