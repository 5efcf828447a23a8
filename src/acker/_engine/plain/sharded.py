"""`acker.ShardedAcker` in plain Python: the same contract over one table and one thread."""

from __future__ import annotations

import os
from typing import Final, Self, SupportsIndex

from acker._engine.protocol import check_integer, check_seats
from acker._engine.reference import ReferenceAcker
from acker._engine.storage import Readable

SHARDS_MAX: Final = 256


class ShardedAcker(ReferenceAcker):
    """The contract of `acker.ShardedAcker` without compiled code; `shards` and `threads` are checked and kept.

    Parameters, errors and completions are those of the compiled one, with two differences: `high_water` bounds all
    trees together, not those of each shard, and one thread does the work.
    """

    def __init__(
        self,
        shards: SupportsIndex,
        threads: SupportsIndex | None = None,
        *,
        protocol: str = "storm",
        buckets: int = 3,
        high_water: int | None = None,
        seed: int | None = None,
    ) -> None:
        self._shards, self._threads = _divided(shards, threads)
        super().__init__(protocol=protocol, buckets=buckets, high_water=high_water, seed=seed)
        check_seats(self._shards, high_water)

    @property
    def shards(self) -> int:
        """The number of shards that was asked for."""
        return self._shards

    @property
    def threads(self) -> int:
        """The number of threads that was asked for; 1 if it was left out."""
        return self._threads

    @classmethod
    def restore(  # type: ignore[override]  # the compiled one asks for shards, too
        cls, blob: bytes | bytearray | memoryview, shards: SupportsIndex, threads: SupportsIndex | None = None
    ) -> Self:
        """Return an acker in the state of a snapshot, whichever implementation took it."""
        divided = _divided(shards, threads)
        return cls._of(ReferenceAcker.restore(blob), *divided)

    @classmethod
    def restore_from(  # type: ignore[override]
        cls, source: str | os.PathLike[str] | Readable, shards: SupportsIndex, threads: SupportsIndex | None = None
    ) -> Self:
        """Return an acker in the state of a snapshot in a file, which is read to its end."""
        divided = _divided(shards, threads)
        return cls._of(ReferenceAcker.restore_from(source), *divided)

    @classmethod
    def _of(cls, acker: ReferenceAcker, shards: int, threads: int) -> Self:
        check_seats(shards, acker.high_water)
        made = cls.__new__(cls)
        vars(made).update(vars(acker), _shards=shards, _threads=threads)
        return made

    def __repr__(self) -> str:
        return f"{super().__repr__()}, {self._shards} shards, {self._threads} threads"


def _divided(shards: SupportsIndex, threads: SupportsIndex | None) -> tuple[int, int]:
    parts = check_integer("shards", shards, 1, SHARDS_MAX)
    return parts, check_integer("threads", 1 if threads is None else threads, 1, parts)
