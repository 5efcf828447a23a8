"""The vocabulary of acker messages: kinds, outcomes, protocols, options and encoded tuple ids.

The native core, the snapshots and the Arrow columns all use the numbers defined here.
"""

from __future__ import annotations

import operator
import os
import re
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, SupportsIndex, overload

import numpy as np

from acker._engine.codes import Outcome as Outcome  # noqa: PLC0414 (exported from here, beside the other words)
from acker._engine.notebook import html_table
from acker.errors import ArgumentTypeError, ArgumentValueError

if TYPE_CHECKING:
    import numpy.typing as npt

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1
UINT64_MAX: Final = 2**64 - 1

# The index of a protocol is its code in the native core and in snapshots.
PROTOCOLS: Final = ("storm", "storm-0.9", "fsshelter")

BUCKETS_MIN: Final = 2
BUCKETS_MAX: Final = 15
# Of each counter of a snapshot: an acker that is restored counts as many events again before an int64 is full.
COUNTER_MAX: Final = 2**62
# 4 * high_water must stay an int64.
HIGH_WATER_MAX: Final = 2**61 - 1

_TICK_MODULUS: Final = 2**32
_ELAPSED_MS_MAX: Final = 49 * 24 * 3600 * 1000


class Kind(IntEnum):
    """The event that a message reports about its tree. ``INIT`` and ``ACK`` are Storm's names of ``TRACK`` and ``OK``.

    Examples
    --------
    >>> from acker import Kind
    >>> Kind.INIT is Kind.TRACK, Kind.ACK is Kind.OK
    (True, True)
    """

    TRACK = 0
    ANCHOR = 1
    OK = 2
    FAIL = 3
    RESET_TIMEOUT = 4
    INIT = 0
    ACK = 2


class Message(NamedTuple):
    """One message to an acker, in the order of the parameters of `Acker.ingest`."""

    kind: Kind
    root_id: int
    value: int
    task_id: int = 0
    message_id: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts since creation (the first eleven) and now (the last two).

    Always ``tracked == acked + failed + timed_out + open`` and ``empty <= acked``.

    Attributes
    ----------
    tracked : int
        TRACKs accepted.
    acked, failed, timed_out : int
        Trees reported with that outcome.
    rejected : int
        TRACKs answered REJECTED because of ``high_water``.
    duplicates : int
        TRACKs of a root that was tracked already; ignored.
    unknown : int
        Messages about an unknown root that were ignored.
    orphans : int
        Entries that left with their bucket and never had a TRACK.
    dropped : int
        Messages about an unknown root that were not stored because of ``high_water``.
    resets : int
        RESET_TIMEOUTs of known roots.
    empty : int
        Acked trees that their TRACK alone finished: its value was 0 and no other message had come, so no bolt received
        the spout's tuple. Always 0 under "fsshelter", where a TRACK carries no tuple ids.
    pending : int
        Entries held now, those without a TRACK included.
    open : int
        Tracked entries held now.
    """

    tracked: int
    acked: int
    failed: int
    timed_out: int
    rejected: int
    duplicates: int
    unknown: int
    orphans: int
    dropped: int
    resets: int
    empty: int
    pending: int
    open: int

    def _repr_html_(self) -> str:
        """Return the counts as a table, for notebooks."""
        names = [item.name for item in fields(self)]
        return html_table("Stats", names, [[getattr(self, name) for name in names]])


class PendingTree(NamedTuple):
    """One tree that has not ended, for a log line when a program hangs.

    Attributes
    ----------
    message_id : int, or None
        The spout's own id; None if no TRACK was seen.
    age_ms : int
        Milliseconds since its first message; 0 if the clock was set back or is unknown.
    state : str
        In an acker: "tracked", "untracked" (messages but no TRACK), "failed" (the same, and one was a FAIL). In a
        `TupleTree`: "tracking" (the spout has not closed it), "anchored" (an input that is not acknowledged).
    root_id : int
    task_id : int, or None
        The spout task that gets the outcome; None if no TRACK was seen.
    ack_val : int
        The xor of the outstanding tuple ids; if one tuple is left, its id. In a `TupleTree`: the value that the TRACK
        or the OK would carry now.
    rotations_left : int, or None
        The number of rotations after which it times out, unless a message moves it to the nursery; None in a
        `TupleTree`.
    """

    message_id: int | None
    age_ms: int
    state: str
    root_id: int
    task_id: int | None
    ack_val: int
    rotations_left: int | None


# The names of the counts since creation, in the order in which the core, the snapshots and `Stats` hold them.
COUNTERS: Final = (
    "tracked",
    "acked",
    "failed",
    "timed_out",
    "rejected",
    "duplicates",
    "unknown",
    "orphans",
    "dropped",
    "resets",
    "empty",
)


class AckerOptions(NamedTuple):
    """The checked options of an acker."""

    protocol: str
    buckets: int
    high_water: int | None


def check_options(protocol: object, buckets: object, high_water: object) -> AckerOptions:
    """Check the options of an acker, in this order."""
    if not isinstance(protocol, str):
        raise ArgumentTypeError(f"protocol: expected one of {_protocol_names()}, got {type(protocol).__name__}")
    if protocol not in PROTOCOLS:
        raise ArgumentValueError(f"protocol: expected one of {_protocol_names()}, got {protocol!r}")
    bucket_count = check_integer("buckets", buckets, BUCKETS_MIN, BUCKETS_MAX)
    high = None if high_water is None else check_integer("high_water", high_water, 0, HIGH_WATER_MAX)
    return AckerOptions(protocol, bucket_count, high)


def check_seats(shards: int, high_water: int | None) -> None:
    """Check that each shard can hold an open tree: together they may hold as many as one acker."""
    if high_water is not None and shards > (seats := 2 * high_water + 1):
        raise ArgumentValueError(
            f"high_water: {high_water} allows {seats} open trees, and each of {shards} shards needs room for one;"
            f" expected high_water >= {shards // 2}, or at most {seats} shards"
        )


def check_seed(seed: object) -> int:
    """Check the seed of a hash; for None, draw one from the operating system."""
    if seed is None:
        return int.from_bytes(os.urandom(8), "little")
    return check_integer("seed", seed, 0, UINT64_MAX)


def check_ms(name: str, value: object, least: int = INT64_MIN) -> int:
    """Return a time in milliseconds as an int, at least `least`; floats are mostly seconds, and the error says so."""
    if isinstance(value, (float, np.floating)):
        raise ArgumentTypeError(
            f"{name}: expected an integer from {least} to {INT64_MAX}, got {type(value).__name__}: it counts"
            " milliseconds, so of the seconds of time.time() make int(time.time() * 1000)"
        )
    return check_integer(name, value, least, INT64_MAX)


def check_integer(name: str, value: object, least: int, most: int) -> int:
    """Return `value` as an int in [least, most]; bool and everything that is not an integer is refused."""
    if type(value) is int and least <= value <= most:  # a look at SupportsIndex takes ten times as long
        return value
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, SupportsIndex):
        raise ArgumentTypeError(f"{name}: expected an integer from {least} to {most}, got {type(value).__name__}")
    try:
        number = operator.index(value)
    except TypeError:  # an array has __index__ too, and only uses it when it holds one integer
        raise ArgumentTypeError(
            f"{name}: expected an integer from {least} to {most}, got {type(value).__name__}"
        ) from None
    if not least <= number <= most:
        raise ArgumentValueError(f"{name}: expected an integer from {least} to {most}, got {number}")
    return number


def divide_up(number: int, by: int) -> int:
    """Return the quotient, rounded up."""
    return (number + by - 1) // by


def _protocol_names() -> str:
    return ", ".join(map(repr, PROTOCOLS))


def start_tick(now_ms: int) -> int:
    """Return the start of an entry as it is stored: the low 32 bits of the clock, in milliseconds."""
    return now_ms & (_TICK_MODULUS - 1)


def elapsed_ms(tick: int, now_ms: int) -> int:
    """Return the milliseconds from `tick` (see `start_tick`) to `now_ms`; 0 when the clock was set back.

    32 bits of milliseconds are 49.7 days. Differences above 49 days are read as a clock set back by less than the
    17 hours that remain, so ages below 49 days are exact.
    """
    difference = (now_ms - tick) % _TICK_MODULUS
    return 0 if difference > _ELAPSED_MS_MAX else difference


@overload
def acker_of(root_id: SupportsIndex, n: SupportsIndex) -> int: ...
@overload
def acker_of(root_id: npt.ArrayLike, n: SupportsIndex) -> Any: ...
def acker_of(root_id: npt.ArrayLike | SupportsIndex, n: SupportsIndex) -> Any:
    """Return which of `n` ackers owns a tree: ``abs(remainder(root_id, n))``, the remainder's sign that of the root.

    The remainder is that of C and .NET (FsShelter takes ``abs (anchorId % n)``); Python's own ``%`` differs for
    negative root ids.

    Parameters
    ----------
    root_id : int or array-like of int64
    n : int >= 1

    Returns
    -------
    int, or an int64 array of the same shape, in [0, n)

    Raises
    ------
    ArgumentValueError
        `n` < 1, or a root id outside int64.
    ArgumentTypeError
        Either is not an integer.

    Examples
    --------
    >>> import acker
    >>> [acker.acker_of(-(2**63), n) for n in (3, 5, 7)]
    [2, 3, 1]
    >>> acker.acker_of([-7, 7, 0], 4)
    array([3, 3, 0])
    """
    count = check_integer("n", n, 1, INT64_MAX)
    if np.ndim(root_id) == 0:
        # For whole numbers of any size abs(truncated remainder) is abs(x) % n.
        return abs(check_integer("root_id", root_id, INT64_MIN, INT64_MAX)) % count
    roots = np.asarray(root_id)
    if roots.size == 0:
        return np.zeros(roots.shape, np.int64)
    if roots.dtype.kind not in "iu":
        raise ArgumentTypeError(f"root_id: expected int64, got {roots.dtype}")
    if roots.dtype.kind == "u" and int(roots.max()) > INT64_MAX:
        raise ArgumentValueError(f"root_id: expected int64, got {roots.max()}")
    return np.abs(np.fmod(roots.astype(np.int64, copy=False), np.int64(count)))


# 19 digits hold every int64; longer text cannot be one, and int() raises another error for very long text.
_TUPLE_ID: Final = re.compile(r"(-?[0-9]{1,19}):(-?[0-9]{1,19})", re.ASCII)


def encode_tuple_id(root_id: SupportsIndex, tuple_id: SupportsIndex) -> str:
    """Return the text of one tuple of one tree, ``"root_id:tuple_id"`` in signed decimal (FsShelter).

    A tuple that belongs to several trees carries one such text for each.

    Examples
    --------
    >>> import acker
    >>> acker.encode_tuple_id(123, -456)
    '123:-456'
    """
    root = check_integer("root_id", root_id, INT64_MIN, INT64_MAX)
    return f"{root}:{check_integer('tuple_id', tuple_id, INT64_MIN, INT64_MAX)}"


def parse_tuple_id(text: str) -> tuple[int, int] | None:
    """Return (root id, tuple id) of an encoded tuple id, or None for an unanchored one.

    Any text that is not two int64s is an unanchored id and never an error.

    Examples
    --------
    >>> import acker
    >>> acker.parse_tuple_id("123:-456")
    (123, -456)
    >>> acker.parse_tuple_id("789") is None
    True
    """
    match = _TUPLE_ID.fullmatch(text)
    if match is None:
        return None
    first, second = match.groups()
    root, tuple_id = int(first), int(second)
    if not (INT64_MIN <= root <= INT64_MAX and INT64_MIN <= tuple_id <= INT64_MAX):
        return None
    return root, tuple_id
