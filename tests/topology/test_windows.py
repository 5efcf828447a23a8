"""Windows by count and by time, compared with lists of all tuples that ever came."""

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker.topology import KeyValueState, StatefulBolt, Stream, TopologyError, Window, WindowedBolt
from acker.topology.state import StateChanges
from acker.topology.tuples import TupleSource
from acker.topology.watermarks import ended_by
from acker.topology.windows import WindowContents

SIZES = st.integers(1, 7)
SOURCE = TupleSource("numbers", "default", 1, ["number", "at", "key"])


def tup_of(number, at=0, key=None):
    return SOURCE.tuple_type(SOURCE.make_values([number, at, key]), SOURCE)


class Collector:
    """The parts of a collector that a windowed bolt uses."""

    def __init__(self):
        self.now_ms = 0
        self.late = 0
        self.inputs = ()

    def wall_ms(self):
        return self.now_ms

    def count(self, name, n):
        assert name == "late_tuples"
        self.late += n

    def emit(self, *_):
        raise AssertionError


class LatestTime:
    """The watermark behind one sender in order, as a runtime binds it."""

    def __init__(self, kind):
        self.kind = kind
        self.latest_ms = None

    def note(self, tup, time_ms):
        self.latest_ms = time_ms if self.latest_ms is None else max(self.latest_ms, time_ms)

    def ended_ms(self):
        return ended_by(self.kind, self.latest_ms)

    def tell_late(self, text):
        assert "came late" in text


CONTEXT = {"taskid": 3, "componentid": "it", "topology.name": "T"}


def numbers(tuples):
    return [tup.number for tup in tuples]


class Runner:
    """A windowed bolt, made anew with its state whenever the test wants."""

    def __init__(self, window, timestamp_field=None, lag_secs=0, by_key=False):
        runner = self
        self.seen, self.fails = [], []
        self.collector = Collector()

        class Windowed(WindowedBolt):
            def process_window(self, window):
                if runner.fails and runner.fails.pop():
                    raise OSError("no window")
                runner.seen.append(window)

            if by_key:

                def group_key(self, tup):
                    return tup.key

        Windowed.window, Windowed.timestamp_field, Windowed.lag_secs = window, timestamp_field, lag_secs
        assert Windowed._definition_error() is None
        self.kind = Windowed
        self.state = KeyValueState()
        self.written = {}
        # Two workers that have the state as it was when they had the bolt last, with what was changed since; a third
        # one, the first in turn, reads all of it.
        self.others = [(KeyValueState(), {}) for _ in range(2)]
        self.turn = 0
        self.watermark = LatestTime(Windowed)
        self.restart()

    def restart(self):
        """Make another instance, in another worker, with a state that has only what the changes say."""
        self.note_changes()
        self.turn = (self.turn + 1) % 4
        if self.turn < 2:
            self.state, missed = self.others[self.turn]
            # A file has keys that were written again as they are.
            missed.update(list(self.written.items())[:: self.turn + 2])
            present = {key: value for key, value in missed.items() if key in self.written}
            self.state.follow(StateChanges(present, missed.keys() - present.keys()))
            missed.clear()
        elif self.turn == 2:
            self.state = KeyValueState(self.written)
        assert self.state == self.written
        self.bolt = self.kind()
        self.bolt._bind(self.collector, CONTEXT, {})
        self.bolt._watermark = self.watermark
        self.bolt._bind_state(self.state)
        assert described(self.bolt._contents) == described(
            WindowContents.of(self.kind.window, KeyValueState(self.written), self.bolt._ended_ms)
        )

    def note_changes(self):
        """Take note of what changed, as files do."""
        values, removed = self.state.take_changes()
        assert self.state.view is not None or not self.written
        self.written.update(values)
        for key in removed:
            self.written.pop(key, None)
        assert self.written == self.state
        for state, missed in self.others:
            if state is not self.state:
                missed.update({**dict.fromkeys(removed), **values})

    def take(self):
        """Return (key, numbers, new, expired) of the windows since the last call."""
        taken, self.seen[:] = list(self.seen), []
        return [(each.key, numbers(each.tuples), numbers(each.new), numbers(each.expired)) for each in taken]


def described(contents):
    """Return what the contents of windows are, and whether they are looked at when the next one ends."""
    looked_at = {(content.key, end) for end, _, content in contents._ends}
    return {
        key: (sorted(content._entries[content._passed :]), content._seen, content._end, content.next_end)
        for key, content in contents._contents.items()
        if content and (content.next_end is None or (key, content.next_end) in looked_at)
    }


# By count.


def windows_by_count(count, length, step):
    """Return what windows of the numbers below count are: all, new, expired."""
    before = []
    for end in range(step, count + 1, step):
        now = list(range(max(0, end - length), end))
        yield now, [each for each in now if each not in before], [each for each in before if each not in now]
        before = now


@settings(deadline=None)
@given(length=SIZES, step=SIZES, count=st.integers(0, 40), restarts=st.sets(st.integers(0, 40)))
def test_windows_by_count_are_those_of_a_list(length, step, count, restarts):
    runner = Runner(Window.sliding(count=length, every_count=step))
    for number in range(count):
        runner.bolt.process(tup_of(number))
        if number in restarts:
            runner.restart()
    assert [each[1:] for each in runner.take()] == list(windows_by_count(count, length, step))
    # What the next windows need, and the head.
    assert len(runner.state) <= length + step + 1


@settings(deadline=None)
@given(length=SIZES, step=SIZES, fails=st.lists(st.booleans(), max_size=30), seed=st.randoms(use_true_random=False))
def test_a_tuple_whose_window_raises_is_not_in_it_until_it_comes_again(length, step, fails, seed):
    runner = Runner(Window.sliding(count=length, every_count=step))
    runner.fails = [*fails]
    for number in range(30):
        while True:
            try:
                runner.bolt.process(tup_of(number))
            except OSError:
                if seed.random() < 0.3:
                    runner.restart()
                continue
            break
    assert [each[1:] for each in runner.take()] == list(windows_by_count(30, length, step))


@settings(deadline=None)
@given(length=SIZES, step=SIZES, keys=st.lists(st.sampled_from(["a", 1, (2, None)]), max_size=40))
def test_each_key_has_windows_of_its_own(length, step, keys):
    runner = Runner(Window.sliding(count=length, every_count=step), by_key=True)
    counts = dict.fromkeys(keys, 0)
    for place, key in enumerate(keys):
        runner.bolt.process(tup_of(counts[key], key=key))
        counts[key] += 1
        if place % 7 == 3:
            runner.restart()
    taken = runner.take()
    for key, count in counts.items():
        assert [each[1:] for each in taken if each[0] == key] == list(windows_by_count(count, length, step))


def test_tumbling_windows_have_each_tuple_once():
    runner = Runner(Window.tumbling(count=3))
    for number in range(8):
        runner.bolt.process(tup_of(number))
    assert runner.take() == [(None, [0, 1, 2], [0, 1, 2], []), (None, [3, 4, 5], [3, 4, 5], [0, 1, 2])]


def test_tuples_in_windows_are_as_they_came_without_ids():
    runner = Runner(Window.tumbling(count=2))
    runner.bolt.process(tup_of(1, key="x"))
    runner.restart()
    runner.bolt.process(tup_of(2))
    [window] = runner.seen
    first, second = window.tuples
    assert (first.number, first.key, first["at"], first.values.number) == (1, "x", 0, 1)
    assert (first.component, first.stream, first.task, first.fields) == ("numbers", "default", 1, SOURCE.fields)
    assert type(first) is type(second) is SOURCE.tuple_type
    assert first.id == second.id == tup_of(1).id
    assert window.tuples is window.tuples and (window.start, window.end) == (None, None)
    assert repr(window) == "TupleWindow(key=None: 2 tuples, 2 new, 0 expired)"


# By time.


def windows_by_time(arrivals, length, step, until):
    """Return the windows with tuples that end up to a time: end, all, new, expired. Arrivals are (time, number)."""
    before = []
    for end in range(step, until + 1, step):
        now = [number for time, number in arrivals if end - length <= time < end]
        if now:
            new, expired = [each for each in now if each not in before], [each for each in before if each not in now]
            yield end / 1000, now, new, expired
        before = now


def take_with_ends(runner):
    ends = [window.end for window in runner.seen]
    lengths = {round((window.end - window.start) * 1000) for window in runner.seen}
    assert lengths <= {runner.kind.window.length}
    return [(end, *rest) for end, (_, *rest) in zip(ends, runner.take(), strict=True)]


STEPS = st.lists(st.tuples(st.integers(0, 15), st.sampled_from(["tuple", "tick", "restart"])), max_size=40)


@settings(deadline=None)
@given(length=SIZES, step=SIZES, steps=STEPS)
def test_windows_by_time_of_arrival_are_those_of_a_list(length, step, steps):
    runner = Runner(Window("time", length, step))
    arrivals, now, ticked = [], 0, 0
    for pause, what in steps:
        now = runner.collector.now_ms = now + pause
        if what == "tuple":
            runner.bolt.process(tup_of(len(arrivals)))
            arrivals.append((now, len(arrivals)))
        elif what == "tick":
            runner.bolt.process_tick(None)
            ticked = now
        else:
            runner.restart()
    assert take_with_ends(runner) == list(windows_by_time(arrivals, length, step, ticked))
    runner.collector.now_ms = now + 100
    runner.bolt.process_tick(None)
    assert not runner.state  # nothing is left behind


@settings(deadline=None)
@given(length=SIZES, step=SIZES, steps=STEPS, fails=st.lists(st.booleans(), max_size=20))
def test_a_window_by_time_that_raises_is_due_again(length, step, steps, fails):
    runner = Runner(Window("time", length, step))
    runner.fails = [*fails]
    arrivals, now = [], 0
    for pause, what in [*steps, (100, "tick")]:
        now = runner.collector.now_ms = now + pause
        if what == "tuple":
            runner.bolt.process(tup_of(len(arrivals)))
            arrivals.append((now, len(arrivals)))
            continue
        while True:
            try:
                runner.bolt.process_tick(None)
            except OSError:
                runner.restart()
                continue
            break
    assert take_with_ends(runner) == list(windows_by_time(arrivals, length, step, now))


@settings(deadline=None)
@given(
    length=SIZES,
    step=SIZES,
    lag=st.integers(0, 10),
    tuples=st.lists(
        st.tuples(st.integers(0, 60), st.sampled_from("ab"), st.sampled_from([0, 0, 0, 1, 2])), max_size=40
    ),
)
def test_windows_by_event_time_are_those_of_a_list(length, step, lag, tuples):
    """Sometimes the bolt restarts before a tuple (1), or its windows raise once (2)."""
    runner = Runner(Window("time", length, step), "at", lag / 1000, by_key=True)
    came, ended, late = {"a": [], "b": []}, None, 0
    for number, (at, key, what) in enumerate(tuples):
        if what == 1:
            runner.restart()
        if what == 2:
            runner.fails = [True]
        runner.bolt.process(tup_of(number, Fraction(at, 1000), key))
        try:
            runner.bolt._end_windows()
        except OSError:
            runner.restart()
            runner.bolt._end_windows()
        runner.fails = []
        watermark = max(at for at, *_ in tuples[: number + 1]) - lag
        ended = watermark // step * step
        ends = [end for end in range(-step * 20, 100 * step, step) if end - length <= at < end]
        if ends and ends[-1] <= ended:
            late += 1
        else:
            came[key].append((at, number, ended))
    assert runner.collector.late == late
    for key, arrivals in came.items():
        mine = [window for window in runner.seen if window.key == key]
        # A tuple is in the windows that had not ended when it came.
        before, expected = [], []
        for end in range(step, (ended or 0) + 1, step):
            now = [number for at, number, past in arrivals if end - length <= at < end and past < end]
            if now:
                gone = [each for each in before if each not in now]
                expected.append((end / 1000, now, [each for each in now if each not in before], gone))
            before = now
        assert [(each.end, numbers(each.tuples), numbers(each.new), numbers(each.expired)) for each in mine] == expected


def test_windows_that_end_at_once_are_not_searched_one_by_one():
    class Time(int):
        compared = 0

        def __lt__(self, other):
            Time.compared += 1
            return int(self) < int(other)

        def __le__(self, other):
            return not other < self

        def __gt__(self, other):
            Time.compared += 1
            return int(self) > int(other)

        def __ge__(self, other):
            return not self < other

    runner = Runner(Window.tumbling(secs=1), "at")
    contents = WindowContents.of(runner.kind.window, runner.state, None)
    content = contents.get(None, None)
    count = 1000
    for number in range(count):
        contents.add(content, tup_of(number), Time(number * 1000))
    Time.compared = 0
    ended = contents.due_windows(2 * count * 1000)
    assert [numbers(each.tuples) for each in ended] == [[each] for each in range(count)]
    assert not runner.state
    assert Time.compared < 10 * count * math.log2(count)


def test_a_clock_that_was_turned_back_loses_no_tuple():
    runner = Runner(Window.tumbling(secs=10))
    times = [5, 12, 3, 4, 19, 25, 26]
    for number, secs in enumerate(times):
        runner.collector.now_ms = secs * 1000
        runner.bolt.process_tick(None)
        runner.bolt.process(tup_of(number))
    runner.collector.now_ms = 100_000
    runner.bolt.process_tick(None)
    taken = itertools.chain.from_iterable(numbers(each.tuples) for each in runner.seen)
    assert sorted(taken) == list(range(len(times)))


# Definitions.


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Window.tumbling, "expected count=, or secs="),
        (lambda: Window.tumbling(count=1, secs=1), "expected count=, or secs="),
        (lambda: Window.tumbling(count=0), "expected an int of at least 1 for count, got 0"),
        (lambda: Window.tumbling(count=True), "got True"),
        (lambda: Window.tumbling(count=1.5), "got 1.5"),
        (lambda: Window.tumbling(secs=0), "expected secs of at least 0.001, got 0"),
        (lambda: Window.tumbling(secs=float("nan")), "got nan"),
        (lambda: Window.tumbling(secs="1"), "got '1'"),
        (lambda: Window.sliding(count=3), "length and step are of one kind"),
        (lambda: Window.sliding(count=3, every_secs=1), "length and step are of one kind"),
        (lambda: Window.sliding(count=3, every_count=1, secs=1, every_secs=1), "length and step are of one kind"),
    ],
)
def test_windows_are_checked(make, text):
    with pytest.raises(TopologyError, match=text):
        make()


def test_windows_are_values():
    assert Window.tumbling(count=5) == Window("count", 5, 5)
    assert Window.sliding(secs=60, every_secs=0.5) == Window("time", 60_000, 500)
    assert issubclass(WindowedBolt, StatefulBolt)
    assert Stream(["a"]) != Window.tumbling(count=1)


# Many keys.


class Counted(dict):
    """A dict of contents that counts how often one is asked for."""

    asked = 0

    def get(self, key, default=None):
        self.asked += 1
        return super().get(key, default)


@pytest.mark.parametrize("timestamp_field", [None, "at"])
def test_a_tick_and_a_watermark_look_only_at_windows_that_have_ended(timestamp_field):
    runner = Runner(Window.tumbling(secs=10), timestamp_field, by_key=True)
    for number in range(1_000):
        runner.collector.now_ms = 5_000 if number < 3 else 3_600_000
        runner.bolt.process(tup_of(number, 5 if number < 3 else 3_600, key=number))
    counted = runner.bolt._contents._contents = Counted(runner.bolt._contents._contents)
    for secs in range(3_600, 3_609):
        runner.collector.now_ms = secs * 1_000
        runner.bolt.process(tup_of(0, secs, key="other"))
        runner.bolt.process_tick(None)
        runner.bolt._end_windows()
    assert len(runner.seen) == 3
    assert counted.asked <= 2 * 3 + 9  # each of the three also had an empty window after the first one


@pytest.mark.parametrize("keys", [10, 1_000])
def test_a_worker_that_has_the_windows_reads_none_of_them_again(keys, monkeypatch):
    """Neither at the next micro-batch nor when it takes over what another worker has added."""
    runner = Runner(Window.tumbling(secs=10), "at", by_key=True)
    for number in range(5 * keys):
        runner.bolt.process(tup_of(number, 1, key=number % keys))
    runner.note_changes()
    peeked = []
    peek = KeyValueState.peek
    monkeypatch.setattr(KeyValueState, "peek", lambda state, key, *rest: peeked.append(key) or peek(state, key, *rest))
    added = ("window", 3, 5), (5, 1_000, (7, 1, 3), ("numbers", "default", 1, ("number", "at", "key")))
    runner.state.follow(StateChanges(dict([added]), set()))
    runner.bolt._bind_state(runner.state)
    assert [key for key in peeked if len(key) == 3] == [("window", 3, -1), added[0]]
    runner.bolt.process(tup_of(0, 11, key="other"))
    runner.bolt._end_windows()
    assert [len(window) for window in runner.seen if window.key == 3] == [6] and len(runner.seen) == keys


def test_a_bolt_that_changes_its_windows_in_the_state_has_them_as_the_state_has_them():
    runner = Runner(Window.tumbling(count=3))
    runner.bolt.process(tup_of(0))
    runner.bolt.process(tup_of(1))
    runner.note_changes()
    runner.state.pop(("window", None, 0))
    assert runner.state.take_changes().removed and runner.state.view is None
    runner.bolt._bind_state(runner.state)
    runner.state.take_changes()
    assert runner.state.view is not None and [entry[0] for entry in runner.state.view._contents[None]._entries] == [1]
