"""What a topology means, on both runtimes: groupings, streams, anchors, outcomes, and what the report counts."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

import acker.local
import acker.spark
from acker.local import Hook
from acker.topology import (
    BatchingBolt,
    Bolt,
    Grouping,
    Spout,
    Stream,
    Topology,
    auto_ack_bolt,
    auto_nack_bolt,
    reliable_spout,
    unreliable_spout,
)
from tests.spark.topologies.both import Both, Numbers, ReliableNumbers, note, run_both, run_scheduled, run_spark

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quiet")]

# With `full_batches`: all tuples of `Numbers` are in one micro-batch.
ALL_AT_ONCE = {"topology.max.spout.pending": len(Numbers.numbers)}


class Tracked(Numbers):
    """Numbers of two tasks."""

    numbers = range(60)


class Pass(Bolt):
    """Notes what it gets, and emits it again."""

    outputs = ["n", "key"]

    def process(self, tup):
        note(self, tup.n, tup.stream, tup.component, tup.task)
        self.emit([tup.n, tup.key])


class End(Bolt):
    """Notes what it gets."""

    def process(self, tup):
        note(self, tup.n, tup.stream, tup.component)


def chosen(values, tasks):
    """Return none, one or two tasks."""
    return [] if values[1] == 0 else sorted({tasks[values[1] % len(tasks)], tasks[-1]})


class Groupings(Topology):
    """Each grouping, behind a spout and behind a bolt."""

    numbers = Tracked.spec(par=2)
    words = Pass.spec(inputs={numbers: Grouping.fields("key")}, par=2)
    shuffle = End.spec(inputs={numbers: Grouping.shuffle, words: Grouping.shuffle}, par=3)
    none = End.spec(inputs={numbers: Grouping.none, words: Grouping.none}, par=3)
    beside = End.spec(inputs={words: Grouping.local_or_shuffle}, par=3)
    fields = End.spec(inputs={numbers: Grouping.fields("key"), words: Grouping.fields("n", "key")}, par=3)
    partial = End.spec(inputs={numbers: Grouping.partial_key("key")}, par=4)
    partial2 = End.spec(inputs={words: Grouping.partial_key("key")}, par=4)
    everywhere = End.spec(inputs={numbers: Grouping.all, words: Grouping.all}, par=3)
    lowest = End.spec(inputs={numbers: Grouping.global_, words: Grouping.global_}, par=3)
    custom = End.spec(inputs={numbers: Grouping.custom(chosen), words: Grouping.custom(chosen)}, par=3)


def test_each_grouping_sends_a_tuple_to_the_same_tasks(spark, tmp_path):
    both = run_both(Groupings, spark, tmp_path)
    for name in ("fields", "partial", "everywhere", "lowest", "custom"):
        assert both.spark.of(name) == both.local.of(name) != Counter(), name
    for name in ("shuffle", "none", "beside", "words", "partial2", "numbers"):
        assert both.spark.of(name, tasks=False) == both.local.of(name, tasks=False) != Counter(), name
    for end in (both.local, both.spark):
        tasks = {}
        for _, task, n, _, _ in end.of("partial2"):
            tasks.setdefault(n % 5, set()).add(task)
        assert all(len(found) <= 2 for found in tasks.values())
        assert end.report.outcome == "drained"
    assert len({key[1] for key in both.spark.of("shuffle")}) == 3
    assert both.differences() == {}


class Sorting(Bolt):
    """Emits to streams by name, and to tasks by id, and notes where its tuples went."""

    outputs = ["n", Stream(["n"], "odd"), Stream(["n", "to"], "straight", direct=True), Stream(["n"], "unread")]

    def initialize(self, conf, context):
        self.ends = context["component->tasks"]["straight"]

    def process(self, tup):
        if tup.n % 2:
            note(self, "odd", tup.n, tuple(self.emit([tup.n], stream="odd", need_task_ids=True)))
        note(self, "unread", tuple(self.emit([tup.n], stream="unread", need_task_ids=True)))
        to = self.ends[tup.n % 3]
        note(self, "to", tup.n, tuple(self.emit([tup.n, to], stream="straight", direct_task=to, need_task_ids=True)))
        note(self, "default", tup.n, len(self.emit([tup.n], need_task_ids=True)))


class Straight(Bolt):
    """Notes whether a tuple reached the task that it names."""

    def process(self, tup):
        note(self, tup.n, tup.to == self.task_id, tup.to)


class StraightNumbers(Spout):
    """A spout with a direct stream and a named one."""

    outputs = [Stream(["n", "to"], "straight", direct=True), Stream(["n"], "named")]

    def initialize(self, conf, context):
        self.todo = list(range(12))
        self.ends = context["component->tasks"]["straight"]

    def next_tuple(self):
        if not self.todo:
            self.finish()
            return
        n = self.todo.pop()
        to = self.ends[n % 3]
        tasks = self.emit([n, to], tup_id=n, stream="straight", direct_task=to, need_task_ids=True)
        self.emit([n], stream="named")
        note(self, n, tuple(tasks))

    def ack(self, tup_id):
        note(self, "ack", tup_id)


class Streams(Topology):
    """Named and direct streams, and a bolt with inputs of several components."""

    numbers = Numbers.spec()
    others = StraightNumbers.spec()
    sorting = Sorting.spec(inputs={numbers: Grouping.fields("n")}, par=2)
    odd = End.spec(inputs={sorting["odd"]: Grouping.fields("n"), others["named"]: Grouping.shuffle}, par=2)
    straight = Straight.spec(inputs={sorting["straight"]: Grouping.direct, others["straight"]: Grouping.direct}, par=3)
    end = End.spec(inputs=[sorting, numbers, others["named"]], par=2)


def test_named_and_direct_streams_go_where_they_should(spark, tmp_path):
    both = run_both(Streams, spark, tmp_path)
    for name in ("straight", "sorting", "others", "numbers"):
        assert both.spark.of(name) == both.local.of(name) != Counter(), name
    for name in ("end", "odd"):
        assert both.spark.of(name, tasks=False) == both.local.of(name, tasks=False) != Counter(), name
    assert all(reached for _, _, _, reached, _ in both.spark.of("straight"))
    assert both.differences() == {}


class Join(Bolt):
    """Emits one tuple for two that belong together, anchored to both; the second fails both, for some numbers."""

    outputs = ["n", "key"]
    auto_ack = False

    def initialize(self, conf, context):
        self.first = {}

    def process(self, tup):
        if tup.n not in self.first:
            self.first[tup.n] = tup
            return
        both = [self.first.pop(tup.n), tup]
        self.emit([tup.n, tup.key], anchors=both)
        for each in both:
            self.ack(each)


class Picky(Bolt):
    """Fails some numbers."""

    def process(self, tup):
        note(self, tup.n)
        if tup.n % 7 == 3:
            raise ValueError(f"{tup.n} is not wanted")


class Diamond(Topology):
    """A fork whose two ways meet again, in a bolt with several anchors."""

    numbers = ReliableNumbers.spec()
    left = Pass.spec(inputs=[numbers], par=2)
    right = Pass.spec(inputs={numbers: Grouping.fields("n")}, par=2)
    join = Join.spec(inputs={left: Grouping.fields("n"), right: Grouping.fields("n")}, par=2)
    end = Picky.spec(inputs=[join], par=2)


def test_diamonds_and_several_anchors_end_alike(spark, tmp_path):
    both = run_both(Diamond, spark, tmp_path)
    assert both.spark.of("numbers") == both.local.of("numbers")
    assert both.spark.of("end", tasks=False) == both.local.of("end", tasks=False)
    assert sorted(key[3] for key in both.spark.of("numbers") if key[2] == "dead") == [3, 10, 17, 24]
    assert both.differences() == {}


class Pair(Bolt):
    """Anchors what it emits to the tuples of two different trees."""

    outputs = ["n", "pair"]
    auto_ack = False

    def initialize(self, conf, context):
        self.held = {}

    def process(self, tup):
        other = self.held.pop(tup.n ^ 1, None)
        if other is None:
            self.held[tup.n] = tup
            return
        self.emit([tup.n & ~1, 2], anchors=[tup, other])
        self.ack(tup)
        self.ack(other)


class PickyPairs(Bolt):
    """Fails pairs."""

    def process(self, tup):
        if tup.n % 6 == 0:
            self.raise_exception(ValueError("logged, and nothing else"), tup)
            raise ValueError("both fail")


class Pairs(Topology):
    """Tuples that belong to two trees."""

    numbers = Numbers.spec()
    pair = Pair.spec(inputs={numbers: Grouping.global_})
    end = PickyPairs.spec(inputs=[pair], par=2)


@pytest.mark.usefixtures("full_batches")
def test_a_tuple_of_two_trees_fails_both(spark, tmp_path):
    both = run_both(Pairs, spark, tmp_path, ALL_AT_ONCE)
    assert both.spark.of("numbers", tasks=False) == both.local.of("numbers", tasks=False)
    assert sorted(key[1] for key in both.spark.of("numbers", tasks=False) if key[0] == "fail") == sorted(
        n for n in range(30) if (n & ~1) % 6 == 0
    )
    assert both.differences() == {}


class Loose(Bolt):
    """Does not anchor what it emits."""

    outputs = ["n"]
    auto_anchor = False

    def process(self, tup):
        self.emit([tup.n])
        if tup.n % 2:
            self.emit([tup.n], anchors=[tup])


class Careless(Bolt):
    """Raises; whatever is not anchored to a tree fails none."""

    def process(self, tup):
        note(self, tup.n)
        raise ValueError(f"{tup.n} is one too many")


class Manual(Bolt):
    """Acks and fails by itself, and emits after some acks."""

    outputs = ["n", "key"]
    auto_ack = auto_fail = False

    def process(self, tup):
        if tup.n % 5 == 0:
            self.fail(tup, f"{tup.n} by hand")
        elif tup.n % 5 == 1:
            self.fail(tup)
        else:
            self.emit([tup.n, tup.key])
            self.ack(tup)
            if tup.n % 5 == 2:
                self.emit([tup.n + 100, tup.key], anchors=[])


class Flags(Topology):
    """Bolts that do by hand what others leave to the runtime."""

    numbers = Numbers.spec()
    others = Numbers.spec()
    loose = Loose.spec(inputs=[numbers], par=2)
    careless = Careless.spec(inputs=[loose])
    manual = Manual.spec(inputs=[others], par=2)
    end = Picky.spec(inputs=[manual])


def test_bolts_that_anchor_ack_and_fail_by_hand(spark, tmp_path):
    both = run_both(Flags, spark, tmp_path)
    for name in ("numbers", "others", "careless", "end"):
        assert both.spark.of(name, tasks=False) == both.local.of(name, tasks=False) != Counter(), name
    assert both.differences() == {}


class Forgetful(Bolt):
    """Never acks some tuples."""

    auto_ack = False

    def process(self, tup):
        if tup.n % 3:
            self.ack(tup)


class Held(Topology):
    """A bolt that leaves tuples open."""

    numbers = ReliableNumbers.spec()
    forgetful = Forgetful.spec(inputs=[numbers], par=2)


def test_a_tuple_that_nobody_acks_times_out(spark, tmp_path):
    # On a clock of its own, so that no tuple times out here that is only slow.
    both = Both(run_scheduled(Held, tmp_path / "local"), run_spark(Held, spark, tmp_path / "spark"))

    ours, theirs = (
        # The texts differ: one says how long the timeout is.
        Counter(note[:2] for note in end.of("numbers", tasks=False).elements())
        for end in (both.local, both.spark)
    )
    assert theirs == ours
    kinds = {key[2] for key in both.spark.of("numbers", tasks=False) if key[0] == "fail"}
    assert kinds == {"TIMED_OUT"}
    assert both.differences() == {}


def read(args):
    """Emit numbers."""
    if not args:
        raise StopIteration
    n = args.pop()
    return n, [n, n % 5]


def read_unreliable(args):
    """Emit numbers that nobody tracks."""
    if not args:
        raise StopIteration
    n = args.pop()
    return [n, n % 5]


def double(args, tup, emit):
    """Emit a tuple twice; refuse some."""
    if tup.n % 7 == 6:
        raise ValueError("no")
    emit([tup.n, tup.key])
    emit([tup.n + 1, tup.key])


class Dispatch(Topology):
    """A topology of functions."""

    reliable = reliable_spout(read, make_args=lambda conf, context: list(range(20)), outputs=["n", "key"]).spec()
    unreliable = unreliable_spout(
        read_unreliable, make_args=lambda conf, context: list(range(20)), outputs=["n", "key"]
    ).spec()
    double = auto_ack_bolt(double, outputs=["n", "key"]).spec(inputs=[reliable, unreliable], par=2)
    end = End.spec(inputs={double: Grouping.fields("n")}, par=2)


class Nacked(Topology):
    """A topology in which all fails."""

    numbers = Numbers.spec()
    never = auto_nack_bolt(lambda args, tup, emit: None).spec("never", inputs=[numbers])


def test_functions_of_fsshelters_dispatch(spark, tmp_path):
    both = run_both(Dispatch, spark, tmp_path / "ack")
    assert both.spark.of("end") == both.local.of("end") != Counter()
    assert both.differences() == {}
    both = run_both(Nacked, spark, tmp_path / "nack")
    assert both.spark.of("numbers") == both.local.of("numbers") != Counter()
    assert both.differences() == {}


class Untracked(Numbers):
    """Numbers without ids."""

    def emit(self, values, tup_id=None, **options):
        return super().emit(values, **options)


class Mixed(Topology):
    """Tracked tuples, and untracked ones, some of which make a bolt raise."""

    numbers = Numbers.spec()
    untracked = Untracked.spec()
    words = Pass.spec(inputs=[numbers, untracked], par=2)
    end = Picky.spec(inputs={words: Grouping.fields("key")}, par=2)


@pytest.mark.parametrize("ackers", [0, 1, 3])
def test_untracked_tuples_are_processed_and_nobody_hears_of_them(spark, tmp_path, ackers):
    both = run_both(Mixed, spark, tmp_path, {"topology.acker.tasks": ackers})
    for name in ("numbers", "untracked"):
        assert both.spark.of(name) == both.local.of(name), name
    assert both.spark.of("end") == both.local.of("end") != Counter()
    assert not both.spark.of("untracked")
    assert both.differences() == {}


class Batches(BatchingBolt):
    """Emits one tuple for a batch, and notes how many it had."""

    outputs = ["n", "size"]

    def group_key(self, tup):
        return tup.key

    def process_batch(self, key, tups):
        self.report_metric("batches")
        self.report_metric("tuples", len(tups))
        if key == 3:
            raise ValueError("no batch of threes")
        self.emit([sum(tup.n for tup in tups), len(tups)])


class Sums(Bolt):
    """Notes what batches say."""

    def process(self, tup):
        note(self, tup.n, tup.size)


class Batched(Topology):
    """Batches."""

    numbers = Numbers.spec()
    batches = Batches.spec(
        inputs={numbers: Grouping.fields("key")}, par=2, config={"topology.tick.tuple.freq.secs": 0.5}
    )
    sums = Sums.spec(inputs=[batches])


@pytest.mark.usefixtures("full_batches")
def test_a_batch_ends_with_its_micro_batch(spark, tmp_path):
    # On a clock of its own, so that here, too, all tuples come before the first tick.
    local = run_scheduled(Batched, tmp_path / "local")
    both = Both(local, run_spark(Batched, spark, tmp_path / "spark", ALL_AT_ONCE))
    assert both.spark.of("numbers") == both.local.of("numbers")
    assert both.spark.of("sums") == both.local.of("sums") != Counter()
    assert both.differences("executed") == {}
    assert both.spark.report.stats.components()["batches"].user == {"batches": 5, "tuples": 30}


class Coroutines(Bolt):
    """Awaits, emits before and after, and raises for some."""

    outputs = ["n", "key"]

    async def process(self, tup):
        self.report_metric("running")
        await asyncio.sleep(0)
        self.emit([tup.n, tup.key], anchors=[tup])
        await asyncio.sleep(0.001 * (tup.n % 3))
        if tup.n % 11 == 0:
            raise ValueError(f"{tup.n} after a while")


class Awaited(Topology):
    """Coroutines in the middle."""

    numbers = ReliableNumbers.spec()
    coroutines = Coroutines.spec(inputs=[numbers], par=2, config={"topology.async.max.concurrency": 7})
    end = End.spec(inputs={coroutines: Grouping.fields("n")}, par=2)


def test_coroutines_end_with_their_micro_batch(spark, tmp_path):
    both = run_both(Awaited, spark, tmp_path)
    assert both.spark.of("numbers") == both.local.of("numbers")
    assert both.spark.of("end") == both.local.of("end") != Counter()
    assert both.differences() == {}


class Counting(Hook):
    """Counts what it sees, in the place of the component that has it."""

    def __init__(self, component):
        self.component = component

    def emit(self, component, task, stream, values, tasks):
        note(self.component, "hook emit", tuple(values))

    def execute(self, component, task, tup):
        note(self.component, "hook execute", tup.n)

    def ack(self, component, task, tup):
        note(self.component, "hook ack", tup.n)

    def fail(self, component, task, tup, reason):
        note(self.component, "hook fail", tup.n, reason.exception)

    def cleanup(self, component, task):
        note(self.component, "hook cleanup")


class Hooked(Bolt):
    """Has a hook of its own, resets timeouts, and closes."""

    outputs = ["n"]

    def initialize(self, conf, context):
        self.add_task_hook(Counting(self))

    def process(self, tup):
        self.reset_timeout(tup)
        self.emit([tup.n])
        if tup.n % 7 == 3:
            raise ValueError("hm")

    def close(self):
        note(self, "close")


class WithHooks(Topology):
    """A bolt with a hook."""

    numbers = Numbers.spec()
    hooked = Hooked.spec(inputs=[numbers], par=1)
    end = End.spec(inputs=[hooked])


class Seen(Hook):
    """Keeps what happens to spouts."""

    def __init__(self):
        self.calls = Counter()

    def emit(self, component, task, stream, values, tasks):
        if component == "numbers":
            self.calls["emit", tuple(values)] += 1

    def spout_ack(self, component, task, tup_id, complete_ms):
        self.calls["ack", tup_id] += 1

    def spout_fail(self, component, task, tup_id, reason):
        self.calls["fail", tup_id, reason.exception] += 1


def test_hooks_see_bolts_in_workers_and_spouts_on_the_driver(spark, tmp_path):
    seen = []
    for run in (acker.local.run, lambda *args, **options: acker.spark.run(*args, spark=spark, **options)):
        hook = Seen()
        folder = tmp_path / f"run{len(seen)}"
        folder.mkdir()
        run(WithHooks, {"user.notes": str(folder)}, until="drained", hooks=[hook])
        seen.append(hook.calls)
    assert seen[0] == seen[1]
    both = run_both(WithHooks, spark, tmp_path / "both")

    def once(end):
        return {key: count for key, count in end.of("hooked").items() if key[2] not in {"close", "hook cleanup"}}

    assert once(both.spark) == once(both.local) != {}
    assert both.spark.of("hooked", tasks=False)[("close",)] >= 1
    assert both.differences() == {}


class Unready(Bolt):
    """Cannot be initialized."""

    def initialize(self, conf, context):
        raise LookupError("no such table: words")

    def process(self, tup):
        pass


class Unborn(Bolt):
    """Cannot be made."""

    def __init__(self):
        super().__init__()
        raise LookupError("no such key: password")

    def process(self, tup):
        pass


class UnreadySpout(Numbers):
    """Cannot be initialized."""

    def initialize(self, conf, context):
        raise LookupError("no such topic: words")


@pytest.mark.parametrize(
    ("spout", "bolt", "text"),
    [
        (Numbers, Unready, "no such table: words"),
        (Numbers, Unborn, "no such key: password"),
        (UnreadySpout, End, "no such topic: words"),
    ],
)
def test_what_cannot_begin_ends_the_run_and_names_the_component(spark, tmp_path, spout, bolt, text):
    class Faulty(Topology):
        source = spout.spec()
        words = Pass.spec(inputs=[source])
        sink = bolt.spec(inputs={words: Grouping.fields("n")})

    with pytest.raises(Exception, match=text) as raised:
        run_spark(Faulty, spark, tmp_path / "spark")
    told = f"{raised.value} {' '.join(getattr(raised.value, '__notes__', ()))}"
    assert ("source" if spout is UnreadySpout else "sink") in told
