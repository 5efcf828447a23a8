"""XXH64 in plain Python: the checksums of `ReferenceAcker`'s snapshots, and the ranks of doubled TRACKs.

The hash is Yann Collet's: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
"""

from __future__ import annotations

import struct
from typing import Final

_MASK: Final = 2**64 - 1
_PRIME_1: Final = 0x9E3779B185EBCA87
_PRIME_2: Final = 0xC2B2AE3D27D4EB4F
_PRIME_3: Final = 0x165667B19E3779F9
_PRIME_4: Final = 0x85EBCA77C2B2AE63
_PRIME_5: Final = 0x27D4EB2F165667C5

_STRIPE: Final = struct.Struct("<4Q")
_WORD: Final = struct.Struct("<Q")
_HALF: Final = struct.Struct("<I")


def _rotate(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _MASK


def _round(lane: int, word: int) -> int:
    return _rotate((lane + word * _PRIME_2) & _MASK, 31) * _PRIME_1 & _MASK


def _hash_stripes(stripes: memoryview, seed: int) -> int:
    # The rounds of four lanes, written out: as calls of _round they take more than twice as long.
    a, b, c, d = seed + _PRIME_1 + _PRIME_2, seed + _PRIME_2, seed, seed - _PRIME_1
    for v, w, x, y in _STRIPE.iter_unpack(stripes):
        a = (a + v * _PRIME_2) & _MASK
        a = (a << 31 & _MASK | a >> 33) * _PRIME_1 & _MASK
        b = (b + w * _PRIME_2) & _MASK
        b = (b << 31 & _MASK | b >> 33) * _PRIME_1 & _MASK
        c = (c + x * _PRIME_2) & _MASK
        c = (c << 31 & _MASK | c >> 33) * _PRIME_1 & _MASK
        d = (d + y * _PRIME_2) & _MASK
        d = (d << 31 & _MASK | d >> 33) * _PRIME_1 & _MASK
    mixed = sum(_rotate(lane, bits) for lane, bits in zip((a, b, c, d), (1, 7, 12, 18), strict=True))
    for lane in (a, b, c, d):
        mixed = ((mixed ^ _round(0, lane)) * _PRIME_1 + _PRIME_4) & _MASK
    return mixed


def xxh64(data: bytes | bytearray | memoryview, seed: int = 0) -> int:
    """Return the XXH64 hash of some bytes, 0 to 2^64 - 1; the seed is of the same range.

    Examples
    --------
    >>> from acker._engine.xxh64 import xxh64
    >>> hex(xxh64(b"abc"))
    '0x44bc2cf5ad770999'
    """
    rest = memoryview(data)
    size = len(rest)
    stripes = size // _STRIPE.size * _STRIPE.size
    mixed = _hash_stripes(rest[:stripes], seed) if stripes else seed + _PRIME_5
    mixed = (mixed + size) & _MASK
    rest = rest[stripes:]
    words = len(rest) // _WORD.size * _WORD.size
    for (word,) in _WORD.iter_unpack(rest[:words]):
        mixed = (_rotate(mixed ^ _round(0, word), 27) * _PRIME_1 + _PRIME_4) & _MASK
    rest = rest[words:]
    if len(rest) >= _HALF.size:
        (half,) = _HALF.unpack_from(rest)
        mixed = (_rotate(mixed ^ half * _PRIME_1 & _MASK, 23) * _PRIME_2 + _PRIME_3) & _MASK
        rest = rest[_HALF.size :]
    for byte in rest:
        mixed = _rotate(mixed ^ byte * _PRIME_5 & _MASK, 11) * _PRIME_1 & _MASK
    mixed = (mixed ^ mixed >> 33) * _PRIME_2 & _MASK
    mixed = (mixed ^ mixed >> 29) * _PRIME_3 & _MASK
    return mixed ^ mixed >> 32
