"""The native module `_flow`: wrong calls raise and never crash the interpreter, and Python can collect its tuples."""

import gc
import inspect
import logging
import subprocess
import sys
import sysconfig
import textwrap
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker import _flow
from acker.local import Hook, LocalRuntime
from acker.testing import ManualClock, Scheduler
from acker.topology import Bolt, Spout, Topology, stable_hash

HAS_GIL = not sysconfig.get_config_var("Py_GIL_DISABLED")
ERRORS = (TypeError, ValueError, OverflowError, AttributeError, IndexError, ZeroDivisionError)


class Values(tuple):
    __slots__ = ()


class Tup(_flow.TupleBase):
    __slots__ = ("f",)


Tup._slots = _flow.ValueSlots(Tup, Values, ["f"])


class Ids:
    def take(self, n):
        return np.arange(1, n + 1)


def source(tuple_type=Tup):
    return SimpleNamespace(fields=("f",), tuple_type=tuple_type)


def emitter_of(routes, kind=_flow.SpoutEmitter, **options):
    options.setdefault("now_ns", lambda: 0)
    ack_sender = _flow.AckSender([])
    return kind(1, routes, _flow.OutputBuffer(10), ack_sender, Ids(), _flow.Latencies([1]), **options)


def refuses(*calls):
    for call in calls:
        with pytest.raises(ERRORS):
            call()


def test_batches_to_no_acker():
    ack_sender = _flow.AckSender([])
    refuses(
        lambda: ack_sender.track(1, 2, 3, 4), lambda: ack_sender.fail([1], "x"), lambda: ack_sender.reset_timeout([1])
    )
    assert (len(ack_sender), ack_sender.send()) == (0, 0)


def test_latencies_without_bounds():
    blank = _flow.Latencies.__new__(_flow.Latencies)
    refuses(lambda: blank.record(5))
    again = _flow.Latencies([1, 2, 3])
    again.__init__([1])
    again.record(7)
    assert again.totals() == ((0, 1), 7)


@pytest.mark.parametrize("what", [None, "outlet", 7])
def test_an_output_buffer_that_holds_something_else(what):
    output = _flow.OutputBuffer(10)
    output.dirty.append(what)
    refuses(output.flush, output.discard)


def test_columns_of_what_is_no_batch():
    refuses(lambda: _flow.columns_of([None]), lambda: _flow.columns_of(["x"]), lambda: _flow.columns_of(None))


def test_groupings_without_outlets_or_beyond_them():
    outlet = _flow.Outlet(SimpleNamespace(put=lambda *_: None), 0, 1)
    for grouping in (
        _flow.ShuffleGrouping([], 0),
        _flow.ShuffleGrouping([outlet], 5),
        _flow.FieldsGrouping([outlet], 7, hash),
        _flow.FieldsGrouping([outlet], -1, hash),
        _flow.FieldsGrouping([], 0, hash),
        _flow.CustomGrouping(lambda _: [None]),
        _flow.CustomGrouping(lambda _: None),
        _flow.CombinedGrouping([None]),
        _flow.StreamGrouping(),
        _flow.ShuffleGrouping.__new__(_flow.ShuffleGrouping),
        None,
    ):
        spout = emitter_of({None: _flow.Route(source(), grouping, False, {})})
        with pytest.raises((*ERRORS, NotImplementedError)):
            spout.emit(["x"])


@given(text=st.text(max_size=100) | st.sampled_from(["", "\ud800", "x" * 64, "x" * 65, "\N{SNOWMAN}" * 30]))
def test_a_text_reaches_the_task_of_its_stable_hash(text):
    outlets = [_flow.Outlet(None, 0, task) for task in range(7)]
    grouping = _flow.FieldsGrouping(outlets, 0, stable_hash)
    emitter = emitter_of({None: _flow.Route(source(), grouping, False, {})})
    before = emitter.output.enter()  # as the executor's thread, which puts tuples into buffers
    try:
        assert emitter.emit([text], need_task_ids=True) == [stable_hash(text) % 7]
    finally:
        emitter.output.leave(before)


def test_routes_of_no_stream():
    refuses(
        lambda: _flow.Route(source(tuple_type=int), None, False, {}),
        lambda: _flow.Route(source(tuple_type=_flow.TupleBase), None, False, {}),
        lambda: emitter_of({None: _flow.Route.__new__(_flow.Route)}).emit([]),
        lambda: emitter_of({None: object()}).emit([]),
    )


def test_slots_of_other_classes():
    class NoSlots(_flow.TupleBase):
        f = 1

    class Borrows(_flow.TupleBase):
        f = Tup.f

    refuses(
        lambda: _flow.ValueSlots(Borrows, Values, ["f"]),
        lambda: _flow.ValueSlots(Tup, int, ["f"]),
        lambda: _flow.ValueSlots(int, Values, ["real"]),
        lambda: _flow.ValueSlots(NoSlots, Values, ["f"]),
    )


def test_slots_that_are_made_again_are_made_whole_or_not_at_all():
    made = of_its_own_type()
    emitter = emitter_of({None: _flow.Route(source(made), _flow.AllGrouping([]), False, {})})
    refuses(lambda: made._slots.__init__(made, Values, ["f", "none"]))
    assert (len(made._slots), made(("x",), None).f) == (1, "x")
    made._slots.__init__(made, Values, [])
    refuses(lambda: emitter.emit(["x"]))


def test_a_class_of_tuples_that_makes_something_else():
    made = of_its_own_type()
    made.__new__ = lambda *_: object()
    refuses(lambda: emitter_of({None: _flow.Route(source(made), _flow.AllGrouping([]), False, {})}).emit(["x"]))


@pytest.mark.parametrize("row", ["x", ["x"], {0: "x"}, 7], ids=repr)
def test_a_source_whose_rows_are_no_tuples(row):
    odd = source()
    odd.row_of = lambda _: row
    refuses(lambda: emitter_of({None: _flow.Route(odd, _flow.AllGrouping([]), False, {})}).emit({"f": "x"}))


@pytest.mark.parametrize("anchors", [None, "x", [], 0.5], ids=repr)
def test_a_collector_whose_anchors_are_no_tuple(anchors):
    class Odd(_flow.BoltEmitter):
        def _anchors_of(self, _):
            return anchors

        def _refuse_unanchored(self):
            return anchors

    route = _flow.Route(source(), _flow.AllGrouping([]), False, {})
    emitter = emitter_of({None: route}, Odd, auto_anchor=True, sample_every=1)
    refuses(lambda: emitter.emit(["x"], anchors=iter(())), lambda: emitter.emit(["x"]))


def test_columns_that_are_no_lists():
    numbers = np.zeros(1, np.int64)
    for column in (("x",), "x", numbers):
        refuses(lambda column=column: _flow.unpack_deliveries(source(), [column], numbers, numbers, {}, None))


def test_a_tuple_with_other_values_than_its_class_has_slots():
    refuses(lambda: Tup((), None), lambda: Tup(("one", "two"), None), lambda: Tup(None, None))


def test_a_tuple_without_values():
    blank = Tup.__new__(Tup)
    refuses(lambda: blank.f, lambda: blank.values, lambda: _flow.pack_deliveries([blank]))
    refuses(lambda: _flow.TupleBase.__new__(_flow.TupleBase).values)


def test_the_values_of_a_tuple_are_read_only():
    tup = Tup(("x",), None)
    refuses(lambda: setattr(tup, "f", "y"), lambda: delattr(tup, "f"), lambda: setattr(tup, "values", ("y",)))
    assert (tup.f, tup.values) == ("x", ("x",))


@pytest.mark.parametrize("sample_every", [0, -1])
def test_a_bolt_that_samples_nothing(sample_every):
    refuses(
        lambda: emitter_of({}, _flow.BoltEmitter, auto_anchor=True, sample_every=sample_every),
        lambda: _flow.BoltEmitter.__new__(_flow.BoltEmitter).run([], 0, 0, Bolt(), True, print),
    )


class Items(Spout):
    outputs = ("item",)
    items: list = []

    def initialize(self, conf, context):
        self.rest = list(self.items)

    def next_tuple(self):
        if self.rest:
            self.emit([self.rest.pop(0)], tup_id=len(self.rest))
        else:
            self.finish()


class Keeper(Bolt):
    """Keeps all tuples, and acks those of numbers."""

    auto_ack = False
    seen: list = []

    def initialize(self, conf, context):
        self.held = []

    def process(self, tup):
        type(self).seen.append((tup.item, gc.is_tracked(tup)))
        self.held.append(tup)
        if isinstance(tup.item, int):
            self.ack(tup)


class Kept(Topology):
    items = Items.spec()
    keeper = Keeper.spec(inputs=[items])


def test_the_cyclic_collector_looks_at_tuples_that_can_be_part_of_a_cycle(monkeypatch):
    nested, deep = (1, ("a", 2.0)), ([],)
    given = ["text", 1, None, b"b", nested, deep, [1], {"a": 1}]
    monkeypatch.setattr(Items, "items", given)
    monkeypatch.setattr(Keeper, "seen", [])
    clock = ManualClock()
    runtime = LocalRuntime(Kept, clock=clock, seed=1, threads=False)
    with Scheduler(runtime, clock) as scheduler:
        scheduler.settle()
        (task,) = (task for executor in runtime.lifecycle.executors.bolts for task in executor.tasks)
        held = task.bolt.held
        assert Keeper.seen == [(item, item in (deep, [1], {"a": 1})) for item in given]
        assert [gc.is_tracked(tup) for tup in held] == [item != 1 for item in given], "what is held, and not settled"
        runtime.lifecycle.abort()
        scheduler.stop(0)
    gone = weakref.ref(task.bolt)
    del task, held, runtime, scheduler
    gc.collect()
    assert gone() is None, "a tuple that a bolt holds is part of a cycle"


class Crashing(Bolt):
    """Ends its first life with a tuple in its hands, as part of a cycle: its hook refers to it."""

    auto_fail = False
    lives: list = []

    def initialize(self, conf, context):
        self.lives.append(weakref.ref(self))
        self.held, hook = [], Hook()
        hook.bolt = self
        self.add_task_hook(hook)

    def process(self, tup):
        self.held.append(tup)
        if len(self.lives) < 3:
            raise ValueError("expected")


class Crashes(Topology):
    items = Items.spec()
    crashing = Crashing.spec(inputs=[items])


def test_a_bolt_that_crashed_with_a_tuple_is_collected(monkeypatch):
    monkeypatch.setattr(Items, "items", [1])
    monkeypatch.setattr(Crashing, "lives", [])
    # Log records that pytest keeps would hold the exceptions, and so the bolts.
    monkeypatch.setattr(logging.getLogger("acker.local"), "disabled", True)
    clock = ManualClock()
    with Scheduler(LocalRuntime(Crashes, clock=clock, seed=1, threads=False), clock) as scheduler:
        for _ in range(10):
            scheduler.advance(5)
        gc.collect()
        assert [life() is None for life in Crashing.lives] == [True, False, False], "the last crash is kept"
        scheduler.runtime.lifecycle.abort()
        scheduler.stop(0)


class Answering(Bolt):
    """Returns the same object for each tuple."""

    answer: object = None

    def process(self, tup):
        return self.answer


class Answers(Topology):
    items = Items.spec()
    answering = Answering.spec(inputs=[items])


@pytest.mark.parametrize("answer", [None, ["of no use"]], ids=["None", "a list"])
def test_what_process_returns_is_released(monkeypatch, answer):
    """For None a leak shows on Python 3.11 only: it is immortal since."""
    monkeypatch.setattr(Items, "items", list(range(1000)))
    monkeypatch.setattr(Answering, "answer", answer)
    clock = ManualClock()
    with Scheduler(LocalRuntime(Answers, clock=clock, seed=1, threads=False), clock) as scheduler:
        before = sys.getrefcount(answer)
        report = scheduler.drain()
        assert report.stats.totals.acked == 1000
        assert sys.getrefcount(answer) < before + 500


def of_its_own_type():
    """Return a new class of tuples, and the slots of its one value."""
    made = type("Made", (_flow.TupleBase,), {"__slots__": ("f",)})
    made._slots = _flow.ValueSlots(made, Values, ["f"])
    return made


def test_a_tuple_that_takes_the_memory_of_another_one_has_nothing_of_it():
    made = of_its_own_type()
    value = Values(("x",))

    def references():
        # Without a GIL Python counts those to a class by thread.
        return sys.getrefcount(value), HAS_GIL and sys.getrefcount(made)

    before = references()
    tuples = [made((value,), "source", {1: 2, 3: 4}) for _ in range(5_000)]
    for tup in tuples:
        tup._ack_val, tup._owner = 7, value
    assert sys.getrefcount(value) > before[0]
    del tup
    tuples.clear()
    assert references() == before
    again = [made.__new__(made) for _ in range(5_000)]
    for tup in again:
        assert (tup._ids, tup._ack_val, tup._owner, tup._source) == (None, 0, None, None)
        with pytest.raises(AttributeError):
            tup.f  # noqa: B018  A slot without a value raises.


def test_tuples_that_hold_each_other_are_dropped_however_many_there_are():
    made = of_its_own_type()
    value = Values()
    before = sys.getrefcount(value)
    # Python 3.13 without a GIL may keep any class for ever.
    gone, usual = weakref.ref(of_its_own_type()), weakref.ref(type("Usual", (), {}))
    tup = made((value,), None)
    for _ in range(300_000):
        tup = made((tup,), None)
    del tup
    gc.collect()
    assert sys.getrefcount(value) == before
    assert (gone() is None) == (usual() is None), "a class of tuples that nobody uses goes too"


def test_a_class_that_inherits_from_one_of_tuples_is_like_any_class():
    class Marked(of_its_own_type()):
        pass

    class Slotted(of_its_own_type()):
        __slots__ = ("__weakref__", "g")

    value = Values()
    before = sys.getrefcount(value)
    for kind in (Marked, Slotted):
        tup = kind.__new__(kind)
        tup.g = tup._owner = value
        gone = weakref.ref(tup)
        del tup
        assert gone() is None
        cycle = kind.__new__(kind)
        cycle.g, cycle._owner = cycle, value
        gone = weakref.ref(cycle)
        del cycle
        gc.collect()
        assert gone() is None
    assert sys.getrefcount(value) == before


class Relay(Bolt):
    """Emits for itself and for another bolt, and runs a topology of its own in between."""

    outputs = ("by",)
    others: list = []
    made: list = []

    def initialize(self, conf, context):
        self.others.append(self)

    def process(self, tup):
        first = self.others[0]
        self.emit([(self.task_id, self.task_id)])
        Bolt.emit(self, [(self.task_id, self.task_id)])
        first.emit([(self.task_id, first.task_id)], anchors=[])
        if self is not first and not self.made:
            clock = ManualClock()
            inner = LocalRuntime(Kept, clock=clock, seed=1, threads=False)
            with Scheduler(inner, clock) as scheduler:
                scheduler.settle()
                inner.lifecycle.abort()
                scheduler.stop(0)
            self.made.append(inner)
        self.emit([(self.task_id, self.task_id)])


class Sources(Bolt):
    found: list = []

    def process(self, tup):
        self.found.append((*tup.by, tup.task))


class Relays(Topology):
    items = Items.spec()
    relay = Relay.spec(inputs=[items], par=2)
    sources = Sources.spec(inputs=[relay])


def test_a_bolt_emits_as_itself_whoever_runs(monkeypatch):
    monkeypatch.setattr(Items, "items", [1, 2, 3, 4])
    for kind, name in ((Relay, "others"), (Relay, "made"), (Sources, "found"), (Keeper, "seen")):
        monkeypatch.setattr(kind, name, [])
    clock = ManualClock()
    with Scheduler(LocalRuntime(Relays, clock=clock, seed=1, threads=False), clock) as scheduler:
        scheduler.settle()
        first, second = (relay.task_id for relay in Relay.others)
    assert Relay.made, "a topology ran within another one"
    assert sorted(Sources.found) == sorted(
        [(first, first, first)] * 8 + [(second, first, first)] * 2 + [(second, second, second)] * 6
    )


def test_emit_says_what_it_takes():
    assert list(inspect.signature(Bolt.emit).parameters)[:3] == ["self", "tup", "stream"]
    assert list(inspect.signature(Spout.emit).parameters)[:3] == ["self", "tup", "tup_id"]
    assert "auto_anchor" in inspect.getdoc(Bolt.emit)
    with pytest.raises(AttributeError, match="Keeper: no runtime has started this task yet"):
        Keeper().emit([1])


def test_nothing_of_it_is_pickled():
    import pickle

    for each in (_flow.TupleBase((1,), None), _flow.Latencies([1]), _flow.AckSender([])):
        refuses(lambda each=each: pickle.dumps(each))


def test_what_an_executor_changes_is_read_by_another_thread():
    class Queue:
        taken = 0

        def put(self, chunk, items):
            self.taken += items

    feed = source()
    queue = Queue()
    outlet = _flow.Outlet(queue, 0, 2)
    routes = {None: _flow.Route(feed, _flow.AllGrouping([outlet]), False, {})}
    emitter = emitter_of(routes, _flow.BoltEmitter, auto_anchor=True, sample_every=1)
    rounds, width = 2_000, 8

    bolt = SimpleNamespace(process=lambda tup: emitter.emit([object()]))

    def work():
        before = emitter.output.enter()
        for _ in range(rounds):
            tuples = [Tup((object(),), feed) for _ in range(width)]
            begin = 0
            while begin < width:
                begin = emitter.run(tuples, begin, width, bolt, False, None)
                emitter.output.flush()
        emitter.output.leave(before)

    executor = threading.Thread(target=work)
    executor.start()
    kinds = set()
    while executor.is_alive():
        kinds.update(type(tup) for tup in (*emitter.inputs, *outlet.waiting()))
    executor.join()
    assert (queue.taken, outlet.sent) == (rounds * width, rounds * width)
    assert kinds <= {Tup}
    assert (emitter.inputs, outlet.waiting()) == ((), [])


def in_a_process_of_its_own(code):
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code)],
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_batch_for_which_there_is_no_memory_holds_whole_messages():
    said = in_a_process_of_its_own(
        """
        import resource
        import numpy as np
        from acker import _flow

        class Queue:
            def put(self, batch, items):
                self.batch = batch

        queue = Queue()
        ack_sender = _flow.AckSender([queue])
        with open("/proc/self/statm") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (size + (48 << 20), before[1]))
        written = 0
        try:
            while True:
                ack_sender.track(written, written + 1, 2, written + 3)
                written += 1
        except MemoryError:
            pass
        resource.setrlimit(resource.RLIMIT_AS, before)
        ack_sender.send()
        kind, root, value, task, message = _flow.columns_of([queue.batch])
        assert len(root) == written > 100_000
        assert (value == root + 1).all() and (message == root + 3).all() and (task == 2).all()
        print("whole")
        """
    )
    assert said == "whole\n"


HOSTILE = """
    import inspect, os, random, resource, warnings
    import numpy as np
    from types import SimpleNamespace
    from acker import _core, _flow

    warnings.simplefilter("ignore")
    if "ASAN_OPTIONS" not in os.environ:  # It needs terabytes of addresses.
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
    rng = random.Random({seed})
    kinds = [kind for module in (_core, _flow) for kind in vars(module).values() if inspect.isclass(kind)]
    kinds = [kind for kind in kinds if kind.__module__ in ("acker._core", "acker._flow")]
    functions = [_core.shards_of, _core.xxh64, _core.xxh64_each, _core.open_trees_bytes]
    functions.append(_flow.columns_of)
    numbers = [None, -1, 0, 1, 2, 3, 8, 255, 2**31 - 1, 2**32, 2**63 - 1, -(2**63), 2**64 - 1, 2**80, 1.5, True]
    arrays = [
        np.arange(n).astype(t)
        for n in (0, 1, 3)
        for t in (np.int8, np.int32, np.int64, np.uint8, np.uint32, np.float64)
    ]
    class Values(tuple):
        pass
    streams = SimpleNamespace(fields=("a",), values_type=Values, tuple_type=_flow.TupleBase)
    others = ["x", b"x", b"", bytearray(4096), (), [], {{}}, {{None: None}}, [None], (None,), ("x",), (1, 2, 3),
              [(1, 0, None)], repr, lambda *_: None, streams, Values(("x",)), iter([]), object()]
    things = []

    def argument():
        pool = rng.choice([numbers, arrays, others, things or others])
        return rng.choice(pool)

    def attempt(call):
        global failed
        try:
            return call()
        except Exception:
            failed += 1

    made = called = failed = 0
    for _ in range({turns}):
        turn = rng.random()
        if turn < 0.3:
            kind = rng.choice(kinds)
            arguments = [argument() for _ in range(rng.randrange(9))]
            names = ("now_ns", "auto_anchor", "sample_every")
            named = {{name: argument() for name in names if rng.random() < 0.1}}
            thing = attempt((lambda: kind.__new__(kind)) if rng.random() < 0.4 else (lambda: kind(*arguments, **named)))
            if thing is not None:
                made += 1
                things.append(thing)
                del things[:-60]
        elif turn < 0.33:
            function = rng.choice(functions)
            attempt(lambda: function(*[argument() for _ in range(rng.randrange(1, 4))]))
        elif things:
            thing = rng.choice(things)
            names = [name for name in dir(type(thing)) if not name.startswith("__")]
            name = rng.choice([*names, "__init__", "__len__", "__enter__", "__exit__", "__get__", "__reduce__"])
            member = attempt(lambda: getattr(thing, name))
            if rng.random() < 0.1:
                attempt(lambda: setattr(thing, name, argument()))
            if callable(member):
                called += 1
                got = attempt(lambda: member(*[argument() for _ in range(rng.randrange(8))]))
                if type(got) in kinds:
                    things.append(got)
    print(made > {turns} // 40, called > {turns} // 10, failed > {turns} // 10)
"""


@pytest.mark.parametrize("seed", range(4))
def test_random_calls_of_everything_crash_nothing(seed):
    assert in_a_process_of_its_own(HOSTILE.format(seed=seed, turns=6_000)) == "True True True\n"
