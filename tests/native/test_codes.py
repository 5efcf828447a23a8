"""The numbers that C++ and Python share are the same in both."""

import acker
from acker import Kind, Outcome, _core
from acker._engine import codes, protocol, snapshot
from acker._engine.acker import _STATES

CODES = _core.codes()


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
    core = one._core
    assert core.stats() == (0,) * len(acker.Stats.__slots__)
    core.set_counters(tuple(range(1, 1 + len(protocol.COUNTERS))))
    stats = one.stats()
    assert [getattr(stats, name) for name in protocol.COUNTERS] == [*range(1, 1 + len(protocol.COUNTERS))]
    assert (stats.pending, stats.open, core.pending, len(one)) == (0, 0, 0, 0)
    assert one.nbytes == core.nbytes > 0
