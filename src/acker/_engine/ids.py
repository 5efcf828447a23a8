"""Random ids for tasks that run once, and keyed ids for stages that may be computed twice.

The rules are in docs/protocol.md, *Ids*. An id is a non-zero int64, uniform over the whole range: 0 is excluded because
``x ^ 0 = x`` would make its tuple invisible to the acker.

Random ids (`IdGenerator`) suit a task that lives in one process and computes everything once. A stage that may be
computed again (a retried Spark task, a lost partition, a plan that is evaluated twice) would draw other ids the second
time, and its trees would never finish. There, ids are a keyed hash of the tuple's position (`root_ids`, `tuple_ids`),
and injected faults are drawn likewise (`draw`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from acker._engine.protocol import INT64_MAX, UINT64_MAX, check_integer
from acker.errors import ArgumentTypeError, ColumnTypeError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["IdGenerator", "draw", "root_ids", "tuple_ids"]

# `IdGenerator.next` draws this many at once: a call into NumPy costs as much as a hundred ids.
_BUFFER_IDS = 1024

# Replaces a hash of 0: 2^64 divided by the golden ratio, as a signed number.
INSTEAD_OF_ZERO = np.int64(0x9E3779B97F4A7C15 - 2**64)

# The primes of XXH64 (Collet: xxHash), and the seed with which Spark's SQL function xxhash64 begins.
_PRIMES = tuple(
    np.uint64(prime)
    for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)
_SEED = 42


class _Forks:
    """The number of forks between the process that imported this module and this one."""

    count = 0

    @classmethod
    def count_one(cls) -> None:
        cls.count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Forks.count_one)


class IdGenerator:
    """Random non-zero int64 ids, uniform over the full range; use one generator for each task.

    Parameters
    ----------
    seed : int, 0 to 2**64 - 1, optional
        Repeats a stream, for tests; by default the operating system's entropy is used.

    Notes
    -----
    Threads may share one: no id is given twice, but which thread gets which id is not repeatable.

    In a forked child it continues with fresh entropy of the operating system, even if it was seeded, so that the child
    cannot repeat the ids of its parent. For the same reason it cannot be copied or pickled.
    """

    __slots__ = ("_bits", "_buffer", "_forks")

    def __init__(self, seed: int | None = None) -> None:
        self._restart(None if seed is None else check_integer("seed", seed, 0, UINT64_MAX))

    def _restart(self, seed: int | None) -> None:
        # random_raw of a bit generator is the one stream that NumPy promises not to change between versions.
        self._bits = np.random.PCG64DXSM(seed)
        self._buffer: list[int] = []
        self._forks = _Forks.count

    def _draw(self, n: int) -> NDArray[np.int64]:
        ids = self._bits.random_raw(n).view(np.int64)
        zeros = np.flatnonzero(ids == 0)
        while zeros.size:  # Each with chance 2^-64.
            ids[zeros] = self._bits.random_raw(zeros.size).view(np.int64)
            zeros = np.flatnonzero(ids == 0)
        return ids

    def next(self) -> int:
        """Return one id.

        Returns
        -------
        int
            Between -2^63 and 2^63 - 1, never 0.
        """
        if self._forks != _Forks.count:
            self._restart(None)
        try:
            return self._buffer.pop()
        except IndexError:
            # If two threads come here at once, one discards the buffer of the other: ids are plentiful.
            ids: list[int] = self._draw(_BUFFER_IDS)[::-1].tolist()
            given = ids.pop()
            self._buffer = ids
            return given

    def take(self, n: int) -> NDArray[np.int64]:
        """Return `n` ids at once.

        Parameters
        ----------
        n : int >= 0

        Returns
        -------
        (n,) int64
            None of them 0. The array is the caller's.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            n is not an integer, or negative.
        """
        n = check_integer("n", n, 0, INT64_MAX)
        if self._forks != _Forks.count:
            self._restart(None)
        return self._draw(n)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an IdGenerator cannot be copied or pickled, since two would give the same ids: make one in each task"
        )


def _rotate(words: NDArray[np.uint64], bits: int) -> None:
    """Rotate each word to the left, in place."""
    low = words >> np.uint64(64 - bits)
    words <<= np.uint64(bits)
    words |= low


def _mix_in(state: NDArray[np.uint64], word: NDArray[np.uint64]) -> None:
    """Replace each state by the XXH64 of the 8 bytes of a word, with the state as seed.

    It is a bijection of the word while the state stands still, and of the state while the word does.
    """
    mixed = word * _PRIMES[1]
    _rotate(mixed, 31)
    mixed *= _PRIMES[0]
    state += _PRIMES[4] + np.uint64(8)
    state ^= mixed
    _rotate(state, 27)
    state *= _PRIMES[0]
    state += _PRIMES[3]
    state ^= state >> np.uint64(33)
    state *= _PRIMES[1]
    state ^= state >> np.uint64(29)
    state *= _PRIMES[2]
    state ^= state >> np.uint64(32)


def _words(name: str, column: ArrayLike) -> NDArray[np.uint64]:
    """Read an integer column as 64-bit words, two's complement."""
    array = np.asarray(column)
    if array.size == 0 and not isinstance(column, np.ndarray):
        array = array.astype(np.int64)  # An empty list reads as float64.
    if array.dtype.kind not in "iu":
        raise ColumnTypeError(f"{name}: expected integers, got {array.dtype}")
    if array.dtype == np.uint64:
        return array
    return array.astype(np.int64, copy=False).view(np.uint64)


def hash_key(run_seed: int, *purpose: str) -> tuple[int, int]:
    """Return the key of the hashes of one purpose in a run, two int64: the first and the last word of each hash."""
    import hashlib  # it loads OpenSSL, which would be a good part of importing acker

    if isinstance(run_seed, bool) or not isinstance(run_seed, (int, np.integer)):
        raise ArgumentTypeError(f"run_seed: expected an integer, got {type(run_seed).__name__}")
    text = b"".join(
        len(part).to_bytes(8, "little") + part for part in (str(item).encode() for item in (int(run_seed), *purpose))
    )
    first, last = np.frombuffer(hashlib.blake2b(text, digest_size=16, person=b"acker ids").digest(), "<i8").tolist()
    return first, last


def _hash_rows(run_seed: int, purpose: tuple[str, ...], columns: dict[str, ArrayLike]) -> NDArray[np.uint64]:
    """Hash the rows of the columns under the key (run_seed, purpose), as Spark's xxhash64(first, columns, last) does.

    Each round is a bijection of one column's word while the others stand still, so rows that differ in one column only
    never collide.
    """
    first, last = (np.array([part], np.int64).view(np.uint64) for part in hash_key(run_seed, *purpose))
    words = [np.atleast_1d(_words(name, column)) for name, column in columns.items()]
    start = np.full(1, _SEED, np.uint64)
    _mix_in(start, first)
    state: NDArray[np.uint64] = np.full(np.broadcast_shapes((1,), *(word.shape for word in words)), start[0])
    for word in (*words, last):
        _mix_in(state, word)
    return state


def _ids(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    ids = words.view(np.int64)
    ids[ids == 0] = INSTEAD_OF_ZERO
    return ids


def root_ids(
    run_seed: int, source: str | ArrayLike, message_id: ArrayLike, attempt: ArrayLike, *, component: str = ""
) -> NDArray[np.int64]:
    """Compute the root ids of spout messages; the same arguments give the same ids.

    Parameters
    ----------
    run_seed : int
        Seed of the run, the only random part.
    source : str, or (n,) int64
        The scope in which message ids are unique: one name for all rows, or a number for each row.
    message_id : (n,) int64
        The spout's own id, unique within the source.
    attempt : (n,) int64, or one int
        0 the first time a message is sent. A replayed message must be a new tree: otherwise late messages of the failed
        tree would enter it.
    component : str
        The name of the spout, if a run has several.

    Returns
    -------
    (n,) int64
        Root ids, none of them 0. Columns broadcast; scalars alone give one row.

    Raises
    ------
    ColumnTypeError
        A column that does not hold integers; the text names it.
    """
    if isinstance(source, str):
        return _ids(_hash_rows(run_seed, ("root", component, source), {"message_id": message_id, "attempt": attempt}))
    columns = {"source": source, "message_id": message_id, "attempt": attempt}
    return _ids(_hash_rows(run_seed, ("root", component), columns))


def tuple_ids(
    run_seed: int, root_id: ArrayLike, parent_tuple_id: ArrayLike, component: str, ordinal: ArrayLike
) -> NDArray[np.int64]:
    """Compute the ids of tuples; the same arguments give the same ids.

    Parameters
    ----------
    run_seed : int
    root_id : (n,) int64
        The tree.
    parent_tuple_id : (n,) int64
        The tuple that this one was anchored to; 0 for the tuples of a spout.
    component : str
        The emitting component. Two components that read one stream both emit under the same parent.
    ordinal : (n,) int64
        Position among the parent's outputs of this component, from 0; not in a batch, since rows may be cut into other
        batches and partitions the next time.

    Returns
    -------
    (n,) int64
        Tuple ids, none of them 0.

    Raises
    ------
    ColumnTypeError
        A column that does not hold integers; the text names it.
    """
    columns = {"root_id": root_id, "parent_tuple_id": parent_tuple_id, "ordinal": ordinal}
    return _ids(_hash_rows(run_seed, ("tuple", component), columns))


def draw(run_seed: int, purpose: str, *columns: ArrayLike) -> NDArray[np.float64]:
    """Draw a uniform number for each row; the same arguments give the same numbers.

    Parameters
    ----------
    run_seed : int
    purpose : str
        The decision to draw for. Draws for two purposes are independent.
    columns : (n,) int64 each
        The subject of the draw, such as file, line and attempt. At least one.

    Returns
    -------
    (n,) float64
        In [0, 1), with 53 bits.

    Raises
    ------
    ColumnTypeError, ArgumentTypeError
        No column, or one that does not hold integers.
    """
    if not columns:
        raise ArgumentTypeError("draw: expected at least one column")
    named: dict[str, Any] = {f"column {index}": column for index, column in enumerate(columns)}
    words = _hash_rows(run_seed, ("draw", purpose), named)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
