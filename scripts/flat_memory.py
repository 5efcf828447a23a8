"""Check that memory and look-ups stay flat while millions of trees come and go.

Trees are acked, failed and given more time; some get no further message and time out, so that each rotation sweeps.
The first quarter of the run lets tables and buffers reach their size. After it, nothing may grow: the acker's own count
of bytes, the resident size, or the lines that a look-up visits. The invariants are checked after each rotation.
"""

import argparse
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from acker import Acker, Kind
from acker.testing import TreeStream
from benchmarks.suite.ingest import cut
from tests.native_testing import check_invariants, probes

OKS = 4
CALL_ROWS = 10_000
STEPS_A_ROTATION = 6  # a step is as many messages as trees are pending; a tree lives for five
LOST_SHARE = 1 / 200  # of the pending trees, in each step
SLACK_BYTES = 8 << 20
SAMPLES_MIN = 12


class Sample(NamedTuple):
    """The figures after a rotation."""

    finished: int
    nbytes: int
    resident: int
    lines_a_look_up: float


def churn(trees: int, pending: int, seed: int) -> Iterator[Sample]:
    """Let this many trees finish, and yield a sample after each rotation."""
    acker = Acker(seed=seed)
    stream = TreeStream(pending, OKS, fail_share=0.02, reset_share=0.02, seed=seed)
    random = np.random.default_rng(seed)
    lost = max(1, round(pending * LOST_SHARE))
    for batch in stream.prefill():
        acker.ingest(*batch)
    finished = timed_out = begun = 0
    while finished < trees:
        for _ in range(STEPS_A_ROTATION):
            finished += sum(len(acker.ingest(*batch)) for batch in cut(stream.take(pending), CALL_ROWS))
            roots = random.integers(-(2**63), 2**63, lost, np.int64)
            acker.ingest(Kind.TRACK, roots, np.ones(lost, np.int64), np.zeros(lost, np.int32))
            begun += lost
        timed_out += len(acker.rotate())
        check_invariants(acker)
        yield Sample(finished + timed_out, acker.nbytes, resident_bytes(), probes(acker) / len(acker))
    expected = begun - (acker.buckets - 1) * STEPS_A_ROTATION * lost
    if timed_out != max(expected, 0) or finished != stream.expected.completions:
        raise SystemExit(f"{timed_out} trees timed out and {finished} ended, not {expected} and {stream.expected}")


def resident_bytes() -> int:
    """Return the resident size of this process; 0 where the system does not tell."""
    try:
        found = re.search(r"^VmRSS:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found.group(1)) * 1024 if found else 0


def faults(samples: list[Sample]) -> list[str]:
    """Return what has grown after the first quarter, in words."""
    if len(samples) < SAMPLES_MIN:
        return [f"{len(samples)} rotations are too few to tell"]
    quarter, grown = len(samples) // 4, []
    for name, slack in (("nbytes", 0.0), ("resident", float(SLACK_BYTES)), ("lines_a_look_up", 0.01)):
        before = max(getattr(sample, name) for sample in samples[:quarter])
        after = max(getattr(sample, name) for sample in samples[quarter:])
        if after > before + slack:
            grown.append(f"{name} has grown from {before:,.3f} to {after:,.3f}")
    return grown


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trees", type=int, default=20_000_000, help="number of trees that finish")
    parser.add_argument("--pending", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    start = time.monotonic()
    samples = list(churn(options.trees, options.pending, options.seed))
    last = samples[-1]
    print(
        f"flat memory: {last.finished:,} trees in {len(samples)} rotations and {time.monotonic() - start:.0f} s; "
        f"{last.nbytes:,} bytes, {last.resident:,} resident, {last.lines_a_look_up:.4f} lines a look-up"
    )
    if found := faults(samples):
        raise SystemExit("flat memory: " + "; ".join(found))


if __name__ == "__main__":
    main()
