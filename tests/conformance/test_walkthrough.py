"""The walk-through of one article, whose ids are not unique, and the same tree with ids that are."""

import itertools

import numpy as np
import pytest

from acker import Kind, Outcome

# TRACK, and what each bolt's OK carries: its own tuple id xor the ids of what it emitted.
EDGES = [(1, 2), (1, 3), (2, 4), (3, 5), (4, 5), (5,), (5,)]
# The same tree with an id for each of its six tuples: the two that share id 5 above are 5 and 6 here.
UNIQUE_EDGES = [(1, 2), (1, 3), (2, 4), (3, 5), (4, 6), (5,), (6,)]
KINDS = [Kind.TRACK, *[Kind.OK] * 6]


def values(edges, ids):
    return [int(np.bitwise_xor.reduce([ids[edge - 1] for edge in of_message])) for of_message in edges]


def test_ids_that_are_not_unique_finish_the_tree_early(acker_type):
    a = acker_type()
    ended = []
    for kind, value in zip(KINDS, values(EDGES, [1, 2, 3, 4, 5, 6]), strict=True):
        ended.append(a.ingest([kind], [9], [value], [0], [1]).rows())
    assert [bool(rows) for rows in ended] == [False] * 4 + [True] + [False] * 2
    assert ended[4] == [(9, 1, 0, Outcome.ACKED, 0)]
    # The two late OKs make an entry that nobody tracks; it reads 5 ^ 5 = 0, and leaves with its bucket.
    assert (len(a), a.stats().open) == (1, 0)


@pytest.mark.parametrize(
    "ids",
    [
        [1, 2, 4, 8, 16, 32],
        [-0x5DEECE66D1234567, 0x1B873593CC9E2D51, -0x61C8864680B583EB, 0x27D4EB2F165667C5, -1, -(2**63)],
    ],
    ids=["powers of two", "random"],
)
def test_independent_ids_finish_at_the_last_message_in_all_5040_orders(acker_type, ids):
    messages = list(zip(KINDS, values(UNIQUE_EDGES, ids), strict=True))
    orders = list(itertools.permutations(messages))
    assert len(orders) == 5040
    # Each order is a tree of its own, and all trees of one acker advance together.
    a = acker_type()
    roots = np.arange(len(orders))
    zeros = np.zeros(len(orders), np.int32)
    for step in range(7):
        kinds = np.array([order[step][0] for order in orders], np.int8)
        step_values = np.array([order[step][1] for order in orders], np.int64)
        done = a.ingest(kinds, roots, step_values, zeros, roots)
        assert len(done) == (len(orders) if step == 6 else 0)
    assert np.array_equal(done.message_id, roots)
    assert set(done.outcome.tolist()) == {Outcome.ACKED}
    assert len(a) == 0


def test_the_plain_numbers_1_to_6_are_not_independent(acker_type):
    ids = [1, 2, 3, 4, 5, 6]  # 1 ^ 2 = 5 ^ 6
    messages = list(zip(KINDS, values(UNIQUE_EDGES, ids), strict=True))
    early = 0
    for order in itertools.islice(itertools.permutations(messages), 720):
        a = acker_type()
        kinds, step_values = zip(*order[:-1], strict=True)
        early += len(a.ingest(kinds, [9] * 6, step_values, [0] * 6))
    assert early > 0
