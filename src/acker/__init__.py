"""The acker, which tells a program when all the work for a message is done, or some of it fails or times out.

The engine and every exception. Topologies are in `acker.topology` and `acker.local`, Spark in `acker.spark`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from acker._engine import schemas
from acker._engine.acker import Acker
from acker._engine.completions import Completions
from acker._engine.ids import IdGenerator
from acker._engine.native import build_info
from acker._engine.protocol import (
    Kind,
    Message,
    Outcome,
    PendingTree,
    Stats,
    acker_of,
    encode_tuple_id,
    parse_tuple_id,
)
from acker._engine.sharded import ShardedAcker
from acker._engine.tuple_tree import Anchoring, Tracking, TupleTree
from acker.errors import (
    AckerError,
    AckerMemoryError,
    ArgumentTypeError,
    ArgumentValueError,
    BusyError,
    CheckpointError,
    ColumnTypeError,
    ColumnValueError,
    ConfError,
    ConnectionLostError,
    ForkedError,
    JobsError,
    PageError,
    PublishError,
    Reject,
    RuntimeStateError,
    SchedulerError,
    SessionError,
    SnapshotError,
    SourceError,
    StrictError,
    TokenError,
    TopologyError,
    TupleStateError,
    UnattributedError,
    UnusableError,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from acker._engine.reference import ReferenceAcker
    from acker._files.functions import completion_batches_from_files, completions_from_files

    MESSAGE_SCHEMA: pa.Schema
    COMPLETION_SCHEMA: pa.Schema

__version__ = "0.1.0"

# Without the schemas, so that `from acker import *` needs no pyarrow.
__all__ = [
    "Acker",
    "AckerError",
    "AckerMemoryError",
    "Anchoring",
    "ArgumentTypeError",
    "ArgumentValueError",
    "BusyError",
    "CheckpointError",
    "ColumnTypeError",
    "ColumnValueError",
    "Completions",
    "ConfError",
    "ConnectionLostError",
    "ForkedError",
    "IdGenerator",
    "JobsError",
    "Kind",
    "Message",
    "Outcome",
    "PageError",
    "PendingTree",
    "PublishError",
    "ReferenceAcker",
    "Reject",
    "RuntimeStateError",
    "SchedulerError",
    "SessionError",
    "ShardedAcker",
    "SnapshotError",
    "SourceError",
    "Stats",
    "StrictError",
    "TokenError",
    "TopologyError",
    "Tracking",
    "TupleStateError",
    "TupleTree",
    "UnattributedError",
    "UnusableError",
    "acker_of",
    "build_info",
    "completion_batches_from_files",
    "completions_from_files",
    "encode_tuple_id",
    "parse_tuple_id",
]


def __getattr__(name: str) -> Any:
    # Tests use the reference; programs do without it.
    if name == "ReferenceAcker":
        from acker._engine.reference import ReferenceAcker

        return ReferenceAcker
    if name in ("completion_batches_from_files", "completions_from_files"):  # as few programs read files
        from acker._files import functions

        return getattr(functions, name)
    # The schemas need pyarrow, which is imported when somebody first asks for one.
    if name in ("MESSAGE_SCHEMA", "COMPLETION_SCHEMA"):
        return getattr(schemas, name)
    raise AttributeError(f"module 'acker' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "COMPLETION_SCHEMA", "MESSAGE_SCHEMA"])
