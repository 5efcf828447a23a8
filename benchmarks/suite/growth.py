"""Benchmarks of how the parts of a stream grow: combining in a task, the blocks of the shuffle, and one shard.

docs/scale.md computes large clusters from these constants. A cluster has more tasks and shards than this machine, not
larger ones: the work of a task or of a shard is the same here as there. The parts that only Spark has are in
`spark_growth.py`.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from acker._engine.combiner import Combiner
from acker._engine.protocol import Kind
from acker.testing.streams import TreeStream
from benchmarks.suite.ingest import cut
from benchmarks.suite.measure import Alternation, Case, Result, Scale, clock_ns, expect, per
from benchmarks.suite.workloads import SEED

if TYPE_CHECKING:
    from acker._engine.columns import Columns

OKS: Final = 4
_BATCH_ROWS: Final = 10_000  # as Spark hands rows of Arrow to a worker
_PAIRS_MAX: Final = 5

# Messages of one task, and the pieces that the trees of a task are cut into.
TASK_MESSAGES: Final = (10_000, 100_000, 1_000_000)
TASK_SHARDS: Final = 4

OPEN_TREES: Final = (10_000, 100_000, 1_000_000, 2_500_000, 10_000_000)
SHARD_MESSAGES: Final = 100_000
# The same messages of a micro-batch from few and from many tasks.
BLOCKS: Final = (1, 10, 100, 1000)
BLOCKS_MESSAGES: Final = 10_000
# Micro-batches that are timed, after those that let the log reach its length: it holds two rows a tree at most.
_NEEDS: Final = ("pandas", "pyarrow", "pyspark")
_TIMED: Final = 10
_LOG_ROWS_PER_TREE: Final = 2.5
_PREFILL_ROWS: Final = 1_000_000


def combined(messages: Columns, shards: int) -> list[bytes]:
    """Combine the messages of a task as a worker does, and return its blocks."""
    # Imported here, since it imports pyarrow, which the other benchmarks of the engine do not need.
    from acker.spark.blocks import encode_blocks

    combiner = Combiner(resets=True)
    for batch in cut(messages, _BATCH_ROWS):
        combiner.add(*batch)
    return [block for _, block in encode_blocks(combiner, shards)]


def combine(scale: Scale) -> Result:
    """Time the combining of a task's messages, its blocks included, and weigh blocks of finished and of open trees."""
    sizes = {f"{count:,}": scale.size(count, 50) for count in TASK_MESSAGES}
    samples: dict[str, list[float]] = {}
    for name, messages in sizes.items():
        stream = TreeStream(OKS, OKS, seed=SEED)
        loads = [stream.take(messages) for _ in range(min(scale.pairs, _PAIRS_MAX) + 1)]
        work = partial(combined, shards=TASK_SHARDS)
        samples |= per(Alternation({name: work}, clock=clock_ns).run(loads), messages)
    parameters = {"shards": TASK_SHARDS, "seed": SEED, **_block_bytes()}
    return Result("ns/message", samples, [], parameters, {"messages": sum(sizes.values())})


def _block_bytes() -> dict[str, int]:
    """Return the bytes of a block with one tree and with 1,001, of trees that are finished and of open ones."""
    found = {}
    for count in (1, 1001):
        root_id = np.arange(1, count + 1)
        track = (np.full(count, Kind.TRACK), root_id, root_id, 0 * root_id, root_id)
        ok = (np.full(count, Kind.OK), root_id, root_id, 0 * root_id, root_id)
        for name, columns in (("open", [track]), ("finished", [track, ok])):
            combiner = Combiner(resets=True)
            for each in columns:
                combiner.add(*each)
            found[f"block_bytes_{name}_{count}"] = _only_block(combiner)
    return found


def _only_block(combiner: Combiner) -> int:
    from acker.spark.blocks import encode_blocks

    ((_, block),) = encode_blocks(combiner, 1)
    return len(block)


class _Store:
    """A shard's state in a dictionary."""

    def __init__(self) -> None:
        self.values: dict[int, bytes] = {}

    def get(self, key: int) -> bytes | None:
        return self.values.get(key)

    def put(self, key: int, data: bytes) -> None:
        self.values[key] = data

    def remove(self, key: int) -> None:
        del self.values[key]


class Shard:
    """One shard at work, with its micro-batches one after the other."""

    def __init__(self) -> None:
        from acker.spark.streams.shard_rules import ShardRules
        from acker.spark.streams.table_cache import TableCache

        self.store = _Store()
        self._rules = ShardRules(shards=1, partitions=1)
        self._cache = TableCache(None)
        self._new_cache = TableCache
        self._batch_id = -1
        self.acked = 0

    def forget(self) -> None:
        """Lose the native table, as with the worker that held it."""
        self._cache = self._new_cache(None)

    def run(self, blocks: list[bytes]) -> tuple[float, Any]:
        """Run a micro-batch; return the nanoseconds of processor time that it took, and its report."""
        from acker.spark.streams.micro_batch import ShardBatch, update

        self._batch_id += 1
        batch = ShardBatch(self._batch_id, blocks, 1)
        start = time.thread_time_ns()
        _, report, _ = update(self.store, self._cache, "shard", 0, batch, self._rules)
        taken = time.thread_time_ns() - start
        self.acked += report.acked
        return taken, report


def shard(scale: Scale) -> Result:
    """Time micro-batches of a shard where few and where many trees are open, and weigh its state."""
    sizes = {f"{count:,} open": scale.size(count, 50) for count in OPEN_TREES}
    messages = scale.size(SHARD_MESSAGES, 100)
    samples, weights = {}, {}
    checksum = {"acked": 0}
    for name, trees in sizes.items():
        samples[name], weights[name], acked = _one_shard(trees, messages)
        checksum["acked"] += acked
    parameters = {"messages": messages, "oks": OKS, "seed": SEED, "weights": weights}
    return Result("ns/message", samples, [], parameters, checksum)


def _one_shard(trees: int, messages: int) -> tuple[list[float], dict[str, float], int]:
    """Return the nanoseconds a message of some micro-batches, what the shard weighs after them, and the acked trees."""
    stream, work = TreeStream(trees, OKS, seed=SEED), Shard()
    for part in stream.prefill(_PREFILL_ROWS):
        work.run(combined(part, 1))
    count = _TIMED + round(_LOG_ROWS_PER_TREE * trees / messages)
    taken, written = [], []
    for _ in range(count):
        nanoseconds, report = work.run(combined(stream.take(messages), 1))
        taken.append(nanoseconds / messages)
        written.append(report.bytes_written / messages)
    expect(f"trees acked of {trees}", work.acked, stream.expected.completions)
    work.forget()
    rebuilding, rebuilt = work.run([])
    expect("tables rebuilt", rebuilt.rebuilt, 1)
    weights = {
        "open": report.pending,
        "written_bytes_a_message": float(np.mean(written[-max(_TIMED, count // 2) :])),
        "state_bytes": report.state_bytes,
        "table_bytes": report.table_bytes,
        "head_bytes": len(work.store.values[0]),
        "chunks": report.chunks,
        "rebuild_ns": rebuilding,
    }
    return taken[-_TIMED:], weights, work.acked


def blocks(scale: Scale) -> Result:
    """Time micro-batches of a shard whose messages come in one block, or in a block from each of many tasks."""
    messages = scale.size(BLOCKS_MESSAGES, 100)
    counts = [min(count, messages) for count in BLOCKS]
    stream, samples, acked = TreeStream(messages, OKS, seed=SEED), {}, 0
    work = Shard()
    for part in stream.prefill(_PREFILL_ROWS):
        work.run(combined(part, 1))
    for name, count in zip(BLOCKS, counts, strict=True):
        taken = []
        for _ in range(_TIMED):
            parts = cut(stream.take(messages), messages // count)
            nanoseconds, report = work.run([block for part in parts for block in combined(part, 1)])
            taken.append(nanoseconds / 1e6)
            acked += report.acked
        samples[f"{name:,} blocks"] = taken
    expect("trees acked", acked, stream.expected.completions)
    return Result("ms/micro-batch", samples, [], {"messages": messages, "seed": SEED}, {"acked": acked})


CASES: Final = [
    Case("growth/combine", "How does the work of a task grow with its messages?", combine, _NEEDS),
    Case("growth/blocks", "How does it grow with the tasks that send it blocks?", blocks, _NEEDS),
    Case("growth/shard", "How does the work of a shard grow with its open trees?", shard, _NEEDS),
]
