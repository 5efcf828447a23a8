"""TupleTree: the messages that spouts and bolts send, in every protocol, and that the acker ends their trees."""

import copy
import gc
import itertools
import os
import pickle
import random
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import acker
from acker import Kind, Message, Outcome, PendingTree, TupleTree, _core
from acker._engine.protocol import INT64_MAX, INT64_MIN, PROTOCOLS
from acker.errors import AckerError, ArgumentTypeError, ArgumentValueError, TupleStateError
from tests.engine.tuple_tree_model import ModelTree
from tests.native_testing import fail_allocations_after

every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)
any_order = pytest.mark.parametrize("protocol", ["storm", "storm-0.9"])


def make(protocol="storm", first_id=100):
    """Return a tree that draws ids 100, 200, ... and the list of what it sends."""
    sent = []
    ids = itertools.count(first_id, 100)
    return TupleTree(sent.append, protocol=protocol, next_id=ids.__next__), sent


def ingest(a, messages):
    return a.ingest(*zip(*messages, strict=True)).rows()


# --- the messages -----------------------------------------------------------------------------------------------------


@any_order
def test_storm_sends_one_track_with_the_xor_of_the_first_edges(protocol):
    tree, sent = make(protocol)
    with tree.track(3, 42) as mk_ids:
        assert mk_ids() == ["100:200"]
        assert mk_ids() == ["100:300"]
        assert sent == []
    assert sent == [Message(Kind.TRACK, 100, 200 ^ 300, 3, 42)]


def test_fsshelter_sends_track_and_then_an_anchor_for_each_edge():
    tree, sent = make("fsshelter")
    with tree.track(3, 42) as mk_ids:
        assert sent == [Message(Kind.TRACK, 100, 0, 3, 42)]
        assert mk_ids() == ["100:200"]
        assert mk_ids() == ["100:300"]
    assert sent[1:] == [Message(Kind.ANCHOR, 100, 200), Message(Kind.ANCHOR, 100, 300)]


@any_order
def test_storm_sends_one_ok_of_the_own_id_and_the_emitted_ones(protocol):
    tree, sent = make(protocol)
    with tree.anchor(["7:5"]) as mk_ids:
        assert mk_ids() == ["7:100"]
        assert mk_ids() == ["7:200"]
        assert (sent, len(tree)) == ([], 1)
    assert sent == [Message(Kind.OK, 7, 5 ^ 100 ^ 200)]
    assert len(tree) == 0


def test_fsshelter_sends_the_bolts_messages_one_by_one():
    tree, sent = make("fsshelter")
    mk_ids = tree.anchor(["7:5"])
    assert mk_ids() == ["7:100"]
    tree.mk_ack(Kind.OK)("7:5")
    assert sent == [Message(Kind.ANCHOR, 7, 100), Message(Kind.OK, 7, 5)]


@every_protocol
def test_ok_without_an_emission_is_the_own_id(protocol):
    tree, sent = make(protocol)
    tree.mk_ack()("7:5")
    assert sent == [Message(Kind.OK, 7, 5)]


@every_protocol
def test_fail_says_nothing_of_what_was_emitted(protocol):
    tree, sent = make(protocol)
    tree.anchor(["7:5"])()
    sent.clear()
    tree.mk_ack(Kind.FAIL)("7:5")
    assert sent == [Message(Kind.FAIL, 7, 5)]
    assert len(tree) == 0


@every_protocol
def test_a_bolt_that_raises_fails_its_input(protocol):
    tree, sent = make(protocol)

    def process():
        with tree.anchor(["7:5", "8:6"]):
            raise KeyError("word")

    with pytest.raises(KeyError, match="word"):
        process()
    assert sent == [Message(Kind.FAIL, 7, 5), Message(Kind.FAIL, 8, 6)]


@every_protocol
def test_an_input_acknowledged_inside_the_block_is_not_acknowledged_again(protocol):
    tree, sent = make(protocol)
    with tree.anchor(["7:5", "8:6"]):
        tree.mk_ack(Kind.FAIL)("7:5")
    assert sent == [Message(Kind.FAIL, 7, 5), Message(Kind.OK, 8, 6)]


@every_protocol
def test_reset_timeout_is_sent_once_for_each_tree(protocol):
    tree, sent = make(protocol)
    tree.reset_timeout(["7:5", "8:6", "7:9", "5"])
    assert sent == [Message(Kind.RESET_TIMEOUT, 7, 0), Message(Kind.RESET_TIMEOUT, 8, 0)]


# --- unanchored -------------------------------------------------------------------------------------------------------


@every_protocol
def test_an_untracked_message_sends_nothing(protocol):
    tree, sent = make(protocol)
    with tree.track(3, None) as mk_ids:
        assert mk_ids() == ["200"]
        assert mk_ids() == ["300"]
    with tree.anchor(["200", "-7"]) as mk_ids:
        assert mk_ids() == ["400"]
    tree.mk_ack()("200")
    tree.mk_ack(Kind.FAIL)("300")
    assert (sent, len(tree)) == ([], 0)


@every_protocol
def test_an_untracked_message_may_raise(protocol):
    tree, sent = make(protocol)

    def emit():
        with tree.track(3, None):
            raise OSError("closed")

    with pytest.raises(OSError, match="closed"):
        emit()
    assert sent == []


# --- several trees ----------------------------------------------------------------------------------------------------


@any_order
def test_storm_anchors_one_output_to_several_trees(protocol):
    tree, sent = make(protocol)
    with tree.anchor(["7:5", "8:6"]) as mk_ids:
        assert mk_ids() == ["7:100", "8:100"]
    assert sent == [Message(Kind.OK, 7, 5 ^ 100), Message(Kind.OK, 8, 6 ^ 100)]


@every_protocol
def test_two_inputs_of_one_tree_answer_for_an_output_once(protocol):
    # FsShelter would send the ANCHOR twice here: 100 ^ 100 = 0, and the tree could never finish.
    tree, sent = make(protocol)
    with tree.anchor(["7:5", "7:6"]) as mk_ids:
        assert mk_ids() == ["7:100"]
    total = 0
    for message in sent:
        total ^= message.value
    assert total == 5 ^ 6 ^ 100
    assert {message.root_id for message in sent} == {7}


def test_anchors_may_be_prepared_again():
    tree, sent = make()
    tree.anchor(["7:5"])()
    tree.anchor(["7:5"])()
    tree.mk_ack()("7:5")
    assert sent == [Message(Kind.OK, 7, 5 ^ 100 ^ 200)]


def test_messages_go_to_the_acker_that_owns_the_root():
    boxes = [[], [], []]
    tree = TupleTree([box.append for box in boxes], next_id=itertools.count(1).__next__)
    ok = tree.mk_ack()
    for root in (INT64_MIN, -7, -1, 0, 5, 6, 7):
        ok(f"{root}:9")
    for owner, box in enumerate(boxes):
        assert box
        assert {acker.acker_of(message.root_id, 3) for message in box} == {owner}


# --- misuse -----------------------------------------------------------------------------------------------------------


@every_protocol
def test_emitting_after_the_tree_is_closed_raises(protocol):
    tree, sent = make(protocol)
    mk_ids = tree.track(3, 42)
    mk_ids()
    mk_ids.close()
    mk_ids.close()
    before = list(sent)
    with pytest.raises(AckerError, match="the tree was closed"):
        mk_ids()
    assert sent == before


@every_protocol
def test_emitting_after_the_anchor_was_acknowledged_raises(protocol):
    tree, sent = make(protocol)
    mk_ids = tree.anchor(["8:6", "7:5"])
    tree.mk_ack()("7:5")
    before = list(sent)
    with pytest.raises(AckerError, match="the input '7:5' was acknowledged"):
        mk_ids()
    assert sent == before


def test_a_tree_that_is_never_closed_warns():
    tree, sent = make()
    mk_ids = tree.track(3, 42)
    mk_ids()
    with pytest.warns(ResourceWarning, match="message id 42 was never closed"):
        del mk_ids
    assert sent == []


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: TupleTree(print, protocol="heron"), ArgumentValueError, "protocol: expected one of"),
        (lambda: TupleTree([]), ArgumentTypeError, "ackers: expected a callable"),
        (lambda: TupleTree(None), ArgumentTypeError, "ackers: expected a callable"),
        (lambda: TupleTree(1), ArgumentTypeError, "ackers: expected a callable"),
        (lambda: TupleTree([print, 5]), ArgumentTypeError, "ackers: expected a callable"),
        (lambda: make()[0].track(-1, 42), ArgumentValueError, "task_id: expected an integer from 0"),
        (lambda: make()[0].track(2**31, 42), ArgumentValueError, "task_id: expected an integer from 0"),
        (lambda: make()[0].track(0, 2**63), ArgumentValueError, "message_id: expected an integer"),
        (lambda: make()[0].track(0, "42"), ArgumentTypeError, "message_id: expected an integer"),
        (lambda: make()[0].mk_ack(Kind.TRACK), ArgumentValueError, "kind: expected Kind.OK or Kind.FAIL"),
        (lambda: make()[0].anchor("7:5"), ArgumentTypeError, "tuple_ids: expected a sequence"),
    ],
)
def test_bad_arguments(call, error, text):
    with pytest.raises(error, match=text):
        call()


# --- with the acker ---------------------------------------------------------------------------------------------------


@every_protocol
def test_a_spout_that_emits_to_nobody_is_acked(acker_type, protocol):
    tree, sent = make(protocol)
    with tree.track(3, 42):
        pass
    assert ingest(acker_type(protocol=protocol), sent) == [(100, 42, 3, Outcome.ACKED, 0)]


@every_protocol
@pytest.mark.parametrize("deliveries", [0, 1, 2])
def test_a_spout_that_raises_hears_that_its_tree_failed(acker_type, protocol, deliveries):
    tree, sent = make(protocol)
    queue = []

    def emit():
        with tree.track(3, 42) as mk_ids:
            queue.extend(mk_ids() for _ in range(deliveries))
            raise OSError("the wire is cut")

    with pytest.raises(OSError, match="the wire is cut"):
        emit()
    a = acker_type(protocol=protocol)
    if protocol != "fsshelter":  # The deliveries that got through may be acked before.
        for (tuple_id,) in queue:
            tree.mk_ack()(tuple_id)
    done = ingest(a, sent)
    assert done == [(100, 42, 3, Outcome.FAILED, 0)]


def flow(tree, rng, depth_max=4):
    """Run one spout message through random bolts with joins; return the encoded ids that nobody acknowledged."""
    ok = tree.mk_ack(Kind.OK)
    with tree.track(task_id=3, message_id=42) as mk_ids:
        queue = [(0, mk_ids()) for _ in range(rng.randrange(1, 4))]
    while queue:
        rng.shuffle(queue)
        depth, ids = queue.pop()
        inputs = [ids]
        if queue and rng.random() < 0.3:  # a join: two inputs, one output
            inputs.append(queue.pop()[1])
        mk_ids = tree.anchor([tuple_id for ids in inputs for tuple_id in ids])
        outputs = 0 if depth >= depth_max else rng.randrange(3)
        queue += [(depth + 1, mk_ids()) for _ in range(outputs)]
        for ids in inputs:
            for tuple_id in ids:
                ok(tuple_id)


@every_protocol
@pytest.mark.parametrize("seed", range(10))
def test_random_topologies_end_acked_at_the_last_message(acker_type, protocol, seed):
    rng = random.Random(seed)
    sent = []
    tree = TupleTree(sent.append, protocol=protocol, next_id=lambda: rng.getrandbits(63) + 1)
    flow(tree, rng)
    assert len(tree) == 0
    if protocol != "fsshelter":
        rng.shuffle(sent)
    a = acker_type(protocol=protocol)
    assert ingest(a, sent[:-1] or [Message(Kind.RESET_TIMEOUT, 1, 0)]) == []
    assert [row[1:] for row in ingest(a, sent[-1:])] == [(42, 3, Outcome.ACKED, 0)]
    assert len(a) == 0


@every_protocol
def test_a_lost_tuple_keeps_the_tree_open(acker_type, protocol):
    tree, sent = make(protocol)
    with tree.track(3, 42) as mk_ids:
        (first,) = mk_ids()
        mk_ids()  # delivered, and lost
    tree.mk_ack()(first)
    a = acker_type(protocol=protocol)
    assert ingest(a, sent) == []
    assert a.stats().open == 1


def test_ids_are_random_by_default():
    sent = []
    for _ in range(2):
        with TupleTree(sent.append).track(0, 1) as mk_ids:
            mk_ids()
    first, second = sent
    assert 0 not in (first.root_id, first.value)
    assert first.root_id != second.root_id
    assert first.value != second.value


# --- wrong calls ------------------------------------------------------------------------------------------------------


@every_protocol
@pytest.mark.parametrize("first", [Kind.OK, Kind.FAIL])
@pytest.mark.parametrize("second", [Kind.OK, Kind.FAIL])
@pytest.mark.parametrize("anchored", [False, True])
def test_an_input_is_acknowledged_once(protocol, first, second, anchored):
    tree, sent = make(protocol)
    if anchored:
        tree.anchor(["7:5"])
    tree.mk_ack(first)("7:5")
    with pytest.raises(TupleStateError, match="the input '7:5' was acknowledged already"):
        tree.mk_ack(second)("7:5")
    with pytest.raises(TupleStateError, match="the input '7:5' was acknowledged; nothing can be anchored"):
        tree.anchor(["8:6", "7:5"])
    assert (sent, len(tree)) == ([Message(first, 7, 5)], 0)


@every_protocol
def test_ok_and_fail_are_methods_too(protocol):
    tree, sent = make(protocol)
    tree.ok("7:5")
    tree.fail("8:6")
    assert sent == [Message(Kind.OK, 7, 5), Message(Kind.FAIL, 8, 6)]


def test_the_last_acknowledged_are_remembered_and_no_more():
    tree, sent = make()
    for tuple_id in range(1, 10_001):
        tree.ok(f"7:{tuple_id}")
    with pytest.raises(TupleStateError):
        tree.ok(f"7:{10_000 - 4095}")
    tree.ok("7:1")
    assert len(sent) == 10_001


@every_protocol
@pytest.mark.parametrize(
    "wrong", ["hello", "", "x:1", "1:", "1:2:3", "1:2 ", "9" * 30, f"1:{2**63}", "1:99999999999999999999"]
)
def test_text_that_is_no_encoded_id_is_refused(protocol, wrong):
    tree, sent = make(protocol)
    expected = "expected an encoded id as mk_ids"
    for call in (tree.ok, tree.fail, tree.mk_ack(), tree.mk_ack(Kind.FAIL)):
        with pytest.raises(ArgumentValueError, match=f"tuple_id: {expected}"):
            call(wrong)
    for call in (tree.anchor, tree.reset_timeout):
        with pytest.raises(ArgumentValueError, match=rf"tuple_ids\[1\]: {expected}"):
            call(["7:5", wrong])
    assert (sent, len(tree)) == ([], 0)


@every_protocol
@pytest.mark.parametrize("wrong", [["7:5"], ("7:5",), 7, None, b"7:5", 7.5, object()])
def test_what_is_no_text_is_refused(protocol, wrong):
    tree, sent = make(protocol)
    for call in (tree.ok, tree.fail, tree.mk_ack()):
        with pytest.raises(ArgumentTypeError, match="tuple_id: expected one encoded id, a str, got") as caught:
            call(wrong)
        assert ("once for each" in str(caught.value)) == isinstance(wrong, (list, tuple))
    for call in (tree.anchor, tree.reset_timeout):
        with pytest.raises(ArgumentTypeError, match=r"tuple_ids\[0\]: expected one encoded id, a str"):
            call([wrong])
        if not isinstance(wrong, (list, tuple)):
            with pytest.raises(ArgumentTypeError, match="tuple_ids: expected a sequence of encoded ids, got"):
                call(wrong)
    assert (sent, len(tree)) == ([], 0)


# --- ids and acknowledgements of other types --------------------------------------------------------------------------


class Whole(int):
    """An integer that is no plain int."""


@every_protocol
@pytest.mark.parametrize("kind", [int, Whole, np.int64])
def test_integers_of_every_kind_are_taken(protocol, kind):
    sent = []
    ids = map(kind, itertools.count(100, 100))
    tree = TupleTree(sent.append, protocol=protocol, next_id=ids.__next__)
    with tree.track(kind(3), kind(42)) as mk_ids:
        assert mk_ids() == ["100:200"]
    with tree.anchor(["100:200"]) as mk_ids:
        assert mk_ids() == ["100:300"]
    assert sent[0][-2:] == (3, 42)
    assert [type(each) for each in sent[0][-2:]] == [int, int]
    assert all(type(message) is Message for message in sent)


@pytest.mark.parametrize("ackers", [1, 2])
@pytest.mark.parametrize(
    ("wrong", "error"), [(2**63, ArgumentValueError), (True, ArgumentTypeError), (1.5, ArgumentTypeError)]
)
def test_a_root_id_that_is_no_int64_never_leaves(ackers, wrong, error):
    sent = []
    tree = TupleTree([sent.append] * ackers, next_id=lambda: wrong)
    with pytest.raises(error, match="root_id: expected an integer from"):
        tree.track(0, 1).close()
    assert sent == []


@pytest.mark.parametrize("wrong", [True, np.True_, 1.0, np.float64(1), "1"])
def test_what_is_no_integer_is_no_id_of_a_message(wrong):
    tree, sent = make()
    with pytest.raises(ArgumentTypeError, match="task_id: expected an integer from 0"):
        tree.track(wrong, 42)
    with pytest.raises(ArgumentTypeError, match="message_id: expected an integer from"):
        tree.track(0, wrong)
    assert sent == []


# --- what waits -------------------------------------------------------------------------------------------------------


@every_protocol
def test_the_oldest_are_what_waits_on_this_side(protocol):
    clock = [1000]
    ids = itertools.count(100, 100)
    tree = TupleTree([].append, protocol=protocol, next_id=ids.__next__, now_ms=lambda: clock[0])
    spout = tree.track(3, 42)
    spout()
    clock[0] = 1500
    bolt = tree.anchor(["7:5", "9"])
    bolt()
    clock[0] = 2500
    emitted = 300 if protocol != "fsshelter" else 0
    assert tree.oldest() == [
        PendingTree(42, 1500, "tracking", 100, 3, 200, None),
        PendingTree(None, 1000, "anchored", 7, None, 5 ^ emitted, None),
    ]
    assert [each.state for each in tree.oldest(1)] == ["tracking"]
    spout.close()
    tree.ok("7:5")
    assert tree.oldest() == []
    with pytest.raises(ArgumentValueError, match="n: expected"):
        tree.oldest(-1)


def test_a_tracking_that_is_dropped_waits_no_more():
    tree, _ = make("fsshelter")
    tree.track(3, 42)
    assert tree.oldest() == []
    assert TupleTree([].append).oldest() == []


def test_inputs_that_nobody_acknowledges_are_told_once():
    clock = [0]
    tree = TupleTree([].append, now_ms=lambda: clock[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for tuple_id in range(1, 2048):
            tree.anchor([f"7:{tuple_id}"])
    clock[0] = 700_000
    with pytest.warns(
        RuntimeWarning, match="2,048 inputs were anchored to and never acknowledged, the oldest for 700 s"
    ):
        tree.anchor(["7:2048"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for tuple_id in range(2049, 10_000):
            tree.anchor([f"7:{tuple_id}"])


def test_the_warnings_name_the_line_that_can_be_mended():
    clock = [0]
    tree = TupleTree([].append, now_ms=lambda: clock[0])
    for tuple_id in range(1, 1024):
        tree.anchor([f"7:{tuple_id}"])
    clock[0] = 600_000
    with pytest.warns(RuntimeWarning, match="1,024 inputs") as caught:
        tree.anchor(["7:1024"])
    mk_ids = tree.track(3, 42)
    with pytest.warns(ResourceWarning, match="message id 42") as lost:
        del mk_ids
    assert [each.filename for each in (*caught, *lost)] == [__file__, __file__]


@pytest.mark.parametrize("wrong", [1.5, 2**63, "1", True])
def test_a_clock_that_gives_no_int64_is_an_error(wrong):
    tree = TupleTree([].append, now_ms=lambda: wrong)
    for call in (lambda: tree.track(0, 1), lambda: tree.anchor(["7:5"]), tree.oldest):
        with pytest.raises((ArgumentTypeError, ArgumentValueError), match="now_ms: expected an integer"):
            call()
    assert len(tree) == 0


def test_a_clock_may_jump_over_the_whole_range():
    clock = [INT64_MIN]
    tree = TupleTree([].append, now_ms=lambda: clock[0])
    spout = tree.track(0, 1)
    for tuple_id in range(1, 1024):
        tree.anchor([f"7:{tuple_id}"])
    clock[0] = INT64_MAX
    assert {each.age_ms for each in tree.oldest(5000)} == {2**64 - 1}
    with pytest.warns(RuntimeWarning, match="1,024 inputs"):
        tree.anchor(["7:1024"])
    clock[0] = INT64_MIN
    assert min(each.age_ms for each in tree.oldest(5000)) == 0
    spout.close()


# --- the model --------------------------------------------------------------------------------------------------------

SMALL = st.integers(0, 4)
MESSAGE_IDS = st.none() | st.integers(INT64_MIN - 1, INT64_MAX + 1)
TEXTS = st.one_of(
    st.sampled_from(["7:5", "7:05", "-7:-0", "5", "-0", "8:5", "7:6", "7:5:6", ":", "", "+7:5", "7:5\n", " 7:5"]),
    st.just("7:\N{ARABIC-INDIC DIGIT FIVE}"),
    st.from_regex(r"(-?[0-9]{1,21}:)?-?[0-9]{1,21}", fullmatch=True),
    st.text(max_size=5),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("track"), st.integers(-1, 3), MESSAGE_IDS),
        st.tuples(st.just("deliver"), SMALL),
        st.tuples(st.just("end"), SMALL, st.booleans()),
        st.tuples(st.sampled_from(["anchor", "reset_timeout"]), st.lists(SMALL | TEXTS, max_size=4)),
        st.tuples(st.sampled_from(["ok", "fail"]), SMALL | TEXTS),
        st.tuples(st.just("drop"), SMALL),
    ),
    max_size=30,
)


class Player:
    """Plays steps on a tree with deterministic ids and clock; notes all results, errors and warnings."""

    def __init__(self, tree_type, protocol, ackers):
        self.sent, self.noted, self.ids, self.makers = [], [], [], []
        rng, times = random.Random(1), itertools.count(0, 7)
        boxes = [lambda message, box=box: self.sent.append((box, message)) for box in range(ackers)]
        self.tree = tree_type(
            boxes, protocol=protocol, next_id=lambda: rng.getrandbits(64) - 2**63, now_ms=times.__next__
        )

    def id_of(self, chosen):
        return chosen if isinstance(chosen, str) else (self.ids[-1 - chosen] if chosen < len(self.ids) else "7:5")

    def play(self, name, first, *rest):
        tree = self.tree
        if name in ("ok", "fail"):
            return getattr(tree, name)(self.id_of(first))
        if name in ("anchor", "reset_timeout"):
            made = getattr(tree, name)([self.id_of(each) for each in first])
            return made and self.makers.append(made)
        if name == "track":
            return self.makers.append(tree.track(first, *rest))
        if first >= len(self.makers):
            return None
        if name == "drop":
            return self.makers.pop(first) and None
        if name == "deliver":
            self.ids += (given := self.makers[first]())
            return given
        return self.makers[first].__exit__(KeyError if rest[0] else None, None, None)

    def run(self, steps):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for step in steps:
                try:
                    self.noted.append(self.play(*step))
                except (AckerError, ValueError, TypeError) as error:
                    self.noted.append((type(error), str(error)))
                self.noted += [len(self.tree), self.tree.oldest()]
            self.makers.clear()
        return self.noted, self.sent, [(each.category, str(each.message)) for each in caught]


@given(STEPS, st.sampled_from(PROTOCOLS), st.integers(1, 3))
def test_it_does_what_the_model_does(steps, protocol, ackers):
    assert Player(TupleTree, protocol, ackers).run(steps) == Player(ModelTree, protocol, ackers).run(steps)


def test_a_subclass_hears_of_every_acknowledgement():
    heard = []

    class Listening(TupleTree):
        def ok(self, tuple_id):
            heard.append(tuple_id)
            super().ok(tuple_id)

    sent = []
    tree = Listening(sent.append)
    tree.name = "of a task"
    with tree.anchor(["7:5"]):
        pass
    tree.mk_ack()("8:6")
    assert heard == ["7:5", "8:6"]
    assert len(sent) == 2


def test_a_tree_is_neither_copied_nor_pickled():
    tree, _ = make()
    with tree.track(0, 1) as tracking:
        for each in (tree, tracking, tree.anchor(["7:5"])):
            for call in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match=f"a {type(each).__name__} cannot be copied or pickled"):
                    call(each)


def test_a_forked_child_gives_other_ids():
    tree = TupleTree([].append)
    (first,) = tree.track(0, None)()  # the child inherits ids that were drawn and not used
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads in the parent
        child = os.fork()
    if child == 0:
        os.write(writer, " ".join(tree.track(0, None)()[0] for _ in range(100)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        given = set(stream.read().split())
    assert os.waitpid(child, 0)[1] == 0
    assert len(given) == 100
    assert not given & {first, *(tree.track(0, None)()[0] for _ in range(2000))}


# --- calls within calls -----------------------------------------------------------------------------------------------


def test_an_acker_may_call_the_tree_again():
    sent = []

    def deliver(message):
        sent.append(message)
        if len(sent) < 5:
            tree.ok(f"7:{len(sent)}")

    tree = TupleTree(deliver)
    with tree.track(0, 1) as mk_ids:
        mk_ids()
    assert [message.kind for message in sent] == [Kind.TRACK, *[Kind.OK] * 4]
    assert [message.value for message in sent[1:]] == [1, 2, 3, 4]


def test_a_generator_of_ids_may_end_what_asks_for_one():
    sent, ends = [], []

    def next_id():
        for end in ends:
            end()
        ends.clear()
        return 100

    tree = TupleTree(sent.append, next_id=next_id)
    spout = tree.track(0, 1)
    ends.append(spout.close)
    with pytest.raises(TupleStateError, match="the tree was closed"):
        spout()
    bolt = tree.anchor(["7:5"])
    ends.append(lambda: tree.ok("7:5"))
    with pytest.raises(TupleStateError, match="was acknowledged; nothing can be anchored"):
        bolt()
    assert sent == [Message(Kind.TRACK, 100, 0, 0, 1), Message(Kind.OK, 7, 5)]


def test_a_clock_may_acknowledge_what_is_being_anchored():
    tree = TupleTree([].append, now_ms=lambda: tree.ok("7:5") or 0)
    with pytest.raises(TupleStateError, match="was acknowledged; nothing can be anchored"):
        tree.anchor(["7:5"])
    assert len(tree) == 0


def test_trees_that_a_finalizer_drops_wait_no_more():
    tree, _ = make("fsshelter")

    class Dropping:
        def __init__(self):
            self.own, self.tracking = self, tree.track(0, 1)

        def __del__(self):
            tree.oldest()
            tree.ok("7:5")

    for _ in range(3):
        Dropping()
        kept = tree.track(0, 2)
        gc.collect()  # all generations: a collection while it was made has moved it to an older one
        assert [each.message_id for each in tree.oldest()] == [2]
        tree = make("fsshelter")[0]
    del kept


def test_an_acker_that_raises_leaves_the_input_acknowledged():
    def refuse(message):
        raise OSError("full")

    tree = TupleTree(refuse)
    with pytest.raises(OSError, match="full"):
        tree.ok("7:5")
    with pytest.raises(TupleStateError, match="acknowledged already"):
        tree.ok("7:5")


class HandlerError(Exception):
    """Raised by the handler of a signal."""


def interrupt_at(number, call, *arguments):
    """Make a call in which a handler raises before the bytecode of this number; return whether it did."""
    left = [number]

    def trace(frame, event, _):
        frame.f_trace_opcodes = True
        if event == "opcode":
            left[0] -= 1
            if left[0] < 0:
                raise HandlerError
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call(*arguments)
    except HandlerError:
        return True
    finally:
        sys.settrace(before)
    return False


def test_an_interrupted_acknowledgement_was_sent_or_can_be_made_again():
    for number in itertools.count():
        tree, sent = make()
        mk_ids = tree.anchor(["7:5"])
        mk_ids()
        was_interrupted = interrupt_at(number, tree.ok, "7:5")
        if sent:
            with pytest.raises(TupleStateError):
                tree.ok("7:5")
        else:
            tree.ok("7:5")
        assert (sent, len(tree)) == ([Message(Kind.OK, 7, 5 ^ 100)], 0)
        if not was_interrupted:
            break
    assert number > 3


def test_an_interrupted_close_has_sent_or_can_be_made_again():
    for number in itertools.count():
        tree, sent = make()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            mk_ids = tree.track(3, 42)
            mk_ids()
            was_interrupted = interrupt_at(number, lambda mk_ids=mk_ids: mk_ids.close())
            mk_ids.close()
        assert sent == [Message(Kind.TRACK, 100, 200, 3, 42)]
        if not was_interrupted:
            break
    assert number > 3


# --- native objects ---------------------------------------------------------------------------------------------------


@pytest.mark.native_testing
def test_without_memory_an_acknowledgement_is_not_made(scarce_memory):
    tree, sent = make()
    fail_allocations_after(0)
    with pytest.raises(MemoryError, match="no memory for the inputs"):
        tree.ok("7:5")
    fail_allocations_after(-1)
    tree.ok("7:5")
    assert sent == [Message(Kind.OK, 7, 5)]


def test_objects_made_by_hand_raise():
    errors = (AttributeError, IndexError, TypeError)
    bare = TupleTree.__new__(TupleTree)
    for call in (
        lambda: bare.track(0, 1),
        lambda: bare.ok("7:5"),
        lambda: bare.reset_timeout(["7:5"]),
        bare.anchor(["7:6"]),
        lambda: _core.TreeBase(None, False, None, None),
        lambda: _core.TreeBase([print], False, None, None),
        acker.Tracking(),
        acker.Anchoring(),
        acker.Anchoring().__exit__,
        lambda: acker.Anchoring().__exit__(None, None, None),
        lambda: type("Own", (acker.Tracking,), {}),
    ):
        with pytest.raises(errors):
            call()
    assert bare.oldest() is not None
    acker.Tracking().close()
    acker.Tracking().__exit__(None, None, None)
    with acker.Tracking(), acker.Tracking():
        pass
