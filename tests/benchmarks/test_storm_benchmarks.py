"""The benchmark against Storm at a tiny size, with a real Storm: both sides do the same work, and it is checked."""

import time

import pytest

from benchmarks.suite import storm
from benchmarks.suite.measure import FULL, TINY
from benchmarks.suite.storm import AckerSide, Mode, Reading, Session, StormSide, Turn
from tests.conftest import do_without
from tests.servers import NoServerError

FAST, SLOW, UNTRACKED = Mode(), Mode(interval_ns=1_000_000), Mode(tracked=False)


@pytest.fixture(scope="module")
def storm_here():
    """Skip without Storm."""
    program = storm.storm_program()
    if program.why is not None:
        do_without("storm", NoServerError(program.why, program.code))


@pytest.fixture(scope="module")
def session(storm_here):
    """Both sides, with 128 open lines at most."""
    with Session(TINY, 128) as session:
        yield session


@pytest.mark.soak
@pytest.mark.parametrize("mode", [FAST, SLOW, UNTRACKED], ids=["fast", "slow", "untracked"])
def test_both_sides_do_the_same_work(session, mode):
    begin_ns = time.perf_counter_ns()
    taken = session.rounds(mode)
    passed_ns = time.perf_counter_ns() - begin_ns
    assert set(taken) == {"acker", "Storm"}
    for turns in taken.values():
        assert len(turns) == 2
        for turn in turns:
            assert turn.processed > 0 and turn.seconds >= 0.3 and turn.cpu_seconds > 0
            acked = turn.end.acked - turn.begin.acked
            # In a turn on a busy machine no tree may end.
            assert (acked > 0) == (turn.quantile_ms(0.5) > 0) and (mode.tracked or not acked)
        assert turns[-1].end.acked > 0 or not mode.tracked
        if mode.interval_ns:
            # Not turn by turn: a spout that was kept from emitting catches up, also on what it missed before the turn.
            lines = sum(turn.end.emitted - turn.begin.emitted for turn in turns)
            assert lines <= passed_ns / mode.interval_ns + len(turns)


@pytest.mark.soak
def test_a_side_that_is_closed_has_processed_all(session):
    for side in session.sides:
        side.open(FAST)
        closed = side.close()
        words = side.counts().total()
        assert (closed.processed, closed.failed) == (closed.emitted + words, 0)


@pytest.fixture
def acker_side():
    """A side of a few lines that has done some work, and its lines."""
    load = storm.load_of(TINY)
    with AckerSide(load, 8) as side:
        side.open(FAST)
        yield side, load


def test_lines_have_single_spaces_alone():
    assert all(line == " ".join(line.split(" ")).strip() for line in storm.load_of(TINY).lines)


def test_words_that_were_not_counted_are_noticed(acker_side):
    side, load = acker_side
    reading = side.close()
    storm.check(side, load, reading)
    for wrong, text in (
        (reading._replace(emitted=reading.emitted + len(load.lines)), "words that acker counted wrong"),
        (reading._replace(processed=reading.processed - 1), "tuples that bolts of acker processed"),
        (reading._replace(failed=1), "trees that failed, acker"),
        (reading._replace(acked=reading.acked + 1), "complete latencies, acker"),
    ):
        with pytest.raises(AssertionError, match=text):
            storm.check(side, load, wrong)


@pytest.mark.soak
def test_a_storm_that_ends_is_an_error_with_its_last_words(storm_here):
    side = StormSide(storm.load_of(TINY), 0)
    side._pending = "no number"
    with (
        pytest.raises(RuntimeError, match=r'Storm ended: .*NumberFormatException: For input string: "no number"'),
        side,
    ):
        pass


def test_without_storm_the_cases_are_left_out(monkeypatch):
    monkeypatch.setattr(storm, "storm_program", lambda: storm.Program([], 3, "storm needs Java 17 or newer"))
    assert {case.why_not() for case in storm.CASES} == {"storm needs Java 17 or newer"}
    with pytest.raises(RuntimeError, match="Storm cannot run here: storm needs Java"):
        StormSide(storm.load_of(TINY), 1).__enter__()


class Rehearsal(Session):
    """A session in which acker does 2,000 tuples a second on one core, and Storm half of that on two, in 1 and 3 ms."""

    def __enter__(self):
        return self

    def rounds(self, mode):
        taken = {}
        for name, processed, cores, ms in (("acker", 2000, 1, 1), ("Storm", 1000, 2, 3)):
            bucket = next(place for place, bound in enumerate(storm._BOUNDS_NS) if bound >= ms * 1e6)
            nothing = (0,) * (len(storm._BOUNDS_NS) + 1)
            latencies = tuple(processed if place == bucket else 0 for place in range(len(nothing)))
            begin = Reading(0, 0, 0, 0, 0, 0, nothing)
            end = Reading(10**9, cores * 10**9, processed, processed // 5, processed // 5, 0, latencies)
            taken[name] = [Turn(begin, end)] * 2
        return taken


def test_the_results_are_those_of_the_turns(monkeypatch):
    monkeypatch.setattr(storm, "Session", Rehearsal)
    result = storm.throughput(FULL._replace(divisor=4000))
    medians = {(ratio.of, ratio.to): result.ratio(ratio).median for ratio in result.ratios}
    assert medians["acker 1,024", "Storm 1,024"] == 2
    assert medians["acker untracked, a core", "Storm untracked, a core"] == 4
    assert result.parameters["cores"]["Storm 128"] == [2, 2]
    assert not any(ratio.goal for ratio in result.ratios)
    result = storm.latency(TINY)
    assert result.parameters["half_lines_a_second"] == 100
    assert result.spread("acker alone, p50").median == pytest.approx(1, rel=0.25)
    assert {(ratio.of, ratio.to) for ratio in result.ratios} >= {("acker half, p99", "Storm half, p99")}
    assert result.checksum["tuples"] == 2 * 3 * 3000
