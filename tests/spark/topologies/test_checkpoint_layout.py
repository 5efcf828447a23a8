"""What a checkpoint is worth for a topology that has changed since."""

import pytest

from acker.errors import CheckpointError
from acker.spark.topologies.bolt_state import StateChain
from acker.spark.topologies.checkpoint_layout import check_plans, layout_of, move_commit, tasks_of
from acker.spark.topologies.journal import BatchCommit, BatchPlan, JournalEntry
from acker.spark.topologies.stage_plan import plan_stages
from acker.topology import Bolt, Grouping, Spout, StatefulBolt, Topology


class Words(Spout):
    outputs = ("word",)

    def next_tuple(self):
        self.finish()


class Pass(Bolt):
    outputs = ("word",)

    def process(self, tup):
        self.emit(tup.values)


class Count(StatefulBolt):
    def process(self, tup):
        self.state[tup.word] = self.state.get(tup.word, 0) + 1


def graph_with(*, between=0, par=2, count="count"):
    """Return a topology with some bolts before the one that counts."""
    specs = {"words": Words.spec(par=2)}
    before = specs["words"]
    for number in range(between):
        before = specs[f"pass{number}"] = Pass.spec(inputs=[before])
    specs[count] = Count.spec(inputs={before: Grouping.fields("word")}, par=par)
    return type("Counted", (Topology,), specs).graph()


def commit_of(graph):
    tasks = tasks_of(graph)
    first, second = tasks["count"]
    chains = {first: StateChain(("a",)), second: StateChain(("b",))}
    spout = tasks["words"][1]
    return BatchCommit(chains, [JournalEntry(spout, 7, ("x",))], [(spout, 8)], tasks)


def test_state_and_tuples_follow_their_components_to_other_tasks():
    before = commit_of(graph_with())
    graph = graph_with(between=3)
    moved = move_commit(before, graph)
    first, second = graph.nodes["count"].tasks
    assert moved.chains == {first: StateChain(("a",)), second: StateChain(("b",))}
    assert moved.chains != before.chains
    assert [entry.task for entry in moved.entries] == [graph.nodes["words"].tasks[1]]
    assert moved.acked == [(graph.nodes["words"].tasks[1], 8)]
    assert moved.tasks == tasks_of(graph)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"par": 3}, "component 'count': the checkpoint has the state of 2 tasks, and par is 3 now"),
        ({"count": "counts"}, "component 'count': the checkpoint has its state, and this topology has no bolt with"),
    ],
)
def test_state_that_would_be_lost_is_refused(changed, text):
    with pytest.raises(CheckpointError, match=text):
        move_commit(commit_of(graph_with()), graph_with(**changed))


def test_tuples_that_would_be_lost_are_refused():
    commit = commit_of(graph_with())
    graph = type("Other", (Topology,), {"lines": Words.spec()}).graph()
    with pytest.raises(CheckpointError, match="component 'words': the checkpoint has the tuple 7 of this spout"):
        move_commit(BatchCommit({}, commit.entries, (), commit.tasks), graph)


def test_what_was_planned_for_other_tasks_is_refused():
    before, after = graph_with(), graph_with(between=1)
    plans = {4: BatchPlan(layout=layout_of(before, plan_stages(before)))}
    check_plans(plans, before, plan_stages(before))
    with pytest.raises(CheckpointError, match=r"micro-batch 4: it was planned.* components count, pass0 had other"):
        check_plans(plans, after, plan_stages(after))
