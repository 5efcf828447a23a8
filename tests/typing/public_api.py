"""The types that users see. Never run: mypy checks it, and an ignore that is not needed is an error too."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import assert_type

import numpy as np
import numpy.typing as npt

import acker


def engine(a: acker.Acker | acker.ShardedAcker | acker.ReferenceAcker) -> None:
    ids = acker.IdGenerator(seed=1).take(3)
    assert_type(ids, npt.NDArray[np.int64])
    done = a.ingest(acker.Kind.TRACK, ids, ids, task_id=[0, 0, 1], message_id=range(3), now_ms=5)
    assert_type(done, acker.Completions)
    assert_type(a.ingest(np.zeros(0, np.int8), [], []), acker.Completions)
    assert_type(a.rotate(now_ms=6), acker.Completions)
    assert_type(a.stats(), acker.Stats)
    assert_type(a.stats().timed_out, int)
    assert_type(a.snapshot(), bytes)
    assert_type(a.snapshot_to("file"), int)
    assert_type(a.snapshot_to(Path("file")), int)
    assert_type(a.snapshot_to(io.BytesIO()), int)
    assert_type(len(a), int)
    assert_type(a.nbytes, int)
    assert_type(7 in a, bool)

    a.ingest(acker.Kind.OK, ids)  # type: ignore[call-arg]
    a.ingest(acker.Kind.OK, ids, ids, None, None, 5)  # type: ignore[call-arg]
    a.rotate(5)  # type: ignore[call-arg]
    a.rotate(now_ms="now")  # type: ignore[arg-type]
    a.snapshot_to(io.StringIO())  # type: ignore[arg-type]


def construction() -> None:
    assert_type(acker.Acker(protocol="fsshelter", buckets=5, high_water=10, seed=1), acker.Acker)
    assert_type(acker.Acker.restore(b""), acker.Acker)
    assert_type(acker.ShardedAcker(4, 2, protocol="fsshelter", buckets=5, high_water=10, seed=1), acker.ShardedAcker)
    assert_type(acker.ShardedAcker.restore(b"", shards=4, threads=2), acker.ShardedAcker)
    assert_type(acker.ShardedAcker.restore_from("file", 4), acker.ShardedAcker)
    assert_type(acker.ReferenceAcker.restore(b""), acker.ReferenceAcker)
    assert_type(acker.Acker.restore_from(io.BytesIO()), acker.Acker)
    assert_type(acker.ReferenceAcker.restore_from("file"), acker.ReferenceAcker)

    acker.Acker("storm")  # type: ignore[call-arg]
    acker.Acker(buckets="3")  # type: ignore[arg-type]


def completions(done: acker.Completions) -> None:
    assert_type(done.root_id, npt.NDArray[np.int64])
    assert_type(done.message_id, npt.NDArray[np.int64])
    assert_type(done.task_id, npt.NDArray[np.int32])
    assert_type(done.outcome, npt.NDArray[np.int8])
    assert_type(done.elapsed_ms, npt.NDArray[np.int64])
    assert_type(len(done), int)


def ids_and_names() -> None:
    assert_type(acker.IdGenerator().next(), int)
    assert_type(acker.acker_of(5, 3), int)
    assert_type(acker.encode_tuple_id(1, 2), str)
    assert_type(acker.parse_tuple_id("1:2"), tuple[int, int] | None)
    assert_type(acker.Outcome(3), acker.Outcome)


def errors(error: acker.AckerMemoryError) -> tuple[MemoryError, type[ValueError], type[RuntimeError]]:
    assert_type(error.rows_applied, int)
    assert_type(error.completions, acker.Completions)
    return error, acker.SnapshotError, acker.BusyError


def files() -> None:
    assert_type(acker.completions_from_files(["a", Path("b")], threads=2), acker.Completions)
    assert_type(acker.completion_batches_from_files("a", memory_bytes=2**30), Iterator[acker.Completions])
