"""The tuples of the spouts on the driver, from one run to the next."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from acker.local.executors.spout import SpoutTask
from acker.observe.reasons import Reason
from acker.spark.topologies.journal import BatchCommit
from acker.spark.topologies.outcome_feed import OutcomeFeed
from acker.spark.topologies.spout_tuples import SpoutTuples
from acker.topology import ReasonKind, ReliableSpout

NOW = 1_800_000_000.0
HOUR = 3600


class Feed:
    """The feed of a spout that emits nothing."""

    def expect(self, tup_id, values, *, is_awaited):
        self.expected = tup_id

    def failures(self):
        return []


def tuples_of(spout):
    """Return the tuples of a spout with task 1, whose runtime's clock is at one second."""
    collector = SimpleNamespace(task=1, component="spout", now_ms=lambda: 1_000, pending={}, resumed={})
    collector.resume_attempts = collector.resumed.__setitem__
    task = SpoutTask(spout, lambda _: None, collector, None)
    executors = SimpleNamespace(spout_tasks=lambda: [task], feeds={})
    feed = executors.feeds[1] = Feed()
    executors.feed = lambda number: feed
    return SpoutTuples(executors)


@pytest.mark.parametrize(("passed", "wait"), [(-HOUR, 20), (0, 20), (5, 15), (20, 0), (HOUR, 0)])
def test_a_replay_waits_no_longer_than_it_had_to_when_the_clock_was_set_back(monkeypatch, passed, wait):
    monkeypatch.setattr("time.time", lambda: NOW)
    before = ReliableSpout()
    before._replays.record("a", ("x",), None, None)
    before._replays.schedule("a", 21_000, counted=True)
    kept = tuples_of(before).after_batch([(1, "a")], (), ())
    assert [(entry.due, entry.wait_secs) for entry in kept] == [(NOW + 20, 20)]

    monkeypatch.setattr("time.time", lambda: NOW + passed)
    after = ReliableSpout()
    tuples_of(after).restore(BatchCommit(entries=kept), (), ())
    assert after._replays.entries["a"].due_ms == 1_000 + 1_000 * wait


def test_what_was_open_is_emitted_at_once():
    before, after = ReliableSpout(), ReliableSpout()
    before._replays.record("a", ("x",), None, None)
    kept = tuples_of(before).after_batch([(1, "a")], (), ())
    tuples_of(after).restore(BatchCommit(entries=kept), (), ())
    assert after._replays.entries["a"].due_ms == 1_000


class Rows(ReliableSpout):
    def frame(self, spark, conf):
        raise NotImplementedError


@pytest.mark.parametrize("kind", [ReliableSpout, Rows])
def test_a_feed_replaces_no_method_of_the_spout(kind):
    spout, requests = kind(), []
    before = dict(vars(spout))
    task = SpoutTask(spout, lambda _: None, SimpleNamespace(task=1, is_known=None), None)
    feed = OutcomeFeed(SimpleNamespace(request=requests.append), task)
    feed.expect("a", ("x",), is_awaited=True)
    assert vars(spout) == before
    assert task.collector.is_known(["x"], "a") and not task.collector.is_known(["x"], "b")
    feed.end_rows()
    assert task.has_rows is bool(requests) is (kind is Rows)
    for request in requests:
        request()
    assert spout.finished is (kind is Rows)


def test_rows_of_a_batch_that_wait_are_kept_one_by_one():
    before, after = ReliableSpout(), ReliableSpout()
    columns = pa.RecordBatch.from_pydict({"text": ["x", "y", "z"]})
    batch = before._record_batch(columns, pa.array(["a", "b", "c"]), "side", None)
    before._replays.schedule_rows(batch, np.array([1]), 21_000, counted=True)
    before._replays.forget_rows(batch, np.array([2]))
    kept = tuples_of(before).after_batch([(1, "a"), (1, "b"), (1, "c")], (), ())
    assert {(entry.tup_id, entry.values, entry.stream, entry.due is None) for entry in kept} == {
        ("a", ("x",), "side", True),
        ("b", ("y",), "side", False),
    }
    tuples_of(after).restore(BatchCommit(entries=kept), (), ())
    assert {tup_id: entry.values for tup_id, entry in after._replays.entries.items()} == {"a": ("x",), "b": ("y",)}
    assert before._replays.holds("a") and before._replays.holds("b") and not before._replays.holds("c")


@pytest.mark.parametrize("in_batch", [False, True])
def test_a_commit_keeps_what_the_spout_is_still_writing_into_its_dead_letters(in_batch):
    commits = []

    class Shop(ReliableSpout):
        attempts_max = 1

        def dead_letter(self, tup_id, values, reason):
            commits.append(tuples.after_batch([(1, "a")], (), ()))

    shop = Shop()
    shop._collector = SimpleNamespace(count=lambda _: None, now_ms=lambda: 1_000)
    tuples = tuples_of(shop)
    failed = Reason(ReasonKind.FAILED)
    if in_batch:
        batch = shop._record_batch(pa.RecordBatch.from_pydict({"text": ["x"]}), pa.array(["a"]), None, None)
        shop._end_rows(batch, np.array([0]), [failed])
    else:
        shop._replays.record("a", ("x",), None, None)
        shop.fail("a", failed)
    commits.append(tuples.after_batch([(1, "a")], (), ()))
    assert [[(entry.tup_id, entry.values) for entry in kept] for kept in commits] == [[("a", ("x",))], []]


@pytest.mark.parametrize("in_batch", [False, True])
def test_a_commit_keeps_a_tuple_whose_dead_letter_raised(in_batch):
    class Shop(ReliableSpout):
        attempts_max = 1

        def dead_letter(self, tup_id, values, reason):
            raise OSError("disk full")

    shop = Shop()
    shop._collector = SimpleNamespace(count=lambda _: None, now_ms=lambda: 1_000)
    tuples = tuples_of(shop)
    failed = Reason(ReasonKind.FAILED)
    if in_batch:
        batch = shop._record_batch(pa.RecordBatch.from_pydict({"text": ["x"]}), pa.array(["a"]), None, None)
        with pytest.raises(OSError, match="disk full"):
            shop._end_rows(batch, np.array([0]), [failed])
    else:
        shop._replays.record("a", ("x",), None, None)
        with pytest.raises(OSError, match="disk full"):
            shop.fail("a", failed)
    kept = tuples.after_batch([(1, "a")], (), ())
    assert [(entry.tup_id, entry.values, entry.attempt) for entry in kept] == [("a", ("x",), 1)]
