"""The files of a state that many workers share, and how much of the state a micro-batch reads and writes."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest

from acker.spark.topologies import bolt_state, state_log
from acker.spark.topologies.bolt_state import KeptStates, StateCleaner, StateFiles, read_files
from acker.spark.topologies.state_log import StateChain
from tests.marks import slow_after

TASK = 3


class Workers:
    """Micro-batches of one task, each run by one of some workers, and the keys that were read and written."""

    def __init__(self, folder, monkeypatch, count=1):
        self.folder = str(folder)
        self.chain = StateChain()
        self.number = 0
        self.kept = [{} for _ in range(count)]
        self._monkeypatch = monkeypatch
        self.read = 0
        self.written = 0
        monkeypatch.setattr(bolt_state, "read_file", self._read_file)
        # Not synced: a thousand micro-batches would take half a minute.
        monkeypatch.setattr(bolt_state, "write_file", lambda _, path, content: Path(path).write_bytes(content))
        self._cleaner = StateCleaner(self.folder)

    def _read_file(self, root, name, read_file=bolt_state.read_file):
        changes = read_file(root, name)
        self.read += sum(map(len, changes))
        return changes

    def run(self, change, worker=0, *, commit=True):
        """Run one micro-batch of a worker."""
        self._monkeypatch.setattr(KeptStates, "_states", self.kept[worker])
        files = StateFiles(self.folder, {TASK: self.chain}, self.number)
        state = files.new_state(TASK)
        change(state)
        written = files.write()
        self._cleaner.add(written)
        if commit:
            self.chain = written.get(TASK, self.chain)
            self.written += self.chain.files[-1].keys if written else 0
            self.number += 1
            self._cleaner.remove_unused({TASK: self.chain})

    def forget(self, worker=0):
        """Let a worker die."""
        self.kept[worker].clear()


def random_change(rng, keys):
    """Return a function that changes a few or many of so many keys."""
    kind = rng.choice(["one", "few", "few", "few", "many", "all gone", "grow"])
    count = {"one": 1, "few": rng.randint(1, 8), "many": keys // 2, "all gone": 0, "grow": keys}[kind]
    drawn = [(rng.randrange(keys), rng.random() < 0.3, rng.randrange(1000)) for _ in range(count)]

    def change(state):
        if kind == "all gone" and rng.random() < 0.2:
            state.clear()
        for key, goes, value in drawn:
            if goes:
                state.pop(key, None)
            elif value % 2:
                state.setdefault(key, []).append(value) if isinstance(state.get(key, []), list) else None
            else:
                state[key] = value

    return change


@pytest.mark.parametrize("seed", slow_after(10, range(40)))
def test_all_workers_have_the_state_of_the_last_commit(tmp_path, monkeypatch, seed):
    """Whoever runs a micro-batch, however far behind it is, and whatever evaluations were thrown away."""
    rng = random.Random(seed)
    monkeypatch.setattr(state_log, "MERGED_KEYS", rng.choice([4, 16, 64]))
    monkeypatch.setattr(state_log, "_HEADS", rng.choice([1, 3, 32]))
    workers, keys = Workers(tmp_path, monkeypatch, rng.randint(1, 4)), rng.choice([5, 60])
    model = {}
    for _ in range(120):
        worker = rng.randrange(len(workers.kept))
        if rng.random() < 0.05:
            workers.forget(worker)
        change = random_change(rng, keys)
        commit = rng.random() > 0.2
        before, after = {}, {}

        def note(state, change=change, before=before, after=after):
            before.update(copy.deepcopy(state.snapshot()))
            change(state)
            after.update(copy.deepcopy(state.snapshot()))

        workers.run(note, worker, commit=commit)
        assert before == model
        if commit:
            model = after
            assert read_files(workers.folder, workers.chain.files) == model
            names = {file.name for file in workers.chain.files}
            assert {f"{TASK}/{path.name}" for path in (tmp_path / str(TASK)).glob("*")} == names
            assert sum(file.keys for file in workers.chain.files) <= 4 * max(len(model), 1) + 3 * keys


def test_what_a_file_has_does_not_depend_on_the_worker(tmp_path, monkeypatch):
    """One worker has all in memory, the other one reads everything again each time."""
    contents = []
    for place, forgets in enumerate((False, True)):
        rng = random.Random(1)
        workers = Workers(tmp_path / str(place), monkeypatch)
        contents.append([])
        for _ in range(200):
            if forgets:
                workers.forget()
            drawn = {rng.randrange(100): rng.randrange(9) for _ in range(3)}
            workers.run(lambda state, drawn=drawn: state.update(drawn) if drawn.get(0) != 1 else state.pop(1, None))
            contents[-1].append([(file.keys, file.size) for file in workers.chain.files])
    assert contents[0] == contents[1]


@pytest.mark.parametrize("others", slow_after(1, [1, 3]))
def test_a_micro_batch_reads_and_writes_what_changed_and_not_what_is_kept(tmp_path, monkeypatch, others):
    """A thousand keys kept or thirty thousand: the same work, merges included, for workers that take turns."""
    work = {}
    for keys in (1_000, 30_000):
        rng = random.Random(0)
        workers = Workers(tmp_path / str(keys), monkeypatch, others)
        workers.run(lambda state, keys=keys: state.update(dict.fromkeys(range(keys), 0)))
        for worker in range(others):
            workers.run(lambda state: None, worker)
        workers.read = workers.written = 0
        for number in range(200):
            changed = rng.sample(range(keys), 50)
            workers.run(lambda state, changed=changed: state.update(dict.fromkeys(changed, 1)), number % others)
        work[keys] = workers.read + workers.written
        assert len(workers.chain.files) < 20
    # Ten times what changed, whatever is kept.
    assert work[30_000] < 1.3 * max(work[1_000], 200 * 50 * 10 * others)
    assert work[30_000] < 200 * 50 * 30


def test_no_micro_batch_writes_the_whole_state(tmp_path, monkeypatch):
    monkeypatch.setattr(state_log, "MERGED_KEYS", 64)
    workers = Workers(tmp_path, monkeypatch)
    workers.run(lambda state: state.update(dict.fromkeys(range(2_000), 0)))
    first = workers.chain.files[0]
    rng = random.Random(0)
    for _ in range(1_000):
        written = workers.written
        changed = rng.sample(range(2_000), 10)
        workers.run(lambda state, changed=changed: state.update(dict.fromkeys(changed, 1)))
        assert workers.written - written <= 30 + 4 * 64
        assert sum(file.keys for file in workers.chain.files) <= 3.5 * 2_000 + 300
    assert first not in workers.chain.files
    assert len(workers.chain.files) < 7_000 / 32


def test_keys_that_are_removed_leave_nothing_in_the_files(tmp_path, monkeypatch):
    workers = Workers(tmp_path, monkeypatch)
    for number in range(300):
        workers.run(lambda state, number=number: (state.update({number: "x"}), state.pop(number - 5, None)))
        assert sum(file.keys for file in workers.chain.files) <= 40
    workers.run(lambda state: state.clear())
    assert read_files(workers.folder, workers.chain.files) == {}


def test_a_worker_that_is_behind_learns_of_keys_whose_removal_is_in_no_file_any_more(tmp_path, monkeypatch):
    monkeypatch.setattr(state_log, "MERGED_KEYS", 0)
    monkeypatch.setattr(state_log, "_LOG_MAX", 100)
    workers = Workers(tmp_path, monkeypatch, 2)
    workers.run(lambda state: state.update(a=0, b=0, gone=0))
    workers.run(lambda state: None, 1)
    for change in (lambda state: state.pop("gone"), lambda state: state.update(b=1), lambda state: state.update(a=1)):
        workers.run(change)
    assert [file.keys for file in workers.chain.files] == [1, 1]  # that of the removal has gone
    found = {}
    workers.run(lambda state: found.update(state.snapshot()), 1)
    assert found == {"a": 1, "b": 1}
