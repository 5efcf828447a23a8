"""Rules of a shard: the times of its rotations, and the entries that each of them removes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from acker._engine.combiner import Cohorts
from acker._engine.protocol import INT64_MIN

# The time between two looks for the oldest tree where there is no timeout, and so no rotation.
_LOOK_MS: Final = 60_000


def split_event_times(timeout_ms: Fraction | None, buckets: int) -> Cohorts:
    """Return how event times are split into cohorts: not at all without a timeout."""
    return Cohorts(0 if timeout_ms is None else int(timeout_ms), buckets)


@dataclass(frozen=True)
class ShardRules:
    """The rules by which a shard settles trees: its share of the trees, its clock, its timeout and its capacity.

    Attributes
    ----------
    shards, partitions : int
    timeout_ms : Fraction or None
    buckets : int
    high_water : int or None
        For one shard.
    every_message_refreshes : bool
        The rule of protocol "storm-0.9".
    event_time : bool
        Whether the clock is the watermark.
    ids : str or None
        The type of message ids, "bigint", "string" or "binary", if messages are those of a pipeline: notes come with
        them, so completions say why trees failed, and two TRACKs of one tree in a micro-batch are an error.
    """

    shards: int
    partitions: int
    timeout_ms: Fraction | None = None
    buckets: int = 3
    high_water: int | None = None
    every_message_refreshes: bool = False
    event_time: bool = False
    ids: str | None = None

    @property
    def cohorts(self) -> Cohorts | None:
        """How event times are split into cohorts; None where trees expire by the clock."""
        if not self.event_time:
            return None
        return split_event_times(self.timeout_ms, self.buckets)

    @property
    def cohorts_of_blocks(self) -> Cohorts | None:
        """How event times are split while the blocks of a micro-batch are combined.

        Those of a pipeline are not split: all messages of a tree are in one micro-batch and have the time of its row.
        So two rows that share a tree are noticed, whatever their times.
        """
        cohorts = self.cohorts
        return cohorts._replace(timeout_ms=0) if cohorts is not None and self.ids is not None else cohorts

    def rotation_at(self, time_ms: int) -> int:
        """Return the number of rotations up to a moment: one each timeout / (buckets - 1), without rounding."""
        if self.timeout_ms is None:
            return time_ms // _LOOK_MS
        return int(time_ms * (self.buckets - 1) // self.timeout_ms)

    def expired_at(self, rotation: int) -> int:
        """Return the moment before which an entry must have been placed to be removed by a rotation."""
        if self.timeout_ms is None:
            return INT64_MIN
        # An entry of cohort c leaves with rotation c + buckets, so those before cohort rotation - buckets + 1 are gone.
        return self._begin_ms(rotation - self.buckets + 1, self.timeout_ms)

    def next_rotation_ms(self, time_ms: int) -> int | None:
        """Return the moment of the first rotation after `time_ms`; None where there are none."""
        if self.timeout_ms is None:
            return None
        return self._begin_ms(self.rotation_at(time_ms) + 1, self.timeout_ms)

    def _begin_ms(self, rotation: int, timeout_ms: Fraction) -> int:
        """Return the first whole millisecond of a cohort, which is that of the rotation with its number."""
        return math.ceil(rotation * timeout_ms / (self.buckets - 1))
