"""The spouts and bolts of a simulation that pass Arrow batches, and record each row as the others do each tuple."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from acker.topology import ArrowBolt
from tests.torture.simulation.components import (
    FIELDS,
    LOCK,
    AggregateBolt,
    AsyncBolt,
    AutoBolt,
    InjectedError,
    KeeperBolt,
    ManualBolt,
    NumberingCollector,
    RecordingBolt,
    RetryingSpout,
    SimulatedAsyncSpout,
    SimulatedBatchingBolt,
    SimulatedReliableSpout,
    SimulatedSpout,
    World,
)
from tests.torture.simulation.plan import HOPS_MAX, KEYS


@contextmanager
def seen_routes(collector: Any, stream: str | None) -> Iterator[list[list[int]]]:
    """Yield a list that gets the tasks of each row of the batch that is emitted meanwhile to a stream."""
    batches = collector.route_for(stream).batches
    real, tasks = batches.split, list[list[int]]()

    def split(columns: Any, direct: Any = None) -> Any:
        parts = real(columns, direct)
        tasks.extend([] for _ in range(columns.num_rows))
        for part in parts:
            for row in np.arange(columns.num_rows)[part.rows].tolist():
                tasks[row].append(part.outlet.task)
        for of_row in tasks:
            of_row.sort()
        return parts

    batches.split = split
    try:
        yield tasks
    finally:
        del batches.split


class BatchNumberingCollector(NumberingCollector):
    """A spout's collector that also writes serial numbers into replayed batches."""

    def emit_batch_again(self, spout: Any, replay: Any) -> None:
        """Replay a batch with new serial numbers."""
        record = self._world.record
        with LOCK:
            serials = [record.next_serial() for _ in range(replay.columns.num_rows)]
            columns = [pa.array(serials), *replay.columns.columns[1:]]
            replay.columns = pa.RecordBatch.from_arrays(columns, schema=replay.columns.schema)
            with seen_routes(self._collector, replay.stream) as tasks:
                self._collector.emit_batch_again(spout, replay)
            note_batch(self._world, self._spout, self._collector.task, replay, tasks)


def note_batch(world: World, spout: str, task: int, batch: Any, tasks: Sequence[Sequence[int]]) -> None:
    """Record the rows of a batch of a spout, which has `columns`, `tup_ids`, `stream` and `direct_task`."""
    ids = [tuple(map(int, tup_id.split("-"))) for tup_id in batch.tup_ids.to_pylist()]
    serials, keys = batch.columns.column(0).to_pylist(), batch.columns.column(1).to_pylist()
    for serial, key, tup_id, of_row in zip(serials, keys, ids, tasks, strict=True):
        world.record.add_spout_emit(spout, task, serial, tup_id, of_row)
        world.record.check_route(spout, batch.stream or "default", key, batch.direct_task, of_row)
        world.tell(f"{spout} emits #{serial} {tup_id!r} in a batch to {of_row}")


class _Emitted:
    """A batch as `note_batch` reads it."""

    def __init__(self, columns: Any, tup_ids: Any, stream: str, direct_task: int | None) -> None:
        self.columns = columns
        self.tup_ids = tup_ids
        self.stream = stream
        self.direct_task = direct_task


class BatchSpout(SimulatedSpout):
    """A SimulatedSpout that emits each burst as one batch, all of it tracked."""

    numbering: ClassVar[type[NumberingCollector]] = BatchNumberingCollector

    def next_tuple(self) -> None:
        """Emit none, or a batch."""
        world, plan = self.world, self.plan
        first = world.numbers.get(self.task_id, 0)
        rows = min(world.rng.randint(plan.eager, plan.burst), plan.tuples - first)
        if first >= plan.tuples:
            self.finish()
            return
        if rows:
            world.numbers[self.task_id] = first + rows
            self._emit_rows(first, rows)
            world.take_time()
        world.crash(plan.raises)

    def _emit_rows(self, first: int, rows: int) -> None:
        world, plan = self.world, self.plan
        stream, target = world.draw_route(plan)
        values = [
            (world.record.next_serial(), world.rng.randrange(KEYS), world.rng.randint(0, HOPS_MAX)) for _ in range(rows)
        ]
        columns = pa.RecordBatch.from_arrays([pa.array(column) for column in zip(*values, strict=True)], FIELDS)
        ids = pa.array([f"{self.task_id}-{number}" for number in range(first, first + rows)])
        with seen_routes(self._collector, stream) as tasks:
            self.emit_batch(columns, tup_ids=ids, stream=stream, direct_task=target)
        note_batch(world, plan.name, self.task_id, _Emitted(columns, ids, stream, target), tasks)

    def ack(self, tup_id: Any) -> None:
        """Have the outcome judged."""
        super().ack(_read(tup_id))

    def fail(self, tup_id: Any, reason: Any = None) -> None:
        """Have the outcome judged."""
        super().fail(_read(tup_id), reason)


class ReliableBatchSpout(BatchSpout, SimulatedReliableSpout):
    """A BatchSpout that replays the rows that failed."""

    def ack(self, tup_id: Any) -> None:
        """Have the outcome judged; a row for which this has raised was replayed, since the spout may not know of it."""
        if self.world.record.crashed:
            self.world.finals.pop((self.plan.name, _read(tup_id)), None)
        super().ack(tup_id)

    def dead_letter(self, tup_id: Any, values: Sequence[Any], reason: Any) -> None:
        """Note that this is the end of the row."""
        super().dead_letter(_read(tup_id), values, reason)


def _read(tup_id: Any) -> Any:
    """Return the id of a row as the record has it: a column holds no tuples."""
    return tuple(map(int, tup_id.split("-"))) if isinstance(tup_id, str) else tup_id


class SimulatedArrowBolt(RecordingBolt, ArrowBolt):
    """Works for batches: emits rows with one parent, two or none, fails some rows, and raises for others."""

    def initialize(self, conf: Any, context: Any) -> None:
        """Begin with nothing."""
        # Serial number -> whether the row is bad; it stays so when `process_rows` is called again.
        self.is_bad: dict[int, bool] = {}

    def process_rows(self, batch: Any) -> None:
        """Work, or raise if there is a bad row."""
        world, plan = self.world, self.plan
        serials, hops = batch.column("serial").to_pylist(), batch.column("hops").to_pylist()
        for serial in serials:
            if serial not in self.is_bad:
                world.tell(f"{plan.name}[{self.task_id}] processes #{serial}")
                world.record.add_receive(serial, self.task_id)
                self.is_bad[serial] = world.chance(plan.raises)
        world.take_time()
        bad = [serial for serial in serials if self.is_bad[serial]]
        for serial in bad:
            world.record.add_fail(serial, self.task_id)
        if bad:
            raise InjectedError("raised on purpose")
        failed = [row for row in range(len(serials)) if world.chance(plan.fails)]
        good = [row for row in range(len(serials)) if row not in failed]
        self._pass_on(serials, hops, good)
        for row in failed:
            world.record.add_fail(serials[row], self.task_id)
        self.fail_rows(failed, "failed on purpose")
        for row in good:
            world.record.add_ack(serials[row], self.task_id)

    def _pass_on(self, serials: Sequence[int], hops: Sequence[int], good: Sequence[int]) -> None:
        world, plan = self.world, self.plan
        outputs: dict[tuple[str, int | None], list[tuple[int, int, int, list[int]]]] = {}
        for row in good:
            for _ in range(world.rng.choice((0, 1, 1, 2)) if hops[row] > 0 else 0):
                if world.emits_left <= 0:
                    break
                world.emits_left -= 1
                stream, target = world.draw_route(plan)
                others = [world.rng.choice(good)] if world.chance(0.3) else []
                parents = [] if world.chance(plan.unanchored) else [row, *others]
                made = world.record.next_serial(), world.rng.randrange(KEYS), hops[row] - 1, parents
                outputs.setdefault((stream, target), []).append(made)
        for (stream, target), rows in outputs.items():
            *columns, parents_of_rows = zip(*rows, strict=True)
            emitted = dict(zip(FIELDS, map(list, columns), strict=True))
            with seen_routes(self._collector, stream) as tasks:
                self.emit_batch(emitted, list(parents_of_rows), stream, target)
            for (serial, key, _, parents), of_row in zip(rows, tasks, strict=True):
                anchors = [serials[row] for row in parents]
                world.record.add_bolt_emit(self.task_id, serial, anchors, of_row)
                world.record.check_route(plan.name, stream, key, target, of_row)
                world.tell(f"{plan.name}[{self.task_id}] emits #{serial} anchored to {anchors} to {of_row}")


SPOUTS: dict[str, type[SimulatedSpout]] = {
    "untracked": SimulatedSpout,
    "tracked": SimulatedSpout,
    "async": SimulatedAsyncSpout,
    "retrying": RetryingSpout,
    "reliable": SimulatedReliableSpout,
    "batches": BatchSpout,
    "reliable batches": ReliableBatchSpout,
}
BOLTS: dict[str, type[RecordingBolt]] = {
    "auto": AutoBolt,
    "async": AsyncBolt,
    "manual": ManualBolt,
    "aggregate": AggregateBolt,
    "batching": SimulatedBatchingBolt,
    "keeper": KeeperBolt,
    "arrow": SimulatedArrowBolt,
}
