"""TupleTree: the messages that spouts and bolts send, in every protocol, and that the acker ends their trees."""

import itertools
import random
import warnings

import numpy as np
import pytest

import acker
from acker import Kind, Outcome, PendingTree, TupleTree
from acker._engine.protocol import INT64_MIN, PROTOCOLS
from acker._engine.tuple_tree import Message
from acker.errors import AckerError, ArgumentTypeError, ArgumentValueError, TupleStateError

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
