"""Tables in memory that several worker processes take up from each other."""

import multiprocessing
import os
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
from acker.spark.streams.table_cache import Residents, SharedMemory, folder_of_executor

FIRST, SECOND = bytes([1]) * TOKEN_BYTES, bytes([2]) * TOKEN_BYTES


def merge(ledger, *roots):
    zeros = np.zeros(len(roots), np.int64)
    columns = (np.array(roots), zeros + 1, np.zeros(len(roots), np.uint8), zeros, zeros.astype(np.int32), zeros)
    ledger.merge(Partials(*columns), time_ms=0)


class Worker:
    """Another process that leaves or takes tables when told to."""

    def __init__(self, folder):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(folder, theirs), daemon=True)
        self.process.start()

    def ask(self, *request):
        self.pipe.send(request)
        assert self.pipe.poll(60)
        return self.pipe.recv()

    def kill(self):
        self.process.kill()
        self.process.join()


def work(folder, pipe):
    residents = Residents(folder)
    while True:
        what, token, new = pipe.recv()
        ledger = residents.new() if what == "new" else residents.take("shard", token)
        if ledger is not None:
            merge(ledger, *range(len(ledger), len(ledger) + 2000))  # more than fits, so that memory is changed too
            residents.leave("shard", new, ledger)
        pipe.send(None if ledger is None else len(ledger))


@pytest.fixture
def worker(tmp_path):
    started = Worker(tmp_path)
    yield started
    started.kill()


def test_a_table_goes_from_process_to_process(worker, tmp_path):
    residents = Residents(tmp_path)
    assert worker.ask("new", None, FIRST) == 2000
    ledger = residents.take("shard", FIRST)
    assert len(ledger) == 2000
    assert worker.ask("take", FIRST, SECOND) is None, "only one can take it"
    merge(ledger, -1)
    residents.leave("shard", SECOND, ledger)
    assert worker.ask("take", SECOND, FIRST) == 4001
    ledger = residents.take("shard", FIRST)
    ledger.check_invariants()
    assert -1 in ledger


def test_it_is_gone_with_its_process(worker, tmp_path):
    assert worker.ask("new", None, FIRST) == 2000
    worker.kill()
    assert Residents(tmp_path).take("shard", FIRST) is None


def test_a_note_that_leads_to_something_else_is_not_believed(tmp_path):
    residents = Residents(tmp_path)
    other = residents.new()
    other.token = SECOND
    with (tmp_path / "plain").open("w+b") as plain:
        plain.write(bytes(4096))
        plain.flush()
        for number in (other.memory.number, plain.fileno(), 9999):
            (tmp_path / "shard").write_text(f"{FIRST.hex()} {os.getpid()} {number}")
            assert Residents(tmp_path).take("shard", FIRST) is None
    (tmp_path / "shard").write_text("nothing of ours")
    assert Residents(tmp_path).take("shard", FIRST) is None


def test_another_version_is_given_up(tmp_path):
    residents = Residents(tmp_path)
    ledger = residents.new()
    residents.leave("shard", FIRST, ledger)
    assert residents.take("shard", SECOND) is None
    assert list(tmp_path.iterdir()) == []
    assert residents.take("shard", FIRST) is None
    with pytest.raises(ValueError, match="mmap closed"):
        ledger.memory.view[0]


def test_memory_that_cannot_be_had_is_refused_at_once():
    with pytest.raises(OSError):
        SharedMemory(2**60)
    open_files = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(10):
        with pytest.raises(OSError):
            SharedMemory(2**60)
    assert len([*Path("/proc/self/fd").iterdir()]) == open_files


def test_workers_of_one_executor_know_one_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    assert folder_of_executor() == tmp_path / f"acker-resident-{os.getuid()}"


def descriptors():
    return len([*Path("/proc/self/fd").iterdir()])


def left(residents, tables):
    """Leave so many tables, each of a shard of its own."""
    for number in range(tables):
        residents.leave(f"shard-{number}", FIRST, residents.new())


def close_all(residents, tables):
    for number in range(tables):
        ledger = residents.take(f"shard-{number}", FIRST)
        if ledger is not None:
            ledger.close()


def calls_of_a_take(residents, key):
    """How many functions are called to take a table and to leave it again."""
    calls = 0

    def count(frame, event, _):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        ledger = residents.take(key, FIRST)
    finally:
        sys.setprofile(None)
    residents.leave(key, FIRST, ledger)
    return calls


def test_to_take_a_table_costs_the_same_however_many_there_are(tmp_path):
    residents = Residents(tmp_path)
    left(residents, 5)
    few = max(calls_of_a_take(residents, f"shard-{number % 5}") for number in range(10))
    left(residents, 200)
    assert max(calls_of_a_take(residents, f"shard-{number}") for number in range(190)) <= few + 5
    close_all(residents, 200)


def test_a_table_that_is_kept_costs_one_descriptor(tmp_path):
    residents = Residents(tmp_path)
    left(residents, 1)
    before = descriptors()
    left(residents, 101)
    assert descriptors() - before == 100 * (1 if sys.version_info >= (3, 13) else 2)
    close_all(residents, 101)
    assert descriptors() < before


def test_more_tables_than_descriptors_stay_with_their_process(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    residents = Residents(tmp_path)
    before = descriptors()
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 60, hard))
    try:
        left(residents, 300)
        assert descriptors() - before <= (before + 60) // 2
        for number in range(300):
            ledger = residents.take(f"shard-{number}", FIRST)
            merge(ledger, *range(2000))  # more than fits
            residents.leave(f"shard-{number}", SECOND, ledger)
        assert [len(residents.take(f"shard-{number}", SECOND)) for number in range(300)] == [2000] * 300
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_tables_that_nobody_takes_up_any_more_are_closed(worker, tmp_path):
    """As those of a query that ended, while the worker goes on with another one."""
    residents = Residents(tmp_path)
    before = descriptors()
    left(residents, 20)
    residents.release()
    assert len([*tmp_path.iterdir()]) == 20, "they were left just now"
    ledger = residents.take("shard-7", FIRST)
    residents.release(0)
    assert descriptors() - before == (1 if sys.version_info >= (3, 13) else 2) and not [*tmp_path.iterdir()]
    # What is in use is not touched, and neither is what others hold.
    merge(ledger, -1, -2, -3)
    residents.leave("shard", FIRST, ledger)
    assert worker.ask("take", FIRST, SECOND) == 2003
    residents.release(0)
    assert descriptors() == before
    ledger = residents.take("shard", SECOND)
    assert len(ledger) == 2003
    ledger.close()


@pytest.mark.parametrize("folder", [None, "shared"])
def test_a_worker_lets_go_of_tables_by_itself(folder, monkeypatch, tmp_path):
    monkeypatch.setattr(table_cache, "_residents", {})
    monkeypatch.setattr(table_cache, "folder_of_executor", lambda: folder and tmp_path)
    waited, go_on = [], threading.Semaphore(0)

    def wait(seconds):
        waited.append(seconds)
        if len(waited) > 1:
            released.set()
        go_on.acquire()

    released = threading.Event()
    now_s = 1000.0
    monkeypatch.setattr(table_cache, "time", SimpleNamespace(sleep=wait, monotonic=lambda: now_s))
    tables = table_cache.residents()
    assert table_cache.residents() is tables
    ledger = tables.new()
    tables.leave("shard", FIRST, ledger)
    now_s += table_cache.UNUSED_S
    go_on.release()
    assert released.wait(60) and 0 < waited[0] < table_cache.UNUSED_S
    with pytest.raises(ValueError, match="mmap closed"):
        ledger.memory.view[0]
    assert tables.take("shard", FIRST) is None


def test_tables_that_others_took_up_are_closed_in_passing(worker, tmp_path):
    residents = Residents(tmp_path)
    left(residents, 50)
    ledger = residents.new()
    residents.leave("shard", FIRST, ledger)
    assert worker.ask("take", FIRST, SECOND) == 2000
    for number in range(50):
        residents.leave(f"shard-{number}", FIRST, residents.take(f"shard-{number}", FIRST))
    with pytest.raises(ValueError, match="mmap closed"):
        ledger.memory.view[0]
    close_all(residents, 50)
