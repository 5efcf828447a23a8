"""The worked tables of FsShelter's page *Acker algorithm*, row by row."""

import struct

import pytest

from acker import Kind, Outcome, TupleTree
from acker._engine.snapshot import HEADER_BYTES

ROOT = 9
LINEAR = [  # Spout -> Bolt A -> Bolt B: event, xor value after it
    (Kind.TRACK, 0, 0),
    (Kind.ANCHOR, 100, 100),
    (Kind.ANCHOR, 200, 100 ^ 200),
    (Kind.OK, 100, 200),
    (Kind.OK, 200, 0),
]
FAN_OUT = [  # Spout -> Bolt A -> (Bolt B, Bolt C)
    (Kind.TRACK, 0, 0),
    (Kind.ANCHOR, 100, 100),
    (Kind.ANCHOR, 200, 100 ^ 200),
    (Kind.ANCHOR, 300, 100 ^ 200 ^ 300),
    (Kind.OK, 100, 200 ^ 300),
    (Kind.OK, 200, 300),
    (Kind.OK, 300, 0),
]


def ack_val(a):
    """Return the ack val of the only entry, from its place in the snapshot format."""
    (value,) = struct.unpack_from("<q", a.snapshot(), HEADER_BYTES + 8)
    return value


@pytest.mark.parametrize("table", [LINEAR, FAN_OUT], ids=["linear", "fan-out"])
def test_the_worked_table(acker_type, table):
    a = acker_type(protocol="fsshelter")
    for step, (kind, value, expected) in enumerate(table):
        done = a.ingest([kind], [ROOT], [value], [1], [77]).rows()
        if step < len(table) - 1:
            assert (done, len(a), ack_val(a)) == ([], 1, expected)
        else:
            assert done == [(ROOT, 77, 1, Outcome.ACKED, 0)]
    assert len(a) == 0


@pytest.mark.parametrize("steps", range(1, len(FAN_OUT)))
def test_a_fail_nacks_at_any_step(acker_type, steps):
    a = acker_type(protocol="fsshelter")
    for kind, value, _ in FAN_OUT[:steps]:
        a.ingest([kind], [ROOT], [value], [1], [77])
    assert a.ingest(Kind.FAIL, [ROOT], [100]).rows() == [(ROOT, 77, 1, Outcome.FAILED, 0)]
    # What still comes of the tree is about an unknown root.
    for kind, value, _ in FAN_OUT[steps:]:
        assert len(a.ingest([kind], [ROOT], [value])) == 0
    assert (len(a), a.stats().unknown) == (0, len(FAN_OUT) - steps)


@pytest.mark.parametrize("steps", range(1, len(FAN_OUT)))
def test_a_tick_nacks_what_is_pending_at_any_step(acker_type, steps):
    a = acker_type(protocol="fsshelter", buckets=3)
    for kind, value, _ in FAN_OUT[:steps]:
        a.ingest([kind], [ROOT], [value], [1], [77])
    assert [a.rotate().rows() for _ in range(3)] == [[], [], [(ROOT, 77, 1, Outcome.TIMED_OUT, 0)]]


@pytest.mark.parametrize(("bolts", "table"), [(1, LINEAR), (2, FAN_OUT)], ids=["linear", "fan-out"])
def test_tuple_tree_sends_the_messages_of_the_table(bolts, table):
    sent = []
    ids = iter([ROOT, 100, 200, 300])
    tree = TupleTree(sent.append, protocol="fsshelter", next_id=ids.__next__)
    mk_ids = tree.track(1, 77)
    (first,) = mk_ids()
    mk_ids = tree.anchor([first])
    emitted = [mk_ids() for _ in range(bolts)]
    ok = tree.mk_ack(Kind.OK)
    ok(first)
    for (tuple_id,) in emitted:
        ok(tuple_id)
    assert first == "9:100"
    assert [(message.kind, message.value) for message in sent] == [(kind, value) for kind, value, _ in table]


def test_the_high_water_mark_nacks_at_once(acker_type):
    a = acker_type(protocol="fsshelter", high_water=2)
    done = a.ingest(Kind.TRACK, range(7), [0] * 7, [1] * 7, range(70, 77)).rows()
    assert done == [(5, 75, 1, Outcome.REJECTED, 0), (6, 76, 1, Outcome.REJECTED, 0)]
