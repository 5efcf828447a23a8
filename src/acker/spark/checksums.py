"""Checksums in files of a checkpoint, so that no damaged byte passes unnoticed, and no file in another one's place."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from acker._engine.combiner import xxh64

_MAGIC: Final = b"ACKERSUM"
_CHECKSUM: Final = struct.Struct("<8sQ")
# Of a file that may be cut short: the size of the content, its checksum, and that of these numbers.
_HEADER: Final = struct.Struct("<8sQQ")
_PARQUET_END: Final = struct.Struct("<I4s")
_MISFIT: Final = "its checksum does not fit what it holds and its name"


def _sum(data: bytes) -> int:
    return xxh64(np.frombuffer(data, np.uint8))


def _sum_as(name: str, data: bytes) -> int:
    """Return the checksum of data and of the name that it has."""
    return _sum(_sum(data).to_bytes(8, "little") + name.encode())


def seal(content: bytes, name: str) -> bytes:
    """Return the content of a file that `unseal` takes back by the same name, which no other file has."""
    header = _HEADER.pack(_MAGIC, len(content), _sum_as(name, content))
    return header + _sum(header).to_bytes(8, "little") + content


def unseal(data: bytes, name: str) -> bytes:
    """Return what was sealed by this name.

    Raises
    ------
    EOFError
        The end is missing, as a crash may leave it where a file is not written at once.
    ValueError
        Bytes have changed, or it was sealed by another name.
    """
    begin = _HEADER.size + 8
    if len(data) < begin:
        raise EOFError(f"{len(data)} bytes, and {begin} are the least")
    if int.from_bytes(data[_HEADER.size : begin], "little") != _sum(data[: _HEADER.size]):
        raise ValueError("the checksum of its beginning does not fit")
    _, size, checksum = _HEADER.unpack_from(data)
    content = data[begin:]
    if len(content) < size:
        raise EOFError(f"{len(content)} bytes of {size}")
    if len(content) > size or _sum_as(name, content) != checksum:
        raise ValueError(_MISFIT)
    return content


def seal_parquet(parquet: bytes, name: str) -> bytes:
    """Return a Parquet file with a checksum of all its other bytes before its footer, where no reader looks."""
    end = _footer_of(parquet)
    return parquet[:end] + _CHECKSUM.pack(_MAGIC, _sum_as(name, parquet)) + parquet[end:]


def unseal_parquet(data: bytes, name: str) -> bytes:
    """Return the Parquet file that was sealed by this name.

    Raises
    ------
    ValueError
        Bytes have changed, or it was never sealed, or by another name.
    """
    end = _footer_of(data) if len(data) >= _PARQUET_END.size else 0
    begin = end - _CHECKSUM.size
    if begin < 0:
        raise ValueError(f"{len(data)} bytes hold no checksum")
    content = data[:begin] + data[end:]
    if _CHECKSUM.unpack_from(data, begin) != (_MAGIC, _sum_as(name, content)):
        raise ValueError(_MISFIT)
    return content


def _footer_of(parquet: bytes) -> int:
    """Return where the footer begins."""
    size, _ = _PARQUET_END.unpack_from(parquet, len(parquet) - _PARQUET_END.size)
    return len(parquet) - _PARQUET_END.size - int(size)
