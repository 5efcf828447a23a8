"""The trees of rows: the binary column, and the ids that a bolt's outputs get, against a plain model."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker._engine.ids import tuple_ids
from acker.spark.pipelines import anchors as trees
from acker.topology.anchors import Anchors, Int64s, Parents, concat, roots_only, unanchored

IDS = st.sampled_from([0, -1, 1, -(2**63), 2**63 - 1, 7, 8, 9])
ROWS = st.lists(st.dictionaries(IDS, IDS, max_size=3), max_size=6)


def anchors_of(rows: list[dict[int, int]]) -> Anchors:
    starts = np.cumsum([0, *map(len, rows)])
    pairs = [pair for row in rows for pair in row.items()]
    return Anchors(starts, np.array([r for r, _ in pairs], np.int64), np.array([t for _, t in pairs], np.int64))


def rows_of(anchors: Anchors) -> list[dict[int, int]]:
    pairs = list(zip(anchors.root_id.tolist(), anchors.tuple_id.tolist(), strict=True))
    bounds = anchors.starts.tolist()
    return [dict(pairs[low:high]) for low, high in itertools.pairwise(bounds)]


def model(rows, parents, outputs, component):
    """Each (output, parent) pair is an edge in each tree of the parent; Storm's boltEmit, one edge at a time."""
    emitted = [dict.fromkeys(row, 0) for row in rows]
    given: list[dict[int, int]] = [{} for _ in range(outputs)]
    used = [0] * len(rows)
    for output, parent in parents:
        for root, tuple_id in rows[parent].items():
            edge = int(tuple_ids(1, root, tuple_id, component, used[parent])[0])
            emitted[parent][root] ^= edge
            given[output][root] = given[output].get(root, 0) ^ edge
        used[parent] += 1
    return emitted, given


@st.composite
def emissions(draw):
    rows = draw(ROWS)
    lists = draw(st.lists(st.lists(st.integers(0, len(rows) - 1), max_size=3), max_size=6)) if rows else []
    return rows, lists


@given(emissions())
def test_emitted_ids_equal_those_of_the_model(emission) -> None:
    rows, lists = emission
    pairs = [(output, parent) for output, parents in enumerate(lists) for parent in parents]
    parents = Parents(np.array([o for o, _ in pairs], np.int64), np.array([p for _, p in pairs], np.int64))
    emitted, given_ids = trees.emit(anchors_of(rows), parents, len(lists), 1, "bolt")
    expected_emitted, expected_given = model(rows, pairs, len(lists), "bolt")
    assert emitted.tolist() == [value for row in expected_emitted for value in row.values()]
    assert rows_of(given_ids) == expected_given
    sink = roots_only(anchors_of(rows), parents, len(lists))
    assert rows_of(sink) == [dict.fromkeys(row, 0) for row in expected_given]


@given(emissions())
def test_a_tree_reads_zero_when_all_outputs_are_done(emission) -> None:
    """The law: xor of what parents report and what children hold is the xor of the parents' own ids, tree by tree."""
    rows, lists = emission
    pairs = [(output, parent) for output, parents in enumerate(lists) for parent in parents]
    parents = Parents(np.array([o for o, _ in pairs], np.int64), np.array([p for _, p in pairs], np.int64))
    inputs = anchors_of(rows)
    emitted, outputs = trees.emit(inputs, parents, len(lists), 1, "bolt")
    values: dict[int, int] = {}
    for root, value in [
        *zip(inputs.root_id.tolist(), emitted.tolist(), strict=True),
        *zip(outputs.root_id.tolist(), outputs.tuple_id.tolist(), strict=True),
    ]:
        values[root] = values.get(root, 0) ^ value
    assert not any(values.values())


@given(ROWS, st.integers(0, 6), st.integers(0, 6))
def test_the_column_keeps_the_anchors(rows, first, count) -> None:
    column = trees.to_arrow(anchors_of(rows))
    assert column.type == pa.binary() and column.null_count == 0
    assert rows_of(trees.from_arrow(column)) == rows
    assert rows_of(trees.from_arrow(column.slice(first, count))) == rows[first : first + count]
    assert rows_of(trees.from_arrow(column.cast(pa.large_binary()))) == rows


def timed(rows: list[dict[int, int]]) -> Anchors:
    """The anchors of rows whose trees stand at the time that `time_of` says."""
    anchors = anchors_of(rows)
    return anchors._replace(event_ms=time_of(anchors.root_id))


def time_of(root_id: Int64s) -> Int64s:
    return root_id // 3 - 5


@given(emissions(), st.data())
def test_an_anchor_keeps_the_time_of_its_tree(emission, data) -> None:
    rows, lists = emission
    inputs = timed(rows)
    pairs = [(output, parent) for output, parents in enumerate(lists) for parent in parents]
    parents = Parents(np.array([o for o, _ in pairs], np.int64), np.array([p for _, p in pairs], np.int64))
    emitted, outputs = trees.emit(inputs, parents, len(lists), 1, "bolt")
    places = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=5)) if rows else [], np.int64)
    column = trees.to_arrow(inputs)
    assert set(map(len, column.to_pylist())) <= {0, 24, 48, 72}
    for found, plain in [
        (outputs, trees.emit(anchors_of(rows), parents, len(lists), 1, "bolt")[1]),
        (roots_only(inputs, parents, len(lists)), roots_only(anchors_of(rows), parents, len(lists))),
        (inputs.take(places), anchors_of(rows).take(places)),
        (
            concat([inputs, unanchored(2, timed=True)]),
            concat([anchors_of(rows), anchors_of([{}, {}])]),
        ),
        (trees.from_arrow(column, timed=True), anchors_of(rows)),
        (trees.from_arrow(column.slice(1, 2), timed=True), anchors_of(rows[1:3])),
        (trees.from_arrow(pa.nulls(2, pa.binary()), timed=True), anchors_of([{}, {}])),
    ]:
        assert rows_of(found) == rows_of(plain)
        assert found.event_ms is not None and found.event_ms.tolist() == time_of(found.root_id).tolist()
        assert plain.event_ms is None
    assert emitted.tolist() == trees.emit(anchors_of(rows), parents, len(lists), 1, "bolt")[0].tolist()


def test_null_reads_as_unanchored() -> None:
    one = trees.to_arrow(anchors_of([{5: 6}]))[0].as_py()
    assert rows_of(trees.from_arrow(pa.array([None, one, None, b""], pa.binary()))) == [{}, {5: 6}, {}, {}]
    assert rows_of(trees.from_arrow(pa.nulls(2, pa.binary()))) == [{}, {}]


@given(ROWS, st.data())
def test_take_and_concat(rows, data) -> None:
    places = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=5)) if rows else []
    taken = anchors_of(rows).take(np.array(places, np.int64))
    assert rows_of(taken) == [rows[place] for place in places]
    assert rows_of(concat([anchors_of(rows), taken])) == rows + [rows[place] for place in places]


def test_a_column_that_arrow_cannot_hold_is_refused() -> None:
    many = np.broadcast_to(np.int64(0), 2**27 + 1)  # Takes no memory.
    with pytest.raises(OverflowError, match="send fewer rows a batch"):
        trees.to_arrow(Anchors(np.array([0, many.size]), many, many))
