"""The offset that may be committed: never past an open message, never held up by a hole of the log."""

import itertools
import json
import random
import sys
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from acker import Acker, Kind, Outcome, offsets
from acker._engine.completions import Completions
from acker.errors import ArgumentTypeError, ArgumentValueError, SnapshotError
from acker.offsets import OFFSET_MAX, PARTITION_MAX, OffsetTracker, pack, unpack


def tracker_of(*offsets, partition=0):
    tracker = OffsetTracker()
    for offset in offsets:
        assert tracker.emitted(partition, offset)
    return tracker


def completions_of(*rows):
    """Rows (partition, offset, outcome)."""
    return Completions.from_rows([(7 * row, pack(*where), 0, outcome, 5) for row, (*where, outcome) in enumerate(rows)])


def test_what_is_acked_out_of_order_is_held():
    tracker = tracker_of(100, 101, 102, 103)
    assert tracker.committable(0) == 100
    tracker.acked(0, 102)
    tracker.acked(0, 101)
    assert (tracker.committable(0), tracker.done_through(0), tracker.oldest(0)) == (100, 99, 100)
    tracker.acked(0, 100)
    assert (tracker.committable(0), tracker.done_through(0), tracker.oldest(0)) == (103, 102, 103)
    tracker.acked(0, 103)
    assert (tracker.committable(0), tracker.done_through(0), tracker.oldest(0)) == (104, 103, None)


def test_holes_of_the_log_are_passed():
    tracker = tracker_of(5, 9, 10, 40)
    for offset in (5, 10):
        tracker.acked(0, offset)
    assert tracker.committable(0) == 9  # 6 to 8 are not there, so nobody waits for them
    tracker.acked(0, 9)
    assert tracker.committable(0) == 40
    tracker.acked(0, 40)
    assert tracker.committable(0) == 41


def test_a_failed_message_stays_open():
    tracker = tracker_of(0, 1)
    tracker.failed(0, 0)
    tracker.acked(0, 1)
    assert (tracker.committable(0), tracker.open(0), tracker.lag(0)) == (0, 1, 2)
    tracker.acked(0, 0)  # its replay
    assert (tracker.committable(0), tracker.open(0), tracker.lag(0)) == (2, 0, 0)
    assert (tracker.stats().failed, tracker.stats().acked) == (1, 2)


def test_a_dead_letter_is_done():
    tracker = tracker_of(0, 1)
    tracker.acked(0, 1)
    tracker.dead_lettered(0, 0)
    assert tracker.committable(0) == 2
    assert tracker.stats().dead_lettered == 1


def test_duplicates_are_counted_and_change_nothing():
    tracker = tracker_of(0, 1, 2)
    tracker.acked(0, 1)
    before = tracker.snapshot()
    for settle in (tracker.acked, tracker.failed, tracker.dead_lettered):
        settle(0, 1)
    assert tracker.stats().duplicates == 3
    assert tracker.snapshot()["partitions"] == before["partitions"]


@pytest.mark.parametrize(
    ("partition", "offset", "why"),
    [(0, 6, "never emitted"), (0, 12, "never emitted"), (0, 1, "never emitted"), (9, 5, "never assigned")],
)
@pytest.mark.parametrize("name", ["acked", "failed", "dead_lettered"])
def test_what_was_never_emitted_is_refused(name, partition, offset, why):
    tracker = tracker_of(5, 7, 11)
    before = tracker.snapshot()
    with pytest.raises(ArgumentValueError, match=rf"^partition {partition}, offset {offset}: .*{why}$"):
        getattr(tracker, name)(partition, offset)
    assert tracker.snapshot() == before


def test_offsets_ascend():
    tracker = tracker_of(5, 7)
    with pytest.raises(ArgumentValueError, match=r"^partition 0, offset 6: .*7 was emitted already; .*assign"):
        tracker.emitted(0, 6)
    with pytest.raises(ArgumentValueError, match=r"^partition 0, offset 4: .*the lowest one is 5; .*assign"):
        tracker.emitted(0, 4)
    assert tracker.open(0) == 2


def test_what_is_read_again_is_open_or_need_not_be_processed():
    tracker = tracker_of(5, 6, 7)
    tracker.acked(0, 5)
    tracker.acked(0, 7)
    assert [tracker.emitted(0, offset) for offset in (5, 6, 7, 8)] == [False, True, False, True]
    assert (tracker.stats().emitted, tracker.stats().reread) == (4, 3)


def test_commits_are_offered_until_they_were_made():
    tracker = tracker_of(10, 11)
    tracker.emitted(3, 70)
    assert tracker.committable() == {}  # where the source began to read is where its commit is
    tracker.acked(0, 10)
    tracker.acked(3, 70)
    assert tracker.committable() == {0: 11, 3: 71} == tracker.committable()
    tracker.committed({0: 11})
    assert tracker.committable() == {3: 71}
    tracker.acked(0, 11)
    assert tracker.committable() == {0: 12, 3: 71}
    tracker.committed({0: 10, 3: 71})  # what the log says counts, also when it is less
    assert tracker.committable() == {0: 12}


def test_a_commit_past_what_is_done_is_refused():
    tracker = tracker_of(10, 11)
    tracker.acked(0, 11)
    tracker.emitted(1, 3)
    tracker.acked(1, 3)
    with pytest.raises(ArgumentValueError, match="partition 0, offset 12: only 10 may be committed"):
        tracker.committed({1: 4, 0: 12})
    assert tracker.committable() == {1: 4}
    tracker.committed({8: 99})  # revoked since, or never ours


def test_the_position_may_be_known():
    tracker = OffsetTracker()
    tracker.assign(0, 500)
    tracker.assign(1)
    assert (tracker.committable(0), tracker.committable(1), tracker.committable(2)) == (500, None, None)
    assert (tracker.lag(0), tracker.lag(1), tracker.lag(2), tracker.partitions) == (0, 0, 0, (0, 1))
    assert tracker.committable() == {}
    assert tracker.emitted(0, 503)
    assert tracker.committable() == {0: 503}  # 500 to 502 are a hole
    with pytest.raises(ArgumentValueError, match="lowest one is 500"):
        tracker.emitted(0, 499)


def test_position_zero_has_nothing_done_below_it():
    tracker = tracker_of(0)
    assert (tracker.committable(0), tracker.done_through(0)) == (0, None)


def test_outcomes_after_a_rebalance_are_late():
    tracker = tracker_of(10, 11, 12)
    tracker.acked(0, 10)
    assert tracker.revoke(0) == 11
    assert tracker.revoke(0) is None
    tracker.acked(0, 11)
    tracker.failed(0, 12)
    assert (tracker.stats().late, tracker.stats().revoked, len(tracker)) == (2, 2, 0)
    assert (tracker.committable(0), tracker.committable()) == (None, {})
    with pytest.raises(ArgumentValueError, match="partition 0, offset 13: the partition was never assigned"):
        tracker.acked(0, 13)
    with pytest.raises(ArgumentValueError, match="partition 0 was revoked; assign it"):
        tracker.emitted(0, 11)


def test_late_outcomes_after_the_partition_came_back():
    tracker = tracker_of(10, 11, 12, 13)
    tracker.revoke(0)
    tracker.assign(0, 11)
    tracker.acked(0, 13)  # emitted before; now it was not read yet
    assert tracker.stats().late == 1
    assert tracker.emitted(0, 11) and tracker.emitted(0, 12)
    tracker.acked(0, 11)  # whichever delivery that was: the message is done
    assert tracker.committable(0) == 12
    with pytest.raises(ArgumentValueError, match="offset 14: it was never emitted"):
        tracker.acked(0, 14)


def test_assigning_again_is_a_seek():
    tracker = tracker_of(10, 11)
    tracker.acked(0, 10)
    tracker.assign(0, 3)
    assert (tracker.open(0), tracker.stats().revoked, tracker.committable(0)) == (0, 1, 3)
    assert tracker.emitted(0, 3) and tracker.emitted(0, 10)


@pytest.mark.parametrize(
    ("partition", "offset", "message_id"),
    [
        (0, 0, 0),
        (0, 1, 1),
        (1, 0, 2**48),
        (32_767, OFFSET_MAX, 2**63 - 1),
        (32_768, 0, -(2**63)),
        (65_535, OFFSET_MAX, -1),
    ],
)
def test_message_ids_hold_partition_and_offset(partition, offset, message_id):
    assert pack(partition, offset) == message_id
    assert unpack(message_id) == (partition, offset)


@given(st.lists(st.tuples(st.integers(0, PARTITION_MAX), st.integers(0, OFFSET_MAX)), min_size=1))
def test_arrays_are_packed_as_numbers_are(places):
    partitions, offsets = (np.array(column) for column in zip(*places, strict=True))
    packed = pack(partitions, offsets)
    assert packed.dtype == np.int64
    assert packed.tolist() == [pack(*place) for place in places]
    assert [column.tolist() for column in unpack(packed)] == [partitions.tolist(), offsets.tolist()]


def test_one_partition_for_all_offsets():
    assert unpack(pack(3, np.arange(2)))[0].tolist() == [3, 3]


@pytest.mark.parametrize("bad", [-1, OFFSET_MAX + 1])
def test_offsets_out_of_range_are_refused(bad):
    tracker = tracker_of(1)
    with pytest.raises(ArgumentValueError, match=f"^offset: .*got {bad}"):
        pack(0, bad)
    with pytest.raises(ArgumentValueError, match=f"^offset: .*got {bad} at index 1"):
        pack(0, np.array([0, bad]))
    with pytest.raises(ArgumentValueError, match=r"^offset: "):
        tracker.emitted(0, bad)
    with pytest.raises(ArgumentValueError, match=r"^offset: "):
        tracker.acked(0, bad)


@pytest.mark.parametrize("bad", [-1, PARTITION_MAX + 1])
def test_partitions_out_of_range_are_refused(bad):
    with pytest.raises(ArgumentValueError, match=f"^partition: .*got {bad}"):
        pack(bad, 0)
    with pytest.raises(ArgumentValueError, match=f"^partition: .*got {bad} at index 0"):
        pack(np.array([bad]), np.array([0]))
    with pytest.raises(ArgumentValueError, match=r"^partition: "):
        OffsetTracker().emitted(bad, 0)


@pytest.mark.parametrize("bad", ["5", 5.0, None, True])
def test_what_is_no_integer_is_refused(bad):
    with pytest.raises(ArgumentTypeError, match=r"^offset: "):
        tracker_of(1).emitted(0, bad)
    with pytest.raises(ArgumentTypeError, match=r"^partition: "):
        OffsetTracker().assign(bad)
    with pytest.raises(ArgumentValueError, match=r"^partition: expected integers .* an array of"):
        pack(np.array([bad]), np.array([0]))


def test_numbers_of_numpy_become_plain_ones():
    tracker = tracker_of(*np.arange(3))
    assert json.loads(json.dumps(tracker.snapshot())) == tracker.snapshot()


def test_completions_are_applied():
    tracker = tracker_of(*range(5))
    tracker.emitted(40_000, 9)
    rows = [(0, 1, 0), (40_000, 9, 0), (0, 0, 1), (0, 2, 2), (0, 3, 3), (0, 4, 0), (0, 4, 0), (0, 2, Outcome.PENDING)]
    assert tracker.apply(completions_of(*rows)) == 3
    assert tracker.committable() == {40_000: 10}
    assert tracker.stats() == tracker.stats().__class__(emitted=6, acked=3, failed=3, duplicates=1)
    assert tracker.apply(completions_of(*((0, offset, 0) for offset in (3, 2, 0)))) == 3
    assert tracker.committable(0) == 5
    assert tracker.apply(Completions.empty()) == 0


def test_completions_of_other_tasks_are_left_alone():
    done = completions_of((0, 0, 0), (0, 99, 0))
    done.task_id[1] = 4
    assert tracker_of(0).apply(done, task_id=0) == 1


def test_completions_of_an_acker():
    tracker, acker = tracker_of(*range(3), partition=50_000), Acker()
    messages = [(Kind.TRACK, root, 100 + root, 0, pack(50_000, root - 1)) for root in (1, 2, 3)]
    tracker.apply(acker.ingest(*zip(*messages, strict=True)))
    assert tracker.committable() == {}
    tracker.apply(acker.ingest(Kind.OK, [3, 1], [103, 101]))
    assert (tracker.committable(), tracker.open()) == ({50_000: 1}, 1)


def test_a_batch_with_an_unknown_message_is_not_applied():
    tracker = tracker_of(3, 5)
    tracker.emitted(1, 0)
    before = tracker.snapshot()
    with pytest.raises(ArgumentValueError, match=r"^row 1: partition 1, offset 8: it was never emitted"):
        tracker.apply(completions_of((0, 3, 0), (1, 8, 0), (0, 4, 0), (1, 0, 0)))
    with pytest.raises(ArgumentValueError, match=r"^row 2: partition 7, offset 0: the partition was never assigned"):
        tracker.apply(completions_of((0, 3, 4), (0, 3, 1), (7, 0, 0), (0, 5, 0)))
    assert tracker.snapshot() == before


def test_memory_is_that_of_what_is_open():
    """A message that hangs below a hundred thousand others that are done costs one entry, and so do these."""
    tracker = tracker_of(0)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for offset in range(1, 100_000):
            tracker.emitted(0, offset)
            tracker.acked(0, offset)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 20_000
    assert (tracker.committable(0), tracker.lag(0)) == (0, 100_000)
    assert tracker.snapshot()["partitions"]["0"]["runs"] == [[0, 100_000]]


def test_holes_cost_memory_only_above_the_oldest_open_message():
    tracker = OffsetTracker()
    for offset in range(0, 60_000, 3):
        tracker.emitted(0, offset)
        tracker.acked(0, offset)
        assert len(tracker._partitions.logs[0].ends) <= 64


def test_many_outcomes_count_as_one_by_one():
    many, one = tracker_of(3, 4, 6, 9), tracker_of(3, 4, 6, 9)
    ends = [4, 4, 3, 9]  # 4 twice
    many.acked_all(0, ends)
    for offset in ends:
        one.acked(0, offset)
    assert many.stats() == one.stats() and many.stats().duplicates == 1
    with pytest.raises(ArgumentValueError, match="partition 0, offset 12: it was never emitted"):
        many.acked_all(0, [6, 12])
    assert many.committable() == {0: 10}
    many.revoke(0)
    many.acked_all(0, [9, 6])
    assert many.stats().late == 2


def test_a_long_queue_is_acked_in_order():
    """Quadratic if the oldest open message were looked for behind those that are done."""
    tracker = tracker_of(*range(200_000))
    for offset in range(200_000):
        assert tracker.committable(0) == offset
        tracker.acked(0, offset)


def test_a_restart_skips_what_was_done_above_the_commit():
    tracker = tracker_of(*range(6))
    for offset in (0, 2, 3, 5):
        tracker.acked(0, offset)
    kept = json.dumps(tracker.snapshot())
    again = OffsetTracker.restore(json.loads(kept))
    assert again.snapshot() == tracker.snapshot()
    assert [offset for offset in range(1, 8) if again.emitted(0, offset)] == [1, 4, 6, 7]


def test_what_lies_behind_the_last_message_is_committable_once_all_messages_are_done():
    tracker = tracker_of(5, 6)
    tracker.read_up_to(0, 9)
    assert tracker.committable(0) == 5 and tracker.lag(0) == 4
    tracker.acked(0, 5)
    tracker.acked(0, 6)
    assert tracker.committable() == {0: 9}
    tracker.committed({0: 9})
    assert tracker.committable() == {} and tracker.done_through(0) == 8
    assert tracker.emitted(0, 9) and tracker.committable(0) == 9


def test_a_log_without_messages_is_read_up_to_its_end():
    tracker = OffsetTracker()
    tracker.assign(0)
    tracker.read_up_to(0, 7)
    assert tracker.committable() == {0: 7}
    again = OffsetTracker.restore(json.loads(json.dumps(tracker.snapshot())))
    assert again.snapshot() == tracker.snapshot() and again.committable() == {0: 7}


def test_reading_up_to_a_lower_offset_changes_nothing():
    tracker = tracker_of(5, 6)
    before = tracker.snapshot()
    tracker.read_up_to(0, 6)
    tracker.read_up_to(1, 6)
    assert tracker.snapshot() == before
    with pytest.raises(ArgumentValueError, match="offset"):
        tracker.read_up_to(0, -1)


def test_offsets_behind_the_last_message_were_never_emitted():
    tracker = tracker_of(5)
    tracker.read_up_to(0, 9)
    with pytest.raises(ArgumentValueError, match="ascending order"):
        tracker.emitted(0, 7)
    with pytest.raises(ArgumentValueError, match="never emitted"):
        tracker.acked(0, 7)


def damage(**changes):
    tracker = tracker_of(5, 6, 9, 10)
    tracker.acked(0, 6)
    tracker.emitted(1, 3)
    tracker.revoke(1)
    snapshot = tracker.snapshot()
    for where, value in changes.items():
        *path, last = where.split("__")
        part = snapshot
        for name in path:
            part = part[name.replace("zero", "0")]
        part[last] = value
    return snapshot


@pytest.mark.parametrize(
    "snapshot",
    [
        None,
        {},
        [],
        damage(version=2),
        damage(partitions=None),
        damage(partitions={"x": {}}),
        damage(partitions={"65536": {}}),
        damage(revoked={"1": -1}),
        damage(stats={}),
        damage(stats__acked="many"),
        damage(partitions__zero__next=10),
        damage(partitions__zero__next=None),
        damage(partitions__zero__start=12),
        damage(partitions__zero__start=6),
        damage(partitions__zero__committed=None),
        damage(partitions__zero__runs=[[5, 7], [7, 11]]),
        damage(partitions__zero__runs=[[5, 7, 9], [11]]),
        damage(partitions__zero__runs=[[9, 11], [5, 7]]),
        damage(partitions__zero__runs=[[5.5, 11]]),
        damage(partitions__zero__open=[5, 8]),
        damage(partitions__zero__open=[4]),
        damage(partitions__zero__open=[9, 5]),
        damage(partitions__zero__open=[5, 5]),
        damage(partitions__zero__open=["5"]),
    ],
)
def test_a_damaged_snapshot_is_refused(snapshot):
    with pytest.raises(SnapshotError):
        OffsetTracker.restore(snapshot)
    OffsetTracker.restore(damage())


class Naive:
    """One assignment of a partition, every message of which is kept for ever."""

    def __init__(self, position):
        self.position, self.done = position, {}

    @property
    def next(self):
        return max(self.done) + 1 if self.done else self.position

    @property
    def start(self):
        return min(self.done, default=None) if self.position is None else self.position

    @property
    def open(self):
        return [offset for offset in sorted(self.done) if not self.done[offset]]

    @property
    def committable(self):
        return min(self.open, default=self.next)

    def is_done(self, offset):
        # Below all that is open nobody looks any more for holes of the log.
        return self.done.get(offset, False) or (
            self.start is not None and self.start <= offset < self.committable and offset not in self.open
        )


PARTITIONS = st.sampled_from([0, 1, PARTITION_MAX])
# So few that outcomes meet their messages, and a log that goes on behind a big hole.
OFFSETS = st.integers(0, 12) | st.integers(OFFSET_MAX - 3, OFFSET_MAX)


class OffsetMachine(RuleBasedStateMachine):
    """The tracker beside one dict entry for each message, through failures, rebalances and restarts."""

    def __init__(self):
        super().__init__()
        self.tracker = OffsetTracker()
        self.logs, self.past, self.told, self.counts = {}, {}, {}, Counter()

    @rule(partition=PARTITIONS, position=st.none() | OFFSETS)
    def assign(self, partition, position):
        self.tracker.assign(partition, position)
        self.forget(partition)
        self.logs[partition], self.told[partition] = Naive(position), position

    @rule(partition=PARTITIONS)
    def revoke(self, partition):
        expected = self.logs[partition].committable if partition in self.logs else None
        assert self.tracker.revoke(partition) == expected
        self.forget(partition)

    def forget(self, partition):
        log = self.logs.pop(partition, None)
        if log is not None:
            self.counts["revoked"] += len(log.open)
            if log.next is not None:
                self.past[partition] = max(self.past.get(partition, 0), log.next)

    @rule(partition=PARTITIONS, offset=OFFSETS)
    def emit(self, partition, offset):
        if partition not in self.logs and partition not in self.past:
            self.logs[partition] = Naive(None)
        log = self.logs.get(partition)
        known = log is not None and (offset in log.done or log.is_done(offset))
        if log is None or not (known or log.next is None or offset >= log.next):
            with pytest.raises(ArgumentValueError, match=f"partition {partition}"):
                self.tracker.emitted(partition, offset)
            return
        if log.next is None:
            self.told[partition] = offset
        assert self.tracker.emitted(partition, offset) is (not known or offset in log.open)
        self.counts["reread" if known else "emitted"] += 1
        if not known:
            log.done[offset] = False

    @rule(partition=PARTITIONS, hole=st.sampled_from([0, 0, 0, 1, 3]), many=st.integers(1, 9))
    def emit_some_more(self, partition, hole, many):
        log = self.logs.get(partition)
        first = hole + (log.next or 0 if log else 0)
        for offset in range(first, min(first + many, OFFSET_MAX)):
            self.emit(partition, offset)

    @rule(partition=PARTITIONS, offset=OFFSETS, name=st.sampled_from(["acked", "dead_lettered", "failed"]))
    def settle(self, partition, offset, name):
        counted = self.counted(partition, offset, name)
        call = getattr(self.tracker, name)
        if counted is None:
            with pytest.raises(ArgumentValueError, match=f"partition {partition}, offset {offset}"):
                call(partition, offset)
        else:
            call(partition, offset)
            self.count(partition, offset, counted)

    @rule(data=st.data(), partition=PARTITIONS, name=st.sampled_from(["acked", "acked", "dead_lettered", "failed"]))
    def settle_an_open_one(self, data, partition, name):
        if partition in self.logs and self.logs[partition].open:
            self.settle(partition, data.draw(st.sampled_from(self.logs[partition].open)), name)

    @rule(rows=st.lists(st.tuples(PARTITIONS, OFFSETS, st.sampled_from(Outcome)), max_size=20))
    def apply(self, rows):
        names = {Outcome.ACKED: "acked", Outcome.PENDING: None}
        told = [(*where, names.get(outcome, "failed")) for *where, outcome in rows]
        if any(name and self.counted(*where, name) is None for *where, name in told):
            with pytest.raises(ArgumentValueError, match=r"^row \d+: partition \d+, offset \d+: "):
                self.tracker.apply(completions_of(*rows))
            told = []
        before = self.counts["acked"]
        for *where, name in told:
            if name:
                self.count(*where, self.counted(*where, name))
        if told:
            assert self.tracker.apply(completions_of(*rows)) == self.counts["acked"] - before

    def counted(self, partition, offset, name):
        """Return the count that an outcome goes into; None if it is an error."""
        log = self.logs.get(partition)
        if log is not None and offset in log.open:
            return name
        if log is not None and log.is_done(offset):
            return "duplicates"
        return "late" if offset < self.past.get(partition, 0) else None

    def count(self, partition, offset, name):
        self.counts[name] += 1
        if name in {"acked", "dead_lettered"}:
            self.logs[partition].done[offset] = True

    @rule(back=st.sampled_from([0, 0, 1, 100]), some=st.sets(PARTITIONS))
    def commit(self, back, some):
        offers = {partition: offset for partition, offset in self.tracker.committable().items() if partition in some}
        told = {partition: max(0, offset - back) for partition, offset in offers.items()}
        self.tracker.committed(told)
        self.told |= told

    @rule()
    def restart(self):
        self.tracker = OffsetTracker.restore(json.loads(json.dumps(self.tracker.snapshot())))

    @invariant()
    def they_agree(self):
        tracker = self.tracker
        assert tracker.partitions == tuple(sorted(self.logs))
        moved = {}
        for partition, log in self.logs.items():
            assert tracker.committable(partition) == log.committable
            assert tracker.oldest(partition) == min(log.open, default=None)
            assert tracker.open(partition) == len(log.open)
            assert tracker.lag(partition) == (0 if log.next is None else log.next - log.committable)
            if log.committable is not None and log.committable != self.told.get(partition):
                moved[partition] = log.committable
        assert tracker.committable() == moved
        assert len(tracker) == sum(len(log.open) for log in self.logs.values())
        assert {name: count for name, count in vars(tracker.stats()).items() if count} == +self.counts
        stats = tracker.stats()
        assert stats.emitted == stats.acked + stats.dead_lettered + stats.revoked + len(tracker)

    @invariant()
    def no_open_message_is_passed(self):
        for partition, log in self.logs.items():
            committable = self.tracker.committable(partition)
            assert all(offset >= committable for offset in log.open)


OffsetMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestOffsets = OffsetMachine.TestCase


@pytest.mark.parametrize("seed", range(20))
def test_a_long_log_with_holes_acked_in_any_order(seed):
    """As the machine, at a length that it does not reach: hundreds of runs, and acks far behind the head."""
    draw = random.Random(seed)
    tracker, offset, is_open = tracker_of(1000), 1000, [1000]
    for _ in range(3000):
        if draw.random() < 0.55:
            offset += draw.choice([1, 1, 1, 2, 50])
            tracker.emitted(0, offset)
            is_open.append(offset)
        elif is_open:
            # Mostly old ones, so that the commit moves; some young ones, which it must not reach.
            done = is_open.pop(min(int(draw.expovariate(0.1)), len(is_open) - 1))
            tracker.acked(0, done)
            with pytest.raises(ArgumentValueError):
                tracker.acked(0, offset + 1)
            tracker.failed(0, done)
        assert tracker.committable(0) == min(is_open, default=offset + 1)
    assert tracker.stats().duplicates == tracker.stats().acked


def test_what_is_done_above_the_lowest_open_message_comes_in_runs():
    tracker = OffsetTracker()
    assert list(tracker.done_above(0)) == []
    tracker.assign(0, 5)
    assert list(tracker.done_above(0)) == []
    for offset in (5, 6, 7, 8, 10, 11):  # the log has no message 9
        tracker.emitted(0, offset)
    for offset in (6, 8, 11):
        tracker.acked(0, offset)
    assert list(tracker.done_above(0)) == [(6, 7), (8, 10), (11, 12)]
    tracker.acked(0, 5)
    assert list(tracker.done_above(0)) == [(8, 10), (11, 12)]  # 7 is the lowest one
    tracker.acked(0, 7)
    tracker.acked(0, 10)
    assert list(tracker.done_above(0)) == [] and tracker.committable(0) == 12


def test_an_offset_grows_its_run_whatever_was_asked_between():
    tracker = OffsetTracker()
    asks = [
        tracker.snapshot,
        lambda: tracker.oldest(0),
        lambda: tracker.acked(0, 10),
        lambda: tracker.acked(0, 10),
        lambda: tracker.read_up_to(0, 20),
        lambda: tracker.emitted(0, 11),
        lambda: tracker.committable(0),
    ]
    for offset, ask in zip([10, 11, 12, 13, 14, 20, 21], asks, strict=True):
        assert tracker.emitted(0, offset)
        ask()
    assert tracker.snapshot()["partitions"]["0"]["runs"] == [[10, 15], [20, 22]]
    for offset in (12, 11, 13, 20, 14, 21):
        tracker.acked(0, offset)
        assert tracker.committable(0) == min([*tracker.snapshot()["partitions"]["0"]["open"], 22])
    with pytest.raises(ArgumentValueError, match="offset 22: it was never emitted"):
        tracker.acked(0, 22)


def test_what_an_interrupted_apply_left_is_applied_by_the_next():
    outcomes = [Outcome.ACKED, Outcome.FAILED, Outcome.ACKED, Outcome.ACKED, Outcome.TIMED_OUT, Outcome.ACKED]
    places = [(partition, offset) for offset in (5, 6, 8) for partition in (0, 1)]
    completions = completions_of(*[(*place, outcome) for place, outcome in zip(places, outcomes, strict=True)])

    def interrupted_at(line):
        """Return the offsets to commit after an apply that the line of this number interrupts, and whether it did."""
        tracker, passed = OffsetTracker(), itertools.count(1)
        for place in places:
            tracker.emitted(*place)

        def trace(frame, event, _):
            if frame.f_code.co_filename != offsets.__file__:
                return None
            if event == "line" and next(passed) == line:
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            tracker.apply(completions)
        except KeyboardInterrupt:
            is_interrupted = True
        else:
            is_interrupted = False
        finally:
            sys.settrace(before)
        tracker.apply(completions)
        stats = tracker.stats()
        assert stats.emitted == stats.acked + stats.dead_lettered + stats.revoked + len(tracker)
        assert (stats.emitted, stats.acked, len(tracker)) == (6, 4, 2)
        return tracker.committable(), is_interrupted

    expected, _ = interrupted_at(0)
    line = 1
    while (found := interrupted_at(line))[1]:
        assert found[0] == expected
        line += 1
    assert line > 40


@pytest.mark.parametrize("runs", [[(0, 3)], [(5, 9), (9, 12)], [(5, 9), (11, 12), (12, 20)], [(5, 9), (7, 9)]])
def test_a_run_of_offsets_is_emitted_as_each_of_them_is(runs):
    at_once, one_by_one = OffsetTracker(), OffsetTracker()
    for first, end in runs:
        at_once.emitted_run(0, first, end)
        for offset in range(first, end):
            one_by_one.emitted(0, offset)
        assert at_once.snapshot() == one_by_one.snapshot() and at_once.committable() == one_by_one.committable()
    at_once.acked(0, runs[0][0])
    assert at_once.committable() == {0: runs[0][0] + 1}


def test_a_run_of_offsets_that_does_not_ascend_is_refused():
    tracker = OffsetTracker()
    tracker.emitted_run(0, 5, 9)
    with pytest.raises(ArgumentValueError, match="offset 3: "):
        tracker.emitted_run(0, 3, 5)
