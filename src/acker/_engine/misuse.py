"""The errors and warnings of a `TupleTree` that is used wrongly; the native classes raise them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

from acker._engine.protocol import encode_tuple_id, parse_tuple_id
from acker.errors import ArgumentTypeError, ArgumentValueError, TupleStateError


def read_id(tuple_id: object, index: int) -> tuple[int, int] | None:
    """Return root id and tuple id of an encoded id, None for an unanchored one; refuse what no `TupleTree` makes.

    Parameters
    ----------
    tuple_id : object
    index : int
        Its index in a sequence; negative: it is none of a sequence.
    """
    name = "tuple_id" if index < 0 else f"tuple_ids[{index}]"
    if not isinstance(tuple_id, str):
        hint = ": call it once for each of the ids that a tuple carries" if isinstance(tuple_id, (list, tuple)) else ""
        raise ArgumentTypeError(f"{name}: expected one encoded id, a str, got {type(tuple_id).__name__}{hint}")
    parsed = parse_tuple_id(tuple_id)
    if parsed is None and parse_tuple_id("0:" + tuple_id) is None:
        raise ArgumentValueError(
            f"{name}: expected an encoded id as mk_ids() returns it, 'root_id:tuple_id' in decimal or 'tuple_id' alone"
            f" where nothing is tracked, got {tuple_id!r}"
        )
    return parsed


def sequence_of(tuple_ids: object) -> Sequence[object]:
    """Return what is iterable as a tuple; refuse text, which would be read letter by letter."""
    if isinstance(tuple_ids, (str, bytes)) or not isinstance(tuple_ids, Iterable):
        raise ArgumentTypeError(f"tuple_ids: expected a sequence of encoded ids, got {type(tuple_ids).__name__}")
    return tuple(tuple_ids)


def acknowledged_error(tuple_id: str) -> TupleStateError:
    """Return the error of a second acknowledgement."""
    return TupleStateError(
        f"the input {tuple_id!r} was acknowledged already: each one is acked or failed once, since a second OK"
        " takes the first one back"
    )


def settled_error(root_id: int, tuple_id: int) -> TupleStateError:
    """Return the error of an anchor to an acknowledged input."""
    return TupleStateError(
        f"the input {encode_tuple_id(root_id, tuple_id)!r} was acknowledged; nothing can be anchored to it any more"
    )


def closed_error() -> TupleStateError:
    """Return the error of a delivery after the last one."""
    return TupleStateError("the tree was closed; its TRACK was sent and can take no further tuple id")


def copy_error(name: str) -> TypeError:
    """Return the error of copying or pickling an object of this class."""
    return TypeError(f"a {name} cannot be copied or pickled, since two would acknowledge the same tuples")


def warn_never_acknowledged(inputs: int, age_ms: int, stacklevel: int) -> None:
    """Warn of many inputs, the oldest of this age, that were anchored to and never acknowledged."""
    warnings.warn(
        f"{inputs:,} inputs were anchored to and never acknowledged, the oldest for"
        f" {age_ms / 1000:,.0f} s: acknowledge each by ok or fail, or use anchor as a context manager",
        RuntimeWarning,
        stacklevel,
    )


def warn_never_closed(tracking: object, message_id: int, stacklevel: int) -> None:
    """Warn of a tree that its spout has dropped."""
    warnings.warn(
        f"a tree of message id {message_id} was never closed: no TRACK was sent, its spout hears nothing",
        ResourceWarning,
        stacklevel,
        tracking,
    )
