"""Notes of pipelines: packed, unpacked, and found by tree."""

import struct

import numpy as np
import pyarrow as pa
import pytest

from acker.errors import ArgumentValueError
from acker.spark.notes import FAILURE_SCHEMA, HEAD_SCHEMA, Notes, decode_note, encode_note, indices_in, is_note


def failures(*rows):
    names = ("root_id", "component", "reason")
    told = [{"tuple_id": 5, "row": "{}", **dict(zip(names, row, strict=True))} for row in rows]
    return pa.Table.from_pylist(told, FAILURE_SCHEMA)


def test_a_note_comes_back_as_it_was():
    table = failures((7, "split", "ValueError: ü"), (None, "split", "b"))
    note = encode_note(table, -5)
    assert is_note(note) and not is_note(b"ACKERBLK")
    assert decode_note(note) == table
    assert struct.unpack_from("<q", note, 48) == (-5,), "where blocks have their event time"
    assert encode_note(table, -5) == note


@pytest.mark.parametrize("place", [0, 9, 70, -1])
def test_damage_is_noticed(place):
    damaged = bytearray(encode_note(failures((7, "split", "a"))))
    damaged[place] ^= 1
    with pytest.raises(ArgumentValueError, match="note: "):
        decode_note(bytes(damaged))
    with pytest.raises(ArgumentValueError, match="note: expected at least 64 bytes, got 9"):
        decode_note(bytes(damaged[:9]))


def test_of_several_failures_of_a_tree_the_first_by_its_text_counts():
    rows = [(7, "split", "b"), (8, "split", "c"), (7, "count", "z"), (None, "split", "a"), (7, "split", "a")]
    expected = (["count", None, "split"], ["z", None, "c"])
    for order in (rows, rows[::-1]):
        notes = Notes()
        for row in order:
            notes.add(encode_note(failures(row)))
        assert tuple(column.to_pylist() for column in notes.failed(np.array([7, 9, 8]))) == expected
    assert Notes().failed(np.array([7])).reason.to_pylist() == [None]


def test_heads_say_which_attempt_a_tree_is():
    notes = Notes()
    notes.add(encode_note(pa.table([[7, 8], [1, 2]], schema=HEAD_SCHEMA)))
    notes.add(encode_note(pa.table([[-9], [3]], schema=HEAD_SCHEMA)))
    assert notes.attempts_of(np.array([-9, 5, 7, 8])).tolist() == [3, 0, 1, 2]


def test_places_are_found_whatever_the_order():
    ids = np.array([5, -3, 9], np.int64)
    assert indices_in(ids, np.array([9, 4, -3, 10])).tolist() == [2, -1, 1, -1]
    assert indices_in(ids[:0], ids).tolist() == [-1, -1, -1]
