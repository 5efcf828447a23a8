"""Methods that a runtime could not run, and components that it could not make, are refused in the definition."""

import abc
import asyncio
import functools

import pytest

from acker.topology import BatchingBolt, Bolt, ReliableSpout, Topology, TopologyError
from acker.topology.methods import has_async, missing_super_init, refuse_unrun


class Lines(ReliableSpout):
    outputs = ["line"]

    def next_tuple(self):
        pass


class Count(Bolt):
    outputs = ["word", "count"]

    def process(self, tup):
        pass


class Batches(BatchingBolt):
    config = {"topology.tick.tuple.freq.secs": 1}

    def process_batch(self, key, tups):
        pass


def define(lines=Lines, bolt=Count):
    return type(Topology)("T", (Topology,), {"lines": lines.spec(), "it": bolt.spec(inputs=["lines"])})


def generator(self, *args):
    yield


async def coroutine(self, *args):
    pass


async def async_generator(self, *args):
    yield


SPOUT = ("initialize", "next_tuple", "ack", "fail", "activate", "deactivate", "keep_alive", "close", "dead_letter")
BOLT = ("initialize", "process", "process_tick", "tick_secs", "activate", "deactivate", "close")
BATCHES = ("group_key", "process_batch")
METHODS = [
    *((Lines, method) for method in SPOUT),
    *((Count, method) for method in BOLT),
    *((Batches, method) for method in BATCHES),
]


def defined(base, method, function):
    kind = type("Odd", (base,), {method: function})
    return define(lines=kind) if base is Lines else define(bolt=kind)


@pytest.mark.parametrize("function", [generator, async_generator])
@pytest.mark.parametrize(("base", "method"), METHODS)
def test_a_generator_is_refused_at_the_definition(base, method, function):
    where = "lines" if base is Lines else "it"
    text = rf"topology T, component '{where}': Odd.{method} is a generator: .* call self.emit\(\[...\]\)"
    with pytest.raises(TopologyError, match=text):
        defined(base, method, function)


@pytest.mark.parametrize(("base", "method"), METHODS)
def test_a_coroutine_is_refused_where_nobody_would_wait_for_it(base, method):
    if method in ("process", "next_tuple", "ack", "fail", "keep_alive"):
        assert defined(base, method, coroutine).graph()
        return
    with pytest.raises(TopologyError, match=f"Odd.{method} cannot be `async def`: .*; write `def {method}`"):
        defined(base, method, coroutine)


@pytest.mark.parametrize("method", ["process", "next_tuple"])
def test_a_partial_method_is_seen_through(method):
    base = Count if method == "process" else Lines
    with pytest.raises(TopologyError, match="is a generator"):
        defined(base, method, functools.partialmethod(functools.partialmethod(generator), 1))
    odd = type("Odd", (base,), {method: functools.partialmethod(coroutine)})
    assert (has_async(base, method), has_async(odd, method)) == (False, True)


@pytest.mark.parametrize(
    ("base", "method", "call"),
    [
        (Lines, "ack", "(tup_id)"),
        (Lines, "fail", "(tup_id)"),
        (Lines, "dead_letter", "(tup_id, values, reason)"),
        (Lines, "keep_alive", "()"),
        (Lines, "frame", "(spark, conf)"),
        (Count, "process_tick", "(tup)"),
        (Count, "tick_secs", "(conf)"),
        (Batches, "group_key", "(tup)"),
        (Count, "close", "()"),
    ],
)
def test_a_method_takes_what_it_is_called_with(base, method, call):
    with pytest.raises(
        TopologyError, match=rf"Odd.{method} cannot be called with \({call[1:-1]}\); write def {method}"
    ):
        defined(base, method, lambda self, one, two, three, four: None)


def test_fail_may_ask_for_the_reason_or_not():
    assert defined(Lines, "fail", lambda self, tup_id: None)
    assert defined(Lines, "fail", lambda self, tup_id, reason: None)


def test_a_class_with_constructor_arguments_says_where_they_belong():
    class Stores(Count):
        def __init__(self, path, *, size=1):
            super().__init__()

    text = r"'it': Stores takes arguments\(path, \*, size=1\) and a runtime makes each task by Stores\(\); .* from conf"
    with pytest.raises(TopologyError, match=text):
        define(bolt=Stores)

    class Defaults(Count):
        def __init__(self, path="here", *args, **kwargs):
            super().__init__()

    assert define(bolt=Defaults)


def test_an_abstract_class_names_what_it_lacks():
    class Abstract(Count, abc.ABC):
        @abc.abstractmethod
        def store(self):
            """Store."""

    with pytest.raises(TopologyError, match=r"component 'it': Abstract is abstract; define store\(\)"):
        define(bolt=Abstract)


def test_a_first_wait_that_is_longer_than_the_longest_one_is_refused():
    class Patient(Lines):
        backoff_secs = 90

    text = "component 'lines': backoff_secs is 90 and backoff_secs_max is 60, but the first wait cannot be longer"
    with pytest.raises(TopologyError, match=text):
        define(lines=Patient)


def test_an_init_that_does_not_pass_on_is_named():
    class Forgets(ReliableSpout):
        outputs = ["line"]

        def __init__(self):
            self.position = 0

    class Derived(Forgets):
        pass

    class Plain(Count):
        def __init__(self):
            self.counts = {}

    text = "Forgets.__init__ does not call super().__init__(), which ReliableSpout needs; make it the first line"
    assert missing_super_init(Derived()).endswith(text)
    assert missing_super_init(Plain()) is missing_super_init(Lines()) is missing_super_init(Batches()) is None


async def later():
    pass


async def many():
    yield


RETURNED = {
    "coroutine": (later, "write `async def process` and await it there"),
    "generator": (lambda: (number for number in range(3)), "use a loop that runs it"),
    "async_generator": (many, "use a loop that runs it"),
    "map": (lambda: map(str, [1]), "use a loop that runs it"),
    "filter": (lambda: filter(None, [1]), "use a loop that runs it"),
}


@pytest.mark.parametrize("name", RETURNED)
def test_what_was_returned_and_never_runs_is_refused(name):
    make, mend = RETURNED[name]
    with pytest.raises(TopologyError, match=f"count: process returned a {name}, which has not run; {mend}"):
        refuse_unrun("count", "process", make())


def test_other_values_that_are_returned_mean_nothing():
    for value in (0, "x", [1], object(), iter([1]), range(3)):
        refuse_unrun("count", "process", value)


def test_a_future_is_refused():
    loop = asyncio.new_event_loop()
    with pytest.raises(TopologyError, match="returned a Future"):
        refuse_unrun("count", "process", loop.create_future())
    loop.close()
