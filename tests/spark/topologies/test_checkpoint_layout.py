"""What a checkpoint is worth for a topology that has changed since."""

import functools
from dataclasses import replace

import pytest

from acker.errors import CheckpointError
from acker.spark.topologies.checkpoint_layout import check_plans, layout_of, move_commit, shapes_of, tasks_of
from acker.spark.topologies.journal import BatchCommit, BatchPlan, JournalEntry
from acker.spark.topologies.stage_plan import plan_stages
from acker.spark.topologies.state_log import StateChain, StateFile
from acker.topology import Bolt, Grouping, Spout, StatefulBolt, Topology, Window, WindowedBolt


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


BY_WORD = Grouping.fields("word")


def graph_with(*, between=0, par=2, count="count", grouping=BY_WORD, bolt=Count):
    """Return a topology with some bolts before the one that counts."""
    specs = {"words": Words.spec(par=2)}
    before = specs["words"]
    for number in range(between):
        before = specs[f"pass{number}"] = Pass.spec(inputs=[before])
    specs[count] = bolt.spec(inputs={before: grouping}, par=par)
    return type("Counted", (Topology,), specs).graph()


def chain_of(name):
    return StateChain((StateFile(name, 1, 1),), (name,))


def commit_of(graph):
    tasks = tasks_of(graph)
    first, second = tasks["count"]
    chains = {first: chain_of("a"), second: chain_of("b")}
    spout = tasks["words"][1]
    return BatchCommit(chains, [JournalEntry(spout, 7, ("x",))], [(spout, 8)], tasks, shapes_of(graph))


def windowed(window, timestamp_field=None):
    """Return a bolt with windows."""
    members = {"window": window, "timestamp_field": timestamp_field, "process_window": lambda self, window: None}
    return type("Windowed", (WindowedBolt,), members)


def test_state_and_tuples_follow_their_components_to_other_tasks():
    before = commit_of(graph_with())
    graph = graph_with(between=3)
    moved = move_commit(before, graph)
    first, second = graph.nodes["count"].tasks
    assert moved.chains == {first: chain_of("a"), second: chain_of("b")}
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


@pytest.mark.parametrize(
    ("grouping", "between", "text"),
    [
        (Grouping.shuffle, 0, r"fields\(word\) of words:default, and it reads words:default by shuffle now"),
        (Grouping.partial_key("word"), 0, r"it reads words:default by partial_key\(word\) now"),
        (Grouping.shuffle, 1, r"fields\(word\) of words:default, and it reads pass0:default by shuffle now"),
    ],
    ids=["shuffle", "partial key", "by a bolt between"],
)
def test_another_grouping_of_a_bolt_with_state_is_refused(grouping, between, text):
    before, after = graph_with(), graph_with(grouping=grouping, between=between)
    with pytest.raises(CheckpointError, match=f"component 'count': .*{text}.*; change it back, or begin with a new"):
        move_commit(commit_of(before), after)
    with pytest.raises(CheckpointError, match=r"component 'count': .* in two tasks"):
        move_commit(commit_of(after), before)


def keyless(values, tasks):
    return tasks[:1]


def test_groupings_that_choose_the_same_tasks_are_no_change():
    local, shuffle = graph_with(grouping=Grouping.local_or_shuffle), graph_with(grouping=Grouping.shuffle)
    assert move_commit(commit_of(local), shuffle).shapes == shapes_of(shuffle)
    partial = graph_with(grouping=Grouping.custom(functools.partial(keyless)))
    again = graph_with(grouping=Grouping.custom(functools.partial(keyless)))
    assert move_commit(commit_of(partial), again).shapes == shapes_of(partial)


def test_a_bolt_of_one_task_and_a_bolt_without_state_may_change_their_grouping():
    one = graph_with(par=1)
    commit = replace(commit_of(graph_with()), chains={one.nodes["count"].tasks[0]: chain_of("a")})
    commit = replace(commit, tasks=tasks_of(one), shapes=shapes_of(one), entries=(), acked=())
    assert move_commit(commit, graph_with(par=1, grouping=Grouping.shuffle)).chains
    stateless, other = graph_with(bolt=Pass), graph_with(bolt=Pass, grouping=Grouping.shuffle)
    assert shapes_of(stateless) == {}
    moved = move_commit(BatchCommit({}, (), (), tasks_of(stateless), shapes_of(stateless)), other)
    assert moved.tasks == tasks_of(other)


def test_a_bolt_that_has_no_state_yet_may_change_its_grouping():
    before, after = graph_with(), graph_with(grouping=Grouping.shuffle)
    moved = move_commit(replace(commit_of(before), chains={}), after)
    assert moved.shapes == shapes_of(after)


def test_a_further_input_may_have_any_grouping():
    specs = {"words": Words.spec(par=2), "others": Words.spec()}
    inputs = {specs["words"]: Grouping.fields("word"), specs["others"]: Grouping.all}
    specs["count"] = Count.spec(inputs=inputs, par=2)
    graph = type("Both", (Topology,), specs).graph()
    assert move_commit(commit_of(graph_with()), graph).shapes == shapes_of(graph)


TUMBLING = windowed(Window.tumbling(secs=60))


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        (TUMBLING, windowed(Window.tumbling(secs=30)), "60 s every 60 s, by arrival, and they are of 30 s every 30 s"),
        (
            windowed(Window.sliding(secs=60, every_secs=10)),
            windowed(Window.sliding(secs=60, every_secs=20)),
            "60 s every 10 s, by arrival, and they are of 60 s every 20 s, by arrival now",
        ),
        (windowed(Window.tumbling(count=5)), TUMBLING, "5 tuples every 5, and they are of 60 s"),
        (
            TUMBLING,
            windowed(Window.tumbling(secs=60), "word"),
            "60 s every 60 s, by arrival, and they are of .* by event time now",
        ),
        (TUMBLING, Count, "60 s every 60 s, by arrival, and it has no windows now"),
    ],
    ids=["length", "slide", "kind", "time", "none"],
)
def test_other_windows_are_refused(before, now, text):
    with pytest.raises(CheckpointError, match=f"component 'count': .*windows of {text}.*; change it back, or begin"):
        move_commit(commit_of(graph_with(bolt=before)), graph_with(bolt=now))


def test_the_same_windows_of_another_class_are_no_change():
    graph = graph_with(bolt=windowed(Window.tumbling(secs=60)))
    assert move_commit(commit_of(graph_with(bolt=TUMBLING)), graph).shapes == shapes_of(graph)
