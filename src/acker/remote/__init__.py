"""Trees across processes: a message is acked when the jobs of other processes that derive from it are done, too."""

from __future__ import annotations

from acker.remote.jobs import Job, Part, current, detached, fail, job
from acker.remote.ledger import OpenJob
from acker.remote.replies import MemoryReplies, Replies, ReplyCounts
from acker.remote.trees import JobTree, tree

__all__ = [
    "Job",
    "JobTree",
    "MemoryReplies",
    "OpenJob",
    "Part",
    "Replies",
    "ReplyCounts",
    "current",
    "detached",
    "fail",
    "job",
    "tree",
]
