"""The states of bolts in a local run: over restarts, in snapshots while it runs, in its file."""

import asyncio
import operator
import threading
from collections import Counter
from types import SimpleNamespace

import pytest

from acker.errors import ArgumentTypeError, ArgumentValueError, RuntimeStateError, SnapshotError
from acker.local import Hook, LocalRuntime, read_state, run
from acker.local.states import StateKeeper
from acker.testing import FeederSpout, Scheduler, run_bolt
from acker.topology import Grouping, ReliableSpout, Spout, StatefulBolt, Topology, TopologyError

SEEDS = range(4)


class Count(StatefulBolt):
    def process(self, tup):
        self.state[tup.word] = self.state.get(tup.word, 0) + 1


def counting(feeder, bolt=Count, par=2, executors=None, name="count"):
    """Return a topology of a feeder and a counting bolt."""
    words = feeder.spec()
    count = bolt.spec(inputs={words: Grouping.fields("word")}, par=par, executors=executors)
    return type("Counting", (Topology,), {"words": words, name: count})


@pytest.fixture
def feeder():
    return FeederSpout.with_outputs("word")


def feed(feeder, text):
    for number, word in enumerate(text.split()):
        feeder.feed([word], (text, number))


def total(snapshot, name="count"):
    """Return the sum of all tasks' states; no key is in two of them."""
    states = read_state(snapshot)[name]
    keys = [key for state in states for key in state]
    assert len(keys) == len(set(keys))
    return {key: value for state in states for key, value in state.items()}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("executors", [1, 3])
def test_a_snapshot_has_all_that_was_acked(feeder, seed, executors):
    with Scheduler.of(counting(feeder, par=3, executors=executors), seed=seed) as scheduler:
        assert total(scheduler.runtime.snapshot_state()) == {}
        feed(feeder, "to be or not to be")
        scheduler.settle()
        first = scheduler.runtime.snapshot_state()
        assert total(first) == {"to": 2, "be": 2, "or": 1, "not": 1}
        feed(feeder, "be")
        scheduler.settle()
        assert total(first) == {"to": 2, "be": 2, "or": 1, "not": 1}
        assert total(scheduler.runtime.snapshot_state())["be"] == 3


def test_a_state_that_would_be_lost_is_refused():
    class Assigns(Count):
        def initialize(self, conf, context):
            self.state = {}

    class Returns(Count):
        def init_state(self, state):
            return {"storm": 1}

    class Fine(Count):
        def init_state(self, state):
            state["storm"] = 1
            return state

    for kind, text in ((Assigns, "change self.state in place"), (Returns, "init_state returned a dict, which nobody")):
        with pytest.raises(TopologyError, match=text):
            run_bolt(kind, [])
    assert run_bolt(Fine, []).state == {"storm": 1}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_restart_keeps_the_state_and_a_new_instance_reads_it(feeder, seed):
    seen = []

    class Breaks(Count):
        auto_fail = False

        def init_state(self, state):
            seen.append((self.task_index, dict(state)))

        def process(self, tup):
            super().process(tup)
            if tup.word == "stop" and self.state["stop"] == 1:
                raise OSError("broken")

    with Scheduler.of(counting(feeder, Breaks), seed=seed) as scheduler:
        feed(feeder, "to be or not to be")
        scheduler.settle()
        feed(feeder, "stop")
        scheduler.advance(5)
        assert scheduler.runtime.stats().restarts == 1
        feed(feeder, "to stop")
        scheduler.settle()
        kept = scheduler.runtime.snapshot_state()
    # What the tuple that raised has changed stays changed.
    assert total(kept) == {"to": 3, "be": 2, "or": 1, "not": 1, "stop": 2}
    assert sorted(index for index, _ in seen) == [0, 0, 1, 1]
    assert Counter({key: value for _, state in seen[2:] for key, value in state.items()}) == {
        "to": 2,
        "be": 2,
        "or": 1,
        "not": 1,
        "stop": 1,
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_each_restart_adds_to_the_same_state(feeder, seed):
    class Breaks(Count):
        def process(self, tup):
            super().process(tup)
            if tup.word == "break":
                self.broken = True

        def process_tick(self, tup):
            if self.state.pop("break", None):
                raise OSError("broken")

    conf = {"topology.tick.tuple.freq.secs": 1}
    with Scheduler.of(counting(feeder, Breaks), conf, seed=seed, max_restarts=9) as scheduler:
        for _ in range(3):
            feed(feeder, "word break")
            scheduler.advance(60)
        assert scheduler.runtime.stats().restarts == 3
        assert total(scheduler.runtime.snapshot_state()) == {"word": 3}


def test_a_predecessor_that_still_runs_does_not_write_into_the_new_state(feeder):
    entered, leave, left = threading.Event(), threading.Event(), threading.Event()

    class Hangs(Count):
        def process(self, tup):
            if tup.word == "hang" and not entered.is_set():
                entered.set()
                leave.wait()
                self.state["late"] = 1
                left.set()
            super().process(tup)

    class Break(StatefulBolt):
        auto_fail = False

        def process(self, tup):
            if tup.word == "break":
                raise OSError("broken")

    words = feeder.spec()
    specs = {"words": words, "count": Hangs.spec(inputs=[words]), "second": Break.spec(inputs=[words])}
    topology = type("Hanging", (Topology,), specs)
    restarted = threading.Event()

    class Restarts(Hook):
        def prepare(self, component, task, conf, context):
            if entered.is_set() and component == "words":
                restarted.set()

    runtime = LocalRuntime(topology, {"topology.drain.secs": 0}, hooks=[Restarts()])
    with runtime:
        feed(feeder, "one hang")
        entered.wait()
        feed(feeder, "break")
        restarted.wait()
        leave.set()
        left.wait()
        feed(feeder, "two")
        feeder.end()
        runtime.run_until("drained")
    assert read_state(runtime.snapshot_state())["count"] == [{"one": 1, "two": 1}]


def test_a_file_is_read_at_the_start_and_written_at_the_end(feeder, tmp_path):
    path = tmp_path / "counts.state"
    for number in (1, 2, 3):
        fed = FeederSpout.with_outputs("word")
        feed(fed, "to be")
        fed.end()
        report = run(counting(fed), until="drained", state=path if number % 2 else str(path))
        assert report.outcome == "drained"
        assert total(path) == {"to": number, "be": number}
    assert [each.name for each in tmp_path.iterdir()] == ["counts.state"]


@pytest.mark.usefixtures("long_grace")
@pytest.mark.parametrize("how", ["abort", "crash", "stop"])
def test_the_file_is_written_however_a_run_ends(feeder, tmp_path, how):
    class Ends(Count):
        def process(self, tup):
            if tup.word == "crash":
                raise SystemExit
            super().process(tup)

        def close(self):
            self.state["closed"] = 1

    path = tmp_path / "state"
    runtime = LocalRuntime(counting(feeder, Ends, par=1), state=path)
    runtime.start()
    feed(feeder, "to be")
    runtime.run_until(2)
    if how == "crash":
        feed(feeder, "crash")
        with pytest.raises(SystemExit):
            runtime.run_until()
    (runtime.abort if how == "abort" else runtime.stop)()
    assert total(path) == {"to": 1, "be": 1, "closed": 1}


def test_a_run_that_never_started_leaves_the_file(feeder, tmp_path):
    class Breaks(Count):
        def __init__(self):
            raise OSError("no instance")

    path = tmp_path / "state"
    path.write_bytes(before := snapshot_of(feeder, "to be"))
    with pytest.raises(OSError, match="no instance"):
        run(counting(feeder, Breaks), state=path)
    assert path.read_bytes() == before


def snapshot_of(feeder, text, par=2, **options):
    with Scheduler.of(counting(feeder, par=par), **options) as scheduler:
        feed(feeder, text)
        scheduler.settle()
        return scheduler.runtime.snapshot_state()


def test_a_snapshot_is_restored_from_bytes_and_saved_on_request(feeder, tmp_path):
    first = snapshot_of(feeder, "to be")
    runtime = LocalRuntime(counting(feeder), state=first)
    assert total(runtime.snapshot_state()) == {"to": 1, "be": 1}
    with pytest.raises(ArgumentValueError, match=r"no file is known; name one here, or give the runtime state='FILE'"):
        runtime.save_state()
    runtime.save_state(tmp_path / "copy")
    assert total(tmp_path / "copy") == {"to": 1, "be": 1}
    assert total(snapshot_of(feeder, "be", state=tmp_path / "copy")) == {"to": 1, "be": 2}


def test_a_file_on_request_replaces_the_one_before(feeder, tmp_path):
    path = tmp_path / "state"
    with Scheduler.of(counting(feeder), state=path) as scheduler:
        feed(feeder, "to be")
        scheduler.settle()
        assert not path.exists()
        scheduler.runtime.save_state()
        assert total(path) == {"to": 1, "be": 1}
        feed(feeder, "be")
        scheduler.settle()
    assert total(path) == {"to": 1, "be": 2}


def test_another_number_of_tasks_is_refused(feeder):
    kept = snapshot_of(feeder, "to be", par=3)
    with pytest.raises(
        TopologyError,
        match=r"^state: component 'count' had par=3 and has par=2 now.*write par=3, or start with another",
    ):
        LocalRuntime(counting(feeder, par=2), state=kept)


def test_another_name_is_refused_and_a_new_component_is_not(feeder, tmp_path):
    path = tmp_path / "state"
    path.write_bytes(snapshot_of(feeder, "to be"))
    with pytest.raises(
        TopologyError, match=r"^state '.*state': has a state of component 'count'.*did you mean 'counts'"
    ):
        LocalRuntime(counting(feeder, name="counts"), state=path)
    old = counting(feeder)
    new = type("More", (old,), {"second": Count.spec(inputs=[old.words])})
    assert read_state(LocalRuntime(new, state=path).snapshot_state())["second"] == [{}]


def test_damaged_files_are_refused(feeder, tmp_path):
    kept = snapshot_of(feeder, "to be")
    for damaged, text in (
        (b"", "expected to begin with"),
        (b"something else", "expected to begin with"),
        (kept[:-1], "damaged or cut short"),
        (kept[:30], "damaged or cut short"),
        (kept[:-1] + bytes([kept[-1] ^ 1]), "damaged or cut short"),
    ):
        with pytest.raises(SnapshotError, match=text):
            LocalRuntime(counting(feeder), state=damaged)
        with pytest.raises(SnapshotError, match=text):
            read_state(damaged)
    for path in (tmp_path, tmp_path / "missing" / "state"):
        with pytest.raises(ArgumentValueError, match="no file can be at"):
            LocalRuntime(counting(feeder), state=path)
    with pytest.raises(ArgumentTypeError, match="expected a path, or the bytes of snapshot_state, got dict"):
        LocalRuntime(counting(feeder), state={})


class Gone:
    """A class that a later program does not have."""


def test_a_class_that_is_gone_is_named(feeder, monkeypatch):
    class Keeps(Count):
        def process(self, tup):
            self.state[tup.word] = Gone()

    with Scheduler.of(counting(feeder, Keeps)) as scheduler:
        feed(feeder, "to")
        scheduler.settle()
        kept = scheduler.runtime.snapshot_state()
    monkeypatch.delitem(globals(), "Gone")
    with pytest.raises(SnapshotError, match=r"component 'count'.*cannot be made again: AttributeError: .*Gone"):
        LocalRuntime(counting(feeder), state=kept)


def test_what_cannot_be_pickled_is_named_and_the_run_fails_at_its_end(feeder, tmp_path, caplog):
    class Keeps(Count):
        def process(self, tup):
            self.state[tup.word] = threading.Lock() if tup.word == "lock" else 1

    path = tmp_path / "state"
    feed(feeder, "fine lock")
    feeder.end()
    with pytest.raises(TopologyError, match=r"component 'count', task \d: the state cannot be pickled: key 'lock': "):
        run(counting(feeder, Keeps), until="drained", state=path)
    assert not path.exists()
    assert "the states of the bolts could not be saved" in caplog.text


def test_a_snapshot_waits_for_the_tuple_that_is_being_processed(feeder):
    entered, leave = threading.Event(), threading.Event()

    class Slow(Count):
        def process(self, tup):
            self.state["begun"] = tup.word
            if tup.word == "wait":
                entered.set()
                leave.wait()
            self.state["ended"] = tup.word

    with LocalRuntime(counting(feeder, Slow, par=1)) as runtime:
        feed(feeder, "wait next")
        entered.wait()
        with pytest.raises(RuntimeStateError, match=r"count\[2\] has been inside user code for 0 s"):
            runtime.snapshot_state(timeout_secs=0)
        taken = []
        taker = threading.Thread(target=lambda: taken.append(runtime.snapshot_state()))
        taker.start()
        leave.set()
        taker.join()
    [state] = read_state(taken[0])["count"]
    assert state["begun"] == state["ended"]


def test_snapshots_while_tasks_are_busy_are_between_tuples():
    """Each tuple moves one unit between two keys, so a snapshot within a tuple would show another sum."""
    taken = []

    class Numbers(Spout):
        outputs = ["number"]

        def initialize(self, conf, context):
            self.next = 0

        def next_tuple(self):
            for _ in range(100):
                self.emit([self.next % 7], tup_id=self.next)
                self.next += 1
            if len(taken) >= 20:
                self.finish()

    class Move(StatefulBolt):
        def init_state(self, state):
            for key in range(7):
                state.setdefault(key, [0])

        def process(self, tup):
            source, target = self.state[tup.number], self.state[(tup.number + 1) % 7]
            source[0] -= 1
            self.state["count"] = self.state.get("count", 0) + 1
            target[0] += 1

    numbers = Numbers.spec()
    topology = type(
        "Moving", (Topology,), {"numbers": numbers, "move": Move.spec(inputs=[numbers], par=4, executors=2)}
    )
    runtime = LocalRuntime(topology)
    with runtime:
        while len(taken) < 20:
            taken.append(runtime.snapshot_state())
        runtime.run_until("drained")
    taken.append(runtime.snapshot_state())
    before = [0] * 4
    for snapshot in taken:
        states = read_state(snapshot)["move"]
        counts = [state.pop("count", 0) for state in states]
        assert all(sum(value for (value,) in state.values()) == 0 for state in states)
        assert all(map(operator.ge, counts, before))
        before = counts
    assert sum(before) == runtime.stats().totals.acked


def test_bolts_that_run_elsewhere_have_no_snapshot_here(feeder):
    keeper = StateKeeper(counting(feeder).graph(), None)
    with pytest.raises(RuntimeStateError, match="component 'count' does not run in this process; its state is in"):
        keeper.snapshot([SimpleNamespace(state_gate=None)], 1)


def test_coroutines_share_the_state_and_a_snapshot_comes_between_their_steps(feeder):
    class Async(Count):
        async def process(self, tup):
            await asyncio.sleep(0)
            super().process(tup)

    feed(feeder, "to be or not to be")
    with LocalRuntime(counting(feeder, Async)) as runtime:
        runtime.run_until(6)
        assert total(runtime.snapshot_state()) == {"to": 2, "be": 2, "or": 1, "not": 1}


def test_a_snapshot_does_not_wait_for_coroutines_that_wait(feeder):
    waiting, calls = threading.Event(), []

    class Waits(Count):
        async def process(self, tup):
            self.state["begun"] = tup.word
            done = asyncio.Event()
            loop = asyncio.get_running_loop()
            calls.append(lambda: loop.call_soon_threadsafe(done.set))
            waiting.set()
            await done.wait()
            self.state["ended"] = tup.word

    with LocalRuntime(counting(feeder, Waits, par=1)) as runtime:
        feed(feeder, "wait")
        waiting.wait()
        assert total(runtime.snapshot_state()) == {"begun": "wait"}
        calls.pop()()
        runtime.run_until(1)
        assert total(runtime.snapshot_state()) == {"begun": "wait", "ended": "wait"}


def test_a_hook_may_take_a_snapshot(feeder):
    taken = []

    class Takes(Hook):
        def execute(self, component, task, tup):
            taken.append(total(scheduler.runtime.snapshot_state()))

    with Scheduler.of(counting(feeder), hooks=[Takes()]) as scheduler:
        feed(feeder, "to be")
        scheduler.settle()
    assert sorted(map(len, taken)) == [1, 2]


def test_replayed_tuples_count_again_and_what_failed_stays():
    """At least once: a tuple that failed after it had changed the state changes it again when it is replayed."""

    class Words(ReliableSpout):
        outputs = ["word"]
        backoff_secs = 1

        def next_tuple(self):
            self.emit(["storm"], tup_id=1)
            self.finish()

    class Fails(Count):
        def process(self, tup):
            super().process(tup)
            if self.state[tup.word] == 1:
                raise OSError("after the change")

    words = Words.spec()
    topology = type("Replayed", (Topology,), {"words": words, "count": Fails.spec(inputs=[words])})
    with Scheduler.of(topology) as scheduler:
        scheduler.drain()
        assert total(scheduler.runtime.snapshot_state()) == {"storm": 2}
