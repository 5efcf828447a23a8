"""JoinBolt and JoinArrowBolt: what matches in a window, anchors, late rows, and their definition."""

import math
import random

import pytest

from acker.testing import FeederSpout, Scheduler, make_tuple, run_bolt
from acker.topology import Bolt, Grouping, Join, JoinArrowBolt, JoinBolt, Spout, Topology, TopologyError, Window

FIELDS = {"clicks": ["user", "page", "at"], "users": ["id", "name", "at"], "carts": ["owner", "total", "at"]}
KEYS = {"clicks": "user", "users": "id", "carts": "owner"}
JOINS = {
    "inner": Join("clicks", "user").join("users", "id"),
    "left": Join("clicks", "user").left_join("users", "id"),
    "inner and left": Join("clicks", "user").join("users", "id").left_join("carts", "owner", to="users"),
    "left and inner": Join("clicks", "user").left_join("users", "id").join("carts", "owner", to="users"),
    "left and left": Join("clicks", "user").left_join("users", "id").left_join("carts", "owner", to="clicks"),
}
OUTPUTS = ["user", "page", "name", "total"]


def bolt_of(kind, join, window, **attributes):
    joined = [step.source[0] for step in join.steps]
    outputs = [name for name in OUTPUTS if any(name in FIELDS[source] for source in joined)]
    return type("Joins", (kind,), {"join": join, "window": window, "outputs": outputs, **attributes})


def rows_of(seed, sources, count=25, *, keys=(1, 2, 3, None)):
    """Return random rows of some streams, in order of time."""
    rng = random.Random(seed)
    rows = []
    for n in range(count):
        source = rng.choice(sources)
        key = rng.choice(keys)
        rows.append((source, dict(zip(FIELDS[source], [key, f"{source}{n}", n * 1.5], strict=True))))
    return rows


def model(join, rows):
    """Join rows as nested loops do."""
    parts = [[row for source, row in rows if source == step.source[0]] for step in join.steps]
    found = [[row] for row in parts[0]]
    for place, step in enumerate(join.steps[1:], 1):
        merged = []
        for before in found:
            prior = before[step.prior]
            key = None if prior is None else prior[join.steps[step.prior].fields[0]]
            matching = [row for row in parts[place] if row[step.fields[0]] == key and key is not None]
            merged += [[*before, row] for row in matching or ([None] if step.is_left else [])]
        found = merged
    results = []
    for combination in found:
        values = []
        for name in OUTPUTS:
            for place, step in enumerate(join.steps):
                if name in FIELDS[step.source[0]]:
                    row = combination[place]
                    values.append(None if row is None else row[name])
                    break
        results.append(tuple(values))
    return results


def given(rows):
    return [make_tuple(dict(row), component=source) for source, row in rows]


@pytest.mark.parametrize("kind", [JoinBolt, JoinArrowBolt])
@pytest.mark.parametrize("name", JOINS)
@pytest.mark.parametrize("seed", range(3))
def test_what_matches_is_what_nested_loops_find(kind, name, seed):
    join = JOINS[name]
    rows = rows_of(seed, [step.source[0] for step in join.steps])
    for step in join.steps:  # a field of nulls alone has no type
        rows.insert(0, (step.source[0], dict(zip(FIELDS[step.source[0]], [1, "first", 0.0], strict=True))))
    run = run_bolt(bolt_of(kind, join, Window.tumbling(count=len(rows))), given(rows))
    assert run.tuples() == model(join, rows) and len(run.tuples()) > 10
    assert len(run.acked) == len(rows)


@pytest.mark.parametrize("kind", [JoinBolt, JoinArrowBolt])
@pytest.mark.parametrize("seed", range(3))
def test_windows_by_event_time_join_what_is_in_them_and_late_rows_are_counted(kind, seed):
    join = JOINS["inner and left"]
    rows = rows_of(seed, list(FIELDS), 40, keys=(1, 2))
    late = ("clicks", {"user": 1, "page": "late", "at": 1.0})
    bolt = bolt_of(kind, join, Window.sliding(secs=20, every_secs=10), timestamp_field="at")
    run = run_bolt(bolt, given([*rows, late]))
    expected = []
    for end in range(10, 60, 10):
        expected += model(join, [each for each in rows if end - 20 <= each[1]["at"] < end])
    assert run.tuples()[: len(expected)] == expected and len(expected) > 10
    assert run.report.stats.components()["tested"].user["late_tuples"] == 1 and len(run.acked) == 41


@pytest.mark.parametrize("kind", [JoinBolt, JoinArrowBolt])
def test_none_and_nan_equal_nothing_and_keys_may_have_several_fields(kind):
    join = Join("clicks", "user", "page").left_join("users", "id", "name")
    bolt = bolt_of(kind, join, Window.tumbling(count=5), outputs=["user", "name"])
    rows = [
        ("clicks", {"user": 1.0, "page": "a", "at": 1}),
        ("clicks", {"user": math.nan, "page": "b", "at": 2}),
        ("clicks", {"user": -0.0, "page": None, "at": 3}),
        ("users", {"id": 1.0, "name": "a", "at": 4}),
        ("users", {"id": math.nan, "name": "b", "at": 5}),
    ]
    found = run_bolt(bolt, given(rows)).tuples()
    assert [name for _, name in found] == ["a", None, None] and math.isnan(found[1][0])


def test_a_key_without_a_hash_fails_its_tuple_alone():
    join = JOINS["inner"]
    rows = [("clicks", {"user": [1], "page": "a", "at": 1}), ("users", {"id": 1, "name": "x", "at": 2})]
    run = run_bolt(bolt_of(JoinBolt, join, Window.tumbling(count=9)), given(rows))
    assert (len(run.acked), len(run.failed)) == (1, 1)
    assert "joins 'clicks' by user, got [1]; expected something hashable" in run.reasons[0].exception
    run = run_bolt(bolt_of(JoinArrowBolt, join, Window.tumbling(count=9)), given(rows))
    assert "joins 'clicks' by 'user', which is list<item: int64>" in run.reasons[0].exception


def test_an_output_is_selected_by_its_stream():
    join = Join("clicks", "user").join("users", "id")
    attributes = {"outputs": ["at", "seen", "user"], "select": {"seen": "users.at"}}
    for kind in (JoinBolt, JoinArrowBolt):
        bolt = bolt_of(kind, join, Window.tumbling(count=2), **attributes)
        rows = [("clicks", {"user": 1, "page": "a", "at": 1}), ("users", {"id": 1, "name": "x", "at": 2})]
        assert run_bolt(bolt, given(rows)).tuples() == [(1, 2, 1)]


ROWS_OF_BOTH = [("users", {"id": 1, "name": "x", "at": 0}), ("clicks", {"user": 1, "page": "a", "at": 0})]


def test_an_anchored_join_anchors_to_all_sides_and_acks_what_has_left_its_windows():
    bolt = bolt_of(JoinBolt, JOINS["left"], Window.tumbling(secs=10), anchored=True)
    rows = given(ROWS_OF_BOTH)
    run = run_bolt(bolt, rows, ticks=25)
    assert [(each.values, set(each.anchors)) for each in run.emitted] == [((1, "a", "x"), set(rows))]
    assert set(run.acked) == set(rows) and not run.state
    again = run_bolt(bolt, given([(source, dict(row)) for source, row in ROWS_OF_BOTH]), ticks=5)
    assert not again.acked and len(again.held) == 2


def shop(bolt, par=1, groupings=True):
    """Return a topology whose spouts a test feeds."""
    specs = {}
    for step in bolt.join.steps:
        source = step.source[0]
        specs[source] = FeederSpout.with_outputs(*FIELDS[source]).spec()
    grouped = {specs[step.source[0]]: Grouping.fields(*step.fields) for step in bolt.join.steps}
    specs["joins"] = bolt.spec(inputs=grouped if groupings else list(grouped), par=par)
    specs["after"] = type("After", (Bolt,), {"process": Seen.process}).spec(inputs=[specs["joins"]])
    return type("Shop", (Topology,), specs)


class Seen:
    rows = []

    def process(self, tup):
        Seen.rows.append(tuple(tup.values))
        if tup.page == "bad":
            raise ValueError("bad")


def test_a_failure_behind_an_anchored_join_fails_the_trees_of_all_sides():
    ended = []

    class Source(Spout):
        rows = []

        def initialize(self, conf, context):
            self.left = list(self.rows)

        def next_tuple(self):
            if not self.left:
                self.finish()
                return
            self.emit(self.left[0], tup_id=self.left.pop(0)[1])

        def ack(self, tup_id):
            ended.append((tup_id, "acked"))

        def fail(self, tup_id, reason):
            ended.append((tup_id, reason.exception))

    clicks = type("Clicks", (Source,), {"outputs": FIELDS["clicks"], "rows": [[1, "bad", 0], [2, "good", 0]]})
    users = type("Users", (Source,), {"outputs": FIELDS["users"], "rows": [[1, "x", 0], [2, "y", 0], [3, "z", 0]]})

    class Shop(Topology):
        config = {"topology.message.timeout.secs": 60}
        clicks_ = clicks.spec("clicks")
        users_ = users.spec("users")
        joins = bolt_of(JoinBolt, JOINS["inner"], Window.tumbling(secs=10), anchored=True).spec(
            inputs={clicks_: Grouping.fields("user"), users_: Grouping.fields("id")}, par=2
        )
        after = type("After", (Bolt,), {"process": Seen.process}).spec(inputs=[joins])

    Seen.rows.clear()
    with Scheduler.of(Shop, seed=1, no_restart=True) as scheduler:
        scheduler.drain()
    assert sorted(Seen.rows) == [(1, "bad", "x"), (2, "good", "y")]
    failed = {"bad": "ValueError: bad", "x": "ValueError: bad"}
    assert dict(ended) == dict.fromkeys(["good", "y", "z"], "acked") | failed


@pytest.mark.parametrize("kind", [JoinBolt, JoinArrowBolt])
def test_tasks_join_what_a_fields_grouping_sends_them(kind):
    join = JOINS["inner"]
    rows = rows_of(5, ["clicks", "users"], 60, keys=range(12))
    bolt = bolt_of(kind, join, Window.tumbling(secs=1000))
    topology = shop(bolt, par=3)
    Seen.rows.clear()
    with Scheduler.of(topology, seed=2, no_restart=True) as scheduler:
        executors = scheduler.runtime.lifecycle
        scheduler.settle()
        spouts = {each.collector.component: each.spout for each in executors.executors.spout_tasks()}
        for source, row in rows:
            spouts[source].feed(list(row.values()))
        scheduler.advance(1100)
    assert sorted(Seen.rows) == sorted(model(join, rows)) and len(Seen.rows) > 20


def test_definitions_are_checked():
    window = Window.tumbling(secs=10)
    inner = JOINS["inner"]
    wrong = [
        (bolt_of(JoinBolt, inner, Window.tumbling(count=3), anchored=True), "anchored is for windows by time of arriv"),
        (bolt_of(JoinBolt, inner, window, anchored=True, timestamp_field="at"), "anchored is for windows by time"),
        (bolt_of(JoinBolt, inner, window, anchored=True, group_key=lambda self, tup: 0), "anchored is for one window"),
        (bolt_of(JoinArrowBolt, inner, window, anchored=True), "take a JoinBolt"),
        (bolt_of(JoinBolt, inner, window, outputs=None), "has no outputs"),
        (bolt_of(JoinBolt, inner, window, select={"x": "users.id"}), "select names 'x', which is not in outputs"),
        (bolt_of(JoinBolt, inner, window, outputs=["pgae"]), "output 'pgae' is 'pgae', which no joined stream has"),
        (bolt_of(JoinBolt, inner, window, outputs=["n"], select={"n": "user.name"}), "output 'n' is 'user.name'"),
        (bolt_of(JoinBolt, Join("clicks", "usr").join("users", "id"), window), "joins by 'usr' of 'clicks'"),
        (type("NoJoin", (JoinBolt,), {"window": window, "outputs": ["x"], "join": None}), "has no join"),
    ]
    for bolt, text in wrong:
        rows = given([(source, dict(zip(FIELDS[source], [1, 2, 3], strict=True))) for source in ("clicks", "users")])
        with pytest.raises(TopologyError, match=text):
            run_bolt(bolt, rows)
    for rows, text in [(["clicks"], "joins 'users', which is not among its inputs"), (list(FIELDS), "is in no join")]:
        tuples = given([(source, dict(zip(FIELDS[source], [1, 2, 3], strict=True))) for source in rows])
        with pytest.raises(TopologyError, match=text):
            run_bolt(bolt_of(JoinBolt, inner, window), tuples)
    with pytest.raises(
        TopologyError, match=r"in 2 tasks, but its grouping is shuffle; write Grouping.fields\('user'\)"
    ):
        shop(bolt_of(JoinBolt, inner, window), par=2, groupings=False).graph()
    with pytest.raises(TopologyError, match=r"take 60 s, but its tuples are open for at most 30 s"):
        run_bolt(bolt_of(JoinBolt, inner, Window.tumbling(secs=30), anchored=True), rows_for(inner))


def rows_for(join):
    return given([(step.source[0], dict(zip(FIELDS[step.source[0]], [1, 2, 3], strict=True))) for step in join.steps])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Join("a"), "'a' has the key"),
        (lambda: Join("", "x"), "a stream is 'component' or"),
        (lambda: Join("a", "x").join("a", "y"), "'a' is there twice"),
        (lambda: Join("a", "x").join("b", "y", to="c").join("c", "z"), "'b' is joined to 'c', which comes not before"),
        (lambda: Join("a", "x").join("b", "y", "z"), "a key of 2 fields, that of 'a' has 1"),
    ],
)
def test_a_join_that_makes_no_sense_is_refused(make, text):
    with pytest.raises(TopologyError, match=text):
        make()


def test_named_streams_are_joined():
    join = Join("a:left", "k").join("a:right", "k")

    class Both(JoinBolt):
        window = Window.tumbling(count=2)
        outputs = ["l", "r"]
        select = {"l": "a:left.v", "r": "a:right.v"}

    Both.join = join
    tuples = [make_tuple({"k": 1, "v": n}, component="a", stream=name) for n, name in enumerate(["left", "right"])]
    assert run_bolt(Both, tuples).tuples() == [(0, 1)]
