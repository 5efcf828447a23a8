"""Tuple blocks: many tuples packed into one binary value, as they travel between the stages of a topology.

A row that crosses between the JVM and Python costs as much as several tuples, so one row carries the tuples that one
task sends to one place. Values are pickled; ids are columns of int64.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from acker.topology.tuples import Tuple, TupleSource

# Tuples for one task.
Chunk = tuple[int, list[Tuple]]

_PROTOCOL: Final = 5
_source_of = attrgetter("_source")


def encode_tuples(chunks: Iterable[Chunk]) -> bytes:
    """Pack tuples for some tasks into a block.

    Parameters
    ----------
    chunks : iterable of (int, list of Tuple)
        The id of the task that receives them, and the tuples in their order.
    """
    parts = []
    for task, tuples in chunks:
        for source, group in groupby(tuples, _source_of):
            of_source = list(group)
            root_ids, tuple_ids, others = array("q"), array("q"), {}
            for position, tup in enumerate(of_source):
                ids = tup._ids
                if ids is not None and len(ids) == 1:
                    ((root_id, tuple_id),) = ids.items()
                else:  # of several trees, or of none
                    root_id = tuple_id = 0
                    others[position] = ids
                root_ids.append(root_id)
                tuple_ids.append(tuple_id)
            values = [tuple(tup.values) for tup in of_source]
            parts.append(
                (
                    task,
                    source.component,
                    source.stream,
                    source.task,
                    values,
                    root_ids.tobytes(),
                    tuple_ids.tobytes(),
                    others,
                )
            )
    return pickle.dumps(parts, _PROTOCOL)


def decode_tuples(
    block: Any, source_of: Callable[[int, str], TupleSource], excluded: frozenset[int] = frozenset()
) -> Iterator[Chunk]:
    """Yield the tuples of a block, task by task.

    Parameters
    ----------
    block : bytes-like
    source_of : callable
        (task, stream) -> the source of the tuples that this task emits to this stream.
    excluded : frozenset of int
        Root ids. Tuples of these trees are left out.
    """
    for task, _, stream, emitter, values, root_bytes, tuple_bytes, others in pickle.loads(block):
        source = source_of(emitter, stream)
        make, make_values = source.tuple_type, source.make_values
        root_ids, tuple_ids = array("q", root_bytes), array("q", tuple_bytes)
        tuples = []
        for position, row in enumerate(values):
            root_id = root_ids[position]
            ids = {root_id: tuple_ids[position]} if root_id else others[position]
            if excluded and ids and not excluded.isdisjoint(ids):
                continue
            tuples.append(make(make_values(row), source, ids))
        if tuples:
            yield task, tuples
