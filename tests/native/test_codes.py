"""The numbers that C++ and Python share are the same in both."""

import pytest

import acker
from acker import Kind, Outcome
from acker._engine import codes, protocol, snapshot
from acker._engine.acker import _STATES
from tests.native_testing import TESTING, core

pytestmark = pytest.mark.native_testing

CODES = core.codes() if TESTING else {}


def test_kinds_and_outcomes_have_the_same_numbers():
    assert CODES["Kind"] == {kind.name: int(kind) for kind in Kind}
    assert CODES["Outcome"] == {outcome.name: int(outcome) for outcome in Outcome}
    assert CODES["kinds"] == len(Kind)


def test_protocols_have_the_same_numbers():
    assert CODES["protocol"] == {name: number for number, name in enumerate(protocol.PROTOCOLS)}
    assert CODES["buckets_max"] == protocol.BUCKETS_MAX


def test_states_of_entries_have_the_same_numbers():
    assert CODES["entry"] == {state: number for number, state in enumerate(_STATES)}
    names = ("UNTRACKED", "TRACKED", "FAILED")
    assert CODES["snapshot"] == {name: getattr(snapshot, name) for name in names}


def test_flags_and_task_ids_have_the_same_numbers():
    assert CODES["flags"] == {"TRACKED": codes.TRACKED, "FAILED": codes.FAILED, "RESET": codes.RESET}
    names = ("UNTRACKED", "UNTRACKED_FAILED", "UNTRACKED_RESET")
    assert CODES["open_trees"] == {name: getattr(codes, name) for name in names}


def test_stats_have_the_same_order():
    one = acker.Acker()
    native = one._core
    assert native.stats() == (0,) * len(acker.Stats.__slots__)
    native.set_counters(tuple(range(1, 1 + len(protocol.COUNTERS))))
    stats = one.stats()
    assert [getattr(stats, name) for name in protocol.COUNTERS] == [*range(1, 1 + len(protocol.COUNTERS))]
    assert (stats.pending, stats.open, native.pending, len(one)) == (0, 0, 0, 0)
    assert one.nbytes == native.nbytes > 0
