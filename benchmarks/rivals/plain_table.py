"""Does one table for all buckets pay? Native ingest against one open-addressing table per bucket, in C++ too."""

from functools import partial

from native_rival import RivalAcker, against, cpp_library

from acker import Acker
from benchmarks.suite.measure import Case, Goal, Ratio, Result
from benchmarks.suite.memory import growths
from benchmarks.suite.workloads import SEED

GROWN_TREES = 16_000_000

library = partial(cpp_library, "plain_table.cpp")


def growing(scale):
    """Time calls of 1,000 TRACKs while both grow from nothing, in memory that was touched before."""
    trees, times = scale.size(GROWN_TREES, 2000), min(3, scale.pairs)
    plain = growths(lambda: RivalAcker(library()).ingest, trees, times, touched=True)
    native = growths(lambda: Acker(seed=SEED).ingest, trees, times, touched=True)
    samples = {
        "plain longest": [growth.quantile(1) for growth in plain],
        "native longest": [growth.quantile(1) for growth in native],
        "plain 99.9 %": [growth.quantile(0.999) for growth in plain],
        "native 99.9 %": [growth.quantile(0.999) for growth in native],
    }
    faults = {"plain": [growth.faults for growth in plain], "native": [growth.faults for growth in native]}
    ratios = [Ratio("plain longest", "native longest"), Ratio("plain 99.9 %", "native 99.9 %")]
    goal = scale.goal(Goal(at_least=200_000))
    goals = {"plain longest": goal} if goal else {}
    parameters = {"pending": trees, "batch_rows": 1000, "page_faults": faults, "seed": SEED}
    return Result("µs/call", samples, ratios, parameters, {"completions": trees}, goals)


CASES = [
    *(
        Case(f"plain/{workload}", "What does one table per bucket cost?", partial(against, "plain", library, workload))
        for workload in ("m1", "m2", "k20", "s20k", "p100")
    ),
    Case("plain/growth", "How long does a call wait while a table is doubled, or a segment split?", growing),
]
