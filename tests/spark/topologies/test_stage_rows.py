"""The rows between the stages: from tuples to Arrow and back."""

from __future__ import annotations

from acker.spark.topologies import stage_rows
from acker.spark.topologies.stage_rows import STAGE_ROW_SCHEMA, StageRow, batches_of, equals


def rows_of(batches):
    return [StageRow(*row.values()) for batch in batches for row in batch.to_pylist()]


def test_rows_become_batches_in_their_order():
    rows = [StageRow(key, key - 3, 2**40, key, b"x" * key) for key in range(5)]
    batches = list(batches_of(rows))
    assert [batch.schema for batch in batches] == [STAGE_ROW_SCHEMA]
    assert rows_of(batches) == rows


def test_nothing_makes_no_batch():
    assert list(batches_of([])) == []
    assert list(batches_of(iter(()))) == []


def test_large_blocks_make_several_batches(monkeypatch):
    monkeypatch.setattr(stage_rows, "_BATCH_BYTES", 10)
    rows = [StageRow(0, 1, 0, seq, b"x" * 6) for seq in range(5)]
    batches = list(batches_of(iter(rows)))
    assert [batch.num_rows for batch in batches] == [2, 2, 1]
    assert rows_of(batches) == rows


def test_a_column_is_compared_with_a_number():
    [batch] = batches_of([StageRow(0, stage, 0, 0, b"") for stage in (1, -1, 1)])
    assert equals(batch.column(1), 1).to_pylist() == [True, False, True]
