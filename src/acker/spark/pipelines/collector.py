"""The collector of a task, which gathers the messages, notes and counters that leave at its end."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from acker._engine.columns import check_columns
from acker._engine.combiner import Cohorts, Combiner, shard_of
from acker._files.columns import latest_of
from acker.spark.blocks import encode_blocks
from acker.spark.notes import FAILURE_SCHEMA, encode_note, ids_or_zero
from acker.spark.pipelines.stage_calls import StageCalls
from acker.topology.anchors import Int64s

# The shard of the counters of one task's components, JSON. Notes have the negative numbers below it, see `notes_shard`.
COUNTERS_SHARD: Final = -1

# Outputs of one input row are counted exactly up to here; the last bin means "or more".
FANOUT_MAX: Final = 1024

# Bounds the memory of a task to some 60 MB: with more trees than this it writes out blocks and begins anew.
ROOTS_PER_FLUSH: Final = 1_000_000

_log: Final = logging.getLogger("acker.spark")


def notes_shard(shard: Any) -> Any:
    """Return the number in place of a shard that carriers of its notes have; of such a number, the shard."""
    return COUNTERS_SHARD - 1 - shard


class TaskCounters:
    """The counts of one component in one task."""

    def __init__(self) -> None:
        self.executed = 0
        self.emitted = 0
        self.failed = 0
        self.messages = 0
        self.function_ns = 0
        self.fanout = np.zeros(FANOUT_MAX + 1, np.int64)

    def to_json(self) -> dict[str, Any]:
        """Return the counters, with the fan-out as outputs of an input -> inputs, without failed inputs."""
        occurred = np.flatnonzero(self.fanout).tolist()
        values = {name: value for name, value in vars(self).items() if name != "fanout"}
        return {**values, "fanout": {str(outputs): int(self.fanout[outputs]) for outputs in occurred}}


class MessageCollector:
    """Gathers the messages, notes and counters of one task; if `timed`, messages have event times.

    Attributes
    ----------
    calls : StageCalls
        The call of user code that runs.
    """

    def __init__(self, shards: int, *, timed: bool = False, calls: StageCalls | None = None) -> None:
        self.calls = StageCalls() if calls is None else calls
        self._shards = shards
        # All messages of a tree have the time of the tree, so they need not be split into cohorts.
        self._cohorts = Cohorts(0, 2) if timed else None
        self._combiner = Combiner(cohorts=self._cohorts)
        self._latest_ms: int | None = None
        self._notes: list[pa.Table] = []
        self._counters: dict[str, TaskCounters] = {}
        self.first_failures: dict[str, str] = {}
        self._ready: list[tuple[int, bytes]] = []
        self._messages = 0
        self._native_ns = 0

    def counters(self, component: str) -> TaskCounters:
        """Return the counters of a component."""
        return self._counters.setdefault(component, TaskCounters())

    def add(
        self,
        kind: NDArray[np.int8],
        root_id: Int64s,
        value: Int64s,
        task_id: Any = None,
        message_id: Any = None,
        *,
        event_ms: Int64s | None = None,
    ) -> int:
        """Add messages, columns as for `Combiner.add`; return the number of TRACKs of trees that had one."""
        before = self._combiner.duplicates
        self._combiner.add_unchecked(check_columns(kind, root_id, value, task_id, message_id), event_ms)
        if event_ms is not None:
            self._latest_ms = latest_of(self._latest_ms, event_ms)
        duplicates = self._combiner.duplicates - before
        if len(self._combiner) > ROOTS_PER_FLUSH:
            self._flush()
        return duplicates

    def log_failed(self, component: str, failed: dict[int, str]) -> None:
        """Log the first failed row of a component in this task."""
        if component not in self.first_failures:
            reason = self.first_failures[component] = next(iter(failed.values()))
            _log.warning("%s: a row failed with %s; further ones of this task are not logged", component, reason)

    def count_failed(self) -> dict[str, tuple[int, str]]:
        """Return by component the number of failed rows and the reason of the first."""
        return {name: (self.counters(name).failed, reason) for name, reason in self.first_failures.items()}

    def add_failures(
        self, component: str, root_id: Int64s | None, tuple_id: Int64s | None, reason: list[str], row: list[str]
    ) -> None:
        """Add why rows failed, one for each row and tree; without ids for rows that belong to no tree."""
        if not reason:
            return
        ids = [pa.nulls(len(reason), pa.int64()) if each is None else pa.array(each) for each in (root_id, tuple_id)]
        texts = [pa.array([component] * len(reason), pa.string()), pa.array(reason, pa.string())]
        self._notes.append(pa.table([*ids, *texts, pa.array(row, pa.string())], schema=FAILURE_SCHEMA))

    def add_heads(self, heads: pa.Table) -> None:
        """Add what a spout knows of its trees, see `acker.spark.notes`."""
        self._notes.append(heads)

    def _flush(self) -> None:
        combiner, self._combiner = self._combiner, Combiner(cohorts=self._cohorts)
        self._ready += encode_blocks(combiner, self._shards, self._latest_ms)
        self._messages += combiner.messages
        self._native_ns += combiner.native_ns
        self._flush_notes()

    def _flush_notes(self) -> None:
        """Pack the notes, those of one kind and shard together. Shard 0 has those of rows without a tree."""
        kinds: dict[Any, list[pa.Table]] = {}
        for note in self._notes:
            kinds.setdefault(note.schema, []).append(note)
        self._notes = []
        for tables in kinds.values():
            table = pa.concat_tables(tables).combine_chunks()
            shards = shard_of(ids_or_zero(table["root_id"]), self._shards)
            if table["root_id"].null_count:
                shards[table["root_id"].is_null().to_numpy()] = 0
            for shard in np.unique(shards).tolist():
                rows = table.filter(pa.array(shards == shard))
                self._ready.append((notes_shard(shard), encode_note(rows, self._latest_ms)))

    def finish(self) -> Iterator[tuple[int, bytes]]:
        """Yield (shard, block) of everything that was gathered."""
        self._flush()
        yield from self._ready
        if self._counters:
            components = {name: counters.to_json() for name, counters in self._counters.items()}
            report = {"messages": self._messages, "native_ns": self._native_ns, "components": components}
            yield COUNTERS_SHARD, json.dumps(report).encode()
