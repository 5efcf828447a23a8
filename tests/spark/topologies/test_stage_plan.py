"""The stages of a topology: which bolts run in one Spark task, and where tuples are shuffled."""

from __future__ import annotations

import pytest

from acker.errors import TopologyError
from acker.spark.topologies.stage_plan import is_stateful, plan_stages
from acker.topology import (
    ArrowBolt,
    BatchingBolt,
    Bolt,
    Grouping,
    Join,
    JoinBolt,
    Spout,
    StatefulBolt,
    Topology,
    Window,
)


class Numbers(Spout):
    outputs = ["n"]

    def next_tuple(self):
        self.finish()


class Pass(Bolt):
    outputs = ["n"]

    def process(self, tup):
        self.emit([tup.n])


class Batches(BatchingBolt):
    outputs = ["n"]
    config = {"topology.tick.tuple.freq.secs": 1}

    def process_batch(self, key, tups):
        pass


class Counts(StatefulBolt):
    outputs = ["n"]

    def process(self, tup):
        pass


def plan_of(**specs):
    return plan_stages(type("Planned", (Topology,), specs).graph())


def test_bolts_that_read_by_shuffle_run_beside_what_they_read():
    numbers = Numbers.spec()
    first = Pass.spec(inputs=[numbers])
    second = Pass.spec(inputs={first: Grouping.local_or_shuffle}, par=3)
    third = Pass.spec(inputs={second: Grouping.none})
    plan = plan_of(numbers=numbers, first=first, second=second, third=third)
    assert plan.stage_of == {"numbers": 0, "first": 0, "second": 0, "third": 0}
    assert plan.beside == {"first", "second", "third"}
    assert plan.last == 0
    assert plan.components(0) == ["numbers", "first", "second", "third"]


@pytest.mark.parametrize(
    "grouping",
    [
        Grouping.fields("n"),
        Grouping.partial_key("n"),
        Grouping.all,
        Grouping.global_,
        Grouping.custom(lambda values, tasks: tasks),
    ],
    ids=str,
)
def test_a_grouping_that_chooses_the_task_needs_a_shuffle(grouping):
    numbers = Numbers.spec()
    plan = plan_of(numbers=numbers, end=Pass.spec(inputs={numbers: grouping}, par=2))
    assert plan.stage_of == {"numbers": 0, "end": 1}
    assert not plan.beside


@pytest.mark.parametrize("component", [Batches, Counts])
def test_what_a_batch_or_a_state_has_does_not_depend_on_spark(component):
    numbers = Numbers.spec()
    plan = plan_of(numbers=numbers, end=component.spec(inputs=[numbers], par=2))
    assert plan.stage_of == {"numbers": 0, "end": 1}
    assert not plan.beside


def test_a_bolt_stands_behind_all_that_it_reads():
    numbers, others = Numbers.spec(), Numbers.spec()
    left = Pass.spec(inputs={numbers: Grouping.fields("n")})
    right = Pass.spec(inputs=[numbers])
    join = Pass.spec(inputs=[left, right])
    late = Pass.spec(inputs={join: Grouping.fields("n"), numbers: Grouping.all, others: Grouping.shuffle})
    behind = Pass.spec(inputs=[late])
    plan = plan_of(numbers=numbers, others=others, left=left, right=right, join=join, late=late, behind=behind)
    expected = {"numbers": 0, "others": 0, "left": 1, "right": 0, "join": 2, "late": 3, "behind": 3}
    assert plan.stage_of == expected
    assert plan.beside == {"right", "behind"}  # the join reads two stages, so some of its tuples travel
    assert plan.order.index("join") > max(plan.order.index("left"), plan.order.index("right"))


def test_a_bolt_may_run_beside_several_that_run_together():
    numbers = Numbers.spec()
    left, right = Pass.spec(inputs=[numbers]), Pass.spec(inputs=[numbers])
    plan = plan_of(numbers=numbers, left=left, right=right, join=Pass.spec(inputs=[left, right]))
    assert set(plan.stage_of.values()) == {0}


def test_the_order_is_that_of_the_edges_not_of_the_definition():
    numbers = Numbers.spec()
    plan = plan_of(last=Pass.spec(inputs=["first"]), first=Pass.spec(inputs=["numbers"]), numbers=numbers)
    assert plan.order == ("numbers", "first", "last")


def test_loops_are_refused_by_their_edges():
    class Loop(Topology):
        numbers = Numbers.spec()
        ahead = Pass.spec(inputs=["numbers", "back"])
        back = Pass.spec(inputs=["ahead"])

    with pytest.raises(
        TopologyError, match="topology Loop: the edges ahead -> back, back -> ahead form a loop"
    ) as told:
        plan_stages(Loop.graph())
    assert "run this topology with acker.local" in str(told.value)


def test_a_bolt_that_reads_itself_is_a_loop():
    class Loop(Topology):
        numbers = Numbers.spec()
        again = Pass.spec(inputs=["numbers", "again"])

    with pytest.raises(TopologyError, match="again -> again"):
        plan_stages(Loop.graph())


def test_only_stateful_bolts_have_state():
    numbers = Numbers.spec()
    body = {"numbers": numbers, "counts": Counts.spec(inputs=[numbers]), "batches": Batches.spec(inputs=[numbers])}
    graph = type("Planned", (Topology,), body).graph()
    assert [name for name, node in graph.nodes.items() if is_stateful(node)] == ["counts"]


def test_a_bolt_that_processes_columns_runs_as_one_that_processes_tuples():
    class Rows(ArrowBolt):
        outputs = ["n"]

        def process_rows(self, batch):
            pass

    class Columns(Topology):
        numbers = Numbers.spec()
        rows = Rows.spec(inputs=[numbers])
        more = Rows.spec(inputs={rows: Grouping.fields("n")}, par=2)

    stages = plan_stages(Columns.graph())
    assert stages.stage_of == {"numbers": 0, "rows": 0, "more": 1}
    assert stages.beside == {"rows"}


def test_a_join_that_holds_tuples_over_micro_batches_is_refused():
    class Joins(JoinBolt):
        outputs = ["x"]
        window = Window.tumbling(secs=10)
        join = Join("lines", "line")
        select = {"x": "lines.line"}
        anchored = True

    class Lines(Spout):
        outputs = ["line"]

        def next_tuple(self):
            pass

    class Anchored(Topology):
        lines = Lines.spec()
        joins = Joins.spec(inputs=[lines])

    with pytest.raises(TopologyError, match=r"component 'joins': Joins.anchored holds tuples over micro-batches"):
        plan_stages(Anchored.graph())
