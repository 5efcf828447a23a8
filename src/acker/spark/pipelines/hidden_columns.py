"""Names of the hidden columns in which the rows of a pipeline carry their trees and messages, of both kinds.

Python stages write their anchors into one binary column (`acker.spark.pipelines.anchors`) and their messages into
carriers: rows of their own, each with a block of messages or notes. Spark's SQL cannot read these. For the steps that
it runs, a row has its tree in plain columns, and carries the message that is due for that tree itself. A step removes
no row, since its message would be lost: one that a condition drops stays as a row that is not alive.

    alive           whether the row is one of the user's
    root            the root id of its tree; null without a tree
    tuple           its tuple id, 0 for a result; of a row that is not alive it means nothing
    value           the xor of the OK and ANCHOR values that the row carries for its tree, 0 for none
    id              the spout's id on the one row that carries the TRACK of the tree, whose value is part of `value`
    task, attempt   the spout task, and the attempt where there are any; on the same row
    failed          component, reason and row of a failure of the tree
    shard, block    as in Python stages: carriers that a stage before has made, which pass
    event_ms        the event time of the tree, in evaluations that need it
    more            after a join of two pipelines: the further trees of the row, each with the six columns of a tree
                    (root to attempt) as fields; null without any. No tree twice in a row
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

ANCHORS: Final = "acker_anchors"
# Null on data rows. On carriers the shard of a block of messages, or a negative number: see the collector.
SHARD: Final = "acker_shard"
BLOCK: Final = "acker_block"
HIDDEN: Final = (ANCHORS, SHARD, BLOCK)

ALIVE: Final = "acker_alive"
ROOT: Final = "acker_root"
TUPLE: Final = "acker_tuple"
VALUE: Final = "acker_value"
ID: Final = "acker_id"
TASK: Final = "acker_task"
ATTEMPT: Final = "acker_attempt"
FAILED: Final = "acker_failed"
EVENT_MS: Final = "acker_event_ms"
MORE: Final = "acker_more"

# Of all rows; `EVENT_MS` and `MORE` come behind them.
SQL_HIDDEN: Final = (ALIVE, ROOT, TUPLE, VALUE, ID, TASK, ATTEMPT, FAILED, SHARD, BLOCK)
# Columns within one step: its next expression reads them, so that they are computed once.
KEPT: Final = "acker_kept"
ORDINAL: Final = "acker_ordinal"
PARENT: Final = "acker_parent"
MATCHES: Final = "acker_matches"
RESERVED: Final = frozenset({*HIDDEN, *SQL_HIDDEN, EVENT_MS, MORE, KEPT, ORDINAL, PARENT, MATCHES})
OF_TREE: Final = (ROOT, TUPLE, VALUE, ID, TASK, ATTEMPT)
# What one row of several that come from a row takes over, so that the message is sent once.
OF_MESSAGE: Final = (ID, TASK, ATTEMPT, FAILED)
FAILED_DDL: Final = "struct<component: string, reason: string, row: string>"

_FAILED_FIELDS: Final[list[pa.Field[Any]]] = [pa.field(name, pa.string()) for name in ("component", "reason", "row")]
_SQL_TYPES: Final[dict[str, Any]] = {
    ALIVE: pa.bool_(),
    TASK: pa.int32(),
    FAILED: pa.struct(_FAILED_FIELDS),
    SHARD: pa.int32(),
    BLOCK: pa.binary(),
}


def with_hidden(schema: pa.Schema) -> pa.Schema:
    """Return the user's columns and the hidden ones of a Python stage."""
    for name, dtype in zip(HIDDEN, (pa.binary(), pa.int32(), pa.binary()), strict=True):
        schema = schema.append(pa.field(name, dtype))
    return schema


def with_sql_hidden(schema: pa.Schema, ids: str, *, timed: bool) -> pa.Schema:
    """Return the user's columns and the hidden ones that SQL reads, with message ids of a type of Spark's."""
    types = {**_SQL_TYPES, ID: {"bigint": pa.int64(), "string": pa.string(), "binary": pa.binary()}[ids]}
    for name in (*SQL_HIDDEN, *((EVENT_MS,) if timed else ())):
        schema = schema.append(pa.field(name, types.get(name, pa.int64())))
    return schema
