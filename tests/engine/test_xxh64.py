"""XXH64 in Python: the published values, and the same as the native one for every length."""

import numpy as np
import pytest

from acker import _core
from acker._engine.xxh64 import xxh64


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
        (b"The quick brown fox jumps over the lazy dog", 0x0B242D361FDA71BC),
    ],
)
def test_the_published_values(data, expected):
    assert xxh64(data) == expected


@pytest.mark.parametrize("seed", [0, 1, 42, 2**63, 2**64 - 1])
def test_it_is_that_of_the_native_core(seed):
    data = np.random.default_rng(seed).integers(0, 256, 3000).astype(np.uint8)
    for size in [*range(101), 1000, 2999, 3000]:
        assert xxh64(data[:size].tobytes(), seed) == _core.xxh64(data[:size], seed)


def test_any_bytes_will_do():
    assert xxh64(bytearray(b"abc")) == xxh64(memoryview(b"xabc")[1:]) == xxh64(b"abc")
