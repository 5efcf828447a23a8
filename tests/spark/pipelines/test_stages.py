"""The worker's side of a pipeline, without Spark: what a task does with its batches."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pyarrow as pa
import pytest

from acker import Kind
from acker._engine.codes import TRACKED
from acker._engine.combiner import Combiner
from acker.errors import ColumnValueError
from acker.spark.blocks import decode_block, read_header
from acker.spark.notes import decode_note
from acker.spark.pipelines import collector as collectors
from acker.spark.pipelines.collector import COUNTERS_SHARD, MessageCollector
from acker.spark.pipelines.hidden_columns import ANCHORS, BLOCK, SHARD
from acker.spark.pipelines.stages import Stage
from acker.spark.pipelines.transforms import BoltTransform, BranchTransform, SpoutTransform
from tests.spark.lossy import LossyLink

LINES = pa.schema([("line", pa.int64()), ("part", pa.int32()), ("task", pa.int64()), ("word", pa.string())])
WORD = pa.schema([("word", pa.string())])


def batch_of(*rows) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(LINES.names, row, strict=True)) for row in rows], LINES)


def spout_transform(**options) -> SpoutTransform:
    values = {"message_id": "line", "source": "part", "task_id": "task", "attempt": 0}
    return SpoutTransform("lines", 1, **(values | options))


def run(stage: Stage, *batches: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches(stage.run(iter(batches)), stage.output_schema)


def spouted(*rows) -> list[pa.RecordBatch]:
    return run(Stage((spout_transform(),), LINES, 2, tracked=False), batch_of(*rows)).to_batches()


def bolt(function, by="row", schema=WORD, sink=False) -> BoltTransform:
    return BoltTransform("bolt", 1, function, by, schema, sink)


def parts_of(table: pa.Table, shard_from: int = 0) -> tuple[pa.Table, list[tuple[int, bytes]]]:
    is_data = table.column(SHARD).is_null()
    carriers = table.filter(pa.compute.invert(is_data))
    return table.filter(is_data), list(
        zip(carriers.column(SHARD).to_pylist(), carriers.column(BLOCK).to_pylist(), strict=True)
    )


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ((1, None, 0, "a"), "part: null in a row whose line is not"),
        ((1, 0, None, "a"), "task: null in a row whose line is not"),
        ((1, 0, -1, "a"), "task: expected int32 >= 0 in each row, got -1 to 0"),
        ((1, 0, 2**31, "a"), "task: expected int32 >= 0 in each row, got 0 to 2147483648"),
    ],
    ids=["null source", "null task", "negative task", "wide task"],
)
def test_a_tracked_row_needs_its_columns(row, text) -> None:
    with pytest.raises(ValueError, match=text):
        spouted((0, 0, 0, "a"), row)
    data, _ = parts_of(pa.Table.from_batches(spouted((0, 0, 0, "a"), (None, *row[1:]))))
    assert [len(anchors) for anchors in data.column(ANCHORS).to_pylist()] == [16, 0]


def test_rows_of_a_task_that_share_a_message_id_are_named() -> None:
    stage = Stage((spout_transform(attempt=0),), LINES, 2, tracked=False)
    text = r"lines: line: 3 rows of one batch have the message id 7\. They would share a tree"
    with pytest.raises(ColumnValueError, match=text):
        run(stage, batch_of((7, 0, 0, "a"), (8, 0, 0, "b"), (7, 0, 0, "c"), (7, 0, 0, "d")))
    with pytest.raises(
        ColumnValueError, match=r"2 rows of one batch have the message id 7 \(and of 1 other ids, such as 8\)\."
    ):
        run(stage, batch_of((7, 0, 0, "a"), (8, 0, 0, "b")), batch_of((8, 0, 0, "c"), (7, 0, 0, "d"), (9, 0, 0, "e")))
    # Ids count within a source; and a row of no tree has none.
    data, _ = parts_of(run(stage, batch_of((7, 0, 0, "a"), (7, 1, 0, "b"), (None, 0, 0, "c"), (None, 0, 0, "d"))))
    assert data.num_rows == 4


def timed_messages(table: pa.Table) -> dict[int, tuple[int, int, bool]]:
    """Of each root that blocks tell of: xor of OKs, event time, and whether there is a TRACK."""
    _, sent = parts_of(table)
    parts = [decode_block(block)[0] for shard, block in sent if shard >= 0]
    return {
        root: (value, at, bool(flags & TRACKED))
        for part in parts
        for root, value, flags, *_, at in zip(*(column.tolist() for column in part), strict=True)
    }


def test_all_messages_of_a_tree_stand_at_the_time_of_its_row() -> None:
    second = 1000
    times = {1: 5 * second, 2: -7 * second, 3: 5 * second}
    rows = [(line, 0, at, "a b") for line, at in times.items()] + [(None, 0, None, "x")]
    spouts = (spout_transform(task_id=0, event_time="task"),)
    first = run(Stage(spouts, LINES, 2, tracked=False, timed=True), batch_of(*rows))
    sent = timed_messages(first)
    assert sorted(at for _, at, is_track in sent.values() if is_track) == sorted(times.values())
    assert {read_header(block).event_ms for _, block in parts_of(first)[1] if block[:8] == b"ACKERBLK"} == {5 * second}

    def split(row):
        return row.word.split()

    # Another stage, behind a shuffle, has only what the rows carry.
    data = first.filter(first.column(SHARD).is_null()).to_batches()
    seconds = (bolt(split), BranchTransform("fork", 1, 0, 2), LossyLink("word", None))
    second_stage = run(Stage(seconds, WORD, 2, timed=True), *data)
    said = timed_messages(second_stage)
    assert {root: at for root, (_, at, _) in said.items()} == {root: at for root, (_, at, _) in sent.items()}
    third = bolt(lambda batch: None, by="partition", sink=True)
    third = dataclasses.replace(third, component="end")
    data = second_stage.filter(second_stage.column(SHARD).is_null()).to_batches()
    done = timed_messages(run(Stage((third,), WORD, 2, timed=True), *data))
    assert {root: at for root, (_, at, _) in done.items()} == {root: at for root, (_, at, _) in sent.items()}


@pytest.mark.parametrize("at", [None, 2**62])
def test_a_tracked_row_needs_an_event_time(at) -> None:
    stage = Stage((spout_transform(task_id=0, event_time="task"),), LINES, 2, tracked=False, timed=True)
    text = r"^lines: the row whose line is 8: task: expected a time in each row, in milliseconds .* got (null|4611.*)$"
    with pytest.raises(ColumnValueError, match=text):
        run(stage, batch_of((7, 0, 5, "a"), (None, 0, None, "x"), (8, 0, at, "b")))


def test_rows_of_a_task_that_share_a_message_id_are_named_whatever_their_times() -> None:
    stage = Stage((spout_transform(task_id=0, event_time="task"),), LINES, 2, tracked=False, timed=True)
    with pytest.raises(ColumnValueError, match=r"2 rows of one batch have the message id 7\."):
        run(stage, batch_of((7, 0, 0, "a"), (7, 0, 10**12, "b")))


def test_carriers_pass_through_and_end_in_a_mute_stage() -> None:
    batches = spouted((0, 0, 0, "a"), (1, 0, 0, "b"))
    _, sent = parts_of(pa.Table.from_batches(batches))
    assert sum(read_header(block).messages for shard, block in sent if shard >= 0) == 2
    _, passed = parts_of(run(Stage((LossyLink("word", None),), LINES, 2), *batches))
    assert sorted(passed) == sorted(sent)
    echo = bolt(lambda row: [row.word])
    _, out = parts_of(run(Stage((echo,), WORD, 2), *batches))
    assert set(sent) < set(out)
    _, muted = parts_of(run(Stage((echo,), WORD, 2, mute=1), *batches))
    assert muted == []


def test_failures_of_many_batches_share_one_block() -> None:
    def boom(row):
        raise ValueError(row.word)

    batches = [batch for number in range(5) for batch in spouted((number, 0, 0, "é" * number))]
    _, out = parts_of(run(Stage((bolt(boom),), WORD, 2), *batches))
    notes = [block for shard, block in out if shard < COUNTERS_SHARD]
    rows = sorted((row for note in notes for row in decode_note(note).to_pylist()), key=lambda row: row["reason"])
    assert len(notes) <= 2, "one for each shard"
    assert [row["reason"] for row in rows] == ["ValueError", *(f"ValueError: {'é' * n}" for n in range(1, 5))]
    assert json.loads(rows[3]["row"]) == {"line": 3, "part": 0, "task": 0, "word": "ééé"}
    assert {row["component"] for row in rows} == {"bolt"} and len({row["root_id"] for row in rows}) == 5
    (report,) = [json.loads(block) for shard, block in out[-1:] if shard == COUNTERS_SHARD]
    assert report["messages"] == 5 and report["components"]["bolt"]["failed"] == 5


def test_a_task_with_too_many_trees_sends_early_and_says_the_same(monkeypatch) -> None:
    def gather(roots_per_flush: int) -> tuple[int, list[tuple[int, ...]]]:
        monkeypatch.setattr(collectors, "ROOTS_PER_FLUSH", roots_per_flush)
        collector = MessageCollector(2)
        for start in range(1, 101, 4):
            ids = np.arange(start, start + 4)
            collector.add(np.full(4, Kind.TRACK, np.int8), ids, ids * 3, ids.astype(np.int32), ids)
            collector.add(np.full(4, Kind.OK, np.int8), ids[::-1], ids[::-1] * 5)
        blocks = [block for shard, block in collector.finish() if shard >= 0]
        assert sum(read_header(block).messages for block in blocks) == 200
        combiner = Combiner()
        for block in blocks:
            combiner.merge(decode_block(block)[0])
        (part,) = combiner.partials(1)
        return len(blocks), sorted(zip(*(column.tolist() for column in part[:6]), strict=True))

    few, whole = gather(1_000_000)
    many, parts = gather(10)
    assert few == 2 and many > 10
    assert parts == whole and len(whole) == 100


@pytest.mark.parametrize("by", ["row", "batch"])
def test_a_row_of_no_tree_that_fails_leaves_its_text(by) -> None:
    def boom(rows):
        raise ValueError("boom")

    rows = [(1, 0, 0, "a"), (None, 0, 0, "b"), (None, 0, 0, "c")]
    _, carriers = parts_of(run(Stage((bolt(boom, by),), WORD, 2), *spouted(*rows)))
    notes = [decode_note(block) for shard, block in carriers if shard < COUNTERS_SHARD]
    found = sorted((row for note in notes for row in note.to_pylist()), key=lambda row: row["root_id"] is None)
    assert (
        [row["root_id"] is None for row in found] == [row["tuple_id"] is None for row in found] == [False, True, True]
    )
    assert {(row["component"], row["reason"]) for row in found} == {("bolt", "ValueError: boom")}
