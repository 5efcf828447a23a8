"""Tables in memory that several worker processes take up from each other."""

import contextlib
import errno
import gc
import multiprocessing
import os
import platform
import resource
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from acker._engine.combiner import Partials
from acker._engine.open_trees import TOKEN_BYTES
from acker.spark.streams import table_cache
from acker.spark.streams.table_cache import SharedMemory, TableCache, folder_of_executor, give_back_freed_memory
from tests.native_testing import check_invariants

FIRST, SECOND = bytes([1]) * TOKEN_BYTES, bytes([2]) * TOKEN_BYTES


def merge(table, *roots):
    zeros = np.zeros(len(roots), np.int64)
    columns = (np.array(roots), zeros + 1, np.zeros(len(roots), np.uint8), zeros, zeros.astype(np.int32), zeros)
    table.merge(Partials(*columns), time_ms=0)


class Worker:
    """Another process that leaves or takes tables when told to."""

    def __init__(self, folder):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(folder, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, *request):
        self.pipe.send(request)
        assert self.pipe.poll(60)
        return self.pipe.recv()

    def kill(self):
        self.process.kill()
        self.process.join()


def work(folder, pipe):
    cache = TableCache(folder)
    while True:
        what, token, new = pipe.recv()
        table = cache.new() if what == "new" else cache.take("shard", token)
        if table is not None:
            merge(table, *range(len(table), len(table) + 2000))  # more than fits, so that memory is changed too
            cache.put("shard", new, table)
        pipe.send(None if table is None else len(table))


@pytest.fixture
def worker(tmp_path):
    started = Worker(tmp_path)
    yield started
    started.kill()
    started.process.close()
    started.pipe.close()


def test_a_table_goes_from_process_to_process(worker, tmp_path):
    cache = TableCache(tmp_path)
    assert worker.ask("new", None, FIRST) == 2000
    table = cache.take("shard", FIRST)
    assert len(table) == 2000
    assert worker.ask("take", FIRST, SECOND) is None, "only one can take it"
    merge(table, -1)
    cache.put("shard", SECOND, table)
    assert worker.ask("take", SECOND, FIRST) == 4001
    table = cache.take("shard", FIRST)
    check_invariants(table)
    assert -1 in table
    table.close()


def test_it_is_gone_with_its_process(worker, tmp_path):
    assert worker.ask("new", None, FIRST) == 2000
    worker.kill()
    assert TableCache(tmp_path).take("shard", FIRST) is None


def test_a_note_that_leads_to_something_else_is_not_believed(tmp_path):
    cache = TableCache(tmp_path)
    other = cache.new()
    other.token = SECOND
    with (tmp_path / "plain").open("w+b") as plain:
        plain.write(bytes(4096))
        plain.flush()
        for number in (other.memory.number, plain.fileno(), 9999):
            (tmp_path / "shard").write_text(f"{FIRST.hex()} {os.getpid()} {number}")
            assert TableCache(tmp_path).take("shard", FIRST) is None
    (tmp_path / "shard").write_text("nothing of ours")
    assert TableCache(tmp_path).take("shard", FIRST) is None
    other.close()


def test_another_version_is_given_up(tmp_path):
    cache = TableCache(tmp_path)
    table = cache.new()
    cache.put("shard", FIRST, table)
    assert cache.take("shard", SECOND) is None
    assert list(tmp_path.iterdir()) == []
    assert cache.take("shard", FIRST) is None
    with pytest.raises(ValueError, match="mmap closed"):
        table.memory.view[0]


def test_memory_that_cannot_be_had_is_refused_at_once():
    before = descriptors()
    for _ in range(10):
        with pytest.raises(OSError):
            SharedMemory(2**60)
    assert descriptors() == before


def test_a_table_stays_open_until_the_process_that_claims_it_has_it(monkeypatch, tmp_path):
    """The holder closes tables that were taken, each time that it takes one: also while another process claims one."""
    holder, claimer = TableCache(tmp_path), TableCache(tmp_path)
    table = holder.new()
    merge(table, 1, 2, 3)
    holder.put("shard", FIRST, table)
    open_memory = SharedMemory.open

    def open_late(process, number):
        assert holder.take("another shard", FIRST) is None
        return open_memory(process, number)

    monkeypatch.setattr(SharedMemory, "open", open_late)
    taken = claimer.take("shard", FIRST)
    assert taken is not None and len(taken) == 3
    assert not list(tmp_path.iterdir())
    taken.close()
    before = descriptors()
    assert holder.take("another shard", FIRST) is None  # which closes the holder's copy
    assert descriptors() == before - (1 if sys.version_info >= (3, 13) else 2)


def test_workers_of_one_executor_know_one_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    assert folder_of_executor() == tmp_path / f"acker-tables-{os.getuid()}"


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_freed_memory_goes_back_to_the_system():
    freed = [b"x" * 50_000 for _ in range(2000)]
    above = b"x" * 50_000  # so that the others are not at the end of the heap, where they would not stay
    del freed
    before = resident_bytes()
    give_back_freed_memory()
    # Other libraries of C decide for themselves what they keep.
    assert resident_bytes() < before - 50_000_000 or platform.libc_ver()[0] != "glibc"
    del above


def descriptors():
    """How many tables this process has open."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread of something else has closed it
            count += str(link.readlink()).startswith("/memfd:")
    return count


def left(cache, tables):
    """Leave so many tables, each of a shard of its own."""
    for number in range(tables):
        cache.put(f"shard-{number}", FIRST, cache.new())


def close_all(cache, tables):
    for number in range(tables):
        table = cache.take(f"shard-{number}", FIRST)
        if table is not None:
            table.close()


def calls_of_a_take(cache, key):
    """How many functions are called to take a table and to leave it again."""
    calls = 0

    def count(frame, event, _):
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.disable()  # which would call functions of others
    sys.setprofile(count)
    try:
        table = cache.take(key, FIRST)
    finally:
        sys.setprofile(None)
        gc.enable()
    cache.put(key, FIRST, table)
    return calls


def test_to_take_a_table_costs_the_same_however_many_there_are(tmp_path):
    cache = TableCache(tmp_path)
    left(cache, 5)
    few = max(calls_of_a_take(cache, f"shard-{number % 5}") for number in range(10))
    left(cache, 200)
    assert max(calls_of_a_take(cache, f"shard-{number}") for number in range(190)) <= few + 5
    close_all(cache, 200)


def test_a_table_that_is_kept_costs_one_descriptor(tmp_path):
    cache = TableCache(tmp_path)
    left(cache, 1)
    before = descriptors()
    left(cache, 101)
    assert descriptors() - before == 100 * (1 if sys.version_info >= (3, 13) else 2)
    close_all(cache, 101)
    assert descriptors() < before


def test_more_tables_than_descriptors_stay_with_their_process(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    cache = TableCache(tmp_path)
    before = descriptors()
    # A half for tables, and a half for all that this process has open already.
    half = max(int(link.name) for link in Path("/proc/self/fd").iterdir()) + 60
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * half, hard))
    try:
        left(cache, half + 240)
        assert descriptors() - before <= half
        for number in range(half + 240):
            table = cache.take(f"shard-{number}", FIRST)
            merge(table, *range(2000))  # more than fits
            cache.put(f"shard-{number}", SECOND, table)
        for number in range(half + 240):
            table = cache.take(f"shard-{number}", SECOND)
            assert len(table) == 2000
            table.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_table_stays_with_its_process_where_no_descriptor_is_left(monkeypatch, tmp_path):
    def fail(code):
        def create(*_):
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "memfd_create", create)

    cache = TableCache(tmp_path)
    for code in (errno.EMFILE, errno.ENFILE):
        fail(code)
        left(cache, 2)
        assert [len(cache.take(f"shard-{number}", FIRST)) for number in range(2)] == [0, 0]
    fail(errno.ENOMEM)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        cache.new()


def test_tables_that_nobody_takes_up_any_more_are_closed(worker, tmp_path):
    """As those of a query that ended, while the worker goes on with another one."""
    cache = TableCache(tmp_path)
    before = descriptors()
    left(cache, 20)
    cache.release()
    assert len([*tmp_path.iterdir()]) == 20, "they were left just now"
    table = cache.take("shard-7", FIRST)
    cache.release(0)
    assert descriptors() - before == (1 if sys.version_info >= (3, 13) else 2) and not [*tmp_path.iterdir()]
    # What is in use is not touched, and neither is what others hold.
    merge(table, -1, -2, -3)
    cache.put("shard", FIRST, table)
    assert worker.ask("take", FIRST, SECOND) == 2003
    cache.release(0)
    assert descriptors() == before
    table = cache.take("shard", SECOND)
    assert len(table) == 2003
    table.close()


@pytest.mark.parametrize("folder", [None, "shared"])
def test_a_worker_lets_go_of_tables_by_itself(folder, monkeypatch, tmp_path):
    monkeypatch.setattr(table_cache, "_caches", {})
    monkeypatch.setattr(table_cache, "folder_of_executor", lambda: folder and tmp_path)
    waited, go_on = [], threading.Semaphore(0)

    def wait(seconds):
        waited.append(seconds)
        if len(waited) > 1:
            released.set()
        if len(waited) > 2:
            raise SystemExit
        go_on.acquire()

    released = threading.Event()
    now_s = 1000.0
    monkeypatch.setattr(table_cache, "time", SimpleNamespace(sleep=wait, monotonic=lambda: now_s))
    tables = table_cache.worker_cache()
    assert table_cache.worker_cache() is tables
    table = tables.new()
    tables.put("shard", FIRST, table)
    now_s += table_cache.UNUSED_S
    go_on.release()
    assert released.wait(60) and 0 < waited[0] < table_cache.UNUSED_S
    with pytest.raises(ValueError, match="mmap closed"):
        table.memory.view[0]
    assert tables.take("shard", FIRST) is None
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "acker table cache"]
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    go_on.release()
    thread.join()


def test_tables_that_others_took_up_are_closed_in_passing(worker, tmp_path):
    cache = TableCache(tmp_path)
    left(cache, 50)
    table = cache.new()
    cache.put("shard", FIRST, table)
    assert worker.ask("take", FIRST, SECOND) == 2000
    for number in range(50):
        cache.put(f"shard-{number}", FIRST, cache.take(f"shard-{number}", FIRST))
    with pytest.raises(ValueError, match="mmap closed"):
        table.memory.view[0]
    close_all(cache, 50)
