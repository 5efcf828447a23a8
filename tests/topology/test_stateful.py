"""StatefulBolt: what a definition may say, and the state that a runtime attaches."""

import pytest

from acker.topology import Bolt, KeyValueState, Spout, StatefulBolt, TicklessBatchingBolt, Topology, TopologyError


class Words(Spout):
    outputs = ["word"]

    def next_tuple(self):
        self.finish()


class Count(StatefulBolt):
    outputs = ["word", "count"]

    def process(self, tup):
        self.state[tup.word] = self.state.get(tup.word, 0) + 1
        self.emit([tup.word, self.state[tup.word]])


def test_the_state_is_attached_before_initialize_and_given_to_init_state(task):
    seen = []

    class Watched(Count):
        def initialize(self, conf, context):
            seen.append(dict(self.state))

        def init_state(self, state):
            seen.append(state is self.state)

    bolt, state = Watched(), KeyValueState({"storm": 4})
    bolt._bind_state(state)
    collector = task.bind(bolt)
    bolt.init_state(state)
    bolt.process(task.tup_of("storm"))
    assert seen == [{"storm": 4}, True]
    assert [values for values, *_ in collector.emitted] == [["storm", 5]]


def test_without_a_runtime_there_is_no_state():
    with pytest.raises(AttributeError, match=r"Count: no runtime has started this task yet, so it has no state; read"):
        Count().state  # noqa: B018
    with pytest.raises(AttributeError, match="'Count' object has no attribute 'stat'"):
        Count().stat  # noqa: B018
    with pytest.raises(AttributeError, match="has no collector"):
        Count()._collector  # noqa: B018


def test_another_state_than_the_runtimes_is_refused(task):
    class Replaced(Count):
        def __init__(self):
            super().__init__()
            self.state = {}  # no runtime has attached one yet

    bolt, state = Replaced(), KeyValueState({"storm": 4})
    task.bind(bolt)
    bolt._bind_state(state)
    for value in ({}, KeyValueState(), None):
        with pytest.raises(TopologyError, match=r"it: .* change self\.state in place: self\.state\.clear\(\)"):
            bolt.state = value
    bolt.state |= {"spark": 1}
    bolt.other = {}
    assert bolt.state is state == {"storm": 4, "spark": 1}


def test_it_goes_with_other_bolts():
    class Batches(StatefulBolt, TicklessBatchingBolt):
        def process_batch(self, key, tups):
            self.state[key] = len(tups)

    class Fine(Topology):
        words = Words.spec()
        batches = Batches.spec(inputs=[words])

    assert issubclass(Fine.graph().nodes["batches"].component, StatefulBolt)
    assert not issubclass(Bolt, StatefulBolt)


def test_init_state_is_checked_like_other_methods():
    class NoArgument(Count):
        def init_state(self):
            pass

    class Async(Count):
        async def init_state(self, state):
            pass

    for kind, text in ((NoArgument, r"init_state cannot be called with \(state\)"), (Async, "cannot be `async def`")):
        with pytest.raises(TopologyError, match=text):
            type(Topology)("T", (Topology,), {"words": (words := Words.spec()), "count": kind.spec(inputs=[words])})
