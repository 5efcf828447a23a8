"""The runtime on threads, as a program runs it. No test waits for a time, only for events."""

import collections
import threading

import pytest

from acker.local import LocalRuntime, run
from acker.local.executors.base import Mode
from acker.testing import ManualClock, Scheduler
from acker.topology import Bolt, Grouping, ReasonKind, ReliableSpout, Spout, Topology

LINES = [f"w{number % 13} w{number % 7} w{number % 3}" for number in range(3000)]


class Lines(Spout):
    outputs = ["line"]

    def initialize(self, conf, context):
        tasks = context["task->component"]
        mine = sorted(int(task) for task, name in tasks.items() if name == context["componentid"])
        place = mine.index(context["taskid"])
        self.left = list(enumerate(LINES))[place :: len(mine)]

    def next_tuple(self):
        if self.left:
            number, line = self.left.pop()
            self.emit([line], tup_id=number)
        else:
            self.finish()


class Split(Bolt):
    outputs = ["word"]

    def process(self, tup):
        for word in tup.line.split():
            self.emit([word])


@pytest.mark.parametrize(
    "conf",
    [
        {},
        {"topology.executor.receive.buffer.size": 3, "topology.max.spout.pending": 5},
        {"topology.acker.tasks": 3, "topology.max.spout.pending": None, "topology.trace.sample": 2},
        {"topology.acker.tasks": 0},
    ],
)
@pytest.mark.parametrize("executors", [1, 3])
def test_words_are_counted_exactly(conf, executors):
    counts = collections.Counter()

    class Count(Bolt):
        def initialize(self, conf, context):
            self.counts = collections.Counter()

        def process(self, tup):
            self.counts[tup.word] += 1

        def close(self):
            counts.update(self.counts)

    class WordCount(Topology):
        lines = Lines.spec(par=2)
        split = Split.spec(inputs=[lines], par=3, executors=executors)
        count = Count.spec(inputs={split: Grouping.fields("word")}, par=3, executors=executors)

    report = run(WordCount, conf, until="drained")
    assert counts == collections.Counter(word for line in LINES for word in line.split())
    totals = report.stats.totals
    assert (report.outcome, totals.pending, totals.failed) == ("drained", 0, 0)
    assert report.stats.components()["lines"].acked == len(LINES)
    assert report.stats.components()["split"].transferred == 3 * len(LINES)


def test_a_bolt_that_never_returns_is_abandoned_and_its_tree_failed():
    inside, release = threading.Event(), threading.Event()
    told = []

    class One(Spout):
        outputs = ["number"]

        def initialize(self, conf, context):
            self.sent = False

        def next_tuple(self):
            if not self.sent:
                self.sent = True
                self.emit([1], "m")

        def fail(self, tup_id, reason):
            told.append((tup_id, reason.kind))

    class Stuck(Bolt):
        def process(self, tup):
            inside.set() or release.wait()  # one line, since the report names it

    class Sticks(Topology):
        one = One.spec()
        stuck = Stuck.spec(inputs=[one])

    clock = ManualClock()
    runtime = LocalRuntime(Sticks, clock=clock)
    stops = threading.Thread(target=runtime.stop, args=[0])
    try:
        runtime.start()
        inside.wait()
        (spout,) = runtime.lifecycle.executors.spouts
        stops.start()
        while spout.seen is not Mode.HALT:
            pass
        clock.advance(1)  # the time to end a step is up; nothing else is late
        stops.join()
        (left,) = runtime.report().abandoned
        assert left.component == "stuck" and "release.wait()" in left.stack
        assert told == [("m", ReasonKind.SHUTDOWN)]
    finally:
        release.set()


@pytest.mark.parametrize("moment", ["before its step", "after its step"])
def test_a_thread_that_is_abandoned_as_it_comes_to_rest_ends(monkeypatch, moment):
    """Nobody turns the clock any more, on which it would rest for ever."""

    class Nothing(Spout):
        outputs = ["line"]

        def next_tuple(self):
            self.finish()

    class Idle(Topology):
        nothing = Nothing.spec()
        split = Split.spec(inputs=[nothing])

    with Scheduler.of(Idle) as scheduler:
        scheduler.settle()
        lifecycle = scheduler.runtime.lifecycle
        (executor,) = lifecycle.executors.bolts

        def abandon():
            lifecycle._shutdown._abandon(executor)

        class Abandons(threading.Event):
            def clear(self):
                if moment == "before its step":
                    abandon()
                super().clear()

        with monkeypatch.context() as patch:
            patch.setattr(executor, "signal", Abandons())
            if moment == "after its step":
                patch.setattr(executor, "step", abandon)
            thread = threading.Thread(target=executor.work, daemon=True)
            thread.start()
            thread.join(60)
            assert not thread.is_alive()


def test_a_spout_that_raises_stops_the_topology_with_its_error():
    class Breaks(Lines):
        def next_tuple(self):
            raise ConnectionError("the queue is gone")

    class Broken(Topology):
        lines = Breaks.spec()
        split = Split.spec(inputs=[lines])

    with pytest.raises(ConnectionError, match="the queue is gone"):
        run(Broken, until="drained", no_restart=True)


def test_what_fails_is_replayed_until_it_is_done():
    class Replays(ReliableSpout):
        outputs = ["number"]
        backoff_secs = 0.001

        def initialize(self, conf, context):
            self.left = list(range(100))

        def next_tuple(self):
            if self.left:
                number = self.left.pop()
                self.emit([number], tup_id=number)
            else:
                self.finish()

    tries = collections.Counter()

    class FailsTwice(Bolt):
        def process(self, tup):
            tries[tup.number] += 1
            if tries[tup.number] < 3:
                raise ValueError("again")

    class Trying(Topology):
        numbers = Replays.spec()
        last = FailsTwice.spec(inputs=[numbers])

    report = run(Trying, until="drained")
    assert set(tries.values()) == {3} and len(tries) == 100
    totals = report.stats.totals
    assert (totals.acked, totals.failed, totals.dead_letters) == (100, 200, 0)


def test_a_program_may_pause_it_and_ask_for_figures_meanwhile():
    class Endless(Spout):
        outputs = ["number"]

        def next_tuple(self):
            self.emit([1], object())

    class Ends(Bolt):
        def process(self, tup):
            pass

    class Running(Topology):
        endless = Endless.spec()
        ends = Ends.spec(inputs=[endless])

    with LocalRuntime(Running) as runtime:
        assert runtime.run_until(1000) == "reached"
        runtime.pause()
        while runtime.stats().totals.pending:
            pass
        runtime.resume()
        runtime.run_until(runtime.stats().totals.acked + 1000)
    stats = runtime.stats()
    assert stats.totals.acked >= 2000 and stats.totals.complete_latency.total == stats.totals.acked
    assert runtime.report().outcome == "reached" and runtime.stats().totals.pending == 0
