"""WindowedBolt in the local runtime: anchors, failures, restarts, ticks, late tuples, and its definition."""

import datetime
from fractions import Fraction

import pytest

from acker.local import read_state
from acker.testing import FeederSpout, Scheduler, complete_topology, make_tuple, run_bolt
from acker.topology import Grouping, Stream, Topology, TopologyError, Window, WindowedBolt

UTC = datetime.UTC


class Sums(WindowedBolt):
    outputs = ["sum"]
    window = Window.tumbling(count=3)

    def process_window(self, window):
        self.emit([sum(tup.number for tup in window.tuples)])


class Minutes(Sums):
    window = Window.sliding(secs=60, every_secs=20)


class Events(Sums):
    window = Window.tumbling(secs=10)
    timestamp_field = "at"
    lag_secs = 5


def numbers(*values):
    return [make_tuple([value], ["number"]) for value in values]


def events(*rows):
    return [make_tuple(row, ["number", "at"]) for row in rows]


def test_a_window_by_count_is_anchored_to_the_tuple_that_completes_it():
    given = numbers(1, 2, 3, 4)
    done = run_bolt(Sums, given)
    assert done.acked == given
    assert [(each.values, each.anchors) for each in done.emitted] == [((6,), (given[2],))]


def test_a_window_by_time_of_arrival_is_not_anchored_and_ends_at_a_tick():
    done = run_bolt(Minutes, numbers(1, 2), ticks=45)
    assert [(each.values, each.anchors) for each in done.emitted] == [((3,), ()), ((3,), ())]
    # At the end of the run nothing is flushed: the tuples stay in the state, for the next run.
    more = run_bolt(Minutes, [], ticks=80, state=done.state)
    assert more.tuples() == [(3,)] and not more.state


def test_a_window_by_event_time_is_not_anchored_and_ends_when_time_has_passed_it(caplog):
    given = events((1, 3.0), (2, 11), (4, 14.9), (8, 15), (16, 9), (32, 25))
    done = run_bolt(Events, given)
    assert [(each.values, each.anchors) for each in done.emitted] == [((1,), ()), ((14,), ())]
    assert done.acked == given
    assert done.report.stats.components()["tested"].user == {"late_tuples": 1}
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "tested: a tuple of 'spout' with at = 9 came late: its last window ended at 10 s" in record.getMessage()
    assert "Raise lag_secs (5)" in record.getMessage()


def test_late_tuples_may_be_emitted():
    class Keeps(Events):
        outputs = ["sum", Stream(["number"], name="late")]

        def process_late(self, tup):
            self.emit([tup.number], stream="late")

    done = run_bolt(Keeps, events((1, 3), (2, 40), (4, 4)))
    assert done.tuples("late") == [(4,)] and done.tuples() == [(1,)]


@pytest.mark.parametrize(
    "at", [25, 25.0, Fraction(25), datetime.datetime(1970, 1, 1, 0, 0, 25, tzinfo=UTC)], ids=["int", "float", "?", "dt"]
)
def test_times_of_several_types(at):
    assert run_bolt(Events, events((1, 3), (2, at))).tuples() == [(1,)]


@pytest.mark.parametrize("at", [None, "25", float("nan"), float("inf"), datetime.datetime(1970, 1, 1), [1]], ids=repr)  # noqa: DTZ001
def test_other_times_fail_their_tuple(at):
    given = events((1, 3), (2, at), (4, 40))
    done = run_bolt(Events, given)
    assert done.failed == [given[1]] and done.tuples() == [(1,)]
    assert "expected seconds since 1970 as a number, or a datetime with a time zone" in done.reasons[0].exception


@pytest.mark.parametrize("at", [1_700_000_000_000, -1e11, 1e12])
def test_times_in_milliseconds_fail_their_tuple_with_a_hint(at):
    given = events((1, 3), (2, at), (4, 40))
    done = run_bolt(Events, given)
    assert done.failed == [given[1]] and done.tuples() == [(1,)]
    assert "Storm's are milliseconds: divide them by 1,000" in done.reasons[0].exception


def test_a_key_without_a_hash_fails_its_tuple():
    class Keyed(Sums):
        def group_key(self, tup):
            return [tup.number]

    done = run_bolt(Keyed, numbers(1))
    assert "group_key returned [1]; expected something hashable" in done.reasons[0].exception


def test_what_process_window_leaves_unrun_is_refused():
    class Lazy(Sums):
        def process_window(self, window):
            return (tup.number for tup in window.tuples)

    given = numbers(1, 2, 3)
    done = run_bolt(Lazy, given)
    assert done.failed == [given[2]] and "returned a generator, which has not run" in done.reasons[0].exception


def windows_of(feeder, bolt, **options):
    rows = feeder.spec()
    return type("Windows", (Topology,), {"rows": rows, "windows": bolt.spec(inputs=[rows], **options)})


@pytest.mark.parametrize("seed", range(4))
def test_windows_outlive_restarts(seed):
    """A tick raises now and then; each tuple is in one window, since windows are in the state."""
    seen, raises = [], [True, False, True]

    class Restarts(WindowedBolt):
        window = Window.tumbling(secs=10)

        def process_window(self, window):
            if raises and raises.pop():
                raise OSError("restart")
            seen.append([tup.number for tup in window.tuples])

    feeder = FeederSpout.with_outputs("number")
    with Scheduler.of(windows_of(feeder, Restarts), seed=seed) as scheduler:
        for number in range(40):
            feeder.feed([number], number)
            scheduler.advance(1)
        scheduler.advance(60)
        assert scheduler.runtime.stats().restarts == 2
        assert read_state(scheduler.runtime.snapshot_state()) == {"windows": [{}]}
    acked = [number for number in range(40) if feeder.tracker.is_acked(number)]
    assert sorted(number for each in seen for number in each) == acked
    assert len(seen) >= 4


@pytest.mark.parametrize("par", [1, 3])
def test_windows_of_keys_and_their_own_state(par):
    """Each user's last two numbers, and how many windows the user had: both are in the state."""

    class Last(WindowedBolt):
        outputs = ["user", "numbers", "times"]
        window = Window.sliding(count=2, every_count=1)

        def group_key(self, tup):
            return tup.user

        def process_window(self, window):
            times = self.state[window.key] = self.state.get(window.key, 0) + 1
            self.emit([window.key, [tup.number for tup in window.tuples], times])

    class Users(Topology):
        rows = FeederSpout.with_outputs("user", "number").spec()
        last = Last.spec(inputs={rows: Grouping.fields("user")}, par=par)

    rows = [["a", 1], ["b", 2], ["a", 3], ["a", 4], ["b", 5]]
    done = complete_topology(Users, {"rows": rows})
    assert done.acked == 5
    assert sorted(done.tuples("last")) == [
        ("a", [1], 1),
        ("a", [1, 3], 2),
        ("a", [3, 4], 3),
        ("b", [2], 1),
        ("b", [2, 5], 2),
    ]
    states = done.states["last"]
    assert len(states) == par
    assert {key: value for state in states for key, value in state.items() if isinstance(key, str)} == {"a": 3, "b": 2}


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"window": None}, "has no windows; give the class window = Window.tumbling"),
        ({"timestamp_field": "at"}, "has windows by count, which have no times; remove timestamp_field"),
        ({"window": Window.tumbling(secs=1), "timestamp_field": "ta"}, "timestamp_field is 'ta'.*are 'number', 'at'"),
        ({"window": Window.tumbling(secs=1), "lag_secs": 1}, "has lag_secs = 1 but no timestamp_field"),
        ({"window": Window.tumbling(secs=1), "idle_secs": 1}, "has idle_secs = 1 but no timestamp_field"),
        ({"timestamp_field": "at", "window": Window.tumbling(secs=1), "idle_secs": 0}, "idle_secs is 0; expected"),
        ({"timestamp_field": "at", "window": Window.tumbling(secs=1), "lag_secs": -1}, "lag_secs is -1; expected"),
        ({"process_window": WindowedBolt.process_window}, "does not define process_window"),
        ({"process_window": lambda self: None}, r"process_window cannot be called with \(window\)"),
        ({"process_late": lambda self: None}, r"process_late cannot be called with \(tup\)"),
    ],
)
def test_definitions_are_checked(members, text):
    with pytest.raises(TopologyError, match=text):
        windows_of(FeederSpout.with_outputs("number", "at"), type("Wrong", (Sums,), members))


def test_async_windows_are_refused():
    class Async(Sums):
        async def process_window(self, window):
            pass

    with pytest.raises(TopologyError, match="process_window cannot be `async def`"):
        windows_of(FeederSpout.with_outputs("number"), Async)


def test_time_is_looked_at_as_often_as_windows_need():
    class Quick(Minutes):
        window = Window.tumbling(secs=0.25)

    ticks = "topology.tick.tuple.freq.secs"
    assert [kind().tick_secs({}) for kind in (Sums, Events, Minutes, Quick)] == [None, None, 1, 0.25]
    assert [kind().tick_secs({ticks: 0.5}) for kind in (Sums, Events, Minutes, Quick)] == [0.5, 0.5, 0.5, 0.25]
