"""Mistakes in a component: each error names the component, what is wrong and how to correct it."""

import asyncio
import collections
import logging
import re
from typing import NamedTuple

import numpy as np
import pytest

from acker.errors import ArgumentTypeError
from acker.local import Hook, LocalRuntime, run
from acker.testing import CapturingBolt, FeederSpout, Scheduler, complete_topology, run_bolt
from acker.topology import (
    BatchingBolt,
    Bolt,
    Grouping,
    ReasonKind,
    ReliableSpout,
    Spout,
    Stream,
    Topology,
    TopologyError,
)


class Row(NamedTuple):
    n: int


class Once(ReliableSpout):
    """Emits one tuple, and may be told how."""

    outputs = ["n"]
    arguments = {"tup": [1], "tup_id": 1}

    def initialize(self, conf, context):
        self.sent = False

    def next_tuple(self):
        if self.sent:
            self.finish()
            return
        self.sent = True
        self.emit(**self.arguments)


class OncePlain(Spout):
    """The same, without replays."""

    outputs = ["n"]
    arguments = Once.arguments
    initialize, next_tuple = Once.initialize, Once.next_tuple


class Sink(Bolt):
    def process(self, tup):
        pass


def topology(spout=Once, bolt=Sink, **config):
    return type(Topology)("T", (Topology,), {"config": config, "it": spout.spec(), "bolt": bolt.spec(inputs=["it"])})


def outcome_of(bolt):
    """Give one tuple to a bolt; return why it failed."""
    done = complete_topology(topology(bolt=bolt), {"it": [[1]]})
    return done.trackers["it"].reason_of(0)


ROWS = {
    "dict": {"n": 1},
    "Counter": collections.Counter(n=1),
    "set": {1},
    "frozenset": frozenset([1]),
    "str": "a",
    "bytes": b"a",
    "bytearray": bytearray(b"a"),
    "memoryview": memoryview(b"a"),
    "NoneType": None,
    "int": 5,
    "float64": np.float64(5),
    "str_": np.str_("a"),
    "ndarray": np.array(5),
    "generator": (number for number in [1]),
    "map": map(str, [1]),
    "dict_keys": {"n": 1}.keys(),
    "dict_values": {"n": 1}.values(),
    "object": object(),
}


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("base", [Once, OncePlain])
def test_what_is_no_row_of_values_is_not_emitted_by_a_spout(kind, base):
    spout = type("Odd", (base,), {"arguments": {"tup": ROWS[kind], "tup_id": 1}})
    text = rf"it: emits to stream 'default' .*; expected a list or tuple of values, and no {kind}: write \[n\]"
    with pytest.raises(TopologyError, match=text):
        run(topology(spout), until="drained", no_restart=True)


@pytest.mark.parametrize("kind", ROWS)
def test_what_is_no_row_of_values_is_not_emitted_by_a_bolt(kind):
    class Odd(Bolt):
        outputs = ["n"]

        def process(self, tup):
            self.emit(ROWS[kind])

    text = rf"TopologyError: bolt: emits to stream 'default' .*; expected a list or tuple of values, and no {kind}"
    assert re.search(text, outcome_of(Odd).exception)


@pytest.mark.parametrize("row", [(1,), [1], np.array([1]), collections.deque([1]), range(1, 2), Row(1)])
def test_sequences_are_rows_of_values(row):
    sink = CapturingBolt.fresh()
    spout = type("Row", (Once,), {"arguments": {"tup": row, "tup_id": 1}})
    assert run(topology(spout, sink), until="drained").stats.totals.acked == 1
    assert sink.tuples() == [(1,)]


def test_a_tuple_that_came_in_may_go_out():
    class Pass(Bolt):
        outputs = ["n"]

        def process(self, tup):
            self.emit(tup)

    assert complete_topology(topology(bolt=Pass), {"it": [[7]]}).tuples("bolt") == [(7,)]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"tup_id": [1]}, r"it: tup_id: expected something hashable, got \[1\]; write a str, an int or a tuple"),
        ({"tup_id": {"a": 1}}, "it: tup_id: expected something hashable"),
        ({"tup_id": (1, [2])}, "it: tup_id: expected something hashable"),
        (
            {"stream": ["a"]},
            r"it: emits to stream \['a'\], which it does not declare; its streams are 'default', 'direct'",
        ),
        ({"stream": 5}, "it: emits to stream 5, which it does not declare"),
        (
            {"stream": "direct", "direct_task": [2]},
            r"for task \[2\], which does not read it; the tasks that do are \[2\]",
        ),
        ({"stream": "direct", "direct_task": "2"}, "for task '2', which does not read it"),
    ],
)
@pytest.mark.parametrize("base", [ReliableSpout, Spout])
def test_an_argument_of_emit_that_cannot_be_is_named(arguments, text, base):
    class Odd(base):
        outputs = ["n", Stream(["n"], name="direct", direct=True)]
        initialize = Once.initialize

        def next_tuple(self):
            self.emit([1], **{"tup_id": 1, **arguments})

    topology = type(Topology)("T", (Topology,), {"it": Odd.spec(), "bolt": Sink.spec(inputs=["it", "it:direct"])})
    with pytest.raises((ArgumentTypeError, TopologyError), match=text):
        run(topology, until="drained", no_restart=True)


def test_an_emission_that_was_refused_and_caught_is_forgotten():
    class Careful(Once):
        def next_tuple(self):
            if self.sent:
                self.finish()
                return
            self.sent = True
            for wrong in ([1, 2], {"n": 1}):
                with pytest.raises(TopologyError):
                    self.emit(wrong, tup_id="wrong")
            self.emit([1], tup_id="right")

    report = run(topology(Careful), until="drained")
    assert (report.outcome, report.stats.totals.acked) == ("drained", 1)


@pytest.mark.parametrize("anchors", ["tup", 5])
def test_anchors_are_a_list_of_tuples(anchors):
    class Odd(Bolt):
        outputs = ["n"]

        def process(self, tup):
            self.emit([1], anchors=tup if anchors == "tup" else anchors)

    assert "bolt: anchors: expected a list of tuples such as [tup], got" in outcome_of(Odd).exception


def test_anchors_may_come_from_anything_that_can_be_looped_over():
    class Joins(Bolt):
        outputs = ["n"]

        def process(self, tup):
            self.emit([1], anchors=(each for each in (tup,)))
            self.emit([2], anchors=iter([]))

    done = complete_topology(topology(bolt=Joins), {"it": [[1]]})
    assert (done.tuples("bolt"), done.acked) == ([(1,), (2,)], 1)


def test_a_process_that_returns_work_undone_fails_its_tuple():
    class Lazy(Bolt):
        outputs = ["n"]

        def process(self, tup):
            return (self.emit([number]) for number in range(3))

    reason = outcome_of(Lazy)
    assert reason.kind is ReasonKind.FAILED
    assert "bolt[2]: process returned a generator, which has not run" in reason.exception


@pytest.mark.filterwarnings("error")
def test_a_process_that_returns_a_coroutine_fails_its_tuple_and_python_does_not_warn():
    class Later(Bolt):
        async def work(self, tup):
            pass

        def process(self, tup):
            return self.work(tup)

    assert "process returned a coroutine" in outcome_of(Later).exception


@pytest.mark.parametrize("method", ["initialize", "activate", "next_tuple", "ack"])
def test_a_spouts_method_that_returns_a_coroutine_stops_the_topology(method):
    async def work():
        pass

    spout = type("Odd", (Once,), {method: lambda self, *args: work()})
    with pytest.raises(TopologyError, match=rf"it\[1\]: {method} returned a coroutine, which has not run"):
        run(topology(spout), until="drained", no_restart=True)


def test_an_unhashable_group_key_fails_its_tuple():
    class Odd(BatchingBolt):
        config = {"topology.tick.tuple.freq.secs": 1}

        def group_key(self, tup):
            return [tup.n]

        def process_batch(self, key, tups):
            raise AssertionError

    assert "bolt: group_key returned [1]; expected something hashable such as a str" in outcome_of(Odd).exception


class Forgetful(Once):
    def __init__(self):
        self.position = 0


class ForgetfulBatches(BatchingBolt):
    config = {"topology.tick.tuple.freq.secs": 1}

    def __init__(self):
        self.rows = []

    def process_batch(self, key, tups):
        pass


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (
            {"spout": Forgetful},
            r"T, component 'it': Forgetful.__init__ does not call super\(\).__init__\(\), which ReliableSpout needs",
        ),
        (
            {"bolt": ForgetfulBatches},
            r"component 'bolt': ForgetfulBatches.__init__ does not call super\(\).__init__\(\), which BatchingBolt",
        ),
    ],
)
def test_a_missing_super_init_ends_the_start(parts, text):
    with pytest.raises(TopologyError, match=text):
        run(topology(**parts), until="drained")


def test_a_spout_or_bolt_does_without_super_init():
    class Plain(Bolt):
        def __init__(self):
            self.seen = []

        def process(self, tup):
            assert isinstance(self.pid, int)

    assert complete_topology(topology(bolt=Plain), {"it": [[1]]}).acked == 1


def test_what_an_init_raises_names_the_component():
    class Breaks(Bolt):
        def __init__(self):
            raise OSError("no such device")

        def process(self, tup):
            pass

    with pytest.raises(OSError, match="no such device") as raised:
        run(topology(bolt=Breaks), until="drained")
    assert raised.value.__notes__ == ["topology T, component 'bolt': raised by Breaks()"]


def test_what_initialize_raises_names_the_component():
    class Breaks(Bolt):
        def initialize(self, conf, context):
            raise OSError("no such device")

        def process(self, tup):
            pass

    with pytest.raises(OSError, match="no such device") as raised:
        run(topology(bolt=Breaks), until="drained", no_restart=True)
    assert raised.value.__notes__ == ["topology T, component 'bolt': raised by initialize() of task 2"]


@pytest.mark.parametrize("method", ["activate", "process_tick", "deactivate"])
def test_what_a_call_without_a_tuple_raises_names_the_component(method):
    def breaks(self, *arguments):
        raise OSError("no such device")

    broken = topology(bolt=type("Breaks", (Sink,), {method: breaks}), **{"topology.tick.tuple.freq.secs": 1})

    def runs():
        with Scheduler.of(broken, no_restart=True) as scheduler:
            scheduler.advance(2)
            scheduler.drain()

    with pytest.raises(OSError, match="no such device") as raised:
        runs()
    assert f"topology T, component 'bolt': raised by {method}() of task 2" in raised.value.__notes__


@pytest.mark.parametrize("is_async", [False, True])
def test_what_activate_of_a_spout_raises_names_the_component(is_async):
    class Breaks(Once):
        def activate(self):
            raise OSError("no such device")

        if is_async:

            async def fail(self, tup_id):
                pass

    with pytest.raises(OSError, match="no such device") as raised:
        run(topology(spout=Breaks), until="drained", no_restart=True)
    assert raised.value.__notes__ == ["topology T, component 'it': raised by activate() of task 1"]


def test_an_exception_that_is_raised_again_and_again_names_the_component_once():
    fault = OSError("no such device")

    class Breaks(Sink):
        def process_tick(self, tup):
            raise fault

    broken = topology(bolt=Breaks, **{"topology.tick.tuple.freq.secs": 1})
    with pytest.raises(OSError, match="no such device"), Scheduler.of(broken, max_restarts=1) as scheduler:
        scheduler.run()
    assert scheduler.runtime.lifecycle.restarts == 1
    assert [note for note in fault.__notes__ if "raised by" in note] == [
        "topology T, component 'bolt': raised by process_tick() of task 2"
    ]


@pytest.mark.parametrize("conf", ["drained", "30s", 100])
def test_a_conf_that_is_meant_for_until_says_so(conf):
    text = f"conf: expected a dict of options such as .*, got {conf!r}; write until={conf!r}"
    for start in (run, LocalRuntime, Scheduler.of):
        with pytest.raises(ArgumentTypeError, match=text):
            start(topology(), conf)


@pytest.mark.parametrize("conf", [[("topology.debug", True)], "conf.yaml"])
def test_a_conf_is_a_dict(conf):
    with pytest.raises(ArgumentTypeError, match="conf: expected a dict of options such as"):
        run(topology(), conf)


def _super_ack(self, tup_id):
    ReliableSpout.ack(self, tup_id)


def _helped(self, tup_id):
    self.forget(tup_id)


def _emits_again(self, tup_id, reason):
    self.emit([1], tup_id=tup_id)


@pytest.mark.parametrize(
    ("members", "method"),
    [
        ({"ack": lambda self, tup_id: None}, "ack"),
        ({"fail": lambda self, tup_id, reason: print(reason)}, "fail"),
        ({"ack": _super_ack}, None),
        ({"ack": _helped, "forget": _super_ack}, None),
        ({"fail": _emits_again}, None),
    ],
)
def test_an_override_without_super_is_told_once(members, method, caplog):
    LocalRuntime(topology(type("Orders", (Once,), members)))
    warned = [(record.name, record.getMessage()) for record in caplog.records]
    text = (
        f"Orders.{method} does not call super().{method}(tup_id): the tuple stays remembered, and the run never drains"
    )
    assert warned == ([] if method is None else [("acker.topology.it", text)])


def _refuse_all(values, tasks):
    raise OSError("nowhere")


@pytest.mark.parametrize(
    ("value", "grouping"), [({}, Grouping.fields("n")), (1, Grouping.custom(_refuse_all))], ids=["fields", "custom"]
)
def test_a_spout_that_catches_any_error_of_emit_has_no_open_tuple(value, grouping):
    class Skips(Once):
        def next_tuple(self):
            with pytest.raises((TypeError, OSError)):
                self.emit([value], tup_id=1)
            assert not self.unacked_tuples
            self.finish()

    class Skipping(Topology):
        source = Skips.spec()
        sink = Sink.spec(inputs={source: grouping}, par=2)

    with Scheduler.of(Skipping) as scheduler:
        report = scheduler.drain()
    assert (report.outcome, report.restarts, report.stats.totals.emitted_total) == ("drained", 0, 0)


def test_hooks_that_would_never_run_are_refused():
    class Later(Hook):
        async def spout_ack(self, component, task, tup_id, complete_ms):
            pass

    with pytest.raises(ArgumentTypeError, match=r"hooks: Later\.spout_ack is `async def` or has a yield"):
        run(topology(), hooks=[Later()])
    with pytest.raises(ArgumentTypeError, match="hooks: expected instances of classes that derive from Hook, got"):
        run(topology(), hooks=[print])


@pytest.mark.parametrize("returned", [None, 5, "12"])
def test_a_custom_grouping_returns_a_list(returned):
    grouped = type(Topology)(
        "T",
        (Topology,),
        {"it": Once.spec(), "bolt": Sink.spec(inputs={"it": Grouping.custom(lambda values, tasks: returned)})},
    )
    with pytest.raises(
        TopologyError, match=r"bolt: its custom grouping of it\['default'\] returned .*; expected a list"
    ):
        run(grouped, until="drained", no_restart=True)


# --- ack --------------------------------------------------------------------------------------------------------------


class Commits(FeederSpout):
    """Commits in a coroutine, beside a plain next_tuple."""

    async def ack(self, tup_id):
        await asyncio.sleep(0)
        self.tracker.ack(tup_id)

    async def fail(self, tup_id, reason=None):
        await asyncio.sleep(0)
        self.tracker.fail(tup_id, reason)


@pytest.mark.parametrize("ackers", [0, 1])
@pytest.mark.parametrize("threads", [False, True])
def test_a_coroutine_ack_beside_a_plain_next_tuple_is_awaited(ackers, threads):
    class Odd(Bolt):
        def process(self, tup):
            if tup.n % 2:
                raise ValueError("odd")

    feeder = Commits.with_outputs("n")
    for number in range(10):
        feeder.feed([number], number)
    feeder.end()
    tested, conf = topology(feeder, Odd), {"topology.acker.tasks": ackers}
    if threads:
        assert run(tested, conf, until="drained").stats.totals.acked == (5 if ackers else 10)
    else:
        Scheduler.of(tested, conf).drain()
    assert sorted(feeder.tracker.acked) == ([0, 2, 4, 6, 8] if ackers else list(range(10)))
    assert sorted(feeder.tracker.failed) == ([1, 3, 5, 7, 9] if ackers else [])


class BrokenAck(FeederSpout):
    """Raises for the id "bad" once; replays nothing itself."""

    def ack(self, tup_id):
        if tup_id == "bad":
            raise OSError("the source is gone")
        super().ack(tup_id)


@pytest.mark.parametrize("ackers", [0, 1])
def test_an_ack_that_raised_is_counted_apart(ackers):
    feeder = BrokenAck.with_outputs("n")
    feeder.feed([1], "good")
    feeder.feed([2], "bad")
    feeder.end()
    scheduler = Scheduler.of(topology(feeder), {"topology.acker.tasks": ackers}, no_restart=True)
    with pytest.raises(OSError, match="the source is gone"):
        scheduler.drain()
    totals = scheduler.runtime.stats().totals
    assert (totals.acked, totals.ack_errors) == (1, 1)


def test_an_ack_that_raises_while_the_topology_stops_is_logged_and_counted_apart(caplog):
    class Holds(Bolt):
        auto_ack = False

        def process(self, tup):
            pass

    feeder = BrokenAck.with_outputs("n")
    feeder.feed([1], "bad")
    feeder.feed([2], "good")
    scheduler = Scheduler.of(topology(feeder, Holds))
    scheduler.settle()
    [task] = scheduler.runtime.lifecycle.executors.spout_tasks()
    task.deliver_outcomes([(message_id, 0, None) for message_id in task.collector.pending], log_errors=True)
    totals = scheduler.runtime.stats().totals
    assert (totals.acked, totals.ack_errors, totals.pending) == (1, 1, 0)
    assert "it: task 1 raised for 'bad' while it stops" in caplog.text


def test_what_an_ack_raised_for_is_sent_again_by_a_reliable_spout(caplog):
    acked = []

    class Fragile(Once):
        def initialize(self, conf, context):
            self.sent = False

        def next_tuple(self):
            if not acked and not self.unacked_tuples:
                self.emit([1], tup_id="m")
            self.finish()

        def ack(self, tup_id):
            acked.append(tup_id)
            if len(acked) == 1:
                raise OSError("the source is gone")
            super().ack(tup_id)

    caplog.set_level(logging.CRITICAL, "acker.local")
    report = Scheduler.of(topology(Fragile)).drain()
    assert (acked, report.outcome, report.restarts) == (["m", "m"], "drained", 1)
    assert (report.stats.totals.acked, report.stats.totals.ack_errors) == (1, 1)


def test_a_replay_is_what_was_emitted_though_its_list_changed():
    seen = []

    class Reuses(ReliableSpout):
        outputs = ["n"]

        def initialize(self, conf, context):
            self.row, self.left = [0], 3

        def next_tuple(self):
            if not self.left:
                self.finish()
                return
            self.row[0] = self.left
            self.emit(self.row, tup_id=self.left)
            self.left -= 1

    class FailsFirst(Bolt):
        def process(self, tup):
            seen.append(tup.n)
            if seen.count(tup.n) == 1:
                raise ValueError("again")

    Scheduler.of(topology(Reuses, FailsFirst)).drain()
    assert sorted(seen) == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("use", "missing"),
    [
        (lambda bolt: bolt.emit([1]), "collector"),
        (lambda bolt: bolt.ack(None), "collector"),
        (lambda bolt: bolt.report_metric("rows"), "collector"),
        (lambda bolt: bolt.add_task_hook(None), "collector"),
        (lambda bolt: bolt.context, "context"),
        (lambda bolt: bolt.task_index, "task_index"),
    ],
)
def test_what_a_task_has_once_it_is_begun_is_missed_in_a_constructor(use, missing):
    class Early(Bolt):
        outputs = ["num"]

        def __init__(self):
            super().__init__()
            use(self)

        def process(self, tup):
            pass

    mend = r"move the code that needs it from __init__ to initialize\(self, conf, context\)"
    text = rf"^Early: no runtime has started this task yet, so it has no {missing}.*{mend}"
    with pytest.raises(AttributeError, match=text):
        run_bolt(Early, [])
    with pytest.raises(AttributeError, match=r"^'Bolt' object has no attribute 'emits'$"):
        Bolt.__new__(Bolt).emits  # noqa: B018
