"""Tuple blocks: many tuples packed into one binary value, as they travel between the stages of a topology.

A row that crosses between the JVM and Python costs as much as several tuples, so one row carries the tuples that one
task sends to one partition. Values are pickled column by column; ids are columns of int64. What an ArrowBolt emits, and
what Spark reads for a spout, stays in Arrow's columns.
"""

from __future__ import annotations

import pickle
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from acker._flow import pack_deliveries, unpack_deliveries
from acker.errors import TopologyError, exception_text
from acker.spark.topologies import column_blocks
from acker.spark.topologies.column_blocks import PackedRows, may_join, pack_rows, unpack_rows
from acker.topology.tuple_batch import TupleBatch
from acker.topology.tuples import Tuple, TupleSource

# Tuples for one task; and tuples or rows as columns.
Chunk = tuple[int, list[Tuple]]
MixedChunk = tuple[int, list[Tuple] | TupleBatch]

_PROTOCOL: Final = 5
# All types whose size is that of one object.
_FLAT: Final = frozenset({bytes, bytearray, str, int, float, bool, type(None)})
# The module whose functions make again what is pickled by value.
_BY_VALUE: Final = b"cloudpickle"
_source_of = attrgetter("_source")


def roots_of(rows: list[Tuple] | TupleBatch) -> set[int]:
    """Return the root ids of the trees that tuples, or rows as columns, belong to."""
    if isinstance(rows, TupleBatch):
        return set(rows.anchors().root_id.tolist())
    return {root_id for tup in rows for root_id in tup._ids or ()}


def tuples_by_root(chunks: Iterable[Chunk]) -> dict[int, list[Tuple]]:
    """Return root id -> the tuples of its tree, in their order."""
    found: dict[int, list[Tuple]] = {}
    for _, tuples in chunks:
        for tup in tuples:
            for root_id in tup._ids or ():
                found.setdefault(root_id, []).append(tup)
    return found


def dumps(content: object) -> bytes:
    """Pickle values of users, also of classes that another process cannot import: those of a script, for one."""
    from pyspark import cloudpickle

    return cloudpickle.dumps(content, _PROTOCOL)  # type: ignore[no-any-return,no-untyped-call]


def bytes_of(tup: Tuple) -> int:
    """Return about how large the values of a tuple are, as they travel."""
    return sum(map(_size_of, tup.values))


def _size_of(value: object) -> int:
    if type(value) in _FLAT:
        return sys.getsizeof(value)
    buffers: list[pickle.PickleBuffer] = []
    try:
        size = len(pickle.dumps(value, _PROTOCOL, buffer_callback=buffers.append))
    except Exception:  # noqa: BLE001  Whatever it raises: it is refused, or pickled by value, when it travels.
        return sys.getsizeof(value)
    return size + sum(buffer.raw().nbytes for buffer in buffers)


def values_by_root(block: bytes) -> dict[int, tuple[Any, ...]]:
    """Return root id -> the values of the first tuple of its tree in a block, which the driver has written."""
    found: dict[int, tuple[Any, ...]] = {}
    for _, _, _, columns, *ids in pickle.loads(block):
        if isinstance(columns, bytes):
            found = column_blocks.values_by_root(PackedRows(columns, *ids)) | found
            continue
        root_bytes, _, others = ids
        root_ids = np.frombuffer(root_bytes, np.int64).tolist()
        rows = zip(*columns, strict=True) if columns else [()] * len(root_ids)
        for index, (root_id, values) in enumerate(zip(root_ids, rows, strict=True)):
            for root in (others[index] or ()) if index in others else (root_id,):
                found.setdefault(root, values)
    return found


def is_pickled_by_value(block: bytes) -> bool:
    """Return whether a block may hold classes or functions by value: read again, they are not those of the program."""
    return _BY_VALUE in block


def why_not_pickled(content: object) -> str | None:
    """Return why something cannot be pickled; None if it can."""
    try:
        dumps(content)
    except Exception as error:  # noqa: BLE001  Whatever it raises.
        return exception_text(error)
    return None


def encode_tuples(chunks: Sequence[MixedChunk]) -> bytes:
    """Pack tuples, and rows as columns, for some tasks into a block.

    Parameters
    ----------
    chunks : sequence of (int, list of Tuple or TupleBatch)
        The id of the task that receives them, and the tuples in their order.

    Raises
    ------
    TopologyError
        A value cannot be pickled.
    """
    parts: list[Any] = []
    # Task -> the last rows for it as columns: those that follow travel with them.
    joined: dict[int, list[TupleBatch]] = {}
    for task, rows in chunks:
        if isinstance(rows, TupleBatch):
            if task in joined and may_join(joined[task][0], rows):
                joined[task].append(rows)
                continue
            joined[task] = [rows]
            parts.append((task, rows.source.stream, rows.source.task, joined[task]))
            continue
        joined.pop(task, None)
        for source, group in groupby(rows, _source_of):
            columns, root_ids, tuple_ids, others = pack_deliveries(list(group))
            parts.append((task, source.stream, source.task, columns, root_ids.tobytes(), tuple_ids.tobytes(), others))
    for place, (task, stream, emitter, batches, *ids) in enumerate(parts):
        if not ids:
            parts[place] = task, stream, emitter, *pack_rows(batches)
    try:
        return dumps(parts)
    except Exception as error:
        for tup in (tup for _, rows in chunks if not isinstance(rows, TupleBatch) for tup in rows):
            check_values(tup)
        raise TopologyError(f"tuples cannot be pickled: {error}") from error


def check_values(tup: Tuple) -> None:
    """Refuse a tuple whose values cannot be pickled.

    Raises
    ------
    TopologyError
        The text names the component that emitted it, and the field.
    """
    source = tup._source
    for name, value in zip(source.fields, tup.values, strict=True):
        if why := why_not_pickled(value):
            raise TopologyError(
                f"component {source.component!r}: the field {name!r} of a tuple to the stream {source.stream!r} holds"
                f" {reprlib.repr(value)}, which cannot be pickled ({why}); tuples travel to Spark's workers as"
                " pickles, so emit what the value is made from"
            )


def decode_tuples(
    block: Any,
    source_of: Callable[[int, str], TupleSource],
    excluded: frozenset[int] = frozenset(),
    on_roots: Callable[[int, npt.NDArray[np.int64]], object] | None = None,
) -> Iterator[MixedChunk]:
    """Yield the tuples and rows of a block, task by task.

    Parameters
    ----------
    block : bytes-like
    source_of : callable
        (task, stream) -> the source of the tuples that this task emits to this stream.
    excluded : frozenset of int
        Root ids. Tuples of these trees are left out.
    on_roots : callable, optional
        Gets the task and the root ids of its tuples; 0 stands for none.
    """
    for task, stream, emitter, columns, *ids in pickle.loads(block):
        source = source_of(emitter, stream)
        if isinstance(columns, bytes):
            note = None if on_roots is None else partial(on_roots, task)
            batch = unpack_rows(PackedRows(columns, *ids), source, excluded, note)
            if len(batch):
                yield task, batch
            continue
        root_bytes, tuple_bytes, others = ids
        root_ids, tuple_ids = np.frombuffer(root_bytes, np.int64), np.frombuffer(tuple_bytes, np.int64)
        if on_roots is not None:
            on_roots(task, root_ids)
            on_roots(task, np.array([root_id for ids in others.values() for root_id in ids or ()], np.int64))
        tuples = unpack_deliveries(source, columns, root_ids, tuple_ids, others, excluded)
        if tuples:
            yield task, tuples
