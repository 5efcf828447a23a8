"""Counters of a tracked pipeline: what each component did in one evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class ComponentCounters:
    """Counts of one component, over all tasks of one evaluation.

    Attributes
    ----------
    executed, emitted, failed : int
        Input rows, output rows, and input rows that failed. A spout executes none.
    messages : int
        Messages sent to the acker: one for each input row and tree; from a spout one for each tracked row.
    function_ns : int
        Time in the user's function, summed over the tasks.
    fanout : dict of int to int
        Number of outputs -> input rows with that number, without those that failed; 1024 stands for 1024 or more. It
        shows which component makes trees large, and so how much memory they need.
    """

    executed: int
    emitted: int
    failed: int
    messages: int
    function_ns: int
    fanout: dict[int, int]


class PipelineCounters(NamedTuple):
    """Counts of one evaluation of a pipeline.

    Attributes
    ----------
    messages : int
        Messages that the acker took.
    native_ns : int
        Nanoseconds that its native tables took for them, summed over the tasks that sent them, without the time to
        settle the trees.
    components : dict of str to ComponentCounters
    """

    messages: int
    native_ns: int
    components: dict[str, ComponentCounters]


def sum_counters(reports: Sequence[dict[str, Any]]) -> PipelineCounters:
    """Add up the counters of all tasks: see `acker.spark.pipelines.collector.COUNTERS_SHARD`."""
    totals: dict[str, dict[str, Any]] = {}
    for report in reports:
        for name, counters in report["components"].items():
            total = totals.setdefault(name, {"fanout": {}})
            fanout = counters.pop("fanout")
            for key, value in counters.items():
                total[key] = total.get(key, 0) + value
            for outputs, inputs in fanout.items():
                total["fanout"][int(outputs)] = total["fanout"].get(int(outputs), 0) + inputs
    return PipelineCounters(
        sum(report["messages"] for report in reports),
        sum(report["native_ns"] for report in reports),
        {name: ComponentCounters(**total) for name, total in totals.items()},
    )
