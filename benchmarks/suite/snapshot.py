"""The benchmark of snapshot and restore, in memory and through a file, against a copy of the same bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from acker._engine.acker import Acker
from acker.testing.streams import xor_of
from benchmarks.suite.ingest import fill
from benchmarks.suite.measure import Alternation, Case, Goal, Ratio, Result, Scale, expect
from benchmarks.suite.workloads import SEED, WORKLOADS
from tests.oracles import decode

_GB_PER_S: Final = Goal(at_least=1.0)
# A file system in memory, where there is one: the question is what the acker takes, and not the disk.
_SHARED_MEMORY: Final = Path("/dev/shm")


def snapshot_and_restore(scale: Scale) -> Result:
    """Time both ways to take and to restore a snapshot, and a copy of its bytes."""
    acker = fill(Acker(seed=SEED), WORKLOADS["m1"].stream(scale))
    blob = acker.snapshot()
    array, target = np.frombuffer(blob, np.uint8), np.empty(len(blob), np.uint8)
    in_memory = _SHARED_MEMORY.is_dir()
    with tempfile.TemporaryDirectory(dir=_SHARED_MEMORY if in_memory else None) as folder:
        path = Path(folder) / "snapshot"
        path.write_bytes(blob)
        sides: dict[str, Callable[[None], object]] = {
            "snapshot": lambda _: acker.snapshot(),
            "restore": lambda _: Acker.restore(blob),
            "snapshot_to": lambda _: acker.snapshot_to(path),
            "restore_from": lambda _: Acker.restore_from(path),
            "copy": lambda _: np.copyto(target, array),
        }

        def check(side: str, _: None, returned: object) -> None:
            if side == "snapshot":
                expect("the snapshot of an unchanged acker is the same again", returned == blob, True)
            elif side == "snapshot_to":
                expect("the file is the snapshot", path.read_bytes() == blob, True)
            elif isinstance(returned, Acker):
                expect("counts of the restored acker", returned.stats(), acker.stats())

        taken = Alternation(sides, check).run(repeat(None, scale.pairs + 1))
    samples = {side: [len(blob) / sample for sample in taken[side]] for side in taken}
    restored = Acker.restore(blob)
    # The order of the entries is that of the table, which need not be the same again.
    found, wanted = (np.sort(_rows(taken_of)) for taken_of in (restored.snapshot(), blob))
    expect("the entries of the restored acker are those of the first one", np.array_equal(found, wanted), True)
    goal = scale.goal(_GB_PER_S)
    return Result(
        "GB/s",
        samples,
        [Ratio(side, "copy") for side in sides if side != "copy"],
        {
            "pending": len(acker),
            "snapshot_bytes": len(blob),
            "seed": SEED,
            "files_in": str(_SHARED_MEMORY) if in_memory else "the temporary folder",
        },
        {"pending": len(restored), "roots_xor": xor_of(decode(blob).entries.root_id)},
        {} if goal is None else {"snapshot": goal, "restore": goal},
    )


def _rows(blob: bytes) -> npt.NDArray[np.void]:
    entries = decode(blob).entries
    return np.rec.fromarrays(list(entries), names=list(entries._fields))


CASES: Final = [
    Case(
        "snapshot/m1",
        "How fast are snapshots, to and from memory and files, beside a copy in memory?",
        snapshot_and_restore,
    )
]
