"""Benchmarks of batch ingest: against the machine's limit, plain Python, and itself with mixed kinds.

Only the steady state is measured: the table is filled with the pending trees of the workload, spread over all buckets,
and then windows of the stream are timed. The columns of a window come from memory, not from the core's cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from acker import _core
from acker._engine.acker import Acker
from acker._engine.columns import Columns
from acker._engine.reference import ReferenceAcker
from acker._engine.sharded import ShardedAcker
from acker.testing.streams import Checksum, TreeStream, xor_of
from benchmarks.suite.measure import Alternation, Case, Goal, Ratio, Result, Scale, expect, per
from benchmarks.suite.workloads import SEED, WORKLOADS, Workload

if TYPE_CHECKING:
    from acker._engine.completions import Int64Column

AnyAcker = TypeVar("AnyAcker", Acker, ShardedAcker, ReferenceAcker)

BATCH_ROWS: Final = 10_000


class Window(NamedTuple):
    """Some thousand messages, cut into the batches of the calls."""

    rows: int
    batches: list[Columns]
    expected: Checksum  # of the trees finished from the stream's beginning up to the end of this window


def fill(acker: AnyAcker, stream: TreeStream) -> AnyAcker:
    """Open the trees that are pending when the stream begins, and spread them over the buckets by age.

    A bucket holds what came between two rotations; that an entry may be in any of them is part of the work.
    """
    batches, rotations = list(stream.prefill()), 0
    for number, batch in enumerate(batches):
        if number * acker.buckets // len(batches) > rotations:
            rotations += 1
            expect("trees that timed out while filling", len(acker.rotate()), 0)
        acker.ingest(*batch)
    return acker


def cut(messages: Columns, batch_rows: int) -> list[Columns]:
    """Cut messages into batches, without copying."""
    columns = [column for column in messages if column is not None]
    starts = range(0, messages.kind.size, batch_rows)
    return [Columns(*(column[start : start + batch_rows] for column in columns)) for start in starts]  # type: ignore[arg-type]


def windows(stream: TreeStream, rows: int, batch_rows: int, count: int) -> Iterator[Window]:
    """Make the windows of a run one after the other, as they are asked for."""
    for _ in range(count):
        batches = cut(stream.take(rows), batch_rows)
        yield Window(rows, batches, stream.expected)


def feed(acker: Acker | ShardedAcker | ReferenceAcker, window: Window) -> list[Int64Column]:
    """Ingest a window; the work that is timed. Return the root ids of the trees that each call finished.

    The other columns of a result are dropped before the next call, as by a consumer that acks one batch after the
    other: a caller that keeps all of them pays for memory that is touched for the first time.
    """
    return [acker.ingest(*batch).root_id for batch in window.batches]


def update(gups: _core.Gups, window: Window) -> None:
    """Make one random XOR update a message; the work that is timed."""
    for batch in window.batches:
        gups.update(batch.root_id, batch.value)


class Checker:
    """Compares what each side finished with what the stream's generator expects."""

    def __init__(self) -> None:
        self.found: dict[str, Checksum] = {}

    def check(self, side: str, window: Window, returned: Any) -> None:
        """Count what one side returned for a window."""
        if returned is None:
            return
        self.found[side] = reduce(Checksum.add, returned, self.found.get(side, Checksum()))
        expect(f"trees that {side} finished", self.found[side], window.expected)


def against_gups(workload: str, batch_rows: int, goal: Goal | None, scale: Scale) -> Result:
    """Time native ingest and random XOR updates of a table of the same size."""
    shape = WORKLOADS[workload]
    stream = shape.stream(scale)
    acker = fill(Acker(seed=SEED), stream)
    gups = _core.Gups(acker.nbytes, SEED)
    xor, checker = 0, Checker()

    def loads(count: int) -> Iterator[Window]:
        nonlocal xor
        for window in windows(stream, rows, batch_rows, count):
            for batch in window.batches:
                xor ^= xor_of(batch.value)
            yield window

    rows = scale.size(shape.window_rows, 2 * batch_rows)
    sides: dict[str, Callable[[Window], Any]] = {"native": partial(feed, acker), "GUPS": partial(update, gups)}
    samples = Alternation(sides, checker.check).run(loads(scale.pairs + 1))
    expect("xor of the table of GUPS", gups.checksum(), xor % 2**64)
    return Result(
        "ns/message",
        per(samples, rows),
        [Ratio("native", "GUPS", scale.goal(goal))],
        _parameters(workload, shape, batch_rows, rows, acker),
        {**stream.expected._asdict(), "gups_xor": xor},
    )


def against_reference(workload: str, goal: Goal | None, scale: Scale) -> Result:
    """Time native ingest and `ReferenceAcker`, plain dicts and integers."""
    shape = WORKLOADS[workload]
    streams = {side: shape.stream(scale) for side in ("reference", "native")}
    native = fill(Acker(seed=SEED), streams["native"])
    ackers: dict[str, Acker | ReferenceAcker] = {
        "reference": fill(ReferenceAcker(seed=SEED), streams["reference"]),
        "native": native,
    }
    # Microseconds a message against nanoseconds: with windows of one size, native would be timed while it still
    # brings its table back into the caches that the reference has emptied.
    rows = {"native": scale.size(shape.window_rows, 1000), "reference": scale.size(shape.window_rows // 10, 1000)}
    samples = _each_its_own(ackers, streams, rows, min(scale.pairs, 7))
    return Result(
        "ns/message",
        samples,
        [Ratio("reference", "native", scale.goal(goal))],
        {
            **_parameters(workload, shape, BATCH_ROWS, rows["native"], native),
            "reference_window_rows": rows["reference"],
        },
        streams["native"].expected._asdict(),
    )


def mixed_kinds(scale: Scale) -> Result:
    """Time native ingest of a stream with FAILs and RESET_TIMEOUTs, and of one without."""
    streams = {name: WORKLOADS[name].stream(scale) for name in ("mixed", "m1")}
    ackers = {name: fill(Acker(seed=SEED), stream) for name, stream in streams.items()}
    rows = scale.size(WORKLOADS["mixed"].window_rows, BATCH_ROWS)
    samples = _each_its_own(ackers, streams, dict.fromkeys(streams, rows), scale.pairs)
    stats = ackers["mixed"].stats()
    expect("resets", (stats.resets, stats.unknown), (streams["mixed"].resets, 0))
    return Result(
        "ns/message",
        samples,
        [Ratio("mixed", "m1", scale.goal(Goal(at_most=1.3)))],
        _parameters("mixed", WORKLOADS["mixed"], BATCH_ROWS, rows, ackers["mixed"]),
        {**streams["mixed"].expected._asdict(), "failed": stats.failed, "resets": stats.resets},
    )


def each_kernel(workload: str, scale: Scale) -> Result:
    """Time native ingest with the portable kernel, and with the one that this machine would take."""
    kernels = dict.fromkeys(("portable", _core.kernels()[0]))
    streams = {kernel: WORKLOADS[workload].stream(scale) for kernel in kernels}
    ackers = {kernel: fill(_acker_with(kernel), stream) for kernel, stream in streams.items()}
    rows = scale.size(WORKLOADS[workload].window_rows, BATCH_ROWS)
    samples = _each_its_own(ackers, streams, dict.fromkeys(streams, rows), scale.pairs)
    return Result(
        "ns/message",
        samples,
        [Ratio("portable", kernel, scale.goal(Goal(at_most=1.5))) for kernel in kernels if kernel != "portable"],
        _parameters(workload, WORKLOADS[workload], BATCH_ROWS, rows, ackers["portable"]),
        streams["portable"].expected._asdict(),
    )


def _acker_with(kernel: str) -> Acker:
    """Make an acker with a kernel, as a user would: the environment is read when an acker is made."""
    before = os.environ.get("ACKER_KERNEL")
    os.environ["ACKER_KERNEL"] = kernel
    try:
        return Acker(seed=SEED)
    finally:
        if before is None:
            del os.environ["ACKER_KERNEL"]
        else:
            os.environ["ACKER_KERNEL"] = before


def _each_its_own(
    ackers: Mapping[str, Acker | ReferenceAcker], streams: dict[str, TreeStream], rows: dict[str, int], pairs: int
) -> dict[str, list[float]]:
    """Time several ackers, each on the windows of its own stream; return nanoseconds a message."""
    checkers = {side: Checker() for side in streams}

    def loads() -> Iterator[dict[str, Window]]:
        made = {side: windows(stream, rows[side], BATCH_ROWS, pairs + 1) for side, stream in streams.items()}
        for _ in range(pairs + 1):
            yield {side: next(given) for side, given in made.items()}

    def ingest(side: str, load: dict[str, Window]) -> list[Int64Column]:
        return feed(ackers[side], load[side])

    def check(side: str, load: dict[str, Window], returned: list[Int64Column]) -> None:
        checkers[side].check(side, load[side], returned)

    taken = Alternation({side: partial(ingest, side) for side in streams}, check).run(loads())
    return {side: per({side: samples}, rows[side])[side] for side, samples in taken.items()}


def _parameters(name: str, workload: Workload, batch_rows: int, rows: int, acker: Acker) -> dict[str, Any]:
    return {
        "workload": name,
        "text": workload.text,
        "seed": SEED,
        "pending": len(acker),
        "batch_rows": batch_rows,
        "window_rows": rows,
        "table_bytes": acker.nbytes,
    }


_GUPS_QUESTION: Final = "How far is native ingest from random XOR updates of a table of the same size?"
_REFERENCE_QUESTION: Final = "How much faster than plain Python is native ingest?"


def _gups_case(workload: str, batch_rows: int, goal: Goal | None = None) -> Case:
    size = f"{batch_rows // 1000}k"
    return Case(f"ingest/{workload}/{size}", _GUPS_QUESTION, partial(against_gups, workload, batch_rows, goal))


def _kernel_case(workload: str) -> Case:
    question = "What does a machine without AVX2 lose?"
    return Case(f"kernels/{workload}", question, partial(each_kernel, workload))


def _reference_case(workload: str) -> Case:
    run = partial(against_reference, workload, Goal(at_least=60))
    return Case(f"reference/{workload}", _REFERENCE_QUESTION, run)


CASES: Final = [
    _gups_case("m1", 1000),
    _gups_case("m1", BATCH_ROWS, Goal(at_most=2.4)),
    _gups_case("m1", 100_000),
    _gups_case("m2", BATCH_ROWS, Goal(at_most=2.1)),
    _gups_case("k20", BATCH_ROWS, Goal(at_most=2.9)),
    _gups_case("s20k", BATCH_ROWS, Goal(at_most=6)),
    _gups_case("p100", 1000),
    _gups_case("p100", BATCH_ROWS, Goal(at_most=4.7)),
    Case("ingest/mixed/10k", "What do FAIL and RESET_TIMEOUT cost?", mixed_kinds),
    *map(_kernel_case, ("m1", "k20", "p100")),
    *map(_reference_case, ("m1", "m2", "k20", "s20k", "p100")),
]
