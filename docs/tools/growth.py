"""What one task, shard and completion cost, and what a cluster of them costs.

Every constant is read from benchmarks/results/growth.json, where it was measured with few and with many messages, trees
or shards. A cluster has more shards than the machine that measured, not larger ones, so the cost of a shard is looked
up between two sizes that were measured. What grows with their number is a straight line through the medians.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

import results
from acker._engine.combiner import SHARDS_MAX

FILE: Final = "growth"

# The load that the page computes with.
CORES: Final = 4
TRIGGER_S: Final = 10
OPEN_AN_EXECUTOR: Final = 10_000_000
MESSAGES_A_SECOND: Final = 10_000  # of an executor
MESSAGES_A_TREE: Final = 5
EXECUTORS: Final = (1, 10, 100)
# The chance of two open trees with one root id that the page calls a limit.
SHARED_ID_CHANCE: Final = 0.01


class Line(NamedTuple):
    """What a part costs: `fixed`, and `each` for one more."""

    fixed: float
    each: float

    @classmethod
    def through(cls, points: Mapping[float, float]) -> Line:
        """Return the line with the least squares."""
        each, fixed = np.polyfit(list(points), list(points.values()), 1)
        return cls(float(fixed), float(each))


def between(points: Mapping[float, float], size: float) -> float:
    """Return the value at a size between the measured ones, on a logarithmic axis.

    Raises
    ------
    LookupError
        Nothing so small or so large was measured.
    """
    sizes = sorted(points)
    if not sizes[0] <= size <= sizes[-1]:
        raise LookupError(f"{size:,} is not between {sizes[0]:,} and {sizes[-1]:,}, which were measured")
    return float(np.interp(math.log(size), np.log(sizes), [points[each] for each in sizes]))


class Constants(NamedTuple):
    """Times in ns, sizes in bytes; of a shard by its open trees.

    Attributes
    ----------
    combine : dict
        A message, by the messages of a task.
    header, finished, open_tree : float
        A block; each finished and each open tree in it.
    block : Line
        A shard's micro-batch by its blocks.
    merge, written, state, table, rebuild : dict
        A message in a shard, and what it adds to the log; an open tree in the log, in the table, and read back.
    checkpoint : float
        Written to the checkpoint for a byte of the log.
    partition, files, progress : Line
        The time of a core that a micro-batch takes, its files of state, and its progress report, by partitions.
    task, completion : Line
        A job by its tasks, and a call of a function in the driver by its completions.
    completion_bytes : float
    """

    combine: dict[float, float]
    header: float
    finished: float
    open_tree: float
    block: Line
    merge: dict[float, float]
    written: dict[float, float]
    state: dict[float, float]
    table: dict[float, float]
    rebuild: dict[float, float]
    checkpoint: float
    partition: Line
    files: Line
    progress: Line
    task: Line
    completion: Line
    completion_bytes: float

    @classmethod
    def of(cls, found: Mapping[str, Mapping[str, Any]]) -> Constants:
        """Read them from results by case."""
        combine, shard, partitions = (
            found[name] for name in ("growth/combine", "growth/shard", "spark/growth/partitions")
        )
        sizes, weights = combine["parameters"], shard["parameters"]["weights"].values()
        trees = {
            each: (sizes[f"block_bytes_{each}_1001"] - sizes[f"block_bytes_{each}_1"]) / 1000
            for each in ("open", "finished")
        }
        by_partitions = {
            name: Line.through(
                {_number(side): each[name] for side, each in partitions["parameters"]["weights"].items()}
            )
            for name in ("files_a_micro_batch", "progress_bytes")
        }
        completions = found["spark/growth/completions"]

        def by_open(name: str, each_of: str | None = "open") -> dict[float, float]:
            return {each["open"]: each[name] / (each[each_of] if each_of else 1) for each in weights}

        return cls(
            combine=_medians(combine),
            header=sizes["block_bytes_open_1"] - trees["open"],
            finished=trees["finished"],
            open_tree=trees["open"],
            block=_line(found["growth/blocks"], 1e6),
            merge=dict(zip(by_open("open"), _medians(shard).values(), strict=True)),
            written=by_open("written_bytes_a_message", None),
            state=by_open("state_bytes"),
            table=by_open("table_bytes"),
            rebuild=by_open("rebuild_ns"),
            checkpoint=found["spark/growth/checkpoint"]["figures"]["state files"]["median"],
            partition=_line(partitions, 1e6),
            files=by_partitions["files_a_micro_batch"],
            progress=by_partitions["progress_bytes"],
            task=_line(found["spark/growth/tasks"], 1e6),
            completion=_line(completions, 1e6),
            completion_bytes=completions["parameters"]["bytes_a_completion"],
        )


def _number(side: str) -> float:
    """Return the number that the name of a side begins with."""
    found = re.match(r"[\d,]+", side)
    assert found is not None, side
    return float(found[0].replace(",", ""))


def _medians(result: Mapping[str, Any]) -> dict[float, float]:
    return {_number(side): spread["median"] for side, spread in result["figures"].items()}


def _line(result: Mapping[str, Any], unit: float) -> Line:
    return Line.through({size: median * unit for size, median in _medians(result).items()})


def constants() -> Constants:
    """Return those of the results."""
    return Constants.of({result["case"]: result for result in results.read_results(FILE)["results"]})


class Cluster(NamedTuple):
    """Executors under the load of the page, each tree's messages in micro-batches of their own: the costly way."""

    executors: int
    known: Constants

    @property
    def shards(self) -> int:
        """One for each core, as are partitions and the tasks that combine."""
        return self.executors * CORES

    @property
    def open_trees(self) -> int:
        """In all shards."""
        return self.executors * OPEN_AN_EXECUTOR

    @property
    def messages(self) -> int:
        """Of a micro-batch."""
        return self.executors * MESSAGES_A_SECOND * TRIGGER_S

    @property
    def shard_trees(self) -> float:
        """Open trees of a shard."""
        return self.open_trees / self.shards

    @property
    def blocks(self) -> int:
        """One from each task to each shard."""
        return self.shards**2

    @property
    def shuffle_bytes(self) -> float:
        """Of a micro-batch; no message is combined with another."""
        return self.messages * self.known.open_tree + self.blocks * self.known.header

    @property
    def state_bytes(self) -> float:
        """Of all logs."""
        return self.open_trees * between(self.known.state, self.shard_trees)

    @property
    def table_bytes(self) -> float:
        """Of an executor."""
        return OPEN_AN_EXECUTOR * between(self.known.table, self.shard_trees)

    @property
    def checkpoint_bytes(self) -> float:
        """Written in a micro-batch."""
        return self.messages * between(self.known.written, self.shard_trees) * self.known.checkpoint

    @property
    def files(self) -> float:
        """Written in a micro-batch."""
        return self.known.files.each * self.shards

    @property
    def core_ns(self) -> float:
        """Of each core in a micro-batch: a task that combines, and a shard with its blocks and its partition."""
        messages = self.messages / self.shards
        combining = messages * between(self.known.combine, messages)
        merging = messages * between(self.known.merge, self.shard_trees)
        return combining + merging + self.block_ns + self.known.partition.each

    @property
    def block_ns(self) -> float:
        """Of a shard, for the number of its blocks alone."""
        return self.known.block.each * self.shards

    @property
    def rebuild_ns(self) -> float:
        """Of a shard whose executor was lost, from state that is on the machine."""
        return self.shard_trees * between(self.known.rebuild, self.shard_trees)

    @property
    def completions(self) -> float:
        """Of a micro-batch."""
        return self.messages / MESSAGES_A_TREE

    @property
    def task_ns(self) -> float:
        """Of the driver, for the tasks of both stages."""
        return 2 * self.shards * self.known.task.each

    @property
    def completion_ns(self) -> float:
        """Of the driver, where a function takes the completions."""
        return self.known.completion.fixed + self.completions * self.known.completion.each

    @property
    def shared_id_chance(self) -> float:
        """Of two trees that are open at one time."""
        return self.open_trees**2 / 2**65


class Limit(NamedTuple):
    """Something that ends the growth, and the number of executors at which it does."""

    executors: float
    what: str
    mend: str


def limits() -> list[Limit]:
    """Return what ends the growth under the page's load, the first one first."""
    known = constants()
    one = Cluster(1, known)
    trigger_ns = TRIGGER_S * 1e9
    found = [
        Limit(
            math.sqrt(SHARED_ID_CHANCE * 2**65) / OPEN_AN_EXECUTOR,
            f"two of the open trees share a root id, with a chance of {SHARED_ID_CHANCE:.0%}",
            "several queries, each with a part of the source: the chance falls with their number",
        ),
        Limit(
            SHARDS_MAX / CORES,
            f"there are no more than {SHARDS_MAX:,} shards",
            "larger shards, which cost more a message, or several queries",
        ),
        Limit(
            (trigger_ns - known.completion.fixed) / (one.completions * known.completion.each),
            "a function in the driver needs the whole trigger for its completions",
            "write completions to a sink of Spark instead: they do not pass through the driver",
        ),
        Limit(
            trigger_ns / one.task_ns,
            "the driver needs the whole trigger to start tasks",
            "a longer trigger, or fewer partitions and larger input files",
        ),
        Limit(
            trigger_ns / one.block_ns,
            "a shard needs the whole trigger for the number of its blocks",
            "fewer and larger input files: fewer tasks combine",
        ),
    ]
    return sorted(found)
