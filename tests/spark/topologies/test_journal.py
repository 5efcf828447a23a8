"""The journal: what a micro-batch processes and how it ended, as the next run finds it."""

from __future__ import annotations

import os
import struct
import sys
from dataclasses import replace

import pytest
from pyarrow import fs

from acker.errors import CheckpointError, TopologyError
from acker.spark.checksums import seal
from acker.spark.topologies import journal as journal_module
from acker.spark.topologies import lease
from acker.spark.topologies.bolt_state import write_file
from acker.spark.topologies.journal import BatchCommit, BatchPlan, Journal, JournalEntry, MemoryJournal
from acker.spark.topologies.lease import Lease
from acker.spark.topologies.stage_rows import StageRow
from acker.spark.topologies.state_log import StateChain, StateFile
from acker.spark.topologies.tuple_blocks import encode_tuples
from acker.topology import Reason, ReasonKind
from acker.topology.tuples import TupleSource

ENTRY = JournalEntry(1, ("a", 2), ("x", 1), "side", 7, attempt=2, reason=Reason(ReasonKind.FAILED, "bolt", 3, "no"))

SOURCE = TupleSource("spout", "side", 1, ["word", "n"])


def row_of(values, root=5):
    """Return a row with a tuple."""
    return StageRow(
        0, 1, -1, 0, encode_tuples([(3, [SOURCE.tuple_type(SOURCE.make_values(values), SOURCE, {root: 6})])])
    )


PLAN = BatchPlan([row_of(ENTRY.values)], {5: 6}, {5: ENTRY}, frozenset({"bolt"}))
COMMIT = BatchCommit(
    {3: StateChain((StateFile("3/0-abc", 2, 60),), ("3/0-abc",))}, [ENTRY], [(1, "b")], {"bolt": (3, 4)}
)


@pytest.fixture
def claimed():
    """Claims a journal, for a run that has the checkpoint until the next one claims it."""
    runs = []

    def claim(folder):
        if runs:
            runs[-1].release()
        runs.append(Journal(str(folder)))
        runs[-1].claim()
        return runs[-1]

    yield claim
    for journal in runs:
        journal.release()


@pytest.fixture
def stands_still(monkeypatch):
    """No run renews its lease, and none knows of another whether it still runs."""
    monkeypatch.setattr(Lease, "keep", lambda lease: None)
    monkeypatch.setattr(lease, "this_process", lambda: None)


@pytest.mark.usefixtures("stands_still")  # or the file of a renewal could be there
def test_what_a_killed_run_had_begun_to_write_is_removed_by_the_next_one(claimed, tmp_path):
    claimed(tmp_path).commit(0, COMMIT)
    for name in ("plans/.acker-a1.tmp", "commits/.1-1.tmp", "leases/.acker-b2.tmp"):
        (tmp_path / name).write_bytes(b"a part")
    assert claimed(tmp_path).last_commit() == (0, COMMIT)
    assert not list(tmp_path.glob("*/.*"))


def test_a_new_journal_is_empty(tmp_path):
    journal = Journal(str(tmp_path / "new"))
    assert journal.last_commit() == (-1, BatchCommit())
    assert journal.plans() == {}


def test_the_next_run_reads_what_was_written(claimed, tmp_path):
    journal = claimed(tmp_path)
    journal.write_plan(0, PLAN)
    journal.commit(0, COMMIT)
    journal.write_plan(1, PLAN)
    again = Journal(str(tmp_path))
    assert again.last_commit() == (0, COMMIT)
    assert again.plans() == {0: PLAN, 1: PLAN}


def test_a_commit_leaves_the_last_three_micro_batches(claimed, tmp_path):
    journal = claimed(tmp_path)
    for batch in range(12):
        journal.write_plan(batch, PLAN)
        journal.commit(batch, COMMIT)
    for name in ("plans", "commits"):
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == ["1-10", "1-11", "1-9"]
    assert Journal(str(tmp_path)).last_commit()[0] == 11


def test_numbers_are_compared_as_numbers(claimed, tmp_path):
    journal = claimed(tmp_path)
    for batch in (9, 10):
        journal.commit(batch, COMMIT)
    assert journal.last_commit()[0] == 10


def test_what_is_being_written_is_not_read(claimed, tmp_path):
    journal = claimed(tmp_path)
    journal.commit(0, COMMIT)
    (tmp_path / "commits" / "1-1.tmp").write_bytes(b"half")
    assert journal.last_commit()[0] == 0


@pytest.mark.parametrize("begin", [0, 1], ids=["first commit", "second commit"])
def test_a_commit_that_is_cut_short_anywhere_does_not_count(claimed, tmp_path, begin, caplog):
    journal = claimed(tmp_path)
    other = replace(COMMIT, entries=[])
    for number in range(begin + 1):
        journal.write_plan(number, PLAN)
        journal.commit(number, other)
    before = tmp_path / "commits" / f"1-{begin}"
    content = before.read_bytes()
    journal.commit(begin, COMMIT)
    (path,) = (tmp_path / "commits").glob(f"1-{begin}.*")
    whole = path.read_bytes()
    before.write_bytes(content)
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert journal.last_commit() == (begin, other)
    assert f"{path}: a part of the file is missing, so it does not count" in caplog.text
    path.write_bytes(whole)
    assert journal.last_commit() == (begin, COMMIT)


def test_a_first_commit_that_is_cut_short_leaves_its_micro_batch_planned(claimed, tmp_path):
    journal = claimed(tmp_path)
    journal.write_plan(0, PLAN)
    journal.commit(0, COMMIT)
    path = tmp_path / "commits" / "1-0"
    path.write_bytes(path.read_bytes()[:-1])
    again = claimed(tmp_path)
    assert again.last_commit() == (-1, BatchCommit()) and again.plans() == {0: PLAN}
    again.commit(0, COMMIT)
    assert again.last_commit() == (0, COMMIT)
    assert sorted(path.name for path in (tmp_path / "commits").iterdir()) == ["2--1", "2-0"]


def test_a_plan_that_is_cut_short_was_not_begun(claimed, tmp_path):
    journal = claimed(tmp_path)
    journal.write_plan(0, PLAN)
    journal.write_plan(1, PLAN)
    path = tmp_path / "plans" / "1-1"
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert journal.plans() == {0: PLAN}
    journal.write_plan(1, PLAN)
    assert journal.plans() == {0: PLAN, 1: PLAN}


def test_a_plan_that_is_listed_and_not_shown_is_passed_over_only_if_it_is_committed(claimed, tmp_path, monkeypatch):
    """A run that ends removes old ones; a store may show a new one later than it lists it."""
    journal = claimed(tmp_path)
    for batch in range(2):
        journal.write_plan(batch, PLAN)
    journal.commit(0, COMMIT)
    listed = {name: journal._versions(name) for name in ("plans", "commits")}
    monkeypatch.setattr(journal, "_versions", listed.get)
    assert journal.plans() == {0: PLAN, 1: PLAN}
    (tmp_path / "plans/1-0").unlink()
    assert journal.plans() == {1: PLAN}
    (tmp_path / "plans/1-1").unlink()
    with pytest.raises(FileNotFoundError, match="plans/1-1"):
        journal.plans()


@pytest.mark.parametrize("name", ["plans", "commits"])
def test_a_file_in_the_place_of_another_one_is_refused(claimed, tmp_path, name):
    journal = claimed(tmp_path)
    for batch in range(2):
        journal.write_plan(batch, PLAN)
        journal.commit(batch, COMMIT)
    (tmp_path / name / "1-1").write_bytes((tmp_path / name / "1-0").read_bytes())
    with pytest.raises(CheckpointError, match=f"^{tmp_path}/{name}/1-1 is damaged .* its name.*; put it back"):
        journal.plans() if name == "plans" else journal.last_commit()


@pytest.mark.parametrize("name", ["plans", "commits"])
def test_a_file_with_a_byte_flipped_is_refused_by_its_name(claimed, tmp_path, name):
    """And not taken for one that is cut short, which does not count; tests/spark/test_checksums.py flips each byte."""
    journal = claimed(tmp_path)
    journal.write_plan(0, PLAN)
    journal.commit(0, COMMIT)
    path = tmp_path / name / "1-0"
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with pytest.raises(CheckpointError, match=f"^{tmp_path}/{name}/1-0 is damaged"):
            journal.plans() if name == "plans" else journal.last_commit()
    path.write_bytes(whole + b"x")
    with pytest.raises(CheckpointError, match=f"^{tmp_path}/{name}/1-0 is damaged"):
        journal.plans() if name == "plans" else journal.last_commit()


def test_a_micro_batch_that_is_committed_again_has_one_file(claimed, tmp_path):
    journal = claimed(tmp_path)
    for number in range(4):
        journal.commit(7, replace(COMMIT, acked=[(number, "a")]))
    assert [path.name for path in (tmp_path / "commits").iterdir()] == ["1-7.3"]
    assert Journal(str(tmp_path)).last_commit() == (7, replace(COMMIT, acked=[(3, "a")]))


@pytest.mark.usefixtures("stands_still")
def test_where_files_are_not_written_at_once_they_are_moved(claimed, tmp_path, monkeypatch):
    class Elsewhere(fs.SubTreeFileSystem):
        """A filesystem that is not local, and no object store."""

    elsewhere = Elsewhere(str(tmp_path), fs.LocalFileSystem())
    monkeypatch.setattr("acker.spark.topologies.journal.locate", lambda root: (elsewhere, "checkpoint"))
    journal = claimed("hdfs://checkpoint")
    journal = claimed("hdfs://checkpoint")
    journal.write_plan(0, PLAN)
    (tmp_path / "checkpoint" / "commits" / ".2-0.tmp").write_bytes(b"of a crash")
    journal.commit(0, COMMIT)
    assert journal.last_commit() == (0, COMMIT) and journal.plans() == {0: PLAN}
    files = [str(path.relative_to(tmp_path / "checkpoint")) for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(file for file in files if not file.startswith("leases/2-")) == [
        "commits/2--1",
        "commits/2-0",
        "plans/2-0",
    ]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (struct.pack("<8sI", b"ACKERJNL", 99) + b"cacker.gone\nGone\n.", "format 99"),
        (b"\x80\x05cacker.gone\nGone\n.", "an older one"),  # It began with the classes of its release.
        (b"", "an older one"),
    ],
)
def test_another_format_is_refused_by_its_file_before_its_classes_are_looked_for(claimed, tmp_path, content, found):
    journal = claimed(tmp_path)
    journal.commit(0, COMMIT)
    (tmp_path / "commits" / "1-0").write_bytes(seal(content, "commits/1-0"))
    text = f"commits/1-0: expected format 3 of the journal, got {found}; drain the topology with the release"
    with pytest.raises(CheckpointError, match=text):
        journal.last_commit()


def test_tuples_that_no_later_run_could_read_are_refused(claimed, tmp_path):
    class Local:
        """A class that cannot be imported."""

    plan = BatchPlan([row_of(["x", Local()])], {5: 6}, {5: JournalEntry(1, 1, (Local(),))})
    with pytest.raises(
        TopologyError, match=r"micro-batch 0 cannot be pickled for the journal .*Local.*; let spouts emit"
    ):
        claimed(tmp_path).write_plan(0, plan)
    assert not list((tmp_path / "plans").iterdir())


def test_a_plan_has_each_value_once(claimed, tmp_path):
    body = os.urandom(1_000_000)
    entry = replace(ENTRY, values=("x", body))
    plan = replace(PLAN, rows=[row_of(entry.values)], entries={5: entry})
    claimed(tmp_path).write_plan(0, plan)
    assert (tmp_path / "plans" / "1-0").stat().st_size < 1_010_000
    assert claimed(tmp_path).plans() == {0: plan}


def test_values_of_the_classes_of_a_program_stay_of_these_classes(claimed, tmp_path, monkeypatch):
    """Between the workers and the driver of a script its classes travel by value: a copy would be another class."""
    monkeypatch.setattr(Mine, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Mine", Mine, raising=False)
    entry = replace(ENTRY, values=("x", Mine()))
    plan = replace(PLAN, rows=[row_of(entry.values)], entries={5: entry})
    claimed(tmp_path).write_plan(0, plan)
    assert type(claimed(tmp_path).plans()[0].entries[5].values[1]) is Mine


class Mine:
    """A class of a script."""


def test_a_batch_job_keeps_the_last_commit_alone():
    journal = MemoryJournal()
    assert journal.last_commit() == (-1, BatchCommit())
    journal.write_plan(0, PLAN)
    journal.commit(0, COMMIT)
    assert journal.last_commit() == (0, COMMIT)
    assert journal.plans() == {}


@pytest.mark.usefixtures("stands_still")
def test_a_run_whose_checkpoint_was_taken_over_writes_no_more(tmp_path):
    first, second = (Journal(str(tmp_path), lease_secs=0.01) for _ in range(2))
    first.claim()
    first.commit(0, COMMIT)
    second.claim()
    for write in (lambda: first.write_plan(1, PLAN), lambda: first.commit(1, COMMIT), first.check):
        with pytest.raises(CheckpointError, match=f"lost the checkpoint to another one.* process {os.getpid()} on "):
            write()
    second.write_plan(1, PLAN)
    assert second.plans() == {1: PLAN}
    assert second.last_commit() == (0, COMMIT)


@pytest.mark.usefixtures("stands_still")
@pytest.mark.parametrize("name", ["plans", "commits"])
@pytest.mark.parametrize("begun", [False, True], ids=["before the next commit", "after it"])
def test_what_a_run_writes_after_it_has_lost_the_checkpoint_does_not_count(tmp_path, monkeypatch, name, begun):
    """It stands still between its check and the write, or right before it lists what to remove."""
    first, second = (Journal(str(tmp_path), lease_secs=0.01) for _ in range(2))
    first.claim()
    first.commit(0, COMMIT)
    mine = replace(PLAN, partitions=7), replace(COMMIT, acked=[(9, "mine")])

    def write(filesystem, path, content):
        monkeypatch.setattr(journal_module, "write_file", write_file)
        second.claim()
        if begun:
            second.write_plan(1, mine[0])
            second.commit(1, mine[1])
        write_file(filesystem, path, content)

    monkeypatch.setattr(journal_module, "write_file", write)
    with pytest.raises(CheckpointError, match="lost the checkpoint to another one"):
        first.write_plan(1, PLAN) if name == "plans" else first.commit(1, COMMIT)
    later = Journal(str(tmp_path))
    assert (tmp_path / name / "1-1").exists()
    if begun:
        assert later.last_commit() == (1, mine[1]) and later.plans() == {1: mine[0]}
    else:
        assert later.last_commit() == (0, COMMIT) and later.plans() == {}


@pytest.mark.usefixtures("stands_still")
def test_a_run_that_stood_still_in_its_commit_removes_nothing_of_the_next_one(tmp_path, monkeypatch):
    first, second = (Journal(str(tmp_path), lease_secs=0.01) for _ in range(2))
    first.claim()
    first.write_plan(5, PLAN)

    def check(self):
        check_lease(self)
        if self.epoch == 1 and (tmp_path / "commits" / "1-5").exists():  # the check after the write
            monkeypatch.setattr(Lease, "check", check_lease)
            second.claim()
            second.write_plan(5, PLAN)
            second.write_plan(1, PLAN)

    check_lease = Lease.check
    monkeypatch.setattr(Lease, "check", check)
    first.commit(5, COMMIT)
    assert second.last_commit() == (5, COMMIT)
    assert second.plans() == {1: PLAN, 5: PLAN}


def test_an_entry_is_known_by_its_task_and_its_id():
    assert ENTRY.key == (1, ("a", 2))


def test_a_plan_that_is_done_again_leaves_out_what_others_will_emit_again():
    plan = BatchPlan([], {5: 6, 7: 8}, {5: ENTRY}, borrowed=frozenset({7}))
    again = plan.recovered()
    assert again.tracks == {5: 6}
    assert again.left_out == {7}
