"""Message streams: the plain acker finds in them what the generator declares."""

import numpy as np
import pytest

from acker import Kind, ReferenceAcker
from acker.errors import ArgumentValueError
from acker.testing import Checksum, TreeStream
from acker.testing.streams import xor_of

SHAPES = [
    {"pending": 1, "oks": 1},
    {"pending": 40, "oks": 4},
    {"pending": 2000, "oks": 4},
    {"pending": 90_000, "oks": 4},  # a block is made in several pieces
    {"pending": 600, "oks": 20},
    {"pending": 900, "oks": 4, "fail_share": 0.05, "reset_share": 0.05},
    {"pending": 900, "oks": 2, "fail_share": 0.15},
]


def opened(stream):
    acker = ReferenceAcker()
    for batch in stream.prefill(500):
        assert len(acker.ingest(*batch)) == 0
    return acker


def as_lists(columns):
    return [column.tolist() for column in columns]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_finishes_the_trees_that_it_expects(shape):
    stream = TreeStream(**shape)
    acker, found = opened(stream), Checksum()
    for _ in range(12):
        done = acker.ingest(*stream.take(3001))
        found = found.add(done.root_id)
        assert found == stream.expected
    stats = acker.stats()
    assert found.completions > 0
    assert (stats.duplicates, stats.unknown, stats.orphans) == (0, 0, 0)
    assert stats.pending == stats.open  # every TRACK came first
    assert stats.resets == stream.resets


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape["pending"] > 30], ids=str)
def test_keeps_so_many_trees_pending(shape):
    stream, pending = TreeStream(**shape), shape["pending"]
    acker = opened(stream)
    held = [len(acker)]
    for _ in range(10):
        acker.ingest(*stream.take(2000))
        held.append(len(acker))
    assert 0.8 * pending <= min(held) <= max(held) <= 1.25 * pending


def test_mixes_kinds_in_the_asked_shares():
    kinds = TreeStream(5000, 4, fail_share=0.05, reset_share=0.05).take(200_000).kind
    shares = np.bincount(kinds, minlength=5) / kinds.size
    assert shares[Kind.FAIL] == pytest.approx(0.05, rel=0.03)
    assert shares[Kind.RESET_TIMEOUT] == pytest.approx(0.05, rel=0.03)
    assert shares[Kind.ANCHOR] == 0


def test_kinds_come_in_no_fixed_order():
    kinds = TreeStream(5000, 4).take(10_000).kind
    after_track = kinds[1:][kinds[:-1] == Kind.TRACK]
    assert 0.1 < np.mean(after_track == Kind.TRACK) < 0.3


def test_is_the_same_however_it_is_taken():
    whole, parts = TreeStream(700, 4), TreeStream(700, 4)
    taken = [parts.take(rows) for rows in (1, 0, 999, 70_000, 29_000)]
    expected = as_lists(whole.take(100_000))
    assert as_lists(map(np.concatenate, zip(*taken, strict=True))) == expected
    assert parts.expected == whole.expected


def test_prefill_is_the_same_in_batches_of_any_size():
    small, large = (list(TreeStream(700, 4).prefill(rows)) for rows in (90, 10_000))
    assert as_lists(map(np.concatenate, zip(*small, strict=True))) == as_lists(
        map(np.concatenate, zip(*large, strict=True))
    )
    assert max(batch.kind.size for batch in small) == 90


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ({"pending": 800_000, "oks": 4}, Checksum(19_984, 6_784_766_462_059_713_783)),
        ({"pending": 100, "oks": 4}, Checksum(20_000, -2_827_621_910_286_944_243)),
    ],
    ids=["m1", "p100"],
)
def test_is_the_stream_that_was_published(shape, expected):
    stream = TreeStream(**shape, seed=42)
    stream.take(100_000)
    assert stream.expected == expected


def test_another_seed_is_another_stream():
    first, second = (TreeStream(50, 4, seed=seed).take(500) for seed in (1, 2))
    assert np.intersect1d(first.root_id, second.root_id).size == 0
    assert first.kind.tolist() != second.kind.tolist()


@pytest.mark.parametrize(
    "shape",
    [
        {"pending": 0, "oks": 4},
        {"pending": 10, "oks": 0},
        {"pending": 10, "oks": 1, "reset_share": 0.05},
        {"pending": 10, "oks": 4, "fail_share": 0.5},
        {"pending": 10, "oks": 4, "reset_share": 0.5},
        {"pending": 10, "oks": 4, "fail_share": -0.1},
        {"pending": 10, "oks": 4, "seed": -1},
    ],
    ids=str,
)
def test_refuses_shapes_that_cannot_be(shape):
    with pytest.raises(ArgumentValueError):
        TreeStream(**shape)


def test_xor_of_nothing_is_zero():
    assert xor_of(np.empty(0, np.int64)) == 0
    assert xor_of(np.array([5, -7, 5])) == -7
