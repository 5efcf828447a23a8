"""Snapshot and restore, beside copying the same bytes in memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Final

import numpy as np
import numpy.typing as npt

from acker.bench.ingest import fill
from acker.bench.measure import Alternation, Case, Ratio, Result, Scale, expect
from acker.bench.workloads import SEED, WORKLOADS
from acker.engine import Acker
from acker.snapshot import decode
from acker.testing.streams import xor_of


def snapshot_and_restore(scale: Scale) -> Result:
    """Time snapshot, restore and a copy of the snapshot's bytes."""
    acker = fill(Acker(seed=SEED), WORKLOADS["m1"].stream(scale))
    blob = acker.snapshot()
    array, target = np.frombuffer(blob, np.uint8), np.empty(len(blob), np.uint8)

    def copy(_: None) -> None:
        np.copyto(target, array)

    def snapshot(_: None) -> bytes:
        return acker.snapshot()

    def restore(_: None) -> Acker:
        return Acker.restore(blob)

    def check(side: str, _: None, returned: object) -> None:
        if side == "snapshot":
            expect("the snapshot of an unchanged acker is the same again", returned == blob, True)
        elif isinstance(returned, Acker):
            expect("counts of the restored acker", returned.stats(), acker.stats())

    sides: dict[str, Callable[[None], object]] = {"snapshot": snapshot, "restore": restore, "copy": copy}
    taken = Alternation(sides, check).run(repeat(None, scale.pairs + 1))
    samples = {side: [len(blob) / sample for sample in taken[side]] for side in taken}
    restored = Acker.restore(blob)
    # The order of the entries is that of the table, which need not be the same again.
    found, wanted = (np.sort(_rows(taken_of)) for taken_of in (restored.snapshot(), blob))
    expect("the entries of the restored acker are those of the first one", np.array_equal(found, wanted), True)
    return Result(
        "GB/s",
        samples,
        [Ratio("snapshot", "copy"), Ratio("restore", "copy")],
        {"pending": len(acker), "snapshot_bytes": len(blob), "seed": SEED},
        {"pending": len(restored), "roots_xor": xor_of(decode(blob).entries.root_id)},
    )


def _rows(blob: bytes) -> npt.NDArray[np.void]:
    entries = decode(blob).entries
    return np.rec.fromarrays(list(entries), names=list(entries._fields))


CASES: Final = [
    Case("snapshot/m1", "How fast are snapshot and restore, beside a copy in memory?", snapshot_and_restore)
]
