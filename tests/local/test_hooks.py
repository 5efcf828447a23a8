"""Hooks: those of one task, their calls at its start and end, and the page that lists their methods."""

import inspect
import logging
import re
from pathlib import Path

import pytest

from acker.errors import AckerError, ArgumentTypeError
from acker.local import Hook
from acker.testing import FeederSpout, Scheduler
from acker.topology import Bolt, ReliableSpout, Topology


class Seen(Hook):
    def __init__(self):
        self.calls = []

    def prepare(self, component, task, conf, context):
        self.calls.append(("prepare", component, task, conf["topology.debug"], context["task_index"]))

    def cleanup(self, component, task):
        self.calls.append(("cleanup", component, task))

    def execute(self, component, task, tup):
        self.calls.append(("execute", component, task, tup[0]))

    def spout_ack(self, component, task, tup_id, complete_ms):
        self.calls.append(("spout_ack", component, task, tup_id))


def last(**members):
    return type("Last", (Bolt,), {"process": lambda *_: None, **members})


def topology(bolt, par=1):
    feeder = FeederSpout.with_outputs("n")
    tested = type(Topology)("T", (Topology,), {"source": feeder.spec(), "last": bolt.spec(inputs=["source"], par=par)})
    return feeder, tested


def test_every_hook_hears_of_the_beginning_and_the_end_of_each_task():
    seen = Seen()
    feeder, tested = topology(last(), par=2)
    with Scheduler.of(tested, {"topology.debug": True}, hooks=[seen]) as scheduler:
        feeder.feed(["a"], "m")
        scheduler.settle()
    begun = [call for call in seen.calls if call[0] == "prepare"]
    assert sorted(begun) == [
        ("prepare", "last", 2, True, 0),
        ("prepare", "last", 3, True, 1),
        ("prepare", "source", 1, True, 0),
    ]
    assert [call[0] for call in seen.calls[:3]] == ["prepare"] * 3
    assert sorted(seen.calls[-3:]) == [
        ("cleanup", "last", 2),
        ("cleanup", "last", 3),
        ("cleanup", "source", 1),
    ]


def test_a_component_adds_a_hook_to_its_own_task():
    hooks = []

    def initialize(self, conf, context):
        if self.task_index == 1:
            hooks.append(Seen())
            self.add_task_hook(hooks[0])

    feeder, tested = topology(last(initialize=initialize), par=2)
    with Scheduler.of(tested) as scheduler:
        for number in range(4):
            feeder.feed([number], number)
        scheduler.settle()
    [seen] = hooks
    assert seen.calls[0] == ("prepare", "last", 3, False, 1)
    assert seen.calls[-1] == ("cleanup", "last", 3)
    assert {call[1:3] for call in seen.calls} == {("last", 3)} and len(seen.calls) == 2 + 2


def test_a_spout_adds_one_too():
    seen = Seen()
    feeder, tested = topology(last())
    feeder.initialize = lambda self, conf, context: self.add_task_hook(seen)
    with Scheduler.of(tested) as scheduler:
        feeder.feed([1], "m")
        scheduler.settle()
    assert seen.calls == [("prepare", "source", 1, False, 0), ("spout_ack", "source", 1, "m"), ("cleanup", "source", 1)]


def test_what_is_no_hook_is_refused():
    _, tested = topology(last(initialize=lambda self, conf, context: self.add_task_hook(Seen)))
    with pytest.raises(ArgumentTypeError, match="hooks: expected instances, got the class Seen: call it"):
        Scheduler.of(tested, no_restart=True).settle()


def test_what_a_cleanup_raises_is_logged(caplog):
    class Breaks(Hook):
        def cleanup(self, component, task):
            raise OSError(component)

    _, tested = topology(last())
    caplog.set_level(logging.ERROR, "acker.local")
    with Scheduler.of(tested, hooks=[Breaks()]) as scheduler:
        scheduler.settle()
    assert sorted(caplog.messages) == [
        "last: task 2: a hook raised in cleanup",
        "source: task 1: a hook raised in cleanup",
    ]


def signature(name: str) -> str:
    """Return the signature of a method as the page writes it, without self and the result."""
    _, *parameters = inspect.signature(getattr(Hook, name)).parameters.values()
    return f"{name}({', '.join(f'{each.name}: {each.annotation}' for each in parameters)})"


@pytest.mark.repository
def test_the_page_has_each_method_with_its_signature_and_what_it_sees() -> None:
    page = (Path(__file__).parents[2] / "docs/observability.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+\([^`]*component: str[^`]*\))` \| (.+) \|$", page, re.MULTILINE)
    methods = [name for name, value in vars(Hook).items() if inspect.isfunction(value)]
    seen = [inspect.getdoc(getattr(Hook, name)).removeprefix("See ").removesuffix(".") for name in methods]
    assert listed == list(zip(map(signature, methods), seen, strict=True))


@pytest.mark.parametrize("kind", [OSError, AckerError])
def test_a_tuple_whose_hook_raised_was_emitted(kind):
    class Breaks(Hook):
        def emit(self, component, task, stream, values, tasks):
            raise kind("no room")

    class Once(ReliableSpout):
        outputs = ["n"]

        def next_tuple(self):
            with pytest.raises(kind, match="no room"):
                self.emit([1], tup_id=1)
            assert list(self.unacked_tuples) == [1]
            self.finish()

    tested = type(Topology)("T", (Topology,), {"source": Once.spec(), "last": last().spec(inputs=["source"])})
    with Scheduler.of(tested, hooks=[Breaks()]) as scheduler:
        report = scheduler.drain()
    assert (report.restarts, report.stats.totals.acked) == (0, 1)
