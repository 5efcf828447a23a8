"""Seeded message streams: messages of interleaved tuple trees, with a constant number of pending trees.

A stream is computed from the seed and the number of a tree or row. So a stream with millions of pending trees needs
little memory, and is the same on every machine and with every version of NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from acker._engine.columns import Columns
from acker._engine.protocol import UINT64_MAX, Kind, check_integer
from acker.errors import ArgumentValueError

_Words = npt.NDArray[np.uint64]
_Int64s = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]

# Number of rows that are shuffled together. A row is one step of the stream: one message of each of several trees.
_PIECE_ROWS: Final = 16_384
# Spout tasks that own the trees.
_TASKS: Final = 16

# Purposes of random words. Shuffles of lane i use _LANE + i.
_ROOT, _TUPLE, _FAILS, _FAILS_AT, _RESETS, _RESET_LAG, _PIECE, _LANE = range(8)

_GOLDEN: Final = 0x9E3779B97F4A7C15
_MULTIPLY_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2: Final = np.uint64(0x94D049BB133111EB)


def xor_of(values: _Int64s) -> int:
    """Return the xor of all values; 0 without any."""
    return int(np.bitwise_xor.reduceat(values, [0])[0]) if values.size else 0


class Checksum(NamedTuple):
    """A checksum of finished trees: their number, and the xor of their root ids.

    Attributes
    ----------
    completions : int
    root_xor : int
        As int64.
    """

    completions: int = 0
    root_xor: int = 0

    def add(self, root_id: _Int64s) -> Checksum:
        """Return the checksum with these finished trees added."""
        return Checksum(self.completions + root_id.size, self.root_xor ^ xor_of(root_id))


class _Piece(NamedTuple):
    """Some messages, with flags for the last ones of their trees."""

    kind: npt.NDArray[np.int8]
    root_id: _Int64s
    value: _Int64s
    task_id: npt.NDArray[np.int32]
    message_id: _Int64s
    last: _Bools

    def rows(self, which: slice | npt.NDArray[np.intp]) -> _Piece:
        return _Piece(*(column[which] for column in self))  # type: ignore[arg-type]


def _join(pieces: list[_Piece]) -> _Piece:
    return _Piece(*map(np.concatenate, zip(*pieces, strict=True)))


class TreeStream:
    """Messages of interleaved trees, each of one TRACK and `oks` OKs, with about `pending` trees open at any time.

    A tree is a chain: the TRACK has the first tuple's id, each OK completes a tuple and emits the next one, and the
    last OK emits nothing. Trees start in blocks. While one block starts, each of the `oks` blocks before it gets one
    message for each tree, in random order. So `oks` blocks of trees are pending, any tree of a block may be the next
    one, and the kinds come in random order, with TRACK before OK.

    Parameters
    ----------
    pending : int
        Mean number of open trees.
    oks : int
        Number of OKs of a tree that does not fail.
    fail_share, reset_share : float
        Shares of FAIL and RESET_TIMEOUT messages. A FAIL replaces any one of its tree's OKs and is the tree's last
        message. A RESET_TIMEOUT is for an open tree that will not fail, and needs ``oks >= 2``.
    seed : int, 0 to 2**64 - 1

    Attributes
    ----------
    block : int
        Number of trees in a block.
    expected : Checksum
        That of the trees that the messages taken so far finish.
    resets : int
        Number of RESET_TIMEOUT messages taken so far.
    """

    def __init__(
        self, pending: int, oks: int, *, fail_share: float = 0.0, reset_share: float = 0.0, seed: int = 1
    ) -> None:
        pending = check_integer("pending", pending, 1, 2**40)
        self._oks = check_integer("oks", oks, 2 if reset_share else 1, 1000)
        self._seed = check_integer("seed", seed, 0, UINT64_MAX)
        # A failing tree ends, on average, this many messages early.
        early = (oks - 1) / 2
        failing = fail_share * (oks + 1) / (1 - reset_share + fail_share * early)
        resets_a_row = (oks + 1 - failing * early) * reset_share / (1 - reset_share)
        if not (0 <= failing <= 0.9 and 0 <= resets_a_row <= 1 - failing):
            shares = f"fail_share={fail_share}, reset_share={reset_share}"
            raise ArgumentValueError(f"{shares}: impossible with {oks} OKs a tree")
        self.block = max(1, round(pending / (oks - failing * early)))
        self.expected = Checksum()
        self.resets = 0
        self._failing = failing
        self._resetting = resets_a_row / (1 - failing)
        self._pieces = self._make_pieces()
        nothing = np.zeros(0, np.int64)
        self._left = self._piece(nothing.view(np.uint64), nothing.astype(np.int8), nothing, nothing.astype(np.bool_))

    def prefill(self, rows_max: int = 100_000) -> Iterator[Columns]:
        """Yield the TRACKs of the trees that are pending when the stream starts, the oldest trees first.

        Each has the ack val that its tree has by then, so one message for a tree is enough. Ingest them before the
        messages of `take`.

        Parameters
        ----------
        rows_max : int
            Limit of rows in a batch.
        """
        for block in range(self._oks):
            had = self._oks - 1 - block  # number of OKs that the trees of this block have had
            end = (block + 1) * self.block
            for first in range(block * self.block, end, rows_max):
                tree = np.arange(first, min(first + rows_max, end), dtype=np.uint64)
                fails_at = self._fails_at(tree)
                tree = tree[(fails_at == 0) | (fails_at > had)]
                kind = np.full(tree.size, Kind.TRACK, np.int8)
                tuple_id = self._tuple_id(tree, np.full(tree.size, had))
                yield Columns(*self._piece(tree, kind, tuple_id, np.zeros(tree.size, np.bool_))[:5])

    def take(self, rows: int) -> Columns:
        """Return the next messages.

        Parameters
        ----------
        rows : int

        Returns
        -------
        Columns
            `rows` messages; `task_id` and `message_id` are 0 in rows that are not TRACK.
        """
        parts, have = [self._left], self._left.kind.size
        while have < rows:
            parts.append(next(self._pieces))
            have += parts[-1].kind.size
        whole = _join(parts)
        taken = whole.rows(slice(rows))
        self._left = whole.rows(slice(rows, None))
        self.expected = self.expected.add(taken.root_id[taken.last])
        self.resets += int(np.count_nonzero(taken.kind == Kind.RESET_TIMEOUT))
        return Columns(*taken[:5])

    def _make_pieces(self) -> Iterator[_Piece]:
        """Yield the messages after the prefilled blocks: whole blocks, or a large block in several pieces."""
        blocks = max(1, _PIECE_ROWS // self.block)
        block = self._oks
        while True:
            of_row = np.repeat(np.arange(blocks, dtype=np.uint64), self.block)
            first_row = block * self.block
            lanes = [
                self._shuffle(of_row, _LANE + lane, first_row) + np.uint64((block - lane) * self.block)
                for lane in range(self._oks + 1)
            ]
            for start in range(0, of_row.size, _PIECE_ROWS):
                rows = slice(start, start + _PIECE_ROWS)
                yield self._interleave(np.stack([lane[rows] for lane in lanes]), of_row[rows], first_row + start)
            block += blocks

    def _interleave(self, tree: _Words, of_row: _Words, first_row: int) -> _Piece:
        """Make the messages of some rows, (lanes, rows) trees, and shuffle them within each block."""
        lanes, rows = tree.shape
        position = np.repeat(np.arange(lanes), rows)
        tree, of_row = tree.ravel(), np.tile(of_row, lanes)
        fails_at = self._fails_at(tree)
        lives = (fails_at == 0) | (position <= fails_at)
        tree, of_row, position, fails_at = tree[lives], of_row[lives], position[lives], fails_at[lives]
        fails = (position == fails_at) & (position > 0)

        kind = np.full(tree.size, Kind.OK, np.int8)
        kind[position == 0] = Kind.TRACK
        kind[fails] = Kind.FAIL
        completed = np.where(position == 0, 0, self._tuple_id(tree, position - 1))
        emitted = np.where(position == self._oks, 0, self._tuple_id(tree, position))
        piece = self._piece(tree, kind, np.where(fails, 0, completed ^ emitted), fails | (position == self._oks))
        if self._resetting:
            resets, of_reset = self._make_resets(tree[position == 1], of_row[position == 1], first_row)
            piece = _join([piece, resets])
            of_row = np.concatenate([of_row, of_reset])
        # Resets come after the others, so the sort that shuffles the rows also puts the blocks in order.
        return piece.rows(self._shuffle(of_row, _PIECE, first_row * (lanes + 1)).astype(np.intp))

    def _make_resets(self, tree: _Words, of_row: _Words, first_row: int) -> tuple[_Piece, _Words]:
        """Make RESET_TIMEOUTs: for some trees of the block before, one for a tree of that or an earlier block."""
        lag = self._random(_RESET_LAG, first_row, tree.size) % np.uint64(self._oks - 1)
        tree = tree - lag * np.uint64(self.block)
        chosen = self._random(_RESETS, first_row, tree.size) < np.uint64(self._resetting * 2.0**64)
        chosen &= self._fails_at(tree) == 0
        tree = tree[chosen]
        kind = np.full(tree.size, Kind.RESET_TIMEOUT, np.int8)
        return self._piece(tree, kind, np.zeros(tree.size, np.int64), np.zeros(tree.size, np.bool_)), of_row[chosen]

    def _piece(self, tree: _Words, kind: npt.NDArray[np.int8], value: _Int64s, last: _Bools) -> _Piece:
        is_track = kind == Kind.TRACK
        task_id = np.where(is_track, tree % np.uint64(_TASKS), 0).astype(np.int32)
        message_id = np.where(is_track, tree.view(np.int64), 0)
        return _Piece(kind, self._hash(_ROOT, tree).view(np.int64), value, task_id, message_id, last)

    def _tuple_id(self, tree: _Words, position: npt.NDArray[np.intp]) -> _Int64s:
        """Return the id of the tuple that each tree's message at `position` emits."""
        edge = tree * np.uint64(self._oks + 1) + position.astype(np.uint64)
        return self._hash(_TUPLE, edge).view(np.int64)

    def _fails_at(self, tree: _Words) -> npt.NDArray[np.intp]:
        """Return which of each tree's messages is a FAIL, 1 to `oks`; 0 for a tree that does not fail."""
        if not self._failing:
            return np.zeros(tree.size, np.intp)
        fails = self._hash(_FAILS, tree) < np.uint64(self._failing * 2.0**64)
        return np.where(fails, 1 + self._hash(_FAILS_AT, tree) % np.uint64(self._oks), 0).astype(np.intp)

    def _shuffle(self, group: _Words, purpose: int, first: int) -> _Words:
        """Return the places 0 .. n - 1, the groups in ascending order and shuffled within each group."""
        # One sort of plain words: group, then random bits, then the place itself, which makes every key unique.
        group_bits, place_bits = int(np.max(group)).bit_length(), (group.size - 1).bit_length()
        keys = self._random(purpose, first, group.size) >> np.uint64(group_bits + place_bits)
        keys <<= np.uint64(place_bits)
        keys |= np.arange(group.size, dtype=np.uint64)
        if group_bits:
            keys |= group << np.uint64(64 - group_bits)
        keys.sort()
        keys &= np.uint64((1 << place_bits) - 1)
        return keys

    def _random(self, purpose: int, first: int, count: int) -> _Words:
        return self._hash(purpose, np.arange(first, first + count, dtype=np.uint64))

    def _hash(self, purpose: int, number: _Words) -> _Words:
        """Return word `number` of the SplitMix64 generator for this seed and purpose: distinct for distinct numbers."""
        seed = _split_mix(np.array([self._seed], np.uint64))
        seed = _split_mix(seed + np.uint64(purpose))
        return _split_mix(seed + number * np.uint64(_GOLDEN))


def _split_mix(words: _Words) -> _Words:
    """Mix words, which may be overwritten: Steele, Lea, Flood, Fast Splittable Pseudorandom Number Generators."""
    words ^= words >> np.uint64(30)
    words *= _MULTIPLY_1
    words ^= words >> np.uint64(27)
    words *= _MULTIPLY_2
    words ^= words >> np.uint64(31)
    return words
