"""The rows between the stages: from letters to Arrow and back."""

from __future__ import annotations

from acker.spark.topologies import mailbox
from acker.spark.topologies.mailbox import MAILBOX_SCHEMA, Letter, batches_of, equals


def letters_of(batches):
    return [Letter(*row.values()) for batch in batches for row in batch.to_pylist()]


def test_letters_become_rows_in_their_order():
    letters = [Letter(place, place - 3, 2**40, place, b"x" * place) for place in range(5)]
    batches = list(batches_of(letters))
    assert [batch.schema for batch in batches] == [MAILBOX_SCHEMA]
    assert letters_of(batches) == letters


def test_nothing_makes_no_batch():
    assert list(batches_of([])) == []
    assert list(batches_of(iter(()))) == []


def test_large_blocks_make_several_batches(monkeypatch):
    monkeypatch.setattr(mailbox, "_BATCH_BYTES", 10)
    letters = [Letter(0, 1, 0, seq, b"x" * 6) for seq in range(5)]
    batches = list(batches_of(iter(letters)))
    assert [batch.num_rows for batch in batches] == [2, 2, 1]
    assert letters_of(batches) == letters


def test_a_column_is_compared_with_a_number():
    [batch] = batches_of([Letter(0, stage, 0, 0, b"") for stage in (1, -1, 1)])
    assert equals(batch.column(1), 1).to_pylist() == [True, False, True]
