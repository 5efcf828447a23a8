"""Blocks of tuples: what was packed comes out again, in its order, with its ids."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker.errors import TopologyError
from acker.spark.topologies.tuple_blocks import (
    bytes_of,
    decode_tuples,
    encode_tuples,
    is_pickled_by_value,
    values_by_root,
)
from acker.topology.tuples import TupleSource

SOURCES = [
    TupleSource("words", "default", 3, ["word", "n"]),
    TupleSource("words", "default", 4, ["word", "n"]),
    TupleSource("words", "side", 3, ["only"]),
    TupleSource("empty", "default", 5, []),
]
BY_PLACE = {(source.task, source.stream): source for source in SOURCES}


def source_of(task, stream):
    return BY_PLACE[task, stream]


int64 = st.integers(-(2**63), 2**63 - 1)
ids = st.one_of(
    st.none(),
    st.dictionaries(int64.filter(bool), int64.filter(bool), min_size=1, max_size=1),
    st.dictionaries(int64.filter(bool), int64.filter(bool), min_size=2, max_size=4),
)
values = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.binary(max_size=5), st.floats())


@st.composite
def tuples(draw):
    source = draw(st.sampled_from(SOURCES))
    row = [draw(values) for _ in source.fields]
    return make(source, row, draw(ids))


def make(source, row, tree_ids):
    """Return a tuple as a runtime makes it."""
    return source.tuple_type(source.make_values(row), source, tree_ids)


def told(tup):
    """Return all that a tuple says, in a way that compares NaN."""
    return tup._source, repr(tuple(tup.values)), tup._ids


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 9), st.lists(tuples(), max_size=8)), max_size=5))
def test_what_was_packed_comes_out_task_by_task(chunks):
    expected, found = defaultdict(list), defaultdict(list)
    for task, chunk in chunks:
        expected[task] += map(told, chunk)
    for task, chunk in decode_tuples(encode_tuples(chunks), source_of):
        assert chunk
        found[task] += map(told, chunk)
    assert found == {task: chunk for task, chunk in expected.items() if chunk}


@settings(max_examples=50)
@given(st.lists(tuples(), max_size=12), st.data())
def test_trees_that_are_excluded_are_left_out(chunk, data):
    roots = sorted({root for tup in chunk for root in tup._ids or ()})
    excluded = frozenset(data.draw(st.sets(st.sampled_from(roots)))) if roots else frozenset({7})
    found = [told(tup) for _, part in decode_tuples(encode_tuples([(1, chunk)]), source_of, excluded) for tup in part]
    # Whatever belongs to several trees is left out as soon as one of them is.
    assert found == [told(tup) for tup in chunk if not excluded & set(tup._ids or ())]


@settings(max_examples=50)
@given(st.lists(tuples(), max_size=12))
def test_the_roots_of_a_task_are_told(chunk):
    seen = []
    list(decode_tuples(encode_tuples([(6, chunk)]), source_of, on_roots=lambda task, roots: seen.append((task, roots))))
    assert {task for task, _ in seen} <= {6}
    found = set(np.concatenate([roots for _, roots in seen]).tolist()) - {0} if seen else set()
    assert found == {root for tup in chunk for root in tup._ids or ()}


def test_values_keep_their_names():
    block = encode_tuples([(1, [make(SOURCES[0], ["storm", 7], {1: 2})])])
    [(_, [tup])] = decode_tuples(memoryview(block), source_of)
    assert (tup.word, tup["n"], tup.component, tup.stream, tup.task, tup.id) == (
        *("storm", 7, "words", "default", 3),
        "1:2",
    )
    assert tup.values == ("storm", 7)


def test_tuples_that_come_out_take_no_ack_val_with_them():
    tup = make(SOURCES[0], ["storm", 7], {1: 2})
    for _ in range(2):  # the block can be read again, as by a Spark task that runs again
        [(_, [found])] = decode_tuples(encode_tuples([(1, [tup])]), source_of)
        assert found is not tup and not found._is_settled


def test_a_value_that_cannot_be_pickled_is_an_error():
    with pytest.raises(TopologyError, match=r"component 'words': the field 'only' .* cannot pickle 'generator' object"):
        encode_tuples([(1, [make(SOURCES[2], [(n for n in ())], None)])])


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 9), st.lists(tuples(), max_size=8)), max_size=5))
def test_the_values_of_each_tree_can_be_read_without_its_tuples(chunks):
    expected = {}
    for tup in (tup for _, chunk in chunks for tup in chunk):
        for root in tup._ids or ():
            expected.setdefault(root, repr(tuple(tup.values)))
    found = values_by_root(encode_tuples(chunks))
    assert found.keys() == expected.keys()
    # A block packs its tuples stream by stream in their order, so the first one is the same.
    assert {root: repr(of_root) for root, of_root in found.items()} == expected


class Grown:
    """A class that a worker cannot import."""


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        (b"x" * 5_000_000, 5_000_000, 5_001_000),
        ("x" * 1_000_000, 1_000_000, 1_001_000),
        (7, 20, 50),
        ({"body": [b"x" * 5_000_000]}, 5_000_000, 5_001_000),
        (np.zeros(1_000_000), 8_000_000, 8_001_000),
        (np.zeros((1000, 1000))[:, ::2], 4_000_000, 4_001_000),
        (lambda: None, 20, 500),  # what cannot be pickled is refused elsewhere
    ],
    ids=["bytes", "str", "int", "nested", "array", "strided", "function"],
)
def test_the_size_of_a_tuple_is_that_of_what_it_holds(value, least, most):
    tup = make(SOURCES[2], [value], None)
    assert least <= bytes_of(tup) <= most


def test_a_block_with_classes_by_value_is_known():
    def block_of(value):
        return encode_tuples([(1, [make(SOURCES[2], [value], {5: 6})])])

    local = type("Local", (), {})
    assert is_pickled_by_value(block_of(local()))
    assert is_pickled_by_value(block_of(lambda: None))
    assert not is_pickled_by_value(block_of({"a": [np.zeros(3), Grown()]}))
