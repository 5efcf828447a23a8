"""The state of bolts in files: chains, one more file for each micro-batch, read by any worker."""

from __future__ import annotations

import copy
import errno
import gc
import io
import os
import subprocess
import sys
import threading
import weakref

import pytest

from acker.errors import CheckpointError, TopologyError
from acker.spark.topologies import bolt_state
from acker.spark.topologies.bolt_state import KeptStates, StateCleaner, StateFiles, read_files
from acker.spark.topologies.state_log import StateChain, StateFile, StateLog
from acker.topology.state import KeyValueState


@pytest.fixture
def forget():
    """Forget what this worker knows, as another worker does not know it."""

    def forget():
        KeptStates.clear()

    forget()
    frozen = gc.get_freeze_count()
    yield forget
    forget()
    if gc.get_freeze_count() != frozen:  # tests/conftest.py has frozen the tests
        gc.unfreeze()
        gc.collect()
        gc.freeze()


class Batches:
    """Runs micro-batches of one task that change its state."""

    def __init__(self, folder, task=3):
        self.folder, self.task = str(folder), task
        self.chains, self.number = {}, 0

    def files(self):
        return StateFiles(self.folder, self.chains, self.number)

    def run(self, change, *, commit=True):
        """Run one micro-batch; return the state as it was before."""
        before = {}

        def look_and_change(state):
            before.update(copy.deepcopy(dict(state)))
            change(state)

        self.change(look_and_change, commit=commit)
        return before

    def change(self, change, *, commit=True):
        """Run one micro-batch."""
        files = self.files()
        change(files.new_state(self.task))
        written = files.write()
        if commit:
            self.chains.update(written)
            self.number += 1


@pytest.fixture
def batches(tmp_path, forget):
    return Batches(tmp_path)


def test_a_file_has_what_its_micro_batch_changed(batches, tmp_path, forget):
    assert batches.run(lambda state: state.update(a=1, b=2)) == {}
    first = batches.chains[3]
    assert batches.run(lambda state: state.update(b=3)) == {"a": 1, "b": 2}
    assert batches.chains[3].files[:1] == first.files and [file.keys for file in batches.chains[3].files] == [2, 1]
    assert len(list((tmp_path / "3").iterdir())) == 2
    assert batches.run(lambda state: (state.pop("a"), state.update(c=[1]))) == {"a": 1, "b": 3}
    forget()
    assert batches.run(lambda state: state["c"].append(2)) == {"b": 3, "c": [1]}
    forget()
    assert batches.run(lambda state: None) == {"b": 3, "c": [1, 2]}


def test_a_micro_batch_without_changes_writes_nothing(batches, tmp_path):
    batches.run(lambda state: None)
    assert batches.chains == {}
    assert list(tmp_path.iterdir()) == []


def test_a_worker_reads_only_the_files_that_it_does_not_know(batches, monkeypatch, tmp_path):
    read = []
    locate = bolt_state.locate

    class Reading:
        def __init__(self, filesystem):
            self.filesystem = filesystem

        def __getattr__(self, name):
            return getattr(self.filesystem, name)

        def open_input_stream(self, path):
            read.append(path.rpartition("/")[2])
            return self.filesystem.open_input_stream(path)

    def locate_reading(root):
        filesystem, base = locate(root)
        return Reading(filesystem), base

    batches.run(lambda state: state.update(dict.fromkeys("abcdefgh", 1)))
    mine = dict(KeptStates._states)
    KeptStates.clear()
    for number in range(2):  # another worker has these micro-batches
        batches.run(lambda state, number=number: state.update({number: "other"}))
    others = [file.name.rpartition("/")[2] for file in batches.chains[3].files[1:]]
    monkeypatch.setattr(KeptStates, "_states", mine)
    # write() has gone by the name of another module's filesystem, so only reads are seen.
    monkeypatch.setattr(bolt_state, "locate", locate_reading)
    state = batches.files().new_state(3)
    assert dict(state) == dict.fromkeys("abcdefgh", 1) | {0: "other", 1: "other"}
    assert read == others and len(others) == 1  # the second micro-batch has merged the first one's file
    assert not state.changes().values  # what was read is no change


def test_an_evaluation_that_is_discarded_leaves_no_trace(batches, forget):
    batches.run(lambda state: state.update(a=[1]))
    batches.run(lambda state: (state["a"].append(2), state.update(b=1)), commit=False)
    # The same worker, which has seen the discarded one, and another one.
    assert batches.run(lambda state: state["a"].append(3)) == {"a": [1]}
    forget()
    assert batches.run(lambda state: None) == {"a": [1, 3]}


def test_an_evaluation_that_ends_before_its_end_leaves_no_trace(batches):
    batches.run(lambda state: state.update(a=1))
    batches.files().new_state(3)["a"] = 2  # the Spark task is lost here
    assert batches.run(lambda state: None) == {"a": 1}


def test_tasks_have_states_of_their_own(tmp_path, forget):
    files = StateFiles(str(tmp_path), {}, 0)
    for task in (3, 4):
        files.new_state(task)["task"] = task
    chains = files.write()
    forget()
    files = StateFiles(str(tmp_path), chains, 1)
    assert [dict(files.new_state(task)) for task in (3, 4, 5)] == [{"task": 3}, {"task": 4}, {}]


def test_the_states_of_two_checkpoints_are_not_mixed_up(tmp_path, forget):
    one, other = Batches(tmp_path / "one"), Batches(tmp_path / "other")
    one.run(lambda state: state.update(a=1))
    assert other.run(lambda state: state.update(b=1)) == {}
    assert one.run(lambda state: None) == {"a": 1}


def test_a_value_that_cannot_be_pickled_is_told_with_its_key(tmp_path, forget):
    files = StateFiles(str(tmp_path), {}, 0, {3: "count"}.__getitem__)
    files.new_state(3).update(good=1, bad=threading.Lock())
    with pytest.raises(
        TopologyError, match=r"component 'count', task 3: the state cannot be pickled: key 'bad': .*lock"
    ):
        files.write()
    assert not list(tmp_path.iterdir())


def test_two_attempts_of_a_spark_task_at_once_write_files_of_their_own(batches, forget, tmp_path):
    batches.run(lambda state: state.update(a=1))
    for winner in (0, 1):
        attempts = [batches.files() for _ in range(2)]
        states = [attempt.new_state(3) for attempt in attempts]
        for state in states:
            state["a"] += 1
        (tmp_path / "3" / f".acker-{winner}.tmp").write_bytes(b"a part, of an attempt that was killed")
        written = [attempt.write()[3] for attempt in attempts]
        assert written[0].files[:-1] == written[1].files[:-1] and written[0] != written[1]
        # The driver takes the one that Spark has not killed; this worker has the state of the second one in memory.
        batches.chains[3] = written[winner]
        batches.number += 1
    assert batches.run(lambda state: None) == {"a": 3}
    forget()
    assert batches.run(lambda state: None) == {"a": 3}
    StateCleaner(str(tmp_path)).remove_unused(batches.chains)
    assert {f"3/{path.name}" for path in (tmp_path / "3").iterdir()} == {file.name for file in batches.chains[3].files}


def test_two_processes_that_write_the_same_task_do_not_meet(batches, tmp_path):
    code = (
        "from acker.spark.topologies.bolt_state import StateFiles\n"
        f"files = StateFiles({str(tmp_path)!r}, {{}}, 0)\n"
        "files.new_state(3).update((n, n) for n in range(20_000))\n"
        "print(input() + files.write()[3].files[0].name)\n"
    )
    attempts = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for attempt in attempts:
        attempt.stdin.write("\n")
        attempt.stdin.flush()
    names = {attempt.communicate()[0].strip() for attempt in attempts}
    assert len(names) == 2
    for name in names:
        assert read_files(str(tmp_path), [StateFile(name, 20_000, 0)]) == {n: n for n in range(20_000)}


def test_a_full_disk_is_told_with_the_file_and_leaves_nothing(batches, tmp_path, monkeypatch, forget):
    batches.run(lambda state: state.update(a=1))

    class Full(io.FileIO):
        def write(self, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", lambda descriptor, *_, **__: Full(descriptor, "wb"))
        with pytest.raises(
            CheckpointError, match=r"/3/1-\w+: the checkpoint cannot be written: .*No space left on device"
        ):
            batches.run(lambda state: state.update(a=2))
    assert len(list((tmp_path / "3").iterdir())) == 1
    assert batches.run(lambda state: None) == {"a": 1}
    forget()
    assert batches.run(lambda state: None) == {"a": 1}


def test_a_damaged_file_is_an_error_with_its_name(batches, forget, tmp_path):
    batches.run(lambda state: state.update(a=1))
    (path,) = (tmp_path / "3").iterdir()
    whole = path.read_bytes()
    cut = [whole[:size] for size in range(len(whole))]
    flipped = [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in range(len(whole))]
    for content in (*cut, *flipped, whole + b"\0"):
        path.write_bytes(content)
        forget()
        with pytest.raises(CheckpointError, match=f"{path}: damaged"):
            batches.files().new_state(3)


def test_a_file_in_the_place_of_another_one_is_an_error(batches, forget, tmp_path):
    """Though each of them is whole."""
    for value in range(2):
        batches.run(lambda state, value=value: state.update(dict.fromkeys("abcdefgh"[: 8 - 6 * value], value)))
    first, second = (tmp_path / file.name for file in batches.chains[3].files)
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    forget()
    with pytest.raises(CheckpointError, match=f"{first}: damaged: .* its name"):
        batches.files().new_state(3)


def test_a_file_that_is_missing_is_an_error_that_says_what_to_do(batches, forget, tmp_path):
    batches.run(lambda state: state.update(a=1))
    forget()
    for path in (tmp_path / "3").iterdir():
        path.unlink()
    with pytest.raises(CheckpointError, match=f"task 3: .*{tmp_path}/3/0-.*; put the file back from a copy"):
        batches.files().new_state(3)


def test_a_new_chain_is_empty():
    assert StateChain() == StateChain((), ())


def test_a_worker_drops_the_states_of_runs_that_have_ended(forget):
    state = KeyValueState({"a": 1})
    KeptStates.keep("ended", 1, StateLog(), state, now=1000.0)
    KeptStates.keep("other", 1, StateLog(), KeyValueState(), now=1300.0)
    assert KeptStates.roots() == {"ended", "other"}
    KeptStates.keep("other", 2, StateLog(), KeyValueState(), now=1300.1)
    assert KeptStates.roots() == {"other"}
    KeptStates.keep("other", 2, StateLog(), KeyValueState(), now=9000.0)
    assert KeptStates.take("other", 1)[1] == {} and KeptStates.roots() == {"other"}  # a run's own are kept


@pytest.mark.slow
def test_the_garbage_collector_does_not_look_at_what_is_kept_in_each_micro_batch(batches):
    """Spark's workers let it look at everything after each task."""
    batches.change(lambda state: state.update({("key", number): [number] for number in range(20_000)}))
    for number in range(3):
        batches.change(lambda state, number=number: state.update({("new", number): (number, [])}))
        gc.collect()
        log, state = KeptStates.take(batches.folder, 3)
        looked_at = {id(each) for each in gc.get_objects()}
        assert not looked_at & {id(state), id(log._file_of), id(state["key", 7])}
        KeptStates.keep(batches.folder, 3, log, state)


@pytest.mark.slow
def test_the_garbage_collector_looks_again_when_much_has_changed(batches):
    batches.change(lambda state: state.update({number: [] for number in range(20_000)}))
    frozen = gc.get_freeze_count()
    batches.change(lambda state: state.clear())
    assert gc.get_freeze_count() < frozen - 19_000
    batches.change(lambda state: state.update({number: [] for number in range(30_000)}))
    gc.collect()
    assert gc.get_freeze_count() > 30_000
    KeptStates.clear()
    batches.change(lambda state: state.clear())
    assert gc.get_freeze_count() == 0


@pytest.mark.slow
def test_the_garbage_collector_looks_at_what_is_kept_ever_more_rarely(batches, monkeypatch):
    looks = []
    unfreeze = gc.unfreeze
    monkeypatch.setattr(gc, "unfreeze", lambda: (looks.append(1), unfreeze()))
    batches.change(lambda state: state.update({number: [number] for number in range(20_000)}))
    for number in range(20):
        keys = range(number % 5 * 4_000, number % 5 * 4_000 + 4_000)
        batches.change(lambda state, keys=keys: state.update({key: [key] for key in keys}))
        gc.collect()  # as Spark's worker does
    assert len(looks) == 3  # after 20,000 changes, 40,000 and 80,000


class Knot:
    """Refers to itself, so that only the garbage collector frees it."""

    def __init__(self):
        self.itself = self


@pytest.mark.soak
def test_cycles_that_are_dropped_from_a_state_are_found_although_it_is_frozen(batches):
    alive = weakref.WeakSet()

    def renew(state, first):
        for key in range(first, first + 5_000):
            state[key] = knot = Knot()
            alive.add(knot)

    for number in range(24):
        batches.change(lambda state, number=number: renew(state, number % 4 * 5_000))
        gc.collect()
        assert len(alive) <= 20_000 + 10_000 + 5_000
