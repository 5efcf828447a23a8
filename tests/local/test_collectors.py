"""Collectors: what emit, ack and fail refuse, their errors, and the messages that they send to the ackers."""

import itertools
import threading

import numpy as np
import pytest

from acker import Acker, Kind
from acker._engine.ids import IdGenerator
from acker._engine.protocol import INT64_MAX, INT64_MIN, acker_of
from acker._flow import AckBatch, AckSender, AllGrouping, Outlet, Route, columns_of
from acker.errors import ArgumentTypeError, TopologyError, TupleStateError
from acker.local.clock import SystemClock
from acker.local.collectors import ExecutorParts, LocalBoltCollector, LocalSpoutCollector
from acker.local.queues import Outbox, Queue
from acker.testing import CapturingBolt, FeederSpout, Scheduler, complete_topology
from acker.topology import Bolt, Grouping, ReasonKind, Topology
from acker.topology.tuples import TupleSource

IDS = [0, 1, -1, 5, INT64_MIN, INT64_MAX]


class Setting:
    """A collector by itself: two streams, one consumer task, as many ackers as wanted."""

    def __init__(self, kind, ackers=1, **options):
        self.batches = [Queue(100, threading.Event()) for _ in range(ackers)]
        self.queue = Queue(100, threading.Event())
        outlet = Outlet(self.queue, 0, 9)
        routes = {
            None: Route(TupleSource("one", "default", 4, ["word"]), AllGrouping([outlet]), False, {}),
            "direct": Route(TupleSource("one", "direct", 4, ["word"]), AllGrouping([]), True, {9: outlet}),
            "unread": Route(TupleSource("one", "unread", 4, ["a", "b"]), AllGrouping([]), False, {}),
        }
        routes["default"] = routes[None]
        self.outbox = Outbox(threading.Event(), 100)
        self.outbox.enter()
        parts = ExecutorParts(SystemClock(), self.outbox, AckSender(self.batches))
        self.collector = kind("one", 4, routes, [outlet], IdGenerator(1), parts, **options)

    def emitted(self):
        self.outbox.flush()
        chunks = iter(self.queue.take, None)
        return [tup for _, tuples in chunks for tup in tuples]

    def sent(self):
        """Return the messages to all ackers, as rows of columns."""
        self.collector.ack_sender.send()
        batches = [batch for queue in self.batches for batch in iter(queue.take, None)]
        return list(zip(*(column.tolist() for column in columns_of(batches)), strict=True))


def bolt(ackers=1, auto_anchor=True):
    return Setting(LocalBoltCollector, ackers, auto_anchor=auto_anchor, sample_every=20, now_ns=SystemClock.now_ns)


def spout(ackers=1):
    return Setting(LocalSpoutCollector, ackers, fails_max=None, now_ns=SystemClock.now_ns)


def received(setting, ids):
    """Return a tuple that the task of a setting processes."""
    source = TupleSource("two", "default", 1, ["word"])
    tup = source.tuple_type(source.make_values(["x"]), source, ids)
    tup._owner = setting.collector
    return tup


@pytest.mark.parametrize("make", [bolt, spout])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((["a"], "other"), "one: emits to stream 'other', which it does not declare; its streams are"),
        ((["a", "b"],), "one: emits to stream 'default' 2 values; expected 1: word"),
        (("a",), "one: emits to stream 'default' 'a'; expected a list or tuple of values"),
        ((5,), "one: emits to stream 'default' 5; expected a list or tuple of values"),
        ((["a"], "direct"), "one: emits to stream 'direct', which is direct, without direct_task"),
    ],
)
def test_what_cannot_be_emitted_is_refused_with_the_reason(make, arguments, text):
    setting = make()
    named = dict(zip(("tup", "stream"), arguments, strict=False))
    with pytest.raises(TopologyError) as refusal:
        setting.collector.emit(**named)
    assert str(refusal.value).startswith(text)
    assert setting.emitted() == []


@pytest.mark.parametrize("make", [bolt, spout])
def test_a_direct_emit_needs_a_direct_stream_and_a_task_that_reads_it(make):
    setting = make()
    assert setting.collector.emit(["a"], stream="direct", direct_task=9, need_task_ids=True) == [9]
    assert [tup.word for tup in setting.emitted()] == ["a"]
    with pytest.raises(TopologyError, match=r"for task 8, which does not read it; the tasks that do are \[9\]"):
        setting.collector.emit(["a"], stream="direct", direct_task=8)
    with pytest.raises(TopologyError, match="declare it with Stream"):
        setting.collector.emit(["a"], direct_task=9)


def test_a_tuple_id_has_to_be_hashable():
    setting = spout()
    with pytest.raises(ArgumentTypeError, match=r"one: tup_id: expected something hashable, got \[1\]"):
        setting.collector.emit(["a"], tup_id=[1])
    assert setting.emitted() == [] and setting.sent() == [] and not setting.collector.pending


def test_a_known_tuple_is_left_out_and_the_spout_is_called_again_at_once():
    setting, left = spout(), [1, 2, 3]
    collector = setting.collector
    collector.is_known = lambda _, tup_id: tup_id in {1, 2}

    class Numbers:
        _finished = False

        def next_tuple(self):
            if left:
                collector.emit([left[0]], left.pop(0))

    assert collector.call_next_tuple(Numbers(), None, 100, 100) == 3
    assert [tup.word for tup in setting.emitted()] == [3]
    assert collector.emit(["x"], 1, None, None, True) == [] and collector.emit(["x"], 4, None, None, True) == [9]
    collector.emit_again(["again"], 2)
    assert [tup.word for tup in setting.emitted()] == ["x", "again"]


def test_an_input_is_settled_once_by_its_own_task():
    setting, other = bolt(), bolt()
    tup = received(setting, {1: 2})
    with pytest.raises(TupleStateError, match="cannot be acked here: it is not a tuple of this task"):
        other.collector.ack(tup)
    with pytest.raises(ArgumentTypeError, match="'1:2' cannot be acked: expected the tuple itself, got str"):
        setting.collector.ack(tup.id)
    setting.collector.ack(tup)
    for name in ("ack", "fail", "reset_timeout"):
        with pytest.raises(TupleStateError, match="it was acked or failed before"):
            getattr(setting.collector, name)(tup)
    with pytest.raises(TupleStateError, match="cannot be anchored to: it was acked or failed before"):
        setting.collector.emit(["a"], anchors=[tup])
    assert setting.emitted() == []
    assert [row[:3] for row in setting.sent()] == [(Kind.OK, 1, 2)]
    assert (setting.collector.acked, setting.collector.failed) == (1, 0)


@pytest.mark.parametrize("roots", [[7], [7, 8], IDS])
def test_one_message_a_tree_with_its_own_id_and_what_was_emitted_under_it(roots):
    setting = bolt()
    tup = received(setting, {root: 100 + place for place, root in enumerate(roots)})
    setting.collector.inputs = (tup,)
    for _ in range(3):
        setting.collector.emit(["a"])
    emitted = setting.emitted()
    under = dict.fromkeys(roots, 0)
    for each in emitted:
        assert sorted(each._ids) == sorted(roots)
        for root, tuple_id in each._ids.items():
            under[root] ^= tuple_id
    setting.collector.ack(tup)
    expected = [(Kind.OK, root, (100 + place) ^ under[root], 0, 0) for place, root in enumerate(roots)]
    assert sorted(setting.sent()) == sorted(expected)


def test_a_tuple_of_two_anchors_joins_their_trees_and_each_is_finished_by_all_acks():
    setting, acker = bolt(), Acker()
    anchors = [received(setting, ids) for ids in ({1: 11}, {1: 12, 2: 22}, {3: 33}, None)]
    acker.ingest([Kind.TRACK] * 3, [1, 2, 3], [11 ^ 12, 22, 33], [0, 0, 0], [1, 2, 3])
    setting.collector.emit(["a"], anchors=anchors)
    (tup,) = setting.emitted()
    assert sorted(tup._ids) == [1, 2, 3]
    tup._owner = setting.collector
    done = []
    for each in (*anchors, tup):
        setting.collector.ack(each)
        rows = setting.sent()
        if rows:
            kind, root, value, *_ = zip(*rows, strict=True)
            done += acker.ingest(kind, root, value).message_id.tolist()
    assert sorted(done) == [1, 2, 3] and len(acker) == 0


def test_without_auto_anchor_and_with_no_anchors_nothing_is_joined():
    setting = bolt(auto_anchor=False)
    tup = received(setting, {1: 2})
    setting.collector.inputs = (tup,)
    setting.collector.emit(["a"])
    other = bolt()
    other.collector.inputs = (received(other, {1: 2}),)
    other.collector.emit(["a"], anchors=[])
    assert [each._ids for each in setting.emitted() + other.emitted()] == [None, None]
    assert tup._ack_val == 0


@pytest.mark.parametrize("ackers", [1, 2, 3, 7])
def test_each_message_goes_to_the_acker_of_its_tree(ackers):
    setting = bolt(ackers)
    for root in IDS:
        setting.collector.ack_sender.track(root, 1, 4, 6)
        setting.collector.ack(received(setting, {root: 3}))
        setting.collector.fail(received(setting, {root: 3}), "no")
        setting.collector.reset_timeout(received(setting, {root: 3}))
    setting.collector.ack_sender.send()
    seen = 0
    for place, queue in enumerate(setting.batches):
        for batch in iter(queue.take, None):
            kind, root, _, task, message = columns_of([batch])
            assert {acker_of(int(each), ackers) for each in root} == {place}
            assert sorted(set(kind.tolist())) == [Kind.TRACK, Kind.OK, Kind.FAIL, Kind.RESET_TIMEOUT]
            assert task[kind == Kind.TRACK].tolist() == [4] * (len(root) // 4)
            assert message[kind == Kind.TRACK].tolist() == [6] * (len(root) // 4)
            assert {reason.exception for _, reason in batch.fails()} == {"no"}
            seen += len(root)
    assert seen == 4 * len(IDS)


def test_no_letters_are_no_rows():
    assert [len(column) for column in columns_of([AckBatch()])] == [0] * 5
    assert [column.dtype for column in columns_of([])] == [np.int8, np.int64, np.int64, np.int32, np.int64]


def test_why_a_tuple_failed_is_told_with_its_attempt():
    feeder = FeederSpout.with_outputs("number")

    class Fails(Bolt):
        def process(self, tup):
            if tup.number == 1:
                raise KeyError("no such user")
            self.fail(tup, "too large" if tup.number == 2 else None)

    class Failing(Topology):
        source = feeder.spec()
        fails = Fails.spec(inputs=[source])

    with Scheduler.of(Failing) as scheduler:
        for attempt, number in itertools.product((1, 2, 3), (1, 2, 3)):
            feeder.tracker.clear()
            feeder.feed([number], number)
            scheduler.settle()
            reason = feeder.tracker.reason_of(number)
            text = {1: "KeyError: 'no such user'", 2: "too large", 3: f"no reason was given to fail(), in {__file__}:"}
            assert (reason.kind, reason.component, reason.task) == (ReasonKind.FAILED, "fails", 2)
            assert reason.exception.rstrip("0123456789") == text[number] and reason.attempt == attempt


def test_a_custom_grouping_chooses_among_the_tasks():
    feeder, sink = FeederSpout.with_outputs("number"), CapturingBolt.fresh()

    def by_size(values, tasks):
        return [tasks[0]] if values[0] < 10 else tasks[1:] if values[0] < 100 else [99]

    class Custom(Topology):
        config = {"topology.no.restart": True}
        source = feeder.spec()
        last = sink.spec(inputs={source: Grouping.custom(by_size)}, par=3)

    with Scheduler.of(Custom) as scheduler:
        feeder.feed([5], "small")
        feeder.feed([50], "large")
        scheduler.settle()
        assert sorted(sink.tuples()) == [(5,), (50,), (50,)]
        assert sorted(feeder.tracker.acked) == ["large", "small"]
        feeder.feed([500], "huge")
        text = r"last: its custom grouping of source\['default'\] chose task 99; expected some of \[2, 3, 4\]"
        with pytest.raises(TopologyError, match=text):
            scheduler.settle()


def test_named_streams_and_named_values():
    setting = bolt()
    setting.collector.emit(("a",))
    setting.collector.emit(["a", "b"], stream="unread")
    (tup,) = setting.emitted()
    assert (tup.word, tup.values.word, tup.stream, tup.component) == ("a", "a", "default", "one")
    assert setting.collector.routes["unread"].emitted == 1
    with pytest.raises(AttributeError, match="readonly"):
        tup.word = "b"


@pytest.mark.parametrize("par", [1, 2])
@pytest.mark.parametrize("names", [["key"], ["other", "key"]])
def test_what_has_no_hash_is_refused_however_many_tasks_there_are(par, names):
    sink = CapturingBolt.fresh()

    class Grouped(Topology):
        source = FeederSpout.with_outputs("key", "other").spec()
        last = sink.spec(inputs={source: Grouping.fields(names)}, par=par)

    complete_topology(Grouped, {"source": [["a", 1], [None, 2.5], [(1, "b"), "c"]]})
    assert len(sink.tuples()) == 3
    with pytest.raises(TypeError, match="a value of type dict has no stable hash"):
        complete_topology(Grouped, {"source": [[{}, 1]]})


@pytest.mark.parametrize(("rows", "batches"), [(1, 10), (4, 3), (9, 2), (10, 1), (50, 1)])
def test_a_producer_flushes_by_the_rows_of_its_batches_and_not_by_their_number(rows, batches):
    outbox = Outbox(threading.Event(), 10)
    queue = Queue(100, threading.Event())
    outlet = Outlet(queue, 0, 9)
    for _ in range(2):  # what was sent does not count any more
        for _ in range(batches):
            assert not outbox.must_yield
            outbox.put_batches([(outlet, range(rows))])
        assert outbox.must_yield
        outbox.flush()
    assert queue.size == 2 * rows * batches
