"""Routes: Storm's PartialKeyGrouping, in which each key has two tasks."""

import collections

import pytest

from acker.testing import CapturingBolt, FeederSpout, complete_topology
from acker.topology import Grouping, Topology, TopologyError


def tasks_of(par, keys, *fields):
    """Feed these keys; return how many tuples of each key each task received."""
    sink = CapturingBolt.fresh()

    class Tested(Topology):
        source = FeederSpout.with_outputs("key", "n").spec()
        last = sink.spec(inputs={source: Grouping.partial_key(*fields)}, par=par)

    done = complete_topology(Tested, {"source": [[key, number] for number, key in enumerate(keys)]})
    assert done.acked == len(keys)
    found = collections.defaultdict(collections.Counter)
    for each in sink.captured:
        found[each.values[0]][each.task] += 1
    return found


def test_a_frequent_key_is_shared_by_two_tasks_evenly():
    found = tasks_of(5, ["hot"] * 100, "key")
    assert sorted(found["hot"].values()) == [50, 50]


def test_every_key_has_at_most_two_tasks_and_loads_are_alike():
    keys = [f"key{number % 50}" if number % 5 else "hot" for number in range(2500)]
    found = tasks_of(4, keys, "key")
    assert max(len(tasks) for tasks in found.values()) == 2
    loads = sum(found.values(), collections.Counter())
    assert len(loads) == 4 and max(loads.values()) - min(loads.values()) < 0.1 * len(keys)


def test_two_tasks_share_whatever_comes():
    found = tasks_of(2, ["only"] * 10, "key")
    assert sorted(found["only"].values()) == [5, 5]


def test_several_fields_make_one_key():
    found = tasks_of(8, ["a"] * 400, "key", "n")  # n is another number each time, so all tasks are reached
    assert len(found["a"]) == 8


def test_one_task_receives_all_and_a_key_has_a_hash():
    assert tasks_of(1, ["a", "b"], ["key"])["b"] == {2: 1}
    for par in (1, 2):
        with pytest.raises(TypeError, match="a value of type dict has no stable hash"):
            tasks_of(par, [{}], "key")


def test_its_fields_are_checked_as_those_of_fields():
    assert str(Grouping.partial_key("word", "n")) == "partial_key(word, n)"
    assert Grouping.partial_key(["word"]) == Grouping.partial_key("word") != Grouping.fields("word")
    source = FeederSpout.with_outputs("word").spec()
    for fields, text in (([], "names no field; write Grouping.partial_key"), (["wrod"], "did you mean 'word'?")):
        with pytest.raises(TopologyError, match=text):
            type(Topology)(
                "T",
                (Topology,),
                {"it": source, "last": CapturingBolt.fresh().spec(inputs={source: Grouping.partial_key(*fields)})},
            )
