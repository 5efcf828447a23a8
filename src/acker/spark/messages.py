"""Columns of messages on Spark: their types, names in expressions, and the texts of errors about ids."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from acker.spark.notes import TextIds


# Spark's names of the columns' types.
SPARK_TYPES: Final = {"int8": "tinyint", "int32": "int", "int64": "bigint"}
# The end of the text of an error about rows with one message id.
SHARED_TREE: Final = (
    "They would share a tree, which may end ACKED though one of them failed: ids must be unique, within source and"
    " attempt where these are given; drop copies before the spout, as DataFrame.dropDuplicates does"
)


def quote_column(name: str) -> str:
    """Return a column's name quoted for Spark's expressions, where a dot would select a field of a struct."""
    return "`" + name.replace("`", "``") + "`"


def describe_shared_ids(
    tracks: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]], texts: TextIds | None = None
) -> str:
    """Return the text of an error that names message ids which several rows of a pipeline have.

    Parameters
    ----------
    tracks : list of (root ids, message ids)
        Of all TRACKs.
    texts : TextIds, optional
        Where ids are texts or bytes; two of them may have one hash.
    """
    root_id, message_id = (np.concatenate(column) for column in zip(*tracks, strict=True))
    _, group, counts = np.unique(root_id, return_inverse=True, return_counts=True)
    rows = counts[group]
    known = [] if texts is None else sorted(set(texts.all_of(root_id[rows > 1])))
    for (root, one), (other_root, other) in itertools.pairwise(known):
        if root == other_root:
            return describe_collision(one, other)
    ids = np.unique(message_id[rows > 1])
    most = rows[message_id == ids[0]].max()
    if known:
        most = counts[group][root_id == known[0][0]].max()
    names = [repr(name) for _, name in known] or [str(number) for number in ids]
    others = f" (and of {len(names) - 1} other ids, such as {names[1]})" if len(names) > 1 else ""
    return f"{most} rows of one batch have the message id {names[0]}{others}. {SHARED_TREE}"


def describe_collision(one: object, other: object) -> str:
    """Return the text of an error about two message ids with one hash."""
    return (
        f"the message ids {one!r} and {other!r} have the same 64-bit hash, by chance or because somebody chose them so."
        " They would share a tree: give one of the rows another id"
    )
