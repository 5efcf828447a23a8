"""Rows as columns between stages: what was packed comes out again, with its trees."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from acker.spark.topologies import column_blocks
from acker.spark.topologies.column_blocks import parts_of
from acker.spark.topologies.tuple_blocks import decode_tuples, encode_tuples
from acker.topology.tuple_batch import TupleBatch
from acker.topology.tuples import TupleSource

SOURCE = TupleSource("words", "default", 3, ["word", "n"])
OTHER = TupleSource("words", "default", 4, ["word", "n"])


def source_of(task, stream):
    return {3: SOURCE, 4: OTHER}[task]


def batch_of(rows, *, source=SOURCE, trees="one", word=lambda n: f"w{n}", kind=None):
    """Return some rows: each in one tree, in none, or row n in n of three trees."""
    columns = pa.RecordBatch.from_pydict({"word": pa.array([word(n) for n in rows], kind), "n": list(rows)})
    if trees == "none":
        return TupleBatch(source, columns)
    if trees == "one":
        ids = np.array(list(rows), np.int64)
        return TupleBatch(source, columns, ids + 100, ids + 1000)
    counts = [n % 4 for n in rows]
    roots = np.array([100 + each for count in counts for each in range(count)], np.int64)
    starts = np.concatenate([[0], np.cumsum(counts)])
    return TupleBatch(source, columns, roots, np.arange(1000, 1000 + roots.size), starts)


def told(batch):
    """Return the rows of a batch with their trees."""
    anchors = batch.anchors()
    pairs = list(zip(anchors.root_id.tolist(), anchors.tuple_id.tolist(), strict=True))
    trees = [dict(pairs[begin:end]) for begin, end in zip(anchors.starts, anchors.starts[1:], strict=False)]
    return list(zip(batch.columns.to_pylist(), trees, strict=True))


def packed(chunks, excluded=frozenset(), on_roots=None):
    return list(decode_tuples(encode_tuples(chunks), source_of, excluded, on_roots))


@pytest.mark.parametrize("trees", ["one", "none", "several"])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_rows_come_out_with_their_types_and_trees(kind, trees):
    batch = batch_of(range(9), trees=trees, kind=kind)
    [(task, found)] = packed([(7, batch)])
    assert task == 7
    assert found.source is SOURCE
    assert found.columns.equals(batch.columns)
    assert told(found) == told(batch)


@pytest.mark.parametrize("trees", ["one", "none", "several"])
def test_rows_that_follow_each_other_are_one_batch(trees):
    parts = [batch_of(range(begin, begin + 5), trees=trees) for begin in range(0, 20, 5)]
    found = packed([chunk for part in parts for chunk in ((7, part), (8, part))])
    assert [task for task, _ in found] == [7, 8]
    for _, batch in found:
        assert told(batch) == [row for part in parts for row in told(part)]


def test_root_ids_that_follow_each_other_travel_in_one_byte_or_two():
    columns = batch_of(range(200)).columns
    tuple_ids = np.random.default_rng(1).integers(1, 2**63 - 1, 200)
    sizes = []
    for root_ids in (tuple_ids, np.arange(2**62, 2**62 + 200)):
        batch = TupleBatch(SOURCE, columns, root_ids, tuple_ids)
        sizes.append(len(encode_tuples([(7, batch)])))
        [(_, found)] = packed([(7, batch)])
        assert told(found) == told(batch)
    assert sizes[0] - sizes[1] > 6 * 200


def test_what_a_task_gets_keeps_its_order():
    tup = SOURCE.tuple_type(SOURCE.make_values(["alone", 99]), SOURCE, {5: 6})
    chunks = [
        (7, batch_of([0, 1])),
        (7, batch_of([2], source=OTHER)),
        (7, [tup]),
        (7, batch_of([3])),
        (7, batch_of([4], kind=pa.large_string())),
    ]
    numbers = [
        [t.n for t in rows] if isinstance(rows, list) else rows.columns["n"].to_pylist() for _, rows in packed(chunks)
    ]
    assert numbers == [[0, 1], [2], [99], [3], [4]]


def test_slices_take_along_only_their_rows():
    whole = batch_of(range(100_000), word=lambda n: "x" * 20)
    block = encode_tuples([(7, whole.slice(5, 8))])
    assert len(block) < 2_000
    [(_, found)] = decode_tuples(block, source_of)
    assert told(found) == told(whole.slice(5, 8))


@pytest.mark.parametrize("trees", ["one", "none", "several"])
def test_rows_of_trees_that_are_excluded_are_left_out(trees):
    batch, excluded, seen = batch_of(range(12), trees=trees), frozenset({102, 105}), []
    expected = [row for row in told(batch) if not excluded & row[1].keys()]
    [(_, found)] = packed([(7, batch)], excluded, lambda task, roots: seen.append((task, roots)))
    assert told(found) == expected
    assert {root for _, roots in seen for root in roots.tolist()} == {root for _, ids in told(batch) for root in ids}
    assert packed([(7, batch_of([2, 5]))], excluded) == []


def test_dictionaries_of_their_own_are_not_mixed_up():
    kind = pa.dictionary(pa.int8(), pa.string())
    parts = [batch_of(rows, kind=kind) for rows in ([1, 2], [3, 1])]
    words = [batch.columns["word"].to_pylist() for _, batch in packed([(7, part) for part in parts])]
    assert words == [["w1", "w2"], ["w3", "w1"]]


def test_large_rows_are_cut_into_blocks(monkeypatch):
    monkeypatch.setattr(column_blocks, "_BYTES", 10_000)
    batch = batch_of(range(50), trees="several", word=lambda n: "x" * 1000)
    parts = list(parts_of(batch))
    assert [len(part) for part in parts] == [10] * 5
    assert [row for part in parts for row in told(part)] == told(batch)
    assert [len(part) for part in parts_of(batch_of([1], word=lambda n: "x" * 100_000))] == [1]
