"""The tables of docs/scale.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.suite.report import digits
from growth import (
    CORES,
    EXECUTORS,
    MESSAGES_A_SECOND,
    MESSAGES_A_TREE,
    OPEN_AN_EXECUTOR,
    TRIGGER_S,
    Cluster,
    constants,
    limits,
)


def parts_table() -> str:
    """Return what each part costs, at the least and at the greatest size that was measured."""
    known = constants()
    rows = [
        ("combining in a task", "messages of the task", _sizes(known.combine, "ns a message")),
        (
            "a block in the shuffle",
            "trees in it",
            (
                f"{digits(known.header)} B, and {digits(known.finished)} B a finished tree,"
                f" {digits(known.open_tree)} B an open one"
            ),
        ),
        ("its way into a shard", "tasks times shards", f"{digits(known.block.each / 1000)} µs a block"),
        ("a shard's micro-batch", "messages, and open trees of the shard", _sizes(known.merge, "ns a message")),
        ("what it adds to the log", "messages", _sizes(known.written, "B a message")),
        ("the log in the state", "open trees", _sizes(known.state, "B a tree")),
        ("the table in a worker", "open trees", _sizes(known.table, "B a tree")),
        ("a table read back from the state", "open trees", _sizes(known.rebuild, "ns a tree")),
        (
            "files of the checkpoint",
            "bytes of the log, and partitions",
            (
                f"{digits(known.checkpoint)} B for a byte of the log, in {digits(known.files.each)} files a partition"
                " and micro-batch"
            ),
        ),
        (
            "a partition in a micro-batch",
            "partitions",
            (
                f"{digits(known.partition.each / 1e6)} ms of a core;"
                f" {digits(known.partition.fixed / 1e6)} ms for a micro-batch without any"
            ),
        ),
        ("a task, in the driver", "tasks", f"{digits(known.task.each / 1e6)} ms at most"),
        (
            "a completion, in the driver",
            "completions that a function takes",
            f"{digits(known.completion.each)} ns, {digits(known.completion_bytes)} B",
        ),
        (
            "a progress report, in the driver",
            "shards",
            f"{digits(known.progress.fixed)} B, and {digits(known.progress.each)} B a shard",
        ),
    ]
    return _table(("part", "grows with", "cost"), rows)


def _sizes(points: Mapping[float, float], unit: str) -> str:
    (least, first), *_, (most, last) = sorted(points.items())
    return f"{digits(first)} {unit} at {least:,.0f}, {digits(last)} at {most:,.0f}"


def cluster_table() -> str:
    """Return what clusters cost, an executor to a hundred."""
    clusters = [Cluster(executors, constants()) for executors in EXECUTORS]

    def row(name: str, value: Any) -> tuple[str, ...]:
        return (name, *(value(each) for each in clusters))

    rows = [
        row("open trees", lambda it: f"{it.open_trees:,}"),
        row("messages a second", lambda it: f"{it.executors * MESSAGES_A_SECOND:,}"),
        row("shards; partitions; tasks that combine", lambda it: f"{it.shards:,} each"),
        row("**shuffle**: blocks a micro-batch", lambda it: f"{it.blocks:,}"),
        row("bytes a micro-batch", lambda it: size_of(it.shuffle_bytes)),
        row("**state**: the log, in all", lambda it: size_of(it.state_bytes)),
        row("**checkpoint**: bytes written a micro-batch", lambda it: size_of(it.checkpoint_bytes)),
        row("files written a micro-batch", lambda it: f"{it.files:,.0f}"),
        row("**work** of each core in a micro-batch", lambda it: time_of(it.core_ns)),
        row("of it for the number of blocks", lambda it: time_of(it.block_ns)),
        row("**driver**: tasks, at most", lambda it: time_of(it.task_ns)),
        row(
            "completions to a function",
            lambda it: (
                f"{it.completions:,.0f}: {time_of(it.completion_ns)},"
                f" {size_of(it.completions * it.known.completion_bytes)}"
            ),
        ),
        row("progress report", lambda it: size_of(it.known.progress.fixed + it.shards * it.known.progress.each)),
        row("**chance** that two open trees share a root id", lambda it: f"1 in {1 / it.shared_id_chance:,.0f}"),
    ]
    return _table(("", *(f"{each.executors:,} executor{'s' if each.executors > 1 else ''}" for each in clusters)), rows)


def limits_table() -> str:
    """Return the limits as a table."""
    rows = [(f"{each.executors:,.0f}", each.what, each.mend) for each in limits()]
    return _table(("executors", "what happens", "what to do"), rows)


def size_of(count: float) -> str:
    """Write a number of bytes."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{digits(count / unit)} {name}"
    return f"{digits(count)} B"


def time_of(nanoseconds: float) -> str:
    """Write a time."""
    return f"{digits(nanoseconds / 1e9)} s" if nanoseconds >= 1e9 else f"{digits(nanoseconds / 1e6)} ms"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ("---",) * len(head), *rows])


def load() -> str:
    """Return the load that the page computes with."""
    seconds = OPEN_AN_EXECUTOR * MESSAGES_A_TREE // MESSAGES_A_SECOND
    one = Cluster(1, constants())
    return (
        f"Each executor has {CORES} cores, brings {MESSAGES_A_SECOND:,} messages a second, {MESSAGES_A_TREE} for each"
        f" tree, and has {OPEN_AN_EXECUTOR:,} open trees, so a tree takes {seconds:,} s to be done. There is one shard,"
        f" one partition and one task for each core, and a micro-batch every {TRIGGER_S} s. However many executors"
        f" there are, each has {size_of(one.table_bytes)} of tables; if it is lost, others load"
        f" {size_of(one.state_bytes)} of state, and read the tables back side by side in {time_of(one.rebuild_ns)}."
    )


PARTS: Final = {"load": load, "parts": parts_table, "cluster": cluster_table, "limits": limits_table}


def part(name: str) -> str:
    """Return a generated part of the page by its name.

    Raises
    ------
    LookupError
        There is none.
    """
    if name not in PARTS:
        raise LookupError(f"no part of growth {name!r}; there are {', '.join(PARTS)}")
    return PARTS[name]()
