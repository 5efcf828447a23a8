"""Checksums in files: whatever bytes change or are missing, it is noticed."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acker.spark.checksums import seal, seal_parquet, unseal, unseal_parquet

CONTENT = bytes(range(256)) * 3


def parquet_of(rows):
    target = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": range(rows), "b": ["x"] * rows}), target)
    return target.getvalue().to_pybytes()


def flipped(data):
    """Return copies with one bit changed, a copy for each byte."""
    return [data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :] for place in range(len(data))]


@pytest.mark.parametrize("content", [b"", b"x", CONTENT], ids=["nothing", "a byte", "more"])
def test_a_flipped_byte_is_damage_and_a_missing_end_is_told_apart(content):
    sealed = seal(content, "a/1")
    assert unseal(sealed, "a/1") == content
    for data in [*flipped(sealed), sealed + b"x"]:
        with pytest.raises(ValueError, match="checksum"):
            unseal(data, "a/1")
    for size in range(len(sealed)):
        with pytest.raises(EOFError, match=r"\d+ bytes"):
            unseal(sealed[:size], "a/1")


@pytest.mark.parametrize("rows", [0, 100])
def test_a_parquet_file_stays_one_and_any_change_is_noticed(rows):
    parquet = parquet_of(rows)
    sealed = seal_parquet(parquet, "batch-1")
    assert unseal_parquet(sealed, "batch-1") == parquet
    assert pq.read_table(pa.BufferReader(sealed)) == pq.read_table(pa.BufferReader(parquet))
    cut = [sealed[:size] for size in range(len(sealed))]
    for data in [*flipped(sealed), *cut, sealed + b"x", parquet, b"PAR1" + bytes(40) + b"PAR1"]:
        with pytest.raises(ValueError, match="checksum"):
            unseal_parquet(data, "batch-1")


def test_a_whole_file_by_another_name_is_damage():
    with pytest.raises(ValueError, match="its name"):
        unseal(seal(CONTENT, "a/1"), "a/2")
    with pytest.raises(ValueError, match="its name"):
        unseal_parquet(seal_parquet(parquet_of(3), "batch-1"), "batch-2")
