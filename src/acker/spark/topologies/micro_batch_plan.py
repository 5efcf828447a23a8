"""The plan that all stages of a micro-batch share; it travels to the workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from acker._files.paths import Place
from acker.spark.task_reports import ReportAddress
from acker.spark.topologies.stage_plan import StagePlan
from acker.spark.topologies.state_log import StateChain
from acker.topology.graph import Graph


@dataclass(frozen=True)
class MicroBatchPlan:
    """The plan that all stages of one evaluation of a micro-batch share.

    Attributes
    ----------
    graph : Graph
    conf : mapping
    stages : StagePlan
    partitions : int
        How many partitions each shuffle makes.
    shards : int
        How many shards the messages are split into.
    seed : bytes
        Key of all ids.
    tracked : bool
    ticks : frozenset of str
        The components whose tick is due.
    excluded : frozenset of int
        Root ids of trees that failed in an earlier evaluation: their tuples are left out.
    states : mapping
        Task -> the files of its state.
    state_root : str or Place
        The directory of those files.
    run : bytes
        Distinguishes this run from others.
    trees_max : int or None
        How many trees a task may have while the driver settles them; None: executors settle any number.
    time_ns : int
        The time of day at which the micro-batch begins.
    ended : mapping of str to int
        Bolt with event time -> the end of the last window that may end.
    moved : frozenset of str
        Those of which that is another one than in the micro-batch before.
    batch : int
    reports : ReportAddress or None
        Where tasks that work for long say so.
    """

    graph: Graph
    conf: Mapping[str, Any]
    stages: StagePlan
    partitions: int
    shards: int
    seed: bytes
    tracked: bool = True
    ticks: frozenset[str] = frozenset()
    excluded: frozenset[int] = frozenset()
    states: Mapping[int, StateChain] = field(default_factory=dict)
    state_root: str | Place = ""
    run: bytes = b""
    time_ns: int = 0
    ended: Mapping[str, int] = field(default_factory=dict)
    moved: frozenset[str] = frozenset()
    batch: int = 0
    trees_max: int | None = None
    reports: ReportAddress | None = None
