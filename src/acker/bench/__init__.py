"""The benchmarks, shipped with the package: `acker bench`, or ``python -m acker.bench``.

One module a question. Every case checks its own work against the workload's generator, compares two sides on the same
load in alternating order, and reports ratios with their spread; see docs/benchmarks.md.
"""

from acker.implementation import NAME, compiled_only

if NAME == "python":
    raise compiled_only("acker.bench")

from acker.bench.suite import CASES, main

__all__ = ["CASES", "main"]
