"""The native work for blocks of rows: ids of outputs, outcomes of open rows, and messages to ackers."""

import numpy as np
import pytest

from acker import IdGenerator, Kind
from acker._flow import AckSender, close_rows, columns_of, output_ids
from acker.local.clock import Flag
from acker.local.queues import Queue

POSITIONS = {
    "none": [],
    "each": [0, 1, 2, 3, 4, 5],
    "some": [1, 4],
    "several": [0, 0, 0, 2, 3, 3, 5],
    "mixed": [5, 0, 3, 0, 0, 5, 2],
    "twice": [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5],
}


@pytest.mark.parametrize("name", POSITIONS)
def test_the_outputs_of_an_input_have_its_id_together(name):
    ids = IdGenerator(seed=3)
    inputs, positions = ids.take(6), np.array(POSITIONS[name], np.int64)
    left = inputs.copy()
    found = output_ids(left, positions, ids.take)
    together = np.zeros(6, np.int64)
    np.bitwise_xor.at(together, positions, found)
    has_outputs = np.isin(np.arange(6), positions)
    assert together[has_outputs].tolist() == inputs[has_outputs].tolist()
    assert left.tolist() == np.where(has_outputs, 0, inputs).tolist()
    assert found.all() and len(set(found.tolist())) == positions.size


def test_outputs_never_have_the_id_0():
    left = np.array([5, 9], np.int64)
    fresh = iter([[5, 7], [11]])
    found = output_ids(left, np.array([0, 0], np.int64), lambda count: np.array(next(fresh), np.int64))
    assert found.tolist() == [5, 11] and left.tolist() == [11, 9]  # the OK says 5 ^ 5 ^ 11


@pytest.mark.parametrize("positions", [[0, 2], [2, 0], [-1], [0, 0, 7]])
def test_positions_are_those_of_inputs(positions):
    with pytest.raises(IndexError, match=r"position -?\d of 2"):
        output_ids(np.array([5, 9], np.int64), np.array(positions, np.int64), IdGenerator(seed=1).take)


def test_as_many_ids_as_were_asked_for():
    with pytest.raises(ValueError, match="1 ids, expected 2"):
        output_ids(np.array([5], np.int64), np.array([0, 0], np.int64), lambda _: np.array([3], np.int64))


def test_rows_close_once():
    is_open = np.array([1, 1, 0, 1], np.uint8)
    assert close_rows(is_open, np.array([3, 0, 2, 3], np.int64)).tolist() == [3, 0]
    assert is_open.tolist() == [0, 1, 0, 0]
    assert close_rows(is_open, np.array([3], np.int64)).tolist() == []
    with pytest.raises(IndexError, match="row 4 of 4"):
        close_rows(is_open, np.array([4], np.int64))


@pytest.mark.parametrize("ackers", [1, 2])
def test_an_ok_that_changes_nothing_is_not_sent(ackers):
    queues = [Queue(100, Flag()) for _ in range(ackers)]
    sender = AckSender(queues)
    sender.track_rows(*(np.array(column, np.int64) for column in ([4, 5], [1, 2])), 3, np.array([8, 9], np.int64))
    sender.ack_rows(*(np.array(column, np.int64) for column in ([4, 4, 5, 6, 6], [1, 3, 0, 7, 7])))
    sender.send()
    batches = [batch for queue in queues for batch in iter(queue.take, None)]
    kind, root, value, task, message = (column.tolist() for column in columns_of(batches))
    rows = sorted(zip(kind, root, value, strict=True))
    assert rows[:2] == [(Kind.TRACK, 4, 1), (Kind.TRACK, 5, 2)]
    told = {}
    for _, root_id, said in rows[2:]:
        assert said
        told[root_id] = told.get(root_id, 0) ^ said
    assert {root_id: said for root_id, said in told.items() if said} == {4: 1 ^ 3}
    assert sorted(zip(message, task, strict=True))[-2:] == [(8, 3), (9, 3)]
