"""Tables in memory that several worker processes take up from each other."""

import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from acker.combiner import Partials
from acker.ledger import TOKEN_BYTES
from acker.spark.resident import Residents, SharedMemory, folder_of_executor

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
            (tmp_path / f"shard.{FIRST.hex()}").write_text(f"{os.getpid()} {number}")
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
