"""Ids: golden values, spread, no repeats across forks, never 0."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from acker._engine.ids import INSTEAD_OF_ZERO, IdGenerator, _ids, draw, root_ids, tuple_ids
from acker.errors import AckerError

EXTREMES = np.array([0, -1, 1, np.iinfo(np.int64).min, np.iinfo(np.int64).max])


def test_generator_golden_values() -> None:
    """A change of the stream is a decision: seeded runs are compared between versions."""
    assert IdGenerator(1).take(3).tolist() == [5001773312344742047, 5153105853343410367, -8474969900699243283]


def test_next_gives_the_stream_of_take() -> None:
    generator = IdGenerator(7)
    assert [generator.next() for _ in range(2500)] == IdGenerator(7).take(2500).tolist()


def test_keyed_golden_values() -> None:
    assert root_ids(7, "f", [0, 1, 2], 0).tolist() == [-326957918918938990, 7190807823816407887, -7279602390676278740]
    assert root_ids(7, 3, 4, 5).tolist() == [-8671555183519841456]
    assert tuple_ids(7, [1, -1], [0, 2**63 - 1], "split", [0, 1]).tolist() == [
        4306946396409173703,
        -6523797718523239814,
    ]
    assert draw(7, "fail", [1, 2, 3]).round(8).tolist() == [0.82604555, 0.96198842, 0.02159492]


@pytest.mark.parametrize(
    "make",
    [
        lambda n: IdGenerator().take(n),
        lambda n: IdGenerator(3).take(n),
        lambda n: root_ids(1, "lines", np.arange(n), 0),
        lambda n: root_ids(1, np.arange(n) >> 10, np.arange(n) & 1023, 0),
        lambda n: tuple_ids(1, np.arange(n), 5, "split", 0),
        lambda n: tuple_ids(1, 5, np.arange(n) << 32, "split", 0),
        lambda n: tuple_ids(1, np.arange(n) // 10, 5, "split", np.arange(n) % 10),
    ],
    ids=["entropy", "seeded", "messages", "files", "roots", "strided parents", "ordinals"],
)
def test_a_million_ids_differ_and_no_bit_leans(make: Callable[[int], NDArray[np.int64]]) -> None:
    n = 1_000_000
    ids = make(n)
    assert ids.dtype == np.int64 and ids.shape == (n,)
    in_order = np.sort(ids)  # a hundred times as fast as np.unique
    assert (in_order[1:] != in_order[:-1]).all()
    assert not (ids == 0).any()
    bits = np.unpackbits(ids.view(np.uint8)).reshape(n, 64).sum(axis=0)
    assert np.abs(bits / n - 0.5).max() < 0.003  # Six standard deviations of a fair coin.


@pytest.mark.parametrize("column", ["source", "message_id", "attempt"])
def test_each_input_bit_moves_half_of_the_root_id(column: str) -> None:
    rng = np.random.default_rng(0)
    columns = {name: rng.integers(-(2**63), 2**63, 2000) for name in ("source", "message_id", "attempt")}
    before = root_ids(9, **columns)
    for bit in range(64):
        moved = {**columns, column: columns[column] ^ np.int64(-(2**63) if bit == 63 else 1 << bit)}
        # Of unsigned words: of a signed number np.bitwise_count counts the bits of the magnitude.
        flipped = np.bitwise_count((before ^ root_ids(9, **moved)).view(np.uint64)).mean()
        assert 31 < flipped < 33, (column, bit)


def test_ids_of_a_tree_are_independent_of_each_other() -> None:
    """Ids that meet in one accumulator do not cancel by structure: 64 of them have nearly full rank over GF(2)."""
    for root in range(50):
        rows = [value & (2**64 - 1) for value in tuple_ids(1, root, 0, "split", np.arange(64)).tolist()]
        rank = 0
        while rows:
            pivot = rows.pop()
            if pivot:
                rank += 1
                low = pivot & -pivot
                rows = [row ^ pivot if row & low else row for row in rows]
        assert rank >= 58  # A random 64 x 64 matrix over GF(2) lacks 6 or more with chance 2^-36.


def test_each_part_of_the_key_matters() -> None:
    base = tuple_ids(1, 2, 3, "split", 4)
    others = [
        tuple_ids(2, 2, 3, "split", 4),
        tuple_ids(1, 3, 3, "split", 4),
        tuple_ids(1, 2, 4, "split", 4),
        tuple_ids(1, 2, 3, "count", 4),
        tuple_ids(1, 2, 3, "split", 5),
        tuple_ids(1, 3, 2, "split", 4),
        root_ids(1, "split", 3, 4),
        root_ids(1, "split", 3, 4, component="lines"),
    ]
    assert len({int(ids[0]) for ids in [base, *others]}) == 9
    assert root_ids(1, "ab", 0, 0) != root_ids(1, "a", 0, 0)


def test_keyed_ids_do_not_depend_on_how_rows_are_cut() -> None:
    whole = tuple_ids(1, np.arange(100), 7, "split", np.arange(100) % 3)
    parts = [tuple_ids(1, np.arange(i, i + 10), 7, "split", np.arange(i, i + 10) % 3) for i in range(0, 100, 10)]
    assert np.array_equal(whole, np.concatenate(parts))


def test_extreme_columns_broadcast_and_inputs_stay() -> None:
    columns = EXTREMES.copy()
    ids = root_ids(-(2**70), columns, 0, np.uint8(3))
    assert np.unique(ids).size == EXTREMES.size
    assert np.array_equal(columns, EXTREMES)
    assert np.array_equal(root_ids(1, EXTREMES.view(np.uint64), 0, 0), root_ids(1, EXTREMES, 0, 0))
    assert root_ids(1, "s", [], 0).shape == (0,)
    assert tuple_ids(1, np.empty(0, np.int64), 0, "c", []).shape == (0,)


def test_zero_is_mapped_away() -> None:
    assert _ids(np.array([0, 5], np.uint64)).tolist() == [INSTEAD_OF_ZERO, 5]
    assert INSTEAD_OF_ZERO != 0


def test_the_generator_draws_again_in_place_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bits:
        def __init__(self, seed: int | None) -> None:
            self.answers = [[5, 0, 6, 0], [0, 7], [8]]

        def random_raw(self, n: int) -> NDArray[np.uint64]:
            answer = self.answers.pop(0)
            assert len(answer) == n
            return np.array(answer, np.uint64)

    monkeypatch.setattr(np.random, "PCG64DXSM", Bits)
    assert IdGenerator().take(4).tolist() == [5, 8, 6, 7]


def test_draws_are_uniform_and_of_their_purpose() -> None:
    lines = np.arange(200_000)
    fail, drop = draw(1, "fail", 0, lines, 0), draw(1, "drop", 0, lines, 0)
    assert fail.min() >= 0 and fail.max() < 1
    assert np.abs(np.histogram(fail, 10, (0, 1))[0] / lines.size - 0.1).max() < 0.005
    assert abs(np.corrcoef(fail, drop)[0, 1]) < 0.01
    assert abs(np.corrcoef(fail, draw(1, "fail", 0, lines, 1))[0, 1]) < 0.01


def test_bad_input_is_named() -> None:
    with pytest.raises(TypeError, match=r"message_id: expected integers, got float64"):
        root_ids(1, "s", [0.5], 0)
    with pytest.raises(TypeError, match=r"attempt: expected integers, got bool"):
        root_ids(1, "s", [1], True)
    with pytest.raises(TypeError, match=r"run_seed: expected an integer, got str"):
        root_ids("1", "s", [1], 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"at least one column") as caught:
        draw(1, "fail")
    assert isinstance(caught.value, AckerError)
    with pytest.raises(ValueError, match=r"n: expected an integer from 0 to .*, got -1"):
        IdGenerator().take(-1)
    with pytest.raises(ValueError, match=r"seed: expected an integer from 0 to .*, got -1"):
        IdGenerator(-1)
    with pytest.raises(TypeError, match=r"seed: expected an integer from 0 to .*, got float"):
        IdGenerator(1.5)  # type: ignore[arg-type]


def test_generators_are_not_copied() -> None:
    for clone in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"cannot be copied or pickled"):
            clone(IdGenerator(1))


def test_two_generators_of_the_system_differ() -> None:
    assert not set(IdGenerator().take(1000).tolist()) & set(IdGenerator().take(1000).tolist())


def _report(generator: IdGenerator, pipe: int) -> None:
    ids = [generator.next() for _ in range(10)] + generator.take(90).tolist()
    os.write(pipe, " ".join(map(str, ids)).encode())


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("seed", [None, 5], ids=["entropy", "seeded"])
def test_a_forked_child_gives_other_ids(seed: int | None) -> None:
    generator = IdGenerator(seed)
    first = generator.next()  # The child inherits a filled buffer.
    children: list[set[int]] = []
    for _ in range(2):
        reader, writer = os.pipe()
        process = multiprocessing.get_context("fork").Process(target=_report, args=(generator, writer))
        process.start()
        os.close(writer)
        with os.fdopen(reader) as stream:
            children.append({int(text) for text in stream.read().split()})
        process.join()
        assert process.exitcode == 0
    parent = {first, *(generator.next() for _ in range(2000)), *generator.take(2000).tolist()}
    assert len(children[0]) == len(children[1]) == 100
    assert not children[0] & children[1]
    assert not (children[0] | children[1]) & parent
