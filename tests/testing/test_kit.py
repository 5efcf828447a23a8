"""The test kit: fed spouts, capturing bolts, single bolts, and whole topologies on given tuples."""

import asyncio

import pytest

from acker.errors import ArgumentValueError, TopologyError
from acker.testing import (
    AckFailTracker,
    Captured,
    CapturingBolt,
    Emitted,
    FeederSpout,
    FixedTuple,
    Scheduler,
    SchedulerError,
    complete_topology,
    make_tuple,
    run_bolt,
)
from acker.topology import BatchingBolt, Bolt, Reason, ReasonKind, Spout, Stream, Topology


def test_a_tracker_keeps_what_it_is_told():
    tracker, reason = AckFailTracker(), Reason(ReasonKind.FAILED, "bolt")
    tracker.ack(1)
    tracker.fail(2, reason)
    tracker.fail(3)
    tracker.ack(1)
    assert (tracker.acked, tracker.failed) == ([1, 1], [2, 3])
    assert tracker.is_acked(1) and not tracker.is_acked(2)
    assert tracker.is_failed(2) and not tracker.is_failed(1)
    assert (tracker.reason_of(2), tracker.reason_of(3), tracker.reason_of(1)) == (reason, None, None)
    tracker.clear()
    assert tracker.acked == tracker.failed == tracker.reasons == []


def test_each_feeder_has_its_own_feed_and_tracker():
    class Words(FeederSpout):
        outputs = ["word"]

    class OtherWords(Words):
        pass

    ready = Words.with_outputs("word", Stream(["side"], "side"))
    Words.feed(["a"])
    assert (Words.waiting_count(), OtherWords.waiting_count(), ready.waiting_count()) == (1, 0, 0)
    assert len({id(one.tracker) for one in (Words, OtherWords, ready)}) == 3


def test_a_feeder_that_has_ended_takes_no_more():
    feeder = FeederSpout.with_outputs("word")
    feeder.end()
    with pytest.raises(ArgumentValueError, match=r"feed\(\) after end\(\)"):
        feeder.feed(["a"])


MISFITS = {
    "too many": (["a", "b"], "stream 'default' takes 1 values, [word], got 2: ['a', 'b']"),
    "bare str": ("a", "stream 'default' takes 1 values, [word]; expected a list or tuple of them, got 'a'"),
    "no sequence": (7, "stream 'default' takes 1 values, [word]; expected a list or tuple of them, got 7"),
    "too few of a stream": (
        FixedTuple(["a"], "pairs"),
        "stream 'pairs' takes 2 values, [left, right], got 1: ['a']",
    ),
    "no such stream": (FixedTuple(["a"], "pears"), "there is no stream 'pears'; did you mean 'pairs'?"),
}


@pytest.mark.parametrize(("values", "text"), MISFITS.values(), ids=MISFITS)
def test_what_does_not_fit_the_fields_is_not_fed(values, text):
    class Words(FeederSpout):
        outputs = ["word", Stream(["left", "right"], "pairs")]

    class Fed(Topology):
        words = Words.spec()
        sink = CapturingBolt.fresh().spec(inputs=[words])

    with pytest.raises(ArgumentValueError) as caught:
        Words.feed(values, 1)
    assert (str(caught.value), Words.waiting_count()) == (f"Words.feed: {text}", 0)
    with pytest.raises(ArgumentValueError) as caught:
        complete_topology(Fed, {"words": [["a"], values]})
    assert str(caught.value) == f"feed: tuple 1 of spout 'words': {text}"


def test_the_kits_own_classes_say_how_to_make_one():
    with pytest.raises(TopologyError, match=r"FeederSpout\.with_outputs\('word'\)"):
        FeederSpout.spec()
    for call in (FeederSpout.end, FeederSpout.waiting_count, lambda: FeederSpout.feed(["a"])):
        with pytest.raises(ArgumentValueError, match=r"FeederSpout\.with_outputs\('word'\)"):
            call()
    with pytest.raises(TopologyError, match=r"CapturingBolt\.fresh\(\)"):
        CapturingBolt.spec(inputs=["words"])
    with pytest.raises(ArgumentValueError, match=r"CapturingBolt\.fresh\(\)"):
        CapturingBolt.tuples()


def test_tasks_share_a_feed_and_untracked_tuples_end_nowhere():
    feeder, sink = FeederSpout.with_outputs("word", Stream(["word"], "side")), CapturingBolt.fresh()

    class Shared(Topology):
        words = feeder.spec(par=3)
        last = sink.spec(inputs=[words, words["side"]])

    with Scheduler.of(Shared) as scheduler:
        feeder.feed(["a"], "tracked")
        feeder.feed(["b"])
        feeder.feed(FixedTuple(["c"], "side"), 3)
        scheduler.settle()
        assert sorted(sink.tuples()) == [("a",), ("b",), ("c",)]
        assert sink.tuples(stream="side") == [("c",)] and sink.tuples(component="last") == []
        last = scheduler.runtime.graph.nodes["last"].tasks[0]
        assert Captured("words", "side", last, ("c",)) in sink.captured
        assert sorted(map(str, feeder.tracker.acked)) == ["3", "tracked"]


class Half(Bolt):
    outputs = ["half"]

    def process(self, tup):
        if tup.num % 2:
            raise ValueError(f"{tup.num} is odd")
        self.emit([tup.num // 2])


class Numbers(Spout):
    outputs = ["num"]

    def initialize(self, conf, context):
        self.left = [2, 4]

    def next_tuple(self):
        if self.left:
            self.emit([self.left.pop()], tup_id=len(self.left))
        else:
            self.finish()


class Halves(Topology):
    numbers = Numbers.spec()
    half = Half.spec(inputs=[numbers], par=2)


class Quarter(Bolt):
    outputs = ["quarter"]

    def process(self, tup):
        self.emit([tup.half / 2])


@pytest.mark.parametrize("seed", range(5))
def test_complete_topology(seed):
    class Quarters(Halves):
        quarter = Quarter.spec(inputs=[Halves.half])

    done = complete_topology(Quarters, {"numbers": [[8], [3], [12]]}, seed=seed)
    assert done.tuples("numbers") == [(8,), (3,), (12,)]
    assert sorted(done.tuples("half")) == [(4,), (6,)]
    assert sorted(done.tuples("quarter")) == [(2,), (3,)]
    assert (sorted(done.trackers["numbers"].acked), done.trackers["numbers"].failed) == ([0, 2], [1])
    assert done.trackers["numbers"].reason_of(1).exception == "ValueError: 3 is odd"
    assert (done.acked, done.failed) == (2, 1)


def test_complete_topology_lets_other_spouts_run_as_they_are():
    class Plain(Topology):
        numbers = Numbers.spec()
        half = Half.spec(inputs=[numbers])

    done = complete_topology(Plain, {})
    assert sorted(done.tuples("half")) == [(1,), (2,)]
    assert (dict(done.trackers), done.report.outcome) == ({}, "drained")


def test_completed_knows_its_names():
    done = complete_topology(Halves, {"numbers": []})
    assert done.tuples("half") == []
    with pytest.raises(ArgumentValueError, match="there is no component 'halve'; did you mean 'half'"):
        done.tuples("halve")
    with pytest.raises(ArgumentValueError, match="component 'half' has no stream 'side'; there are 'default'"):
        done.tuples("half", "side")


class Fragile(Half):
    auto_fail = False


class Crashing(Topology):
    numbers = Numbers.spec()
    half = Fragile.spec(inputs=[numbers])


def test_complete_topology_ends_with_what_escapes():
    with pytest.raises(ValueError, match="3 is odd"):
        complete_topology(Crashing, {"numbers": [[2], [3]]})


def test_complete_topology_restarts_if_it_may():
    done = complete_topology(Crashing, {"numbers": [[3]]}, no_restart=False)
    assert (done.report.restarts, done.trackers["numbers"].reason_of(0).kind) == (1, ReasonKind.RESTART)


def test_complete_topology_takes_only_spouts():
    class Plain(Topology):
        numbers = Numbers.spec()
        half = Half.spec(inputs=[numbers])

    for name in ("half", "nobody"):
        with pytest.raises(ArgumentValueError, match=f"'{name}' is no spout of Plain; its spouts are 'numbers'"):
            complete_topology(Plain, {name: []})


def test_complete_topology_cannot_wait_for_a_spout_without_end():
    class Endless(Topology):
        more = FeederSpout.with_outputs("num").spec()
        numbers = Numbers.spec()
        half = Half.spec(inputs=[numbers])

    with pytest.raises(SchedulerError, match="seed 5"):
        complete_topology(Endless, {"numbers": [[2]]}, seed=5, steps_max=500)


# --- one bolt ---------------------------------------------------------------------------------------------------------


def test_a_tuple_is_made_of_values_and_fields():
    tup = make_tuple(["storm", 1], ["word", "count"], stream="s", component="c", task=7)
    assert (tup.word, tup["count"], tup.values, tup.fields) == ("storm", 1, ("storm", 1), ("word", "count"))
    assert (tup.component, tup.stream, tup.task, tup.id != "") == ("c", "s", 7, True)
    assert make_tuple({"word": "a"}).word == "a"
    assert make_tuple([1, 2]).value1 == 2 and make_tuple([]).values == ()
    assert make_tuple([1]).id != make_tuple([1]).id


@pytest.mark.parametrize(
    ("values", "fields", "text"),
    [
        ({"a": 1}, ["a"], "a dict names its fields; leave out fields="),
        ({1}, None, r"expected a list or tuple of values, got \{1\}"),
        ("word", ["word"], "expected a list or tuple of values, got 'word'"),
        ([1, 2], ["a"], "make_tuple: 2 values for 1 fields: a"),
        ([1], [""], "a field is named by a str that is not empty"),
    ],
)
def test_a_tuple_that_cannot_be_is_not_made(values, fields, text):
    with pytest.raises((TypeError, ValueError), match=text):
        make_tuple(values, fields)


class Splits(Bolt):
    """Emits words, joins what it holds, fails what is empty, keeps what it is told to keep."""

    outputs = ["word", Stream(["length"], name="lengths")]
    auto_ack = False

    def __init__(self, keep=""):
        self.keep = keep
        self.ended = []

    def process(self, tup):
        if not tup.line:
            self.fail(tup, "empty")
        elif tup.line != self.keep:
            for word in tup.line.split():
                self.emit([word])
            self.emit([len(tup.line)], stream="lengths", anchors=[])
            self.ack(tup)

    def process_tick(self, tup):
        self.emit(["tick"])
        self.ack(tup)  # as pystorm's bolts do

    def close(self):
        self.ended.append("closed")


@pytest.mark.parametrize("bolt", [Splits, Splits("kept")], ids=["class", "instance"])
def test_a_bolt_by_itself(bolt):
    lines = [make_tuple([line], ["line"]) for line in ("a b", "", "kept")]
    done = run_bolt(bolt, lines, ticks=2)
    kept = [] if bolt is Splits else [lines[2]]
    # One that holds a tuple gets a tick more as it stops.
    assert done.tuples() == [("a",), ("b",), *[("kept",)] * (not kept), *[("tick",)] * (2 + len(kept))]
    assert done.tuples("lengths") == [(3,), *[(4,)] * (not kept)]
    assert (done.acked, done.failed, done.held) == (
        [each for each in (lines[0], lines[2]) if each not in kept],
        [lines[1]],
        kept,
    )
    assert [str(reason) for reason in done.reasons] == ["failed in tested[2]: empty (attempt 1)"]
    assert done.emitted[:3] == [
        Emitted(("a",), "default", (lines[0],)),
        Emitted(("b",), "default", (lines[0],)),
        Emitted((3,), "lengths"),
    ]
    assert done.bolt.ended == ["closed"] and (bolt is Splits or done.bolt is bolt)


def test_a_bolt_by_itself_hears_of_several_streams_in_the_order_given():
    seen = []

    class Joins(Bolt):
        outputs = ["both"]

        def process(self, tup):
            seen.append((tup.component, tup.stream, tup[0]))

    left = [make_tuple([number], component="left", stream="s") for number in range(5)]
    right = [make_tuple([number], component="right") for number in range(5)]
    mixed = [each for pair in zip(left, right, strict=True) for each in pair]
    assert run_bolt(Joins, mixed).acked == mixed
    assert seen == [(each.component, each.stream, each[0]) for each in mixed]


def test_a_batching_bolt_by_itself_is_anchored_to_its_batch():
    class Sums(BatchingBolt):
        outputs = ["sum"]

        def process_batch(self, key, tups):
            self.emit([sum(tup.n for tup in tups)])

    tuples = [make_tuple([number], ["n"]) for number in range(4)]
    for ticks in (0, 1, 3):
        again = [make_tuple([tup.n], ["n"]) for tup in tuples]
        done = run_bolt(Sums, again, ticks=ticks)
        assert done.emitted == [Emitted((6,), "default", tuple(again))] and done.acked == again


def test_a_coroutine_bolt_by_itself():
    class Later(Bolt):
        outputs = ["n"]

        async def process(self, tup):
            await asyncio.sleep(5)
            self.emit([tup.n + 1])

    done = run_bolt(Later, [make_tuple([1], ["n"]), make_tuple([2], ["n"])])
    assert (sorted(done.tuples()), len(done.acked)) == ([(2,), (3,)], 2)


def test_what_a_bolt_raises_fails_its_tuple_or_the_test():
    class Raises(Bolt):
        def process(self, tup):
            raise ValueError(f"odd: {tup[0]}")

    done = run_bolt(Raises, [make_tuple([1])])
    assert [reason.exception for reason in done.reasons] == ["ValueError: odd: 1"]
    with pytest.raises(ValueError, match="odd: 1"):
        run_bolt(type("Strict", (Raises,), {"auto_fail": False}), [make_tuple([1])])
    with pytest.raises(OSError, match="no store"):
        run_bolt(type("Opens", (Raises,), {"initialize": lambda *_: (_ for _ in ()).throw(OSError("no store"))}), [])


@pytest.mark.parametrize(
    ("bolt", "tuples", "text"),
    [
        (FeederSpout, [], "run_bolt: expected a Bolt, its class or an instance, got <class"),
        (5, [], "run_bolt: expected a Bolt, its class or an instance, got 5"),
        (Splits, [["a b"]], r"run_bolt: tuple 0: expected what make_tuple returns, got \['a b'\]; write make_tuple"),
        (Splits, [make_tuple([1], ["a"]), make_tuple([1], ["b"])], "tuples of one stream have different fields"),
        (type("None_", (Bolt,), {}), [], r"None_ does not define process\(\)"),
    ],
)
def test_what_cannot_be_run_by_itself_is_refused(bolt, tuples, text):
    with pytest.raises((TypeError, ValueError), match=text):
        run_bolt(bolt, tuples)


def test_a_tuple_is_for_one_run():
    tup = make_tuple(["a"], ["line"])
    with pytest.raises(ValueError, match="tuple 1 was processed before; make another one"):
        run_bolt(Splits, [tup, tup])
    run_bolt(Splits, [tup])
    with pytest.raises(ValueError, match="tuple 0 was processed before"):
        run_bolt(Splits, [tup])


def test_options_reach_a_bolt_by_itself():
    class Reads(Bolt):
        outputs = ["size"]

        def process(self, tup):
            self.emit([self.storm_conf["user.size"]])

    done = run_bolt(Reads, [make_tuple([1])], {"user.size": 5})
    assert done.tuples() == [(5,)]
    with pytest.raises(ValueError, match="the bolt has no stream 'deflt'; did you mean 'default'"):
        done.tuples("deflt")


def test_a_feeder_keeps_what_it_was_fed():
    feeder, sink = FeederSpout.with_outputs("n"), CapturingBolt.fresh()
    row = [1]
    feeder.feed(row)
    row[0] = 2
    with Scheduler.of(
        type(Topology)("T", (Topology,), {"it": feeder.spec(), "last": sink.spec(inputs=["it"])})
    ) as scheduler:
        scheduler.settle()
    assert sink.tuples() == [(1,)]
