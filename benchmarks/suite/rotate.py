"""Benchmarks of rotate: with a full death row, and with nothing to expire."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from acker._engine.acker import Acker
from acker._engine.columns import Columns
from acker._engine.completions import Completions
from acker._engine.protocol import BUCKETS_MAX, Kind
from acker._engine.reference import ReferenceAcker
from acker.testing.streams import Checksum, TreeStream
from benchmarks.suite.ingest import AnyAcker
from benchmarks.suite.measure import Alternation, Case, Goal, Ratio, Result, Scale, expect, per
from benchmarks.suite.workloads import SEED

_TREES: Final = 1_000_000
_REFERENCE_TREES: Final = 100_000
_WARMING_ROTATIONS: Final = 4


def tracks(trees: int) -> tuple[list[Columns], Checksum]:
    """Make the TRACKs of this many trees, and their checksum."""
    batches = list(TreeStream(trees, 1, seed=SEED).prefill())
    expected = Checksum()
    for batch in batches:
        expected = expected.add(batch.root_id)
    return batches, expected


def bring_to_death_row(acker: AnyAcker, batches: list[Columns]) -> AnyAcker:
    """Ingest the batches and rotate until their trees are those that expire next."""
    for batch in batches:
        acker.ingest(*batch)
    for _ in range(acker.buckets - 1):
        expect("trees expired too early", len(acker.rotate()), 0)
    return acker


def expire_all(scale: Scale) -> Result:
    """Time a rotation that expires a million trees, the arrays of the result included; ReferenceAcker's with fewer."""
    native, reference = Acker(seed=SEED), ReferenceAcker(seed=SEED)
    many, few = tracks(scale.size(_TREES, 100)), tracks(scale.size(_REFERENCE_TREES, 100))
    held: dict[str, tuple[Acker | ReferenceAcker, tuple[list[Columns], Checksum]]] = {
        "native": (native, many),
        "reference": (reference, few),
    }

    def loads() -> Iterator[None]:
        for _ in range(min(scale.pairs, 7) + 1):
            bring_to_death_row(native, many[0])
            bring_to_death_row(reference, few[0])
            yield None

    def rotate(side: str, _: None) -> Completions:
        return held[side][0].rotate()

    def check(side: str, _: None, returned: Completions) -> None:
        expect(f"trees that {side} expired", Checksum().add(returned.root_id), held[side][1][1])

    sides = {side: partial(rotate, side) for side in ("reference", "native")}
    taken = Alternation(sides, check).run(loads())
    samples = {side: per({side: taken[side]}, held[side][1][1].completions)[side] for side in taken}
    goal = scale.goal(Goal(at_most=15))
    return Result(
        "ns/tree",
        samples,
        [Ratio("reference", "native")],
        {"trees": many[1].completions, "reference_trees": few[1].completions, "seed": SEED},
        many[1]._asdict(),
        {"native": goal} if goal else {},
    )


def expire_none(scale: Scale) -> Result:
    """Time rotations with an empty death row: of an acker that holds a million trees, and of one that holds none."""
    batches, expected = tracks(scale.size(_TREES, 100))
    full, empty = Acker(buckets=BUCKETS_MAX, seed=SEED), Acker(buckets=BUCKETS_MAX, seed=SEED)
    for batch in batches:
        full.ingest(*batch)
    calls = BUCKETS_MAX - 1 - _WARMING_ROTATIONS  # one more, and the trees would come to death row's end

    def loads() -> Iterator[None]:
        for _ in range(2 * scale.pairs + 2):
            for batch in batches:
                full.ingest(Kind.RESET_TIMEOUT, batch.root_id, batch.value)
            # Few rotations are timed at once, so what they touch is brought into the caches first.
            for _ in range(_WARMING_ROTATIONS):
                expect("trees that expired", len(full.rotate()) + len(empty.rotate()), 0)
            yield None

    def rotate(acker: Acker, _: None) -> int:
        return sum(len(acker.rotate()) for _ in range(calls))

    def check(side: str, _: None, returned: int) -> None:
        expect(f"trees that expired with {side}", returned, 0)

    sides = {"a million pending": partial(rotate, full), "none pending": partial(rotate, empty)}
    taken = per(Alternation(sides, check).run(loads(), warm_up=2), calls * 1000)
    # In microseconds it matters who comes first, so a sample is the mean of one run in each order.
    samples = {
        side: [sum(both) / 2 for both in zip(times[::2], times[1::2], strict=True)] for side, times in taken.items()
    }
    expect("pending trees", len(full), expected.completions)
    parameters = {"pending": expected.completions, "rotations": calls, "seed": SEED}
    return Result("µs/call", samples, [Ratio("a million pending", "none pending")], parameters, expected._asdict())


CASES: Final = [
    Case("rotate/expired", "What does a rotation cost for each tree that it expires, results included?", expire_all),
    Case("rotate/idle", "Does a rotation that expires nothing depend on how many trees are pending?", expire_none),
]
