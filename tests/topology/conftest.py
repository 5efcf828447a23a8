"""Fixtures: components bound to collectors that record all calls, without a runtime."""

from types import SimpleNamespace

import pytest

from acker.topology.tuples import TupleSource


class SpoutRecorder:
    """A SpoutCollector: what was emitted, a clock that tests set, counters."""

    def __init__(self):
        self.now = 0
        self.emitted = []
        self.counts = {}

    def now_ms(self):
        return self.now

    def count(self, name, n=1):
        self.counts[name] = self.counts.get(name, 0) + n

    def emit(self, values, tup_id=None, stream=None, direct_task=None, need_task_ids=False):
        self.emitted.append((values, tup_id, stream, direct_task))
        return [7] if need_task_ids else None

    def emit_again(self, values, tup_id, stream=None, direct_task=None):
        self.emit(values, tup_id, stream, direct_task)

    def leaves_out(self, values, tup_id):
        return False


class BoltRecorder(SpoutRecorder):
    """A BoltCollector: also what was settled, in order."""

    def __init__(self):
        super().__init__()
        self.inputs = ()
        self.settled = []

    def emit(self, values, stream=None, anchors=None, direct_task=None, need_task_ids=False):
        anchored = self.inputs if anchors is None else tuple(anchors)
        self.emitted.append((values, stream, anchored, direct_task))
        return [7] if need_task_ids else None

    def ack(self, tup):
        self.settled.append(("ack", tup))

    def fail(self, tup, reason):
        self.settled.append(("fail", tup, reason))

    def reset_timeout(self, tup):
        self.settled.append(("reset_timeout", tup))


def bind(component, conf=None):
    """Bind and initialize a component as task 3 of component "it", and return its collector."""
    context = {"taskid": 3, "componentid": "it", "topology.name": "T", "task->component": {"3": "it"}}
    collector = BoltRecorder() if hasattr(component, "process") else SpoutRecorder()
    component._bind(collector, context, conf or {})
    component.initialize(conf or {}, context)
    return collector


def tup_of(*values, fields=("word",), component="words", stream="default"):
    """Return a tuple of no tree."""
    source = TupleSource(component, stream, 1, fields)
    return source.tuple_type(source.make_values(values), source, None)


@pytest.fixture
def task():
    """The functions of this file."""
    return SimpleNamespace(
        bind=bind, tup_of=tup_of, tick=lambda: tup_of(fields=(), component="__system", stream="__tick")
    )
