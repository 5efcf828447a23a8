"""The laws of docs/protocol.md, one test each, for the acker and its reference; and the vocabulary."""

import inspect

import numpy as np
import pytest

import acker
from acker import Acker, Kind, Outcome, ReferenceAcker
from acker._engine.protocol import INT64_MAX, INT64_MIN, PROTOCOLS, check_integer, elapsed_ms, start_tick
from acker.errors import ArgumentTypeError
from tests.native_testing import check_invariants

TRACK, ANCHOR, OK, FAIL, RESET_TIMEOUT = Kind.TRACK, Kind.ANCHOR, Kind.OK, Kind.FAIL, Kind.RESET_TIMEOUT
ACKED, FAILED, TIMED_OUT = Outcome.ACKED, Outcome.FAILED, Outcome.TIMED_OUT

any_order = pytest.mark.parametrize("protocol", ["storm", "storm-0.9"])
every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)

ROOT = 7


def send(a, kind, root=ROOT, value=0, *, task=3, message=42, now=0):
    """Send one message; return the rows (root id, message id, task id, outcome, elapsed ms) of what it finished."""
    return a.ingest([kind], [root], [value], [task], [message], now_ms=now).rows()


def rotations_survived(a, root=ROOT):
    """Rotate until the root is gone; how often it was still there afterwards."""
    for survived in range(a.buckets):
        a.rotate()
        if root not in a:
            return survived
    raise AssertionError(f"root {root} outlived {a.buckets} rotations")


# --- protocol "storm", and "storm-0.9" where it says the same ---------------------------------------------------------


@any_order
def test_storm_1_reset_timeout_moves_a_known_root_to_the_nursery(acker_type, protocol):
    a = acker_type(protocol=protocol, buckets=4)
    send(a, TRACK, value=5, now=100)
    a.rotate()
    a.rotate()
    assert send(a, RESET_TIMEOUT, value=5, now=200) == []
    assert a.stats().resets == 1
    assert rotations_survived(a) == 3

    # And nothing else happens: neither value nor start changed.
    b = acker_type(protocol=protocol)
    send(b, TRACK, value=5, now=100)
    send(b, RESET_TIMEOUT, value=5, now=200)
    assert send(b, OK, value=5, now=300) == [(ROOT, 42, 3, ACKED, 200)]


@every_protocol
def test_storm_1_reset_timeout_of_an_unknown_root_is_ignored(acker_type, protocol):
    a = acker_type(protocol=protocol)
    assert send(a, RESET_TIMEOUT) == []
    assert (len(a), a.stats().unknown, a.stats().resets) == (0, 1, 0)


@any_order
def test_storm_2_a_second_track_is_ignored(acker_type, protocol):
    a = acker_type(protocol=protocol)
    send(a, TRACK, value=5, task=3, message=42, now=10)
    # Storm would xor 5 again here, read 0, and ack a tree that nobody finished.
    assert send(a, TRACK, value=5, task=4, message=43, now=20) == []
    assert (a.stats().duplicates, a.stats().tracked) == (1, 1)
    assert send(a, OK, value=5, now=30) == [(ROOT, 42, 3, ACKED, 20)]


@any_order
@pytest.mark.parametrize("kind", [ANCHOR, OK, FAIL])
def test_storm_3_any_other_message_creates_an_entry_in_the_nursery(acker_type, protocol, kind):
    a = acker_type(protocol=protocol, buckets=3)
    a.rotate()
    assert send(a, kind, value=5, now=100) == []
    assert (len(a), a.stats().open, ROOT in a) == (1, 0, True)
    b = acker_type.restore(a.snapshot())
    assert rotations_survived(b) == 2
    # Its start is the first message's time, its value that message's alone.
    value, outcome = (9, FAILED) if kind == FAIL else (5, ACKED)
    assert send(a, TRACK, value=value, now=130) == [(ROOT, 42, 3, outcome, 30)]


def test_storm_4_track_leaves_the_entry_in_its_bucket(acker_type):
    a = acker_type(buckets=2)
    send(a, OK, value=5)
    a.rotate()
    assert send(a, TRACK, value=5 ^ 6, task=1, message=8) == []
    assert a.rotate().rows() == [(ROOT, 8, 1, TIMED_OUT, 0)]


@any_order
def test_storm_4_track_with_value_0_is_finished_at_once(acker_type, protocol):
    a = acker_type(protocol=protocol)
    assert send(a, TRACK, value=0, now=INT64_MAX) == [(ROOT, 42, 3, ACKED, 0)]
    assert (len(a), a.stats().tracked, a.stats().acked) == (0, 1, 1)


@any_order
def test_storm_5_anchor_and_ok_are_the_same(acker_type, protocol):
    ended = []
    for kind in (ANCHOR, OK):
        a = acker_type(protocol=protocol)
        send(a, TRACK, value=5)
        assert send(a, kind, value=5 ^ 6) == []
        ended.append(send(a, kind, value=6))
    assert ended == [[(ROOT, 42, 3, ACKED, 0)]] * 2


@any_order
def test_storm_6_fail_marks_the_entry_and_moves_it_to_the_nursery(acker_type, protocol):
    a = acker_type(protocol=protocol, buckets=4)
    send(a, OK, value=5)
    a.rotate()
    a.rotate()
    assert send(a, FAIL, value=99) == []
    b = acker_type.restore(a.snapshot())
    assert rotations_survived(b) == 3
    # The FAIL's own value is not used: 5 ^ 1 is left.
    assert send(a, TRACK, value=1) == [(ROOT, 42, 3, FAILED, 0)]


@any_order
def test_storm_6_fail_ends_a_tracked_tree(acker_type, protocol):
    a = acker_type(protocol=protocol)
    send(a, TRACK, value=5, now=1)
    assert send(a, FAIL, now=4) == [(ROOT, 42, 3, FAILED, 3)]
    assert (len(a), a.stats().failed) == (0, 1)


@any_order
def test_storm_7_val_0_ends_a_tracked_tree_and_removes_it(acker_type, protocol):
    a = acker_type(protocol=protocol)
    send(a, TRACK, value=5, task=2**31 - 1, message=INT64_MIN, now=-10)
    assert send(a, OK, value=5, task=9, message=9, now=10) == [(ROOT, INT64_MIN, 2**31 - 1, ACKED, 20)]
    assert ROOT not in a
    assert len(a) == 0


@any_order
def test_storm_7_val_0_wins_over_failed(acker_type, protocol):
    a = acker_type(protocol=protocol)
    send(a, FAIL)
    send(a, OK, value=5)
    assert send(a, TRACK, value=5) == [(ROOT, 42, 3, ACKED, 0)]


@any_order
def test_storm_7_an_entry_without_a_task_id_waits_for_its_track(acker_type, protocol):
    a = acker_type(protocol=protocol)
    assert send(a, OK, value=5) == []
    assert send(a, OK, value=5) == []  # val 0, and still not finished
    assert send(a, FAIL) == []
    assert (len(a), a.stats().open) == (1, 0)
    assert send(a, TRACK, value=8) == [(ROOT, 42, 3, FAILED, 0)]


@any_order
def test_storm_8_a_late_message_is_counted_when_its_bucket_leaves(acker_type, protocol):
    a = acker_type(protocol=protocol, buckets=2)
    send(a, TRACK, value=5)
    send(a, FAIL)
    assert send(a, OK, value=5) == []
    assert len(a) == 1
    assert len(a.rotate()) == 0
    assert a.stats().orphans == 0
    assert len(a.rotate()) == 0
    assert (len(a), a.stats().orphans, a.stats().timed_out) == (0, 1, 0)


@pytest.mark.parametrize(("protocol", "survived"), [("storm", 1), ("storm-0.9", 3)])
@pytest.mark.parametrize("kind", [TRACK, ANCHOR, OK])
def test_storm_09_every_message_refreshes(acker_type, protocol, survived, kind):
    a = acker_type(protocol=protocol, buckets=4)
    send(a, OK if kind == TRACK else TRACK, value=5)
    a.rotate()
    a.rotate()
    assert send(a, kind, value=6) == []
    assert rotations_survived(a) == survived


def test_storm_09_an_ignored_message_does_not_refresh(acker_type):
    a = acker_type(protocol="storm-0.9", buckets=4)
    send(a, TRACK, value=5)
    a.rotate()
    a.rotate()
    send(a, TRACK, value=5)
    assert a.stats().duplicates == 1
    assert rotations_survived(a) == 1


def test_storm_09_a_refresh_keeps_the_start(acker_type):
    a = acker_type(protocol="storm-0.9")
    send(a, OK, value=5, now=10)
    send(a, TRACK, value=5 ^ 6, now=20)
    assert send(a, OK, value=6, now=40) == [(ROOT, 42, 3, ACKED, 30)]


# --- protocol "fsshelter" ---------------------------------------------------------------------------------------------


def test_fsshelter_1_track_does_not_use_its_value_and_never_finishes(acker_type):
    a = acker_type(protocol="fsshelter")
    assert send(a, TRACK, value=0) == []
    assert send(a, TRACK, root=8, value=5) == []
    assert a.stats().open == 2
    send(a, ANCHOR, root=8, value=6)
    assert send(a, OK, root=8, value=6) == [(8, 42, 3, ACKED, 0)]


def test_fsshelter_1_track_of_a_known_root_is_ignored(acker_type):
    a = acker_type(protocol="fsshelter")
    send(a, TRACK, task=3, message=42)
    send(a, ANCHOR, value=6)
    assert send(a, TRACK, task=4, message=43) == []
    assert (a.stats().duplicates, a.stats().tracked) == (1, 1)
    assert send(a, OK, value=6) == [(ROOT, 42, 3, ACKED, 0)]


def test_fsshelter_2_anchor_never_finishes(acker_type):
    a = acker_type(protocol="fsshelter", buckets=2)
    send(a, TRACK)
    send(a, ANCHOR, value=6)
    assert send(a, ANCHOR, value=6) == []  # val 0
    assert a.stats().open == 1
    # FsShelter stores Complete here and forgets the tree. It must expire, as any other.
    a.rotate()
    assert a.rotate().rows() == [(ROOT, 42, 3, TIMED_OUT, 0)]


def test_fsshelter_3_ok_finishes_at_0(acker_type):
    a = acker_type(protocol="fsshelter")
    send(a, TRACK, now=5)
    send(a, ANCHOR, value=6)
    assert send(a, OK, value=7) == []
    assert send(a, OK, value=6 ^ 7, now=9) == [(ROOT, 42, 3, ACKED, 4)]
    assert len(a) == 0


def test_fsshelter_4_fail_finishes_at_once(acker_type):
    a = acker_type(protocol="fsshelter")
    send(a, TRACK)
    send(a, ANCHOR, value=6)
    assert send(a, FAIL, value=6) == [(ROOT, 42, 3, FAILED, 0)]
    assert ROOT not in a

    # Also when val is 0: here FAIL does not look at it.
    send(a, TRACK)
    assert send(a, FAIL) == [(ROOT, 42, 3, FAILED, 0)]


def test_fsshelter_4_reset_timeout_moves_to_the_nursery(acker_type):
    a = acker_type(protocol="fsshelter", buckets=3)
    send(a, TRACK)
    a.rotate()
    a.rotate()
    assert send(a, RESET_TIMEOUT) == []
    assert a.stats().resets == 1
    assert rotations_survived(a) == 2


def test_fsshelter_no_other_message_refreshes(acker_type):
    a = acker_type(protocol="fsshelter", buckets=3)
    send(a, TRACK)
    a.rotate()
    send(a, ANCHOR, value=6)
    send(a, OK, value=7)
    send(a, TRACK)
    assert rotations_survived(a) == 1


@pytest.mark.parametrize("kind", [ANCHOR, OK, FAIL])
def test_fsshelter_5_an_unknown_root_is_ignored(acker_type, kind):
    a = acker_type(protocol="fsshelter", high_water=0)
    assert send(a, kind, value=6) == []
    assert (len(a), a.stats().unknown, a.stats().dropped) == (0, 1, 0)


# --- all of them ------------------------------------------------------------------------------------------------------


@any_order
@pytest.mark.parametrize("root", [0, -1, 1, INT64_MIN, INT64_MAX])
@pytest.mark.parametrize("value", [-1, 1, INT64_MIN, INT64_MAX])
def test_every_int64_is_a_legal_root_id_and_value(acker_type, protocol, root, value):
    a = acker_type(protocol=protocol)
    assert root not in a
    assert send(a, TRACK, root=root, value=value) == []
    assert root in a
    assert send(a, RESET_TIMEOUT, root=root) == []
    assert send(a, OK, root=root, value=value) == [(root, 42, 3, ACKED, 0)]
    assert root not in a


def test_a_root_id_0_is_neither_finished_nor_free(acker_type):
    a = acker_type()
    send(a, TRACK, root=0, value=5)
    send(a, OK, root=INT64_MIN, value=5)
    assert (0 in a, INT64_MIN in a, 5 in a, len(a)) == (True, True, False, 2)


@pytest.mark.parametrize("now", [0, -(2**40), 2**40, INT64_MIN, INT64_MAX - 49 * 86_400_000])
@pytest.mark.parametrize("age", [0, 1, 17 * 3_600_000, 2**31, 49 * 86_400_000 - 1])
def test_elapsed_is_exact_below_49_days(acker_type, now, age):
    a = acker_type(buckets=2)
    send(a, TRACK, value=1, now=now)
    assert send(a, OK, value=1, now=now + age) == [(ROOT, 42, 3, ACKED, age)]


@pytest.mark.parametrize("back", [1, 1000, 17 * 3_600_000 - 1])
def test_a_clock_set_back_reads_0(acker_type, back):
    a = acker_type(buckets=2)
    send(a, TRACK, value=1, now=500)
    send(a, TRACK, root=8, value=1, now=500)
    assert send(a, OK, value=1, now=500 - back) == [(ROOT, 42, 3, ACKED, 0)]
    a.rotate(now_ms=500 - back)
    assert a.rotate(now_ms=500 - back).rows() == [(8, 42, 3, TIMED_OUT, 0)]


def test_membership_knows_int64s_only(acker_type):
    a = acker_type()
    send(a, TRACK, root=-1, value=5)
    assert -1 in a
    assert np.int64(-1) in a
    assert 2**64 - 1 not in a
    for nonsense in (True, 1.0, "1", None):
        with pytest.raises(ArgumentTypeError, match="root_id: expected int64, got"):
            nonsense in a  # noqa: B015 - the operator itself is on trial


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"protocol": "Storm"}, ValueError, "protocol: expected one of 'storm', 'storm-0.9', 'fsshelter', got 'Storm'"),
        ({"protocol": 0}, TypeError, "protocol: expected one of 'storm', 'storm-0.9', 'fsshelter', got int"),
        ({"buckets": 1}, ValueError, "buckets: expected an integer from 2 to 15, got 1"),
        ({"buckets": 16}, ValueError, "buckets: expected an integer from 2 to 15, got 16"),
        ({"buckets": 3.0}, TypeError, "buckets: expected an integer from 2 to 15, got float"),
        ({"buckets": True}, TypeError, "buckets: expected an integer from 2 to 15, got bool"),
        ({"buckets": None}, TypeError, "buckets: expected an integer from 2 to 15, got NoneType"),
        ({"high_water": -1}, ValueError, f"high_water: expected an integer from 0 to {2**61 - 1}, got -1"),
        ({"high_water": 2**61}, ValueError, f"high_water: expected an integer from 0 to {2**61 - 1}, got {2**61}"),
        ({"seed": -1}, ValueError, f"seed: expected an integer from 0 to {2**64 - 1}, got -1"),
        ({"seed": 2**64}, ValueError, f"seed: expected an integer from 0 to {2**64 - 1}, got {2**64}"),
        ({"seed": "x"}, TypeError, f"seed: expected an integer from 0 to {2**64 - 1}, got str"),
    ],
)
def test_bad_options_are_refused(acker_type, options, error, text):
    with pytest.raises(error) as caught:
        acker_type(**options)
    assert str(caught.value) == text
    assert isinstance(caught.value, acker.AckerError)


def test_options_are_keyword_only_and_can_be_read(acker_type):
    with pytest.raises(TypeError):
        acker_type("storm")
    a = acker_type(protocol="storm-0.9", buckets=15, high_water=2, seed=2**64 - 1)
    assert (a.protocol, a.buckets, a.high_water) == ("storm-0.9", 15, 2)
    assert repr(a) == f"{acker_type.__name__}(protocol='storm-0.9', buckets=15, high_water=2): 0 pending"


def test_check_integer_takes_whole_numbers_of_any_type():
    assert [check_integer("n", n, 0, 5) for n in (3, np.int8(3), np.uint64(3), np.array(3), Kind.FAIL)] == [3] * 5
    for nonsense in (np.array([1]), np.array(1.0), np.bool_(True), np.float64(1)):
        with pytest.raises(ArgumentTypeError, match="n: expected an integer from 0 to 5, got"):
            check_integer("n", nonsense, 0, 5)


# --- the vocabulary ---------------------------------------------------------------------------------------------------


def test_kinds_and_outcomes_have_their_numbers():
    assert [(kind.name, int(kind)) for kind in Kind] == [
        ("TRACK", 0),
        ("ANCHOR", 1),
        ("OK", 2),
        ("FAIL", 3),
        ("RESET_TIMEOUT", 4),
    ]
    assert Kind.INIT is Kind.TRACK
    assert Kind.ACK is Kind.OK
    assert [(outcome.name, int(outcome)) for outcome in Outcome] == [
        ("ACKED", 0),
        ("FAILED", 1),
        ("TIMED_OUT", 2),
        ("REJECTED", 3),
        ("PENDING", 4),
    ]


def test_acker_of_takes_the_remainder_of_c():
    assert [acker.acker_of(INT64_MIN, n) for n in (3, 5, 7)] == [2, 3, 1]
    assert [acker.acker_of(root, 4) for root in (-7, 7, 0, -1, INT64_MAX)] == [3, 3, 0, 1, 3]
    assert acker.acker_of(INT64_MIN, 1) == 0
    assert acker.acker_of(INT64_MIN, INT64_MAX) == 1


def test_acker_of_arrays_equals_acker_of_scalars():
    roots = [0, -1, 1, INT64_MIN, INT64_MIN + 1, INT64_MAX, -7, 7]
    for n in (1, 2, 3, 5, 7, 2**32 + 1, INT64_MAX):
        owners = acker.acker_of(np.array(roots), n)
        assert owners.dtype == np.int64
        assert owners.tolist() == [acker.acker_of(root, n) for root in roots]
    assert acker.acker_of([], 3).tolist() == []
    assert acker.acker_of([[1, 2], [3, 4]], 3).tolist() == [[1, 2], [0, 1]]
    assert acker.acker_of(np.array([5], np.uint8), 3).tolist() == [2]
    assert type(acker.acker_of(np.int64(-5), 3)) is int


@pytest.mark.parametrize(
    ("root_id", "n", "error"),
    [
        (1, 0, ValueError),
        (1, -3, ValueError),
        (1, 2**63, ValueError),
        (1, 2.0, TypeError),
        (1, True, TypeError),
        (2**63, 3, ValueError),
        (1.5, 3, TypeError),
        (True, 3, TypeError),
        ([1.5], 3, TypeError),
        ([True], 3, TypeError),
        (["1"], 3, TypeError),
        ([2**63], 3, ValueError),
    ],
)
def test_acker_of_refuses_what_is_no_int64(root_id, n, error):
    with pytest.raises(error):
        acker.acker_of(root_id, n)


@pytest.mark.parametrize("root", [0, -1, 7, INT64_MIN, INT64_MAX])
@pytest.mark.parametrize("tuple_id", [0, 1, INT64_MIN, INT64_MAX])
def test_encoded_tuple_ids_come_back(root, tuple_id):
    assert acker.parse_tuple_id(acker.encode_tuple_id(root, tuple_id)) == (root, tuple_id)
    assert acker.encode_tuple_id(np.int64(root), tuple_id) == f"{root}:{tuple_id}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        ":",
        "7:",
        ":7",
        "7:8:9",
        "a:b",
        "7:8 ",
        " 7:8",
        "7: 8",
        "7:8\n",
        "+7:8",
        "--7:8",
        "7.0:8",
        "7_0:8",
        "0x7:8",
        "\N{ARABIC-INDIC DIGIT SEVEN}:8",  # a digit, and not an ASCII one
        f"{2**63}:1",
        f"1:{-(2**63) - 1}",
        "1:" + "9" * 5000,
    ],
)
def test_text_that_is_not_two_int64s_is_an_unanchored_id(text):
    assert acker.parse_tuple_id(text) is None


def test_encode_tuple_id_refuses_what_is_no_int64():
    with pytest.raises(ValueError, match=r"^root_id: expected an integer"):
        acker.encode_tuple_id(2**63, 1)
    with pytest.raises(TypeError, match=r"^tuple_id: expected an integer"):
        acker.encode_tuple_id(1, 1.0)


def test_elapsed_ms_wraps_as_32_bits_do():
    assert start_tick(-1) == 2**32 - 1
    assert elapsed_ms(start_tick(2**32 - 5), 2**32 + 5) == 10
    assert elapsed_ms(0, 49 * 86_400_000) == 49 * 86_400_000
    assert elapsed_ms(0, 49 * 86_400_000 + 1) == 0


def test_schemas_are_those_of_the_contract():
    assert [(field.name, str(field.type)) for field in acker.MESSAGE_SCHEMA] == [
        ("kind", "int8"),
        ("root_id", "int64"),
        ("value", "int64"),
        ("task_id", "int32"),
        ("message_id", "int64"),
    ]
    assert [(field.name, str(field.type)) for field in acker.COMPLETION_SCHEMA] == [
        ("root_id", "int64"),
        ("message_id", "int64"),
        ("task_id", "int32"),
        ("outcome", "int8"),
        ("elapsed_ms", "int64"),
    ]
    assert acker.MESSAGE_SCHEMA is acker.MESSAGE_SCHEMA


def test_a_missing_name_is_named():
    with pytest.raises(AttributeError, match="module 'acker' has no attribute 'Ackr'"):
        acker.Ackr  # noqa: B018 - the look-up itself is on trial
    with pytest.raises(AttributeError, match=r"module 'acker\._engine\.schemas' has no attribute 'SCHEMA'"):
        acker._engine.schemas.SCHEMA  # noqa: B018


def test_ackers_can_be_called_alike():
    names = [name for name in dir(Acker) if not name.startswith("_")]
    assert len(names) > 10
    for name in [*names, "__init__"]:
        native, reference = getattr(Acker, name), getattr(ReferenceAcker, name)
        if callable(native):
            parameters = [inspect.signature(one).parameters.values() for one in (native, reference)]
            shapes = [[(one.name, one.kind, one.default) for one in each] for each in parameters]
            assert shapes[0] == shapes[1], name


def test_the_invariants_of_the_reference_can_fail():
    for spoil in (
        lambda acker: acker._trees.buckets[1].update(acker._trees.buckets[0]),
        lambda acker: acker._trees.counts.update(tracked=7),
        lambda acker: setattr(acker._trees, "open", 0),
    ):
        acker = ReferenceAcker()
        acker.ingest(Kind.TRACK, [1], [2], [3])
        check_invariants(acker)
        spoil(acker)
        with pytest.raises(AssertionError, match="contradict themselves"):
            check_invariants(acker)
