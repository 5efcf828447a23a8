"""Reading the state of a topology from its checkpoint."""

from __future__ import annotations

import pickle

import pytest

from acker.errors import CheckpointError
from acker.spark import read_state
from acker.spark.checksums import seal
from acker.spark.topologies import state_reader
from acker.spark.topologies.journal import BatchCommit, Journal
from acker.spark.topologies.state_log import StateChain, StateFile


def write(root, name, changed, removed=()):
    path = root / "state" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(seal(pickle.dumps((changed, removed)), name))


def chain_of(*names):
    return StateChain(tuple(StateFile(name, 1, 1) for name in names), names)


def test_the_state_of_each_task_is_that_of_the_last_commit(tmp_path):
    write(tmp_path, "2/0-a", {"a": 1, "b": 2})
    write(tmp_path, "2/1-b", {"a": 3}, ["b"])
    write(tmp_path, "2/2-c", {"a": 99})  # of a micro-batch that did not end
    journal = Journal(str(tmp_path))
    journal.claim()
    tasks = {"lines": (1,), "count": (2, 3)}
    journal.commit(0, BatchCommit({2: chain_of("2/0-a")}, tasks=tasks))
    journal.commit(1, BatchCommit({2: chain_of("2/0-a", "2/1-b")}, tasks=tasks))
    assert read_state(tmp_path) == read_state(f"file://{tmp_path}") == {"count": [{"a": 3}, {}]}
    journal.check()  # who reads takes no lease
    journal.release()


def test_files_that_a_running_topology_removes_are_looked_for_in_the_next_commit(tmp_path, monkeypatch):
    journal = Journal(str(tmp_path))
    journal.claim()
    journal.commit(0, BatchCommit({2: chain_of("2/0-a")}, tasks={"count": (2,)}))
    read_files = state_reader.read_files

    def read_while_it_runs(*arguments):
        monkeypatch.undo()
        write(tmp_path, "2/1-b", {"a": 3})
        journal.commit(1, BatchCommit({2: chain_of("2/1-b")}, tasks={"count": (2,)}))
        return read_files(*arguments)

    monkeypatch.setattr(state_reader, "read_files", read_while_it_runs)
    assert read_state(tmp_path) == {"count": [{"a": 3}]}
    journal.release()
    (tmp_path / "state/2/1-b").unlink()
    with pytest.raises(FileNotFoundError):
        read_state(tmp_path)


def test_what_is_no_checkpoint_is_refused_and_left_alone(tmp_path):
    with pytest.raises(CheckpointError, match="expected the checkpoint of a topology"):
        read_state(tmp_path)
    assert not list(tmp_path.iterdir())
    Journal(str(tmp_path))
    with pytest.raises(CheckpointError, match="no micro-batch"):
        read_state(tmp_path)
