"""The acker on Spark: completions of DataFrames, files and streams of messages, and tracked pipelines.

Needs pyspark and pyarrow (``pip install acker[spark]``).
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

_missing = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]
if _missing:
    raise ImportError(f"acker.spark needs {' and '.join(_missing)}: pip install acker[spark]")

if TYPE_CHECKING:
    from acker.spark.completion_functions import (
        completions,
        completions_from_blocks,
        completions_from_files,
        completions_of,
    )
    from acker.spark.pipelines.aggregated import Aggregated
    from acker.spark.pipelines.completions import PipelineCompletions
    from acker.spark.pipelines.counters import ComponentCounters, PipelineCounters
    from acker.spark.pipelines.tracked import Grouped, Tracked, spout
    from acker.spark.pipelines.user_functions import Outputs
    from acker.spark.shipping import ship
    from acker.spark.streams.checkpoint import AckerState, ShardState, inspect_checkpoint
    from acker.spark.streams.listener import (
        AckerListener,
        batch_report,
        shard_reports,
        skipped_files,
        sum_reports,
    )
    from acker.spark.streams.replay_ledger import ReplayCounts
    from acker.spark.streams.replay_stores import ReplayStore, SqlReplayStore, TableReplayStore
    from acker.spark.streams.replays import Replays
    from acker.spark.streams.reports import MicroBatchReport
    from acker.spark.streams.sinks import for_each_completion
    from acker.spark.topologies.kafka_spout import KafkaSpout
    from acker.spark.topologies.run import run
    from acker.spark.topologies.state_reader import read_state

__all__ = [
    "AckerListener",
    "AckerState",
    "Aggregated",
    "ComponentCounters",
    "Grouped",
    "KafkaSpout",
    "MicroBatchReport",
    "Outputs",
    "PipelineCompletions",
    "PipelineCounters",
    "ReplayCounts",
    "ReplayStore",
    "Replays",
    "ShardState",
    "SqlReplayStore",
    "TableReplayStore",
    "Tracked",
    "batch_report",
    "completions",
    "completions_from_blocks",
    "completions_from_files",
    "completions_of",
    "for_each_completion",
    "inspect_checkpoint",
    "read_state",
    "run",
    "shard_reports",
    "ship",
    "skipped_files",
    "spout",
    "sum_reports",
]

# Imported on first use: workers import this package too, and need little of it.
_MODULES = {
    "AckerListener": "streams.listener",
    "AckerState": "streams.checkpoint",
    "Aggregated": "pipelines.aggregated",
    "ComponentCounters": "pipelines.counters",
    "Grouped": "pipelines.tracked",
    "KafkaSpout": "topologies.kafka_spout",
    "MicroBatchReport": "streams.reports",
    "Outputs": "pipelines.user_functions",
    "PipelineCompletions": "pipelines.completions",
    "PipelineCounters": "pipelines.counters",
    "ReplayCounts": "streams.replay_ledger",
    "ReplayStore": "streams.replay_stores",
    "Replays": "streams.replays",
    "ShardState": "streams.checkpoint",
    "SqlReplayStore": "streams.replay_stores",
    "TableReplayStore": "streams.replay_stores",
    "Tracked": "pipelines.tracked",
    "batch_report": "streams.listener",
    "completions": "completion_functions",
    "completions_from_blocks": "completion_functions",
    "completions_from_files": "completion_functions",
    "completions_of": "completion_functions",
    "for_each_completion": "streams.sinks",
    "inspect_checkpoint": "streams.checkpoint",
    "read_state": "topologies.state_reader",
    "run": "topologies.run",
    "shard_reports": "streams.listener",
    "ship": "shipping",
    "skipped_files": "streams.listener",
    "spout": "pipelines.tracked",
    "sum_reports": "streams.listener",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"acker.spark.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'acker.spark' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
