"""The computed tables of docs/scale.md, on results of a machine where every cost is a round number."""

import pytest

import growth
import growth_tables
import results
from growth import Cluster, Constants, Line, between, limits

pytestmark = pytest.mark.repository

SHARD = {"open": 0, "written_bytes_a_message": 50, "state_bytes": 0, "table_bytes": 0, "rebuild_ns": 0}


def result(figures, **parameters):
    return {"figures": {side: {"median": median} for side, median in figures.items()}, "parameters": parameters}


def weights_of(trees):
    """A log of 100 bytes a tree, a table of 80, and 200 ns to read a tree back."""
    return {**SHARD, "open": trees, "state_bytes": 100 * trees, "table_bytes": 80 * trees, "rebuild_ns": 200 * trees}


FOUND = {
    "growth/combine": result(
        {"10,000": 40, "1,000,000": 60},
        block_bytes_open_1=110,
        block_bytes_open_1001=40_110,
        block_bytes_finished_1=100,
        block_bytes_finished_1001=30_100,
    ),
    "growth/blocks": result({"1 blocks": 3.0, "101 blocks": 5.0}),
    "growth/shard": result(
        {"10,000 open": 100, "1,000,000 open": 300, "10,000,000 open": 400},
        weights={str(trees): weights_of(trees) for trees in (10_000, 1_000_000, 10_000_000)},
    ),
    "spark/growth/checkpoint": result({"state files": 2.0}),
    "spark/growth/partitions": result(
        {"2 partitions": 1200, "4 partitions": 1400},
        weights={
            f"{count} partitions": {"files_a_micro_batch": 4 * count, "progress_bytes": 3000 + 500 * count}
            for count in (2, 4)
        },
    ),
    "spark/growth/tasks": result({"10 tasks": 20, "100 tasks": 110}),
    "spark/growth/completions": result({"10,000 completions": 21, "1,000,000 completions": 120}, bytes_a_completion=29),
}


@pytest.fixture
def known(monkeypatch):
    """The constants of that machine, in place of those of benchmarks/results."""
    found = {"results": [{"case": case, **each} for case, each in FOUND.items()]}
    monkeypatch.setattr(results, "read_results", {"growth": found}.__getitem__)
    return growth.constants()


def test_a_line_is_fitted():
    assert Line.through({1: 5, 3: 9, 10: 23}) == pytest.approx((3, 2))


def test_what_was_not_measured_is_not_guessed():
    points = {10_000: 100, 1_000_000: 300}
    assert [between(points, size) for size in (10_000, 100_000, 1_000_000)] == pytest.approx([100, 200, 300])
    for size in (9_999, 1_000_001):
        with pytest.raises(LookupError, match=f"{size:,} is not between 10,000 and 1,000,000, which were measured"):
            between(points, size)


def test_constants_are_those_of_the_results(known):
    assert known == Constants.of(FOUND)
    assert (known.header, known.open_tree, known.finished) == (70, 40, 30)
    assert known.block.each == pytest.approx(20_000)
    assert known.partition == pytest.approx((1000e6, 100e6))
    assert known.files.each == pytest.approx(4) and known.progress == pytest.approx((3000, 500))
    assert known.task.each == pytest.approx(1e6)
    assert known.completion == pytest.approx((20e6, 100))
    assert known.state == {10_000: 100, 1_000_000: 100, 10_000_000: 100}
    assert known.merge == {10_000: 100, 1_000_000: 300, 10_000_000: 400}


def test_a_cluster_of_a_hundred_executors_is_computed(known):
    it = Cluster(100, known)
    assert (it.shards, it.open_trees, it.shard_trees) == (400, 10**9, 2_500_000)
    assert (it.messages, it.blocks) == (10_000_000, 160_000)
    assert it.shuffle_bytes == 10_000_000 * 40 + 160_000 * 70
    assert it.state_bytes == pytest.approx(100e9)
    assert it.table_bytes == pytest.approx(800e6)
    assert it.checkpoint_bytes == 10_000_000 * 50 * 2
    assert it.files == pytest.approx(1600)
    merging = between(known.merge, 2_500_000)
    combining = between(known.combine, 25_000)
    assert it.core_ns == pytest.approx(25_000 * (merging + combining) + 400 * 20_000 + 100e6)
    assert it.rebuild_ns == pytest.approx(2_500_000 * 200)
    assert it.task_ns == pytest.approx(800e6)
    assert it.completion_ns == pytest.approx(20e6 + 2_000_000 * 100)
    assert it.shared_id_chance == pytest.approx(1 / 36.89, rel=1e-3)


def test_limits_come_in_the_order_in_which_they_are_reached(known):
    found = limits()
    assert [round(each.executors) for each in found] == sorted(round(each.executors) for each in found)
    by_what = {each.what.split(",")[0]: each.executors for each in found}
    assert by_what["two of the open trees share a root id"] == pytest.approx(60.7, rel=1e-2)
    assert by_what["there are no more than 1"] == 256
    at = {each.what.partition(" needs")[0]: round(each.executors) for each in found}
    assert Cluster(at["the driver"], known).task_ns == pytest.approx(10e9, rel=1e-3)
    assert Cluster(at["a function in the driver"], known).completion_ns == pytest.approx(10e9, rel=1e-3)


@pytest.mark.parametrize("name", ["parts", "cluster", "limits"])
def test_tables_are_made_of_the_constants(known, monkeypatch, name):
    before = growth_tables.part(name)
    assert len({row.count("|") for row in before.splitlines()}) == 1
    slower = known._replace(
        task=Line(0, 3e6), block=Line(0, 1e6), completion=Line(0, 900), state=dict.fromkeys(known.state, 300)
    )
    for module in (growth, growth_tables):
        monkeypatch.setattr(module, "constants", lambda: slower)
    assert growth_tables.part(name) != before


def test_the_load_is_told():
    assert "so a tree takes 5,000 s to be done" in growth_tables.part("load")
    with pytest.raises(LookupError, match="no part of growth 'tables'; there are load, parts, cluster, limits"):
        growth_tables.part("tables")


@pytest.mark.parametrize(
    ("count", "text"), [(5, "5.00 B"), (1500, "1.50 kB"), (2.5e6, "2.50 MB"), (88e9, "88.0 GB"), (1e12, "1.00 TB")]
)
def test_sizes_are_written(count, text):
    assert growth_tables.size_of(count) == text
